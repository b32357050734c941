"""Operators that work on each element alone, and those that join several tensors element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from penni.shrinking.analysis import Analysis, Edges, operator_name
from penni.shrinking.cells import Constant, Ids, Mask, Value, broadcast
from penni.shrinking.constraints import Aligned

# Whether these keep a zero a zero is found by trying it, with their own arguments.
UNARY = {
    "_to_copy", "abs", "alpha_dropout", "asinh", "atan", "bitwise_not", "ceil", "celu", "clamp", "clamp_max",
    "clamp_min", "cos", "dropout", "elu", "erf", "exp", "expm1", "feature_alpha_dropout", "feature_dropout", "floor",
    "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p", "log_sigmoid",
    "logical_not", "logit", "mish", "nan_to_num", "native_dropout", "neg", "ones_like", "reciprocal", "relu", "relu6",
    "round", "rrelu", "rsqrt", "rsub", "selu", "sigmoid", "sign", "silu", "sin", "softplus", "softshrink", "sqrt",
    "square", "tan", "tanh", "threshold", "to", "trunc", "type_as", "zeros_like",
}  # fmt: skip

# When the result is zero: if all operands are, if any is, if the first is, or never for sure.
JOINS = {
    "add": "all",
    "sub": "all",
    "maximum": "all",
    "minimum": "all",
    "mul": "any",
    "div": "first",
    "true_divide": "first",
    "prelu": "first",
    "pow": "never",
    "eq": "never",
    "ne": "never",
    "gt": "never",
    "ge": "never",
    "lt": "never",
    "le": "never",
    "atan2": "never",
    "logical_and": "never",
    "logical_or": "never",
}


def single(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """An element-wise function of one tensor: its channels are its operand's."""
    value = arguments[0]
    cells, inverse = torch.unique(value.plane, return_inverse=True)
    held = analysis.cells.constant[cells.numpy()]
    # Zero at the end tells whether a zero channel stays one; the constants before it become others.
    probe = torch.tensor([*np.nan_to_num(held), 0.0]).to(value_type(node))
    others = [probe if isinstance(item, Value) else item for item in arguments[1:]]
    result = node.target(probe, *others, **named)  # type: ignore[operator]
    result = result[0] if isinstance(result, tuple) else result
    shape = tuple(_first(node.meta["val"]).shape)
    made = np.where(np.isnan(held), np.nan, result[:-1].double().numpy())
    # Cells are shared where nothing new is known of them.
    if bool(result[-1] == 0) and bool((np.isnan(held) | (held == 0)).all()):
        return Value(shape, value.plane)
    ids = analysis.fresh(node, len(cells), constant=made)
    analysis.cells.tie(ids, cells.numpy())
    analysis.reads.append(Edges(ids, cells.numpy()))
    return Value(shape, torch.from_numpy(ids)[inverse])


