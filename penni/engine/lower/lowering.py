"""Walks an exported graph and writes a program, one operator at a time."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from penni.engine.lower.builder import Builder
from penni.engine.lower.call import Call, Handler, Unsupported, Value
from penni.engine.lower.capture import capture
from penni.engine.lower.fuse import simplify
from penni.engine.lower.views import View
from penni.engine.program import Program
from penni.errors import PenniError, UnknownOperatorError


def lower(model: nn.Module, example_input: Tensor) -> Program:
    """The program of `model` for images of the size of `example_input` (N, …), in eval mode."""
    exported = capture(model, example_input)
    program = _Lowering(exported).run()
    return simplify(program).validate()


class _Lowering:
    def __init__(self, exported: ExportedProgram) -> None:
        self.exported = exported
        self.known: dict[fx.Node, Value] = {}
        self.builder = Builder((1,))

    def run(self) -> Program:
        from penni.engine.lower.operators import HANDLERS

        graph = self.exported.graph
        self._inputs()
        last_use = _last_uses(graph)
        for position, node in enumerate(graph.nodes):
            if node.op in ("placeholder", "get_attr"):
                if node.op == "get_attr":
                    self.known[node] = getattr(self.exported.graph_module, str(node.target))
                continue
            if node.op == "output":
                return self.builder.finish(self._output(node))
            self.builder.module = _module_path(node)
            self.known[node] = self._call(node, HANDLERS)
            for argument in node.all_input_nodes:
                if last_use[argument] == position:
                    del self.known[argument]
        raise PenniError("the exported graph has no output")

    def _inputs(self) -> None:
        kinds = {item.arg.name: item for item in self.exported.graph_signature.input_specs}
        images = 0
        for node in self.exported.graph.nodes:
            if node.op != "placeholder":
                continue
            item = kinds[node.name]
            if item.kind == InputKind.USER_INPUT:
                images += 1
                shape = tuple(int(size) for size in node.meta["val"].shape[1:])
                self.builder = Builder(shape)
                self.known[node] = View(0, shape)
            elif item.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                target = str(item.target)
                known = self.exported.state_dict.get(target)
                self.known[node] = known if known is not None else self.exported.constants[target]
            else:
                self.known[node] = self.exported.constants[str(item.target)]
        if images != 1:
            raise PenniError(f"the engine runs networks with one input tensor; this one has {images}")

    def _output(self, node: fx.Node) -> int:
        (results,) = node.args
        assert isinstance(results, (tuple, list))
        specs = self.exported.graph_signature.output_specs
        # By position: what takes the place of a region's call has a name of its own.
        chosen = [
            self.known[item]
            for item, spec in zip(results, specs, strict=True)
            if spec.kind.name == "USER_OUTPUT" and isinstance(item, fx.Node)
        ]
        if len(chosen) != 1 or not isinstance(chosen[0], View):
            raise PenniError(f"the engine runs networks with one output tensor; this one has {len(chosen)}")
        return self.builder.value(chosen[0])

    def _call(self, node: fx.Node, handlers: Mapping[str, Handler]) -> Value:
        if node.target is operator.getitem:
            source, index = node.args
            return self._value(source)[index]
        name, arguments = self._bind(node)
        in_place = name.endswith("_") and not name.endswith("__")
        name = name.rstrip("_") if in_place else name
        if not any(isinstance(value, View) for value in _flat(arguments.values())):
            return self._constant(node, arguments)
        handler = handlers.get(name)
        if handler is None:
            raise _unknown(name, node)
        try:
            result = handler(self.builder, Call(name, arguments, node.meta.get("val")))
        except Unsupported as error:
            raise _unknown(name, node, str(error)) from None
        if in_place and isinstance(result, View):
            result = self._assign(node, name, arguments, result)
        return result

    def _bind(self, node: fx.Node) -> tuple[str, dict[str, Value]]:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            raise _unknown(str(node.target), node)
        arguments: dict[str, Value] = {}
        for position, argument in enumerate(schema.arguments):
            if position < len(node.args):
                arguments[argument.name] = self._value(node.args[position])
            elif argument.name in node.kwargs:
                arguments[argument.name] = self._value(node.kwargs[argument.name])
            else:
                arguments[argument.name] = argument.default_value if argument.has_default_value() else None
        return schema.name.replace("::", "."), arguments

    def _value(self, argument: Any) -> Value:
        if isinstance(argument, fx.Node):
            return self.known[argument]
        if isinstance(argument, (list, tuple)):
            return [self._value(item) for item in argument]
        return argument

    def _constant(self, node: fx.Node, arguments: Mapping[str, Value]) -> Value:
        """An operator on weights alone is carried out here and now."""
        assert callable(node.target)
        # An in-place operator must not reach the model's own tensors.
        args = [item.clone() if isinstance(item, Tensor) else item for item in map(self._value, node.args)]
        with torch.no_grad():
            return node.target(*args, **{key: self._value(value) for key, value in node.kwargs.items()})

    def _assign(self, node: fx.Node, name: str, arguments: Mapping[str, Value], result: View) -> View:
        """Let everything that shares the storage of an in-place operator's target see its result."""
        target = next(iter(arguments.values()))
        if not isinstance(target, View):
            return result
        sharing = [
            key
            for key, value in self.known.items()
            if isinstance(value, View) and value.storage is target.storage and value.base == target.base
        ]
        if result.base == target.base and result.index is target.index:
            return target
        written: dict[int, int] = {}
        for key in sharing:
            view = self.known[key]
            if view.index is target.index and view.shape == target.shape:
                self.known[key] = replace(result, storage=target.storage)
                continue
            if not self.builder.is_permutation(target):
                raise _unknown(name, node, "it changes a part of a tensor in place")
            # Where each element of the base is in the target, and so in the result.
            if not written:
                places = target.positions().ravel().tolist()
                written = dict(zip(places, result.positions().ravel().tolist(), strict=True))
            index = np.vectorize(written.__getitem__, otypes=[np.int32])(view.positions())
            self.known[key] = replace(result, storage=target.storage, shape=view.shape, index=index)
        return replace(result, storage=target.storage)


def _unknown(name: str, node: fx.Node, reason: str = "") -> UnknownOperatorError:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    kind = str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    where = f"in '{path}' (a {kind})" if path else f"in the network itself ({kind or 'its forward'})"
    what = f"cannot run '{name}' as it is used {where}: {reason}" if reason else f"does not know '{name}', used {where}"
    return UnknownOperatorError(
        f"the engine {what}; write that part with the operators that docs/engine.md lists, "
        "or run this network with ONNX Runtime instead"
    )


def _module_path(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _last_uses(graph: fx.Graph) -> dict[fx.Node, int]:
    last: dict[fx.Node, int] = {}
    for position, node in enumerate(graph.nodes):
        for argument in node.all_input_nodes:
            last[argument] = position
    return last


def _flat(values: Any) -> list[Any]:
    result: list[Any] = []
    for value in values:
        result += _flat(value) if isinstance(value, (list, tuple)) else [value]
    return result
