"""The command line as a user meets it: what it prints, and one sentence with exit code 2 for mistakes."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penni
from penni.cli import COMMANDS

Command = Callable[..., tuple[int, str, str]]

SHORT = [
    *("--set", "retrain.epochs=2", "--set", "finetune.epochs=1"),
    *("--set", "optimiser.batch_size=256", "--precision", "fp32"),
]


def test_count_as_json(penni_command: Command) -> None:
    code, out, _ = penni_command("count", "--model", "resnet56", "--json")
    result = json.loads(out)
    assert (code, result["params"], result["macs"]) == (0, 848944, 125485696)
    code, out, _ = penni_command("count", "--model", "resnet56", "--bases", 5)
    assert "92.80 M MACs" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(penni_command: Command, name: str) -> None:
    code, out, _ = penni_command(name, "--help")
    assert code == 0
    assert "Usage: penni" in out


@pytest.mark.parametrize(
    "arguments", [["--help"], ["count", "--help"], ["data", "--help"], ["data", "fetch", "--help"]]
)
def test_help_shows_no_type_where_nothing_is_to_be_written(penni_command: Command, arguments: list[str]) -> None:
    code, out, _ = penni_command(*arguments, "--help")
    assert code == 0
    assert "--help" in out
    assert "<bool>" not in out


def test_the_version(penni_command: Command) -> None:
    assert penni_command("--version") == (0, f"penni {penni.__version__}\n", "")


def _no_such_folder() -> None:
    Path("nowhere/a").write_text("")


def _too_large() -> None:
    with Path("a.bin").open("wb") as stream:
        stream.write(b"some")
        raise OSError(errno.EFBIG, "File too large")


def _no_connection() -> None:
    raise ConnectionError("nobody answers")


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (_no_such_folder, "'nowhere/a' cannot be read or written (No such file or directory): mend that, or name"),
        (_too_large, "'a.bin' cannot be read or written (File too large)"),
        (_no_connection, "the system reports an error: nobody answers"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    penni_command: Command, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None], message: str
) -> None:
    monkeypatch.setitem(COMMANDS, "info", fail)  # type: ignore[arg-type]
    code, _, err = penni_command("info")
    assert (code, err.count("\n")) == (2, 1)
    assert f"penni: {message}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count"], "penni: name one: a checkpoint folder, or a model with --model\n"),
        (["count", "--model", "resnet5"], "there is no model 'resnet5': did you mean 'resnet56'?"),
        (["count", "--model", "resnet20", "--bases", 12], "bases=12 is out of range: use 1 to 9"),
        (["count", "--model", "resnet20", "--input-size", "32"], "write channels×height×width"),
        (["count", "nowhere"], "there is no model 'nowhere'"),
        (["count", "."], "'.' is not a checkpoint: it has no structure.json"),
        (["data", "fetch", "cifar10", "--data-dir", "/proc/x"], "'/proc/x' cannot be written (No such file"),
        (["eval", "nowhere"], "there is no checkpoint folder 'nowhere'"),
        (["eval", "--model", "small"], "say what to test on"),
        (["compress", "--out", "x", "--recipe", "resnet56"], "there is no recipe 'resnet56': did you mean"),
        (["compress", "--out", "x"], "name a recipe with --recipe"),
        (["compress", "--out", "x", "--resume"], "there is no run to resume in 'x'"),
        (["compress", "--out", "x", "--recipe", "digits", "--set", "retrain.epoch=1"], "did you mean 'retrain.epochs'"),
        (["compress", "--out", "x", "--recipe", "digits", "--weights", "none.pth"], "there is no weights file"),
        (["compress", "--out", "x", "--recipe", "resnet56-cifar10"], "has no CIFAR-10 files; get them with"),
        (["eval", "--model", "small", "--data", "digits", "--data-dir", "/nowhere"], "there is no folder '/nowhere'"),
        (["train", "--out", "x", "--model", "small", "--data", "digits", "--batch-size", 0], "a batch of 0 images"),
        (["train", "--out", "x"], "say what to train on what"),
        (["train", "--out", "x", "--model", "small", "--data", "digits", "--schedule", "stepp"], "did you mean 'step'"),
        (["data", "fetch", "cifar100"], "did you mean 'cifar10'"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_mistakes(penni_command: Command, tmp_path: Path, arguments: list[object], message: str) -> None:
    code, _, err = penni_command(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_train_eval_compress(penni_command: Command, tmp_path: Path) -> None:
    code, _, err = penni_command(
        *("train", "--model", "small", "--data", "digits", "--epochs", 2, "--learning-rate", 0.1),
        *("--schedule", "one-cycle", "--precision", "fp32", "--out", "base"),
    )
    assert code == 0, err
    assert "trained: accuracy" in err
    code, out, err = penni_command(
        "compress", "--model", "base", "--data", "digits", "--recipe", "digits", *SHORT, "--out", "run", "--json"
    )
    assert code == 0, err
    events = json.loads(out)
    assert list(events) == ["base", "decomposed", "retrained", "pruned", "finetuned", "shrunk"]
    assert events["shrunk"]["macs"] <= 0.2 * events["base"]["macs"]
    code, out, err = penni_command("eval", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] == events["shrunk"]["test_accuracy"]
    code, out, err = penni_command("count", "run", "--json")
    assert (json.loads(out)["params"], json.loads(out)["macs"]) == (
        events["shrunk"]["params"],
        events["shrunk"]["macs"],
    )
    # What is there is never mixed with something new.
    code, _, err = penni_command("compress", "--recipe", "digits", "--out", "run")
    assert code == 2
    assert "'run' already holds a run" in err
    code, _, err = penni_command("train", "--out", "run", "--resume")
    assert code == 2


def test_a_run_that_diverges_stops_and_keeps_the_last_good_state(penni_command: Command, tmp_path: Path) -> None:
    code, _, err = penni_command(
        *("compress", "--recipe", "digits", *SHORT, "--set", "retrain.learning_rate=1e30", "--out", "run"),
    )
    assert code == 2
    assert "the loss became" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert penni.load(tmp_path / "run" / "decomposed") is not None


def test_help_needs_no_torch() -> None:
    """On a device that only runs packed networks there is none."""
    code = "import sys, penni.cli; penni.cli.application(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
