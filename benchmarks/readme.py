"""The README's table of results, from the records in results/: run it after they change; a test compares.

python benchmarks/readme.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
RESULTS = ROOT / "results"
ENGINE = ROOT / "results" / "engine"
# Networks that were compressed here: their records, and where their times are.
RUNS = {
    "resnet56-cifar10-short": ("ResNet56, CIFAR-10", ENGINE / "resnet56-t1-b1.json"),
    "vgg16-cifar10-short": ("VGG16, CIFAR-10", RESULTS / "vgg16-cifar10-short" / "latency.json"),
}
# Structures of the paper's tables: they have a speed, and no accuracy of their own.
STRUCTURES = {
    "vgg16": "VGG16, CIFAR-10, structure of the paper's table",
    "resnet18": "ResNet18, CIFAR-10, the paper's sparsity",
    "resnet50": "ResNet50, ImageNet, structure of the paper's R1",
}


def table() -> str:
    """The table and the sentence that says what was measured and how."""
    rows = [
        "| network | accuracy | parameters | MACs | one image, one thread |",
        "| --- | --- | --- | --- | --- |",
        *(_trained_row(*run) for run in RUNS.items() if (RESULTS / run[0]).is_dir()),
    ]
    for name, title in STRUCTURES.items():
        record = _measured(name)
        rows.append(f"| {title} | | | {record['macs'] / 1e6:.1f} M | {_speed(record)} |")
    record = _measured("vgg16")
    versions = record["machine"]["versions"]
    rows += [
        "",
        f"Times on one core of an {record['machine']['processor']}, {record['date'][:10]}, float32, against the "
        f"fastest of PyTorch {versions['torch'].partition('+')[0]}, ONNX Runtime {versions['onnxruntime']} and "
        f"OpenVINO {versions['openvino'].partition('-')[0]} on the dense network; more, and what was missed, in "
        "[results/engine](results/engine/README.md). The networks with an accuracy were compressed from given weights; "
        "their records are in [results](results), and [a table](results/cifar10/TABLE.md) sets them beside the "
        "paper's.",
    ]
    return "\n".join(rows) + "\n"


def _trained_row(name: str, about: tuple[str, Path]) -> str:
    title, times = about
    record = json.loads((RESULTS / name / "record.json").read_text())
    base, last = record["events"]["base"], record["events"]["shrunk"]
    return (
        f"| {title}, {record['epochs']} epochs | {base['test_accuracy']:.2%} → {last['test_accuracy']:.2%} "
        f"| {base['params'] / 1e6:.3f} M → {last['params'] / 1e6:.3f} M ({last['params'] / base['params'] - 1:+.1%}) "
        f"| {base['macs'] / 1e6:.1f} M → {last['macs'] / 1e6:.1f} M ({last['macs'] / base['macs'] - 1:+.1%}) "
        f"| {_speed(json.loads(times.read_text())) if times.is_file() else ''} |"
    )


def _speed(record: dict[str, Any]) -> str:
    times = record["milliseconds"]
    dense = min(time for name, time in times.items() if name.endswith(", dense") and not name.startswith("penni"))
    return f"{dense:.2f} → {times['penni']:.2f} ms, **{dense / times['penni']:.1f}×**"


def _measured(network: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((ENGINE / f"{network}-t1-b1.json").read_text())
    return record


def with_table(text: str) -> str:
    """The README with the table as the records have it."""
    return MARKED.sub(lambda match: match[1] + table() + match[2], text)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text()))
