"""From the records in results/ to one page: each CIFAR-10 run beside the paper's figures, and which aims are met.

    python benchmarks/cifar10/table.py results

Nothing here is typed in but the paper's figures and the aims (rows.py): a row is there when its record is, and says
"not run yet" otherwise. Records are made by keep.py, times by latency.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from records import RECORD
from rows import PAPER, PAPER_NOTE, ROWS, Aim, Paper, Row

LATENCY = "latency.json"
# Runs whose own network the engine's benchmarks measure.
ENGINE_RECORDS = {"resnet56-cifar10-short": "resnet56-t1-b1.json"}


def main() -> None:
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    page = table(results)
    target = results / "cifar10" / "TABLE.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page)
    print(f"{target}: {sum(read_record(results, row) is not None for row in ROWS)} of {len(ROWS)} rows run")


def table(results: Path) -> str:
    """The page."""
    records = [(row, read_record(results, row)) for row in ROWS]
    lines = [
        "# CIFAR-10: the paper's table, and past it",
        "",
        "Made by `python benchmarks/cifar10/table.py results` from the records beside it. Parameters and MACs are "
        "those of convolutions and linear layers, zeros not counted, as `penni count` gives them. Accuracies are of "
        "all 10 000 test images in fp32, after the last epoch, not the best one; `penni eval results/NAME/checkpoint` "
        "gives them again. Where a recipe prunes gradually, the accuracy after A+B is that of the network already "
        "pruned.",
        "",
        PAPER_NOTE,
        "",
        "## Accuracy and size",
        "",
        "| network | method | | base | after A+B | after all | parameters | gone | MACs | gone | aim |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for network, paper in PAPER.items():
        lines.append(_paper_line(network, paper))
        lines += [_line(row, record) for row, record in records if row.network == network]
    lines += ["", *_ratios(records), "", *_latencies(results, records), "", *_settings(records), "", *_notes(records)]
    return "\n".join(lines).rstrip() + "\n"


def read_record(results: Path, row: Row) -> dict[str, Any] | None:
    """What keep.py wrote for this row, if it was run."""
    file = results / row.record / RECORD
    if not file.is_file():
        return None
    record: dict[str, Any] = json.loads(file.read_text())
    return record


def verdict(aim: Aim | None, record: dict[str, Any]) -> str:
    """Whether the aim is met, and what is missed."""
    if aim is None:
        return ""
    base, last = record["events"]["base"], record["events"]["shrunk"]
    missed = aim.missed(
        100 * base["test_accuracy"],
        100 * last["test_accuracy"],
        last["macs"] / base["macs"],
        last["params"] / base["params"],
    )
    return f"**missed**: {', '.join(missed)}" if missed else "met"


def fastest_dense(times: dict[str, float]) -> tuple[str, float]:
    """The fastest engine that is not penni on the unpruned network."""
    dense = {
        name.removesuffix(", dense"): time
        for name, time in times.items()
        if name.endswith(", dense") and not name.startswith("penni")
    }
    name = min(dense, key=dense.__getitem__)
    return name, dense[name]


def _paper_line(network: str, paper: Paper) -> str:
    accuracies = " | ".join(f"{value:.2f} %" for value in (paper.base, paper.decomposed, paper.final))
    return (
        f"| {network} | the paper's figures | paper | {accuracies} "
        f"| {_amount(paper.base_params)} → {_amount(paper.params)} | −{1 - paper.params / paper.base_params:.2%} "
        f"| {_amount(paper.base_macs)} → {_amount(paper.macs)} | −{1 - paper.macs / paper.base_macs:.2%} | |"
    )


def _line(row: Row, record: dict[str, Any] | None) -> str:
    if record is None:
        aim = row.aim.text() if row.aim else ""
        return f"| {row.network} | {row.method} | not run yet | | | | | | | | {aim} |"
    events = record["events"]
    base, last = events["base"], events["shrunk"]
    return (
        f"| {row.network} | [{row.method}](../{row.record}/README.md) | run | {base['test_accuracy']:.2%} "
        f"| {events['retrained']['test_accuracy']:.2%} | **{last['test_accuracy']:.2%}** "
        f"| {_amount(base['params'])} → {_amount(last['params'])} | −{1 - last['params'] / base['params']:.2%} "
        f"| {_amount(base['macs'])} → {_amount(last['macs'])} | −{1 - last['macs'] / base['macs']:.2%} "
        f"| {row.aim.text() if row.aim else ''}: {verdict(row.aim, record)} |"
    )


def _ratios(records: list[tuple[Row, dict[str, Any] | None]]) -> list[str]:
    lines = [
        "## Beside the paper",
        "",
        "| network | method | change of accuracy | the paper's | times fewer parameters | the paper's "
        "| times fewer MACs | the paper's |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row, record in records:
        paper = PAPER[row.network]
        if record is None:
            own = ["not run yet", "", ""]
        else:
            base, last = record["events"]["base"], record["events"]["shrunk"]
            own = [
                f"{100 * (last['test_accuracy'] - base['test_accuracy']):+.2f}",
                f"{base['params'] / last['params']:.1f}",
                f"{base['macs'] / last['macs']:.2f}",
            ]
        theirs = [
            f"{paper.final - paper.base:+.2f}",
            f"{paper.base_params / paper.params:.1f}",
            f"{paper.base_macs / paper.macs:.2f}",
        ]
        cells = [cell for pair in zip(own, theirs, strict=True) for cell in pair]
        lines.append(f"| {row.network} | {row.method} | {' | '.join(cells)} |")
    return lines


def _latencies(results: Path, records: list[tuple[Row, dict[str, Any] | None]]) -> list[str]:
    lines = [
        "## Latency",
        "",
        "One image on one thread, milliseconds, medians. Dense is the unpruned network.",
        "",
        "| network | method | penni | dense in penni | fastest dense engine | times faster | measured by |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row, record in records:
        measured = _measured(results, row) if record is not None else None
        if measured is None:
            lines.append(f"| {row.network} | {row.method} | not measured yet | | | | |")
            continue
        times = measured["milliseconds"]
        name, dense = fastest_dense(times)
        plain = f"{times['penni, dense']:.3f}" if "penni, dense" in times else ""
        lines.append(
            f"| {row.network} | {row.method} | {times['penni']:.3f} | {plain} | {dense:.3f} ({name}) "
            f"| **{dense / times['penni']:.2f}** | `{measured['command']}` |"
        )
    return lines


def _measured(results: Path, row: Row) -> dict[str, Any] | None:
    files = [results / row.record / LATENCY]
    if row.record in ENGINE_RECORDS:
        files.append(results / "engine" / ENGINE_RECORDS[row.record])
    for file in files:
        if file.is_file():
            measured: dict[str, Any] = json.loads(file.read_text())
            return measured
    return None


def _settings(records: list[tuple[Row, dict[str, Any] | None]]) -> list[str]:
    lines = [
        "## How they were made",
        "",
        "| network | method | epochs | training time | seed | machine | recipe | command |",
        "| --- | --- | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for row, record in records:
        if record is None:
            lines.append(f"| {row.network} | {row.method} | | | | | not run yet | `{row.command}` |")
            continue
        machine = record["machine"]
        where = f"{machine['processor']}, {machine['threads']} threads, {machine['precision']}, {machine['date']}"
        lines.append(
            f"| {row.network} | {row.method} | {record['epochs']} | {_time(record['training_seconds'])} "
            f"| {record['seed']} | {where} | [recipe.toml](../{row.record}/recipe.toml) | `{record['command']}` |"
        )
    return lines


def _notes(records: list[tuple[Row, dict[str, Any] | None]]) -> list[str]:
    notes = [f"- {row.network}, {row.method}: {record['note']}" for row, record in records if record and record["note"]]
    return ["## Notes", "", *notes] if notes else []


def _amount(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.2f} K" if value >= 1e3 else f"{value:.0f}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    main()
