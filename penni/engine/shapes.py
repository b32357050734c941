"""What each operator of a program takes, checked: nothing that passes here can make a kernel leave its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penni.engine.program import ACTIVATIONS, Program, Shape, Sparse, Step
from penni.errors import PenniError

# Sizes beyond these belong to no network and would only overflow something.
LARGEST_SIZE = 2**24
LARGEST_VALUE = 2**30


class _WrongStepError(Exception):
    """What is wrong with a step; the caller adds which step it is."""


def check(program: Program) -> None:
    """Raise the `PenniError` that says what does not fit, if anything."""
    for shape in program.shapes:
        _check_shape(shape)
    known = {program.input}
    numbers = range(len(program.shapes))
    if program.input not in numbers or program.output not in numbers:
        raise PenniError("the program's input or output is not among its values")
    for index, step in enumerate(program.steps):
        try:
            if step.op not in OPERATORS:
                raise _WrongStepError("there is no such operator")
            if step.output not in numbers or step.output in known:
                raise _WrongStepError("its output is not a new value")
            if any(value not in known for value in step.inputs):
                raise _WrongStepError("it reads a value that nothing has written")
            if step.activation not in ACTIVATIONS:
                raise _WrongStepError(f"there is no activation '{step.activation}'")
            _number(step, "slope", 0.01)
            OPERATORS[step.op](_View(program, step))
        except _WrongStepError as error:
            where = f" ({step.module})" if step.module else ""
            raise PenniError(f"step {index}, {step.op}{where}, does not fit: {error}") from None
        known.add(step.output)
    if program.output not in known:
        raise PenniError("no step of the program writes its output")


def _check_shape(shape: Shape) -> None:
    if len(shape) not in (1, 3):
        raise PenniError(f"a value of shape {shape} is neither (channels, height, width) nor (features,)")
    if any(not 1 <= size <= LARGEST_SIZE for size in shape) or math.prod(shape) > LARGEST_VALUE:
        raise PenniError(f"a value of shape {shape} is empty or too large")


class _View:
    """A step with its shapes and tensors at hand, and the checks that many operators share."""

    def __init__(self, program: Program, step: Step) -> None:
        self.step = step
        self.program = program
        self.inputs = [program.shapes[value] for value in step.inputs]
        self.output = program.shapes[step.output]

    def count(self, least: int, most: int, *, rank: int | None = None) -> None:
        if not least <= len(self.inputs) <= most:
            raise _WrongStepError(f"it has {len(self.inputs)} inputs")
        if rank is not None and any(len(shape) != rank for shape in (*self.inputs, self.output)):
            raise _WrongStepError("its values are not " + ("planes" if rank == 3 else "features"))

    def expect(self, shape: Shape) -> None:
        if shape != self.output:
            raise _WrongStepError(f"it gives {shape}, but its value is {self.output}")

    def roles(self, *allowed: str) -> None:
        extra = set(self.step.tensors) - set(allowed)
        if extra:
            raise _WrongStepError(f"it takes no '{min(extra)}'")

    def shape(self, role: str) -> Shape:
        """The shape of a tensor that must be there."""
        name = self.step.tensors.get(role)
        if name is None or name not in self.program.tensors:
            raise _WrongStepError(f"it lacks its {role}")
        tensor = self.program.tensors[name]
        if isinstance(tensor, Sparse):
            _check_sparse(role, tensor)
            if role not in ("weight", "coefficients"):
                raise _WrongStepError(f"its {role} may not be sparse")
            return tensor.shape
        kind = np.int32 if role == "index" else np.float32
        if tensor.dtype != kind or not tensor.flags.c_contiguous:
            raise _WrongStepError(f"its {role} is {tensor.dtype}, not contiguous {np.dtype(kind)}")
        return tuple(int(size) for size in tensor.shape)

    def tensor(self, role: str, shape: Shape, *, optional: bool = False) -> None:
        if optional and role not in self.step.tensors:
            return
        if self.shape(role) != shape:
            raise _WrongStepError(f"its {role} is {self.shape(role)}, not {shape}")

    def index(self, length: int, lowest: int, end: int) -> None:
        self.tensor("index", (length,))
        index = self.program.tensors[self.step.tensors["index"]]
        assert isinstance(index, np.ndarray)
        if index.size and (int(index.min()) < lowest or int(index.max()) >= end):
            raise _WrongStepError("its index points outside its input")

    def integers(self, key: str, length: int, least: int = 0) -> tuple[int, ...]:
        values = self.step.attributes.get(key)
        if not isinstance(values, tuple) or len(values) != length:
            raise _WrongStepError(f"its {key} is {values!r}, not {length} whole numbers")
        return tuple(self._integer(key, value, least) for value in values)

    def integer(self, key: str, least: int = 0) -> int:
        return self._integer(key, self.step.attributes.get(key), least)

    def _integer(self, key: str, value: Any, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_SIZE:
            raise _WrongStepError(f"its {key} has {value!r}, not a whole number from {least}")
        return value

    def flag(self, key: str) -> bool:
        value = self.step.attributes.get(key)
        if not isinstance(value, bool):
            raise _WrongStepError(f"its {key} is {value!r}, not true or false")
        return value

    def word(self, key: str, words: tuple[str, ...]) -> str:
        value = self.step.attributes.get(key)
        if value not in words:
            raise _WrongStepError(f"its {key} is {value!r}, not one of {', '.join(words)}")
        return str(value)


def _check_sparse(role: str, tensor: Sparse) -> None:
    positions, values = tensor.positions, tensor.values
    if positions.dtype != np.int32 or values.dtype != np.float32 or positions.shape != values.shape:
        raise _WrongStepError(f"its {role} has non-zeros of a wrong type")
    if any(size < 0 or size > LARGEST_SIZE for size in tensor.shape) or math.prod(tensor.shape) > LARGEST_VALUE:
        raise _WrongStepError(f"its {role} is too large")
    if positions.size and (
        int(positions[0]) < 0 or int(positions[-1]) >= math.prod(tensor.shape) or bool((np.diff(positions) <= 0).any())
    ):
        raise _WrongStepError(f"its {role} has non-zeros out of order or out of range")


def _number(step: Step, key: str, default: float | None = None) -> float:
    value = step.attributes.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _WrongStepError(f"its {key} is {value!r}, not a number")
    return float(value)


def _conv(view: _View) -> None:
    view.count(1, 2, rank=3)
    view.roles("weight", "basis", "coefficients", "bias")
    channels, height, width = view.inputs[0]
    groups = view.integer("groups", 1)
    if "weight" in view.step.tensors:
        if "basis" in view.step.tensors or "coefficients" in view.step.tensors:
            raise _WrongStepError("it has both a weight and a decomposition")
        kernel = view.shape("weight")
    else:
        basis, coefficients = view.shape("basis"), view.shape("coefficients")
        if len(basis) != 3 or len(coefficients) != 3 or coefficients[2] != basis[0]:
            raise _WrongStepError(f"its coefficients {coefficients} do not fit its basis {basis}")
        kernel = (*coefficients[:2], *basis[1:])
    if len(kernel) != 4 or kernel[1] * groups != channels or kernel[0] % groups or min(kernel[2:]) < 1:
        raise _WrongStepError(f"its weight {kernel} does not fit {channels} channels in {groups} groups")
    view.tensor("bias", (kernel[0],), optional=True)
    stride, dilation = view.integers("stride", 2, 1), view.integers("dilation", 2, 1)
    top, bottom, left, right = view.integers("padding", 4)
    rows = height + top + bottom - dilation[0] * (kernel[2] - 1) - 1
    columns = width + left + right - dilation[1] * (kernel[3] - 1) - 1
    if rows < 0 or columns < 0:
        raise _WrongStepError("its kernel is larger than the padded image")
    view.expect((kernel[0], rows // stride[0] + 1, columns // stride[1] + 1))
    if len(view.inputs) == 2 and view.inputs[1] != view.output:
        raise _WrongStepError(f"its residual is {view.inputs[1]}, not {view.output}")


def _conv_transpose(view: _View) -> None:
    view.count(1, 1, rank=3)
    view.roles("weight", "bias")
    channels, height, width = view.inputs[0]
    groups, kernel = view.integer("groups", 1), view.shape("weight")
    if len(kernel) != 4 or kernel[0] != channels or channels % groups or min(kernel[1:]) < 1:
        raise _WrongStepError(f"its weight {kernel} does not fit {channels} channels in {groups} groups")
    view.tensor("bias", (kernel[1] * groups,), optional=True)
    stride, dilation = view.integers("stride", 2, 1), view.integers("dilation", 2, 1)
    top, bottom, left, right = view.integers("padding", 4)
    extra = view.integers("output_padding", 2)
    rows = (height - 1) * stride[0] - top - bottom + dilation[0] * (kernel[2] - 1) + extra[0] + 1
    columns = (width - 1) * stride[1] - left - right + dilation[1] * (kernel[3] - 1) + extra[1] + 1
    view.expect((kernel[1] * groups, rows, columns))


def _linear(view: _View) -> None:
    view.count(1, 1, rank=1)
    view.roles("weight", "bias")
    view.tensor("weight", (*view.output, *view.inputs[0]))
    view.tensor("bias", view.output, optional=True)


def _pool(view: _View) -> None:
    view.count(1, 1, rank=3)
    view.roles()
    kernel, stride = view.integers("kernel", 2, 1), view.integers("stride", 2, 1)
    padding = view.integers("padding", 4)
    if view.step.op == "max_pool":
        dilation = view.integers("dilation", 2, 1)
    else:
        dilation = (1, 1)
        view.flag("count_include_pad")
        view.integer("divisor")
    if view.inputs[0][0] != view.output[0]:
        raise _WrongStepError("it changes the number of channels")
    for axis in range(2):
        size, before, after = view.inputs[0][axis + 1], padding[2 * axis], padding[2 * axis + 1]
        reach = dilation[axis] * (kernel[axis] - 1)
        start = (view.output[axis + 1] - 1) * stride[axis] - before
        # A padding of a kernel or more, or a last window past the end, would be an average of nothing.
        if before > reach or after > reach or start >= size:
            raise _WrongStepError("a window of it covers no pixel")


def _adaptive(view: _View) -> None:
    view.count(1, 1, rank=3)
    view.roles()
    if view.inputs[0][0] != view.output[0]:
        raise _WrongStepError("it changes the number of channels")


def _elementwise(view: _View) -> None:
    view.count(2, 2)
    view.roles()
    first, second = view.inputs
    if len(first) != len(second) or any(1 not in (a, b) and a != b for a, b in zip(first, second, strict=True)):
        raise _WrongStepError(f"{first} and {second} do not broadcast")
    view.expect(tuple(max(a, b) for a, b in zip(first, second, strict=True)))


def _concat(view: _View) -> None:
    view.count(1, 10_000)
    view.roles()
    if any(shape[1:] != view.output[1:] for shape in view.inputs):
        raise _WrongStepError("its inputs differ in size")
    view.expect((sum(shape[0] for shape in view.inputs), *view.output[1:]))


def _gather(view: _View) -> None:
    view.count(1, 1)
    view.roles("index")
    view.expect((view.output[0], *view.inputs[0][1:]))
    view.index(view.output[0], -1, view.inputs[0][0])


def _take(view: _View) -> None:
    view.count(1, 1)
    view.roles("index")
    view.index(math.prod(view.output), 0, math.prod(view.inputs[0]))


def _slice(view: _View) -> None:
    view.count(1, 1, rank=3)
    view.roles()
    start, step = view.integers("start", 2), view.integers("step", 2, 1)
    view.expect((view.inputs[0][0], *view.output[1:]))
    for axis in range(2):
        if start[axis] + (view.output[axis + 1] - 1) * step[axis] >= view.inputs[0][axis + 1]:
            raise _WrongStepError("it reaches outside its input")


def _pad(view: _View) -> None:
    view.count(1, 1, rank=3)
    view.roles()
    top, bottom, left, right = view.integers("padding", 4)
    before, after = view.integers("channels", 2)
    mode = view.word("mode", ("constant", "reflect", "replicate", "circular"))
    _number(view.step, "value")
    channels, height, width = view.inputs[0]
    view.expect((channels + before + after, height + top + bottom, width + left + right))
    if mode != "constant" and (before or after):
        raise _WrongStepError(f"it pads channels in mode {mode}")
    least = {"reflect": 1, "circular": 0}.get(mode)
    if least is not None and (max(top, bottom) > height - least or max(left, right) > width - least):
        raise _WrongStepError(f"its padding is larger than its input allows in mode {mode}")


def _reshape(view: _View) -> None:
    view.count(1, 1)
    view.roles()
    if math.prod(view.inputs[0]) != math.prod(view.output):
        raise _WrongStepError(f"{view.inputs[0]} and {view.output} differ in their number of elements")


def _mean(view: _View) -> None:
    view.count(1, 1)
    view.roles()
    shape, axes = view.inputs[0], view.step.attributes.get("axes")
    if not isinstance(axes, tuple) or not axes or len(set(axes)) != len(axes):
        raise _WrongStepError(f"its axes are {axes!r}")
    chosen = view.integers("axes", len(axes))
    if max(chosen) >= len(shape):
        raise _WrongStepError(f"its axes are {axes!r}")
    view.expect(tuple(1 if axis in chosen else size for axis, size in enumerate(shape)))


def _softmax(view: _View) -> None:
    _same(view)
    view.flag("log")
    if view.integer("axis") >= len(view.output):
        raise _WrongStepError("its axis is not one of its input's")


def _same(view: _View) -> None:
    view.count(1, 1)
    view.roles()
    view.expect(view.inputs[0])


def _affine(view: _View) -> None:
    view.count(1, 1)
    view.roles("scale", "shift")
    view.expect(view.inputs[0])
    view.tensor("scale", view.output[:1])
    view.tensor("shift", view.output[:1])


def _norm(view: _View) -> None:
    view.count(1, 1)
    view.roles("weight", "bias")
    view.expect(view.inputs[0])
    if _number(view.step, "epsilon") < 0:
        raise _WrongStepError("its epsilon is negative")
    if view.step.op == "group_norm" and view.output[0] % view.integer("groups", 1):
        raise _WrongStepError("its channels do not divide into its groups")
    view.tensor("weight", view.output[:1], optional=True)
    view.tensor("bias", view.output[:1], optional=True)


def _interpolate(view: _View) -> None:
    _adaptive(view)
    view.word("mode", ("nearest", "bilinear"))
    view.flag("align_corners")
    scale = view.step.attributes.get("scale")
    if not isinstance(scale, tuple) or len(scale) != 2:
        raise _WrongStepError(f"its scale is {scale!r}")
    for value in scale:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST_SIZE:
            raise _WrongStepError(f"its scale is {scale!r}")


OPERATORS: Mapping[str, Callable[[_View], None]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_max_pool": _adaptive,
    "adaptive_avg_pool": _adaptive,
    "add": _elementwise,
    "mul": _elementwise,
    "concat": _concat,
    "gather": _gather,
    "take": _take,
    "slice": _slice,
    "pad": _pad,
    "reshape": _reshape,
    "mean": _mean,
    "softmax": _softmax,
    "activation": _same,
    "affine": _affine,
    "layer_norm": _norm,
    "group_norm": _norm,
    "interpolate": _interpolate,
}
