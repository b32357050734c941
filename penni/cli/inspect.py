"""`penni inspect`: what a packed network does step by step, and where its time goes. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penni.cli.options import Json, print_json
from penni.cli.run import Threads


def inspect(
    file: Annotated[Path, typer.Argument(help="A packed network, which `penni pack` makes.")],
    threads: Threads = None,
    batch: Annotated[int, typer.Option(min=1, help="Images per call.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="How often to measure each step.")] = 50,
    as_json: Json = False,
) -> None:
    """Show each step's kernel, shape, non-zeros, MACs and measured time."""
    import numpy as np

    from penni.engine import load
    from penni.engine.engine import text

    engine = load(file, threads=threads)
    images = np.random.default_rng(0).standard_normal((batch, *engine.input_shape), dtype=np.float32)
    steps = engine.profile(images, repeats=repeats)
    total = sum(step.microseconds or 0.0 for step in steps)
    about = {
        "file": str(file),
        "bytes": engine.size,
        "input": list(engine.input_shape),
        "output": list(engine.output_shape),
        "macs": engine.macs,
        "dtype": engine.dtype,
        "isa": engine.isa,
        "threads": engine.threads,
        "batch": batch,
        "origin": engine.origin,
        "preprocessing": engine.preprocessing,
        "tuned": engine.tuned,
        "microseconds": total,
    }
    if as_json:
        print_json({**about, "steps": [asdict(step) for step in steps]})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", "module", "step", "kernel", "shape", "non-zeros", "MACs", "µs", "share")
    for column in (0, 5, 6, 7, 8):
        table.columns[column].justify = "right"
    for number, step in enumerate(steps):
        weights = f"{step.nonzeros:,}" if step.nonzeros is not None else ""
        shapes = f"{text(step.input_shape)} → {text(step.output_shape)}"
        cells = [weights, f"{step.macs:,}" if step.macs else "", f"{step.microseconds:,.1f}", f"{step.share:.1%}"]
        table.add_row(str(number), step.module, step.op, step.kernel, shapes, *cells)
    # A pipe has no width; a table cut to eighty columns would hide what was asked for.
    console = Console()
    Console(width=None if console.is_terminal else 160).print(table)
    made = f" of {engine.origin['name']}" if engine.origin else ""
    print(
        f"{file}{made}: {text(engine.input_shape)} → {text(engine.output_shape)}, {engine.size / 1e6:.2f} MB "
        f"({engine.dtype}), {engine.macs / 1e6:,.2f} M MACs"
    )
    tuned = f"tuned with {engine.tuned.get('threads')} threads" if engine.tuned else "kernels chosen by the cost model"
    rate = engine.macs * batch / total / 1000 if total else 0.0
    speed = f"{total / 1000:.3f} ms for a batch of {batch}, {rate:.1f} GMAC/s"
    print(f"{speed}, {engine.isa}, threads={engine.threads}; {tuned}")
