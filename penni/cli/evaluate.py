"""`penni eval`: how well a network does on a test set."""

from __future__ import annotations

from typing import Annotated

import typer

from penni.cli.options import DataDir, DataName, Json, Normalise, Weights, print_json


def evaluate(
    checkpoint: Annotated[str | None, typer.Argument(help="A checkpoint folder, or a run's.")] = None,
    model: Annotated[
        str | None, typer.Option(help="In place of a checkpoint: a model by name, with --weights.")
    ] = None,
    weights: Weights = None,
    data: DataName = None,
    data_dir: DataDir = None,
    normalise: Normalise = None,
    as_json: Json = False,
) -> None:
    """Measure accuracy on the test images, in fp32.

    A checkpoint made by penni knows its data set and normalisation; another model needs --data.
    """
    from penni.checkpoint import read_structure
    from penni.cli.options import open_model
    from penni.data import open_data
    from penni.errors import PenniError
    from penni.training.loop import Trainer
    from penni.training.loop import evaluate as measure

    if (checkpoint is None) == (model is None):
        raise PenniError("name one: a checkpoint folder, or a model with --model and --weights")
    notes = read_structure(checkpoint).get("notes", {}) if checkpoint else {}
    data_name = data or notes.get("data")
    if data_name is None:
        raise PenniError("say what to test on: --data cifar10, digits or imagefolder:PATH")
    source = open_data(data_name, data_dir or notes.get("data_dir"), normalise or notes.get("normalise"))
    network = open_model(checkpoint or model or "", weights, source)
    accuracy, loss = measure(network, source, Trainer(precision="fp32"))
    if as_json:
        print_json({"accuracy": accuracy, "loss": loss, "data": data_name})
    else:
        print(f"{accuracy:.2%} right on {data_name}, cross-entropy {loss:.4f}")
