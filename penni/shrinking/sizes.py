"""Sizes in a model's code: which arguments a narrowing changes, and which attribute they may come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penni.models.cifar import ChannelPadShortcut
from penni.shrinking.analysis import Analysis, Glue
from penni.shrinking.capture import Graph
from penni.shrinking.constraints import Removal

# How the sizes of a glue operator are taken to be made, tried in this order: computed from shapes by the
# model's code, kept in an attribute of the module, or written down so that they cannot change.
DERIVED, ATTRIBUTE, WRITTEN = 0, 1, 2
Key = tuple[str, str, int]
State = dict[Key, int]
Edits = dict[tuple[str, str], Any]


@dataclass(frozen=True)
class Change:
    """An argument that must go from `old` to `new`: a number, or a list of them."""

    old: Any
    new: Any


def changes(glue: Glue, removal: Removal) -> list[Change]:
    """The arguments of this operator that do not fit the narrowed tensors any more."""
    value, node = glue.inputs[0], glue.node
    arguments: list[Any] = list(node.args)
    named: dict[str, Any] = dict(node.kwargs)
    if glue.kind in ("view", "reshape", "_unsafe_view", "expand", "broadcast_to"):
        return _sizes(list(arguments[1]), glue.outputs[0].shape, removal.shape(glue.outputs[0]))
    if glue.kind == "unflatten":
        axis = int(arguments[1]) % len(value.shape)
        sizes = list(arguments[2])
        shape, narrow = glue.outputs[0].shape, removal.shape(glue.outputs[0])
        return _sizes(sizes, shape[axis : axis + len(sizes)], narrow[axis : axis + len(sizes)])
    if glue.kind == "slice":
        axis = int(arguments[1]) if len(arguments) > 1 else 0
        start = int(arguments[2] or 0) if len(arguments) > 2 else 0
        size = value.shape[axis]
        start = start + size if start < 0 else start
        line = removal.kept(value, axis)
        first, length = int(line[:start].sum()), removal.shape(glue.outputs[0])[axis]
        found = [Change(start, first)] if start else []
        end = start + glue.outputs[0].shape[axis]
        if end < size:
            found.append(Change(end, first + length))
        return [change for change in found if change.old != change.new]
    if glue.kind in ("split", "split_with_sizes", "tensor_split"):
        axis = (arguments[2] if len(arguments) > 2 else named.get("dim", 0)) % len(value.shape)
        new = [removal.shape(piece)[axis] for piece in glue.outputs]
        old = arguments[1]
        if isinstance(old, int):
            return [Change(old, new[0])] if old != new[0] else []
        old = list(old)
        return [Change(old, new)] if old != new else []
    if glue.kind == "pad":
        return _padding(glue, removal)
    if glue.kind == "groups":
        return _groups(glue, removal)
    if glue.kind == "norm groups":
        return []
    return [] if removal.shape(glue.outputs[0]) == glue.outputs[0].shape else [Change(None, None)]


def key_of(analysis: Analysis, glue: Glue) -> Key:
    """The same operator in all modules of one class is judged at once."""
    call = Graph.call(glue.node)
    peers = [other for other in analysis.glue if Graph.call(other.node) == call and other.kind == glue.kind]
    module = analysis.module(glue.node)
    return (f"{type(module).__module__}.{type(module).__qualname__}", glue.kind, peers.index(glue))


def first_state(analysis: Analysis, glue: Glue) -> int:
    """Where the search starts for an operator: penni's own padding keeps its sizes in attributes."""
    return ATTRIBUTE if isinstance(analysis.module(glue.node), ChannelPadShortcut) else DERIVED


def attribute_edits(analysis: Analysis, glue: Glue, found: list[Change]) -> Edits | None:
    """Attributes of the module that hold the old sizes, with their new values; `None` if one is not to be found."""
    path, module = Graph.path(glue.node), analysis.module(glue.node)
    if isinstance(module, ChannelPadShortcut):
        before, after = (_count(change) for change in _padding_pair(found))
        return {(path, "before"): before, (path, "after"): after}
    edits: Edits = {}
    for change in found:
        names = [name for name, held in vars(module).items() if not name.startswith("_") and _same(held, change.old)]
        if not names:
            return None
        for name in names:
            if edits.setdefault((path, name), change.new) != change.new:
                return None
    return edits


def _same(held: Any, size: Any) -> bool:
    if isinstance(held, bool) or size is None:
        return False
    return bool((list(held) if isinstance(held, (tuple, list)) else held) == size)


def _sizes(written: list[Any], old: tuple[int, ...], new: tuple[int, ...]) -> list[Change]:
    # `expand` may name fewer leading axes than there are; both count from the last.
    return [
        Change(was, now)
        for size, was, now in zip(reversed(written), reversed(old), reversed(new), strict=False)
        if size != -1 and was != now
    ]


def _padding(glue: Glue, removal: Removal) -> list[Change]:
    """Before and after along the padded channel axis."""
    value, result = glue.inputs[0], glue.outputs[0]
    arguments: list[Any] = list(glue.node.args)
    amounts = list(arguments[1])
    found = []
    for k in range(len(amounts) // 2):
        axis = len(value.shape) - 1 - k
        if result.plane.shape[axis] == value.plane.shape[axis]:
            continue
        line = removal.kept(result, axis)
        before, after = int(amounts[2 * k]), int(amounts[2 * k + 1])
        end = len(line) - after
        found += [Change(before, int(line[:before].sum())), Change(after, int(line[end:].sum()))]
    return found if any(change.old != change.new for change in found) else []


def _groups(glue: Glue, removal: Removal) -> list[Change]:
    """The number of groups of a convolution that is not one of PyTorch's layers, which follow by themselves."""
    arguments: list[Any] = list(glue.node.args)
    old = int(arguments[6])
    result = glue.outputs[0]
    axis = next((axis for axis, size in enumerate(result.plane.shape) if size > 1), None)
    if axis is None:
        return []
    new = int(removal.kept(result, axis).reshape(old, -1).any(axis=1).sum())
    return [Change(old, new)] if new != old else []


def _padding_pair(found: list[Change]) -> list[Change]:
    assert len(found) == 2
    return found


def _count(change: Change) -> int:
    return int(change.new)
