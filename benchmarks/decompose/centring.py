"""Does it pay to centre the kernels before the singular value decomposition, as the paper words it?

    python benchmarks/decompose/centring.py --weights resnet56.safetensors --out results/decompose/centring.md

Compared is the relative error ‖θ − ABᵀ‖ / ‖θ‖ over all decomposed layers. With the centred basis the coefficients are
still the projection of the kernels as they are, which is what the method stores.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import penni
from penni.basis import basis_layers
from penni.models import load_weights


def relative_error(model: torch.nn.Module, bases: int, *, centred: bool) -> tuple[float, dict[str, float]]:
    """The error over the whole network, and each layer's."""
    total = missed = 0.0
    by_layer = {}
    for name, layer in basis_layers(penni.decompose(model, bases, centred=centred)).items():
        kernels = model.get_submodule(name).weight.detach().double()
        square, error = float(kernels.square().sum()), float((layer.weight.detach() - kernels).square().sum())
        total, missed = total + square, missed + error
        by_layer[name] = (error / square) ** 0.5
    return (missed / total) ** 0.5, by_layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    model = penni.build(arguments.model)
    load_weights(model, arguments.weights)
    lines = [
        f"# Centred or uncentred: {arguments.model}",
        "",
        f"Relative reconstruction error ‖θ − ABᵀ‖ / ‖θ‖ over all decomposed layers; {time.strftime('%Y-%m-%d')}.",
        "",
        f"    python benchmarks/decompose/centring.py --model {arguments.model} --weights {arguments.weights.name}",
        "",
        "| d | uncentred | centred | layers where centred is better |",
        "| --- | --- | --- | --- |",
    ]
    for bases in range(1, 10):
        (plain, plain_layers), (centred, centred_layers) = (
            relative_error(model, bases, centred=c) for c in (False, True)
        )
        better = sum(centred_layers[name] < plain_layers[name] - 1e-9 for name in plain_layers)
        lines.append(f"| {bases} | {plain:.4f} | {centred:.4f} | {better} of {len(plain_layers)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
