"""Many runs that differ in recipe fields: a grid, resumable run by run, and what they show together.

Each run is a `penni compress` process with a folder of its own: what one run does cannot disturb another, and any of
them can be started again by hand. They run one after another; where a machine has several GPUs, one at a time on each.
The queue is the standard library's `concurrent.futures`.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from penni.checkpoint import writing
from penni.errors import PenniError

Grid = Mapping[str, Sequence[Any]]
Say = Callable[[str], None]

RESULTS = "sweep.csv"
GRID = "sweep.json"


@dataclass(frozen=True)
class Point:
    """One run's place in the grid, and how it came out."""

    values: dict[str, Any]
    folder: str
    base_accuracy: float
    accuracy: float
    decomposed_params: int
    decomposed_macs: int
    base_params: int
    base_macs: int
    params: int
    macs: int
    best: bool = False


def numbers(text: str) -> list[int]:
    """`1..9`, `3,5,7` or both, as numbers."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            found += range(int(first), int(last) + 1) if dots else [int(first)]
    except ValueError as error:
        raise PenniError(f"'{text}' is not a list of numbers: write 1..9 or 3,5,7") from error
    if not found:
        raise PenniError(f"'{text}' holds no numbers: write the smaller one first, as in 1..9")
    return found


def grid_of(changes: Sequence[str]) -> dict[str, list[Any]]:
    """`retrain.gamma=1e-4,5e-5` per field, as a grid."""
    grid: dict[str, list[Any]] = {}
    for change in changes:
        field, equals, text = change.partition("=")
        if not equals or not text:
            raise PenniError(f"'{change}' varies nothing: write field=value,value, such as retrain.gamma=1e-4,5e-5")
        grid[field.strip()] = [_value(part.strip()) for part in text.split(",")]
    return grid


def combinations(grid: Grid) -> list[dict[str, Any]]:
    """Every point of the grid, the last field changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def sweep(
    folder: Path, grid: Grid, arguments: Sequence[str], *, jobs: int | None = None, say: Say = print
) -> list[Point]:
    """Run `penni compress` with `arguments` for every point of `grid`; finished runs are kept, stopped ones resumed."""
    if not grid:
        raise PenniError("a sweep needs something to vary: give --bases or --vary")
    plan = {"grid": {key: list(values) for key, values in grid.items()}, "arguments": list(arguments)}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _same_sweep(folder / GRID, plan)
        (folder / GRID).write_text(json.dumps(plan, indent=1) + "\n")
    points = combinations(grid)
    places: SimpleQueue[dict[str, str]] = SimpleQueue()
    for place in _places(jobs):
        places.put(place)
    total = len(points)
    processes: set[subprocess.Popen[str]] = set()

    def work(index: int) -> None:
        place = places.get()
        try:
            _run(folder, points[index], arguments, place, lambda text: say(f"[{index + 1}/{total}] {text}"), processes)
        finally:
            places.put(place)

    with ThreadPoolExecutor(places.qsize()) as pool:
        futures = [pool.submit(work, index) for index in range(total)]
        try:
            # One run that fails does not keep the others from running.
            failures = [failure for future in futures if (failure := future.exception()) is not None]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            stopped = list(processes)
            processes.clear()
            for process in stopped:
                process.terminate()  # a run that is killed at any moment can be resumed
            raise PenniError("stopped; the same command goes on where the sweep was") from None
    if failures:
        raise failures[0]
    results = with_front([read_point(folder, values) for values in points])
    write_results(folder, results)
    return results


def read_point(folder: Path, values: Mapping[str, Any]) -> Point:
    """The outcome of the finished run at `values`."""
    run = folder / name_of(values)
    events = _events(run)
    if "shrunk" not in events:
        raise PenniError(f"the run in '{run}' did not finish; start the same sweep again to go on with it")
    base, plain, last = events["base"], events["decomposed"], events["shrunk"]
    return Point(
        values=dict(values),
        folder=run.name,
        base_accuracy=base["test_accuracy"],
        accuracy=last["test_accuracy"],
        decomposed_params=plain["params"],
        decomposed_macs=plain["macs"],
        base_params=base["params"],
        base_macs=base["macs"],
        params=last["params"],
        macs=last["macs"],
    )


