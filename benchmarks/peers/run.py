"""Every method on one network, from the same weights, with the same epochs, at the same MACs.

    python benchmarks/peers/run.py --model resnet56 --weights resnet56-cifar10.safetensors --data cifar10 \
        --normalise imagenet --macs 0.23 --runs runs/peers --record results/peers/resnet56

Torch-Pruning comes with `pip install -r benchmarks/peers/requirements.txt`, into an environment of its own if you like.
Given again, the command keeps what is finished and goes on with what was stopped, epoch by epoch. All methods share
data, augmentation, batch size, learning rates and the teacher; measure.py and figure.py make the rest of the record.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from methods import METHODS, Method
from torch import nn

import penni
from penni.cli.options import open_model, trainer_for
from penni.compression import _machine
from penni.data import ArraySource, ImageSource, open_data
from penni.measure import count
from penni.training.loop import Phase, Record, Trainer, evaluate, optimiser_for, run_phase
from penni.training.run import about
from penni.training.state import METRICS, STATE, RunState, read_state

NAMES = ("penni", *METHODS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="as for penni compress")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--normalise")
    parser.add_argument("--macs", type=float, default=0.23, help="the share of MACs that all end at")
    parser.add_argument("--retrain", type=int, default=8, help="epochs of the first phase")
    parser.add_argument("--finetune", type=int, default=14, help="epochs of the second phase")
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--distillation", type=float, default=0.5, help="the base network teaches all of them")
    parser.add_argument("--recipe", default="resnet56-cifar10-short", help="penni's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--penalty", type=float, help="of network slimming or Torch-Pruning, in place of its own")
    parser.add_argument("--methods", default=",".join(NAMES))
    parser.add_argument(
        "--train-images", type=int, help="train on so many only: to try this script, never for a record"
    )
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--record", type=Path, required=True, help="the folder of what is kept")
    arguments = parser.parse_args()
    # Torch-Pruning uses names that PyTorch will drop.
    warnings.filterwarnings("ignore", category=FutureWarning)
    names = arguments.methods.split(",")
    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"run.py: there is no method {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    for name in names:
        if name == "penni":
            _run_penni(arguments)
        else:
            run(name, arguments)


def run(name: str, arguments: argparse.Namespace) -> None:
    """One method, from where it stands to its end."""
    folder = arguments.runs / name
    trainer = trainer_for(arguments.seed, None)
    data = _data(arguments)
    base = open_model(arguments.model, arguments.weights, data)
    example = torch.zeros(2, *data.shape)
    penalty = {"penalty": arguments.penalty} if arguments.penalty and name in ("slimming", "torch-pruning") else {}
    method = METHODS[name](count(base, example), example, arguments.macs, **penalty)
    state = read_state(folder) if (folder / STATE).is_file() else RunState()
    if state.phase == "done":
        print(f"{name}: done before")
    else:
        print(f"{name}: {'goes on' if state.phase else 'begins'}", flush=True)
        _Peer(folder, method, data, trainer, base, arguments, state).run()
    _keep(folder, arguments.record / name, {"method": name, **_settings(arguments), **method.settings()})


class _Peer:
    def __init__(
        self,
        folder: Path,
        method: Method,
        data: ImageSource,
        trainer: Trainer,
        base: nn.Module,
        arguments: argparse.Namespace,
        state: RunState,
    ) -> None:
        self.folder = folder
        self.method = method
        self.data = data
        self.trainer = trainer
        self.base = trainer.place(base.eval())
        self.arguments = arguments
        self.state = state

    def run(self) -> None:
        if not self.state.phase:
            self._event("base", self.base, machine=_machine(self.trainer))
            model = self._first_network()
            if self.method.prunes_first:
                model = self._prune(model)
            self._next_phase("retrain", model)
        if self.state.phase == "retrain":
            model = self._restored()
            self._train(model, "retrain", self.arguments.retrain, "constant", self.method.behaviours())
            self._event("retrained", model)
            if not self.method.prunes_first:
                model = self._prune(model)
            self._next_phase("finetune", model)
        if self.state.phase == "finetune":
            model = self._restored()
            self._train(model, "finetune", self.arguments.finetune, "cosine", self.method.finetune_behaviours())
            self._event("finetuned", model)
            penni.save(model, self.folder / "checkpoint", notes=self._notes())
            self._next_phase("done", model)

    def _first_network(self) -> nn.Module:
        import copy

        return copy.deepcopy(self.base)

    def _restored(self) -> nn.Module:
        """The network as it stands: its structure from the last pruning, its weights from the state."""
        pruned = self.folder / "pruned"
        model = penni.load(pruned) if pruned.is_dir() else self._first_network()
        model = self.trainer.place(model)
        self.state.restore(model, None)
        return model

    def _prune(self, model: nn.Module) -> nn.Module:
        model = self.method.prune(model.cpu().eval())
        penni.save(model, self.folder / "pruned", notes=self._notes())
        self._event("pruned", model)
        return model

    def _train(self, model: nn.Module, name: str, epochs: int, schedule: str, behaviours: list[Any]) -> None:
        phase = Phase(
            name,
            epochs,
            self.arguments.learning_rate,
            schedule=schedule,
            nesterov=True,
            distillation=self.arguments.distillation,
        )
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        optimiser = optimiser_for(model, phase)
        first = self.state.epoch
        if first:
            self.state.restore(model, optimiser)

        def after_epoch(epoch: int, record: Record) -> None:
            self.state.epoch = epoch + 1
            self.state.records.append(record)
            self.state.keep(model, optimiser)
            self.state.write(self.folder)

        teacher = self.base if self.arguments.distillation else None
        run_phase(
            model,
            self.data,
            phase,
            self.trainer,
            behaviours=behaviours,
            teacher=teacher,
            optimiser=optimiser,
            first_epoch=first,
            after_epoch=after_epoch,
        )

    def _next_phase(self, name: str, model: nn.Module) -> None:
        self.state.phase, self.state.epoch = name, 0
        self.state.keep(model, None)
        self.state.write(self.folder)

    def _event(self, name: str, model: nn.Module, **more: object) -> None:
        accuracy, loss = evaluate(model, self.data, self.trainer)
        counts = count(model, torch.zeros(2, *self.data.shape, device=self.trainer.device))
        event = {"event": name, "test_accuracy": accuracy, "test_loss": loss, "params": counts.params, **more}
        self.state.records.append({**event, "macs": counts.macs})
        self.trainer.progress.say(
            f"{name}: accuracy {accuracy:.2%}, {counts.params:,} parameters, {counts.macs:,} MACs"
        )

    def _notes(self) -> dict[str, Any]:
        return {**about(self.data), "normalise": self.arguments.normalise}


def _run_penni(arguments: argparse.Namespace) -> None:
    """Ours, by its command, with the same epochs and MACs."""
    folder = arguments.runs / "penni"
    command = [sys.executable, "-m", "penni.cli", "compress", "--no-report", "--out", str(folder)]
    if (folder / STATE).is_file():
        finished = read_state(folder).phase == "done"
        command += ["--resume"]
    else:
        finished = False
        command += ["--recipe", arguments.recipe, "--model", arguments.model, "--data", arguments.data]
        command += ["--weights", str(arguments.weights)] if arguments.weights else []
        command += ["--normalise", arguments.normalise] if arguments.normalise else []
        command += ["--seed", str(arguments.seed), "--target", f"macs=-{100 * (1 - arguments.macs):.6g}%"]
        for field, value in (
            ("retrain.epochs", arguments.retrain),
            ("finetune.epochs", arguments.finetune),
            ("retrain.learning_rate", arguments.learning_rate),
            ("finetune.learning_rate", arguments.learning_rate),
            ("retrain.distillation", arguments.distillation),
            ("finetune.distillation", arguments.distillation),
        ):
            command += ["--set", f"{field}={value}"]
    command += ["--data-dir", str(arguments.data_dir)] if arguments.data_dir else []
    print(f"penni: {'done before' if finished else 'begins or goes on'}", flush=True)
    if not finished:
        subprocess.run(command, check=True)
    _keep(folder, arguments.record / "penni", {"method": "penni", **_settings(arguments)})
    shutil.copy(folder / "recipe.toml", arguments.record / "penni" / "recipe.toml")


def _data(arguments: argparse.Namespace) -> ImageSource:
    data = open_data(arguments.data, arguments.data_dir, arguments.normalise)
    if arguments.train_images:
        assert isinstance(data, ArraySource)
        data.train_images = data.train_images[: arguments.train_images]
        data.train_labels = data.train_labels[: arguments.train_images]
    return data


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = {
        key: value
        for key, value in vars(arguments).items()
        if key not in ("runs", "record", "data_dir", "methods", "penalty")
    }
    # Where files lay on this machine says nothing on another.
    return {key: Path(value).name if key in ("weights", "model") and value else value for key, value in chosen.items()}


def _keep(folder: Path, record: Path, settings: dict[str, Any]) -> None:
    """What belongs into the repository: metrics, settings, and the network if it is small."""
    record.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / METRICS, record / METRICS)
    (record / "settings.json").write_text(json.dumps(settings, indent=1) + "\n")
    if (folder / "checkpoint" / "model.safetensors").stat().st_size < 4e6:
        shutil.rmtree(record / "checkpoint", ignore_errors=True)
        shutil.copytree(folder / "checkpoint", record / "checkpoint")
        structure = json.loads((record / "checkpoint" / "structure.json").read_text())
        structure["notes"]["data_dir"] = None
        (record / "checkpoint" / "structure.json").write_text(json.dumps(structure, indent=1) + "\n")


if __name__ == "__main__":
    main()
