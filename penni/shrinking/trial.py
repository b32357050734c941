"""Run the narrowed model beside the one given, and find the first layer where they part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from penni.measure.count import evaluating
from penni.shrinking.analysis import Analysis
from penni.shrinking.capture import Graph, Inputs
from penni.shrinking.cells import Value
from penni.shrinking.constraints import Removal


@dataclass(frozen=True)
class Failure:
    """Where the narrowed model goes wrong: the layer, its node if it is known, and what was seen."""

    layer: str
    node: fx.Node | None
    verified: frozenset[fx.Node]
    what: str


class _WrongShapeError(Exception):
    """A layer's output has the wrong shape: no need to go on."""


def leaf_calls(analysis: Analysis) -> dict[str, list[fx.Node]]:
    """For each module without children the node of its output, call by call."""
    last: dict[str, dict[str, fx.Node]] = {}
    for node in analysis.graph.nodes:
        if node.op != "call_function" or not isinstance(analysis.values.get(node), Value):
            continue
        path = Graph.path(node)
        if path and next(analysis.model.get_submodule(path).children(), None) is None:
            last.setdefault(path, {})[Graph.call(node)] = node
    return {path: list(calls.values()) for path, calls in last.items()}


def try_shapes(narrow: nn.Module, analysis: Analysis, removal: Removal, inputs: Inputs) -> Failure | None:
    """Run `narrow` and compare every layer's output shape with what it should be."""
    order = {node: position for position, node in enumerate(analysis.graph.nodes)}
    calls = leaf_calls(analysis)
    counts = dict.fromkeys(calls, 0)
    verified: list[fx.Node] = []
    wrong: list[tuple[str, fx.Node, str]] = []

    def watch(path: str) -> Callable[..., None]:
        def check(module: nn.Module, arguments: Any, output: Any) -> None:
            nodes = calls[path]
            node = nodes[counts[path] % len(nodes)]
            counts[path] += 1
            expected = removal.shape(analysis.values[node])
            if isinstance(output, Tensor) and tuple(output.shape) != expected:
                wrong.append((path, node, f"its output is {tuple(output.shape)} instead of {expected}"))
                raise _WrongShapeError
            verified.append(node)

        return check

    handles = [narrow.get_submodule(path).register_forward_hook(watch(path)) for path in calls]
    try:
        with evaluating(narrow), torch.no_grad():
            narrow(*inputs)
        return None
    except _WrongShapeError:
        path, node, what = wrong[0]
        return Failure(path, node, frozenset(verified), what)
    except Exception as error:  # whatever the model's code raises on tensors of other sizes
        reached = max((order[node] for node in verified), default=-1)
        everything = sorted((node for nodes in calls.values() for node in nodes), key=order.__getitem__)
        following = next((node for node in everything if order[node] > reached and node not in verified), None)
        layer = Graph.path(following) if following is not None else ""
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Failure(layer, following, frozenset(verified), first)
    finally:
        for handle in handles:
            handle.remove()


def first_difference(
    model: nn.Module, narrow: nn.Module, analysis: Analysis, removal: Removal, inputs: Inputs, tolerance: float
) -> Failure | None:
    """The first layer whose output differs where anybody reads it, though all shapes are right."""
    calls = leaf_calls(analysis)
    expected: dict[str, list[Any]] = {path: [] for path in calls}
    _record(model, expected, inputs)
    seen: dict[str, list[Any]] = {path: [] for path in calls}
    _record(narrow, seen, inputs)
    order = {node: position for position, node in enumerate(analysis.graph.nodes)}
    right: list[fx.Node] = []
    for node, path, call in sorted(
        ((node, path, call) for path, nodes in calls.items() for call, node in enumerate(nodes)),
        key=lambda item: order[item[0]],
    ):
        if call >= min(len(expected[path]), len(seen[path])):
            continue
        first, second = expected[path][call], seen[path][call]
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            continue
        value: Value = analysis.values[node]
        looked_at = torch.from_numpy(analysis.read[value.plane.numpy().reshape(-1)]).reshape(value.plane.shape)
        looked_at = looked_at.expand(first.shape).to(first.device)
        for axis in range(first.dim()):
            kept = torch.from_numpy(removal.kept(value, axis).copy()).to(first.device)
            first, looked_at = first[_at(axis, kept)], looked_at[_at(axis, kept)]
        first, second = first.masked_fill(~looked_at, 0), second.masked_fill(~looked_at, 0)
        gap = difference([first], [second])
        if gap > tolerance:
            return Failure(path, node, frozenset(right), f"its output differs by {gap:.1e} of its scale")
        right.append(node)
    return None


def _record(model: nn.Module, results: dict[str, list[Any]], inputs: Inputs) -> None:
    def keep(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            # A later operator in place must not change what is compared.
            results[path].append(output.clone() if isinstance(output, Tensor) else output)

        return hook

    handles = [model.get_submodule(path).register_forward_hook(keep(path)) for path in results]
    try:
        outputs_of(model, inputs)
    finally:
        for handle in handles:
            handle.remove()


def _at(axis: int, kept: Tensor) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, kept)


def suspects(analysis: Analysis, failure: Failure) -> set[fx.Node]:
    """The nodes between the layers that were right and the one that was not."""
    order = {node: position for position, node in enumerate(analysis.graph.nodes)}
    reached = max((order[node] for node in failure.verified), default=-1)
    end = order[failure.node] if failure.node is not None else len(order) - 1
    stack = [node for node, position in order.items() if reached < position <= end]
    if failure.node is not None and end <= reached:
        stack.append(failure.node)
    found: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in found or node in failure.verified:
            continue
        found.add(node)
        stack.extend(node.all_input_nodes)
    return found


def outputs_of(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """All tensors that `model` answers with in eval mode."""
    with evaluating(model), torch.no_grad():
        return [leaf for leaf in pytree.tree_leaves(model(*inputs)) if isinstance(leaf, Tensor)]


def other_inputs(inputs: Inputs) -> Inputs:
    """Random numbers of the same scale, in a batch of another size."""
    batch = 2 if inputs[0].dim() > 1 and inputs[0].shape[0] == 1 else 1
    generator = torch.Generator().manual_seed(0)
    result = []
    for value in inputs:
        if not value.is_floating_point() or value.dim() < 2:
            result.append(value)
            continue
        noise = torch.randn(batch, *value.shape[1:], generator=generator, dtype=torch.float64)
        spread = float(value.double().std()) if value.numel() > 1 else 1.0
        result.append((noise * (spread or 1.0) + float(value.double().mean())).to(value.dtype).to(value.device))
    return tuple(result)


def in_double(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """Copies in double precision, where a true difference stands out from rounding."""
    widened = tuple(value.double() if value.is_floating_point() else value for value in inputs)
    return copy.deepcopy(model).double(), widened


def difference(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference, as a share of the largest output."""
    if len(first) != len(second):
        return float("inf")
    worst = 0.0
    for left, right in zip(first, second, strict=True):
        if left.shape != right.shape:
            return float("inf")
        if not left.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(left, right) else float("inf"))
            continue
        left, right = left.double(), right.double()
        finite = left.isfinite()
        if not torch.equal(left[~finite].nan_to_num(), right[~finite].nan_to_num()) or not bool(
            right[finite].isfinite().all()
        ):
            return float("inf")
        if finite.any():
            scale = float(left[finite].abs().max())
            gap = float((left[finite] - right[finite]).abs().max())
            worst = max(worst, gap / scale if scale > 0 else (0.0 if gap == 0 else float("inf")))
    return worst
