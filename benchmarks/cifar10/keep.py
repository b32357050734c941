"""From a finished run what belongs into the repository: settings, metrics, structure, figures, the small checkpoint.

    python benchmarks/cifar10/keep.py runs/resnet56-cifar10-short results/resnet56-cifar10-short

The network is evaluated again from the files that are kept, and must give the run's accuracy. Nothing kept names a
folder of this machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from records import METRICS, RECIPE, RECORD, changes_of, machine_paths, read_metrics, training_seconds

import penni
from penni.checkpoint import read_structure
from penni.data import open_data
from penni.recipes import Recipe, read
from penni.report import write as write_report
from penni.shrinking import Report
from penni.shrinking.report import compare
from penni.training.loop import Trainer

# Larger files stay where they are; a checkpoint of the method is far smaller.
MOST_KILOBYTES = 4000
MOST_KILOBYTES_OF_A_FIGURE = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished run of penni compress")
    parser.add_argument("record", type=Path, help="the folder to make, such as results/resnet56-cifar10-short")
    parser.add_argument("--command", help="the command that made the run; by default it is told from its settings")
    parser.add_argument("--note", default="", help="a sentence that belongs to this run")
    parser.add_argument("--data-dir", type=Path, help="where the data set is, if not in its usual place")
    parser.add_argument("--replace", action="store_true", help="write over an earlier record")
    parser.add_argument("--no-check", action="store_true", help="do not evaluate the kept network again")
    arguments = parser.parse_args()
    try:
        print(keep(arguments))
    except penni.PenniError as error:
        sys.exit(f"keep.py: {error}")


def keep(arguments: argparse.Namespace) -> str:
    """Make the record; the sentence that says what it is."""
    run, record = arguments.run, arguments.record
    if not (run / METRICS).is_file() or not (run / RECIPE).is_file():
        raise penni.PenniError(f"'{run}' is not the folder of a compression run")
    events, epochs = read_metrics(run)
    if "shrunk" not in events or not (run / "checkpoint").is_dir():
        raise penni.PenniError(f"the run in '{run}' is not finished: penni compress --out {run} --resume")
    if record.exists() and not arguments.replace:
        raise penni.PenniError(f"'{record}' is there already: give --replace to write it anew")
    recipe = read(run / RECIPE)
    record.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=record.parent) as place:
        folder = Path(place) / record.name
        folder.mkdir()
        for name in (RECIPE, METRICS):
            shutil.copy(run / name, folder / name)
        structure = Report(compare(penni.load(run / "finetuned"), penni.load(run / "checkpoint")))
        (folder / "structure.csv").write_text(structure.table("csv"))
        kept = _copy_checkpoint(run, folder)
        _copy_figures(run, folder)
        about = {
            "command": arguments.command or command_of(run, recipe, record.name),
            "note": arguments.note,
            "model": recipe.model or read_structure(run / "base").get("model", {}).get("name", ""),
            "data": read_structure(run / "checkpoint")["notes"]["data"],
            "seed": recipe.seed,
            "epochs": len(epochs),
            "training_seconds": round(training_seconds(epochs)),
            "machine": events["base"]["machine"],
            "events": {name: _plain(event) for name, event in events.items()},
        }
        if kept and not arguments.no_check:
            about["evaluated_again"] = _evaluate(folder / "checkpoint", run, arguments.data_dir)
            expected = events["shrunk"]["test_accuracy"]
            if about["evaluated_again"] != expected:
                raise penni.PenniError(
                    f"the kept network has an accuracy of {about['evaluated_again']}, the run says {expected}"
                )
        (folder / RECORD).write_text(json.dumps(about, indent=1) + "\n")
        (folder / "README.md").write_text(_page(record.name, about, structure))
        _refuse_machine_paths(folder)
        if record.exists():
            shutil.rmtree(record)
        folder.rename(record)
    size = sum(file.stat().st_size for file in record.rglob("*") if file.is_file())
    return f"{record}: {size / 1000:,.0f} KB" + ("" if kept else ", without the checkpoint, which is too large")


def command_of(run: Path, recipe: Recipe, name: str) -> str:
    """The command that makes this run again, from its settings and how they differ from the recipe of that name."""
    notes = read_structure(run / "checkpoint")["notes"]
    origin = read_structure(run / "base").get("model", {}).get("name", "MODEL")
    changes = changes_of(recipe)
    parts = ["penni", "compress", "--model", notes.get("model") or recipe.model or origin]
    parts += ["--weights", notes["weights"]] if notes.get("weights") else []
    parts += ["--data", notes["data"]]
    normalise = notes.get("normalise")
    parts += ["--normalise", normalise] if normalise and normalise != recipe.normalise else []
    parts += ["--recipe", recipe.name if changes is not None else f"results/{name}/{RECIPE}", *(changes or [])]
    return shlex.join([*parts, "--out", f"runs/{name}"])


def _copy_checkpoint(run: Path, folder: Path) -> bool:
    source, target = run / "checkpoint", folder / "checkpoint"
    if sum(file.stat().st_size for file in source.iterdir()) > MOST_KILOBYTES * 1000:
        return False
    shutil.copytree(source, target)
    # Where the data lay on this machine says nothing on another.
    structure = json.loads((target / "structure.json").read_text())
    structure["notes"]["data_dir"] = None
    (target / "structure.json").write_text(json.dumps(structure, indent=1) + "\n")
    return True


def _copy_figures(run: Path, folder: Path) -> None:
    figures = run / "report" / "figures"
    if not figures.is_dir():
        write_report(run, measured=False)
    chosen = [
        file for file in sorted(figures.glob("*.svg")) if file.stat().st_size <= MOST_KILOBYTES_OF_A_FIGURE * 1000
    ]
    (folder / "figures").mkdir()
    for file in chosen:
        shutil.copy(file, folder / "figures" / file.name)


def _evaluate(checkpoint: Path, run: Path, data_dir: Path | None) -> float:
    notes = read_structure(run / "checkpoint")["notes"]
    source = open_data(notes["data"], data_dir or notes.get("data_dir"), notes.get("normalise"))
    accuracy, _ = penni.evaluate(penni.load(checkpoint), source, Trainer(precision="fp32"))
    return accuracy


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("event", "machine")}


def _page(name: str, about: dict[str, Any], structure: Report) -> str:
    base = about["events"]["base"]
    lines = [f"# {name}", "", *([about["note"], ""] if about["note"] else [])]
    lines += ["```console", about["command"], f"penni eval results/{name}/checkpoint", "```", ""]
    machine = about["machine"]
    lines += [
        f"{about['epochs']} epochs in {about['training_seconds'] / 60:.0f} minutes of training, seed {about['seed']}; "
        f"{machine['processor']}, {machine['threads']} threads, {machine['precision']}, penni {machine['penni']}, "
        f"torch {machine['torch']}, {machine['date']}.",
        "",
        "| after | test accuracy | parameters | | MACs | |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for phase, event in about["events"].items():
        params, macs = event["params"], event["macs"]
        lines.append(
            f"| {phase} | {event['test_accuracy']:.2%} | {params:,} | {params / base['params'] - 1:+.2%} "
            f"| {macs / 1e6:.2f} M | {macs / base['macs'] - 1:+.2%} |"
        )
    for target in about["events"]["shrunk"].get("targets", []):
        lines += ["", f"Target {target['target']}: ended {target['difference']:+.2%} of it away."]
    lines += ["", "Layers before and after shrinking, as in the paper's appendix:", "", structure.table()]
    return "\n".join(lines)


def _refuse_machine_paths(folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".json", ".jsonl", ".toml", ".md", ".csv", ".svg"):
            found = machine_paths(file.read_text())
            if found:
                raise penni.PenniError(f"{file.relative_to(folder)} names a folder of this machine: {found[0]}")


if __name__ == "__main__":
    main()
