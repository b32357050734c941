"""A sweep runs every point once, goes on after a stop, and finds the Pareto front."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penni
from penni.cli import application
from penni.sweeping import Point, combinations, grid_of, name_of, numbers, sweep, with_front

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


def _fake_process(log: list[list[str]], fail_at: int | None = None) -> Any:
    """`subprocess.run` that leaves behind what a run of `penni compress` does."""

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        log.append(command)
        folder = Path(command[command.index("--out") + 1])
        if fail_at is not None and len(log) > fail_at:
            (folder).mkdir(parents=True)
            (folder / "state.safetensors").touch()
            return subprocess.CompletedProcess(command, 2, "", "penni: no disk space left")
        (folder / "checkpoint").mkdir(parents=True)
        bases = int(folder.name.rpartition("=")[2])
        common = {"params": 100 * bases, "macs": 1000 * bases, "test_accuracy": 0.5 + bases / 20}
        records = [{"event": name, **common} for name in ("base", "decomposed", "shrunk")]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[list[str]] = []
    monkeypatch.setattr("penni.sweeping.subprocess.run", _fake_process(log, fail_at=2))
    grid = {"decompose.bases": [1, 2, 3, 4]}
    with pytest.raises(penni.PenniError, match=r"bases=3 failed: no disk space"):
        sweep(tmp_path, grid, ["--recipe", "x"], say=lambda _text: None)
    first = len(log)
    monkeypatch.setattr("penni.sweeping.subprocess.run", _fake_process(log))
    for folder in tmp_path.glob("decompose.bases=[34]"):
        assert (folder / "state.safetensors").is_file()
    points = sweep(tmp_path, grid, ["--recipe", "x"], say=lambda _text: None)
    again = log[first:]
    assert [Path(command[command.index("--out") + 1]).name[-1] for command in again] == ["3", "4"]
    assert "--resume" in again[0]
    assert [point.macs for point in points] == [1000, 2000, 3000, 4000]
    log.clear()
    sweep(tmp_path, grid, ["--recipe", "x"], say=lambda _text: None)
    assert log == []


def test_other_arguments_need_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penni.sweeping.subprocess.run", _fake_process([]))
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
