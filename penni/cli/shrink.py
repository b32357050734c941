"""`penni shrink`: remove the channels and basis kernels that nothing in a checkpoint or model needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penni.cli.options import Json, Weights, print_json


def shrink(
    model: Annotated[str, typer.Argument(help="A checkpoint folder, or a model by name (then give --weights).")],
    out: Annotated[Path | None, typer.Option(help="The folder to write the narrower network to.")] = None,
    weights: Weights = None,
    input_size: Annotated[
        str | None,
        typer.Option(help="Channels×height×width, such as 3x224x224; by default what the model expects."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="A module to leave as it is, or a pattern of names. Repeatable.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Print each layer before and after, as the paper's appendix: markdown, csv or latex."),
    ] = None,
    convolutions_only: Annotated[
        bool, typer.Option("--convolutions-only", help="With --table: leave linear layers out, as the paper does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a pruned network narrower without changing any answer, and say what was removed, what not, and why.

    Without --out nothing is written: only the report is printed.
    """
    from penni.checkpoint import is_checkpoint, read_structure, save
    from penni.cli.options import open_model
    from penni.errors import PenniError
    from penni.models import example_input
    from penni.shrinking import shrink as shrink_model

    if table is not None and table not in ("markdown", "csv", "latex"):
        raise PenniError(f"'{table}' is no form of table; use markdown, csv or latex")
    network = open_model(model, weights)
    result = shrink_model(network, example_input(network, input_size), exclude=exclude or ())
    if out is not None:
        notes = read_structure(model).get("notes", {}) if is_checkpoint(model) else {}
        save(result.model, out, notes=notes)
    if as_json:
        print_json(result.report.as_dict())
    elif table is not None:
        print(result.report.table(table, convolutions_only=convolutions_only), end="")
    else:
        print(result.report.text())
        if out is not None:
            print(f"\nwritten to {out}")
