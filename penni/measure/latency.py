"""How long one forward pass takes, measured so that two figures can be compared."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from penni.measure.count import evaluating


def latency(model: nn.Module, example_input: Tensor, *, runs: int = 50, threads: int = 1) -> float:
    """The median time of a forward pass in PyTorch, in milliseconds, after warming up."""
    return compare({"model": lambda: model(example_input)}, [model], runs=runs, threads=threads)["model"]


def compare(
    calls: dict[str, Callable[[], object]], models: Sequence[nn.Module] = (), *, runs: int = 50, threads: int = 1
) -> dict[str, float]:
    """Median milliseconds of each call. They take turns, so a change in the machine's speed meets all alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    times: dict[str, list[float]] = {name: [] for name in calls}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for model in models:
                stack.enter_context(evaluating(model))
            for call in calls.values():
                for _ in range(max(3, runs // 10)):
                    call()
            for _ in range(runs):
                for name, call in calls.items():
                    begun = time.perf_counter()
                    call()
                    times[name].append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(before)
    return {name: statistics.median(values) * 1000 for name, values in times.items()}
