"""The table of operators that shrink knows, by their name in PyTorch's ATen library."""

from __future__ import annotations

from typing import Any

from torch import fx

from penni.shrinking import layers, movement, pointwise, reductions
from penni.shrinking.analysis import Analysis, Rule


def _nothing(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return None


def _build() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    table.update(dict.fromkeys(movement.MOVES, movement.move))
    table.update({"cat": movement.concatenate, "concat": movement.concatenate, "stack": movement.concatenate})
    table.update({"pad": movement.pad, "constant_pad_nd": movement.pad})
    table.update(dict.fromkeys(pointwise.UNARY, pointwise.single))
    table.update(dict.fromkeys(pointwise.JOINS, pointwise.join))
    table["addcmul"] = pointwise.add_product
    table["expand_as"] = pointwise.expand_as
    table.update({"pow": pointwise.power, "where": pointwise.where})
    table.update(dict.fromkeys(reductions.WITHIN_CHANNELS, reductions.within_channels))
    table.update(dict.fromkeys(reductions.REDUCTIONS, reductions.reduce))
    table.update(dict.fromkeys(reductions.SPREADING, reductions.spread))
    table.update(dict.fromkeys(("matmul", "bmm", "baddbmm", "einsum", "mm"), reductions.attention))
    table["scaled_dot_product_attention"] = reductions.attention
    for name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
        table[name] = layers.convolution
    table.update({"linear": layers.linear, "batch_norm": layers.batch_norm, "layer_norm": layers.layer_norm})
    table.update({"group_norm": layers.group_norm, "instance_norm": layers.instance_norm})
    table.update(dict.fromkeys(("_assert_tensor_metadata", "_assert_async", "_assert_scalar"), _nothing))
    # An operator in place is the same operator; the walk sees to it that later readers see the result.
    table.update({f"{name}_": rule for name, rule in list(table.items()) if not name.endswith("_")})
    return table


RULES = _build()
