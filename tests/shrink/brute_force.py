"""An oracle that knows nothing of graphs: it zeroes and perturbs one channel at a time and looks at the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn


def dead_channels(
    model: nn.Module, images: Tensor, names: Sequence[str], *, constants: bool = False
) -> dict[str, set[int]]:
    """For each module in `names` the channels (axis 1, or the last of a matrix) of its output that are dead:
    zero whatever the input, or never looked at. With `constants` also those that an empty filter makes, through norms,
    and that are as good as zero, because an activation makes a zero of them.
    """
    model = model.double().eval()
    batches = [torch.randn(images.shape, dtype=torch.float64) * scale for scale in (1.0, 3.0)]
    batches.append(torch.randn(images.shape, dtype=torch.float64) + 2.0)
    dead = {}
    for name in names:
        constant = _constant(model, batches, name)
        silenced = _ignored(model, batches, name, _zeros) if constants else set()
        zero = {channel for channel, value in constant.items() if value == 0}
        # A clamp may hide a change in one direction.
        unread = _ignored(model, batches, name, _higher) & _ignored(model, batches, name, _lower)
        dead[name] = zero | (set(constant) & silenced) | unread
    return dead


def removable(dead: Mapping[str, set[int]], ties: Sequence[Sequence[str]]) -> dict[str, set[int]]:
    """Of modules that are tied channel by channel, those channels that are dead in all of them."""
    return {name: set.intersection(*(dead[other] for other in group)) for group in ties for name in group}


def _constant(model: nn.Module, batches: list[Tensor], name: str) -> dict[int, float]:
    """Channels with one value everywhere, whatever the input: always zero, or what a filter without weights gives."""
    module = model.get_submodule(name)
    seen: list[Tensor] = []
    deaf: list[Tensor] = []  # the outputs once more, with other inputs

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(_by_channel(output))
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            heard = _by_channel(inputs[0]).abs().amax(dim=1) > 0  # what is always zero is not listened to
            shape = [
                -1 if axis == (1 if inputs[0].dim() > 2 else inputs[0].dim() - 1) else 1
                for axis in range(inputs[0].dim())
            ]
            deaf.append(_by_channel(module.forward(inputs[0] + torch.randn_like(inputs[0]) * heard.reshape(shape))))

    handle = module.register_forward_hook(look)
    with torch.no_grad():
        for batch in batches:
            model(batch)
    handle.remove()
    result = {}
    for channel in range(len(seen[0])):
        value = float(seen[0][channel].flatten()[0])
        given = [] if value == 0 else deaf
        if all(bool((output[channel] == value).all()) for output in [*seen, *given]):
            result[channel] = value
    return result


def _zeros(part: Tensor) -> Tensor:
    return torch.zeros_like(part)


def _higher(part: Tensor) -> Tensor:
    return part + 100 * torch.rand_like(part)


def _lower(part: Tensor) -> Tensor:
    return part - 100 * torch.rand_like(part)


def _ignored(model: nn.Module, batches: list[Tensor], name: str, change: Callable[[Tensor], Tensor]) -> set[int]:
    """Channels which can be changed like this without moving any answer."""
    module = model.get_submodule(name)
    widths: list[int] = []
    handle = module.register_forward_hook(lambda module, inputs, output: widths.append(len(_by_channel(output))))
    with torch.no_grad():
        answers = [model(batch) for batch in batches]
    handle.remove()
    ignored = set()
    for channel in range(widths[0]):

        def disturb(module: nn.Module, inputs: object, output: Tensor, channel: int = channel) -> Tensor:
            output = output.clone()
            part = output.select(1 if output.dim() > 2 else -1, channel)
            part.copy_(change(part))
            return output

        if not _moves(model, batches, answers, module, disturb):
            ignored.add(channel)
    return ignored


def _moves(
    model: nn.Module, batches: list[Tensor], answers: list[Tensor], module: nn.Module, change: Callable[..., Tensor]
) -> bool:
    """Whether any answer is another when `change` is made to the output of `module`."""
    handle = module.register_forward_hook(change)
    with torch.no_grad():
        moved = any(not torch.equal(model(batch), answer) for batch, answer in zip(batches, answers, strict=True))
    handle.remove()
    return moved


def _by_channel(output: Tensor) -> Tensor:
    return output.transpose(0, 1 if output.dim() > 2 else -1).flatten(1)
