"""A run that is killed goes on and ends with the very same weights; two processes train like one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import penni
from penni.data import open_data
from penni.recipes import override, read
from penni.training.state import RunState, read_state

RECIPE = """
model = "small"
data = "digits"
precision = "fp32"
[optimiser]
batch_size = 128
[decompose]
bases = 4
[retrain]
epochs = 4
learning_rate = 0.02
interval = 1
gamma = 1e-3
[prune]
threshold = 0.5
[finetune]
epochs = 3
learning_rate = 0.02
schedule = "cosine"
"""

# Bases at unit norm, gradual pruning and a teacher: what the short recipes do.
GRADUAL = """
model = "small"
data = "digits"
precision = "fp32"
[decompose]
bases = 4
[retrain]
epochs = 4
learning_rate = 0.02
schedule = "constant"
interval = 0
regulariser = "none"
unit_norm = true
gradual = true
distillation = 0.5
[prune]
macs = 0.3
scope = "balanced"
[finetune]
epochs = 3
learning_rate = 0.02
schedule = "cosine"
distillation = 0.5
"""

STEERED = GRADUAL.replace("macs = 0.3", 'target = { macs = "-80%" }')


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "penni.cli", "compress", "--out", str(folder), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return _recipe(tmp_path, RECIPE)


def _recipe(folder: Path, text: str) -> Path:
    file = folder / "recipe.toml"
    file.write_text(text)
    return file


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return penni.load(folder / "finetuned").state_dict()


@pytest.mark.parametrize("text", [RECIPE, GRADUAL, STEERED], ids=["alternating", "gradual", "steered"])
def test_a_killed_run_ends_with_the_very_same_weights(tmp_path: Path, text: str) -> None:
    recipe = _recipe(tmp_path, text)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole, "--recipe", str(recipe)), check=True, env=environment(), capture_output=True)
    # SIGKILL at two moments of each kind of phase; where exactly in an epoch it strikes is left to chance.
    arguments = ["--recipe", str(recipe)]
    for phase, epoch in (("retrain", 2), ("finetune", 1)):
        process = subprocess.Popen(command(killed, *arguments), env=environment(), stderr=subprocess.DEVNULL)
        while process.poll() is None and not _reached(killed, phase, epoch):
            time.sleep(0.02)
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["--resume"]
    subprocess.run(command(killed, "--resume"), check=True, env=environment(), capture_output=True)
    expected, got = weights(whole), weights(killed)
    assert expected.keys() == got.keys()
    for key, value in expected.items():
        assert torch.equal(value, got[key]), key
    one, other = (_records(folder) for folder in (whole, killed))
    assert one == other


def _reached(folder: Path, phase: str, epoch: int) -> bool:
    try:
        state = read_state(folder)
    except penni.PenniError:
        return False
    return state.phase == phase and state.epoch >= epoch


def _records(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "machine")} for line in lines]


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, "--recipe", str(recipe)),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with this signal ignored, and so would the run be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    while process.poll() is None and not _reached(folder, "retrain", 1):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate()
    assert process.returncode == 2
    assert printed.rstrip().endswith(
        f"stopped; every finished epoch is kept. Go on with: penni compress --out {folder} --resume"
    )
    assert "Traceback" not in printed
    assert read_state(folder).epoch >= 1


def test_a_run_stopped_before_its_first_state_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    model, data = penni.build("small"), open_data("digits")
    recipe = override(read("digits"), ["retrain.epochs=0", "finetune.epochs=0"])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunState, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            penni.compress(model, data, recipe, folder)
    assert not folder.exists()
    # Killed outright, it leaves what it had written.
    (folder / "base").mkdir(parents=True)
    (folder / "recipe.toml").write_text("")
    (folder / "base" / "structure.json").write_text("{}")
    penni.compress(model, data, recipe, folder)
    assert (folder / "checkpoint").is_dir()


def test_two_processes_train_like_one(tmp_path: Path, recipe: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(command(one, "--recipe", str(recipe)), check=True, env=environment(), capture_output=True)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "penni.cli"]
    answer = subprocess.run(
        [*launch, *command(two, "--recipe", str(recipe))[3:]],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    machine = _first(two)["machine"]
    assert isinstance(machine, dict)
    assert machine["processes"] == 2
    alone, together = (_events(folder) for folder in (one, two))
    assert together["decomposed"]["test_accuracy"] == pytest.approx(alone["decomposed"]["test_accuracy"], abs=1e-6)
    # The batches are the same; batch normalisation sees half of each per process, so it is equal within noise only.
    assert together["finetuned"]["test_accuracy"] == pytest.approx(alone["finetuned"]["test_accuracy"], abs=0.05)


def _first(folder: Path) -> dict[str, object]:
    first: dict[str, object] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    return first


def _events(folder: Path) -> dict[str, dict[str, float]]:
    return {str(record["event"]): record for record in _records(folder) if "event" in record}  # type: ignore[misc]
