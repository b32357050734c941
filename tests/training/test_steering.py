"""Targets: the finished, shrunk network ends within one percent of what was asked, or it is said why not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import penni
from penni.pruning import kill_dead_filters
from penni.recipes import read
from penni.recipes.targets import parse_target, split_targets
from penni.training.search import Search
from penni.training.steering import TOLERANCE, Steering

Command = Callable[..., tuple[int, str, str]]
IMAGE = torch.zeros(2, 1, 8, 8)


@pytest.fixture(scope="module")
def base() -> nn.Module:
    torch.manual_seed(0)
    return penni.build("small", channels=1).eval()


def steering(base: nn.Module, decomposed: nn.Module, *targets: str, clock: object = None) -> Steering:
    wanted = [parse_target(name, text) for name, text in split_targets(targets).items()]
    counts = penni.count(base, IMAGE), penni.count(decomposed, IMAGE)
    return Steering(wanted, *counts, IMAGE, scope="balanced", clock=clock)  # type: ignore[arg-type]


def shares(base: nn.Module, model: nn.Module) -> dict[str, float]:
    """MACs and parameters of `model` after shrinking, by penni.count alone."""
    model = copy.deepcopy(model)
    kill_dead_filters(model, IMAGE)
    before, after = penni.count(base, IMAGE), penni.count(penni.shrink(model, IMAGE).model, IMAGE)
    return {"macs": after.macs / before.macs, "params": after.params / before.params}


@pytest.mark.parametrize(
    ("target", "share"),
    [("macs=-60%", 0.4), ("macs=-80%", 0.2), ("macs=-90%", 0.1), ("macs=8x", 0.125), ("params=-80%", 0.2)],
)
def test_a_target_is_met_after_shrinking(base: nn.Module, target: str, share: float) -> None:
    model = penni.decompose(base, 4)
    steering(base, model, target).finish(model)
    reached = shares(base, model)[target.partition("=")[0]]
    assert share * (1 - TOLERANCE) <= reached <= share


def test_of_several_targets_the_hardest_is_met_and_no_other_missed(base: nn.Module) -> None:
    model = penni.decompose(base, 4)
    steering(base, model, "macs=-50%,params=-85%").finish(model)
    reached = shares(base, model)
    assert reached["macs"] <= 0.5
    assert 0.15 * (1 - TOLERANCE) <= reached["params"] <= 0.15


def test_an_amount_is_a_target_too(base: nn.Module) -> None:
    model = penni.decompose(base, 4)
    steering(base, model, "params=3.1K").finish(model)
    assert shares(base, model)["params"] * penni.count(base, IMAGE).params == pytest.approx(3100 * 0.995, rel=0.006)


def test_where_the_cost_jumps_others_go_instead(base: nn.Module) -> None:
    """Filters of one coefficient each: taking the lowest-scored ends far below the target."""
    model = penni.decompose(base, 4)
    reader = model.get_submodule("layer1.0.conv2")
    maker = model.get_submodule("layer1.0.conv1")
    assert isinstance(reader, penni.BasisConv2d)
    assert isinstance(maker, penni.BasisConv2d)
    with torch.no_grad():
        # All filters of the first hang on single coefficients, which go first; each takes its readers with it.
        keep = torch.zeros_like(maker.coefficients)
        keep[:, 0, 0] = 1e-4
        maker.coefficients.mul_(keep)
        reader.coefficients.mul_(1e3)
    steered = steering(base, model, "macs=-60%")
    steered.finish(model)
    assert 0.4 * (1 - TOLERANCE) <= shares(base, model)["macs"] <= 0.4


def test_what_is_met_is_left_alone(base: nn.Module) -> None:
    model = penni.decompose(base, 4)
    steered = steering(base, model, "macs=-75%")
    steered.finish(model)
    before = [layer.clone() for layer in model.state_dict().values()]
    steered.finish(model)
    assert all(torch.equal(one, other) for one, other in zip(before, model.state_dict().values(), strict=True))


def test_the_aim_on_the_way_is_a_little_short_of_the_target(base: nn.Module) -> None:
    from penni.pruning import prune_to

    model = penni.decompose(base, 4)
    prune_to(model, steering(base, model, "macs=-80%").aim(model), 1.0, scope="balanced")
    assert 0.2 <= shares(base, model)["macs"] <= 0.22


def test_a_time_is_steered_to_by_measuring_shrunk_copies(base: nn.Module) -> None:
    timed = []

    def clock(model: nn.Module) -> tuple[float, float]:
        """As an engine that needs a fixed time beside what it computes."""
        timed.append(model)
        return tuple(0.02 + penni.count(one, IMAGE).macs / 1e6 for one in (model, base))  # type: ignore[return-value]

    model = penni.decompose(base, 4)
    steered = steering(base, model, "latency=3x", clock=clock)
    steered.check(model)
    steered.finish(model)
    outcome = steered.after_shrinking(model)[0]
    assert outcome.base / outcome.reached == pytest.approx(3, rel=TOLERANCE)
    assert "times faster" in outcome.text()
    assert 3 <= len(timed) <= 20


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("macs=-99.9%",), r"macs=-99.9% cannot be reached: with one coefficient left per layer it would be -9\d\.\d%"),
        (("params=-20%",), r"params=-20% asks for less than decomposition alone saves \(-5\d\.\d%\)"),
        (("macs=-5%", "params=-99%"), "params=-99% cannot be reached"),
    ],
)
def test_what_cannot_be_is_said(base: nn.Module, targets: tuple[str, ...], message: str) -> None:
    model = penni.decompose(base, 4)
    with pytest.raises(penni.PenniError, match=message):
        steering(base, model, *targets).check(model)


@pytest.mark.parametrize("power", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("guess", [0, 500, 9999])
def test_the_search_finds_the_window_of_any_falling_cost(power: float, guess: int) -> None:
    search = Search((0.99, 1.0), 0, 9999)
    search.run(lambda taken: 0.1 + 5 * (1 - taken / 10000) ** power, guess, 40)
    assert search.found is not None
    assert 0.99 <= search.costs[search.found] <= 1.0
    assert len(search.costs) <= 15


def test_the_search_ends_beside_a_jump() -> None:
    search = Search((0.99, 1.0), 0, 1000)
    search.run(lambda taken: 1.5 if taken < 617 else 0.5, 300, 40)
    assert search.found is None
    assert (search.low, search.high) == (616, 617)
    assert search.nearest(below=True) == 617


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from penni.data import open_data
    from penni.training.loop import Phase, Trainer
    from penni.training.run import train

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("trained") / "base"
    model = penni.build("small", channels=1)
    train(model, open_data("digits"), Phase("train", 2, 0.1, schedule="one-cycle"), folder, trainer=Trainer())
    return folder / "checkpoint"


SHORT = ("--set", "retrain.epochs=2", "--set", "finetune.epochs=1", "--no-report")


def test_a_run_ends_at_its_target(trained: Path, tmp_path: Path, penni_command: Command) -> None:
    code, printed, said = penni_command(
        "compress", "--model", trained, "--data", "digits", "--recipe", "digits", "--target", "macs=-80%", *SHORT,
        "--out", "run",
    )  # fmt: skip
    assert code == 0, said
    assert "target macs=-80% takes the place of the recipe's prune.macs = 0.2 and prune.params = 0.15" in said
    assert read(tmp_path / "run" / "recipe.toml").prune.target == {"macs": "-80%"}
    macs = [penni.count(penni.load(folder), IMAGE).macs for folder in (trained, tmp_path / "run" / "checkpoint")]
    assert macs[1] / macs[0] == pytest.approx(0.2, rel=0.01)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    outcome = records[-1]["targets"][0]
    assert (outcome["target"], outcome["reached"], outcome["base"]) == ("macs=-80%", macs[1], macs[0])
    # Bit by bit: after the first epoch it is on the way.
    on_the_way = next(record["shrunk_macs"] for record in records if record.get("phase") == "retrain")
    assert 0.2 < on_the_way < 0.66
    assert "macs=-80%: " in said
    assert printed


def test_a_recipe_with_a_threshold_ends_at_a_target_too(trained: Path, tmp_path: Path, penni_command: Command) -> None:
    recipe = tmp_path / "papers.toml"
    recipe.write_text(
        "[decompose]\nbases = 4\n[retrain]\nepochs = 1\ninterval = 1\ngamma = 1e-3\n[finetune]\nepochs = 1\n"
    )
    code, _, said = penni_command(
        "compress", "--model", trained, "--data", "digits", "--recipe", recipe, "--target", "params=-80%",
        "--no-report", "--out", "run",
    )  # fmt: skip
    assert code == 0, said
    assert "takes the place of the recipe's prune.threshold = 1.0; all is pruned at once" in said
    params = [penni.count(penni.load(folder), IMAGE).params for folder in (trained, tmp_path / "run" / "checkpoint")]
    assert params[1] / params[0] == pytest.approx(0.2, rel=0.01)


def test_the_engines_time_is_a_target(trained: Path, tmp_path: Path, penni_command: Command) -> None:
    """How near it comes depends on the machine; that it is measured, steered to and told does not."""
    code, _, said = penni_command(
        "compress", "--model", trained, "--data", "digits", "--recipe", "digits", "--target", "latency=3.3x", "--set",
        "retrain.epochs=1", "--set", "retrain.until=0.5", "--set", "finetune.epochs=0", "--no-report",
        "--out", "run",
    )  # fmt: skip
    assert code == 0, said
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    outcome = records[-1]["targets"][0]
    assert outcome["limit"] == pytest.approx(outcome["base"] / 3.3)
    assert 0 < outcome["reached"] < outcome["base"]
    assert all("shrunk_latency" in record for record in records if record.get("phase") == "retrain")
    assert f"({outcome['base'] / outcome['reached']:.2f} times faster)" in said


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("macs=-99.9%", "the target macs=-99.9% cannot be reached"),
        ("macs=80%", "does not say whether to keep or to remove: write macs=-80% to remove 80 %"),
        ("latncy=2x", "there is no target 'latncy': did you mean 'latency'?"),
    ],
)
def test_a_target_that_cannot_be_leaves_no_folder(
    trained: Path, tmp_path: Path, penni_command: Command, target: str, message: str
) -> None:
    code, _, said = penni_command(
        "compress", "--model", trained, "--data", "digits", "--recipe", "digits", "--target", target, "--out", "run"
    )
    assert code == 2
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
