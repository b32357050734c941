"""`penni analyse`: what decomposing a network would give, before anything is trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penni.cli.options import Json, Weights, print_json

if TYPE_CHECKING:
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
    _show(analysis, bases)


def _show(analysis: Analysis, bases: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shown = [number for number in (2, 3, 4, 5, 6) if number <= len(analysis.by_bases)]
    table = Table("layer", "kernel", "MACs", "time", *[f"d={number}" for number in shown], box=box.SIMPLE_HEAD)
    table.title = "relative error of the kernels with d basis kernels"
    table.columns[0].overflow = "fold"
    left_alone: dict[str, int] = {}
    spent = sum(layer.microseconds or 0 for layer in analysis.layers)
    for layer in analysis.layers:
        cells = [f"{layer.errors[d - 1]:.2f}" if d <= len(layer.errors) else "" for d in shown]
        if layer.reason:
            left_alone[layer.reason] = left_alone.get(layer.reason, 0) + 1
        table.add_row(
            layer.name,
            f"{layer.kernel[0]}×{layer.kernel[1]}",
            f"{layer.macs / analysis.macs:.1%}",
            f"{layer.microseconds / spent:.1%}" if layer.microseconds is not None and spent else "",
            *cells,
        )
    console.print(table)
    for reason, number in left_alone.items():
        console.print(f"{number} left alone: {reason}", markup=False, highlight=False)
    console.print(f"time: {analysis.timing}", markup=False, highlight=False)
    table = Table("bases", "kept of A", "parameters", "", "MACs", "", box=box.SIMPLE_HEAD)
    table.title = "the whole network"
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
    console.print(table)
    console.print(
        "The last rows take the paper's share of non-zeros, at random places and before whole channels are removed.",
        highlight=False,
    )
    for warning in analysis.warnings:
        console.print(f"note: {warning}", style="yellow", markup=False, highlight=False)
