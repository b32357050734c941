"""Which number format to train in, and whether this machine gains by it."""

from __future__ import annotations

import torch

from penni.errors import PenniError, nearest

PRECISIONS = ("auto", "fp32", "bf16")


def choose_precision(wanted: str, device: torch.device) -> str:
    """`fp32` or `bf16`; `auto` takes bf16 where the hardware multiplies it natively, which is where it is faster."""
    if wanted not in PRECISIONS:
        raise PenniError(f"there is no precision '{wanted}': {nearest(wanted, PRECISIONS)}")
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type == "cpu":
        native = any(
            getattr(torch.cpu, f"_is_{feature}_supported", lambda: False)() for feature in ("avx512_bf16", "amx_tile")
        )
        return "bf16" if native else "fp32"
    return "fp32"
