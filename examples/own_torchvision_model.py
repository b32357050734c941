"""Compress a network of your own: here torchvision's ResNet18 with a stem for small images.

Replace `make_model`, `training_data` and the recipe's epochs by yours. As it stands it runs in seconds, on noise, to
show that every step works.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn
from torchvision.models import resnet18

import penni
from penni.data.source import ArraySource, normalisation
from penni.recipes import Finetune, Prune, Retrain


def make_model() -> nn.Module:
    """The architecture. A checkpoint remembers it as `this_file.py:make_model`."""
    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def training_data() -> ArraySource:
    """Images as bytes (N, 3, H, W) and labels; `penni.open_data` opens CIFAR-10 and folders of images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (48, 3, 16, 16), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (48,), generator=generator)
    return ArraySource(
        "noise",
        (images[:32], labels[:32]),
        (images[32:], labels[32:]),
        normalisation=normalisation("half"),
        augmentation=None,
        classes=10,
    )


def main() -> None:
    """From a trained network to a small one that runs without PyTorch."""
    model = penni.build(f"{__file__}:make_model")
    # Your trained weights: penni.models.load_weights(model, "weights.safetensors")
    data = training_data()
    recipe = penni.Recipe(
        retrain=Retrain(epochs=1, interval=0, regulariser="none", unit_norm=True, gradual=True),
        prune=Prune(macs=0.3),
        finetune=Finetune(epochs=1),
    )
    with tempfile.TemporaryDirectory() as folder:
        small = penni.compress(model, data, recipe, Path(folder) / "run")
        images = torch.randn(1, *data.shape)
        before, after = penni.count(model, images), penni.count(small, images)
        print(f"{before.params:,} → {after.params:,} parameters, {before.macs:,} → {after.macs:,} MACs")
        engine = penni.compile(small, images)
        engine.save(Path(folder) / "model.penni")
        print(f"packed: {engine.size:,} bytes, answers {engine(images.numpy()).shape}")


if __name__ == "__main__":
    main()
