"""Cells: the scalars of a network that live and die together, and the facts known about them.

A cell is one channel of one operator's output: everything in it is removed, or nothing. Every tensor
carries a *plane* that says which cell each of its elements belongs to, so that reshapes, concats, slices
and shuffles need no rules of their own: they are run on the planes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Site:
    """Where cells are born: a node of the graph, its operator and the module it runs in."""

    node: str
    operator: str
    path: str

    def __str__(self) -> str:
        return f"{self.operator} in {self.path}" if self.path else self.operator


@dataclass(frozen=True)
class Value:
    """A tensor that depends on the network's input. The plane has size 1 along every axis where it does not vary."""

    shape: tuple[int, ...]
    plane: Tensor

    def full(self) -> Tensor:
        """The plane with the tensor's own shape."""
        return self.plane.expand(self.shape)

    def cells(self) -> Ids:
        """Every cell of this tensor, once."""
        return np.unique(self.plane.numpy())


@dataclass(frozen=True)
class Source:
    """A parameter or buffer that a constant is made from; `index` says which of its elements each one is made from."""

    name: str
    size: int
    index: Tensor | None = None

    def elements(self) -> Tensor:
        """The index, which is left out as long as every element is its own."""
        return torch.arange(self.size) if self.index is None else self.index


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on the input, and what each of its elements is made from, if that is plain."""

    value: Tensor
    sources: tuple[Source, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def parameter(self) -> str | None:
        """The name of the parameter that this is, if it is one as it stands."""
        return self.sources[0].name if len(self.sources) == 1 and self.sources[0].index is None else None

    def reshaped(self, shape: Sequence[int]) -> Constant:
        """The same elements in another shape."""
        sources = tuple(Source(s.name, s.size, s.elements().reshape(shape)) for s in self.sources)
        return Constant(self.value.reshape(shape), sources)


@dataclass
class Cells:
    """All cells of a network: which are zero for every input, which may not be touched, which are tied."""

    count: int = 0
    zero: Mask = field(default_factory=lambda: np.zeros(1024, dtype=bool))
    # What a cell holds if that does not depend on the input and is the same everywhere; else not a number.
    constant: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1024))
    pinned: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1024, dtype=np.int32))
    site: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1024, dtype=np.int32))
    channel: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1024, dtype=np.int32))
    sites: list[Site] = field(default_factory=list)
    reasons: list[str] = field(default_factory=lambda: [""])
    ties: list[tuple[Ids, Ids]] = field(default_factory=list)

    def new(
        self, site: Site, number: int, zero: Mask | bool = False, constant: NDArray[np.float64] | None = None
    ) -> Ids:
        """Ids of `number` fresh cells; `constant` tells what they hold where that is known, and may add to `zero`."""
        while self.count + number > len(self.zero):
            for name in ("zero", "constant", "pinned", "site", "channel"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        ids = np.arange(self.count, self.count + number, dtype=np.int64)
        self.count += number
        held = np.full(number, np.nan) if constant is None else constant.astype(np.float64)
        held[np.broadcast_to(zero, number)] = 0.0
        self.constant[ids] = held
        self.zero[ids] = held == 0
        if not self.sites or self.sites[-1] != site:
            self.sites.append(site)
        self.site[ids] = len(self.sites) - 1
        self.channel[ids] = np.arange(number)
        return ids

    def pin(self, ids: Ids, reason: str) -> None:
        """These cells stay, because of `reason`."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        ids = ids[self.pinned[ids] == 0]
        self.pinned[ids] = self.reasons.index(reason)

    def tie(self, first: Ids, second: Ids) -> None:
        """Cells at the same place of both arrays go together or not at all."""
        differ = first != second
        if differ.any():
            self.ties.append((first[differ], second[differ]))

    def roots(self) -> Ids:
        """For every cell the smallest one that it is tied to, directly or over others."""
        root = np.arange(self.count, dtype=np.int64)
        if not self.ties:
            return root
        first = np.concatenate([a for a, _ in self.ties])
        second = np.concatenate([b for _, b in self.ties])
        while True:
            left, right = root[first], root[second]
            if (left == right).all():
                return root
            # Hook the larger root under the smaller, then shorten every path.
            low, high = np.minimum(left, right), np.maximum(left, right)
            np.minimum.at(root, high, low)
            while True:
                shorter = root[root]
                if (shorter == root).all():
                    break
                root = shorter


def compact(plane: Tensor) -> Tensor:
    """`plane` with size 1 along every axis where it does not vary."""
    for axis in reversed(range(plane.dim())):
        if plane.shape[axis] > 1:
            first = plane.narrow(axis, 0, 1)
            if bool((plane == first).all()):
                plane = first
    return plane.contiguous()


def along(axis: int, dimensions: int, ids: Ids) -> Tensor:
    """A plane that varies along one axis only."""
    shape = [1] * dimensions
    shape[axis] = len(ids)
    return torch.from_numpy(ids.copy()).reshape(shape)


def varies(value: Value, axis: int) -> bool:
    return value.plane.shape[axis] > 1


def varying_axes(value: Value) -> list[int]:
    """The axes along which the tensor's elements belong to different cells."""
    return [axis for axis, size in enumerate(value.plane.shape) if size > 1]


def broadcast(planes: Sequence[Tensor], dimensions: int) -> list[Tensor]:
    """Planes of tensors that an operator broadcasts, brought to one shape."""
    padded = [plane.reshape((1,) * (dimensions - plane.dim()) + tuple(plane.shape)) for plane in planes]
    return list(torch.broadcast_tensors(*padded))  # type: ignore[no-untyped-call]
