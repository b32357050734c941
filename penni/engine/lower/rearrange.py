"""Operators that only move elements: they become views, and steps where several values meet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penni.engine.lower.builder import Builder, as_array
from penni.engine.lower.call import Call, Handler, Unsupported, image_axis
from penni.engine.lower.capture import BATCH
from penni.engine.lower.views import View


def _first(call: Call) -> View:
    value = next(iter(call.arguments.values()))
    if not isinstance(value, View):
        raise Unsupported("it rearranges a constant by something computed from the image")
    return value


def _same(build: Builder, call: Call) -> View:
    return _first(call)


def _copy(build: Builder, call: Call) -> View:
    return _first(call).copied()


def _dropout(build: Builder, call: Call) -> View:
    if call.get("train", call.get("training", False)):
        raise Unsupported("it is random even in evaluation")
    return _first(call)


def _reshape(build: Builder, call: Call) -> View:
    first = call.result[0] if isinstance(call.result, (tuple, list)) else call.result
    if int(first.shape[0]) != BATCH:
        raise Unsupported("it merges the batch with other axes")
    return _first(call).reshape(call.shape)


def _permute(build: Builder, call: Call) -> View:
    view = _first(call)
    rank = len(view.shape)
    if call.name == "aten.permute":
        order = [int(axis) % (rank + 1) for axis in call["dims"]]
    else:
        order = list(range(rank + 1))
        one, other = int(call["dim0"]) % (rank + 1), int(call["dim1"]) % (rank + 1)
        order[one], order[other] = other, one
    if order[0] != 0:
        raise Unsupported("it moves the batch")
    return view.with_index(view.positions().transpose([axis - 1 for axis in order[1:]]))


def _slice(build: Builder, call: Call) -> View:
    view = _first(call)
    axis = image_axis_or_batch(call["dim"], len(view.shape))
    start, end, step = call.get("start"), call.get("end"), call.get("step") or 1
    if axis < 0:
        if (start or 0) == 0 and (end is None or end >= BATCH) and step == 1:
            return view
        raise Unsupported("it takes a part of the batch")
    return _cut(view, axis, slice(start, end, step))


def image_axis_or_batch(axis: int, rank: int) -> int:
    """The axis of the image, −1 for the batch."""
    return axis % (rank + 1) - 1


def _cut(view: View, axis: int, part: slice) -> View:
    return view.with_index(view.positions()[(slice(None),) * axis + (part,)])


def _narrow(build: Builder, call: Call) -> View:
    view = _first(call)
    start = int(call["start"])
    return _cut(view, call.axis("dim", len(view.shape)), slice(start, start + int(call["length"])))


def _select(build: Builder, call: Call) -> View:
    view = _first(call)
    axis = call.axis("dim", len(view.shape))
    return view.with_index(np.take(view.positions(), int(call["index"]), axis=axis))


def _split(build: Builder, call: Call) -> list[View]:
    """chunk, split, unbind: PyTorch's own result says the sizes."""
    view = _first(call)
    axis = call.axis("dim", len(view.shape))
    parts, start = [], 0
    for result in call.result:
        if call.name == "aten.unbind":
            parts.append(view.with_index(np.take(view.positions(), start, axis=axis)))
            start += 1
            continue
        size = int(result.shape[axis + 1])
        parts.append(_cut(view, axis, slice(start, start + size)))
        start += size
    return parts


def _expand(build: Builder, call: Call) -> View:
    view, shape = _first(call), call.shape
    if len(view.shape) > len(shape):
        raise Unsupported("it repeats the batch")
    padded = view.positions().reshape((1,) * (len(shape) - len(view.shape)) + view.shape)
    return view.with_index(np.ascontiguousarray(np.broadcast_to(padded, shape))).copied()


def _flip(build: Builder, call: Call) -> View:
    view = _first(call)
    axes = [image_axis(axis, len(view.shape)) for axis in call["dims"]]
    return view.with_index(np.flip(view.positions(), tuple(axes))).copied()


def _roll(build: Builder, call: Call) -> View:
    view = _first(call)
    axes = [image_axis(axis, len(view.shape)) for axis in call["dims"]]
    if not axes:
        raise Unsupported("it rolls across the batch")
    return view.with_index(np.roll(view.positions(), call["shifts"], axes)).copied()


def _channel_shuffle(build: Builder, call: Call) -> View:
    view, groups = _first(call), int(call["groups"])
    order = np.arange(view.shape[0]).reshape(groups, -1).T.ravel()
    return view.with_index(view.positions()[order]).copied()


