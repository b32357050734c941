"""What a phase does beside minimising the loss: freezing freezes, zeros stay zero, the penalty is the paper's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import penni
from penni.basis import basis_layers
from penni.data import ArraySource, open_data
from penni.pruning import Aim, density, kill_dead_filters
from penni.recipes import Retrain
from penni.training.behaviours import (
    L1,
    Alternation,
    Behaviour,
    GradualPruning,
    HoldZeros,
    Moment,
    ProximalL1,
    Together,
    UnitNorm,
)
from penni.training.loop import Phase, Trainer, run_phase
from penni.training.schedules import cubic, learning_rate_factor


@pytest.fixture(scope="module")
def data() -> ArraySource:
    source = open_data("digits")
    assert isinstance(source, ArraySource)
    source.train_images, source.train_labels = source.train_images[:256], source.train_labels[:256]
    source.test_images, source.test_labels = source.test_images[:64], source.test_labels[:64]
    return source


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return penni.decompose(penni.build("small"), 4)


def run(model: nn.Module, data: ArraySource, behaviours: list[Behaviour], epochs: int = 1, **options: float) -> None:
    phase = Phase("test", epochs, 0.05, schedule="constant", batch_size=64, **options)  # type: ignore[arg-type]
    run_phase(model, data, phase, Trainer(precision="fp32"), behaviours=behaviours)


def parts(model: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    layers = basis_layers(model).values()
    coefficients = [layer.coefficients.detach().clone() for layer in layers]
    return coefficients, [layer.basis.detach().clone() for layer in layers]


def test_alternation_trains_one_and_freezes_the_other(model: nn.Module, data: ArraySource) -> None:
    class Watch(Behaviour):
        def __init__(self) -> None:
            self.moved: list[tuple[bool, bool]] = []
            self.linear: list[torch.Tensor] = []

        def start_epoch(self, moment: Moment) -> None:
            self.before = parts(moment.model)

        def report(self, moment: Moment) -> dict[str, float | str]:
            after = parts(moment.model)
            same = [
                [torch.equal(a, b) for a, b in zip(x, y, strict=True)] for x, y in zip(self.before, after, strict=True)
            ]
            assert all(len(set(each)) == 1 for each in same)
            self.moved.append((not same[0][0], not same[1][0]))
            self.linear.append(moment.model.linear.weight.detach().clone())  # type: ignore[union-attr,operator]
            return {}

    watch = Watch()
    run(model, data, [Alternation(2), watch], epochs=5)
    # (coefficients moved, bases moved): the coefficients go first, each turn takes two epochs.
    assert watch.moved == [(True, False), (True, False), (False, True), (False, True), (True, False)]
    for before, after in zip(watch.linear, watch.linear[1:], strict=False):
        assert not torch.equal(before, after)


def test_zeros_are_held_to_the_bit(model: nn.Module, data: ArraySource) -> None:
    pruned = penni.prune(model, 1.0)
    dead = basis_layers(pruned)["layer1.0.conv1"]
    with torch.no_grad():
        dead.coefficients[3] = 0.0
    kill_dead_filters(pruned, torch.zeros(1, 1, 8, 8))
    before = copy.deepcopy(pruned)
    run(pruned, data, [Together(), HoldZeros()], epochs=2, weight_decay=0.01)
    moved = 0
    for name, layer in basis_layers(before).items():
        after = basis_layers(pruned)[name].coefficients.detach()
        zeros = layer.coefficients.detach() == 0
        assert torch.equal(after[zeros].view(torch.int32), torch.zeros(int(zeros.sum()), dtype=torch.int32))
        moved += int((after != layer.coefficients.detach()).sum())
    assert moved > 100
    norm = pruned.get_submodule("layer1.0.bn1")
    scale, shift = (parameter.detach() for parameter in norm.parameters())
    assert float(scale[3]) == float(shift[3]) == 0.0
    assert float(shift[4]) != 0.0


def test_without_holding_the_zeros_would_move(model: nn.Module, data: ArraySource) -> None:
    pruned = penni.prune(model, 1.0)
    before = density(pruned)
    run(pruned, data, [Together()])
    assert density(pruned) > before


def test_l1_adds_gamma_times_the_sign_to_the_gradient(model: nn.Module) -> None:
    layer = basis_layers(model)["conv1"]
    layer.coefficients.grad = torch.ones_like(layer.coefficients)
    moment = Moment(model, 0, 1, 0, 1, 0.1, 0.9)
    L1(0.25).before_step(moment)
    torch.testing.assert_close(layer.coefficients.grad, 1 + 0.25 * layer.coefficients.detach().sign())


def test_l1_leaves_frozen_coefficients_alone(model: nn.Module) -> None:
    layer = basis_layers(model)["conv1"]
    before = layer.coefficients.detach().clone()
    layer.coefficients.requires_grad_(False)
    moment = Moment(model, 0, 1, 0, 1, 0.1, 0.9)
    for penalty in (L1(0.25), ProximalL1(0.25)):
        penalty.before_step(moment)
        penalty.after_step(moment)
    assert torch.equal(layer.coefficients, before)


def test_the_proximal_step_reaches_exact_zeros(model: nn.Module) -> None:
    layer = basis_layers(model)["conv1"]
    before = layer.coefficients.detach().clone()
    moment = Moment(model, 0, 1, 0, 1, learning_rate=0.1, momentum=0.9)
    ProximalL1(0.3).after_step(moment)
    # 0.3·0.1/(1−0.9) = 0.3 comes off every size.
    expected = before.sign() * (before.abs() - 0.3).clamp_min(0)
    torch.testing.assert_close(layer.coefficients.detach(), expected)
    assert 0 < int((layer.coefficients == 0).sum()) < layer.coefficients.numel()


def test_unit_norm_changes_no_kernel(model: nn.Module) -> None:
    layer = basis_layers(model)["conv1"]
    with torch.no_grad():
        layer.basis.mul_(torch.tensor([0.5, 2.0, 3.0, 0.1]).view(-1, 1, 1))
    before = layer.weight.detach().clone()
    UnitNorm().start_epoch(Moment(model, 0, 1, 0, 1, 0.1, 0.9))
    torch.testing.assert_close(layer.basis.detach().flatten(1).norm(dim=1), torch.ones(4))
    torch.testing.assert_close(layer.weight.detach(), before)


def test_gradual_pruning_ends_at_its_aim_and_keeps_it(model: nn.Module, data: ArraySource) -> None:
    run(model, data, [Together(), HoldZeros(), GradualPruning(Aim(density=0.2), cubic, until=0.5, every=1)], epochs=3)
    assert density(model) == pytest.approx(0.2, rel=0.01)


def test_a_new_behaviour_needs_no_change_of_the_loop(model: nn.Module, data: ArraySource) -> None:
    class Shrinkage(Behaviour):
        @torch.no_grad()
        def after_step(self, moment: Moment) -> None:
            for layer in basis_layers(moment.model).values():
                layer.coefficients.mul_(0.5)

    run(model, data, [Together(), Shrinkage()])
    assert max(float(layer.coefficients.detach().abs().max()) for layer in basis_layers(model).values()) < 0.2


def test_a_loss_that_is_not_a_number_stops(model: nn.Module, data: ArraySource) -> None:
    with torch.no_grad():
        basis_layers(model)["conv1"].coefficients[0, 0, 0] = float("nan")
    with pytest.raises(penni.PenniError, match="the loss became nan in epoch 1 of test, step 1; nothing was kept"):
        run(model, data, [Together()])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("step", [1.0, 1.0, 0.1, 0.01]),
        ("cosine", [1.0, 0.8535534, 0.5, 0.1464466]),
        ("constant", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_learning_rates(schedule: str, expected: list[float]) -> None:
    factors = [learning_rate_factor(schedule, progress, (0.5, 0.75), 0.1) for progress in (0.0, 0.25, 0.5, 0.75)]
    assert factors == pytest.approx(expected)


def test_one_cycle_rises_then_falls_to_nothing() -> None:
    rates = [learning_rate_factor("one-cycle", step / 100, (), 0.1) for step in range(101)]
    assert max(rates) == rates[30] == 1.0
    assert rates[0] == pytest.approx(0.04)
    assert rates[100] == pytest.approx(0.0, abs=1e-9)


def test_the_warm_up_has_its_own_rate() -> None:
    phase = Phase("x", 50, 1e-3, schedule="constant", warmup_epochs=5, warmup_learning_rate=1e-4)
    assert [phase.rate(epoch / 50) for epoch in (0, 4.9, 5, 49)] == [1e-4, 1e-4, 1e-3, 1e-3]


def test_the_papers_pull_is_about_a_tenth() -> None:
    """γ = 1e-4 of the paper's full recipe comes to Σ lr·γ/(1−momentum) ≈ 0.1; `pull` is its inverse."""
    from penni.compression import gamma_for, phase_for
    from penni.recipes import read

    class Cifar:
        def steps(self, batch_size: int) -> int:
            return -(-50_000 // batch_size)

    recipe = read("resnet56-cifar10")
    phase = phase_for("retrain", recipe.retrain, recipe)
    pulled = Retrain(epochs=100, schedule="step", interval=5, pull=0.1031)
    assert gamma_for(pulled, phase, Cifar()) == pytest.approx(1e-4, rel=0.02)  # type: ignore[arg-type]
