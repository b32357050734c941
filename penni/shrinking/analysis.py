"""What is known of a captured network: which cells are zero, which are read, what ties them, who holds them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from penni.errors import UnknownOperatorError
from penni.shrinking.capture import Graph
from penni.shrinking.cells import Cells, Constant, Ids, Mask, Site, Source, Value, along, compact, varying_axes
from penni.shrinking.constraints import Constraint, Filled

Rule = Callable[["Analysis", fx.Node, tuple[Any, ...], dict[str, Any]], Any]

# A constant that joins the network's tensors gets a cell for each of its elements up to this size.
_LARGEST_CONSTANT = 1 << 20


@dataclass(frozen=True)
class Edges:
    """`inputs[k]` is read where `outputs[k]` is."""

    outputs: Ids
    inputs: Ids


@dataclass(frozen=True)
class Mixture:
    """Outputs (G, O) that read inputs (G, I) through the non-zeros of `weights` (G, O, I)."""

    outputs: Ids
    inputs: Ids
    weights: Mask


@dataclass(frozen=True)
class AllOrNothing:
    """All of `inputs` are read when any of `outputs` is."""

    outputs: Ids
    inputs: Ids


@dataclass(frozen=True)
class Axis:
    """Along `axis` of parameter `name`, position k goes with `cells[k]`."""

    name: str
    axis: int
    cells: Ids


@dataclass(frozen=True)
class Elements:
    """Each element of parameter `name` goes with the cell in `plane`; −1: with none."""

    name: str
    plane: Tensor


@dataclass(frozen=True)
class Grouped:
    """The kernels of a grouped convolution: `inputs` (G, I) and `outputs` (G, O)."""

    name: str
    inputs: Ids
    outputs: Ids
    transposed: bool


@dataclass(frozen=True)
class Norm:
    """A normalisation module, which may keep its number of channels only as an attribute."""

    path: str
    cells: Ids
    groups: int


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer as the analysis met it: one entry per call."""

    path: str
    inputs: Ids
    outputs: Ids


@dataclass(frozen=True)
class Glue:
    """An operator with sizes in its arguments, which its module may have taken from shapes, attributes or thin air."""

    node: fx.Node
    kind: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass
