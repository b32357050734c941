"""The captured channel graph as text: who feeds whom, and which channels go together."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import Tensor, fx, nn

from penni.shrinking.analysis import Analysis, flatten, operator_name
from penni.shrinking.capture import Graph, as_inputs, capture
from penni.shrinking.cells import Ids, Value, varying_axes
from penni.shrinking.rules import RULES


def graph_text(model: nn.Module, example_input: Tensor | Sequence[Tensor]) -> str:
    """One line per operator: its result, what it is made from, its shape, and the sets of tied channels along its axes.

    Two tensors that show the same set, such as `#3`, can only be narrowed together. A set with `!` stays whole.
    """
    inputs = as_inputs(example_input)
    analysis = Analysis(capture(model, inputs), model, RULES).run()
    roots = analysis.cells.roots()
    numbers: dict[tuple[int, ...], int] = {}
    stays = {int(root) for root in roots[analysis.cells.pinned[: analysis.cells.count] > 0]}
    lines = []
    for node in analysis.graph.nodes:
        values = [value for value in flatten(analysis.values.get(node)) if isinstance(value, Value)]
        if node.op == "output" or not values or (node.op == "call_function" and node.target is operator.getitem):
            continue
        kind = "input" if node.op == "placeholder" else operator_name(node)
        sources = ", ".join(_name(source) for source in node.all_input_nodes if _shown(analysis, source))
        tensors = "; ".join(_tensor(value, roots, numbers, stays) for value in values)
        where = Graph.path(node)
        lines.append(f"{_name(node)} = {kind}({sources}) {tensors}" + (f"  in {where}" if where else ""))
    return "\n".join(lines) + "\n"


def _tensor(value: Value, roots: Ids, numbers: dict[tuple[int, ...], int], stays: set[int]) -> str:
    shape = "×".join(str(size) for size in value.shape)
    parts = []
    for axis in varying_axes(value):
        plane = value.plane.movedim(axis, 0)
        rows = roots[plane.reshape(plane.shape[0], -1).numpy()]
        members = tuple(rows[:, 0].tolist()) if rows.shape[1] == 1 else tuple(rows.reshape(-1).tolist())
        number = numbers.setdefault(members, len(numbers) + 1)
        parts.append(f"axis {axis}: #{number}" + ("!" if stays.issuperset(members) else ""))
    return f"[{shape}]" + (f" {', '.join(parts)}" if parts else "")


def _shown(analysis: Analysis, node: fx.Node) -> bool:
    return any(isinstance(value, Value) for value in flatten(analysis.values.get(node)))


def _name(node: fx.Node) -> str:
    """A node by its name; a piece of a split by that split's."""
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return f"{source.name}.{node.args[1]}"
    return node.name
