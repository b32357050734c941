"""One operator call of a graph, as the functions that lower operators see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from penni.engine.lower.views import View

if TYPE_CHECKING:
    from penni.engine.lower.builder import Builder

# What a graph's node stands for: a rearranged value, a constant, a number, or several of these.
Value = Any


@dataclass(frozen=True)
class Call:
    """One operator call with its arguments by name, in PyTorch's own names for them."""

    name: str
    arguments: Mapping[str, Value]
    result: Any

    def __getitem__(self, key: str) -> Value:
        return self.arguments[key]

    def get(self, key: str, default: Value = None) -> Value:
        """An argument that not every form of the operator has."""
        return self.arguments.get(key, default)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result per image."""
        first = self.result[0] if isinstance(self.result, (tuple, list)) else self.result
        return tuple(int(size) for size in first.shape[1:])

    def view(self, key: str) -> View:
        """An argument that must come from the image."""
        value = self.arguments[key]
        if not isinstance(value, View):
            raise Unsupported(f"its {key} is a constant")
        return value

    def constant(self, key: str) -> Tensor | None:
        """An argument that must be a weight, or None."""
        value = self.arguments[key]
        if value is not None and not isinstance(value, Tensor):
            raise Unsupported(f"its {key} is computed from the image")
        return value

    def number(self, key: str, default: float) -> float:
        """A numeric argument."""
        value = self.arguments.get(key)
        if isinstance(value, Tensor) and value.numel() == 1:
            return float(value)
        if value is None:
            return default
        if isinstance(value, (int, float)):
            return float(value)
        raise Unsupported(f"its {key} is no number")

    def pair(self, key: str, default: tuple[int, int] | None = None) -> tuple[int, int]:
        """Two whole numbers; PyTorch also writes one, or none for the default."""
        value = self.arguments.get(key)
        if value is None or (isinstance(value, (list, tuple)) and not value):
            if default is None:
                raise Unsupported(f"it has no {key}")
            return default
        if isinstance(value, int):
            return value, value
        if len(value) > 2:
            raise Unsupported(f"its {key} has {len(value)} numbers")
        return int(value[0]), int(value[-1])

    def axis(self, key: str, rank: int) -> int:
        """An axis as an axis of the image; `rank` counts the axes without the batch."""
        return image_axis(self.arguments[key], rank)


Handler = Callable[["Builder", Call], Value]


class Unsupported(Exception):  # noqa: N818 - never reaches the user: it becomes an UnknownOperatorError
    """A known operator used in a way that the engine has no step for; says which way."""


def image_axis(axis: int, rank: int) -> int:
    """`axis` of a batch as an axis of one image."""
    counted = axis % (rank + 1) - 1
    if counted < 0:
        raise Unsupported("it works across the images of a batch")
    return counted


def same_padding(pair: tuple[int, int]) -> tuple[int, int, int, int]:
    """Padding that is the same on opposite sides, as four sides."""
    return (pair[0], pair[0], pair[1], pair[1])


def as_tensor(value: Tensor | float) -> Tensor:
    """A constant operand as a tensor."""
    return value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
