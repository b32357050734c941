"""The program: what a lowered network is, independent of any kernel. Both halves of the engine agree on this file.

A program is an ordered list of steps over numbered values. A value has a shape *per image*: `(channels, height,
width)` or `(features,)`, and no other rank; the batch is implicit, and everything is float32. Every value is written
once, before it is read. `penni.engine.shapes` says what each operator takes; in short:

| op | inputs | attributes | tensors |
| --- | --- | --- | --- |
| conv | x, [residual] | stride, padding, dilation, groups, activation | weight, or basis and coefficients; [bias] |
| conv_transpose | x | stride, padding, output_padding, dilation, groups, activation | weight; [bias] |
| linear | x (features) | activation | weight (O, I); [bias] |
| max_pool | x | kernel, stride, padding, dilation | |
| avg_pool | x | kernel, stride, padding, count_include_pad, divisor (0: the cells counted) | |
| adaptive_max_pool, adaptive_avg_pool | x | (the output's shape says it) | |
| add, mul | a, b, broadcast where a size is 1 | activation | |
| concat | any number | (along the first axis: channels or features) | |
| gather | x | | index (C'): int32, the channel to copy, −1 for a channel of zeros |
| take | x | | index (elements of the output): int32, the flat position within an image |
| slice | x | start, step (both h, w; the output's shape says the rest) | |
| pad | x | padding, channels (before, after), mode, value | |
| reshape | x | (same elements in the same order) | |
| mean | x | axes (kept as size 1) | |
| softmax | x | axis, log | |
| activation | x | activation | |
| affine | x | activation | scale (C), shift (C) along the first axis |
| layer_norm | x | epsilon, activation (over the first axis, at each position) | [weight], [bias] (C) |
| group_norm | x | groups, epsilon, activation | [weight], [bias] (C) |
| interpolate | x | mode, align_corners, scale (input cells per output cell, h and w) | |

`padding` is always (top, bottom, left, right), other pairs are (vertical, horizontal). A convolution's weight is
(O, I/groups, kh, kw); decomposed it is basis (d, kh, kw) and coefficients (O, I/groups, d), and the kernel of (o, i)
is Σ_b coefficients[o, i, b] · basis[b]. A conv_transpose's weight is (I, O/groups, kh, kw), as in PyTorch.
The order within a step is: the operation, + bias, + residual, then the activation. An activation is one of
`ACTIVATIONS`; "leaky_relu" and "elu" also read the attribute `slope`. A pool's window is cut off at the padded
image's edge; max_pool ignores the padding, avg_pool counts it if count_include_pad.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Array = NDArray[Any]

ACTIVATIONS = (
    "none",
    "relu",
    "relu6",
    "leaky_relu",
    "silu",
    "hardswish",
    "hardsigmoid",
    "sigmoid",
    "gelu",
    "gelu_tanh",
    "tanh",
    "elu",
)


@dataclass(frozen=True)
class Sparse:
    """A float32 tensor as its non-zeros: `positions` are flat, int32 and ascending, `values` their values."""

    shape: Shape
    positions: Array
    values: Array

    @classmethod
    def of(cls, dense: Array) -> Sparse:
        """The non-zeros of `dense`."""
        flat = np.ascontiguousarray(dense, dtype=np.float32).ravel()
        positions = np.flatnonzero(flat).astype(np.int32)
        return cls(tuple(int(n) for n in dense.shape), positions, flat[positions])

    def dense(self) -> Array:
        """The same tensor with its zeros."""
        result = np.zeros(int(np.prod(self.shape, dtype=np.int64)), dtype=np.float32)
        result[self.positions] = self.values
        return result.reshape(self.shape)


Tensor = Array | Sparse


@dataclass(frozen=True)
class Step:
    """One operation: reads `inputs`, writes `output` (numbers of values). `tensors` maps a role to a tensor's name."""

    op: str
    inputs: tuple[int, ...]
    output: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    module: str = ""

    @property
    def activation(self) -> str:
        """The fused activation."""
        return str(self.attributes.get("activation", "none"))


@dataclass(frozen=True)
class Program:
    """A lowered network with one input and one output: `shapes[v]` is the shape per image of value `v`."""

    shapes: tuple[Shape, ...]
    steps: tuple[Step, ...]
    input: int
    output: int
    tensors: Mapping[str, Tensor]

    def tensor(self, step: Step, role: str) -> Tensor | None:
        """The tensor in a role of a step, or None where the step has none."""
        name = step.tensors.get(role)
        return None if name is None else self.tensors[name]

    def dense(self, step: Step, role: str) -> Array | None:
        """The same, written out with its zeros."""
        tensor = self.tensor(step, role)
        return tensor.dense() if isinstance(tensor, Sparse) else tensor

    def validate(self) -> Program:
        """This program, or the `PenniError` that says which step does not fit."""
        from penni.engine.shapes import check

        check(self)
        return self

    def to_plain(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON takes it."""
        return {
            "shapes": [list(shape) for shape in self.shapes],
            "input": self.input,
            "output": self.output,
            "steps": [
                {
                    "op": step.op,
                    "inputs": list(step.inputs),
                    "output": step.output,
                    "attributes": {key: _plain(value) for key, value in step.attributes.items()},
                    "tensors": dict(step.tensors),
                    "module": step.module,
                }
                for step in self.steps
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Program:
        """The program that `to_plain` wrote. Raises KeyError, TypeError or ValueError if `plain` is none."""
        steps = tuple(
            Step(
                str(step["op"]),
                tuple(_integers(step["inputs"])),
                _integer(step["output"]),
                {str(key): _tuples(value) for key, value in dict(step["attributes"]).items()},
                {str(key): str(value) for key, value in dict(step["tensors"]).items()},
                str(step["module"]),
            )
            for step in plain["steps"]
        )
        shapes = tuple(tuple(_integers(shape)) for shape in plain["shapes"])
        return cls(shapes, steps, _integer(plain["input"]), _integer(plain["output"]), dict(tensors))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _integer(value: Any) -> int:
    # JSON's true is an int to Python, and 1.5 would be cut off silently.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _integers(values: Sequence[Any]) -> list[int]:
    return [_integer(value) for value in values]