class Analysis:
    """One walk over the graph in each direction."""

    graph: Graph
    model: nn.Module
    rules: dict[str, Rule]
    cells: Cells = field(default_factory=Cells)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    reads: list[Edges | Mixture | AllOrNothing] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    elements: list[Elements] = field(default_factory=list)
    grouped: list[Grouped] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    glue: list[Glue] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    read: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def run(self) -> Analysis:
        """Forward: values, zeros, ties. Backward: what is read."""
        for node in self.graph.nodes:
            self.values[node] = self._visit(node)
        self._tie_shared_parameters()
        self._trace_reads()
        return self

    # What rules use

    def site(self, node: fx.Node) -> Site:
        return Site(node.name, operator_name(node), Graph.path(node))

    def fresh(
        self, node: fx.Node, number: int, zero: Mask | bool = False, constant: NDArray[np.float64] | None = None
    ) -> Ids:
        return self.cells.new(self.site(node), number, zero, constant)

    def by_axis(self, node: fx.Node, value: Value, axis: int) -> Ids:
        """One cell for each position along `axis`, whatever the tensor varies along otherwise."""
        size = value.shape[axis]
        others = [other for other in varying_axes(value) if other != axis]
        if not others:
            return value.plane.reshape(-1).expand(size).numpy().copy()
        rows = value.plane.movedim(axis, 0)
        rows = rows.reshape(rows.shape[0], -1).expand(size, -1)
        positions = torch.arange(size).unsqueeze(1).expand_as(rows)
        pairs = torch.unique(torch.stack([positions.reshape(-1), rows.reshape(-1)]), dim=1).numpy()
        zero = np.ones(size, dtype=bool)
        np.logical_and.at(zero, pairs[0], self.cells.zero[pairs[1]])
        merged = self.fresh(node, size, zero)
        self.cells.tie(merged[pairs[0]], pairs[1])
        self.reads.append(Edges(merged[pairs[0]], pairs[1]))
        return merged

    def as_value(self, node: fx.Node, operand: Value | Constant) -> Value:
        """A constant with cells of its own, where it joins tensors that depend on the input."""
        if isinstance(operand, Value):
            return operand
        zero = (operand.value == 0).reshape(-1).numpy()
        if not operand.sources or operand.value.numel() > _LARGEST_CONSTANT:
            cell = self.fresh(node, 1, bool(zero.all()))
            self.cells.pin(cell, f"{self.site(node)} joins it with a constant that is not a parameter")
            return Value(operand.shape, torch.from_numpy(cell).reshape((1,) * operand.value.dim()))
        ids = self.fresh(node, operand.value.numel(), zero)
        plane = torch.from_numpy(ids).reshape(operand.shape)
        self.hold_elements(operand, plane)
        return Value(operand.shape, compact(plane))

    def hold_axis(self, constant: Constant | None, axis: int, ids: Ids) -> None:
        """Positions along `axis` of this parameter go with `ids`; of a computed constant, the cells stay."""
        if constant is None:
            return
        if constant.parameter is not None:
            self.axes.append(Axis(constant.parameter, axis, ids))
        elif axis == 0 and constant.value.dim() == 1:
            self.hold_elements(constant, torch.from_numpy(ids))
        else:
            self.cells.pin(ids, "it meets a constant that is computed from parameters")

    def hold_elements(self, constant: Constant, plane: Tensor) -> None:
        """Each element of the parameters behind `constant` goes with the cell at its place in `plane` (−1: none)."""
        if not constant.sources:
            self.cells.pin(np.unique(plane[plane >= 0].numpy()), "it meets a constant that is computed from parameters")
            return
        if bool((plane >= 0).all()) and sum(size > 1 for size in compact(plane).shape) > 1:
            whole = Value(tuple(plane.shape), compact(plane))
            name = constant.sources[0].name
            self.constraints.append(Filled(whole, Site(name, "parameter", name)))
        for source in constant.sources:
            size = self.parameter(source.name).shape
            where, cells = source.elements().reshape(-1), plane.expand(constant.shape).reshape(-1)
            holder = torch.full((size.numel(),), -1, dtype=torch.int64)
            holder[where] = cells
            shared = holder[where] != cells
            if size.numel() == 1:
                continue
            if bool(shared.any()):
                both = torch.cat([cells[shared], holder[where][shared]])
                self.cells.pin(np.unique(both[both >= 0].numpy()), f"several channels use one number of {source.name}")
            self.elements.append(Elements(source.name, holder.reshape(size)))

    def hold_norm(self, node: fx.Node, ids: Ids, groups: int = 1) -> None:
        self.norms.append(Norm(Graph.path(node), ids, groups))

    def parameter(self, name: str) -> Tensor:
        return next(tensor for target, tensor in self.graph.tensors.values() if target == name)

    def module(self, node: fx.Node) -> nn.Module:
        return self.model.get_submodule(Graph.path(node))

    def barrier(self, node: fx.Node, operands: Sequence[Any], why: str) -> Any:
        """Everything that goes in is read and stays; what comes out is one cell that stays."""
        outputs = node.meta["val"]
        single = isinstance(outputs, Tensor)
        cell = self.fresh(node, 1)
        self.cells.pin(cell, why)
        for value in operands:
            if isinstance(value, Value):
                ids = value.cells()
                self.cells.pin(ids, why)
                self.reads.append(AllOrNothing(cell, ids))
        plane = torch.from_numpy(cell)
        results = [
            Value(tuple(item.shape), plane.reshape((1,) * item.dim())) if isinstance(item, Tensor) else item
            for item in ([outputs] if single else outputs)
        ]
        return results[0] if single else results

    # The walk

    def _visit(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._placeholder(node)
        if node.op == "output":
            self._output(node)
            return None
        if node.op != "call_function":
            user = next(iter(node.users), node)
            raise UnknownOperatorError(
                f"shrink does not know what '{node.name}' does, a graph within the graph that {user.target} calls in "
                f"{_kept_out(user)}"
            )
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]  # type: ignore[index]
        arguments = fx.map_arg(node.args, lambda other: self.values[other])
        named = fx.map_arg(node.kwargs, lambda other: self.values[other])
        tensors = list(flatten((arguments, named)))
        name = operator_name(node)
        if name == "opaque":
            return self.barrier(node, tensors, f"{Graph.path(node)} is kept as it is")
        if not any(isinstance(value, Value) for value in tensors):
            return constant_of(node, arguments, named)
        rule = self.rules.get(name)
        if rule is None:
            raise UnknownOperatorError(f"shrink does not know the operator {node.target} in {_kept_out(node)}")
        result = rule(self, node, tuple(arguments), dict(named))
        if name.endswith("_") and isinstance(node.args[0], fx.Node):
            self._write_through(node.args[0], result)
        for value in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(value, Value):
                self.constraints.append(Filled(value, self.site(node)))
        return result

    def _write_through(self, target: fx.Node, result: Any) -> None:
        """An operator in place changes what later readers of its operand see."""
        if target.op == "call_function" and operator_name(target) in _VIEWS and len(target.users) > 0:
            base = target.args[0]
            if isinstance(base, fx.Node) and any(user is not target for user in base.users):
                raise UnknownOperatorError(
                    f"shrink does not know what becomes of '{target.name}', changed in place through a view, in "
                    f"{_kept_out(target)}"
                )
        self.values[target] = result

    def _placeholder(self, node: fx.Node) -> Any:
        if node.name in self.graph.tensors:
            name, tensor = self.graph.tensors[node.name]
            return Constant(tensor, (Source(name, tensor.numel()),))
        fake = node.meta.get("val")
        if not isinstance(fake, Tensor):
            return fake
        # The channels of an image are its second axis; the inputs of a linear network its last.
        axis = 1 if fake.dim() > 1 else 0
        ids = self.fresh(node, fake.shape[axis])
        self.cells.pin(ids, "it is the network's input")
        return Value(tuple(fake.shape), along(axis, fake.dim(), ids))

    def _output(self, node: fx.Node) -> None:
        for value in flatten(fx.map_arg(node.args, lambda other: self.values[other])):
            if isinstance(value, Value):
                self.outputs.append(value)
                self.cells.pin(value.cells(), "it is the network's output")

    def _tie_shared_parameters(self) -> None:
        """A parameter that is used more than once is narrowed once, for all its uses."""
        axes: dict[tuple[str, int], Ids] = {}
        for axis in self.axes:
            self.cells.tie(axes.setdefault((axis.name, axis.axis), axis.cells), axis.cells)
        groups: dict[str, Grouped] = {}
        for grouped in self.grouped:
            first = groups.setdefault(grouped.name, grouped)
            if first.inputs.shape != grouped.inputs.shape:
                raise UnknownOperatorError(f"{grouped.name} is used by convolutions of different groups")
            self.cells.tie(first.inputs.reshape(-1), grouped.inputs.reshape(-1))
            self.cells.tie(first.outputs.reshape(-1), grouped.outputs.reshape(-1))
        planes: dict[str, Ids] = {}
        for elements in self.elements:
            mine = elements.plane.reshape(-1).numpy()
            first_use = planes.setdefault(elements.name, mine)
            both = (first_use >= 0) & (mine >= 0)
            self.cells.tie(first_use[both], mine[both])
            for ids in (first_use[~both], mine[~both]):
                if first_use is not mine:
                    self.cells.pin(ids[ids >= 0], f"{elements.name} is used in two ways")
        both_kinds = set(planes) & ({name for name, _ in axes} | set(groups))
        for name in both_kinds:
            why = f"{name} is used in two ways"
            self.cells.pin(planes[name][planes[name] >= 0], why)
            for (other, _), ids in axes.items():
                if other == name:
                    self.cells.pin(ids, why)

    def _trace_reads(self) -> None:
        read = np.zeros(self.cells.count, dtype=bool)
        zero = self.cells.zero
        for value in self.outputs:
            read[value.cells()] = True
        for record in reversed(self.reads):
            if isinstance(record, Edges):
                # What a zero is made from does not matter: they go together, or the zero stays one.
                read[record.inputs[read[record.outputs] & ~zero[record.outputs]]] = True
            elif isinstance(record, AllOrNothing):
                if (read[record.outputs] & ~zero[record.outputs]).any():
                    read[record.inputs] = True
            else:
                live = read[record.outputs] & ~zero[record.outputs]
                touched = (record.weights & live[:, :, None]).any(axis=1)
                read[record.inputs[touched]] = True
        self.read = read


