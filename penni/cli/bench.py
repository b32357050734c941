"""`penni bench`: a packed network against other engines, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penni.cli.options import Json, print_json

if TYPE_CHECKING:
    from torch import nn

    from penni.engine import Engine


def bench(
    file: Annotated[Path, typer.Argument(help="A packed network, which `penni pack` makes.")],
    against: Annotated[
        str, typer.Option(help="Engines to compare with: torch, torch.compile, onnxruntime, openvino; or none.")
    ] = "torch,onnxruntime,openvino",
    threads: Annotated[str, typer.Option(help="Numbers of threads, such as 1,2.")] = "1",
    batch: Annotated[str, typer.Option(help="Batch sizes, such as 1,16.")] = "1",
    runs: Annotated[int, typer.Option(min=1, help="Measured calls per engine, after warming up.")] = 50,
    checkpoint: Annotated[
        str | None, typer.Option(help="The network for the other engines: a checkpoint, such as the one packed.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The network for the other engines: a model by name, with random weights.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a packed network's speed with that of other engines.

    By default the others run the dense network that the packed one was made from, as its constructor builds
    it; --checkpoint gives them another, such as the pruned one. Times are medians; the engines take turns, each
    with the same number of threads.
    """
    from penni.engine import load
    from penni.engine.peers import check_names

    names = [] if against in ("", "none") else [name.strip() for name in against.split(",")]
    check_names(names)
    thread_counts, batches = _counts(threads, "--threads"), _counts(batch, "--batch")
    engine = load(file, threads=thread_counts[0])
    network, what = _network(engine, checkpoint, model) if names else (None, "")
    rows = [_measure(file, network, names, count, size, runs) for count in thread_counts for size in batches]
    about = {"file": str(file), "isa": engine.isa, "others_run": what, "runs": runs, "versions": _versions(names)}
    if as_json:
        print_json({**about, "results": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("threads", "batch", "engine", "milliseconds", "time of penni's")
    for column in (0, 1, 3, 4):
        table.columns[column].justify = "right"
    for row in rows:
        for name, time in row["milliseconds"].items():
            ratio = f"{row['ratios'][name]:.2f}×" if name in names else ""
            table.add_row(str(row["threads"]), str(row["batch"]), name, f"{time:.3f}", ratio)
    Console().print(table)
    if names:
        print(f"penni ({engine.isa}) runs {file}; the others run {what}. Medians of {runs} calls, float32.")


def _counts(text: str, option: str) -> list[int]:
    from penni.errors import PenniError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise PenniError(f"{option} is '{text}'; write whole numbers with commas between, such as 1,2")
    return [int(part) for part in parts]


def _network(engine: Engine, checkpoint: str | None, model: str | None) -> tuple[nn.Module, str]:
    from penni.cli.options import open_model
    from penni.errors import PenniError
    from penni.models import build

    if checkpoint is not None and model is not None:
        raise PenniError("name one network for the other engines: --checkpoint or --model")
    if checkpoint is not None:
        return open_model(checkpoint), f"'{checkpoint}'"
    if model is not None:
        return open_model(model), f"{model}, dense"
    if engine.origin is None:
        raise PenniError(
            "the file does not say which network it was made from: name one for the other engines "
            "with --checkpoint or --model"
        )
    name, arguments = str(engine.origin["name"]), dict(engine.origin["arguments"])
    return build(name, **arguments).eval(), f"the unpruned {name}"


def _measure(
    file: Path, network: nn.Module | None, names: list[str], threads: int, batch: int, runs: int
) -> dict[str, Any]:
    import tempfile

    from penni.engine import load
    from penni.engine.peers import Run, measure, noise, open_peer

    engine = load(file, threads=threads)
    images = noise(engine.input_shape, batch)
    calls: dict[str, Run] = {"penni": lambda: engine(images)}
    with tempfile.TemporaryDirectory() as folder:
        if network is not None:
            import torch

            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                for name in names:
                    calls[name] = open_peer(name, network, images, threads, Path(folder))
                times = measure(calls, runs=runs)
            finally:
                torch.set_num_threads(before)
        else:
            times = measure(calls, runs=runs)
    ratios = {name: times[name] / times["penni"] for name in names}
    return {"threads": threads, "batch": batch, "milliseconds": times, "ratios": ratios}


def _versions(names: list[str]) -> dict[str, str]:
    from importlib.metadata import version

    packages = dict.fromkeys(["penni", "numpy", *[name.partition(".")[0] for name in names]])
    return {name: version(name) for name in packages}
