"""The networks of the benchmarks: dense as published, and pruned to the structure of the paper's tables.

Positions of the non-zeros and their values are random (seeded): only the structure decides the time. Each
network comes in three forms that give the same answers: decomposed with zeros (what penni runs), shrunk and
written out as ordinary convolutions, and as a two-stage graph (a depthwise convolution with the basis kernels,
then a 1×1 convolution that holds the coefficients with their zeros).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from penni.basis import BasisConv2d
from penni.models.cifar import VGG16

DATA = Path(__file__).parent / "data"


def structure(name: str) -> list[dict[str, int | str]]:
    """The rows of one of the paper's tables."""
    with (DATA / f"{name}-structure.csv").open(newline="") as file:
        return [{key: int(value) if value.isdigit() else value for key, value in row.items()} for row in csv.DictReader(file)]


def sparse_layer(
    inputs: int, outputs: int, kernel: int, bases: int, nonzero: int, *, stride: int = 1, seed: int = 0, gain: float = 2.0
) -> BasisConv2d:
    """A decomposed layer with `nonzero` coefficients at random positions, scaled to keep the signal's size."""
    generator = torch.Generator().manual_seed(seed)
    layer = BasisConv2d(inputs, outputs, (kernel, kernel), bases, stride=(stride, stride), padding=(kernel // 2,) * 2)
    nonzero = min(nonzero, layer.coefficients.numel())
    with torch.no_grad():
        if kernel > 1:
            layer.basis.copy_(torch.linalg.qr(torch.randn(kernel * kernel, bases, generator=generator))[0].T.reshape_as(layer.basis))
        layer.coefficients.zero_()
        kept = torch.randperm(layer.coefficients.numel(), generator=generator)[:nonzero]
        values = torch.randn(nonzero, generator=generator) * math.sqrt(gain * outputs / max(1, nonzero))
        layer.coefficients.view(-1)[kept] = values
        assert layer.bias is not None
        layer.bias.copy_(0.1 * torch.randn(outputs, generator=generator))
    return layer.eval()


def vgg16_dense() -> nn.Module:
    """VGG16 for CIFAR-10, unpruned."""
    torch.manual_seed(0)
    return VGG16().eval()


def vgg16_pruned() -> nn.Module:
    """VGG16 for CIFAR-10 with the widths, bases and non-zeros of the paper's appendix table."""
    layers: list[nn.Module] = []
    channels = 3
    rows = structure("vgg16-cifar10")
    for index, row in enumerate(rows):
        width, bases, nonzero = int(row["width_after"]), int(row["bases_after"]), int(row["nonzero_after"])
        layers += [sparse_layer(channels, width, 3, bases, nonzero, seed=index), nn.ReLU()]
        block = str(row["layer"]).split("_")[0]
        if index + 1 == len(rows) or not str(rows[index + 1]["layer"]).startswith(block):
            layers.append(nn.MaxPool2d(2))
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10)).eval()


class TwoStage(nn.Module):
    """A decomposed layer as two ordinary convolutions, for engines that know no other."""

    def __init__(self, layer: BasisConv2d) -> None:
        super().__init__()
        bases, inputs = layer.bases, layer.in_channels
        self.first = nn.Conv2d(
            inputs, inputs * bases, layer.kernel_size, layer.stride, layer.padding, groups=inputs, bias=False
        )
        self.second = nn.Conv2d(inputs * bases, layer.out_channels, 1)
        assert layer.bias is not None
        with torch.no_grad():
            self.first.weight.copy_(layer.basis.repeat(inputs, 1, 1)[:, None])
            self.second.weight.copy_(layer.coefficients.reshape(layer.out_channels, -1, 1, 1))
            assert self.second.bias is not None
            self.second.bias.copy_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


def two_stage(model: nn.Module) -> nn.Module:
    """A copy of `model` whose decomposed k×k layers are two convolutions each."""
    import copy

    result = copy.deepcopy(model)
    for parent in list(result.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BasisConv2d):
                setattr(parent, name, TwoStage(child).eval() if not child.is_pointwise else _plain(child))
    return result


def _plain(layer: BasisConv2d) -> nn.Conv2d:
    plain = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding)
    with torch.no_grad():
        plain.weight.copy_(layer.weight)
        assert layer.bias is not None
        assert plain.bias is not None
        plain.bias.copy_(layer.bias)
    return plain.eval()


def decomposed(model: nn.Module) -> Iterator[BasisConv2d]:
    """The decomposed layers of a model."""
    return (module for module in model.modules() if isinstance(module, BasisConv2d))
