"""Counts: the paper's own numbers, and layers counted by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

import penni
from penni.measure.count import two_stage_macs


@pytest.mark.parametrize(
    ("name", "params", "macs", "decomposed_macs"),
    [
        ("resnet56", 0.849e6, 125.49e6, 92.80e6),
        ("resnet18", 11.164e6, 555.42e6, 332.33e6),
        ("vgg16", 14.716e6, 313.20e6, 182.34e6),
    ],
)
def test_the_papers_networks(name: str, params: float, macs: float, decomposed_macs: float) -> None:
    model, image = penni.build(name), torch.zeros(1, 3, 32, 32)
    counts = penni.count(model, image)
    assert abs(counts.params - params) < 600
    assert abs(counts.macs - macs) < 5000
    assert abs(penni.count(penni.decompose(model, 5), image).macs - decomposed_macs) < 5000


def test_the_papers_table_of_pruned_vgg16() -> None:
    """Widths, bases and non-zeros of the paper's appendix give 20.16 M MACs."""
    table = Path(__file__).parent / "data" / "vgg16-cifar10-structure.csv"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    sides = [32, 32, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 2]
    inputs, macs = 3, 0
    for row, side in zip(rows, sides, strict=True):
        bases, nonzero = int(row["bases_after"]), int(row["nonzero_after"])
        macs += two_stage_macs(inputs * bases, nonzero, 9, side * side)
        inputs = int(row["width_after"])
    assert round(macs / 1e6, 2) == 20.16


def test_layers_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1),  # 8·4·9 weights, 4×3 positions
        nn.Conv2d(8, 8, 3, padding=1, groups=2),  # 8·4·9 weights
        nn.ConvTranspose2d(8, 2, 2, stride=2),  # 8·2·4 weights, each meets the 4×3 input positions
        nn.Flatten(),
        nn.Linear(2 * 8 * 6, 10),
    )
    counts = penni.count(model, torch.zeros(3, 4, 8, 6))
    assert [layer.macs for layer in counts.layers] == [288 * 12, 288 * 12, 64 * 12, 960]
    assert counts.params == 288 + 288 + 64 + 960


def test_a_decomposed_layer_by_hand() -> None:
    layer = penni.BasisConv2d(4, 6, (3, 3), 3, padding=(1, 1))
    with torch.no_grad():
        layer.coefficients.zero_()
        layer.coefficients[0, 1, 2] = 1.0
        layer.coefficients[5, 1, 2] = 1.0
        layer.coefficients[5, 3, 0] = 1.0
    counts = penni.count(layer, torch.zeros(1, 4, 5, 5)).layers[0]
    # Two (input, basis) planes are convolved, three coefficients are added up.
    assert counts.macs == (2 * 9 + 3) * 25
    assert counts.params == 3 + 2 * 9
    assert (counts.nonzero, counts.total, counts.bases) == (3, 72, 2)


def test_groups_convolve_their_own_inputs() -> None:
    layer = penni.BasisConv2d(4, 4, (3, 3), 2, groups=2, padding=(1, 1))
    with torch.no_grad():
        layer.coefficients.zero_()
        layer.coefficients[0, 0, 0] = 1.0  # group 0 reads channel 0
        layer.coefficients[3, 0, 0] = 1.0  # group 1 reads channel 2
    assert penni.count(layer, torch.zeros(1, 4, 5, 5)).macs == (2 * 9 + 2) * 25


def test_pointwise_layers_have_no_first_stage() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 1))
    plain = penni.count(model, torch.zeros(1, 4, 5, 5))
    matrix = penni.count(penni.decompose(model, 1, pointwise=True), torch.zeros(1, 4, 5, 5))
    assert (plain.macs, plain.params) == (matrix.macs, matrix.params) == (32 * 25, 32)


def test_a_layer_used_twice_counts_twice_in_macs_and_once_in_parameters() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)
    counts = penni.count(nn.Sequential(layer, layer), torch.zeros(1, 4, 5, 5))
    assert (counts.macs, counts.params) == (2 * 144 * 25, 144)


def test_the_mode_of_every_module_is_kept() -> None:
    model = penni.build("small").train()
    model.bn1.eval()  # type: ignore[union-attr]
    penni.count(model, torch.zeros(2, 1, 8, 8))
    assert model.training
    assert not model.bn1.training  # type: ignore[union-attr]
