"""A program interpreted with numpy in float64: slow, and the truth that kernels are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penni.engine.program import Array, Program, Step

_Tensors = Callable[[str], Array | None]


def run(program: Program, batch: Array, *, dtype: type[np.floating[Any]] = np.float64) -> Array:
    """The program's answers for `batch` (N, …), as float32."""
    return values(program, batch, dtype=dtype)[program.output].astype(np.float32)


def values(program: Program, batch: Array, *, dtype: type[np.floating[Any]] = np.float64) -> dict[int, Array]:
    """Every value of the program for `batch`, by number."""
    known: dict[int, Array] = {program.input: np.asarray(batch, dtype=dtype)}
    for step in program.steps:
        known[step.output] = run_step(program, step, [known[value] for value in step.inputs], dtype=dtype)
    return known


def run_step(program: Program, step: Step, inputs: list[Array], *, dtype: type[np.floating[Any]] = np.float64) -> Array:
    """One step on whole batches."""

    def tensors(role: str) -> Array | None:
        tensor = program.dense(step, role)
        return tensor if tensor is None or role == "index" else tensor.astype(dtype)

    result = _OPERATORS[step.op](step.attributes, inputs, tensors, program.shapes[step.output])
    return activate(result, step.activation, float(step.attributes.get("slope", 0.01)))


def activate(x: Array, name: str, slope: float) -> Array:
    """The activation called `name`."""
    if name == "none":
        return x
    if name in ("gelu", "silu", "sigmoid", "tanh", "elu", "gelu_tanh"):
        return _smooth(x, name, slope)
    if name == "relu":
        return np.maximum(x, 0)
    if name == "relu6":
        return np.clip(x, 0, 6)
    if name == "leaky_relu":
        return np.where(x >= 0, x, x * slope)
    gate = np.clip(x + 3, 0, 6) / 6
    return np.asarray(gate if name == "hardsigmoid" else x * gate)


