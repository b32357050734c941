"""Train a network from scratch (or go on from weights) into a run folder that can be resumed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from penni.checkpoint import check_saveable, save, writing
from penni.data.source import ImageSource
from penni.errors import PenniError
from penni.training.behaviours import Behaviour
from penni.training.loop import Phase, Record, Trainer, evaluate, optimiser_for, run_phase
from penni.training.state import STATE, RunState, read_state


def fit(
    model: nn.Module,
    data: ImageSource,
    phase: Phase,
    *,
    trainer: Trainer | None = None,
    behaviours: Sequence[Behaviour] = (),
    teacher: nn.Module | None = None,
) -> list[Record]:
    """Train `model` in place for one phase, in memory only; one record per epoch is returned."""
    return run_phase(model, data, phase, trainer or Trainer(), behaviours=behaviours, teacher=teacher)


def train(
    model: nn.Module,
    data: ImageSource,
    phase: Phase,
    folder: str | Path,
    *,
    trainer: Trainer | None = None,
    notes: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> nn.Module:
    """Train `model` in place; after every epoch `folder` holds all that is needed to go on, then the result."""
    folder = Path(folder)
    trainer = trainer or Trainer()
    if resume:
        state = read_state(folder)
    else:
        if trainer.is_main:
            check_free(folder)
        trainer.accelerator.wait_for_everyone()
        check_saveable(model)
        state = RunState(phase="train", settings={"notes": dict(notes or {})})
    trainer.place(model)
    optimiser = optimiser_for(model, phase)
    if resume:
        state.restore(model, optimiser)

    def after_epoch(epoch: int, record: Record) -> None:
        state.epoch = epoch + 1
        state.records.append(record)
        state.keep(model, optimiser)
        if trainer.is_main:
            state.write(folder)
        trainer.accelerator.wait_for_everyone()

    run_phase(model, data, phase, trainer, optimiser=optimiser, first_epoch=state.epoch, after_epoch=after_epoch)
    if trainer.is_main:
        save(model, folder / "checkpoint", notes={**state.settings["notes"], **about(data)})
    accuracy, _ = evaluate(model, data, trainer)
    trainer.progress.say(f"trained: accuracy {accuracy:.2%}; the network is in {folder / 'checkpoint'}")
    return model


def about(data: ImageSource) -> dict[str, Any]:
    """What a checkpoint notes of the data it was trained on: enough to evaluate and to trace it later."""
    return {"data": data.name, "normalisation": asdict(data.normalisation), "input": list(data.shape)}


BEFORE_STATE = ("recipe.toml", "base", "decomposed")


def check_free(folder: Path) -> None:
    """The error if something is in `folder` already: a run never mixes with what was there."""
    if is_run(folder):
        raise PenniError(f"'{folder}' already holds a run: go on with it by --resume, or choose another folder")
    if folder.exists() and not folder.is_dir():
        raise PenniError(f"'{folder}' is a file: choose a folder for the run")
    # What a run leaves that was ended before its first state is written over.
    if folder.exists() and any(entry.name not in BEFORE_STATE for entry in folder.iterdir()):
        raise PenniError(f"'{folder}' is not an empty folder: choose another one for the run")
    with writing(folder), tempfile.TemporaryDirectory(dir=_existing(folder)):
        pass  # that nothing can be written there should be known before an epoch is trained


def _existing(folder: Path) -> Path:
    """The folder itself, or the one above it in which it will be made."""
    return folder if folder.is_dir() else _existing(folder.parent) if folder != folder.parent else folder


def is_run(folder: str | Path) -> bool:
    """Whether there is a run to resume in `folder`."""
    return (Path(folder) / STATE).is_file()
