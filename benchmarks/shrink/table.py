"""The coverage table: what zoo.py recorded, as a page to read and as a file to compute with."""

from __future__ import annotations

import csv
import datetime
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
COLUMNS = (
    "model", "family", "size", "seed", "traced", "exact", "swing", "fp32", "fp64", "dead", "removable", "removed",
    "held", "params_before", "params_after", "attempts", "seconds", "note", "reason",
)  # fmt: skip


def write(
    records: Sequence[Record], folder: Path, names: Sequence[str], settings: dict[int, str], machine: str
) -> None:
    """coverage.md and coverage.csv in `folder`; `names` are the networks there should be."""
    position = {name: number for number, name in enumerate(names)}
    records = sorted(
        (record for record in records if record["model"] in position),
        key=lambda record: (position[record["model"]], record["seed"]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "coverage.csv").open("w", newline="") as stream:
        table = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        table.writeheader()
        for record in records:
            held = "; ".join(f"{number}: {why}" for why, number in record.get("held", {}).items())
            table.writerow({**record, "family": family(record["model"]), "held": held})
    (folder / "coverage.md").write_text("\n".join(page(records, names, settings, machine)) + "\n")


def page(records: Sequence[Record], names: Sequence[str], settings: dict[int, str], machine: str) -> list[str]:
    by_model: dict[str, list[Record]] = {name: [] for name in names}
    for record in records:
        by_model[record["model"]].append(record)
    tried = {name: runs for name, runs in by_model.items() if runs}
    exact = [name for name, runs in tried.items() if all(run["exact"] for run in runs)]
    timm = [name for name in exact if name.startswith("timm:")]
    moving = sum(record.get("swing", 0) > 1e-3 for record in records)
    lines = [
        "# Shrink over the zoos",
        "",
        "Every network is built with random weights, random filters, input channels and basis kernels of it are "
        "zeroed, and `penni.shrink` makes it narrower. Then both answer on two images that shrink has not seen, "
        "in single and in double precision.",
        "",
        f"- Networks: {len(names)}; tried: {len(tried)}; traced and exact with every seed: {len(exact)}, of them "
        f"{len(timm)} of timm in {len({family(name) for name in timm})} families.",
        f"- Runs: {len(records)}; exact: {sum(record['exact'] for record in records)}; runs whose answers "
        f"to two images differ by more than a thousandth: {moving} (in the others "
        "random weights leave little of the image).",
        f"- Largest difference as a share of the largest output: {worst(records, 'fp32')} in single precision "
        f"(at most 1e-4 is exact), {worst(records, 'fp64')} in double (1e-9).",
        f"- Measured on {machine}; {datetime.date.today().isoformat()}.",
        "- Command: `python benchmarks/shrink/zoo.py --out results/shrink/coverage.jsonl`, then "
        "`python benchmarks/shrink/zoo.py --table results/shrink`. `coverage.csv` has a line for each run.",
        "",
        "Seeds:",
        "",
        *(f"- {seed}: {text}" for seed, text in settings.items()),
        "",
        "*Removable* is what is dead in every place that the ties (add, concat, depthwise convolution, gate, …) bring "
        "it together with; *removed* is less where sizes have to fit, and the last section says where. Seconds are of "
        "one processor core, the slowest of the seeds.",
        "",
    ]
    lines += failures(by_model, tried)
    lines += [
        "## Networks",
        "",
        "| network | family | input | seeds | traced | exact | fp32 | fp64 | removed / removable | parameters left "
        "| s |",
        "| --- | --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [row(name, runs) for name, runs in tried.items()]
    return [*lines, "", *reasons(records)]


def row(name: str, runs: Sequence[Record]) -> str:
    done = [run for run in runs if "removed" in run]
    removed, removable = sum(run["removed"] for run in done), sum(run["removable"] for run in done)
    share = [run["params_after"] / run["params_before"] for run in done if run.get("params_before")]
    cells = [
        name,
        family(name),
        runs[0]["size"].replace("x", "×"),
        ", ".join(str(run["seed"]) for run in runs),
        yes(run.get("traced", False) for run in runs),
        yes(run["exact"] for run in runs),
        worst(runs, "fp32"),
        worst(runs, "fp64"),
        f"{removed} / {removable}" if done else "–",
        " ".join(f"{part:.0%}" for part in share) or "–",
        f"{max(run['seconds'] for run in done):.1f}" if done else "–",
    ]
    return "| " + " | ".join(cells) + " |"


def failures(by_model: dict[str, list[Record]], tried: dict[str, list[Record]]) -> list[str]:
    lines = ["## Not handled", ""]
    for runs in tried.values():
        for run in runs:
            if not run["exact"]:
                what = (
                    run.get("reason") or f"differs: {run.get('fp32')} in single, {run.get('fp64')} in double precision"
                )
                lines.append(f"- {run['model']}, seed {run['seed']}: {run.get('note', '')}{what}")
    lines += [f"- {name}: not run" for name, runs in by_model.items() if not runs]
    if len(lines) == 2:
        lines.append("None.")
    kept = {
        run["model"]: run["note"] for runs in tried.values() for run in runs if "not traceable" in run.get("note", "")
    }
    if kept:
        lines += ["", "With parts that `torch.export` cannot capture, and which are therefore kept as they are:", ""]
        lines += [f"- {name}: {note}" for name, note in kept.items()]
    return [*lines, ""]


def reasons(records: Sequence[Record]) -> list[str]:
    """Why less was removed than the ties allow."""
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.get("held", {}))
    lines = ["## Removable, but not removed", "", "| reason | channels | networks |", "| --- | ---: | ---: |"]
    for why, number in total.most_common():
        networks = {record["model"] for record in records if why in record.get("held", {})}
        lines.append(f"| {why} | {number} | {len(networks)} |")
    rest = sum(
        record["removable"] - record["removed"] - sum(record.get("held", {}).values())
        for record in records
        if "removed" in record
    )
    return [*lines, f"| other | {rest} | |"]


def family(name: str) -> str:
    """The module of the zoo that the network is defined in."""
    source, _, kind = name.partition(":")
    if source == "timm":
        import timm

        return str(timm.models.model_entrypoint(kind).__module__).rpartition(".")[2]
    if source == "torchvision":
        import torchvision

        return str(torchvision.models.get_model_builder(kind).__module__).rpartition(".")[2]
    return source


def worst(records: Sequence[Record], field: str) -> str:
    values = [record[field] for record in records if field in record]
    return f"{max(values):.0e}" if values else "–"


def yes(answers: Any) -> str:
    counted = list(answers)
    return "yes" if all(counted) else ("no" if not any(counted) else f"{sum(counted)} of {len(counted)}")
