"""`analyse` agrees with what decomposing and counting really give, and warns where there is little to gain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import penni
from penni.analysis import Analysis, analyse
from penni.cli import application


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 5, groups=2), nn.Conv2d(12, 6, 1)
    ).eval()


@pytest.fixture(scope="module")
def found() -> Analysis:
    return analyse(_network(), torch.zeros(1, 3, 12, 12), timing=False)


@pytest.mark.parametrize("bases", [1, 3, 9])
def test_costs_are_those_of_the_decomposed_network(found: Analysis, bases: int) -> None:
    counts = penni.count(penni.decompose(_network(), bases), torch.zeros(1, 3, 12, 12))
    estimate = found.by_bases[bases - 1]
    assert (estimate.params, estimate.macs) == (counts.params, counts.macs)


def test_errors_are_those_of_the_decomposed_kernels(found: Analysis) -> None:
    original, model = _network(), penni.decompose(_network(), 4)
    for layer in found.layers[:2]:
        before = original.get_submodule(layer.name).weight
        after = model.get_submodule(layer.name).weight
        assert isinstance(before, torch.Tensor)
        assert isinstance(after, torch.Tensor)
        error = float(((before - after).norm() / before.norm()).detach())
        assert layer.errors[3] == pytest.approx(error, rel=1e-4)
        assert layer.errors[-1] == pytest.approx(0, abs=1e-6)
        assert list(layer.errors) == sorted(layer.errors, reverse=True)
        assert layer.spectrum[0] == 1


def test_the_estimate_for_pruned_networks_is_near_what_random_zeros_cost() -> None:
    torch.manual_seed(0)
    model = penni.decompose(_network(), 5)
    images = torch.zeros(1, 3, 12, 12)
    density = 0.0166
    generator = torch.Generator().manual_seed(0)
    wide = nn.Sequential(nn.Conv2d(32, 64, 3)).eval()
    model, images = penni.decompose(wide, 5), torch.zeros(1, 32, 8, 8)
    layer = model.get_submodule("0")
    assert isinstance(layer, penni.BasisConv2d)
    with torch.no_grad():
        layer.coefficients.mul_(torch.rand(layer.coefficients.shape, generator=generator) < density)
    real = penni.count(model, images)
    estimates = analyse(wide, images, timing=False).pruned
    estimate = next(entry for entry in estimates if entry.density == density)
    assert estimate.params == pytest.approx(real.params, rel=0.2)
    assert estimate.macs == pytest.approx(real.macs, rel=0.2)


def test_layers_left_alone_say_why(found: Analysis) -> None:
    assert found.layers[2].reason.startswith("1×1")
    assert found.layers[2].errors == ()


def test_a_network_of_1x1_convolutions_is_advised_pointwise() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 64, 1), nn.Conv2d(64, 64, 1))
    images = torch.zeros(1, 3, 8, 8)
    assert any("--pointwise" in warning for warning in analyse(model, images, timing=False).warnings)
    told = analyse(model, images, pointwise=True, timing=False)
    assert not any("use --pointwise" in warning for warning in told.warnings)
    assert not told.layers[1].reason
    assert any(estimate.like == "ResNet50 R1" for estimate in told.pruned)


def test_a_depthwise_network_is_told_how_little_there_is() -> None:
    found = analyse(penni.build("torchvision:mobilenet_v2"), torch.zeros(1, 3, 64, 64), timing=False)
    text = " ".join(found.warnings)
    assert "depthwise network" in text
    change = found.by_bases[4].macs / found.macs - 1
    assert f"{change:+.1%}" in text


def test_times_are_measured_in_the_engine() -> None:
    found = analyse(penni.build("small"), torch.zeros(1, 1, 8, 8))
    assert "engine" in found.timing
    assert all((layer.microseconds or 0) > 0 for layer in found.layers)
    slowest = found.slowest(2)
    assert [layer.microseconds for layer, _ in slowest] == sorted(
        (layer.microseconds for layer in found.layers if layer.microseconds), reverse=True
    )[:2]
    assert sum(share for _, share in found.slowest(99)) == pytest.approx(1)


def test_a_network_the_engine_cannot_run_is_still_analysed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise penni.UnknownOperatorError("aten.fft is not known, in 'stem'")

    monkeypatch.setattr("penni.engine.compiling.compile", refuse)
    found = analyse(penni.build("small"), torch.zeros(1, 1, 8, 8))
    assert "aten.fft" in found.timing
    assert len(found.by_bases) == 9


def test_a_network_without_convolutions_is_refused() -> None:
    with pytest.raises(penni.PenniError, match="nothing to analyse"):
        analyse(nn.Linear(3, 4), torch.zeros(1, 3), timing=False)


def test_command_line(tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(application(), ["analyse", "small", "--no-timing", "--json"], catch_exceptions=False)
    answer = json.loads(result.stdout)
    assert len(answer["by_bases"]) == 9
    assert {"name", "errors", "spectrum", "macs"} <= set(answer["layers"][0])
    table = runner.invoke(application(), ["analyse", "small", "--no-timing"], catch_exceptions=False).stdout
    assert "layer1.0.conv1" in table
    assert "d=5" in table
    assert re.search(r"conv1 .*[▁▂▃▄▅▆▇█]{9}", table), "the spectrum of nine singular values"


def test_the_command_names_the_layers_that_take_longest() -> None:
    table = CliRunner().invoke(application(), ["analyse", "small"], catch_exceptions=False).stdout
    assert re.search(r"convolutions take [\d.]+ ms; most of it: \S+ \d+\.\d%", table)
