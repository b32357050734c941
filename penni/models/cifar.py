"""The CIFAR networks of the paper: VGG16, ResNet18 with a 3×3 stem, ResNet20 and ResNet56."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

_VGG16_WIDTHS = (
    64,
    64,
    "pool",
    128,
    128,
    "pool",
    256,
    256,
    256,
    "pool",
    512,
    512,
    512,
    "pool",
    512,
    512,
    512,
    "pool",
)


class VGG16(nn.Module):
    """Thirteen 3×3 convolutions with batch normalisation, five poolings, one linear layer."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in _VGG16_WIDTHS:
            if isinstance(width, str):
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [
                    nn.Conv2d(channels, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                ]
                channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        logits: Tensor = self.classifier(F.adaptive_avg_pool2d(features, 1).flatten(1))
        return logits


class ChannelPadShortcut(nn.Module):
    """The parameter-free "option A" shortcut: take every second pixel, and zero channels on both sides."""

    def __init__(self, stride: int, before: int, after: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = before
        self.after = after

    def forward(self, inputs: Tensor) -> Tensor:
        strided = inputs[:, :, :: self.stride, :: self.stride]
        return F.pad(strided, (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        return f"stride={self.stride}, before={self.before}, after={self.after}"


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(inputs)))
        return F.relu(self.bn2(self.conv2(hidden)) + self.shortcut(inputs))


class CifarResNet(nn.Module):
    """A residual network for 32×32 images: a 3×3 stem, then stages of basic blocks that halve the plane."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        widths: tuple[int, ...],
        *,
        projection: bool,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        super().__init__()
        width = widths[0]
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = len(blocks)
        for index, (count, outputs) in enumerate(zip(blocks, widths, strict=True)):
            stage = []
            for block in range(count):
                stride = 2 if index > 0 and block == 0 else 1
                stage.append(BasicBlock(width, outputs, stride, _shortcut(width, outputs, stride, projection)))
                width = outputs
            self.add_module(f"layer{index + 1}", nn.Sequential(*stage))
        self.linear = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.bn1(self.conv1(images)))
        for index in range(self.stages):
            hidden = getattr(self, f"layer{index + 1}")(hidden)
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(hidden, 1).flatten(1))
        return logits


def _shortcut(inputs: int, outputs: int, stride: int, projection: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if projection:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
    before = (outputs - inputs) // 2
    return ChannelPadShortcut(stride, before, outputs - inputs - before)


def vgg16(classes: int = 10, channels: int = 3) -> nn.Module:
    """VGG16 for 32×32 images, with batch normalisation and one linear layer."""
    return VGG16(classes, channels)


def resnet18(classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet18 with a 3×3 stem and projection shortcuts."""
    return CifarResNet((2, 2, 2, 2), (64, 128, 256, 512), projection=True, classes=classes, channels=channels)


def resnet20(classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet20 with parameter-free shortcuts."""
    return CifarResNet((3, 3, 3), (16, 32, 64), projection=False, classes=classes, channels=channels)


def resnet56(classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet56 with parameter-free shortcuts."""
    return CifarResNet((9, 9, 9), (16, 32, 64), projection=False, classes=classes, channels=channels)


def small(classes: int = 10, channels: int = 1) -> nn.Module:
    """A small residual network for 8×8 digits: what the demonstration and the tests compress."""
    return CifarResNet((1, 1), (16, 32), projection=True, classes=classes, channels=channels)
