"""Random dead channels, to try shrink out on networks that nobody pruned: for the zoo tests and the benchmark."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from penni.basis import BasisConv2d


@torch.no_grad()
def deaden(
    model: nn.Module,
    seed: int,
    *,
    filters: float = 0.3,
    inputs: float = 0.15,
    bases: float = 0.2,
    survivors: int = 0,
) -> nn.Module:
    """Zero a share of the filters, input channels and basis kernels of `model` at random, in place; and return it.

    Layers of one width share most of their dead channels, so that channels which are tied by a shortcut
    die together now and then. Normalisation gets statistics, scales and shifts of its own, and those of dead
    channels are zero. So do layer scales, which start so small that nothing behind them would count.
    With `filters=0.97` whole branches die, and often the network with them; `survivors` channels of every width, the
    same in all layers, are spared.
    """
    generator = torch.Generator().manual_seed(seed)
    common: dict[int, Tensor] = {}
    spared: dict[int, Tensor] = {}

    def alive(width: int) -> Tensor:
        if survivors and width not in spared:
            spared[width] = torch.randperm(width, generator=generator)[:survivors]
        return spared.get(width, torch.zeros(0, dtype=torch.int64))

    def dead(width: int, share: float) -> Tensor:
        if width not in common:
            common[width] = torch.rand(width, generator=generator) < 0.8 * share
        return (common[width] | (torch.rand(width, generator=generator) < 0.2 * share)).index_fill(
            0, alive(width), False
        )

    def unread(width: int) -> Tensor:
        # A depthwise filter has no other input.
        chosen = torch.rand(width, generator=generator) < (inputs if width > 1 else 0)
        return chosen.index_fill(0, alive(width), False)

    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1:]
    for module in model.modules():
        if _normalises(module):
            _normalise(module, dead, filters, generator)
        elif isinstance(module, BasisConv2d):
            _zero_rows(module.coefficients, 0, dead(module.out_channels, filters))
            _zero_rows(module.coefficients, 1, unread(module.coefficients.shape[1]))
            gone = torch.rand(module.bases, generator=generator) < bases
            _zero_rows(module.coefficients, 2, gone.index_fill(0, alive(module.bases), False))
            if module.bias is not None:
                module.bias.masked_fill_(dead(module.out_channels, filters), 0)
        elif module in last:
            continue
        elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)):
            rows = dead(module.weight.shape[0], filters)
            _zero_rows(module.weight, 0, rows)
            _zero_rows(module.weight, 1, unread(module.weight.shape[1]))
            if module.bias is not None:
                module.bias.masked_fill_(rows, 0)
        else:
            for parameter in module.parameters(recurse=False):
                if parameter.numel() > 1 and bool((parameter == parameter.reshape(-1)[0]).all()):
                    parameter.uniform_(0.5, 1.5, generator=generator)
    return model


def _normalises(module: nn.Module) -> bool:
    """PyTorch's own normalisation, and what looks like it, such as BatchNorm that was frozen."""
    known = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
    return isinstance(module, known) or isinstance(getattr(module, "running_mean", None), Tensor)


def _normalise(module: nn.Module, dead: object, filters: float, generator: Generator) -> None:
    assert callable(dead)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if isinstance(getattr(module, "running_mean", None), Tensor):
        module.running_mean.normal_(0, 0.1, generator=generator)  # type: ignore[operator]
        module.running_var.uniform_(0.5, 2.0, generator=generator)  # type: ignore[operator]
    if isinstance(weight, Tensor) and weight.dim() == 1:
        rows = dead(len(weight), filters)
        weight.uniform_(0.5, 1.5, generator=generator).masked_fill_(rows, 0)
        if isinstance(bias, Tensor):
            bias.normal_(0, 0.5, generator=generator).masked_fill_(rows, 0)


def _zero_rows(weight: Tensor, axis: int, rows: Tensor) -> None:
    shape = [1] * weight.dim()
    shape[axis] = -1
    weight.masked_fill_(rows.reshape(shape), 0)
