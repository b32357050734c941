"""Options that several subcommands share, and how a model is named on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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


def print_json(value: Any) -> None:
    """One JSON document on standard output, and nothing else."""
    print(json.dumps(value, indent=1))


def open_model(name: str, weights: Path | None = None, source: ImageSource | None = None) -> nn.Module:
    """A model by name, made for a data set if one is given, with weights if given; or a checkpoint folder."""
    from penni.checkpoint import is_checkpoint, load
    from penni.errors import PenniError
    from penni.models import build, build_for, load_weights

    if is_checkpoint(name):
        if weights is not None:
            raise PenniError(f"'{name}' is a checkpoint and has its own weights; leave --weights out")
        return load(name)
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
