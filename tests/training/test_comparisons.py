"""The ablation's steps are recipes, and the peers end at the MACs that they are given."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import penni
from penni.recipes import override, read, with_target
from penni.training.behaviours import Moment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IMAGE = torch.zeros(2, 1, 8, 8)


def script(name: str) -> ModuleType:
    file = BENCHMARKS / name
    spec = importlib.util.spec_from_file_location(f"benchmarks_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_ablation_goes_from_the_papers_recipe_to_ours() -> None:
    ablation = script("ablation/steps.py")
    steps = ablation.steps(8, 14)
    recipes = {}
    for step in steps:
        fields = [f"{field}={value}" for field, value in ablation.fields_up_to(steps, step.name).items()]
        papers = read("resnet56-cifar10")
        steered = with_target(papers, ["macs=-77%"], fields)[0] if step.steered else override(papers, fields)
        recipes[step.name] = steered
    assert {(recipe.retrain.epochs, recipe.finetune.epochs) for recipe in recipes.values()} == {(8, 14)}
    paper, papers = recipes["paper"], read("resnet56-cifar10")
    assert (paper.retrain.gamma, paper.prune.threshold) == (papers.retrain.gamma, papers.prune.threshold)
    ours, last = read("resnet56-cifar10-short"), recipes[steps[-1].name]
    assert last.optimiser == ours.optimiser
    assert last.decompose == ours.decompose
    for field in (
        "interval",
        "regulariser",
        "unit_norm",
        "gradual",
        "until",
        "distillation",
        "learning_rate",
        "schedule",
    ):
        assert getattr(last.retrain, field) == getattr(ours.retrain, field), field
    for field in ("distillation", "learning_rate", "schedule"):
        assert getattr(last.finetune, field) == getattr(ours.finetune, field), field
    assert last.prune.scope == ours.prune.scope


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return script("peers/methods.py")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return penni.build("small", channels=1).eval()


@pytest.mark.parametrize("name", ["l1-filters", "slimming", "magnitude", "torch-pruning"])
def test_a_peer_ends_at_the_macs_it_is_given(peers: ModuleType, model: nn.Module, name: str) -> None:
    if name == "torch-pruning":
        pytest.importorskip("torch_pruning", reason="pip install -r benchmarks/peers/requirements.txt")
    base = penni.count(model, IMAGE)
    with torch.no_grad():
        for number, module in enumerate(model.modules()):
            if isinstance(module, nn.BatchNorm2d):
                module.weight.copy_(torch.rand(len(module.weight), generator=torch.Generator().manual_seed(number)))
    pruned = peers.METHODS[name](base, IMAGE, 0.5).prune(model)
    # A channel of this network is 1 to 2 % of its MACs; L1 filter pruning takes a sixteenth of every layer at a time.
    assert (0.44 if name == "l1-filters" else 0.47) <= penni.count(pruned, IMAGE).macs / base.macs <= 0.5
    assert pruned(torch.randn(3, 1, 8, 8)).shape == (3, 10)


def test_l1_filters_takes_the_same_share_of_every_layer_and_the_smallest(peers: ModuleType, model: nn.Module) -> None:
    sizes = model.get_submodule("layer2.0.conv1").weight.detach().abs().sum(dim=(1, 2, 3))  # type: ignore[union-attr,operator]
    pruned = peers.METHODS["l1-filters"](penni.count(model, IMAGE), IMAGE, 0.5).prune(model)
    widths = {name: block.conv1.out_channels for name, block in peers.blocks(pruned).items()}
    assert widths["layer1.0"] / 16 == pytest.approx(widths["layer2.0"] / 32, abs=0.07)
    kept = pruned.get_submodule("layer2.0.conv1").weight.detach().abs().sum(dim=(1, 2, 3))  # type: ignore[union-attr,operator]
    torch.testing.assert_close(kept.sort().values, sizes.sort().values[-len(kept) :])


def test_magnitude_pruning_comes_gradually_and_holds_its_zeros(peers: ModuleType, model: nn.Module) -> None:
    base = penni.count(model, IMAGE)
    method = peers.METHODS["magnitude"](base, IMAGE, 0.4)
    hold, prune = method.behaviours()
    shares = []
    for step in range(4):
        moment = Moment(model, 0, 1, step, 4, 0.1, 0.9)
        hold.before_step(moment)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        hold.after_step(moment)
        prune.every = 1
        prune.after_step(moment)
        shares.append(penni.count(model, IMAGE).macs / base.macs)
    assert shares == sorted(shares, reverse=True)
    assert 0.4 < shares[-1] < 0.45
    method.prune(model)
    assert penni.count(model, IMAGE).macs / base.macs == pytest.approx(0.4, abs=0.001)
