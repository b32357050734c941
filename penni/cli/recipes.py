"""`penni recipes`: the recipes that come with penni."""

from __future__ import annotations

from typing import Annotated

import typer


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one whole, as TOML to start your own from.")] = None,
) -> None:
    """List the recipes that come with penni, or print one with every field."""
    from penni.recipes import names, read
    from penni.recipes.load import to_toml

    if name is not None:
        print(to_toml(read(name)), end="")
        return
    width = max(len(each) for each in names())
    for each in names():
        print(f"{each:<{width}}  {read(each).about}")
