"""How the learning rate, the L1 strength and the sparsity move through a phase.

Each schedule is a function from progress (0 at the start of the phase, 1 at its end) to a factor. To add one,
write the function and name it in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Ramp = Callable[[float], float]


def step_factor(progress: float, milestones: Sequence[float], factor: float) -> float:
    """Multiplied by `factor` at each milestone: the paper's schedule."""
    return float(factor ** sum(progress >= milestone for milestone in milestones))


def cosine_factor(progress: float) -> float:
    """From 1 to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def one_cycle_factor(progress: float, rise: float = 0.3) -> float:
    """Up linearly from 1/25 during the first `rise` of the phase, then down to 0 along half a cosine."""
    if progress < rise:
        return 1 / 25 + (1 - 1 / 25) * progress / rise
    return cosine_factor((progress - rise) / (1 - rise))


def learning_rate_factor(schedule: str, progress: float, milestones: Sequence[float], factor: float) -> float:
    """The factor on the phase's learning rate at `progress`."""
    if schedule == "step":
        return step_factor(progress, milestones, factor)
    return LEARNING_RATES[schedule](progress)


def cubic(progress: float) -> float:
    """From 0 to 1, fast first and gently at the end: pruning is no shock while the network can still adapt."""
    return 1 - (1 - min(1.0, max(0.0, progress))) ** 3


def linear(progress: float) -> float:
    """From 0 to 1 evenly."""
    return min(1.0, max(0.0, progress))


def constant(progress: float) -> float:
    """Always 1."""
    return 1.0


LEARNING_RATES: Mapping[str, Ramp] = {"cosine": cosine_factor, "one-cycle": one_cycle_factor, "constant": constant}
LEARNING_RATE_NAMES = ("step", *LEARNING_RATES)
RAMPS: Mapping[str, Ramp] = {"constant": constant, "linear": linear, "cubic": cubic}
