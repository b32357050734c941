"""`penni count`: parameters and multiply-accumulates of a model or a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from penni.cli.options import Json, print_json


def count(
    checkpoint: Annotated[str | None, typer.Argument(help="A checkpoint folder.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A model by name, such as resnet56 or torchvision:resnet50.")
    ] = None,
    bases: Annotated[int | None, typer.Option(help="Decompose it first, with so many bases per layer.")] = None,
    pointwise: Annotated[bool, typer.Option(help="With --bases: 1×1 convolutions too.")] = False,
    input_size: Annotated[
        str | None,
        typer.Option(help="Channels×height×width, such as 3x224x224; by default what the model expects."),
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Show every layer.")] = False,
    as_json: Json = False,
) -> None:
    """Count parameters and multiply-accumulates (MACs): convolutions and linear layers, zeros left out."""
    from penni.basis import decompose
    from penni.cli.options import open_model
    from penni.errors import PenniError
    from penni.measure import count as count_model
    from penni.models import example_input

    if (checkpoint is None) == (model is None):
        raise PenniError("name one: a checkpoint folder, or a model with --model")
    network = open_model(checkpoint or model or "")
    if bases is not None:
        network = decompose(network, bases, pointwise=pointwise)
    counts = count_model(network, example_input(network, input_size))
    if as_json:
        result = {"params": counts.params, "macs": counts.macs, "stored": counts.stored}
        print_json({**result, "layers": [asdict(layer) for layer in counts.layers]})
        return
    if layers:
        from rich.console import Console
        from rich.table import Table

        table = Table("layer", "kind", "width", "bases", "non-zeros", "total", "params", "MACs")
        for layer in counts.layers:
            numbers = (
                layer.width,
                layer.bases if layer.bases is not None else "",
                layer.nonzero,
                layer.total,
            )
            cells = [f"{n:,}" if isinstance(n, int) else n for n in (*numbers, layer.params, layer.macs)]
            table.add_row(layer.name, layer.kind, *cells)
        Console().print(table)
    print(f"{counts.params:,} parameters, {counts.macs / 1e6:,.2f} M MACs")
