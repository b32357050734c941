"""`penni analyse`: what decomposing a network would give, before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penni.cli.options import Json, Weights, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from penni.analysis import Analysis


def analyse(
    model: Annotated[
        str, typer.Argument(help="A model: resnet56, torchvision:NAME, timm:NAME, file.py:callable, or a checkpoint.")
    ],
    weights: Weights = None,
    bases: Annotated[int, typer.Option(min=1, help="The number of bases for the estimate of what pruning gives.")] = 5,
    pointwise: Annotated[bool, typer.Option("--pointwise", help="Read 1×1 convolutions as coefficients too.")] = False,
    exclude: Annotated[list[str] | None, typer.Option(help="Layers to leave alone, as patterns. Repeatable.")] = None,
    input_size: Annotated[
        str | None, typer.Option(help="Channels×height×width, such as 3x224x224; by default what the model expects.")
    ] = None,
    timing: Annotated[bool, typer.Option(help="Measure where the time goes in the engine.")] = True,
    as_json: Json = False,
) -> None:
    """Tell what compressing a network would give: spectra, errors, parameters and MACs at each number of bases."""
    from penni.analysis import analyse as look
    from penni.cli.options import open_model
    from penni.models import example_input

    network = open_model(model, weights)
    images = example_input(network, input_size)
    analysis = look(network, images, bases=bases, pointwise=pointwise, exclude=exclude or (), timing=timing)
    if as_json:
        print_json(asdict(analysis))
        return
    _show(analysis)


# How many singular values and errors a line has room for: all that a 3×3 kernel has, whose last error is 0.
_VALUES, _ERRORS = 9, 8


def _show(analysis: Analysis) -> None:
    import sys

    from rich.console import Console

    # A file or a pipe has no width; rich would take 80 letters.
    console = Console(width=None if sys.stdout.isatty() else 100)

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False)

    console.print(_layers(analysis))
    left_alone = Counter(layer.reason for layer in analysis.layers if layer.reason)
    for reason, number in left_alone.items():
        say(f"{number} left alone: {reason}")
    say(f"time: {analysis.timing}")
    slowest = analysis.slowest()
    if slowest:
        names = ", ".join(f"{layer.name} {share:.1%}" for layer, share in slowest)
        total = sum(layer.microseconds or 0 for layer in analysis.layers) / 1000
        say(f"convolutions take {total:,.3g} ms; most of it: {names}")
    console.print(_network(analysis))
    say("The last rows take the paper's share of non-zeros, at random places and before whole channels are removed.")
    for warning in analysis.warnings:
        say(f"note: {warning}", "yellow")


def _layers(analysis: Analysis) -> Table:
    from rich import box
    from rich.table import Table

    numbers = range(1, min(_ERRORS, max((len(layer.errors) for layer in analysis.layers), default=0)) + 1)
    table = Table("layer", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[0].overflow = "fold"
    for name in ("kernel", "MACs", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    if numbers:
        table.title = "singular values of each layer's kernels, and the relative error with d basis kernels"
        table.add_column("spectrum", no_wrap=True, min_width=_VALUES)
    for number in numbers:
        table.add_column(f"d={number}", justify="right", no_wrap=True)
    spent = sum(layer.microseconds or 0 for layer in analysis.layers)
    for layer in analysis.layers:
        cells = [
            layer.name,
            f"{layer.kernel[0]}×{layer.kernel[1]}",
            f"{layer.macs / analysis.macs:.1%}",
            f"{layer.microseconds / spent:.1%}" if layer.microseconds is not None and spent else "",
        ]
        if numbers:
            cells.append(_bars(layer.spectrum[:_VALUES]))
            cells += [f"{layer.errors[d - 1]:.2f}"[-3:] if d <= len(layer.errors) else "" for d in numbers]
        table.add_row(*cells)
    return table


def _network(analysis: Analysis) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("bases", "kept of A", box=box.SIMPLE_HEAD, title="the whole network")
    for name in ("parameters", "", "MACs", ""):
        table.add_column(name, justify="right")
    table.add_row("dense", "", f"{analysis.params:,}", "", f"{analysis.macs / 1e6:,.1f} M", "")
    for row in (*analysis.by_bases, *analysis.pruned):
        table.add_row(
            f"d={row.bases}",
            f"{row.density:.1%} (paper's {row.like})" if row.like else "all",
            f"{row.params:,}",
            f"{row.params / analysis.params - 1:+.1%}",
            f"{row.macs / 1e6:,.1f} M",
            f"{row.macs / analysis.macs - 1:+.1%}",
        )
    return table


def _bars(shares: Sequence[float]) -> str:
    """A bar per share of the largest, in one line of text."""
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * share))] for share in shares)
