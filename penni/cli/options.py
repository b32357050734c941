"""Options that several subcommands share, and how a model is named on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from torch import nn

    from penni.data import ImageSource
    from penni.training.loop import Trainer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="A .safetensors or .pth file with the model's weights.")
]
DataName = Annotated[str | None, typer.Option("--data", help="cifar10, digits or imagefolder:PATH.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="The folder with the data set's files.")]
Normalise = Annotated[
    str | None, typer.Option(help="The input normalisation the weights were trained with: cifar10, imagenet, half.")
]
Precision = Annotated[str | None, typer.Option(help="auto (bf16 where the machine is faster with it), fp32 or bf16.")]


class _Plain:
    """Shows flags without a type, in the help too: nothing is to be written after them."""

    def get_params(self, context: Any) -> list[Any]:
        """Typer asks here for what it shows and parses."""
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class PlainCommand(_Plain, TyperCommand):
    """A subcommand."""


class PlainGroup(_Plain, TyperGroup):
    """A command with subcommands."""


def print_json(value: Any) -> None:
    """One JSON document on standard output, and nothing else."""
    print(json.dumps(value, indent=1))


def open_model(name: str, weights: Path | None = None, source: ImageSource | None = None) -> nn.Module:
    """A model by name, made for a data set if one is given, with weights if given; or a checkpoint folder."""
    from penni.checkpoint import is_checkpoint, load, read_structure
    from penni.errors import PenniError
    from penni.models import CIFAR_MODELS, build, build_for, load_weights

    if is_checkpoint(name):
        if weights is not None:
            raise PenniError(f"'{name}' is a checkpoint and has its own weights; leave --weights out")
        return load(name)
    if Path(name).is_dir() and name not in CIFAR_MODELS:
        read_structure(name)  # says why it is none
    model = build_for(name, source.classes, source.shape[0]) if source else build(name)
    if weights is not None:
        load_weights(model, weights)
    return model.eval()


def trainer_for(seed: int, precision: str | None) -> Trainer:
    """A trainer that shows its progress; with several processes, the first one's."""
    from penni.training.loop import Trainer
    from penni.training.progress import ConsoleProgress

    trainer = Trainer(seed=seed, precision=precision or "auto")
    if trainer.is_main:
        trainer.progress = ConsoleProgress()
    return trainer
