"""Operators that gather over axes: pooling and resizing within a channel, sums and means over some axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from penni.shrinking.analysis import Analysis, Edges, flatten, operator_name
from penni.shrinking.cells import Constant, Value, varying_axes
from penni.shrinking.pointwise import join

# How many of the last axes each works over; what it makes of zeros is zero.
WITHIN_CHANNELS = {
    "adaptive_avg_pool1d": 1,
    "adaptive_avg_pool2d": 2,
    "adaptive_avg_pool3d": 3,
    "adaptive_max_pool1d": 1,
    "adaptive_max_pool2d": 2,
    "avg_pool1d": 1,
    "avg_pool2d": 2,
    "avg_pool3d": 3,
    "max_pool1d": 1,
    "max_pool2d": 2,
    "max_pool2d_with_indices": 2,
    "max_pool3d": 3,
    "upsample_bicubic2d": 2,
    "upsample_bilinear2d": 2,
    "_upsample_bicubic2d_aa": 2,
    "_upsample_bilinear2d_aa": 2,
    "upsample_linear1d": 1,
    "upsample_nearest1d": 1,
    "upsample_nearest2d": 2,
    "upsample_nearest_exact2d": 2,
    "upsample_trilinear3d": 3,
    "grid_sampler": 2,
}

# Of a zero channel these see nothing when they run over the channels: it can go.
_SUMS = {"sum", "norm", "linalg_vector_norm"}
# These do see it, in their divisor or their order.
_COUNTING = {
    "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "argmax", "argmin", "prod", "logsumexp", "any",
    "all",
}  # fmt: skip
REDUCTIONS = _SUMS | _COUNTING
# Those that keep the shape.
SPREADING = {"softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "sort", "normalize"}


def within_channels(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Pooling and resizing: each channel alone, whatever happens along its plane."""
    value = arguments[0]
    if any(isinstance(item, Value) for item in flatten(arguments[1:])):
        return analysis.barrier(node, list(flatten(arguments)), f"{analysis.site(node)} looks it up by value")
    spatial = WITHIN_CHANNELS[operator_name(node)]
    first = len(value.shape) - spatial
    merged = merge(analysis, node, value, [axis for axis in varying_axes(value) if axis >= first])
    outputs = node.meta["val"]
    results = [
        Value(tuple(item.shape), merged.plane) for item in ([outputs] if isinstance(outputs, Tensor) else outputs)
    ]
    return results[0] if isinstance(outputs, Tensor) else results


def reduce(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Sums, means, maxima over axes."""
    value, name = arguments[0], operator_name(node)
    if len(arguments) > 1 and isinstance(arguments[1], (Value, Constant)):  # the larger of two tensors
        return join(analysis, node, arguments, named)
    outputs = node.meta["val"]
    shape = tuple((outputs if isinstance(outputs, Tensor) else outputs[0]).shape)
    axes = _axes(name, arguments, named, len(value.shape))
    keeps = len(shape) == len(value.shape)
    over = [axis for axis in varying_axes(value) if axis in axes]
    if over and name not in _SUMS:
        return analysis.barrier(node, [value], f"{analysis.site(node)} runs over the channels")
    if name not in ("sum", "mean", "amax", "amin", "max", "min", "norm", "linalg_vector_norm", "argmax") and not over:
        # Of a zero channel these need not make a zero: be careful.
        value = _unknown_zero(analysis, node, value)
    merged = merge(analysis, node, value, over, tie=False)
    plane = merged.plane
    for axis in sorted(axes, reverse=True):
        plane = plane.narrow(axis, 0, 1)
        if not keeps:
            plane = plane.squeeze(axis)
    if isinstance(outputs, Tensor):
        return Value(shape, plane)
    return [Value(tuple(item.shape), plane) for item in outputs]


def spread(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Softmax and the like: over the channels, all of them stay; over other axes, each channel alone."""
    value = arguments[0]
    axis = (arguments[1] if len(arguments) > 1 else named.get("dim", -1)) % len(value.shape)
    if value.plane.shape[axis] > 1:
        analysis.cells.pin(value.cells(), f"{analysis.site(node)} runs over the channels")
        return analysis.barrier(node, [value], f"{analysis.site(node)} runs over the channels")
    return _unknown_zero(analysis, node, value)


def attention(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Products of two tensors that both depend on the input: nothing can go."""
    return analysis.barrier(node, list(flatten((arguments, named))), f"{analysis.site(node)} multiplies matrices of it")


def merge(analysis: Analysis, node: fx.Node, value: Value, axes: list[int], tie: bool = True) -> Value:
    """The tensor as if it did not vary along `axes`; the cells that lie along them are tied unless `tie` is off."""
    if not axes:
        return value
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]
    rows = value.plane.permute(*rest, *axes)
    shape = rows.shape[: len(rest)]
    rows = rows.reshape(shape.numel(), -1)
    positions = torch.arange(rows.shape[0]).unsqueeze(1).expand_as(rows)
    pairs = torch.unique(torch.stack([positions.reshape(-1), rows.reshape(-1)]), dim=1).numpy()
    zero = torch.from_numpy(analysis.cells.zero[rows.numpy()]).all(dim=1).numpy()
    ids = analysis.fresh(node, rows.shape[0], zero)
    if tie:
        analysis.cells.tie(ids[pairs[0]], pairs[1])
    analysis.reads.append(Edges(ids[pairs[0]], pairs[1]))
    plane = torch.from_numpy(ids).reshape(shape)
    for axis in sorted(axes):
        plane = plane.unsqueeze(axis)
    return Value(value.shape, plane)


def _unknown_zero(analysis: Analysis, node: fx.Node, value: Value) -> Value:
    cells, inverse = torch.unique(value.plane, return_inverse=True)
    ids = analysis.fresh(node, len(cells))
    analysis.cells.tie(ids, cells.numpy())
    analysis.reads.append(Edges(ids, cells.numpy()))
    return Value(value.shape, torch.from_numpy(ids)[inverse])


def _axes(name: str, arguments: tuple[Any, ...], named: dict[str, Any], dimensions: int) -> list[int]:
    """The axes that are reduced."""
    position = 2 if name in ("norm", "linalg_vector_norm") else 1
    given = arguments[position] if len(arguments) > position else named.get("dim")
    if given is None or given == [] or isinstance(given, bool):  # var's and std's `unbiased` may come in its place
        return list(range(dimensions))
    given = [given] if isinstance(given, int) else given
    return [axis % dimensions for axis in given]