_VIEWS = {"view", "slice", "select", "transpose", "permute", "chunk", "split", "split_with_sizes", "unbind", "narrow"}


def operator_name(node: fx.Node) -> str:
    """`conv2d` for `aten.conv2d.default`."""
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).partition("::")[2] if schema is not None else str(node.target)


def flatten(values: Any) -> Any:
    """The leaves of nested tuples, lists and dictionaries."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (list, tuple)):
        for item in values:
            yield from flatten(item)
    else:
        yield values


def constant_of(node: fx.Node, arguments: Any, named: Any) -> Any:
    """The value of a node that no input reaches, and which parameter's elements it shows if that is plain."""
    from penni.shrinking.movement import MOVES
    from penni.shrinking.pointwise import JOINS, UNARY

    plain = [_plain(item) for item in arguments]
    result = node.target(*plain, **{key: _plain(item) for key, item in named.items()})  # type: ignore[operator]
    name = operator_name(node)
    if not isinstance(result, Tensor):
        return (
            [Constant(item) if isinstance(item, Tensor) else item for item in result]
            if isinstance(result, (list, tuple))
            else result
        )
    operands = [item for item in flatten((arguments, named)) if isinstance(item, Constant)]
    if name in MOVES:
        if len(operands) == 1 and arguments[0] is operands[0]:
            return Constant(
                result, tuple(_moved(node, source, operands[0], plain[1:]) for source in operands[0].sources)
            )
    elif name in UNARY or name in JOINS:
        return Constant(result, _sources(operands, result.shape))
    return Constant(result)


