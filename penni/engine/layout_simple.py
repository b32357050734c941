"""Steps other than convolutions, as the native engine takes them: spatial rearrangements become lists of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penni.engine.program import Array, Program, Shape, Step
from penni.errors import PenniError

# The native engine's numbers for activations.
_ACTIVATIONS = {
    "none": 0,
    "relu": 1,
    "relu6": 2,
    "leaky_relu": 3,
    "silu": 4,
    "hardswish": 5,
    "hardsigmoid": 6,
    "sigmoid": 7,
    "gelu": 8,
    "tanh": 9,
    "gelu_tanh": 10,
    "elu": 11,
}

_PAD_MODES = {"replicate": "edge", "circular": "wrap", "reflect": "reflect"}


def planes(shape: Shape) -> tuple[int, int, int]:
    """A shape as channels, height and width: features are channels of one pixel."""
    return (shape[0], 1, 1) if len(shape) == 1 else (shape[0], shape[1], shape[2])


def activation_of(step: Step) -> tuple[int, float]:
    """The activation's number and slope."""
    default = 1.0 if step.activation == "elu" else 0.01
    return _ACTIVATIONS[step.activation], float(step.attributes.get("slope", default))


def prepare_simple(program: Program, step: Step) -> tuple[str, tuple[int, ...], int, dict[str, Any], dict[str, Array]]:
    """The native step: operator, inputs, output, attributes and tensors."""
    inputs = [planes(program.shapes[value]) for value in step.inputs]
    output = planes(program.shapes[step.output])
    operator = _OPERATORS.get(step.op)
    if operator is None:
        raise PenniError(f"the native engine has no operator '{step.op}' (at '{step.module}')")
    name, attributes, tensors = operator(_Context(program, step), inputs, output)
    return name, step.inputs, step.output, attributes, tensors


class _Context:
    def __init__(self, program: Program, step: Step) -> None:
        self.program = program
        self.step = step

    def __getitem__(self, key: str) -> Any:
        return self.step.attributes[key]

    def activation(self) -> dict[str, Any]:
        number, slope = activation_of(self.step)
        return {"activation": number, "slope": slope}

    def tensor(self, role: str, default: Array | None = None) -> Array:
        tensor = self.program.dense(self.step, role)
        if tensor is None:
            assert default is not None
            return default
        return tensor


_Result = tuple[str, dict[str, Any], dict[str, Array]]
_Planes = tuple[int, int, int]


def _pool(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    top, bottom, left, right = context["padding"]
    maximum = context.step.op == "max_pool"
    return (
        "pool",
        {
            "kernel": list(context["kernel"]),
            "stride": list(context["stride"]),
            "padding": [top, left, bottom, right],
            "dilation": list(context["dilation"]) if maximum else [1, 1],
            "maximum": int(maximum),
            "count_padding": 0 if maximum else int(context["count_include_pad"]),
            "divisor": 0 if maximum else int(context["divisor"]),
        },
        {},
    )


def _adaptive(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return "adaptive_pool", {"maximum": int(context.step.op == "adaptive_max_pool")}, {}


def _binary(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return "binary", {"product": int(context.step.op == "mul"), **context.activation()}, {}


def _concat(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return "concat", {}, {}


def _gather(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return context.step.op, {}, {"index": context.tensor("index").astype(np.int32, copy=False)}


def _slice(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    (row, column), (down, right) = context["start"], context["step"]
    places = _places(inputs[0])[row::down, column::right][: output[1], : output[2]]
    return _take_plane(places)


def _pad(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    top, bottom, left, right = context["padding"]
    widths = ((top, bottom), (left, right))
    before, after = context["channels"]
    if context["mode"] == "constant":
        places = np.pad(_places(inputs[0]), widths, constant_values=-1)
        return _take_plane(places, before, float(context["value"]))
    if before or after:
        raise PenniError(f"channels can only be padded with a constant (at '{context.step.module}')")
    mode: Any = _PAD_MODES[context["mode"]]
    return _take_plane(np.pad(_places(inputs[0]), widths, mode=mode))


def _places(shape: _Planes) -> Array:
    return np.arange(shape[1] * shape[2], dtype=np.int32).reshape(shape[1], shape[2])


def _take_plane(places: Array, before: int = 0, fill: float = 0.0) -> _Result:
    index = np.ascontiguousarray(places, np.int32).reshape(-1)
    return "take_plane", {"before": int(before), "fill": fill}, {"index": index}


def _interpolate(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    axes: list[tuple[Array, ...]] = []
    for axis in range(2):
        size, scale, places = inputs[0][axis + 1], context["scale"][axis], np.arange(output[axis + 1])
        if context["mode"] == "nearest":
            axes.append((np.minimum((places * scale).astype(np.int32), size - 1),))
            continue
        source = places * scale if context["align_corners"] else np.maximum((places + 0.5) * scale - 0.5, 0)
        low = np.minimum(source.astype(np.int32), size - 1)
        share = (source - low).clip(0, 1).astype(np.float32)
        axes.append((low, np.minimum(low + 1, size - 1), share))
    if context["mode"] == "nearest":
        return _take_plane(axes[0][0][:, None] * inputs[0][2] + axes[1][0][None, :])
    (above, below, down), (before, after, right) = axes
    return (
        "bilinear",
        {},
        {"above": above, "below": below, "down": down, "before": before, "after": after, "right": right},
    )


def _reshape(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return "reshape", {}, {}


def _mean(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    axes = tuple(context["axes"])
    if sorted(axes) == [1, 2]:
        return "adaptive_pool", {"maximum": 0}, {}
    return "mean", {"over": [int(axis in axes) for axis in range(3)]}, {}


def _softmax(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return "softmax", {"axis": int(context["axis"]), "log": int(context["log"])}, {}


def _activation(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return "activation", context.activation(), {}


def _affine(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    return "affine", context.activation(), {"scale": context.tensor("scale"), "shift": context.tensor("shift")}


def _norm(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    channels = inputs[0][0]
    tensors = {
        "weight": context.tensor("weight", np.ones(channels, np.float32)),
        "bias": context.tensor("bias", np.zeros(channels, np.float32)),
    }
    groups = int(context["groups"]) if context.step.op == "group_norm" else 1
    attributes = {"groups": groups, **context.activation(), "epsilon": float(context["epsilon"])}
    return context.step.op, attributes, tensors


def _conv_transpose(context: _Context, inputs: list[_Planes], output: _Planes) -> _Result:
    weight = context.tensor("weight")
    top, _, left, _ = context["padding"]
    attributes = {
        "kernel": list(weight.shape[2:]),
        "stride": list(context["stride"]),
        "padding": [top, left],
        "dilation": list(context["dilation"]),
        "groups": int(context["groups"]),
        **context.activation(),
    }
    bias = context.tensor("bias", np.zeros(output[0], np.float32))
    return "conv_transpose", attributes, {"weight": weight.reshape(-1), "bias": bias}


_OPERATORS: dict[str, Callable[[_Context, list[_Planes], _Planes], _Result]] = {
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_max_pool": _adaptive,
    "adaptive_avg_pool": _adaptive,
    "add": _binary,
    "mul": _binary,
    "concat": _concat,
    "gather": _gather,
    "take": _gather,
    "slice": _slice,
    "pad": _pad,
    "reshape": _reshape,
    "mean": _mean,
    "softmax": _softmax,
    "activation": _activation,
    "affine": _affine,
    "layer_norm": _norm,
    "group_norm": _norm,
    "interpolate": _interpolate,
    "conv_transpose": _conv_transpose,
}
