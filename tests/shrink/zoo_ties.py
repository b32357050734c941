"""Narrow networks made of the zoos' own blocks, and by hand which of their modules' outputs are tied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

Ties = list[tuple[str, ...]]


@dataclass(frozen=True)
class ZooCase:
    """A network, the groups of modules whose outputs go together channel by channel, and the size of its images."""

    make: Callable[[], nn.Module]
    ties: Callable[[nn.Module], Ties]
    side: int = 32


def squeezenet() -> nn.Module:
    from torchvision.models import squeezenet1_1

    return squeezenet1_1(weights=None, num_classes=10)


def squeezenet_ties(model: nn.Module) -> Ties:
    """Concats tie nothing: each part of one has its own columns in the next layer."""
    ends = ("squeeze", "expand1x1", "expand3x3")
    return [("features.0",), *((name,) for name, _ in model.named_modules() if name.endswith(ends))]


def resnet() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [2, 1, 1, 1], num_classes=10)


def resnet_ties(model: nn.Module) -> Ties:
    """What a stage adds up is one group; inside of a block only a convolution and its norm."""
    groups: Ties = []
    for stage in range(1, 5):
        added: list[str] = ["conv1", "bn1"] if stage == 1 else []
        for block, layer in model.get_submodule(f"layer{stage}").named_children():
            path = f"layer{stage}.{block}"
            groups.append((f"{path}.conv1", f"{path}.bn1"))
            added += [path, f"{path}.conv2", f"{path}.bn2"]
            if layer.downsample is not None:
                added += [f"{path}.downsample.0", f"{path}.downsample.1"]
        groups.append(tuple(added))
    return groups


def bottlenecks() -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [1, 2, 1, 1], num_classes=10, width_per_group=8)


def bottlenecks_ties(model: nn.Module) -> Ties:
    groups: Ties = [("conv1", "bn1")]
    for stage in range(1, 5):
        added: list[str] = []
        for block, layer in model.get_submodule(f"layer{stage}").named_children():
            path = f"layer{stage}.{block}"
            groups += [(f"{path}.conv1", f"{path}.bn1"), (f"{path}.conv2", f"{path}.bn2")]
            added += [path, f"{path}.conv3", f"{path}.bn3"]
            if layer.downsample is not None:
                added += [f"{path}.downsample.0", f"{path}.downsample.1"]
        groups.append(tuple(added))
    return groups


def mobilenet_v2() -> nn.Module:
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(weights=None, num_classes=10, width_mult=0.25)


def mobilenet_v2_ties(model: nn.Module) -> Ties:
    """A depthwise convolution is tied to what feeds it; blocks with a shortcut to the block before."""
    groups: Ties = []
    stream: list[str] = []
    for number, block in model.get_submodule("features").named_children():
        path = f"features.{number}"
        if not hasattr(block, "conv"):  # the first and the last are plain
            groups += [tuple(stream)] if stream else []
            stream = [f"{path}.0", f"{path}.1"]
            continue
        *inner, last, norm = (f"{path}.conv.{index}" for index in range(len(block.conv)))
        wide = [f"{layer}.{index}" for layer in inner for index in (0, 1)]
        if len(inner) == 1:  # without expansion the depthwise convolution works on the stream itself
            stream += wide
        else:
            groups.append(tuple(wide))
        if not block.use_res_connect:
            groups.append(tuple(stream))
            stream = []
        stream += [path, last, norm]
    return [*groups, tuple(stream)]


def mobilenet_v3() -> nn.Module:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(weights=None, num_classes=10, width_mult=0.25)


def mobilenet_v3_ties(model: nn.Module) -> Ties:
    """As version 2, and a gate is tied to what it multiplies."""
    groups: Ties = [("classifier.0",)]
    stream: list[str] = []
    for number, block in model.get_submodule("features").named_children():
        path = f"features.{number}"
        if not hasattr(block, "block"):
            groups += [tuple(stream)] if stream else []
            stream = [f"{path}.0", f"{path}.1"]
            continue
        wide: list[str] = []
        for index, layer in enumerate(block.block):
            inner = f"{path}.block.{index}"
            if hasattr(layer, "fc1"):
                groups.append((f"{inner}.fc1",))
                wide += [inner, f"{inner}.fc2"]
            elif index < len(block.block) - 1:
                wide += [f"{inner}.0", f"{inner}.1"]
        expands = model.get_submodule(f"{path}.block.0.0").groups == 1
        if expands:
            groups.append(tuple(wide))
        else:
            stream += wide
        if not block.use_res_connect:
            groups.append(tuple(stream))
            stream = []
        inner = f"{path}.block.{len(block.block) - 1}"
        stream += [path, f"{inner}.0", f"{inner}.1"]
    return [*groups, tuple(stream)]


def mnasnet() -> nn.Module:
    from torchvision.models import MNASNet

    return MNASNet(0.25, num_classes=10)


def mnasnet_ties(model: nn.Module) -> Ties:
    groups: Ties = []
    stream = ["layers.0", "layers.1", "layers.3", "layers.4"]
    last = ["layers.6", "layers.7"]
    for name, block in model.named_modules():
        if not hasattr(block, "apply_residual"):
            continue
        groups.append(tuple(f"{name}.layers.{index}" for index in (0, 1, 3, 4)))
        if not block.apply_residual:
            groups.append(tuple(last))
            last = []
        last += [name, f"{name}.layers.6", f"{name}.layers.7"]
    return [tuple(stream), *groups, tuple(last), ("layers.14", "layers.15")]


def densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=8, block_config=(2, 3, 2), num_init_features=16, bn_size=2, num_classes=10)


def densenet_ties(model: nn.Module) -> Ties:
    """Inside of a layer a convolution and the norm behind it. What a layer gives is concatenated and normalised by
    every later one, so those outputs are left out here.
    """
    names = [name for name, _ in model.named_modules() if name.endswith(".conv1")]
    return [(name, name.replace(".conv1", ".norm2")) for name in names]


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(8, 12, 2), CNBlockConfig(12, None, 1)], num_classes=10)


def convnext_ties(model: nn.Module) -> Ties:
    """Between two layer norms only the wide part inside of a block is free."""
    return [(name,) for name, _ in model.named_modules() if name.endswith(".block.3")]


ZOO_CASES = {
    "squeezenet": ZooCase(squeezenet, squeezenet_ties, 48),
    "resnet": ZooCase(resnet, resnet_ties),
    "bottlenecks": ZooCase(bottlenecks, bottlenecks_ties),
    "mobilenet_v2": ZooCase(mobilenet_v2, mobilenet_v2_ties),
    "mobilenet_v3": ZooCase(mobilenet_v3, mobilenet_v3_ties),
    "mnasnet": ZooCase(mnasnet, mnasnet_ties),
    "densenet": ZooCase(densenet, densenet_ties, 64),
    "convnext": ZooCase(convnext, convnext_ties),
}
