"""From a model to a graph: `torch.export` of a copy in eval mode, with the module each node runs in."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from penni.basis import reconstruct
from penni.errors import PenniError
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
        """The innermost module that `node` runs in, without the count of its call."""
        return Graph.call(node).partition("@")[0]

    @staticmethod
    def call(node: fx.Node) -> str:
        """The innermost module call that `node` belongs to; a second call of a module ends in `@1`."""
        stack = node.meta.get("nn_module_stack") or {}
        return str(next(reversed(stack.values()))[0]) if stack else ""

    @staticmethod
    def paths(node: fx.Node) -> list[str]:
        """All modules that `node` runs in, outermost first."""
        stack = node.meta.get("nn_module_stack") or {}
        return [str(path).partition("@")[0] for path, _ in stack.values()]


def capture(model: nn.Module, inputs: Inputs, hidden: Sequence[str] = ()) -> Graph:
    """The graph of `model` in eval mode on `inputs`; modules named in `hidden` become one opaque node each."""
    # Decomposed layers are read as the convolutions they equal: their kernels are rebuilt by the layer itself.
    # The graph is the same on every device, and the analysis works on the CPU.
    copy = reconstruct(model).eval().cpu()
    inputs = tuple(value.cpu() for value in inputs)
    copy.requires_grad_(False)
    hide(copy, inputs, hidden)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(copy, inputs, strict=False)
    except Exception as error:  # torch.export raises whatever it meets on the way
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PenniError(
            f"torch.export cannot capture this model: {first}; "
            "name the part that it fails on in `exclude` to keep that part as it is"
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


def as_inputs(example_input: Tensor | Sequence[Tensor]) -> Inputs:
    """What is given to the model's forward: one tensor, or several in order."""
    inputs = (example_input,) if isinstance(example_input, Tensor) else tuple(example_input)
    if not inputs or not all(isinstance(value, Tensor) for value in inputs):
        raise PenniError("the example input is a tensor, or a tuple of tensors in the order of the model's arguments")
    return inputs
