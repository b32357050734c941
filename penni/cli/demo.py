"""`penni demo`: the whole method on a small network, start to finish, in a minute or two."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penni.cli.options import Json, print_json

if TYPE_CHECKING:
    from torch import Tensor, nn


def demo(
    out: Annotated[Path, typer.Option(help="A new folder for the two runs.")] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """Train a small network on handwritten digits, compress it, and print what was gained and what it cost."""
    import shutil

    import torch

    from penni.checkpoint import load
    from penni.compression import compress, example_for
    from penni.data import open_data
    from penni.measure import count
    from penni.models import build_for
    from penni.recipes import read
    from penni.training.loop import Phase, Trainer, evaluate
    from penni.training.progress import ConsoleProgress
    from penni.training.run import is_run, train

    if is_run(out / "base"):  # a demo may be run again; anything else in the way is an error
        shutil.rmtree(out)
    data = open_data("digits")
    trainer = Trainer(precision="fp32", progress=ConsoleProgress())
    trainer.progress.say("1. Train a small residual network on 1,437 handwritten digits")
    torch.manual_seed(0)
    model = build_for("small", data.classes, data.shape[0])
    phase = Phase("train", 15, 0.1, schedule="one-cycle", batch_size=64)
    notes = {"data": "digits", "data_dir": None, "normalise": None}
    with _one_thread():
        train(model, data, phase, out / "base", trainer=trainer, notes=notes)
        trainer.progress.say("\n2. Decompose, retrain, prune, fine-tune, shrink")
        compress(model, data, read("digits"), out / "compressed", trainer=trainer, notes=notes)

    # What is compared is what was saved: the files, not the objects in memory.
    before, after = load(out / "base"), load(out / "compressed")
    example = example_for(data)
    times = _latencies(before, after, example)
    rows = {}
    for name, network in (("before", before), ("after", after)):
        counts = count(network, example)
        accuracy = evaluate(network, data, trainer)[0]
        rows[name] = {"accuracy": accuracy, "params": counts.params, "macs": counts.macs, **times[name]}
    if as_json:
        print_json(rows)
        return
    _print_table(rows)
    print(f"The compressed network is in {out / 'compressed' / 'checkpoint'}. Look at it:")
    print(f"  penni count {out / 'compressed'} --layers")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """For so small a network one is as fast, and many wait for each other at every step where the machine is busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _latencies(before: nn.Module, after: nn.Module, example: Tensor) -> dict[str, dict[str, float]]:
    """Milliseconds for one image on one thread, all in turn: PyTorch and the engine, before and after."""
    import penni
    from penni.measure.latency import compare

    array = example.numpy()
    engines = {
        name: penni.compile(network, example, threads=1) for name, network in (("before", before), ("after", after))
    }
    milliseconds = compare(
        {
            "before torch": lambda: before(example),
            "after torch": lambda: after(example),
            "before engine": lambda: engines["before"](array),
            "after engine": lambda: engines["after"](array),
        },
        [before, after],
        runs=200,
    )
    return {
        name: {"torch_ms": milliseconds[f"{name} torch"], "engine_ms": milliseconds[f"{name} engine"]}
        for name in ("before", "after")
    }


def _print_table(rows: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    before, after = rows["before"], rows["after"]
    table = Table("", "before", "after", "change", title="What compressing this network gave")
    table.add_row(
        "accuracy on 360 unseen digits",
        f"{before['accuracy']:.2%}",
        f"{after['accuracy']:.2%}",
        f"{100 * (after['accuracy'] - before['accuracy']):+.2f} points",
    )
    for key, label, form in (
        ("params", "parameters", "{:,.0f}"),
        ("macs", "multiply-accumulates", "{:,.0f}"),
        ("torch_ms", "latency in PyTorch, 1 thread", "{:.3f} ms"),
        ("engine_ms", "latency in penni's engine, 1 thread", "{:.3f} ms"),
    ):
        change = f"{after[key] / before[key] - 1:+.1%}"
        table.add_row(label, form.format(before[key]), form.format(after[key]), change)
    Console().print(table)
