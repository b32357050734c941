"""An oracle that knows nothing of graphs: it zeroes and perturbs one channel at a time and looks at the answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from penni.basis import BasisConv2d

# So many channels are tried at once, each on a copy of the images of its own.
_AT_ONCE = 64
# In double precision, what moves an answer by less than this share of it is rounding: sums in another order.
_ROUNDING = 1e-12


def dead_channels(
    model: nn.Module, images: Tensor, names: Sequence[str], ties: Sequence[Sequence[str]] = ()
) -> dict[str, set[int]]:
    """For each module in `names` the channels (axis 1, or the last of a matrix) of its output that are dead:
    zero whatever the input, or never looked at. Of modules in `ties` also those that an empty filter makes, through
    norms, and that are as good as zero, taken all together: because an activation makes a zero of their sum.

    The zeros among the weights decide, not what the others happen to be: a kernel whose every weight is negative, say,
    lets nothing through between two clamps. What is dead has to be so with other weights in the same places too.
    """
    generator = torch.Generator().manual_seed(1)
    found = _dead(model, images, names, ties, None)
    for other in (_opposite, lambda weight: torch.randn(weight.shape, generator=generator, dtype=torch.float64)):
        found = _dead(_reweighted(model, other), images, names, ties, found)
    return found


def _opposite(weight: Tensor) -> Tensor:
    return -weight / weight.std()


def _reweighted(model: nn.Module, other: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy whose convolutions have other weights where they are not zero, and larger ones: what norms add stays as it
    is, and must not decide which clamps are open. Clamps from above, behind which nothing more is seen, are lifted.
    """
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU6):
                setattr(module, name, nn.ReLU())
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and module.weight.numel() > 1:
                weight = module.weight
                new = other(weight).to(weight.dtype) * 4 * weight.std()
                weight.copy_(torch.where(weight == 0, 0.0, new))
    return model


def _dead(
    model: nn.Module,
    images: Tensor,
    names: Sequence[str],
    ties: Sequence[Sequence[str]],
    among: Mapping[str, set[int]] | None,
) -> dict[str, set[int]]:
    """Those channels, of the ones in `among`, that are dead with the weights as they are."""
    model = model.double().eval()
    batches = [torch.randn(images.shape, dtype=torch.float64) * scale for scale in (1.0, 3.0)]
    batches.append(torch.randn(images.shape, dtype=torch.float64) + 2.0)
    # A channel that a clamp happens to silence on a few images is not constant; on large numbers it speaks.
    many = [torch.randn(24, *images.shape[1:], dtype=torch.float64) * scale for scale in (1.0, 30.0, 1000.0)]
    with torch.no_grad():
        answers = [model(batch) for batch in batches]
    dead, constant = {}, {}
    for name in names:
        asked = set(range(_width(model, batches[0], name))) if among is None else among[name]
        held = {channel: value for channel, value in _constant(model, many, name).items() if channel in asked}
        zero = {channel for channel, value in held.items() if value == 0}
        unread = asked - zero
        # A clamp may hide a change in one direction.
        for batch, answer, change in zip(batches, answers, (_higher, _lower, _mixed), strict=True):
            unread = _ignored(model, [batch], [answer], {name: unread}, change, unread)
        dead[name], constant[name] = zero | unread, set(held) - zero
    for group in ties:
        shifted = set.intersection(*(dead[name] | constant[name] for name in group))
        shifted -= set.intersection(*(dead[name] for name in group))
        gone = _ignored(model, batches, answers, {name: constant[name] for name in group}, _zeros, shifted)
        for name in group:
            dead[name] |= gone
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
        seen.append(_by_channel(module, output))
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, BasisConv2d)):
            axis = _axis(module, inputs[0])
            heard = _by_channel(module, inputs[0]).abs().amax(dim=1) > 0  # what is always zero is not listened to
            shape = [-1 if other == axis else 1 for other in range(inputs[0].dim())]
            noise = torch.randn_like(inputs[0]) * heard.reshape(shape)
            deaf.append(_by_channel(module, module.forward(inputs[0] + noise)))

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


def _mixed(part: Tensor) -> Tensor:
    return part + 100 * torch.randn_like(part)


def _width(model: nn.Module, batch: Tensor, name: str) -> int:
    widths: list[int] = []
    handle = model.get_submodule(name).register_forward_hook(
        lambda module, inputs, output: widths.append(len(_by_channel(module, output)))
    )
    with torch.no_grad():
        model(batch)
    handle.remove()
    return widths[0]


def _ignored(
    model: nn.Module,
    batches: list[Tensor],
    answers: list[Tensor],
    places: Mapping[str, set[int]],
    change: Callable[[Tensor], Tensor],
    channels: set[int],
) -> set[int]:
    """Those of `channels` that can be changed like this, wherever `places` has them, without moving any answer."""
    left = sorted(channels)
    for batch, answer in zip(batches, answers, strict=True):
        still: list[int] = []
        for start in range(0, len(left), _AT_ONCE):
            chosen = left[start : start + _AT_ONCE]
            moved = _moves(model, batch, answer, places, change, chosen)
            still += [channel for channel, it in zip(chosen, moved, strict=True) if not it]
        left = still
    return set(left)


def _moves(
    model: nn.Module,
    batch: Tensor,
    answer: Tensor,
    places: Mapping[str, set[int]],
    change: Callable[[Tensor], Tensor],
    channels: Sequence[int],
) -> list[bool]:
    """For each channel whether the answer is another when that channel is changed in these modules' outputs."""

    def disturb(module: nn.Module, output: Tensor, here: set[int]) -> Tensor:
        output = output.clone()
        axis = _axis(module, output)
        copies = output.unflatten(0, (len(channels), -1))
        for changed, channel in zip(copies, channels, strict=True):
            if channel in here:
                part = changed.select(axis, channel)
                part.copy_(change(part))
        return output

    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, here=here: disturb(module, output, here)
        )
        for name, here in places.items()
    ]
    with torch.no_grad():
        changed = model(batch.repeat(len(channels), *[1] * (batch.dim() - 1)))
    for handle in handles:
        handle.remove()
    scale = max(float(answer.abs().max()), 1e-300)
    gaps = (changed.unflatten(0, (len(channels), -1)) - answer).abs().flatten(1).amax(dim=1)
    return (gaps > _ROUNDING * scale).tolist()


def _axis(module: nn.Module, tensor: Tensor) -> int:
    """Where channels lie: the second axis, or the last of what a linear layer works on."""
    return tensor.dim() - 1 if isinstance(module, nn.Linear) or tensor.dim() <= 2 else 1


def _by_channel(module: nn.Module, tensor: Tensor) -> Tensor:
    return tensor.transpose(0, _axis(module, tensor)).flatten(1)