def _moved(node: fx.Node, source: Source, operand: Constant, others: Sequence[Any]) -> Source:
    index = source.elements().reshape(operand.shape)
    return Source(source.name, source.size, node.target(index, *others, **node.kwargs))  # type: ignore[operator]


def _sources(operands: Sequence[Constant], shape: torch.Size) -> tuple[Source, ...]:
    """What each element of a constant is made from that an operator makes element by element; empty if unknown."""
    found: list[Source] = []
    for operand in operands:
        if operand.value.numel() > 1 and not operand.sources:
            return ()
        for source in operand.sources:
            # A single number is for all channels, and never cut.
            if source.size > 1:
                index = source.elements().reshape(operand.shape).broadcast_to(shape)
                found.append(Source(source.name, source.size, index))
    return tuple(found)


def _kept_out(node: fx.Node) -> str:
    """Where a node is, and how its surroundings are left out of shrinking."""
    where = Graph.path(node)
    if where:
        return f"module '{where}'; keep that part as it is with exclude=['{where}']"
    return (
        "the model's own forward; move that part into a module of its own, which exclude=[its name] then keeps as it is"
    )


def _plain(item: Any) -> Any:
    if isinstance(item, Constant):
        return item.value
    if isinstance(item, (list, tuple)):
        return type(item)(_plain(entry) for entry in item)
    return item
