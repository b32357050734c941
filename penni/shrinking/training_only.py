"""Parts that only run in training, such as auxiliary heads: what they read has to keep its width."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penni.shrinking.analysis import Analysis, flatten
from penni.shrinking.capture import Graph, Inputs
from penni.shrinking.cells import Value


def keep_what_training_reads(analysis: Analysis, unreached: Sequence[str], inputs: Inputs) -> str | None:
    """Pin the channels that modules which eval mode never reaches read when training; what went wrong, if it did."""
    model = copy.deepcopy(analysis.model).train()
    makers: dict[int, str] = {}
    readers: dict[str, list[str]] = {}
    # What a function made, not a module, is known by its shape only.
    unknown: dict[tuple[int, ...], list[str]] = {}
    alive: list[Any] = []  # tensors that are gone could lend their id to others

    def made(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            for tensor in flatten(output):
                if isinstance(tensor, Tensor):
                    alive.append(tensor)
                    makers[id(tensor)] = name

        return hook

    def reads(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            for tensor in flatten(arguments):
                if isinstance(tensor, Tensor) and id(tensor) in makers:
                    readers.setdefault(makers[id(tensor)], []).append(name)
                elif isinstance(tensor, Tensor):
                    unknown.setdefault(tuple(tensor.shape[1:]), []).append(name)

        return hook

    for name, module in model.named_modules():
        if name and not any(name == other or name.startswith(f"{other}.") for other in unreached):
            module.register_forward_hook(made(name))
    for name in unreached:
        model.get_submodule(name).register_forward_pre_hook(reads(name))
    # BatchNorm wants more than one image.
    batch = tuple(torch.cat([value, value]) if value.dim() > 1 else value for value in inputs)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(*batch)
    except Exception as error:
        return f"the model does not run in training mode here, so what only training uses is not looked at: {error}"
    for maker, names in readers.items():
        values = [
            value
            for node in analysis.graph.nodes
            if node.op == "call_function" and maker in Graph.paths(node)
            for value in flatten(analysis.values[node])
            if isinstance(value, Value)
        ]
        for value in values[-1:]:
            analysis.cells.pin(np.unique(value.cells()), f"{', '.join(names)} reads it in training")
    for value in analysis.values.values():
        for tensor in flatten(value):
            if isinstance(tensor, Value) and tensor.shape[1:] in unknown:
                names = unknown[tensor.shape[1:]]
                analysis.cells.pin(tensor.cells(), f"{', '.join(names)} reads something of its shape in training")
    return None