def _smooth(x: Array, name: str, slope: float) -> Array:
    if name == "tanh":
        return np.tanh(x)
    if name == "elu":
        return np.where(x > 0, x, slope * np.expm1(np.minimum(x, 0)))
    if name == "gelu":
        return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))))
    if name == "gelu_tanh":
        return np.asarray(x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    sigmoid = 0.5 * (1 + np.tanh(0.5 * x))
    return np.asarray(sigmoid if name == "sigmoid" else x * sigmoid)


def _kernels(tensors: _Tensors) -> Array:
    weight = tensors("weight")
    if weight is not None:
        return weight
    basis, coefficients = tensors("basis"), tensors("coefficients")
    assert basis is not None
    assert coefficients is not None
    return np.asarray(np.einsum("oib,bhw->oihw", coefficients, basis))


def _windows(x: Array, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Array:
    """(N, C, rows, columns, kh, kw): a view of every window."""
    reach = [dilation[axis] * (kernel[axis] - 1) + 1 for axis in range(2)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    return np.asarray(view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]])


def _pad_planes(x: Array, padding: tuple[int, int, int, int], value: float = 0.0) -> Array:
    top, bottom, left, right = padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def _per_channel(tensor: Array, like: Array) -> Array:
    return tensor.reshape(1, -1, *[1] * (like.ndim - 2))


def _add_bias(result: Array, tensors: _Tensors) -> Array:
    bias = tensors("bias")
    return result if bias is None else np.asarray(result + _per_channel(bias, result))


def _conv(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    kernels, groups = _kernels(tensors), attributes["groups"]
    outputs, channels, *size = kernels.shape
    windows = _windows(
        _pad_planes(inputs[0], attributes["padding"]),
        (size[0], size[1]),
        attributes["stride"],
        attributes["dilation"],
    )
    count = len(inputs[0])
    windows = windows.reshape(count, groups, channels, *windows.shape[2:])
    kernels = kernels.reshape(groups, outputs // groups, channels, *size)
    if channels == 1:
        result = np.einsum("ngihwyx,goiyx->ngohw", windows, kernels, optimize=False)
    else:
        parts = [np.tensordot(windows[:, g], kernels[g], axes=([1, 4, 5], [1, 2, 3])) for g in range(groups)]
        result = np.moveaxis(np.stack(parts, axis=1), 4, 2)
    result = _add_bias(result.reshape(count, *shape), tensors)
    return np.asarray(result + inputs[1]) if len(inputs) == 2 else result


def _conv_transpose(
    attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]
) -> Array:
    x, weight, groups = inputs[0], _kernels(tensors), attributes["groups"]
    stride, dilation = attributes["stride"], attributes["dilation"]
    top, _, left, _ = attributes["padding"]
    count, channels, height, width = x.shape
    _, outputs, rows, columns = weight.shape
    # Scatter every input pixel times the kernel into a canvas with the padding still around it.
    reach = [
        (size - 1) * stride[a] + dilation[a] * (k - 1) + 1
        for a, (size, k) in enumerate(((height, rows), (width, columns)))
    ]
    canvas = np.zeros((count, groups, outputs, max(reach[0], top + shape[1]), max(reach[1], left + shape[2])), x.dtype)
    grouped = x.reshape(count, groups, channels // groups, height, width)
    kernels = weight.reshape(groups, channels // groups, outputs, rows, columns)
    for row in range(rows):
        for column in range(columns):
            part = np.einsum("ngihw,gio->ngohw", grouped, kernels[..., row, column])
            y, z = row * dilation[0], column * dilation[1]
            canvas[
                ..., y : y + (height - 1) * stride[0] + 1 : stride[0], z : z + (width - 1) * stride[1] + 1 : stride[1]
            ] += part
    result = canvas[..., top : top + shape[1], left : left + shape[2]].reshape(count, *shape)
    return _add_bias(result, tensors)


def _linear(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    weight = tensors("weight")
    assert weight is not None
    return _add_bias(inputs[0] @ weight.T, tensors)


def _pool_windows(
    x: Array, attributes: Mapping[str, Any], shape: tuple[int, ...], dilation: tuple[int, int], value: float
) -> Array:
    """The windows of a pool; cells outside the image (and of windows past the end) hold `value`."""
    kernel, stride, padding = attributes["kernel"], attributes["stride"], list(attributes["padding"])
    for axis in range(2):
        reach = (shape[axis + 1] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
        padding[2 * axis + 1] = max(0, reach - x.shape[axis + 2] - padding[2 * axis])
    top, bottom, left, right = padding
    windows = _windows(_pad_planes(x, (top, bottom, left, right), value), kernel, stride, dilation)
    return np.asarray(windows[:, :, : shape[1], : shape[2]])


def _max_pool(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    result: Array = _pool_windows(inputs[0], attributes, shape, attributes["dilation"], -np.inf).max(axis=(4, 5))
    return result


def _avg_pool(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    x, padding = inputs[0], attributes["padding"]
    total = _pool_windows(x, attributes, shape, (1, 1), 0.0).sum(axis=(4, 5))
    if attributes["divisor"]:
        return np.asarray(total / attributes["divisor"])
    counted = []
    for axis in range(2):
        size, before, after = x.shape[axis + 2], padding[2 * axis], padding[2 * axis + 1]
        starts = np.arange(shape[axis + 1]) * attributes["stride"][axis] - before
        ends = starts + attributes["kernel"][axis]
        if attributes["count_include_pad"]:
            counted.append(np.minimum(ends, size + after) - starts)
        else:
            counted.append(np.minimum(ends, size) - np.maximum(starts, 0))
    return np.asarray(total / np.multiply.outer(*counted))


def _adaptive(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def pool(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
        x = inputs[0]
        result = np.empty((len(x), *shape), x.dtype)
        for row in range(shape[1]):
            top, bottom = row * x.shape[2] // shape[1], -(-(row + 1) * x.shape[2] // shape[1])
            for column in range(shape[2]):
                left, right = column * x.shape[3] // shape[2], -(-(column + 1) * x.shape[3] // shape[2])
                result[:, :, row, column] = reduce(x[:, :, top:bottom, left:right], axis=(2, 3))
        return result

    return pool


def _gather(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    index = tensors("index")
    assert index is not None
    result = inputs[0][:, np.maximum(index, 0)]
    result[:, index < 0] = 0
    return result


def _take(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    index = tensors("index")
    assert index is not None
    return inputs[0].reshape(len(inputs[0]), -1)[:, index].reshape(-1, *shape)


def _slice(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    (row, column), (down, right) = attributes["start"], attributes["step"]
    return inputs[0][:, :, row::down, column::right][:, :, : shape[1], : shape[2]]


def _pad(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    top, bottom, left, right = attributes["padding"]
    widths = ((0, 0), tuple(attributes["channels"]), (top, bottom), (left, right))
    if attributes["mode"] == "constant":
        return np.pad(inputs[0], widths, constant_values=attributes["value"])
    modes: dict[str, Any] = {"replicate": "edge", "circular": "wrap", "reflect": "reflect"}
    return np.pad(inputs[0], widths, mode=modes[attributes["mode"]])


def _softmax(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    axis = attributes["axis"] + 1
    shifted = inputs[0] - inputs[0].max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if attributes["log"] else np.exp(shifted) / total)


def _affine(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    scale, shift = tensors("scale"), tensors("shift")
    assert scale is not None
    assert shift is not None
    return np.asarray(inputs[0] * _per_channel(scale, inputs[0]) + _per_channel(shift, inputs[0]))


def _norm(attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]) -> Array:
    x = inputs[0]
    if "groups" in attributes:
        grouped = x.reshape(len(x), attributes["groups"], -1)
        axis = 2
    else:
        grouped, axis = x, 1
    centred = grouped - grouped.mean(axis=axis, keepdims=True)
    variance = (centred**2).mean(axis=axis, keepdims=True)
    result = (centred / np.sqrt(variance + attributes["epsilon"])).reshape(x.shape)
    weight = tensors("weight")
    return _add_bias(result if weight is None else result * _per_channel(weight, x), tensors)


def _interpolate(
    attributes: Mapping[str, Any], inputs: list[Array], tensors: _Tensors, shape: tuple[int, ...]
) -> Array:
    result = inputs[0]
    for axis in range(2):
        size, scale = inputs[0].shape[axis + 2], attributes["scale"][axis]
        places = np.arange(shape[axis + 1])
        if attributes["mode"] == "nearest":
            result = np.take(result, np.minimum((places * scale).astype(int), size - 1), axis=axis + 2)
            continue
        source = places * scale if attributes["align_corners"] else np.maximum((places + 0.5) * scale - 0.5, 0)
        low = np.minimum(source.astype(int), size - 1)
        high = np.minimum(low + 1, size - 1)
        share = (source - low).clip(0, 1).reshape((-1, 1) if axis == 0 else (-1,))
        result = np.take(result, low, axis=axis + 2) * (1 - share) + np.take(result, high, axis=axis + 2) * share
    return result


_OPERATORS: Mapping[str, Callable[..., Array]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "adaptive_max_pool": _adaptive(np.max),
    "adaptive_avg_pool": _adaptive(np.mean),
    "add": lambda attributes, inputs, tensors, shape: inputs[0] + inputs[1],
    "mul": lambda attributes, inputs, tensors, shape: inputs[0] * inputs[1],
    "concat": lambda attributes, inputs, tensors, shape: np.concatenate(inputs, axis=1),
    "gather": _gather,
    "take": _take,
    "slice": _slice,
    "pad": _pad,
    "reshape": lambda attributes, inputs, tensors, shape: inputs[0].reshape(len(inputs[0]), *shape),
    "mean": lambda attributes, inputs, tensors, shape: inputs[0].mean(
        axis=tuple(axis + 1 for axis in attributes["axes"]), keepdims=True
    ),
    "softmax": _softmax,
    "activation": lambda attributes, inputs, tensors, shape: inputs[0],
    "affine": _affine,
    "layer_norm": _norm,
    "group_norm": _norm,
    "interpolate": _interpolate,
}
