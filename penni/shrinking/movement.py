"""Operators that only move elements: run on the planes as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from penni.shrinking.analysis import Analysis, Glue, flatten, operator_name
from penni.shrinking.cells import Constant, Value, compact, varying_axes
from penni.shrinking.constraints import EqualPieces

# Those whose arguments hold no size that narrowing could change.
_FREE = {
    "alias",
    "channel_shuffle",
    "chunk",
    "clone",
    "contiguous",
    "detach",
    "flatten",
    "flip",
    "lift_fresh_copy",
    "movedim",
    "native_channel_shuffle",
    "numpy_T",
    "permute",
    "pixel_shuffle",
    "pixel_unshuffle",
    "ravel",
    "repeat_interleave",
    "squeeze",
    "swapaxes",
    "t",
    "transpose",
    "unsqueeze",
    "unbind",
}
# Those with sizes: in the code these may come from shapes, from attributes, or be plain numbers.
_SIZED = {
    "_unsafe_view",
    "broadcast_to",
    "expand",
    "narrow",
    "repeat",
    "reshape",
    "slice",
    "split",
    "split_with_sizes",
    "tensor_split",
    "tile",
    "unflatten",
    "view",
}
# Those that count positions, which would shift if channels before them went.
_COUNTED = {"select", "roll", "index_select", "index", "as_strided", "diagonal", "unfold", "gather", "take_along_dim"}

MOVES = _FREE | _SIZED | _COUNTED


def move(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Run the operator on the plane of its operand."""
    value = arguments[0]
    name = operator_name(node)
    if not isinstance(value, Value):
        return analysis.barrier(node, list(flatten((arguments, named))), f"{analysis.site(node)} looks it up by value")
    others = list(flatten((arguments[1:], named)))
    if any(isinstance(item, Value) for item in others):
        return analysis.barrier(node, [value, *others], f"{analysis.site(node)} looks it up by value")
    plain = [_numbers(item) for item in arguments[1:]]
    # A view of the real tensor may need a copy of its plane, which lies otherwise in memory.
    plane = value.full().contiguous() if name in ("view", "_unsafe_view") else value.full()
    moved = node.target(plane, *plain, **named)  # type: ignore[operator]
    outputs = [Value(tuple(item.shape), compact(item)) for item in ([moved] if isinstance(moved, Tensor) else moved)]
    if name in _COUNTED or name == "unbind":
        if _arranged(value, outputs):
            analysis.cells.pin(value.cells(), f"{analysis.site(node)} counts channels by their position")
    elif name in _SIZED:
        analysis.glue.append(Glue(node, name, (value,), tuple(outputs)))
        if name == "slice" and len(arguments) > 4 and arguments[4] != 1 and value.plane.shape[arguments[1]] > 1:
            analysis.cells.pin(value.cells(), f"{analysis.site(node)} takes every {arguments[4]}. channel")
    if name in ("chunk", "split", "tensor_split") and not isinstance(arguments[1], (list, tuple)):
        axis = arguments[2] if len(arguments) > 2 else named.get("dim", 0)
        axis %= len(value.shape)
        sizes = {output.shape[axis] for output in outputs}
        if value.plane.shape[axis] > 1 and len(sizes) > 1:
            analysis.cells.pin(value.cells(), f"{analysis.site(node)} cuts it into unequal pieces")
        elif value.plane.shape[axis] > 1:
            analysis.constraints.append(EqualPieces(outputs, axis, analysis.site(node)))
    return outputs[0] if isinstance(moved, Tensor) else outputs


def concatenate(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """`cat` and `stack`: the planes put together the same way."""
    operands = [analysis.as_value(node, item) for item in arguments[0]]
    stacked = operator_name(node) == "stack"
    axis = arguments[1] if len(arguments) > 1 else named.get("dim", 0)
    axis %= len(operands[0].shape) + int(stacked)
    if stacked:
        planes = [value.plane.unsqueeze(axis) for value in operands]
        shapes = [(*value.shape[:axis], 1, *value.shape[axis:]) for value in operands]
        operands = [Value(shape, plane) for shape, plane in zip(shapes, planes, strict=True)]
    # An empty tensor is left out by torch too.
    operands = [value for value in operands if value.shape != (0,)]
    common = [max(value.plane.shape[other] for value in operands) for other in range(len(operands[0].shape))]
    parts = []
    for value in operands:
        sizes = list(common)
        sizes[axis] = value.shape[axis]
        parts.append(value.plane.expand(sizes))
    joined = torch.cat(parts, dim=axis)
    return Value(tuple(node.meta["val"].shape), compact(joined))


def pad(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Padding of a plane keeps channels; padding along the channels makes new, constant ones."""
    value, amounts = arguments[0], list(arguments[1])
    mode = (
        "constant" if operator_name(node) == "constant_pad_nd" else (arguments[2] if len(arguments) > 2 else "constant")
    )
    mode = named.get("mode", mode)
    fill = named.get(
        "value", arguments[-1] if len(arguments) > (2 if operator_name(node) == "constant_pad_nd" else 3) else 0
    )
    fill = 0 if fill is None else fill
    shape = tuple(node.meta["val"].shape)
    dimensions = len(shape)
    padded = [dimensions - 1 - k for k in range(len(amounts) // 2) if amounts[2 * k] or amounts[2 * k + 1]]
    across = [axis for axis in padded if value.plane.shape[axis] > 1]
    if not across:
        if mode != "constant" or fill == 0:
            return Value(shape, value.plane)
        return Value(shape, _renewed(analysis, node, value))
    if mode != "constant":
        return analysis.barrier(node, [value], f"{analysis.site(node)} mirrors channels")
    plane = value.plane
    for axis in across:
        k = dimensions - 1 - axis
        before, after = amounts[2 * k], amounts[2 * k + 1]
        if before < 0 or after < 0:
            return analysis.barrier(node, [value], f"{analysis.site(node)} cuts channels off")
        pieces = [plane]
        for count, first in ((before, True), (after, False)):
            if count:
                sizes = list(plane.shape)
                sizes[axis] = count
                ids = torch.from_numpy(analysis.fresh(node, count, fill == 0))
                line = ids.reshape([count if other == axis else 1 for other in range(dimensions)])
                pieces.insert(0 if first else len(pieces), line.expand(sizes))
        plane = torch.cat(pieces, dim=axis)
    result = Value(shape, plane)
    analysis.glue.append(Glue(node, "pad", (value,), (result,)))
    return result


def _renewed(analysis: Analysis, node: fx.Node, value: Value) -> Tensor:
    """New cells, none of them zero, tied one by one to those of `value`."""
    from penni.shrinking.analysis import Edges

    cells, inverse = torch.unique(value.plane, return_inverse=True)
    ids = analysis.fresh(node, len(cells))
    analysis.cells.tie(ids, cells.numpy())
    analysis.reads.append(Edges(ids, cells.numpy()))
    return torch.from_numpy(ids)[inverse]


def _arranged(value: Value, outputs: list[Value]) -> bool:
    """Whether the operator touched the axes along which channels lie."""
    if any(len(varying_axes(output)) != len(varying_axes(value)) for output in outputs):
        return True
    flat = value.plane.reshape(-1)
    return not all(torch.equal(output.plane.reshape(-1), flat) for output in outputs)


def _numbers(item: Any) -> Any:
    if isinstance(item, Constant):
        return item.value
    if isinstance(item, (list, tuple)):
        return [_numbers(entry) for entry in item]
    return item
