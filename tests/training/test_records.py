"""Records of runs: what is kept of one, and the table that is made of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import penni
from penni.data import open_data
from penni.recipes import override, read

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "cifar10"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    torch.manual_seed(0)
    changes = ["retrain.epochs=1", "finetune.epochs=1", "seed=3"]
    notes = {"data": "digits", "data_dir": "/somewhere/on/this/machine", "normalise": None, "weights": "w.safetensors"}
    model = penni.build("small", channels=1)
    penni.compress(model, open_data("digits"), override(read("digits"), changes), folder, notes=notes)
    # What `penni report` would draw takes a while.
    (folder / "report" / "figures").mkdir(parents=True)
    (folder / "report" / "figures" / "curves.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (folder / "report" / "figures" / "large.svg").write_text("<svg>" + " " * 100_000 + "</svg>")
    return folder


@pytest.fixture(scope="module")
def record(run: Path) -> Path:
    target = run.parent / "results" / "kept"
    answer = script("keep.py", run, target, "--data-dir", run)
    assert answer.returncode == 0, answer.stderr
    return target


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_record_holds_the_run_and_names_no_folder_of_the_machine(run: Path, record: Path) -> None:
    about = json.loads((record / "record.json").read_text())
    assert about["command"] == (
        "penni compress --model small --weights w.safetensors --data digits --recipe digits "
        "--set retrain.epochs=1 --set finetune.epochs=1 --seed 3 --out runs/kept"
    )
    assert about["evaluated_again"] == about["events"]["shrunk"]["test_accuracy"]
    assert about["epochs"] == 2
    kept = {str(file.relative_to(record)) for file in record.rglob("*") if file.is_file()}
    assert {"recipe.toml", "metrics.jsonl", "structure.csv", "README.md", "figures/curves.svg"} <= kept
    assert "figures/large.svg" not in kept
    assert (
        (record / "structure.csv").read_text().startswith("name,size,width before,basis before,non-zero/total before")
    )
    assert not [file for file in kept if b"/somewhere" in (record / file).read_bytes()]
    image = torch.zeros(1, 1, 8, 8)
    assert penni.count(penni.load(record / "checkpoint"), image) == penni.count(penni.load(run / "checkpoint"), image)


def test_a_record_is_not_written_over_unasked(run: Path, record: Path) -> None:
    answer = script("keep.py", run, record)
    assert answer.returncode == 1
    assert "is there already: give --replace to write it anew" in answer.stderr


def test_a_note_with_a_folder_of_the_machine_is_refused(run: Path, tmp_path: Path) -> None:
    answer = script("keep.py", run, tmp_path / "kept", "--no-check", "--note", "run in /home/someone/work")
    assert answer.returncode == 1
    assert "README.md names a folder of this machine: /home/someone/work" in answer.stderr
    assert not list(tmp_path.iterdir())


def test_an_unfinished_run_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "half")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "half" / "metrics.jsonl").write_text("".join(lines[:-1]))
    answer = script("keep.py", tmp_path / "half", tmp_path / "kept")
    assert answer.returncode == 1
    assert "is not finished" in answer.stderr


def test_the_table_tells_what_was_run_missed_and_not_run(record: Path, tmp_path: Path) -> None:
    shutil.copytree(record, tmp_path / "resnet56-cifar10-short")
    about = json.loads((record / "record.json").read_text())
    for folder, accuracy, macs in (("resnet56-cifar10-short", 0.9312, 0.20), ("resnet56-cifar10-target", 0.9217, 0.22)):
        (tmp_path / folder).mkdir(exist_ok=True)
        events = about["events"]
        events["base"].update(test_accuracy=0.9339, macs=125_490_000, params=848_944)
        events["shrunk"].update(test_accuracy=accuracy, macs=macs * 125_490_000, params=42_000)
        (tmp_path / folder / "record.json").write_text(json.dumps({**about, "note": f"of {folder}"}))
    times = {"penni": 1.0, "penni, dense": 3.0, "onnxruntime, dense": 4.0, "openvino, dense": 3.5, "torch, dense": 9}
    (tmp_path / "resnet56-cifar10-short" / "latency.json").write_text(
        json.dumps({"command": "measured", "milliseconds": times})
    )
    answer = script("table.py", tmp_path)
    assert answer.returncode == 0, answer.stderr
    lines = (tmp_path / "cifar10" / "TABLE.md").read_text().splitlines()

    def row(start: str) -> str:
        return next(line for line in lines if line.startswith(start))

    met, missed = row("| ResNet56 | [ours, short](../"), row("| ResNet56 | [ours, short, steered")
    assert "93.39% | " in met
    assert "| **93.12%** | 848.94 K → 42.00 K | −95.05% | 125.49 M → 25.10 M | −80.00% |" in met
    assert met.endswith("parameters −95%: met |")
    assert missed.endswith("**missed**: accuracy 92.17 % of 93.00 %, MACs −78.00% of −79% |")
    assert "| ResNet56 | the paper's figures | paper | 93.57 % | 94.00 % | 93.38 % | 848.00 K → 39.37 K |" in "\n".join(
        lines
    )
    assert row("| VGG16 | ours, short | not run yet |")
    assert row("| ResNet56 | ours, short | -0.27 | -0.19 | 20.2 | 21.5 | 5.00 | 4.33 |")
    assert row("| ResNet56 | ours, short | 1.000 | 3.000 | 3.500 (openvino) | **3.50** |")
    assert row("- ResNet56, ours, short: of resnet56-cifar10-short")
