"""Graphs from `torch.export` in one level: what ran under a context manager is put in the place of its call.

`with torch.no_grad():` and `with torch.autocast(..., enabled=False):` inside a network's forward become graphs of their
own, called by one node. In evaluation, and under no autocast, they compute what they would compute without.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
# Regions without autocast say of each tensor, before they cast it, what it is.
_ASSERTION = torch.ops.aten._assert_tensor_metadata.default


def flatten_regions(module: fx.GraphModule) -> None:
    """In place, and in every depth. A region under an autocast that is on computes otherwise, and stays a call."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is _ASSERTION:
            graph.erase_node(node)
        found = _region(node)
        if found is None:
            continue
        holder, arguments = found
        inner = getattr(module, str(holder.target))
        flatten_regions(inner)
        with graph.inserting_before(node):
            results = _copy(inner.graph, graph, arguments)
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
        graph.erase_node(node)
        if not holder.users:
            graph.erase_node(holder)


def _region(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """The node that holds the region which this node calls, and what it is called with."""
    if node.target is _GRAD:
        _, holder, *arguments = node.args
    elif node.target is _AUTOCAST and not node.args[2]:
        _, _, _, _, holder, *arguments = node.args
    else:
        return None
    assert isinstance(holder, fx.Node)
    return holder, tuple(arguments)  # type: ignore[arg-type]


def _copy(inner: fx.Graph, graph: fx.Graph, arguments: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    """Copies the nodes of `inner` to where `graph` inserts, and returns what stands for its outputs."""
    known = dict(zip(inner.find_nodes(op="placeholder"), arguments, strict=True))
    for node in inner.nodes:
        if node.op == "output":
            (results,) = fx.map_arg(node.args, lambda other: known[other])
            return tuple(results)
        if node.op != "placeholder":
            known[node] = graph.node_copy(node, lambda other: known[other])
    raise AssertionError("a graph without an output")
