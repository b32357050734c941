"""Recipes: the paper's settings, and mistakes that name the nearest right field."""

from __future__ import annotations

from pathlib import Path

import pytest

import penni
from penni.compression import decomposition_plan_of
from penni.recipes import names, override, read, with_target
from penni.recipes.load import to_toml
from penni.recipes.targets import parse_target, split_targets


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


@pytest.mark.parametrize(
    ("quantity", "text", "limit"),
    [
        ("macs", "-80%", 20.0),
        ("macs", "−80 %", 20.0),
        ("params", "20x", 5.0),
        ("latency", "2x", 50.0),
        ("latency", "1.5ms", 1.5),
        ("params", "40K", 40_000.0),
        ("macs", "2.5e6", 2.5e6),
        ("macs", "25M", 25e6),
    ],
)
def test_targets_as_people_write_them(quantity: str, text: str, limit: float) -> None:
    """For a base network that costs 100."""
    assert parse_target(quantity, text).limit(100) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("macs=80%", "does not say whether to keep or to remove: write macs=-80% to remove 80 %"),
        ("macs=-120%", "makes nothing smaller, or leaves nothing"),
        ("macs=0.5x", "makes nothing smaller, or leaves nothing"),
        ("latency=0x", "the target 'latency=0x' is not understood: write latency=2x"),
        ("latency=5M", "the target 'latency=5M' is not understood: write latency=2x"),
        ("params=3ms", "is not understood: write params=-95% or params=40K"),
        ("params=", "is not understood: write params=-95% or params=40K"),
        ("-80%", "the target '-80%' is not understood: write macs=-80%, params=-95% or latency=2x"),
        ("parms=-80%", "there is no target 'parms': did you mean 'params'"),
        ("macs=-80%,macs=-70%", "there are two targets for macs, -80% and -70%: give one"),
    ],
)
def test_targets_that_are_not_understood(text: str, message: str) -> None:
    with pytest.raises(penni.PenniError, match=message):
        split_targets([text])


def test_a_target_takes_the_place_of_the_recipes_aim() -> None:
    recipe, said = with_target(read("resnet56-cifar10-short"), ["macs=-80%", "params=-95%"])
    assert recipe.prune.target == {"macs": "-80%", "params": "-95%"}
    assert (recipe.prune.macs, recipe.prune.params) == (0.0, 0.0)
    assert read_back(recipe) == recipe
    assert said == (
        "the target macs=-80%, params=-95% takes the place of the recipe's prune.macs = 0.245 and prune.params = 0.0695"
    )
    assert "takes the place of the recipe's prune.threshold = 1.0" in with_target(read("vgg16-cifar10"), ["macs=5x"])[1]
    # What may only be set beside a target is set with it.
    changed, said = with_target(read("vgg16-cifar10"), ["macs=5x"], ["retrain.gradual=true", "retrain.epochs=3"])
    assert (changed.retrain.gradual, changed.retrain.epochs) == (True, 3)
    assert "at once" not in said
    # The same without --target, in a recipe or by --set.
    assert override(read("vgg16-cifar10"), ['prune.target={"macs": "5x"}']).prune.targets[0].share == 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ['prune.target={macs = "-80%"}'],
            r"prune\.target and prune\.macs both say how far to prune: set prune\.macs=0",
        ),
        (['prune.target={speed = "2x"}', "prune.macs=0", "prune.params=0"], "there is no target 'speed'"),
        (
            ['prune.target={macs = "-80%"}', "prune.macs=0", "prune.params=0", "retrain.regulariser=proximal-l1"],
            "the penalty proximal-l1 makes zeros of its own",
        ),
    ],
)
def test_targets_that_a_recipe_cannot_have(changes: list[str], message: str) -> None:
    with pytest.raises(penni.PenniError, match=message):
        override(read("digits"), changes)
