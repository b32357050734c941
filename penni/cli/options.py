"""Options that several subcommands share, and how a model is named on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import nn

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="A .safetensors or .pth file with the model's weights.")
]


def print_json(value: Any) -> None:
    """One JSON document on standard output, and nothing else."""
    print(json.dumps(value, indent=1))


def open_model(name: str, weights: Path | None = None, **arguments: Any) -> nn.Module:
    """A model by name, with weights if given; or a checkpoint folder."""
    from penni.checkpoint import STRUCTURE, load
    from penni.errors import PenniError
    from penni.models import build, load_weights

    if (Path(name) / STRUCTURE).is_file():
        if weights is not None:
            raise PenniError(f"'{name}' is a checkpoint and has its own weights; leave --weights out")
        return load(name)
    model = build(name, **arguments)
    if weights is not None:
        load_weights(model, weights)
    return model.eval()
