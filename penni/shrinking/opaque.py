"""Parts of a model that the capture does not look into: each becomes one operator that only knows its shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

OPERATOR = "penni_shrink::opaque"

_outputs: dict[int, list[Tensor]] = {}


@torch.library.custom_op(OPERATOR, mutates_args=())
def opaque(inputs: list[Tensor], key: int) -> list[Tensor]:
    """Stands for a hidden module; only ever traced."""
    return [torch.empty_like(tensor) for tensor in _outputs[key]]


@opaque.register_fake
def _(inputs: list[Tensor], key: int) -> list[Tensor]:
    return [inputs[0].new_empty(tensor.shape, dtype=tensor.dtype) for tensor in _outputs[key]]


class Hidden(nn.Module):
    """Stands where a hidden module stood; its calls answer with the shapes that were seen."""

    def __init__(self, calls: list[tuple[int, pytree.TreeSpec]]) -> None:
        super().__init__()
        self.calls = calls
        self.next = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        key, structure = self.calls[self.next % len(self.calls)]
        self.next += 1
        tensors = [value for value in pytree.tree_leaves((inputs, named)) if isinstance(value, Tensor)]
        return pytree.tree_unflatten(opaque(tensors, key), structure)


def hide(model: nn.Module, inputs: tuple[Tensor, ...], names: Sequence[str]) -> None:
    """Replace the modules called `names` in `model`, in place; those never called just vanish from the graph."""
    modules = {name: model.get_submodule(name) for name in names}
    modules = {n: m for n, m in modules.items() if not any(n.startswith(f"{other}.") for other in modules)}
    if not modules:
        return
    calls: dict[str, list[tuple[int, pytree.TreeSpec]]] = {name: [] for name in modules}

    def recorder(name: str) -> Any:
        def record(module: nn.Module, arguments: Any, output: Any) -> None:
            leaves, structure = pytree.tree_flatten(output)
            key = len(_outputs)
            _outputs[key] = [leaf.detach().to("meta") for leaf in leaves]
            calls[name].append((key, structure))

        return record

    handles = [module.register_forward_hook(recorder(name)) for name, module in modules.items()]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    for name, module in modules.items():
        if calls[name]:
            for parent in list(model.modules()):
                for key, child in parent._modules.items():
                    if child is module:
                        parent._modules[key] = Hidden(calls[name])