def power(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """`pow` with a number is a function of one tensor."""
    if isinstance(arguments[0], Value) and not isinstance(arguments[1], (Value, Constant)):
        return single(analysis, node, arguments, named)
    return combine(analysis, node, arguments[:2], "never")


def join(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Addition, multiplication and their like, with broadcasting."""
    name = operator_name(node).rstrip("_")
    name = {"max": "maximum", "min": "minimum"}.get(name, name)
    operands: Sequence[Any] = arguments[:2]
    if name in ("add", "sub") and named.get("alpha", 1) == 0:
        operands = arguments[:1]
    if name == "prelu" and isinstance(operands[1], Constant) and operands[1].value.dim() == 1:
        # One slope per channel, on the second axis.
        slopes = operands[1]
        shape = (-1, *[1] * (len(operands[0].shape) - 2))
        operands = (operands[0], slopes.reshaped(shape))
    return combine(analysis, node, operands, JOINS[name], named)


def where(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """`where(condition, a, b)` is zero where both choices are."""
    return combine(analysis, node, (arguments[1], arguments[2], arguments[0]), "first two")


def add_product(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """`addcmul(a, b, c)` is a + b·c."""
    return combine(analysis, node, arguments[:3], "first or product")


def expand_as(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The second tensor gives no more than its shape, but that has to stay the same."""
    return combine(analysis, node, arguments[:2], "shape")


def combine(
    analysis: Analysis, node: fx.Node, operands: Sequence[Any], rule: str, named: dict[str, Any] | None = None
) -> Value:
    """New cells for every combination of the operands' cells that meet in an element. If the operator's `named`
    arguments are given, what it makes of cells that are constant is found by trying it.
    """
    values = [item for item in operands if isinstance(item, Value)]
    shape = tuple(_first(node.meta["val"]).shape)
    planes = broadcast([value.plane for value in values], len(shape))
    code = torch.zeros_like(planes[0])
    for plane in planes:
        cells, inverse = torch.unique(plane, return_inverse=True)
        # Renumbering after each operand keeps the codes small.
        code = torch.unique(code * len(cells) + inverse, return_inverse=True)[1]
    first = np.zeros(int(code.max()) + 1, dtype=np.int64)
    flat = code.reshape(-1).numpy()
    first[flat[::-1]] = np.arange(len(flat))[::-1]
    sources = [plane.reshape(-1).numpy()[first] for plane in planes]
    zeros: list[Mask] = []
    remaining = iter(sources)
    for item in operands:
        if isinstance(item, Value):
            zeros.append(analysis.cells.zero[next(remaining)])
        else:
            zeros.append(_constant_zeros(item, code, len(first), shape))
    made = _made(analysis, node, operands, sources, named) if named is not None else None
    ids = analysis.fresh(node, len(first), _result_zero(rule, zeros), made)
    result = Value(shape, torch.from_numpy(ids)[code])
    remaining = iter(sources)
    for position, item in enumerate(operands):
        if isinstance(item, Value):
            _attach(analysis, node, item, result, ids, next(remaining), _read(rule, zeros, position))
        elif isinstance(item, Constant):
            _attach_constant(analysis, node, item, result)
    return result


def _made(
    analysis: Analysis, node: fx.Node, operands: Sequence[Any], sources: Sequence[Ids], named: dict[str, Any]
) -> NDArray[np.float64] | None:
    """What the operator makes where all that it joins is constant."""
    if not all(isinstance(item, (Value, int, float)) for item in operands):
        return None
    held = [analysis.cells.constant[source] for source in sources]
    known = ~np.isnan(held).any(axis=0)
    if not known.any():
        return None
    probes = (torch.from_numpy(np.nan_to_num(values)).to(value_type(node)) for values in held)
    tried = [next(probes) if isinstance(item, Value) else item for item in operands]
    result: Tensor = node.target(*tried, **named)  # type: ignore[operator]
    return np.where(known, result.double().numpy(), np.nan)


def _attach(
    analysis: Analysis, node: fx.Node, operand: Value, result: Value, ids: Ids, source: Ids, read: Mask
) -> None:
    """Tie the result's cells to the operand's, and say which of those are read."""
    analysis.reads.append(Edges(ids[read], source[read]))
    one_to_one = len(np.unique(source)) == len(source)
    broadcasts = any(
        size == 1 and result.shape[axis + len(result.shape) - len(operand.shape)] > 1
        for axis, size in enumerate(operand.shape)
    )
    if one_to_one and not (broadcasts and len(source) == 1):
        analysis.cells.tie(ids, source)
    else:
        analysis.constraints.append(Aligned(operand, result, analysis.site(node)))


def _attach_constant(analysis: Analysis, node: fx.Node, constant: Constant, result: Value) -> None:
    """Each element of a parameter goes with the one cell that it meets, or is met by several and stays."""
    offset = len(result.shape) - constant.value.dim()
    shared = [
        axis
        for axis, size in enumerate(constant.shape)
        if size > 1 and result.plane.shape[axis + offset] > 1 and size == result.shape[axis + offset]
    ]
    if not shared:
        return
    why = f"{analysis.site(node)} joins it with a constant that is not a parameter"
    spread = [axis for axis, size in enumerate(result.plane.shape) if size > 1 and axis - offset not in shared]
    if not constant.sources or spread:
        analysis.cells.pin(result.cells(), why)
        return
    plane = result.plane.reshape(result.plane.shape[offset:]) if offset else result.plane
    # The result may be larger than the constant only along axes where it does not vary.
    plane = torch.broadcast_to(plane, np.broadcast_shapes(plane.shape, constant.shape))
    for axis, size in enumerate(constant.shape):
        if size == 1:
            plane = plane.narrow(axis, 0, 1)
    analysis.hold_elements(constant, plane)


def _constant_zeros(item: Any, code: Tensor, count: int, shape: tuple[int, ...]) -> Mask:
    """For each cell of the result whether the constant is zero wherever it meets it."""
    if not isinstance(item, Constant):
        return np.full(count, not isinstance(item, bool) and item == 0)
    value = item.value
    if value.numel() == 1:
        return np.full(count, bool((value == 0).all()))
    value, cells = broadcast([(value != 0).to(torch.int64), code], len(shape))
    live = np.zeros(count, dtype=bool)
    live[cells.reshape(-1)[value.reshape(-1) != 0].numpy()] = True
    return ~live


def _result_zero(rule: str, zeros: Sequence[Mask]) -> Mask:
    if rule == "all":
        return np.asarray(np.all(zeros, axis=0))
    if rule == "any":
        return np.asarray(np.any(zeros, axis=0))
    if rule in ("first", "shape"):
        return zeros[0]
    if rule == "first or product":
        return zeros[0] & (zeros[1] | zeros[2])
    if rule == "first two":
        return zeros[0] & zeros[1]
    return np.zeros_like(zeros[0])


def _read(rule: str, zeros: Sequence[Mask], position: int) -> Mask:
    """Where the result looks at the operand at all: what multiplies a zero is not looked at."""
    read = np.ones_like(zeros[0])
    if rule == "shape" and position > 0:
        return np.zeros_like(zeros[0])
    if rule == "first or product" and position > 0:
        return ~zeros[3 - position]
    for other, zero in enumerate(zeros):
        if (rule == "any" and other != position) or (rule == "first" and other == 0 and position != 0):
            read &= ~zero
    return read


def _first(value: Any) -> Tensor:
    found: Tensor = value if isinstance(value, Tensor) else value[0]
    return found


def value_type(node: fx.Node) -> torch.dtype:
    """The type of the operand, so that trying an operator on a zero is allowed."""
    source = node.args[0]
    fake = source.meta.get("val") if isinstance(source, fx.Node) else None
    return fake.dtype if isinstance(fake, Tensor) else torch.get_default_dtype()
