"""A sweep runs every point once, goes on after a stop, and finds the Pareto front."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penni
from penni.cli import application
from penni.compression import decomposition_plan_of
from penni.recipes import override, read
from penni.sweeping import Point, _places, combinations, grid_of, name_of, numbers, sweep, with_front

RECIPE = """
model = "small"
data = "digits"
[retrain]
epochs = 0
[prune]
density = 0.5
[finetune]
epochs = 0
"""


@pytest.mark.parametrize(
    ("text", "expected"), [("1..4", [1, 2, 3, 4]), ("3,5,7", [3, 5, 7]), ("1..2,9", [1, 2, 9]), ("5", [5])]
)
def test_numbers(text: str, expected: list[int]) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize("text", ["", "a..b", "9..1", "1-9"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(penni.PenniError, match=r"1\.\.9"):
        numbers(text)


def test_grid() -> None:
    grid = {"decompose.bases": [3, 5], **grid_of(["retrain.gamma=1e-4,5e-5", "prune.scope=lamp"])}
    points = combinations(grid)
    assert len(points) == 4
    assert points[1] == {"decompose.bases": 3, "retrain.gamma": 5e-5, "prune.scope": "lamp"}
    assert len({name_of(point) for point in points}) == 4
    with pytest.raises(penni.PenniError, match="varies nothing"):
        grid_of(["retrain.gamma"])


def _point(accuracy: float, macs: int) -> Point:
    return Point({"d": macs}, "", 0.9, accuracy, 1, 1, 1, 100, 1, macs)


def test_the_front_has_no_beaten_point() -> None:
    points = with_front([_point(0.9, 50), _point(0.8, 60), _point(0.95, 70), _point(0.7, 10), _point(0.9, 55)])
    assert [point.best for point in points] == [True, False, True, True, False]


def _fake_process(log: list[list[str]], fail: tuple[str, ...] = (), places: list[dict[str, str]] | None = None) -> Any:
    """`subprocess.Popen` that leaves behind what a run of `penni compress` does; with `fail`, those runs break off."""

    class Process:
        def __init__(self, command: list[str], env: dict[str, str], **_options: object) -> None:
            log.append(command)
            if places is not None:
                places.append(env)
            self.folder = Path(command[command.index("--out") + 1])
            self.returncode = 2 if self.folder.name.endswith(fail or "none") else 0

        def communicate(self) -> tuple[str, str]:
            if self.returncode:
                self.folder.mkdir(parents=True)
                (self.folder / "state.safetensors").touch()
                return "", "penni: no disk space left"
            (self.folder / "checkpoint").mkdir(parents=True)
            bases = int(self.folder.name.rpartition("=")[2])
            common = {"params": 100 * bases, "macs": 1000 * bases, "test_accuracy": 0.5 + bases / 20}
            records = [{"event": name, **common} for name in ("base", "decomposed", "shrunk")]
            (self.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
            return "", ""

    return Process


def test_a_sweep_with_failures_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[list[str]] = []
    monkeypatch.setattr("penni.sweeping.subprocess.Popen", _fake_process(log, fail=("=2", "=3")))
    grid = {"decompose.bases": [1, 2, 3, 4]}
    said: list[str] = []
    with pytest.raises(penni.PenniError, match=r"bases=2 failed: no disk space"):
        sweep(tmp_path, grid, ["--recipe", "x"], say=said.append)
    assert len(log) == 4, "a run that fails does not keep the others from running"
    assert "[3/4] the run decompose.bases=3 failed: no disk space left" in said
    log.clear()
    monkeypatch.setattr("penni.sweeping.subprocess.Popen", _fake_process(log))
    points = sweep(tmp_path, grid, ["--recipe", "x"], say=lambda _text: None)
    assert [Path(command[command.index("--out") + 1]).name[-1] for command in log] == ["2", "3"]
    assert all("--resume" in command for command in log)
    assert [point.macs for point in points] == [1000, 2000, 3000, 4000]
    log.clear()
    sweep(tmp_path, grid, ["--recipe", "x"], say=lambda _text: None)
    assert log == []


def test_an_interrupt_stops_the_running_process_and_starts_no_other(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("epochs = 0", "epochs = 400"))
    out = tmp_path / "sweep"
    arguments = ["sweep", "--recipe", "recipe.toml", "--bases", "2,3", "--out", str(out)]
    command = [sys.executable, "-m", "penni.cli", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    state = out / "decompose.bases=2" / "state.safetensors"
    while not state.is_file():
        assert process.poll() is None
        time.sleep(0.05)
    # As a terminal sends it, but to the sweep alone: it must see to its processes itself.
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert told.splitlines()[-1] == "penni: stopped; the same command goes on where the sweep was"
    assert "failed" not in told
    assert not (out / "decompose.bases=3").exists()
    patience = time.monotonic() + 20
    while _commands_with(str(out)):
        assert time.monotonic() < patience, "the run that was going on must end"
        time.sleep(0.05)


def _commands_with(text: str) -> list[str]:
    """The processes, of those the system tells of, whose command has `text` in it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_text(errors="replace"))
    return [command for command in found if text in command]


