"""Export networks in both forms and compare the files with the networks in ONNX Runtime and OpenVINO.

python -m benchmarks.export.agreement --out results/export/agreement.csv
"""

from __future__ import annotations

import argparse
import csv
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

import penni
from penni.exporting import FORMS, TOLERANCE
from penni.exporting.check import compare, openvino_runner
from penni.models import example_input

NETWORKS = ("resnet56", "vgg16", "torchvision:resnet18", "torchvision:squeezenet1_1", "torchvision:googlenet")


def network(name: str) -> nn.Module:
    """The network with seeded weights and statistics, decomposed, and with half of the coefficients zero."""
    torch.manual_seed(0)
    model = penni.build(name).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
    return penni.prune(penni.decompose(model, 5), density=0.5)


def main() -> None:
    """Write one row per network, form and runtime."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for name in NETWORKS:
        model = network(name)
        images = example_input(model)
        examples = [torch.randn(size, *images.shape[1:]) for size in (1, 2)]
        for form in FORMS:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "network.onnx"
                agreement = penni.export(model, file, images, form=form)
                size = file.stat().st_size
                other = compare(penni.reconstruct(model).eval(), openvino_runner(file), "openvino", examples, file)
            for result in (agreement, other):
                rows.append([name, form, result.runtime, f"{result.difference:.1e}", size])
                print(*rows[-1], flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as stream:
        stream.write(f"# python -m benchmarks.export.agreement --out {arguments.out}\n")
        stream.write(f"# {time.strftime('%Y-%m-%d')}, {platform.machine()}, Python {platform.python_version()}, ")
        packages = ("torch", "torchvision", "onnx", "onnxruntime", "openvino")
        stream.write(", ".join(f"{package} {version(package)}" for package in packages))
        stream.write(f"; largest difference allowed {TOLERANCE:.0e}, relative to the largest answer if above 1\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["network", "form", "runtime", "largest_difference", "bytes"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
