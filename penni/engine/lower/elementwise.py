"""Operators that treat each element alone: activations, sums and products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from penni.engine.lower.builder import Builder, as_array
from penni.engine.lower.call import Call, Handler, Unsupported, as_tensor
from penni.engine.lower.views import View
from penni.engine.program import Array, Shape


def _activation(name: str) -> Handler:
    def handle(build: Builder, call: Call) -> View:
        view = next(value for value in call.arguments.values() if isinstance(value, View))
        return activate(build, view, {"activation": name})

    return handle


def activate(build: Builder, view: View, attributes: Mapping[str, Any]) -> View:
    """An activation of every element; a mere reordering stays one."""
    whole = build.on_base(view)
    if whole is not None:
        output = build.emit("activation", (whole.base,), whole.shape, attributes)
        return View(output.base, view.shape, view.index)
    return _ranked(build, view, lambda base: build.emit("activation", (base,), build.shapes[base], attributes))


def _ranked(build: Builder, view: View, write: Any) -> View:
    """An element-wise step on a view of any rank, by way of a rank the engine has."""
    flat = view if len(view.shape) in (1, 3) else view.reshape((math.prod(view.shape),))
    result: View = write(build.value(flat))
    return result.reshape(view.shape)


def _leaky_relu(build: Builder, call: Call) -> View:
    slope = call.number("negative_slope", 0.01)
    return activate(build, call.view("self"), {"activation": "leaky_relu", "slope": slope})


def _elu(build: Builder, call: Call) -> View:
    if call.number("scale", 1) != 1 or call.number("input_scale", 1) != 1:
        raise Unsupported("it scales its input or output (a SELU)")
    return activate(build, call.view("self"), {"activation": "elu", "slope": call.number("alpha", 1)})


def _gelu(build: Builder, call: Call) -> View:
    name = "gelu_tanh" if call.get("approximate", "none") == "tanh" else "gelu"
    return activate(build, call.view("self"), {"activation": name})


def _clamp(build: Builder, call: Call) -> View:
    low = call.number("min_val", -math.inf) if "min_val" in call.arguments else call.number("min", -math.inf)
    high = call.number("max_val", math.inf) if "max_val" in call.arguments else call.number("max", math.inf)
    names = {(0.0, 6.0): "relu6", (0.0, math.inf): "relu", (-math.inf, math.inf): "none"}
    view = call.view("self")
    if (low, high) in names:
        return activate(build, view, {"activation": names[low, high]})
    # Any other limits are those of ReLU or ReLU6, moved and stretched.
    if math.isinf(high):
        name, scale, origin = "relu", 1.0, low
    elif math.isinf(low):
        name, scale, origin = "relu", -1.0, high
    else:
        name, scale, origin = "relu6", 6.0 / (high - low), low
    moved = _affine(build, call, view, scale, -origin * scale)
    return _affine(build, call, activate(build, moved, {"activation": name}), 1 / scale, origin)


def _add(build: Builder, call: Call) -> View:
    first, second = call["self"], call["other"]
    alpha = call.number("alpha", 1.0)
    if call.name == "aten.sub":
        alpha = -alpha
    if call.name == "aten.rsub":
        first, second = second, first
        alpha = -alpha
    if not isinstance(second, View):
        return _affine(build, call, first, 1.0, as_tensor(second) * alpha)
    if alpha != 1:
        second = _affine(build, call, second, alpha, 0.0, second.shape)
    if not isinstance(first, View):
        return _affine(build, call, second, 1.0, as_tensor(first))
    return _binary(build, "add", first, second, call.shape)


def _mul(build: Builder, call: Call) -> View:
    first, second = call["self"], call["other"]
    if isinstance(first, View) and isinstance(second, View):
        return _binary(build, "mul", first, second, call.shape)
    view, factor = (first, second) if isinstance(first, View) else (second, first)
    return _affine(build, call, view, as_tensor(factor), 0.0)


def _div(build: Builder, call: Call) -> View:
    if isinstance(call["other"], View) or call.get("rounding_mode") is not None:
        raise Unsupported("it divides by something computed from the image, or rounds")
    return _affine(build, call, call["self"], 1.0 / as_tensor(call["other"]).double(), 0.0)


def _neg(build: Builder, call: Call) -> View:
    return _affine(build, call, call.view("self"), -1.0, 0.0)


def _affine(
    build: Builder, call: Call, view: View, scale: Tensor | float, shift: Tensor | float, shape: Shape | None = None
) -> View:
    """view · scale + shift with constants that PyTorch broadcasts against it."""
    shape = call.shape if shape is None else shape
    if view.shape != shape:
        view = _broadcast(view, shape)
    whole = build.on_base(view)
    if whole is None:
        base, rest = build.channels_first(view, 0)
        whole, index, back = View(base, build.shapes[base]), None, (shape[0], *rest)
    else:
        index, back = view.index, view.shape
    size = build.shapes[whole.base]
    both = [_per_channel(as_array(as_tensor(c).double()), shape, index, size) for c in (scale, shift)]
    output = build.emit("affine", (whole.base,), size, {}, {"scale": both[0], "shift": both[1]})
    return View(output.base, back, index)


def _per_channel(constant: Array, shape: Shape, index: Array | None, base: Shape) -> Array:
    """A constant that broadcasts to a view's shape, as one number per channel of the view's base."""
    if constant.size == 1:
        return np.full(base[0], constant.ravel()[0], dtype=np.float32)
    if constant.ndim > len(shape):
        # A constant made for the exported batch is one for any batch if its images agree.
        if not bool((constant == constant[:1]).all()):
            raise Unsupported("its constant differs between the images of a batch")
        constant = constant[0]
    flat = np.broadcast_to(constant, shape).ravel()
    if index is not None:
        in_base = np.empty_like(flat)
        in_base[index.ravel()] = flat
        flat = in_base
    rows = flat.reshape(base[0], -1)
    if not bool((rows == rows[:, :1]).all()):
        raise Unsupported("its constant differs within a channel")
    return np.ascontiguousarray(rows[:, 0])


def _broadcast(view: View, shape: Shape) -> View:
    """The view repeated to a larger shape."""
    padded = (1,) * (len(shape) - len(view.shape)) + view.shape
    return view.with_index(np.ascontiguousarray(np.broadcast_to(view.positions().reshape(padded), shape))).copied()


def _binary(build: Builder, op: str, first: View, second: View, shape: Shape) -> View:
    same_order = first.index is second.index or (
        first.index is not None and second.index is not None and np.array_equal(first.index, second.index)
    )
    bases = build.shapes[first.base], build.shapes[second.base]
    if first.shape == second.shape and same_order and bases[0] == bases[1] and build.is_permutation(first):
        output = build.emit(op, (first.base, second.base), bases[0])
        return View(output.base, shape, first.index)
    # A broadcast in front of the batch would mix images; PyTorch aligns at the end, so ranks must agree.
    if len(first.shape) != len(second.shape):
        raise Unsupported(f"it combines tensors of {len(first.shape) + 1} and {len(second.shape) + 1} axes")
    if len(shape) == 2:
        first, second = first.reshape((1, *first.shape)), second.reshape((1, *second.shape))
        return _binary(build, op, first, second, (1, *shape)).reshape(shape)
    if len(shape) not in (1, 3):
        if first.shape[:2] == second.shape[:2]:
            first, second = (view.reshape((math.prod(view.shape[:2]), *view.shape[2:])) for view in (first, second))
            return _binary(build, op, first, second, (math.prod(shape[:2]), *shape[2:])).reshape(shape)
        if first.shape != second.shape:
            raise Unsupported("it broadcasts tensors of more than four axes")
        size = (math.prod(shape),)
        return _binary(build, op, first.reshape(size), second.reshape(size), size).reshape(shape)
    narrow, wide = _unexpanded(first), _unexpanded(second)
    if any(max(a, b) < size for a, b, size in zip(narrow.shape, wide.shape, shape, strict=True)):
        # Both repeat along an axis, so one of them must keep doing so.
        narrow = first
    return build.emit(op, (build.value(narrow), build.value(wide)), shape)


def _unexpanded(view: View) -> View:
    """The view without the repetitions that broadcasting makes anyway."""
    if view.index is None:
        return view
    index = view.index
    for axis in range(index.ndim):
        start = np.take(index, [0], axis=axis)
        if index.shape[axis] > 1 and bool((index == start).all()):
            index = start
    return view if index is view.index else view.with_index(np.ascontiguousarray(index))


HANDLERS: Mapping[str, Handler] = {
    **{
        f"aten.{name}": _activation(name)
        for name in ("relu", "relu6", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh")
    },
    "aten.leaky_relu": _leaky_relu,
    "aten.elu": _elu,
    "aten.gelu": _gelu,
    "aten.hardtanh": _clamp,
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp,
    "aten.clamp_max": _clamp,
    "aten.add": _add,
    "aten.sub": _add,
    "aten.rsub": _add,
    "aten.mul": _mul,
    "aten.div": _div,
    "aten.neg": _neg,
}
