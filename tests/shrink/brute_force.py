"""An oracle that knows nothing of graphs: it zeroes and perturbs one channel at a time and looks at the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def dead_channels(model: nn.Module, images: Tensor, names: Sequence[str]) -> dict[str, set[int]]:
    """For each module in `names` the channels (axis 1, or the last of a matrix) of its output that are dead:
    zero whatever the input, or never looked at.
    """
    model = model.double().eval()
    batches = [torch.randn(images.shape, dtype=torch.float64) * scale for scale in (1.0, 3.0)]
    batches.append(torch.randn(images.shape, dtype=torch.float64) + 2.0)
    return {name: _zero(model, batches, name) | _unread(model, batches, name) for name in names}


def removable(dead: Mapping[str, set[int]], ties: Sequence[Sequence[str]]) -> dict[str, set[int]]:
    """Of modules that are tied channel by channel, those channels that are dead in all of them."""
    return {name: set.intersection(*(dead[other] for other in group)) for group in ties for name in group}


def _zero(model: nn.Module, batches: list[Tensor], name: str) -> set[int]:
    seen: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    handle.remove()
    largest = torch.stack([_by_channel(output).abs().amax(dim=1) for output in seen]).amax(dim=0)
    return set(torch.nonzero(largest == 0).flatten().tolist())


def _unread(model: nn.Module, batches: list[Tensor], name: str) -> set[int]:
    module = model.get_submodule(name)
    unread: set[int] = set()
    with torch.no_grad():
        answers = [model(batch) for batch in batches]
        channels = 0

        def count(module: nn.Module, inputs: object, output: Tensor) -> None:
            nonlocal channels
            channels = len(_by_channel(output))

        handle = module.register_forward_hook(count)
        model(batches[0])
        handle.remove()
        for channel in range(channels):

            def disturb(module: nn.Module, inputs: object, output: Tensor, channel: int = channel) -> Tensor:
                output = output.clone()
                part = output.select(1 if output.dim() > 2 else -1, channel)
                part += 1.0 + torch.randn(part.shape, dtype=part.dtype)
                return output

            handle = module.register_forward_hook(disturb)
            moved = any(not torch.equal(model(batch), answer) for batch, answer in zip(batches, answers, strict=True))
            handle.remove()
            if not moved:
                unread.add(channel)
    return unread


def _by_channel(output: Tensor) -> Tensor:
    return output.transpose(0, 1 if output.dim() > 2 else -1).flatten(1)
