"""`penni compress`: take a trained network through all phases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penni.cli.options import DataDir, DataName, Json, Normalise, Precision, Weights, print_json, trainer_for


def compress(
    out: Annotated[Path, typer.Option(help="The folder of the run: checkpoints, metrics, state.")],
    model: Annotated[
        str | None, typer.Option(help="A model: resnet56, torchvision:NAME, timm:NAME, file.py:callable, or a folder.")
    ] = None,
    weights: Weights = None,
    data: DataName = None,
    data_dir: DataDir = None,
    normalise: Normalise = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe that comes with penni (see `penni recipes`), or a TOML file.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a recipe field: --set retrain.epochs=12. Repeatable.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Where the shrunk network is to end, in place of the recipe's aim: macs=-80%, params=40K, "
            "latency=2x (in penni's engine on this machine). Repeatable."
        ),
    ] = None,
    precision: Precision = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order and augmentation.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    report: Annotated[bool, typer.Option(help="Write the report at the end, as `penni report` does.")] = True,
    as_json: Json = False,
) -> None:
    """Compress a trained network: decompose, retrain, prune, fine-tune, shrink.

    With --resume, --out alone is enough: the run knows its model, data and recipe.
    """
    import torch

    from penni.checkpoint import is_checkpoint
    from penni.cli.options import open_model
    from penni.compression import compress as start
    from penni.compression import resume as go_on
    from penni.data import open_data
    from penni.errors import PenniError
    from penni.recipes import override, read, with_target
    from penni.training.run import is_run
    from penni.training.state import read_state

    try:
        if resume:
            if recipe or change or weights or target:
                raise PenniError(
                    "a resumed run keeps its recipe, target and weights; "
                    "leave --recipe, --set, --target and --weights out"
                )
            settings = read_state(out).settings
            notes = settings["notes"]
            source = open_data(notes["data"], data_dir or notes["data_dir"], notes["normalise"])
            saved = settings["recipe"]
            trainer = trainer_for(saved["seed"], precision or saved["precision"])
            go_on(out, source, trainer=trainer)
        else:
            chosen = read(recipe) if recipe else None
            if chosen is None:
                raise PenniError("name a recipe with --recipe, such as resnet56-cifar10-short")
            changes = list(change or [])
            changes += [f"seed={seed}"] if seed is not None else []
            changes += [f"precision={precision}"] if precision else []
            if target:
                chosen, said = with_target(chosen, target, changes)
            else:
                chosen, said = override(chosen, changes), ""
            name, data_name = model or chosen.model, data or chosen.data
            if not name or not data_name:
                raise PenniError("this recipe names no model or data set of its own: give --model and --data")
            normalise = normalise or chosen.normalise or None
            source = open_data(data_name, data_dir, normalise)
            torch.manual_seed(chosen.seed)  # a model without weights is the same in every process and every run
            network = open_model(name, weights, source)
            notes = {
                # Where on this machine a checkpoint lay says nothing on another.
                "model": Path(name).name if Path(name).is_absolute() else name,
                "data": data_name,
                "data_dir": str(data_dir) if data_dir else None,
                "normalise": normalise,
                "weights": weights.name if weights else None,
            }
            trainer = trainer_for(chosen.seed, chosen.precision)
            if weights is None and not is_checkpoint(name):
                trainer.progress.say(f"note: {name} starts from random weights; give trained ones with --weights")
            if said:
                trainer.progress.say(said)
            start(network, source, chosen, out, trainer=trainer, notes=notes)
    except KeyboardInterrupt:
        if not is_run(out):
            raise PenniError("stopped before there was anything to keep; give the same command again") from None
        raise PenniError(
            f"stopped; every finished epoch is kept. Go on with: penni compress --out {out} --resume"
        ) from None
    if not trainer.is_main:
        return
    events = {record["event"]: record for record in read_state(out).records if "event" in record}
    page = _report(out) if report else None
    if as_json:
        print_json(events)
        return
    _table(events)
    print(f"the compressed network is in {out / 'checkpoint'}")
    if page is not None:
        print(f"the report is {page}")


def _report(run: Path) -> Path | None:
    import sys

    from penni.errors import PenniError
    from penni.report import write

    try:
        return write(run)
    except PenniError as error:
        # The run is finished and kept; a missing picture of it must not look like a failure.
        print(f"note: no report was written: {error}", file=sys.stderr)
        return None


def _table(events: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "accuracy", "parameters", "", "MACs", "")
    base = events["base"]
    for name, event in events.items():
        params, macs = event["params"], event["macs"]
        table.add_row(
            name,
            f"{event['test_accuracy']:.2%}",
            f"{params:,}",
            f"{params / base['params'] - 1:+.1%}",
            f"{macs / 1e6:,.2f} M",
            f"{macs / base['macs'] - 1:+.1%}",
        )
    Console().print(table)
