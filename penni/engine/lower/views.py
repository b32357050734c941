"""Rearrangements of a value that are not carried out until an operator needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from penni.engine.program import Array, Shape


@dataclass(frozen=True, eq=False)
class View:
    """Elements of one value of the program, per image: `index` has the view's shape and flat positions in `base`.

    Without an index it is the whole value in its order. Views that share storage in PyTorch have the
    same `storage`, so that an in-place operator changes them all.
    """

    base: int
    shape: Shape
    index: Array | None = None
    storage: object = field(default_factory=object)

    def positions(self) -> Array:
        """The index, written out."""
        if self.index is not None:
            return self.index
        return np.arange(math.prod(self.shape), dtype=np.int32).reshape(self.shape)

    def with_index(self, index: Array) -> View:
        """The view of the same storage at other positions; recognised when it is the whole value in order."""
        return replace(self, shape=tuple(index.shape), index=index)

    def reshape(self, shape: Shape) -> View:
        index = None if self.index is None else self.index.reshape(shape)
        return replace(self, shape=shape, index=index)

    def copied(self) -> View:
        """The same elements, in storage of their own."""
        return replace(self, storage=object())


def simplified(view: View, base_shape: Shape) -> View:
    """The view without its index, if it is the whole value in order."""
    if view.index is None or view.index.size != math.prod(base_shape):
        return view
    flat = view.index.ravel()
    if bool((flat == np.arange(flat.size, dtype=flat.dtype)).all()):
        return replace(view, index=None)
    return view


def is_permutation(view: View, base_shape: Shape) -> bool:
    """Whether the view holds every element of its base, once."""
    size = math.prod(base_shape)
    if view.index is None:
        return True
    return view.index.size == size and bool((np.bincount(view.index.ravel(), minlength=size) == 1).all())


@dataclass(frozen=True)
class Planes:
    """A view as channels chosen from its base and rows and columns at even distances."""

    channels: Array
    start: tuple[int, int]
    step: tuple[int, int]


def as_planes(index: Array, base_shape: Shape) -> Planes | None:
    """`index` as chosen channels and an even choice of rows and columns, if it is that."""
    if index.ndim != 3 or len(base_shape) != 3:
        return None
    channels, rows, columns = np.unravel_index(index, base_shape)
    first_channels, first_rows, first_columns = channels[:, 0, 0], rows[0, :, 0], columns[0, 0, :]
    same = (
        (channels == first_channels[:, None, None]).all()
        and (rows == first_rows[None, :, None]).all()
        and (columns == first_columns[None, None, :]).all()
    )
    if not same:
        return None
    down, right = _even(first_rows), _even(first_columns)
    if down is None or right is None:
        return None
    return Planes(first_channels, (int(first_rows[0]), int(first_columns[0])), (down, right))


def _even(places: Array) -> int | None:
    """The distance between neighbours, if it is one positive number."""
    if places.size == 1:
        return 1
    steps = np.diff(places)
    return int(steps[0]) if bool((steps == steps[0]).all()) and steps[0] > 0 else None