def with_front(points: Sequence[Point]) -> list[Point]:
    """The points, each with whether no other is both at least as accurate and at most as costly, and better in one."""
    marked = []
    for point in points:
        beaten = any(
            other.accuracy >= point.accuracy
            and other.macs <= point.macs
            and (other.accuracy > point.accuracy or other.macs < point.macs)
            for other in points
        )
        marked.append(Point(**{**asdict(point), "best": not beaten}))
    return marked


def write_results(folder: Path, points: Sequence[Point]) -> None:
    """The outcome as `sweep.csv`, one line per run."""
    fields = list(points[0].values)
    rest = [key for key in asdict(points[0]) if key != "values"]
    with (folder / RESULTS).open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*fields, *rest])
        for point in points:
            writer.writerow([*[point.values[field] for field in fields], *[getattr(point, key) for key in rest]])


def name_of(values: Mapping[str, Any]) -> str:
    """The folder of a run: `decompose.bases=3`, made safe for a file system."""
    text = ",".join(f"{field}={value}" for field, value in values.items())
    return "".join(letter if letter.isalnum() or letter in "=.,-+" else "_" for letter in text)


def _run(
    folder: Path,
    values: Mapping[str, Any],
    arguments: Sequence[str],
    place: Mapping[str, str],
    say: Say,
    processes: set[subprocess.Popen[str]],
) -> None:
    run = folder / name_of(values)
    if "shrunk" in _events(run) and (run / "checkpoint").is_dir():
        say(f"{run.name}: done before")
        return
    resumable = (run / "state.safetensors").is_file()
    command = [sys.executable, "-m", "penni.cli", "compress", "--out", str(run)]
    if resumable:
        command.append("--resume")
    else:
        command += arguments
        for field, value in values.items():
            command += ["--set", f"{field}={json.dumps(value)}"]
    say(f"{run.name}: {'goes on' if resumable else 'begins'}")
    process = subprocess.Popen(
        command, env={**os.environ, **place}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    processes.add(process)
    _, errors = process.communicate()
    if process not in processes:
        return  # the sweep was stopped
    processes.remove(process)
    if process.returncode != 0:
        lines = errors.strip().splitlines() or ["it said nothing"]
        sentence = f"the run {run.name} failed: {lines[-1].removeprefix('penni: ')}"
        say(sentence)
        raise PenniError(sentence)
    last = _events(run)["shrunk"]
    say(f"{run.name}: accuracy {last['test_accuracy']:.2%}, {last['macs'] / 1e6:,.2f} M MACs")


def _events(run: Path) -> dict[str, dict[str, Any]]:
    file = run / "metrics.jsonl"
    if not file.is_file():
        return {}
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return {record["event"]: record for record in records if "event" in record}


def _same_sweep(file: Path, plan: Mapping[str, Any]) -> None:
    """More points may be added to a sweep; its other arguments must stay."""
    if file.is_file() and json.loads(file.read_text())["arguments"] != plan["arguments"]:
        raise PenniError(
            f"'{file.parent}' holds a sweep with other arguments: use another folder, or the same arguments"
        )


def _places(jobs: int | None) -> list[dict[str, str]]:
    """Where runs go: the environment of each of those that run at once."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    gpus = gpus[: torch.cuda.device_count()]
    number = jobs or max(1, len(gpus))
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} for index in range(number)]
    if number == 1 or "OMP_NUM_THREADS" in os.environ:
        return [{} for _ in range(number)]
    # Threads of several runs on one core would only wait for each other.
    return [{"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // number))} for _ in range(number)]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
