"""The networks of the benchmarks: dense as published, and pruned to the structure of the paper's tables.

Positions of the non-zeros and their values are random (seeded): only the structure decides the time. ResNet56 is a
real one: the run that is recorded in results/.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import torch
from torch import nn

from penni.basis import BasisConv2d
from penni.models.cifar import VGG16

DATA = Path(__file__).parent / "data"


def structure(name: str) -> list[dict[str, int | str]]:
    """The rows of one of the paper's tables."""
    with (DATA / f"{name}-structure.csv").open(newline="") as file:
        return [
            {key: int(value) if value.isdigit() else value for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def sparse_layer(
    inputs: int,
    outputs: int,
    kernel: int,
    bases: int,
    nonzero: int,
    *,
    stride: int = 1,
    seed: int = 0,
    gain: float = 2.0,
) -> BasisConv2d:
    """A decomposed layer with `nonzero` coefficients at random positions, scaled to keep the signal's size."""
    generator = torch.Generator().manual_seed(seed)
    layer = BasisConv2d(inputs, outputs, (kernel, kernel), bases, stride=(stride, stride), padding=(kernel // 2,) * 2)
    nonzero = min(nonzero, layer.coefficients.numel())
    with torch.no_grad():
        if kernel > 1:
            layer.basis.copy_(
                torch.linalg.qr(torch.randn(kernel * kernel, bases, generator=generator))[0].T.reshape_as(layer.basis)
            )
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


def resnet18_dense() -> nn.Module:
    """ResNet18 with a 3×3 stem for CIFAR-10, unpruned."""
    from penni.models import build

    torch.manual_seed(0)
    return build("resnet18").eval()


def resnet56_dense() -> nn.Module:
    """ResNet56 for CIFAR-10, unpruned."""
    from penni.models import build

    torch.manual_seed(0)
    return build("resnet56").eval()


def resnet56_pruned() -> nn.Module:
    """The real compressed ResNet56 of results/."""
    import penni

    return penni.load(DATA.parents[2] / "results" / "resnet56-cifar10-short" / "checkpoint").eval()


def resnet50_dense() -> nn.Module:
    """ResNet50 for ImageNet, unpruned, random weights."""
    import torchvision

    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet50(weights=None).eval()
    return model


def resnet50_pruned() -> nn.Module:
    """ResNet50 for ImageNet with the widths, bases and non-zeros of the paper's R1."""
    model = resnet50_dense()
    rows = {str(row["layer"]): row for row in structure("resnet50-r1")}
    inputs = _Widths(rows)
    model.conv1 = _from_row(rows["conv1"], 3, stride=2, seed=1)
    model.bn1 = nn.Identity()
    seed = 2
    for stage in range(1, 5):
        for number, block in enumerate(getattr(model, f"layer{stage}"), start=1):
            name = f"L{stage}B{number}"
            entering = inputs.entering(stage, number)
            stride = 2 if stage > 1 and number == 1 else 1
            block.conv1 = _from_row(rows[f"{name}.conv1"], entering, seed=seed)
            width = int(rows[f"{name}.conv1"]["width"])
            block.conv2 = _from_row(rows[f"{name}.conv2"], width, stride=stride, seed=seed + 1)
            width = int(rows[f"{name}.conv2"]["width"])
            leaving = inputs.leaving(stage)
            block.conv3 = _from_row(rows[f"{name}.conv3"], width, outputs=leaving, seed=seed + 2, gain=0.2)
            block.bn1, block.bn2, block.bn3 = nn.Identity(), nn.Identity(), nn.Identity()
            if block.downsample is not None:
                shortcut = _from_row(
                    rows[f"{name}.downsample"], entering, outputs=leaving, stride=stride, seed=seed + 3, gain=1.0
                )
                block.downsample = nn.Sequential(shortcut)
            seed += 4
    model.fc = nn.Linear(inputs.leaving(4), 1000)
    return model.eval()


class _Widths:
    """Channels between the blocks. The table gives one block 2024 channels for 1024: a residual add needs one width."""

    def __init__(self, rows: dict[str, dict[str, int | str]]) -> None:
        self._stem = int(rows["conv1"]["width"])

    def entering(self, stage: int, number: int) -> int:
        if number > 1:
            return self.leaving(stage)
        return self._stem if stage == 1 else self.leaving(stage - 1)

    def leaving(self, stage: int) -> int:
        return 128 << stage


def _from_row(
    row: dict[str, int | str], inputs: int, *, outputs: int = 0, stride: int = 1, seed: int = 0, gain: float = 2.0
) -> BasisConv2d:
    kernel, bases = int(row["kernel"]), row["bases"]
    return sparse_layer(
        inputs,
        outputs or int(row["width"]),
        kernel,
        int(bases) if bases else 1,
        int(row["nonzero"]),
        stride=stride,
        seed=seed,
        gain=gain,
    )


def resnet18_pruned() -> nn.Module:
    """ResNet18 for CIFAR-10 at the paper's sparsity: 97 % of the parameters and 92 % of the MACs gone.

    The paper gives no table for it. Here every block keeps 70 % of its inner channels, five bases, and of its
    coefficients a share that falls from stage to stage, as in the paper's VGG16, and that meets both figures.
    """
    from penni.models import build

    torch.manual_seed(0)
    model = build("resnet18").eval()
    seed = 0
    for stage, density in enumerate((0.22, 0.13, 0.05, 0.025), start=1):
        for block in getattr(model, f"layer{stage}"):
            before, outer, stride = block.conv1.in_channels, block.conv2.out_channels, block.conv1.stride[0]
            inner = round(block.conv1.out_channels * 0.7)
            block.conv1 = sparse_layer(
                before, inner, 3, 5, round(density * before * inner * 5), stride=stride, seed=seed
            )
            block.conv2 = sparse_layer(inner, outer, 3, 5, round(density * inner * outer * 5), seed=seed + 1)
            block.bn1, block.bn2 = nn.Identity(), nn.Identity()
            if any(isinstance(module, nn.Conv2d) for module in block.shortcut.modules()):
                kept = round(0.3 * before * outer)
                block.shortcut = sparse_layer(before, outer, 1, 1, kept, stride=stride, seed=seed + 2, gain=1.0)
            seed += 3
    return model
