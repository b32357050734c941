"""What a sweep over the number of bases shows, from its table: README.md beside it.

python benchmarks/sweep/summary.py results/sweep-resnet20 --base-epochs 8
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path

import numpy as np
import torch

import penni
from penni.measure.machine import processor

# From this number of bases on the paper finds little more accuracy.
_FLAT_FROM = 4


def main() -> None:
    """Read sweep.csv, write README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base-epochs", type=int, required=True)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    with (folder / "sweep.csv").open() as stream:
        rows = [
            {key: float(value) for key, value in row.items() if _is_number(value)} for row in csv.DictReader(stream)
        ]
    rows.sort(key=lambda row: row["decompose.bases"])
    d = np.array([row["decompose.bases"] for row in rows])
    accuracy = 100 * np.array([row["accuracy"] for row in rows])
    base = rows[0]
    flat = accuracy[d >= _FLAT_FROM]
    command = " ".join(["penni sweep", *json.loads((folder / "sweep.json").read_text())["arguments"]])
    lines = [
        "# ResNet20 at each number of bases",
        "",
        f"`benchmarks/sweep/run`, which is `{command} --bases 1..9`; {processor()}, "
        f"{torch.get_num_threads()} threads, penni {penni.__version__}, torch {torch.__version__}, "
        f"{time.strftime('%Y-%m-%d')}, one run per point, seed 0.",
        "",
        f"The base network, trained for {arguments.base_epochs} epochs: {base['base_accuracy']:.2%}, "
        f"{base['base_params']:,.0f} parameters, {base['base_macs'] / 1e6:.2f} M multiply-accumulates. "
        "The recipe is beside this file.",
        "",
        "| d | accuracy | parameters | MACs, M | MACs decomposed only, M | Pareto front |",
        "| ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    with (folder / "sweep.csv").open() as stream:
        best = {int(row["decompose.bases"]): row["best"] == "True" for row in csv.DictReader(stream)}
    for row in rows:
        number = int(row["decompose.bases"])
        lines.append(
            f"| {number} | {row['accuracy']:.2%} | {row['params']:,.0f} | {row['macs'] / 1e6:.2f} | "
            f"{row['decomposed_macs'] / 1e6:.2f} | {'yes' if best[number] else ''} |"
        )
    lines += [
        "",
        "What it shows, beside the paper's picture (multiply-accumulates linear in d, accuracy flat from about 4):",
        "",
        f"- Multiply-accumulates against d, compressed: {_line(d, [row['macs'] for row in rows])}; decomposed only: "
        f"{_line(d, [row['decomposed_macs'] for row in rows])}.",
        f"- Parameters against d, compressed: {_line(d, [row['params'] for row in rows])}.",
        f"- Accuracy rises from {accuracy[0]:.2f} % at d = {d[0]:.0f} to {flat[0]:.2f} % at d = {_FLAT_FROM}; "
        f"from there on it stays between {flat.min():.2f} % and {flat.max():.2f} %, "
        f"{flat.max() - flat.min():.2f} points apart.",
        "",
        "The figure is `sweep.svg`.",
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def _line(d: np.ndarray, values: list[float]) -> str:
    """How well a straight line fits."""
    slope, start = np.polyfit(d, values, 1)
    left = np.array(values) - (slope * d + start)
    share = 1 - float((left**2).sum() / ((values - np.mean(values)) ** 2).sum())
    return f"{slope:,.0f} per basis kernel, a straight line explains {share:.1%} of the variance"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
