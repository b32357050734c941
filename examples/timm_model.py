"""A timm network: what there is to gain, then decompose, prune, shrink, and take it elsewhere.

The weights are random here, so that nothing is downloaded; give `pretrained=True` to `build` for trained ones, and
train between the steps (`penni.compress` does all of it).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import penni


def main() -> None:
    """Each step of the method by hand."""
    torch.manual_seed(0)
    model = penni.build("timm:resnet10t", num_classes=10).eval()
    images = torch.randn(1, 3, 64, 64)

    analysis = penni.analyse(model, images, timing=False)
    for warning in analysis.warnings:
        print("note:", warning)

    decomposed = penni.decompose(model, bases=5, pointwise=True)
    pruned = penni.prune(decomposed, density=0.1, example_input=images)
    shrunk = penni.shrink(pruned, images)
    print(shrunk.report.text())
    before, after = penni.count(model, images), penni.count(shrunk.model, images)
    print(f"{before.macs / 1e6:,.1f} → {after.macs / 1e6:,.1f} M MACs")

    with tempfile.TemporaryDirectory() as folder:
        agreement = penni.export(shrunk.model, Path(folder) / "model.onnx", images, form="two-stage")
        print(f"exported; in {agreement.runtime} it differs by {agreement.difference:.0e}")


if __name__ == "__main__":
    main()
