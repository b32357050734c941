"""`penni train`: train a network that can then be compressed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penni.cli.options import DataDir, DataName, Json, Normalise, Precision, Weights, print_json, trainer_for


def train(
    out: Annotated[Path, typer.Option(help="The folder of the run: state, metrics, and the checkpoint at the end.")],
    model: Annotated[
        str | None, typer.Option(help="A model: resnet18, torchvision:NAME, timm:NAME, file.py:callable.")
    ] = None,
    weights: Weights = None,
    data: DataName = None,
    data_dir: DataDir = None,
    normalise: Normalise = None,
    epochs: Annotated[int, typer.Option(help="How many epochs.")] = 100,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 0.1,
    schedule: Annotated[
        str, typer.Option(help="step (×0.1 at 50 % and 75 %), cosine, one-cycle or constant.")
    ] = "step",
    batch_size: Annotated[int, typer.Option(help="Images per step, over all processes.")] = 128,
    momentum: Annotated[float, typer.Option(help="Of stochastic gradient descent.")] = 0.9,
    nesterov: Annotated[bool, typer.Option(help="Nesterov's momentum.")] = False,
    weight_decay: Annotated[float, typer.Option(help="Of every parameter.")] = 1e-4,
    label_smoothing: Annotated[float, typer.Option(help="0 is off.")] = 0.0,
    precision: Precision = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, data order and augmentation.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; nothing else is needed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a network from scratch, or from --weights. Every finished epoch is kept; --resume goes on after a stop."""
    import torch

    from penni.cli.options import open_model
    from penni.data import open_data
    from penni.errors import PenniError, nearest
    from penni.training.loop import Phase
    from penni.training.run import is_run
    from penni.training.run import train as start
    from penni.training.schedules import LEARNING_RATE_NAMES
    from penni.training.state import read_state

    if resume:
        settings = read_state(out).settings["notes"]
        if "phase" not in settings:
            raise PenniError(f"'{out}' holds a run of `penni compress`; resume it with that")
    else:
        if model is None or data is None:
            raise PenniError("say what to train on what: --model resnet18 --data cifar10")
        if schedule not in LEARNING_RATE_NAMES:
            raise PenniError(f"there is no schedule '{schedule}': {nearest(schedule, LEARNING_RATE_NAMES)}")
        phase = Phase(
            "train",
            epochs,
            learning_rate,
            schedule=schedule,
            batch_size=batch_size,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            label_smoothing=label_smoothing,
        )
        settings = {
            "model": model,
            "data": data,
            "data_dir": str(data_dir) if data_dir else None,
            "normalise": normalise,
            "seed": seed,
            "precision": precision or "auto",
            "phase": asdict(phase),
        }
    source = open_data(settings["data"], data_dir or settings["data_dir"], settings["normalise"])
    torch.manual_seed(settings["seed"])
    network = open_model(settings["model"], weights, source)
    fields = {**settings["phase"], "milestones": tuple(settings["phase"]["milestones"])}
    trainer = trainer_for(settings["seed"], settings["precision"])
    try:
        start(network, source, Phase(**fields), out, trainer=trainer, notes=settings, resume=resume)
    except KeyboardInterrupt:
        if not is_run(out):
            raise PenniError("stopped before there was anything to keep; give the same command again") from None
        raise PenniError(
            f"stopped; every finished epoch is kept. Go on with: penni train --out {out} --resume"
        ) from None
    if as_json and trainer.is_main:
        print_json(read_state(out).records[-1])
