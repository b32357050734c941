"""One change at a time from the paper's method to ours, with equal epochs: runs, table and figure.

    python benchmarks/ablation/run.py --model resnet56 --weights resnet56-cifar10.safetensors --data cifar10 \
        --normalise imagenet --target macs=-77% --runs runs/ablation-resnet56 --record results/ablation/resnet56

Every step is a run of `penni compress`, in a process of its own; given again, the command keeps what is finished and
goes on with what was stopped. Table and figure are written after every run, from what is there. `--only` chooses
steps, and `--seeds 0,1` repeats them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steps import Step, fields_up_to, steps

from penni.recipes import read
from penni.report.drawing import FOR_FILES, style, svg_file

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Result:
    """One finished run."""

    step: Step
    seed: int
    events: dict[str, dict[str, Any]]
    epochs: list[dict[str, Any]]

    def accuracy(self, event: str = "shrunk") -> float:
        """In percent."""
        return float(100 * self.events[event]["test_accuracy"])

    def gone(self, what: str) -> float:
        """The share of the base network's MACs or parameters that is gone."""
        return float(1 - self.events["shrunk"][what] / self.events["base"][what])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="as for penni compress")
    parser.add_argument("--weights")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--normalise", default="cifar10", help="what the weights were trained with")
    parser.add_argument("--recipe", default="resnet56-cifar10", help="the paper's recipe, from which all begin")
    parser.add_argument("--bases", type=int, default=5)
    parser.add_argument("--retrain", type=int, default=8, help="epochs of retraining")
    parser.add_argument("--finetune", type=int, default=14, help="epochs of fine-tuning")
    parser.add_argument("--target", default="macs=-77%", help="where all steps but the first end")
    parser.add_argument("--only", help="steps, with commas between")
    parser.add_argument(
        "--seeds", default="0", help="seeds, with commas between; the first one of all steps goes first"
    )
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--record", type=Path, required=True, help="the folder of what is kept")
    arguments = parser.parse_args()
    known = steps(arguments.retrain, arguments.finetune)
    names = arguments.only.split(",") if arguments.only else [step.name for step in known]
    unknown = set(names) - {step.name for step in known}
    if unknown:
        sys.exit(f"run.py: there is no step {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in known)}")
    for seed in map(int, arguments.seeds.split(",")):
        for step in known:
            if step.name in names:
                run(arguments, known, step, seed)
                write(arguments.record, results(arguments, known))


def run(arguments: argparse.Namespace, known: list[Step], step: Step, seed: int) -> None:
    """Begin a run, go on with it, or leave it if it is finished; then keep its metrics and recipe."""
    folder = arguments.runs / f"{step.name}-seed{seed}"
    if finished(folder) is None:
        if (folder / "state.safetensors").is_file():
            command = ["--out", str(folder), "--resume"]
        else:
            command = [*options(arguments, known, step, seed), "--out", str(folder)]
        data_dir = ["--data-dir", arguments.data_dir] if arguments.data_dir else []
        print(f"{folder.name}: penni compress {shlex.join(command)}", flush=True)
        subprocess.run([sys.executable, "-m", "penni.cli", "compress", "--no-report", *command, *data_dir], check=True)
    kept = arguments.record / folder.name
    kept.mkdir(parents=True, exist_ok=True)
    for name in (METRICS, "recipe.toml"):
        shutil.copy(folder / name, kept / name)
    # Where files lay on this machine says nothing on another.
    command = [
        Path(part).name if part in (arguments.model, arguments.weights) and Path(part).is_absolute() else part
        for part in ["penni", "compress", *options(arguments, known, step, seed)]
    ]
    (kept / "command.txt").write_text(shlex.join(command) + "\n")


def options(arguments: argparse.Namespace, known: list[Step], step: Step, seed: int) -> list[str]:
    """What `penni compress` is given for a step."""
    chosen = ["--recipe", arguments.recipe, "--model", arguments.model]
    chosen += ["--weights", arguments.weights] if arguments.weights else []
    chosen += ["--data", arguments.data, "--normalise", arguments.normalise, "--seed", str(seed)]
    chosen += ["--set", f"decompose.bases={arguments.bases}"]
    for field, value in fields_up_to(known, step.name).items():
        chosen += ["--set", f"{field}={value}"]
    return chosen + (["--target", arguments.target] if step.steered else [])


def finished(folder: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]] | None:
    """The events and epochs of a run that is finished."""
    if not (folder / METRICS).is_file():
        return None
    records = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    events = {record["event"]: record for record in records if "event" in record}
    return (events, [record for record in records if "phase" in record]) if "shrunk" in events else None


