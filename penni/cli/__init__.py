"""The `penni` command: a table of subcommands, one small file each, and what happens to errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from io import IOBase
from pathlib import Path
from typing import Annotated, Any

import typer

from penni._version import __version__
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
from penni.cli.options import PlainCommand, PlainGroup
from penni.errors import PenniError, in_frames

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
        cls=PlainGroup,
        help="Compress a trained convolutional network, and run the result fast.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, function in COMMANDS.items():
        app.command(name, cls=PlainCommand)(function)
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
    except OSError as error:
        print(f"penni: {_refused(error)}", file=sys.stderr)
        sys.exit(2)


def _refused(error: OSError) -> str:
    """What the system did not let us do, and to which file: an error on writing into an open file does not say."""
    reason = error.strerror or str(error) or type(error).__name__
    streams = (getattr(stream, "name", None) for stream in in_frames(error, IOBase))
    file = error.filename or next((name for name in streams if isinstance(name, str)), None)
    file = file or next(in_frames(error, Path), None)
    if file is None:
        return f"the system reports an error: {reason}"
    return f"'{file}' cannot be read or written ({reason}): mend that, or name another place"


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"penni {__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
