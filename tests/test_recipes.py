"""Recipes: the paper's settings, and mistakes that name the nearest right field."""

from __future__ import annotations

from pathlib import Path

import pytest

import penni
from penni.compression import decomposition_plan_of
from penni.recipes import names, override, read
from penni.recipes.load import to_toml


@pytest.mark.parametrize("name", ["vgg16-cifar10", "resnet18-cifar10", "resnet56-cifar10"])
def test_the_papers_cifar_settings(name: str) -> None:
    recipe = read(name)
    assert (recipe.optimiser.batch_size, recipe.optimiser.momentum, recipe.optimiser.weight_decay) == (128, 0.9, 1e-4)
    assert not recipe.optimiser.nesterov
    assert (recipe.decompose.bases, recipe.decompose.pointwise) == (5, False)
    retrain, finetune = recipe.retrain, recipe.finetune
    assert (retrain.epochs, retrain.learning_rate, retrain.schedule, retrain.interval) == (100, 0.01, "step", 5)
    assert (retrain.milestones, retrain.factor, retrain.gamma) == ([0.5, 0.75], 0.1, 1e-4)
    assert (finetune.epochs, finetune.learning_rate, finetune.schedule) == (30, 0.01, "step")


@pytest.mark.parametrize(
    ("name", "bases", "gamma"), [("r1", 5, 1e-4), ("r2", 5, 5e-5), ("r3", 6, 1e-4), ("r4", 6, 5e-5)]
)
def test_the_papers_resnet50_settings(name: str, bases: int, gamma: float) -> None:
    recipe = read(f"resnet50-imagenet-{name}")
    assert (recipe.decompose.bases, recipe.decompose.pointwise, recipe.retrain.gamma) == (bases, True, gamma)
    assert (recipe.retrain.epochs, recipe.retrain.schedule, recipe.optimiser.batch_size) == (50, "cosine", 256)
    assert (recipe.finetune.epochs, recipe.finetune.learning_rate) == (30, 0.01)


@pytest.mark.parametrize("name", names())
def test_every_recipe_fits_its_model(name: str) -> None:
    recipe = read(name)
    left = decomposition_plan_of(penni.build(recipe.model), recipe)
    if recipe.model == "torchvision:resnet50":
        assert not left
    assert read_back(recipe) == recipe
    assert recipe.about


def read_back(recipe: penni.Recipe) -> penni.Recipe:
    import tomllib

    from penni.recipes.load import from_dictionary

    return from_dictionary(tomllib.loads(to_toml(recipe)))


def test_any_field_can_be_changed() -> None:
    recipe = override(
        read("digits"),
        ["retrain.epochs=3", 'decompose.bases={"*": 5, "conv1": 7}', "seed=4", "precision=bf16", "prune.macs=0.5"],
    )
    assert (recipe.retrain.epochs, recipe.seed, recipe.precision, recipe.prune.macs) == (3, 4, "bf16", 0.5)
    assert recipe.decompose.bases == {"*": 5, "conv1": 7}
    assert read("digits").retrain.epochs != 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("retrain.epoch=3", "a recipe has no field 'retrain.epoch': did you mean 'retrain.epochs'"),
        ("retrian.epochs=3", "a recipe has no section 'retrian': did you mean 'retrain'"),
        ("gamma=3", "a recipe has no field 'gamma': did you mean 'retrain.gamma'"),
        ("retrain.epochs=many", "'retrain.epochs' takes a whole number, not 'many'"),
        ("retrain.gamma=strong", "'retrain.gamma' takes a number, not 'strong'"),
        ("retrain.gradual=1", "'retrain.gradual' takes true or false, not 1"),
        ("decompose.bases=few", "'decompose.bases' takes a whole number or a list or a table, not 'few'"),
        ("retrain.gama=1", "a recipe has no field 'retrain.gama': did you mean 'retrain.gamma'"),
        ("gama=1", "a recipe has no field 'gama': did you mean 'retrain.gamma'"),
        ("retrain.epochs=-1", "retrain.epochs = -1 is too small"),
        ("retrain.schedule=cosin", "did you mean 'cosine'"),
        ("retrain", "changes nothing: write field=value"),
        ("prune.macs=1.5", "prune.macs = 1.5 is out of range"),
    ],
)
def test_mistakes_name_the_nearest(change: str, message: str) -> None:
    with pytest.raises(penni.PenniError, match=message):
        override(read("digits"), [change])


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('model = "small"\n[retrain]\nepochs = 2\nmilestone = [0.5]\n')
    with pytest.raises(penni.PenniError, match=r"no field 'retrain\.milestone': did you mean 'retrain\.milestones'"):
        read(file)
    file.write_text("model = \n")
    with pytest.raises(penni.PenniError, match="is not valid TOML"):
        read(file)
    with pytest.raises(penni.PenniError, match="there is no recipe file"):
        read(tmp_path / "none.toml")
    with pytest.raises(penni.PenniError, match="did you mean 'resnet56-cifar10'"):
        read("resnet56-cifar")


def test_gradual_pruning_needs_an_aim() -> None:
    with pytest.raises(penni.PenniError, match=r"retrain\.gradual needs an aim"):
        override(read("resnet56-cifar10"), ["retrain.gradual=true"])