def results(arguments: argparse.Namespace, known: list[Step]) -> list[Result]:
    """Everything that is kept, in the order of the steps."""
    found = []
    for step in known:
        for folder in sorted(arguments.record.glob(f"{step.name}-seed*")):
            records = finished(folder)
            epochs = read(folder / "recipe.toml")
            if records is None:
                continue
            if (epochs.retrain.epochs, epochs.finetune.epochs) != (arguments.retrain, arguments.finetune):
                sys.exit(f"run.py: {folder} has other epochs than the rest: use another folder for the record")
            found.append(Result(step, int(folder.name.rpartition("seed")[2]), *records))
    return found


def write(record: Path, found: list[Result]) -> None:
    """The table and the figure."""
    if not found:
        return
    base = found[0]
    machine = base.events["base"]["machine"]
    epochs = len(base.epochs)
    lines = [
        "# One change at a time",
        "",
        f"Base accuracy {base.accuracy('base'):.2f} %; {epochs} epochs in every run. Each line has all changes of the "
        f"lines above it. {machine['processor']}, {machine['threads']} threads, {machine['precision']}, penni "
        f"{machine['penni']}, torch {machine['torch']}, {machine['date']}. Made by `benchmarks/ablation/run.py`; each "
        "run's command, recipe and metrics are in its folder here.",
        "",
        "| change | seeds | after retraining | after pruning | at the end | MACs gone | parameters gone | change |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    before = None
    for step, runs in by_step(found):
        mean = statistics.mean(run.accuracy() for run in runs)
        spread = (
            f" ({min(r.accuracy() for r in runs):.2f}–{max(r.accuracy() for r in runs):.2f})" if len(runs) > 1 else ""
        )
        cells = [
            step.title,
            ", ".join(str(run.seed) for run in runs),
            *(f"{statistics.mean(run.accuracy(event) for run in runs):.2f} %" for event in ("retrained", "pruned")),
            f"**{mean:.2f} %**{spread}",
            *(f"{statistics.mean(run.gone(what) for run in runs):.2%}" for what in ("macs", "params")),
            "" if before is None else f"{mean - before:+.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        before = mean
    record.mkdir(parents=True, exist_ok=True)
    (record / "TABLE.md").write_text("\n".join(lines) + "\n")
    draw(record / "ablation.svg", found)


def by_step(found: list[Result]) -> list[tuple[Step, list[Result]]]:
    """The runs of each step, in order."""
    order = list(dict.fromkeys(run.step for run in found))
    return [(step, [run for run in found if run.step == step]) for step in order]


def draw(file: Path, found: list[Result]) -> None:
    """Left the accuracy at the end, each seed a dot; right how each step got there."""
    groups = by_step(found)
    with style(FOR_FILES) as new_figure:
        figure = new_figure(figsize=(11, 0.42 * len(groups) + 2))
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        for place, (_, runs) in enumerate(groups):
            pruned = [run.accuracy("pruned") for run in runs]
            ends = [run.accuracy() for run in runs]
            left.scatter(
                ends, [place] * len(ends), color=FOR_FILES.after, zorder=3, label="" if place else "at the end"
            )
            left.plot([statistics.mean(ends)] * 2, [place - 0.3, place + 0.3], color=FOR_FILES.after, linewidth=2)
            right.scatter(
                pruned, [place] * len(pruned), color=FOR_FILES.accent, marker="x", label="" if place else "just pruned"
            )
            right.scatter(
                [run.accuracy("retrained") for run in runs],
                [place] * len(runs),
                color=FOR_FILES.before,
                label="" if place else "retrained",
            )
        base = groups[0][1][0].accuracy("base")
        left.axvline(base, color=FOR_FILES.ink, linestyle=":", linewidth=1)
        left.text(base, -0.7, "base network ", ha="right", va="center", fontsize=8)
        left.set_yticks(
            range(len(groups)), [("+ " if place > 1 else "") + s.title for place, (s, _) in enumerate(groups)]
        )
        left.set_ylim(len(groups) - 0.5, -1)
        left.set_xlabel("test accuracy after fine-tuning, %")
        right.set_yticks(range(len(groups)), [])
        right.set_ylim(len(groups) - 0.5, -1)
        right.set_xlabel("test accuracy before fine-tuning, %")
        right.legend(loc="upper left", fontsize=8)
        figure.tight_layout()
        file.write_text(svg_file(figure))


if __name__ == "__main__":
    main()
