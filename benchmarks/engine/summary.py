"""From the records in results/engine/ to one page: the ratios, and which aims are met.

python benchmarks/engine/summary.py results/engine
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# How many times faster than the fastest dense engine; VGG16 for one image on one thread.
AIMS = {"vgg16": 10.0, "resnet56": 3.0, "resnet18": 7.0, "resnet50": 4.0}
TITLES = {
    "vgg16": "VGG16-CIFAR, structure of the paper's table",
    "resnet56": "ResNet56-CIFAR, the real run of results/",
    "resnet18": "ResNet18-CIFAR, the paper's sparsity",
    "resnet50": "ResNet50, 224×224, structure of the paper's R1",
}


def fastest(times: dict[str, float], forms: tuple[str, ...]) -> tuple[str, float]:
    """The fastest engine that is not penni in one of these forms."""
    others = {
        name: time for name, time in times.items() if not name.startswith("penni") and name.rpartition(", ")[2] in forms
    }
    if not others:
        return "", float("nan")
    name = min(others, key=others.__getitem__)
    return name, others[name]


def speed_rows(folder: Path) -> list[str]:
    """One line per network, threads and batch."""
    rows = [
        "| network | threads | batch | penni, ms | fastest dense engine, ms | times faster | fastest on the pruned "
        "network, ms | times faster | dense in penni over ONNX Runtime's speed | share of the arithmetic peak |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for network, title in TITLES.items():
        for file in sorted(folder.glob(f"{network}-t*-b*.json"), key=_order):
            record = json.loads(file.read_text())
            times = record["milliseconds"]
            dense, pruned = fastest(times, ("dense",)), fastest(times, ("shrunk", "two-stage"))
            own = times["penni"]
            plain = times["onnxruntime, dense"] / times["penni, dense"] if "penni, dense" in times else float("nan")
            rows.append(
                f"| {title} | {record['threads']} | {record['batch']} | {own:.3f} | {dense[1]:.3f} ({dense[0]}) "
                f"| **{dense[1] / own:.2f}** | {_milliseconds(*pruned)} | {_ratio(pruned[1] / own)} | {plain:.2f} "
                f"| {record['share_of_peak']:.0%} |"
            )
    return rows


def _milliseconds(name: str, time: float) -> str:
    return f"{time:.3f} ({name})" if name else "–"


def _ratio(value: float) -> str:
    return "–" if value != value else f"{value:.2f}"


def _order(file: Path) -> tuple[int, int]:
    threads, batch = file.stem.rsplit("-", 2)[1:]
    return int(threads[1:]), int(batch[1:])


def aim_rows(folder: Path) -> list[str]:
    """Each aim with what was reached."""
    rows = ["| aim | reached | |", "| --- | --- | --- |"]

    def row(aim: str, reached: float, wanted: float, *, most: bool = False, unit: str = "×") -> None:
        met = reached <= wanted if most else reached >= wanted
        figure = f"{reached:.1%}" if unit == "%" else f"{reached:.2f}{unit}"
        rows.append(f"| {aim} | {figure} | {'met' if met else '**missed**'} |")

    for network, wanted in AIMS.items():
        for file in sorted(folder.glob(f"{network}-t*-b*.json"), key=_order):
            threads, batch = _order(file)
            if network == "vgg16" and (threads, batch) != (1, 1):
                continue
            times = _load(file)["milliseconds"]
            at = f"batch {batch}, {threads} thread{'s' if threads > 1 else ''}"
            aim = f"{TITLES[network]}: ≥ {wanted:g}× the fastest dense engine; {at}"
            row(aim, fastest(times, ("dense",))[1] / times["penni"], wanted)
        times = _load(folder / f"{network}-t1-b1.json")["milliseconds"]
        if network == "vgg16":
            ratio = fastest(times, ("shrunk", "two-stage"))[1] / times["penni"]
            row("the same: ≥ 4× any engine on the pruned network", ratio, 4.0)
    if (folder / "deepsparse-vgg16.json").exists():
        row("the same: ≥ 3× DeepSparse on the two-stage graph", _load(folder / "deepsparse-vgg16.json")["ratio"], 3.0)
    plain = {}
    for network in AIMS:
        times = _load(folder / f"{network}-t1-b1.json")["milliseconds"]
        plain[network] = times["onnxruntime, dense"] / times["penni, dense"]
    worst = min(plain, key=plain.__getitem__)
    row(f"dense networks: ≥ 0.7× of ONNX Runtime's speed (the slowest, {worst})", plain[worst], 0.7)
    footprint = _load(folder / "footprint.json")
    for key, aim, other, wanted in (
        (
            "peak_mib",
            "peak memory of the process: ≤ 40 % of ONNX Runtime's, same (pruned) network",
            "onnxruntime, shrunk",
            0.4,
        ),
        ("peak_mib", "peak memory of the process: ≤ 40 % of ONNX Runtime's, dense network", "onnxruntime, dense", 0.4),
        ("own_mib", "memory of the network itself: ≤ 40 % of ONNX Runtime's, same network", "onnxruntime, shrunk", 0.4),
        ("peak_mib", "peak memory of the process: ≤ 15 % of PyTorch's, same network", "torch, shrunk", 0.15),
        (
            "load_to_answer_ms",
            "load to first answer: ≤ 20 % of ONNX Runtime's, same network",
            "onnxruntime, shrunk",
            0.2,
        ),
        (
            "load_to_answer_ms",
            "load to first answer: ≤ 20 % of ONNX Runtime's, dense network",
            "onnxruntime, dense",
            0.2,
        ),
    ):
        shares = {network: footprint[network]["penni"][key] / footprint[network][other][key] for network in AIMS}
        most = max(shares, key=shares.__getitem__)
        row(f"{aim} (the most, {most})", shares[most], wanted, most=True, unit="%")
    return rows


def _load(file: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(file.read_text())
    return record


def main() -> None:
    folder = Path(sys.argv[1])
    record = _load(folder / "vgg16-t1-b1.json")
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    page = [
        "# The engine against others",
        "",
        f"`benchmarks/engine/run_all`, {record['date'][:10]}: {machine['processor']}, {machine['cores']} cores, "
        f"{machine['isa']}; Python {machine['python']}, {versions}. float32, medians of 50 calls or more after "
        "warm-up, the engines taking turns within one run. Only ratios within one run mean "
        "anything: the speed of the machine changes.",
        "",
        "## Aims",
        "",
        *aim_rows(folder),
        "",
        "## Speed",
        "",
        *speed_rows(folder),
        "",
        "Per step: `steps` in the JSON files, with the rate each step reaches.",
        "",
        "## Memory and start",
        "",
        "One process per engine, batch 1, one thread: the peak of the process, what importing the engine and running "
        "the network adds to numpy alone, what the network itself adds; milliseconds to import, and from there to the "
        "first answer.",
        "",
        "| network | engine | peak, MiB | added, MiB | network's own, MiB | import, ms | load to answer, ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    footprint = _load(folder / "footprint.json")
    for network in AIMS:
        for name, row in footprint[network].items():
            page.append(
                f"| {network} | {name} | {row['peak_mib']:.1f} | {row['added_mib']:.1f} | {row['own_mib']:.1f} "
                f"| {row['import_ms']:.0f} | {row['load_to_answer_ms']:.1f} |"
            )
    (folder / "README.md").write_text("\n".join(page) + "\n")
    print("\n".join(aim_rows(folder)))


if __name__ == "__main__":
    main()