def test_several_runs_at_once_share_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[dict[str, str]] = []
    monkeypatch.setattr("penni.sweeping.subprocess.Popen", _fake_process([], places=places))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    sweep(tmp_path / "gpus", {"decompose.bases": [1, 2, 3, 4]}, [], say=lambda _text: None)
    assert {place["CUDA_VISIBLE_DEVICES"] for place in places} <= {"3", "5"}
    assert len(_places(None)) == 2
    assert len(_places(4)) == 4
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert _places(None) == [{}]
    assert _places(2) == [{"OMP_NUM_THREADS": "4"}] * 2


def test_other_arguments_need_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penni.sweeping.subprocess.Popen", _fake_process([]))
    sweep(tmp_path, {"decompose.bases": [1]}, ["--recipe", "x"], say=lambda _text: None)
    with pytest.raises(penni.PenniError, match="other arguments"):
        sweep(tmp_path, {"decompose.bases": [1]}, ["--recipe", "y"], say=lambda _text: None)


def test_a_real_sweep_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    out = tmp_path / "sweep"
    arguments = ["sweep", "--recipe", str(tmp_path / "recipe.toml"), "--bases", "2,4", "--out", str(out), "--json"]
    result = CliRunner().invoke(application(), arguments, catch_exceptions=False)
    answer = json.loads(result.stdout)
    few, many = answer["points"]
    assert few["decomposed_macs"] < many["decomposed_macs"]
    assert few["values"] == {"decompose.bases": 2}
    with (out / "sweep.csv").open() as stream:
        assert [row["decompose.bases"] for row in csv.DictReader(stream)] == ["2", "4"]
    assert "<svg" in (out / "sweep.svg").read_text()
    assert (out / "decompose.bases=2" / "checkpoint" / "model.safetensors").is_file()
    assert (out / "decompose.bases=4" / "report.html").is_file()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--vary", "retrain.gama=1"], r"no field 'retrain\.gama': did you mean 'retrain\.gamma'"),
        (["--bases", "2,12"], r"bases=12 is out of range: use 1 to 9"),
        (["--vary", "model=small,smal"], r"no model 'smal'"),
    ],
)
def test_what_cannot_work_stops_the_sweep_at_once(given: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    arguments = ["sweep", "--recipe", str(tmp_path / "recipe.toml"), *given, "--out", str(tmp_path / "sweep")]
    with pytest.raises(penni.PenniError, match=message):
        CliRunner().invoke(application(), arguments, catch_exceptions=False)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("bases", [1, 9])
def test_the_recipe_of_the_benchmark_can_be_carried_out(bases: int) -> None:
    file = Path(__file__).parent.parent / "benchmarks" / "sweep" / "resnet20.toml"
    recipe = override(read(str(file)), [f"decompose.bases={bases}"])
    assert len(decomposition_plan_of(penni.build(recipe.model), recipe)) == 0, "every convolution is decomposed"
