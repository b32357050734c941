"""From a model to a graph: `torch.export` of a copy in eval mode, with the module each node runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from penni.basis import reconstruct
from penni.errors import PenniError
from penni.quiet import quietly
from penni.regions import flatten_regions
from penni.shrinking.opaque import hide

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Graph:
    """A captured model. `tensors` holds parameters, buffers and constants by the name of their placeholder."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[str, ...]
    tensors: dict[str, tuple[str, Tensor]]

    @staticmethod
    def path(node: fx.Node) -> str:
        """The innermost module that `node` runs in."""
        stack = node.meta.get("nn_module_stack") or {}
        return str(next(reversed(stack.values()))[0]).partition("@")[0] if stack else ""

    @staticmethod
    def call(node: fx.Node) -> str:
        """The innermost module call that `node` belongs to; a second call of one module has a name of its own."""
        stack = node.meta.get("nn_module_stack") or {}
        return str(next(reversed(stack))) if stack else ""

    @staticmethod
    def paths(node: fx.Node) -> list[str]:
        """All modules that `node` runs in, outermost first."""
        stack = node.meta.get("nn_module_stack") or {}
        return [str(path).partition("@")[0] for path, _ in stack.values()]


class UntraceableError(PenniError):
    """The model runs, but `torch.export` cannot make a graph of it."""


def capture(model: nn.Module, inputs: Inputs, hidden: Sequence[str] = ()) -> Graph:
    """The graph of `model` in eval mode on `inputs`; modules named in `hidden` become one opaque node each."""
    # Decomposed layers are read as the convolutions they equal: their kernels are rebuilt by the layer itself.
    # The graph is the same on every device, and the analysis works on the CPU.
    copy = reconstruct(model).eval().cpu()
    inputs = tuple(value.cpu() for value in inputs)
    copy.requires_grad_(False)
    hide(copy, inputs, hidden)
    try:
        with torch.no_grad(), quietly():
            program = torch.export.export(copy, inputs, strict=False)
            flatten_regions(program.graph_module)
    except Exception as error:  # torch.export raises whatever it meets on the way
        _try(copy, inputs)
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UntraceableError(
            f"torch.export cannot capture this model: {first}; "
            "move what it fails on out of the model's own forward into a module, which is then kept as it is"
        ) from error
    signature = program.graph_signature
    tensors: dict[str, tuple[str, Tensor]] = {}
    for name, target in {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }.items():
        tensor = program.state_dict.get(target, program.constants.get(target))
        assert isinstance(tensor, Tensor)
        tensors[name] = (target, tensor.detach())
    return Graph(tuple(program.graph.nodes), tuple(signature.user_inputs), tensors)


def untraceable_parts(model: nn.Module, inputs: Inputs) -> list[str]:
    """The smallest modules of `model` that `torch.export` cannot capture on what they are given; none if it is the
    model's own forward.
    """
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    copy = reconstruct(model).eval().cpu()

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            calls.setdefault(name, (arguments, named))

        return hook

    handles = [
        module.register_forward_pre_hook(note(name), with_kwargs=True) for name, module in copy.named_modules() if name
    ]
    try:
        with torch.no_grad():
            copy(*(value.cpu() for value in inputs))
    finally:
        for handle in handles:
            handle.remove()

    def search(parent: str) -> list[str]:
        found: list[str] = []
        for child, module in copy.get_submodule(parent).named_children():
            name = f"{parent}.{child}" if parent else child
            if name in calls and not _exports(module, *calls[name]):
                found += search(name) or [name]
            elif name not in calls and isinstance(module, (nn.ModuleList, nn.ModuleDict)):
                found += search(name)
        return found

    return search("")


def unreached_layers(model: nn.Module, graph: Graph, hidden: Sequence[str]) -> list[str]:
    """Layers with weights that the captured graph never uses, by the outermost modules that hold nothing else."""
    used = {graph.tensors[node.name][0] for node in graph.nodes if node.name in graph.tensors and node.users}
    parameters = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    reached = {id(dict(model.named_parameters(remove_duplicate=False)).get(name)) for name in used}
    holders = {name.rpartition(".")[0] for key, name in parameters.items() if key in reached}
    # Decomposed layers are captured under the name of the kernel that they rebuild.
    holders |= {name.rpartition(".")[0] for name in used}

    def idle(name: str, module: nn.Module) -> bool:
        if not any(True for _ in module.parameters()) or any(name == h or name.startswith(f"{h}.") for h in hidden):
            return False
        return not any(holder == name or holder.startswith(f"{name}.") for holder in holders)

    found: list[str] = []
    for name, module in model.named_modules():
        if name and not any(name.startswith(f"{other}.") for other in found) and idle(name, module):
            found.append(name)
    return found


def _exports(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    try:
        with torch.no_grad(), quietly():
            torch.export.export(module, arguments, named, strict=False)
    except Exception:
        return False
    return True


def _try(model: nn.Module, inputs: Inputs) -> None:
    """Whether the model itself refuses this input, which is no matter of capturing it."""
    try:
        with torch.no_grad():
            model(*inputs)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PenniError(f"the model does not run on the example input: {first}") from error


def as_inputs(example_input: Tensor | Sequence[Tensor]) -> Inputs:
    """What is given to the model's forward: one tensor, or several in order."""
    inputs = (example_input,) if isinstance(example_input, Tensor) else tuple(example_input)
    if not inputs or not all(isinstance(value, Tensor) for value in inputs):
        raise PenniError("the example input is a tensor, or a tuple of tensors in the order of the model's arguments")
    return inputs
