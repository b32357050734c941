"""`penni.compile`: lower a PyTorch network, choose kernels, and check the engine against the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penni.engine.build import build, check_dtype
from penni.engine.engine import Engine, check_threads, usable_cores
from penni.engine.lower import lower
from penni.engine.plan import images_at_once_by_measuring, plan_by_cost, plan_by_measuring
from penni.engine.program import Array
from penni.errors import DiffersError, PenniError
from penni.measure.count import evaluating
from penni.models import origin_of

# Largest difference allowed, as a share of the largest answer: float32 noise, times the depth of real networks.
TOLERANCE = 1e-4
_CHECKED_IMAGES = 4


def compile(
    model: nn.Module,
    example_input: Tensor | Array,
    *,
    threads: int | None = None,
    tune: bool = False,
    dtype: str = "fp32",
    preprocessing: Mapping[str, Any] | None = None,
) -> Engine:
    """The engine that answers as `model` does in eval mode, for images of the size of `example_input` (N, …).

    `threads` is the number of threads it runs on, all usable cores by default. With `tune` the kernel of
    each step is the one measured fastest, on so many threads and for batches as large as the example; otherwise
    a cost model chooses. `dtype` ("fp16", "bf16") stores the weights in 16 bits, rounded: a smaller file; the
    arithmetic stays float32.
    `preprocessing` (`mean`, `std`, `size`, `crop`) tells `penni run` how an image becomes an input.

    Before it returns, the engine's answers are compared with the model's on the example and on noise;
    a difference is a `DiffersError`.
    """
    count = check_threads(threads)
    check_dtype(dtype)
    examples = _examples(example_input)
    program = lower(model, examples[0])
    extras: dict[str, Any] = {"preprocessing": dict(preprocessing) if preprocessing else None}
    origin = origin_of(model)
    if origin is not None:
        extras["origin"] = asdict(origin)
    if tune:
        images = torch.as_tensor(example_input).detach().cpu().float().numpy()
        plan = plan_by_measuring(program, count, images)
        extras["at_once"] = images_at_once_by_measuring(program, plan, count, images)
        extras["tuned"] = {"threads": count, "batch": len(example_input), "cores": usable_cores()}
    else:
        plan = plan_by_cost(program, count)
    engine = build(program, plan, count, extras=extras)
    _check(engine, model, examples)
    if dtype != "fp32":
        # What was checked is the engine before rounding; the rounding is what the user asked for.
        engine = build(program, plan, count, dtype=dtype, extras=extras)
    return engine


def _examples(example_input: Tensor | Array) -> list[Tensor]:
    example = torch.as_tensor(example_input).detach().cpu()
    if not example.is_floating_point() or example.ndim < 2 or example.shape[0] < 1:
        raise PenniError("example_input is a batch of floating-point images, (N, channels, height, width)")
    example = example[:_CHECKED_IMAGES].float()
    # An example of zeros would compare little; noise reaches every path, and its batch of three is an odd one.
    noise = torch.randn(3, *example.shape[1:], generator=torch.Generator().manual_seed(0))
    return [example, noise]


def _check(engine: Engine, model: nn.Module, examples: list[Tensor]) -> None:
    parameter = next(iter(model.parameters()), None)
    for number, example in enumerate(examples):
        with evaluating(model), torch.no_grad():
            given = example if parameter is None else example.to(parameter.device, parameter.dtype)
            answer = model(given)
        expected = answer.detach().cpu().float().numpy()
        if not np.isfinite(expected).all():
            if number == 0:
                raise PenniError("the network's answer to example_input is not finite, so nothing can be checked")
            continue
        got = engine(example.numpy())
        if got.shape != expected.shape:
            raise DiffersError(f"the engine answers with shape {got.shape}, the network with {expected.shape}")
        largest = float(np.abs(expected).max())
        difference = float(np.abs(got - expected).max())
        if not difference <= TOLERANCE * max(largest, 1e-6):
            raise DiffersError(
                f"the engine's answers differ from the network's by {difference:.3g} where they reach {largest:.3g}: "
                "this is a fault of penni or a network whose answers float32 does not determine; please report it"
            )
