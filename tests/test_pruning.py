"""Phase C: thresholds, aims, and what dies with a filter."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import penni
from penni.basis import basis_layers
from penni.models import example_input
from penni.pruning import SCOPES, Aim, aim_for, density, kill_dead_filters, prune_to


@pytest.fixture
def decomposed() -> nn.Module:
    torch.manual_seed(0)
    return penni.decompose(penni.build("small"), 4).eval()


def test_the_threshold_is_in_standard_deviations_of_each_layer(decomposed: nn.Module) -> None:
    pruned = basis_layers(penni.prune(decomposed, 0.8))
    for name, layer in basis_layers(decomposed).items():
        a = layer.coefficients.detach()
        small = a.abs() < 0.8 * a.std()
        assert 0 < int(small.sum()) < a.numel()
        assert torch.equal(pruned[name].coefficients.detach() == 0, small)
        assert torch.equal(pruned[name].coefficients.detach()[~small], a[~small])


def test_the_model_given_is_left_as_it_was(decomposed: nn.Module) -> None:
    penni.prune(decomposed, 2.0)
    assert density(decomposed) == 1.0


def test_a_layer_keeps_its_last_coefficient_and_says_so(
    decomposed: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        pruned = penni.prune(decomposed, 1000.0)
    for layer in basis_layers(pruned).values():
        assert int(torch.count_nonzero(layer.coefficients)) == 1
    assert "conv1 would have lost its last coefficient; its largest one stays" in caplog.messages


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_density_is_reached(decomposed: nn.Module, scope: str, share: float) -> None:
    pruned = penni.prune(decomposed, density=share, scope=scope, example_input=example_input(decomposed))
    assert density(pruned) == pytest.approx(share, rel=0.01)


def test_the_scope_layer_keeps_the_same_share_everywhere(decomposed: nn.Module) -> None:
    for layer in basis_layers(penni.prune(decomposed, density=0.25, scope="layer")).values():
        assert int(torch.count_nonzero(layer.coefficients)) / layer.coefficients.numel() == pytest.approx(
            0.25, abs=0.03
        )


@pytest.mark.parametrize("goal", [{"macs": 0.3}, {"params": 0.2}, {"macs": 0.25, "params": 0.2}], ids=str)
def test_targets_are_met_and_not_overshot(decomposed: nn.Module, goal: dict[str, float]) -> None:
    image = example_input(decomposed)
    base = penni.count(penni.reconstruct(decomposed), image)
    prune_to(decomposed, aim_for(decomposed, base, image, **goal), 1.0, scope="global")
    counts = penni.count(decomposed, image)
    shares = {"macs": counts.macs / base.macs, "params": counts.params / base.params}
    assert all(shares[name] <= share for name, share in goal.items())
    # At least one of the goals is what stopped it.
    assert any(shares[name] > share * 0.99 for name, share in goal.items())


def test_pruning_only_ever_removes(decomposed: nn.Module) -> None:
    before = None
    for progress in (0.3, 0.6, 0.9, 1.0):
        prune_to(decomposed, Aim(density=0.1), progress, scope="lamp")
        zeros = torch.cat([(layer.coefficients == 0).flatten() for layer in basis_layers(decomposed).values()])
        if before is not None:
            assert bool(zeros[before].all())
        before = zeros
    assert density(decomposed) == pytest.approx(0.1, rel=0.01)


def test_a_dead_filters_normalisation_dies_with_it(decomposed: nn.Module) -> None:
    image = example_input(decomposed)
    first = basis_layers(decomposed)["layer1.0.conv1"]
    norm = decomposed.get_submodule("layer1.0.bn1")
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        norm.bias.fill_(0.3)
        first.coefficients[[2, 5]] = 0.0
    assert kill_dead_filters(decomposed, image) == {"layer1.0.conv1": [2, 5]}
    seen = {}
    handle = norm.register_forward_hook(lambda _m, _i, output: seen.update(output=output))
    decomposed(image)
    handle.remove()
    dead = seen["output"][:, [2, 5]]
    assert torch.equal(dead, torch.zeros_like(dead))
    assert float(norm.bias.detach()[[0, 1, 3]].min()) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": -1.0}, "a threshold of -1.0 makes no sense"),
        ({"threshold": 1.0, "density": 0.5}, "a threshold or a density, not both"),
        ({"density": 0.0}, "density=0.0 is not a share to keep"),
        ({"density": 0.5, "scope": "globl"}, "did you mean 'global'"),
        ({"density": 0.5, "scope": "balanced"}, "give an example_input"),
    ],
)
def test_mistakes(decomposed: nn.Module, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(penni.PenniError, match=message):
        penni.prune(decomposed, **arguments)  # type: ignore[arg-type]


def test_nothing_to_prune() -> None:
    with pytest.raises(penni.PenniError, match=r"call penni\.decompose first"):
        penni.prune(penni.build("small"))
