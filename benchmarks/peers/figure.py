"""Table and figure of the peers from their records: accuracy against MACs and against latency.

python benchmarks/peers/figure.py results/peers/resnet56
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods import TITLES

from penni.report.drawing import FOR_FILES, style, svg_file

_MARKS = {"penni": "o", "torch-pruning": "s", "l1-filters": "^", "slimming": "D", "magnitude": "v"}


@dataclass(frozen=True)
class Result:
    """One method's finished run; times in milliseconds by engine."""

    name: str
    events: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    epochs: int
    times: dict[str, float]

    @property
    def last(self) -> dict[str, Any]:
        """Where it ended."""
        return self.events.get("shrunk") or self.events["finetuned"]

    def fastest(self) -> tuple[str, float] | None:
        """The engine that runs it fastest; a peer's network is not run in penni's here."""
        times = {engine: time for engine, time in self.times.items() if (engine == "penni") == (self.name == "penni")}
        return min(times.items(), key=lambda item: item[1]) if times else None


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("figure.py: name the folder that run.py was given as --record")
    record = Path(sys.argv[1])
    found = read(record)
    if not found:
        sys.exit(f"figure.py: there are no finished runs in {record}")
    different = {(r.epochs, r.settings["train_images"], r.settings["seed"]) for r in found}
    if len(different) > 1:
        sys.exit("figure.py: the runs differ in epochs, training images or seed, so they cannot be compared")
    (record / "TABLE.md").write_text(table(record, found))
    (record / "peers.svg").write_text(draw(found))
    print(record / "TABLE.md")


def read(record: Path) -> list[Result]:
    """What is finished."""
    file = record / "latency.json"
    times: dict[str, float] = json.loads(file.read_text())["milliseconds"] if file.is_file() else {}
    found = []
    for name in TITLES:
        metrics = record / name / "metrics.jsonl"
        if not metrics.is_file():
            continue
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        events = {record["event"]: record for record in records if "event" in record}
        if "shrunk" in events or "finetuned" in events:
            own = {key.partition(", ")[2]: time for key, time in times.items() if key.startswith(f"{name}, ")}
            settings = json.loads((record / name / "settings.json").read_text())
            found.append(Result(name, events, settings, sum("phase" in record for record in records), own))
    return found


def table(record: Path, found: list[Result]) -> str:
    """The page."""
    base, settings = found[0].events["base"], found[0].settings
    machine = base["machine"]
    lines = [
        f"# {settings['model']}: penni and others, from the same weights with the same epochs",
        "",
        f"Base accuracy {base['test_accuracy']:.2%}, {base['macs'] / 1e6:.2f} M MACs, {base['params']:,} parameters; "
        f"{found[0].epochs} epochs, seed {settings['seed']}, distillation {settings['distillation']} for all; "
        f"{machine['processor']}, {machine['threads']} threads, {machine['precision']}, torch {machine['torch']}, "
        f"{machine['date']}. Made by `benchmarks/peers/run.py`, `measure.py` and `figure.py`.",
        "",
    ]
    if settings["train_images"]:
        lines += [f"**A trial on {settings['train_images']} training images: no result.**", ""]
    lines += [
        "| method | just pruned | at the end | MACs | gone | parameters | gone "
        "| ONNX Runtime, ms | OpenVINO, ms | penni, ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in found:
        last = result.last
        times = [result.times.get(engine) for engine in ("onnxruntime", "openvino", "penni")]
        cells = [
            TITLES[result.name],
            f"{result.events['pruned']['test_accuracy']:.2%}",
            f"**{last['test_accuracy']:.2%}**",
            f"{last['macs'] / 1e6:.2f} M",
            f"{1 - last['macs'] / base['macs']:.1%}",
            f"{last['params']:,}",
            f"{1 - last['params'] / base['params']:.1%}",
            *("" if time is None else f"{time:.3f}" for time in times),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Zeros count neither as parameters nor as MACs, whether an engine makes use of them or not."]
    if (record / "latency.json").is_file():
        lines += [
            "",
            f"Times: one image, one thread, medians; `{json.loads((record / 'latency.json').read_text())['command']}`.",
        ]
    return "\n".join(lines) + "\n"


def draw(found: list[Result]) -> str:
    """Accuracy against MACs, and against the time in the engine that runs the network fastest."""
    base = found[0].events["base"]
    with style(FOR_FILES) as new_figure:
        figure = new_figure(figsize=(10, 4))
        left, right = figure.subplots(1, 2, sharey=True)
        for result in found:
            colour = FOR_FILES.after if result.name == "penni" else FOR_FILES.before
            look = {"color": colour, "marker": _MARKS[result.name], "s": 60, "zorder": 3}
            accuracy = 100 * result.last["test_accuracy"]
            left.scatter(result.last["macs"] / 1e6, accuracy, label=TITLES[result.name], **look)
            fastest = result.fastest()
            if fastest is not None:
                right.scatter(fastest[1], accuracy, **look)
                right.annotate(
                    fastest[0], (fastest[1], accuracy), xytext=(6, 5), textcoords="offset points", fontsize=8
                )
        for axes in (left, right):
            axes.axhline(100 * base["test_accuracy"], color=FOR_FILES.ink, linestyle=":", linewidth=1)
        left.set_xlabel("MACs, millions")
        left.set_ylabel("test accuracy, %")
        left.set_xlim(left=0)
        left.legend(loc="best", fontsize=8)
        right.set_xlabel("one image on one thread, ms, in the engine named")
        if any(result.fastest() for result in found):
            right.set_xlim(left=0)
        figure.tight_layout()
        return svg_file(figure)


if __name__ == "__main__":
    main()
