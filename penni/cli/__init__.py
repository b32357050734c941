"""The `penni` command: a table of subcommands, one small file each, and what happens to errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import typer

from penni.cli import (
    analyse,
    bench,
    compress,
    count,
    data,
    demo,
    evaluate,
    export,
    info,
    inspect,
    pack,
    recipes,
    report,
    run,
    shrink,
    sweep,
    train,
)
from penni.errors import PenniError

# Modules of this package import torch and the like inside their functions, never at the top:
# `penni run` must work where only numpy is installed, and `penni --help` must be quick.
COMMANDS: Mapping[str, Callable[..., Any]] = {
    "analyse": analyse.analyse,
    "bench": bench.bench,
    "compress": compress.compress,
    "count": count.count,
    "demo": demo.demo,
    "eval": evaluate.evaluate,
    "export": export.export,
    "info": info.info,
    "inspect": inspect.inspect,
    "pack": pack.pack,
    "recipes": recipes.recipes,
    "report": report.report,
    "run": run.run,
    "shrink": shrink.shrink,
    "sweep": sweep.sweep,
    "train": train.train,
}


def application() -> typer.Typer:
    """The command line as a typer application."""
    app = typer.Typer(
        help="Compress a trained convolutional network, and run the result fast.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, function in COMMANDS.items():
        app.command(name)(function)
    app.add_typer(data.application, name="data")
    return app


def main() -> None:
    """Run the command line: a mistake of the user's is one sentence and exit code 2, never a traceback."""
    try:
        application()(prog_name="penni")
    except PenniError as error:
        print(f"penni: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = {"torch": "compress", "safetensors": "compress", "accelerate": "compress"}.get(error.name or "")
        if extra is None:
            raise
        print(f"penni: this command needs {error.name}: pip install 'penni[{extra}]'", file=sys.stderr)
        sys.exit(2)


def _root() -> None:
    pass
