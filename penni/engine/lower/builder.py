"""Writes a program step by step, and brings views into the form that operators take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from penni.engine.lower.views import View, as_planes, is_permutation, simplified
from penni.engine.program import Array, Program, Shape, Step
from penni.engine.program import Tensor as Stored
from penni.errors import UnknownOperatorError


class Builder:
    """The program so far. `module` is the path of the module whose operator is being written."""

    def __init__(self, input_shape: Shape) -> None:
        self.shapes: list[Shape] = [input_shape]
        self.steps: list[Step] = []
        self.tensors: dict[str, Stored] = {}
        self.module = ""
        self._names: dict[int, tuple[str, object]] = {}

    def finish(self, output: int) -> Program:
        return Program(tuple(self.shapes), tuple(self.steps), 0, output, self.tensors)

    def emit(
        self,
        op: str,
        inputs: tuple[int, ...],
        shape: Shape,
        attributes: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> View:
        """Append a step; a tensor that is None is left out."""
        self.shapes.append(tuple(int(size) for size in shape))
        output = len(self.shapes) - 1
        names = {role: self.constant(role, value) for role, value in (tensors or {}).items() if value is not None}
        self.steps.append(Step(op, inputs, output, dict(attributes or {}), names, self.module))
        return View(output, self.shapes[output])

    def constant(self, role: str, value: Tensor | Array) -> str:
        """Store a tensor under its module and role, once however many steps use it."""
        if isinstance(value, Tensor) and id(value) in self._names:
            return self._names[id(value)][0]
        array = as_array(value)
        base = f"{self.module}.{role}" if self.module else role
        name, number = base, 1
        while name in self.tensors:
            number += 1
            name = f"{base}#{number}"
        self.tensors[name] = array
        if isinstance(value, Tensor):
            # Holding the tensor keeps its id its own.
            self._names[id(value)] = (name, value)
        return name

    def simplify(self, view: View) -> View:
        return simplified(view, self.shapes[view.base])

    def is_permutation(self, view: View) -> bool:
        return is_permutation(view, self.shapes[view.base])

    def value(self, view: View) -> int:
        """The number of a value that holds exactly this view: rank 1 or 3."""
        view = self.simplify(view)
        shape = self.shapes[view.base]
        if view.index is None and view.shape == shape:
            return view.base
        if len(view.shape) not in (1, 3):
            place = f"'{self.module}'" if self.module else "the network itself"
            raise UnknownOperatorError(
                f"the engine needs a tensor of shape (batch, {', '.join(map(str, view.shape))}) in "
                f"{place}, and works only on (batch, channels, height, width) and (batch, features)"
            )
        if view.index is None:
            return self.emit("reshape", (view.base,), view.shape).base
        planes = as_planes(view.index, shape)
        if planes is not None:
            return self._planes(view, planes.channels, planes.start, planes.step)
        flat = view.index.reshape(-1)
        if len(shape) == 1 and len(view.shape) == 1:
            return self._gather(view.base, flat)
        return self.emit("take", (view.base,), view.shape, tensors={"index": flat}).base

    def _planes(self, view: View, channels: Array, start: tuple[int, int], step: tuple[int, int]) -> int:
        base, shape = view.base, self.shapes[view.base]
        if view.shape[1:] != shape[1:]:
            sliced = (shape[0], *view.shape[1:])
            base = self.emit("slice", (base,), sliced, {"start": start, "step": step}).base
        return self._gather(base, channels)

    def _gather(self, base: int, channels: Array) -> int:
        shape = self.shapes[base]
        if len(channels) == shape[0] and bool((channels == np.arange(shape[0])).all()):
            return base
        return self.gather(base, channels).base

    def gather(self, base: int, channels: Array) -> View:
        """Channels of a value by number, −1 for zeros."""
        return self.emit("gather", (base,), (len(channels), *self.shapes[base][1:]), tensors={"index": channels})

    def channels_first(self, view: View, axis: int) -> tuple[int, Shape]:
        """The value of `view` with `axis` moved to the front, of rank 1 or 3, and the shape of the other axes."""
        moved = view if axis == 0 else view.with_index(np.moveaxis(view.positions(), axis, 0))
        rest = moved.shape[1:]
        if not rest:
            return self.value(moved), rest
        planes = rest if len(rest) == 2 else (math.prod(rest), 1)
        return self.value(self.simplify(moved).reshape((moved.shape[0], *planes))), rest

    def channels_back(self, base: int, axis: int, rest: Shape) -> View:
        """The view of `base` that undoes `channels_first`."""
        view = View(base, self.shapes[base]).reshape((self.shapes[base][0], *rest))
        return view if axis == 0 else view.with_index(np.moveaxis(view.positions(), 0, axis))

    def on_base(self, view: View) -> View | None:
        """The whole base of a view that is only a reordering of it: where an element-wise operator may work."""
        if self.is_permutation(view):
            return View(view.base, self.shapes[view.base])
        return None


def as_array(value: Tensor | Array) -> Array:
    """A constant as programs store it: contiguous float32, or int32 for indices."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    array: Array = np.asarray(value)
    kind = np.int32 if np.issubdtype(array.dtype, np.integer) else np.float32
    return np.ascontiguousarray(array, dtype=kind)
