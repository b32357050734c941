"""A plain network that another tool pruned: only shrink and pack it.

Nothing is decomposed or trained. Filters that are all zero, and whose normalisation is zero too, are removed, and the
answers stay the same.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune
from torchvision.models import resnet18

import penni
import penni.engine


def pruned_model() -> nn.Module:
    """Half of the filters of every block's first convolution are zero, as structured pruning leaves them."""
    torch.manual_seed(0)
    model = resnet18(num_classes=10).eval()
    for name, block in model.named_modules():
        if name.count(".") == 1 and name.startswith("layer"):
            prune.ln_structured(block.conv1, "weight", amount=0.5, n=2, dim=0)
            prune.remove(block.conv1, "weight")
            dead = block.conv1.weight.flatten(1).abs().sum(dim=1) == 0
            with torch.no_grad():
                block.bn1.weight[dead] = 0
                block.bn1.bias[dead] = 0
    return model


def main() -> None:
    """Shrink, pack, and run without PyTorch."""
    model = pruned_model()
    images = torch.randn(2, 3, 64, 64)
    shrunk = penni.shrink(model, images)
    before, after = penni.count(model, images), penni.count(shrunk.model, images)
    print(f"{before.stored:,} → {after.stored:,} stored weights")
    assert after.stored < before.stored

    with tempfile.TemporaryDirectory() as folder:
        file = penni.compile(shrunk.model, images).save(Path(folder) / "model.penni")
        answers = penni.engine.load(file)(images.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(answers, model(images).numpy(), rtol=1e-3, atol=1e-3)
    print("the packed network answers as the pruned one")


if __name__ == "__main__":
    main()
