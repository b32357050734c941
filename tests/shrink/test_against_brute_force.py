"""What shrink removes is what an oracle finds by zeroing and perturbing one channel at a time: no less, no more."""

from __future__ import annotations

import pytest
import torch
from brute_force import dead_channels, removable
from networks import CASES, PaddedShortcut
from torch import nn

import penni
from penni.shrinking.exercise import deaden


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", CASES)
def test_removes_exactly_what_the_oracle_finds(name: str, seed: int) -> None:
    case = CASES[name]
    torch.manual_seed(seed)
    model = deaden(case.make().eval(), seed, filters=0.4, inputs=0.3)
    images = torch.randn(2, 3, case.side, case.side)
    names = [member for group in case.ties for member in group]
    expected = removable(dead_channels(_copy(model), images, names, case.ties), case.ties)
    result = penni.shrink(model, images)
    layers = {row.name: row for row in result.report.rows}
    for layer in names:
        if layer in layers:
            width = layers[layer].before.width
            # A layer whose every channel is dead keeps one.
            gone = min(len(expected[layer]), width - 1)
            assert width - layers[layer].after.width == gone, f"{layer}: the oracle finds {sorted(expected[layer])}"


@pytest.mark.parametrize("name", CASES)
def test_dead_channels_are_those_of_the_oracle(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(5)
    model = deaden(case.make().eval(), 5, filters=0.4, inputs=0.4)
    images = torch.randn(2, 3, case.side, case.side)
    layers = [key for key, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    expected = sum(len(dead) for dead in dead_channels(_copy(model), images, layers).values())
    assert penni.shrink(model, images).report.dead == expected


def test_option_a_shortcut_shrinks_on_both_sides_of_the_padding() -> None:
    model = PaddedShortcut().eval()
    with torch.no_grad():
        for norm, dead in ((model.bn, [0, 2, 3, 4, 5, 12, 13]), (model.stemn, [0, 2, 4])):
            nn.init.normal_(norm.bias)
            norm.weight[dead] = 0
            norm.bias[dead] = 0
    result = penni.shrink(model, torch.randn(2, 3, 8, 8))
    short = result.model.short
    # Of the padding, 0 and 2 go before and 12, 13 after; of what passes, the stem's 0 and 2 (3 + 0 and 3 + 2).
    assert (short.before, short.after) == (1, 3)
    assert result.model.stem.out_channels == 6
    assert result.model.b.out_channels == 16 - 6
    assert result.model.head.in_features == 16 - 6


def _copy(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model)
