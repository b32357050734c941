"""Parameters and multiply-accumulates (MACs): the one definition that every figure of this project uses.

Only convolution and linear weights count; biases and normalisation do not. A weight that is
exactly zero is neither a parameter nor a MAC. A decomposed layer works in two stages: each input
channel is convolved with the basis kernels that some coefficient reads it through (k² MACs per
output position for each such pair), then every non-zero coefficient is one MAC per output position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penni.basis import BasisConv2d
from penni.errors import PenniError

_COUNTED = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.Linear | BasisConv2d


@dataclass(frozen=True)
class LayerCount:
    """One layer's share. `stored` is what a dense file of it holds, `params` what is not zero."""

    name: str
    kind: str
    width: int
    bases: int | None
    positions: int
    kernel_positions: int
    groups: int
    nonzero: int
    total: int
    params: int
    stored: int
    macs: int
    dense_macs: int


@dataclass(frozen=True)
class Counts:
    """What a network costs for one input."""

    params: int
    macs: int
    layers: tuple[LayerCount, ...]

    @property
    def stored(self) -> int:
        """Parameters with the zeros that a dense file would hold."""
        return sum(layer.stored for layer in self.layers)


def count(model: nn.Module, example_input: Tensor) -> Counts:
    """The parameters and MACs of `model` for one item of `example_input` (N, …); the model's mode is kept."""
    uses: dict[str, int] = {}
    order: list[str] = []
    names: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, _COUNTED)
    }

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        name = names[module]
        if name not in uses:
            order.append(name)
        # A transposed convolution's weights meet every input position; all others', every output position.
        plane = inputs[0] if isinstance(module, nn.ConvTranspose2d) else output
        width = plane.shape[-1 if isinstance(module, nn.Linear) else 1]
        items = example_input.shape[0]
        uses[name] = uses.get(name, 0) + (plane.numel() // width // items if width else 0)

    handles = [module.register_forward_hook(note) for module in names]
    try:
        with evaluating(model), torch.no_grad():
            model(example_input)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        size = "×".join(map(str, example_input.shape[1:]))
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PenniError(
            f"the model does not run on an input of {size}; give the size it was made for: {first}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if not order:
        raise PenniError("the model has no convolution or linear layer that this input reaches")
    layers = tuple(_count_layer(name, model.get_submodule(name), uses[name]) for name in order)
    return Counts(sum(layer.params for layer in layers), sum(layer.macs for layer in layers), layers)


def two_stage_macs(pairs: int, nonzero: int, kernel_positions: int, positions: int) -> int:
    """MACs of a decomposed layer: `pairs` (input channel, basis) planes convolved, then the non-zero coefficients.

    A 1×1 kernel has no first stage: its basis is the number one.
    """
    first = pairs * kernel_positions if kernel_positions > 1 else 0
    return (first + nonzero) * positions


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put `model` into eval mode and every module of it back into its own mode after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _count_layer(name: str, layer: nn.Module, positions: int) -> LayerCount:
    kind = type(layer).__name__
    if isinstance(layer, BasisConv2d):
        used = layer.coefficients.detach() != 0
        nonzero, total = int(used.sum()), used.numel()
        kernel = layer.kernel_size[0] * layer.kernel_size[1]
        # Groups read different input channels, so each group has its own (channel, basis) pairs.
        by_group = used.view(layer.groups, -1, *used.shape[1:]).any(dim=1)
        pairs = int(by_group.sum())
        bases = int(used.any(dim=0).any(dim=0).sum())
        basis_params = bases * kernel if kernel > 1 else 0
        return LayerCount(
            name=name,
            kind=kind,
            width=layer.out_channels,
            bases=bases if kernel > 1 else None,
            positions=positions,
            kernel_positions=kernel,
            groups=layer.groups,
            nonzero=nonzero,
            total=total,
            params=nonzero + basis_params,
            stored=total + (layer.basis.numel() if kernel > 1 else 0),
            macs=two_stage_macs(pairs, nonzero, kernel, positions),
            dense_macs=layer.out_channels * (layer.in_channels // layer.groups) * kernel * positions,
        )
    weight = layer.weight
    assert isinstance(weight, Tensor)
    weight = weight.detach()
    nonzero = int(torch.count_nonzero(weight))
    width = weight.shape[0]
    if isinstance(layer, nn.ConvTranspose2d):
        width = layer.out_channels
    return LayerCount(
        name=name,
        kind=kind,
        width=width,
        bases=None,
        positions=positions,
        kernel_positions=weight[0, 0].numel() if weight.dim() > 2 else 1,
        groups=getattr(layer, "groups", 1),
        nonzero=nonzero,
        total=weight.numel(),
        params=nonzero,
        stored=weight.numel(),
        macs=nonzero * positions,
        dense_macs=weight.numel() * positions,
    )