def _pixel_shuffle(build: Builder, call: Call) -> View:
    view = _first(call)
    channels, height, width = view.shape
    index = view.positions()
    if call.name == "aten.pixel_shuffle":
        by = int(call["upscale_factor"])
        index = index.reshape(channels // by**2, by, by, height, width).transpose(0, 3, 1, 4, 2)
    else:
        by = int(call["downscale_factor"])
        index = index.reshape(channels, height // by, by, width // by, by).transpose(0, 2, 4, 1, 3)
    return view.with_index(index.reshape(call.shape)).copied()


def _index_select(build: Builder, call: Call) -> View:
    view, index = _first(call), call.constant("index")
    assert index is not None
    axis = call.axis("dim", len(view.shape))
    return view.with_index(np.take(view.positions(), as_array(index), axis=axis)).copied()


def _index(build: Builder, call: Call) -> View:
    view = _first(call)
    indices = call["indices"]
    used = [place for place, item in enumerate(indices) if item is not None]
    index = indices[used[0]] if len(used) == 1 else None
    if not isinstance(index, Tensor) or index.ndim != 1 or used[0] == 0:
        raise Unsupported("it indexes by something other than one list of numbers along one axis of the image")
    numbers = np.flatnonzero(index.numpy()) if index.dtype == torch.bool else as_array(index)
    return view.with_index(np.take(view.positions(), numbers, axis=used[0] - 1)).copied()


def _index_add(build: Builder, call: Call) -> View:
    """index_copy and index_add along the channels, the way removed channels are put back."""
    target, index, source = call["self"], call.constant("index"), call.view("source")
    assert index is not None
    axis = call.axis("dim", len(call.shape))
    zeros = isinstance(target, Tensor) and not bool(target.any())
    if axis != 0 or (not zeros and (call.name == "aten.index_copy" or not isinstance(target, View))):
        raise Unsupported("it writes into something other than channels of zeros")
    if call.get("alpha", 1) not in (1, None):
        raise Unsupported("it scales what it adds")
    places = as_array(index)
    if len(np.unique(places)) != len(places):
        raise Unsupported("it writes twice into one channel")
    order = np.full(call.shape[0], -1, dtype=np.int32)
    order[places] = np.arange(len(places))
    base, rest = build.channels_first(source, 0)
    spread = build.gather(base, order)
    if zeros:
        return build.channels_back(spread.base, 0, rest)
    onto, rest = build.channels_first(target, 0)
    total = build.emit("add", (onto, spread.base), build.shapes[onto])
    return build.channels_back(total.base, 0, rest)


def _zeros_like(build: Builder, call: Call) -> Any:
    """A constant whose size comes from the image's: it is known, the batch aside."""
    value = 0.0 if "zeros" in call.name else 1.0 if "ones" in call.name else float(call["fill_value"])
    return torch.full((BATCH, *call.shape), value)


def _concat(build: Builder, call: Call) -> View:
    parts = call["tensors"]
    rank = len(call.shape)
    axis = call.axis("dim", rank)
    # Channels of zeros among the parts are written by a gather, which has a number for them.
    views = [part for part in parts if isinstance(part, View)]
    firsts = [build.channels_first(view, axis) for view in views]
    rest = firsts[0][1]
    bases = tuple(base for base, _ in firsts)
    shape = (sum(build.shapes[base][0] for base in bases), *build.shapes[bases[0]][1:])
    joined = bases[0] if len(bases) == 1 else build.emit("concat", bases, shape).base
    if len(views) < len(parts):
        joined = build.gather(joined, _with_zeros(parts, axis)).base
    return build.channels_back(joined, axis, rest)


def _with_zeros(parts: list[Any], axis: int) -> Any:
    order: list[int] = []
    start = 0
    for part in parts:
        if isinstance(part, View):
            size = part.shape[axis]
            order += range(start, start + size)
            start += size
        elif bool(part.any()):
            raise Unsupported("it joins the image with constants other than zero")
        else:
            order += [-1] * int(part.shape[axis + 1])
    return np.array(order, dtype=np.int32)


def _stack(build: Builder, call: Call) -> View:
    parts = call["tensors"]
    if not all(isinstance(part, View) for part in parts):
        raise Unsupported("it joins the image with constants")
    axis = call.axis("dim", len(call.shape))
    raised = [part.reshape((*part.shape[:axis], 1, *part.shape[axis:])) for part in parts]
    if math.prod(call.shape) == 0:
        raise Unsupported("it is empty")
    return _concat(build, Call("aten.cat", {"tensors": raised, "dim": axis + 1}, call.result))


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("aten.alias", "aten.detach", "aten.lift_fresh_copy", "aten.to", "aten._to_copy"), _same),
    **dict.fromkeys(("aten.contiguous", "aten.clone"), _copy),
    **dict.fromkeys(("aten.dropout", "aten.feature_dropout", "aten.native_dropout", "aten.alpha_dropout"), _dropout),
    **dict.fromkeys(
        (
            "aten.view",
            "aten.reshape",
            "aten._unsafe_view",
            "aten.flatten",
            "aten.unflatten",
            "aten.squeeze",
            "aten.unsqueeze",
        ),
        _reshape,
    ),
    **dict.fromkeys(("aten.permute", "aten.transpose"), _permute),
    "aten.slice": _slice,
    "aten.narrow": _narrow,
    "aten.select": _select,
    **dict.fromkeys(("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.unbind", "aten.tensor_split"), _split),
    "aten.expand": _expand,
    "aten.expand_as": _expand,
    "aten.flip": _flip,
    "aten.roll": _roll,
    "aten.channel_shuffle": _channel_shuffle,
    "aten.pixel_shuffle": _pixel_shuffle,
    "aten.pixel_unshuffle": _pixel_shuffle,
    "aten.index_select": _index_select,
    "aten.index": _index,
    "aten.index_copy": _index_add,
    "aten.index_add": _index_add,
    **dict.fromkeys(
        ("aten.new_zeros", "aten.zeros_like", "aten.new_ones", "aten.ones_like", "aten.new_full"), _zeros_like
    ),
    "aten.cat": _concat,
    "aten.stack": _stack,
}
