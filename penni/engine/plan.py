"""Which kernel runs each step: by a cost model, or by measuring the candidates inside the whole network."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from penni.engine.layout import candidates
from penni.engine.program import Array, Program

Choice = Mapping[str, Any]

# A candidate must win by this much to displace the cost model's choice: less is the noise of the measurement.
_MARGIN = 0.03
_ROUNDS = 15


def images_at_once_by_measuring(program: Program, plan: list[Choice], threads: int, images: Array) -> int | None:
    """How many of a batch like `images` best go through the network together; None leaves it to the cache's size."""
    if len(images) == 1:
        return None
    from penni.engine.build import build

    numbers = [number for number in (1, 2, 4, 8, 16, 32, 64) if number < len(images)] + [len(images)]
    engines = [build(program, plan, threads, extras={"at_once": number}) for number in numbers]
    times = np.empty((_ROUNDS, len(engines)))
    for row in times:
        for index, engine in enumerate(engines):
            begun = time.perf_counter()
            engine(images)
            row[index] = time.perf_counter() - begun
    return numbers[int(np.median(times[1:], axis=0).argmin())]


def plan_by_cost(program: Program, threads: int) -> list[Choice]:
    """The first candidate of every step, which its cost model puts first."""
    return [candidates(program, step, threads)[0] for step in program.steps]


def plan_by_measuring(program: Program, threads: int, images: Array) -> list[Choice]:
    """The candidate of every step that was fastest when the whole network ran.

    In one run every step uses its n-th candidate, so there are as many runs as the longest list is,
    and each candidate meets the caches as its neighbours leave them.
    """
    from penni.engine.build import build

    lists = [candidates(program, step, threads) for step in program.steps]
    times = np.full((len(lists), max(map(len, lists))), np.inf)
    for number in range(times.shape[1]):
        engine = build(program, [choices[min(number, len(choices) - 1)] for choices in lists], threads)
        measured = np.median(engine.measure(images, _ROUNDS), axis=0)
        for index, choices in enumerate(lists):
            if number < len(choices):
                times[index, number] = measured[index]
    chosen: list[Choice] = []
    for choices, row in zip(lists, times, strict=True):
        best = int(row.argmin())
        chosen.append(choices[best if row[best] < row[0] * (1 - _MARGIN) else 0])
    return chosen
