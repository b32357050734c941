"""Where an exported file comes from: the checkpoint, its hash, its counts and what its input must look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from penni.checkpoint import STRUCTURE, read_structure
from penni.measure import count
from penni.models import example_input, origin_of


def finished_checkpoint(name: str) -> str:
    """A run's folder stands for the network it ended with; anything else for itself."""
    folder = Path(name)
    if not (folder / STRUCTURE).is_file() and (folder / "checkpoint" / STRUCTURE).is_file():
        return str(folder / "checkpoint")
    return name


def provenance_of(model: nn.Module, source: str, input_size: str | None = None) -> dict[str, Any]:
    """What an exported file tells about itself."""
    about: dict[str, Any] = {}
    origin = origin_of(model)
    if origin is not None:
        about["model"] = origin.name
    notes: dict[str, Any] = {}
    if (Path(source) / STRUCTURE).is_file():
        structure = read_structure(source)
        about["checkpoint_sha256"] = str(structure["weights"].get("sha256", ""))
        notes = dict(structure.get("notes") or {})
    shape = notes.get("input")
    if input_size is None and isinstance(shape, list):
        input_size = "x".join(map(str, shape))
    images = example_input(model, input_size)
    about["input"] = "x".join(map(str, images.shape[1:]))
    for key in ("data", "normalisation"):
        if notes.get(key):
            about[key] = notes[key]
    counts = count(model, images)
    return {**about, "params": counts.params, "macs": counts.macs}
