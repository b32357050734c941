"""Operators over an image's plane: pooling, padding, resizing; and reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from penni.engine.lower.builder import Builder
from penni.engine.lower.call import Call, Handler, Unsupported, image_axis, same_padding
from penni.engine.lower.views import View


def _image(build: Builder, call: Call, key: str = "self") -> int:
    view = call.view(key)
    if len(view.shape) != 3:
        raise Unsupported(f"its input has {len(view.shape) + 1} axes")
    return build.value(view)


def _max_pool(build: Builder, call: Call) -> View | tuple[View, None]:
    kernel = call.pair("kernel_size")
    attributes = {
        "kernel": kernel,
        "stride": call.pair("stride", kernel),
        "padding": same_padding(call.pair("padding")),
        "dilation": call.pair("dilation"),
    }
    result = build.emit("max_pool", (_image(build, call),), call.shape, attributes)
    return (result, None) if isinstance(call.result, (tuple, list)) else result


def _avg_pool(build: Builder, call: Call) -> View:
    kernel = call.pair("kernel_size")
    attributes = {
        "kernel": kernel,
        "stride": call.pair("stride", kernel),
        "padding": same_padding(call.pair("padding")),
        "count_include_pad": bool(call["count_include_pad"]),
        "divisor": int(call["divisor_override"] or 0),
    }
    return build.emit("avg_pool", (_image(build, call),), call.shape, attributes)


def _adaptive(op: str) -> Handler:
    def handle(build: Builder, call: Call) -> View | tuple[View, None]:
        result = build.emit(op, (_image(build, call),), call.shape)
        return (result, None) if isinstance(call.result, (tuple, list)) else result

    return handle


def _mean(build: Builder, call: Call) -> View:
    view = call.view("self")
    rank = len(view.shape)
    given = call.get("dim")
    if given is None:
        raise Unsupported("it takes the mean across the images of a batch")
    axes = {image_axis(axis, rank) for axis in ([given] if isinstance(given, int) else given)}
    if rank == 3 and axes == {1, 2}:
        result = build.emit("adaptive_avg_pool", (build.value(view),), (view.shape[0], 1, 1))
    elif rank in (1, 3):
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(view.shape))
        result = build.emit("mean", (build.value(view),), kept, {"axes": tuple(sorted(axes))})
    elif rank == 2:
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(view.shape))
        raised = build.value(view.reshape((1, *view.shape)))
        shifted = tuple(axis + 1 for axis in sorted(axes))
        result = build.emit("mean", (raised,), (1, *kept), {"axes": shifted})
    elif len(axes) == 1:
        base, _ = build.channels_first(view, next(iter(axes)))
        result = build.emit("mean", (base,), (1, *build.shapes[base][1:]), {"axes": (0,)})
    else:
        raise Unsupported(f"its input has {rank + 1} axes")
    return result.reshape(call.shape)


def _sum(build: Builder, call: Call) -> View:
    """As many times the mean; the sum over the batch is refused there."""
    result = _mean(build, call)
    count = math.prod(call.view("self").shape) // math.prod(call.shape)
    base = build.value(result if len(result.shape) in (1, 3) else result.reshape((math.prod(result.shape),)))
    shape = build.shapes[base]
    factor, zero = np.full(shape[0], count, np.float32), np.zeros(shape[0], np.float32)
    return build.emit("affine", (base,), shape, {}, {"scale": factor, "shift": zero}).reshape(call.shape)


def _softmax(build: Builder, call: Call) -> View:
    view = call.view("self")
    axis = call.axis("dim", len(view.shape))
    base, rest = build.channels_first(view, axis)
    attributes = {"axis": 0, "log": "log" in call.name}
    result = build.emit("softmax", (base,), build.shapes[base], attributes)
    return build.channels_back(result.base, axis, rest)


def _pad(build: Builder, call: Call) -> View:
    mode = str(call.get("mode", _PAD_MODES.get(call.name, "constant")))
    amounts = [int(n) for n in (call["padding"] if "padding" in call.arguments else call["pad"])]
    amounts += [0] * (6 - len(amounts))
    left, right, top, bottom, before, after = amounts[:6]
    if any(amounts[6:]):
        raise Unsupported("it pads the batch")
    view = call.view("self")
    if len(view.shape) == 1:
        # Features are channels of a 1×1 plane.
        if any(amounts[2:]) or mode != "constant":
            raise Unsupported("it pads something other than planes")
        view, (before, after, left, right) = view.reshape((*view.shape, 1, 1)), (left, right, 0, 0)
    if len(view.shape) != 3:
        raise Unsupported(f"its input has {len(view.shape) + 1} axes")
    value = call.number("value", 0.0)
    # A negative padding cuts off; that part is only another view.
    cut = [max(0, -n) for n in (before, after, top, bottom, left, right)]
    if any(cut):
        ends = [size - cut[2 * axis + 1] for axis, size in enumerate(view.shape)]
        slices = tuple(slice(cut[2 * axis], ends[axis]) for axis in range(3))
        view = view.with_index(view.positions()[slices])
    before, after, top, bottom, left, right = (max(0, n) for n in (before, after, top, bottom, left, right))
    attributes = {"padding": (top, bottom, left, right), "channels": (before, after), "mode": mode, "value": value}
    size = (view.shape[0] + before + after, view.shape[1] + top + bottom, view.shape[2] + left + right)
    return build.emit("pad", (build.value(view),), size, attributes).reshape(call.shape)


_PAD_MODES = {"aten.reflection_pad2d": "reflect", "aten.replication_pad2d": "replicate"}


def _interpolate(build: Builder, call: Call) -> View:
    image = _image(build, call, "input" if "input" in call.arguments else "self")
    align = bool(call.get("align_corners", False))
    bilinear = "bilinear" in call.name
    given = call.get("scale_factors") or [call.get("scales_h"), call.get("scales_w")]
    scale = []
    for axis in range(2):
        size, result = build.shapes[image][axis + 1], call.shape[axis + 1]
        if align and bilinear:
            scale.append((size - 1) / (result - 1) if result > 1 else 0.0)
        elif given[axis]:
            scale.append(1.0 / float(given[axis]))
        else:
            scale.append(size / result)
    attributes = {"mode": "bilinear" if bilinear else "nearest", "align_corners": align, "scale": tuple(scale)}
    return build.emit("interpolate", (image,), call.shape, attributes)


HANDLERS: Mapping[str, Handler] = {
    "aten.max_pool2d": _max_pool,
    "aten.max_pool2d_with_indices": _max_pool,
    "aten.avg_pool2d": _avg_pool,
    "aten.adaptive_avg_pool2d": _adaptive("adaptive_avg_pool"),
    "aten._adaptive_avg_pool2d": _adaptive("adaptive_avg_pool"),
    "aten.adaptive_max_pool2d": _adaptive("adaptive_max_pool"),
    "aten.mean": _mean,
    "aten.sum": _sum,
    "aten.softmax": _softmax,
    "aten._softmax": _softmax,
    "aten.log_softmax": _softmax,
    "aten._log_softmax": _softmax,
    "aten.pad": _pad,
    "aten.constant_pad_nd": _pad,
    "aten.reflection_pad2d": _pad,
    "aten.replication_pad2d": _pad,
    "aten.upsample_nearest2d": _interpolate,
    "aten.upsample_bilinear2d": _interpolate,
}
