"""The whole method on one network: base → decomposed → retrained → pruned → fine-tuned → shrunk, resumable anywhere.

A run is a folder. `state.safetensors` is where it stands, `metrics.jsonl` what happened, `recipe.toml` what was
asked; each phase leaves a checkpoint of its own name, and the finished network is in `checkpoint`.
"""

from __future__ import annotations

import copy
import dataclasses
import platform
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penni._version import __version__
from penni.basis import decompose, decomposition_plan
from penni.checkpoint import check_saveable, load, save, writing
from penni.data.source import ImageSource
from penni.errors import PenniError
from penni.measure import count
from penni.measure.machine import processor
from penni.pruning import Aim, aim_for, density, kill_dead_filters, prune_by_deviation, prune_to
from penni.recipes.load import from_dictionary, to_toml
from penni.recipes.settings import Finetune, Recipe, Retrain
from penni.training.behaviours import (
    L1,
    Alternation,
    Behaviour,
    GradualPruning,
    HoldZeros,
    ProximalL1,
    SparsityReport,
    Together,
    UnitNorm,
)
from penni.training.loop import Phase, Record, Trainer, evaluate, optimiser_for, run_phase
from penni.training.run import BEFORE_STATE, about, check_free, is_run
from penni.training.schedules import RAMPS
from penni.training.state import RunState, read_state
from penni.training.steering import Clock, SteeredPruning, Steering

CHECKPOINT = "checkpoint"


def compress(
    model: nn.Module,
    data: ImageSource,
    recipe: Recipe,
    folder: str | Path,
    *,
    trainer: Trainer | None = None,
    notes: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Take a trained `model` through all phases; the run is kept in `folder`, the compressed network is returned."""
    folder = Path(folder)
    trainer = trainer or Trainer(seed=recipe.seed, precision=recipe.precision)
    # What cannot work should be said before anything is written.
    decomposition_plan_of(model, recipe)
    if trainer.is_main:
        check_free(folder)
    trainer.accelerator.wait_for_everyone()
    check_saveable(model)
    run = _Run(folder, recipe, data, trainer, copy.deepcopy(model), dict(notes or {}))
    was_there = folder.exists()
    try:
        run.begin()
    except BaseException:
        if trainer.is_main and not is_run(folder):
            _remove_beginning(folder, was_there)
        raise
    return run.finish()


def _remove_beginning(folder: Path, keep_folder: bool) -> None:
    """Leave nothing of a run that cannot be resumed, so that the same command can be given again."""
    for name in BEFORE_STATE:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not keep_folder and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def resume(
    folder: str | Path, data: ImageSource, *, trainer: Trainer | None = None, model: nn.Module | None = None
) -> nn.Module:
    """Go on with the run in `folder`. `model` is needed only if its checkpoints do not say how to build it."""
    folder = Path(folder)
    state = read_state(folder)
    if "recipe" not in state.settings:
        raise PenniError(f"'{folder}' holds a run of `penni train`; resume it with that")
    recipe = from_dictionary(state.settings["recipe"])
    trainer = trainer or Trainer(seed=recipe.seed, precision=recipe.precision)
    base = load(folder / "base", model=copy.deepcopy(model))
    run = _Run(folder, recipe, data, trainer, base, state.settings["notes"], state)
    return run.finish()


def decomposition_plan_of(model: nn.Module, recipe: Recipe) -> list[str]:
    """Which layers the recipe leaves alone, each with the reason; an error if it cannot be carried out."""
    settings = recipe.decompose
    plan = decomposition_plan(model, settings.bases, pointwise=settings.pointwise, exclude=settings.exclude)
    if not any(choice.bases for choice in plan):
        decompose(model, settings.bases, pointwise=settings.pointwise, exclude=settings.exclude)  # says why
    return [f"{choice.name} is left alone: {choice.reason}" for choice in plan if choice.bases is None]


class _Run:
    """One run: carries the network from phase to phase and writes down what happens."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        data: ImageSource,
        trainer: Trainer,
        base: nn.Module,
        notes: dict[str, Any],
        state: RunState | None = None,
    ) -> None:
        self.folder = folder
        self.recipe = recipe
        self.data = data
        self.trainer = trainer
        self.base = trainer.place(base.eval())
        self.notes = {**notes, **about(data)}
        self.state = state or RunState(settings={"recipe": dataclasses.asdict(recipe), "notes": dict(notes)})
        self.example = torch.zeros(2, *data.shape, device=trainer.device)
        self._steered: Steering | None = None

    def begin(self) -> None:
        """Phase A, and the record of where everything started."""
        if self.recipe.prune.target:
            self._steering().check(self._decomposed_on_device())
        if self.trainer.is_main:
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / "recipe.toml").write_text(to_toml(self.recipe))
        self._checkpoint(self.base, "base")
        self._event("base", self.base, machine=_machine(self.trainer))
        for line in decomposition_plan_of(self.base, self.recipe):
            self.trainer.progress.say(line)
        model = self._decomposed()
        self._checkpoint(model, "decomposed")
        self._event("decomposed", model)
        self.state.phase = "retrain"
        self._keep(model, None)

    def finish(self) -> nn.Module:
        """Whatever phases are left."""
        model = self.trainer.place(self._decomposed())
        self.state.restore(model, None)
        if self.state.phase == "retrain":
            self._train(model, "retrain", self.recipe.retrain, self._retrain_behaviours(model))
            self._checkpoint(model, "retrained")
            self._event("retrained", model)
            self._prune(model)
            self._checkpoint(model, "pruned")
            self._event("pruned", model)
            self.state.phase, self.state.epoch = "finetune", 0
            self._keep(model, None)
        if self.state.phase == "finetune":
            self._train(model, "finetune", self.recipe.finetune, self._finetune_behaviours())
            self._checkpoint(model, "finetuned")
            self._event("finetuned", model)
            self.state.phase = "shrink"
            self._keep(model, None)
        return self._shrink(model)

    def _decomposed(self) -> nn.Module:
        settings = self.recipe.decompose
        model = decompose(
            self.base, settings.bases, pointwise=settings.pointwise, exclude=settings.exclude, centred=settings.centred
        )
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model

    def _train(self, model: nn.Module, name: str, settings: Retrain | Finetune, behaviours: list[Behaviour]) -> None:
        phase = phase_for(name, settings, self.recipe)
        optimiser = optimiser_for(model, phase)
        first = self.state.epoch
        if first:
            self.state.restore(model, optimiser)

        def after_epoch(epoch: int, record: Record) -> None:
            self.state.epoch = epoch + 1
            self.state.records.append(record)
            self._keep(model, optimiser)

        run_phase(
            model,
            self.data,
            phase,
            self.trainer,
            behaviours=behaviours,
            teacher=self.base if settings.distillation else None,
            optimiser=optimiser,
            first_epoch=first,
            after_epoch=after_epoch,
        )
        for parameter in model.parameters():
            parameter.requires_grad_(True)

    def _aim(self, model: nn.Module) -> Aim:
        settings = self.recipe.prune
        # Output positions come from the network before anything is pruned.
        return aim_for(
            model,
            count(self.base, self.example),
            self.example,
            density=settings.density or None,
            macs=settings.macs or None,
            params=settings.params or None,
        )

    def _retrain_behaviours(self, model: nn.Module) -> list[Behaviour]:
        settings = self.recipe.retrain
        behaviours: list[Behaviour] = [Alternation(settings.interval) if settings.interval else Together()]
        gamma = gamma_for(settings, phase_for("retrain", settings, self.recipe), self.data)
        if gamma and settings.regulariser != "none":
            kind = ProximalL1 if settings.regulariser == "proximal-l1" else L1
            behaviours.append(kind(gamma, RAMPS[settings.gamma_ramp], scaled=settings.scaled_penalty))
        if settings.unit_norm:
            behaviours.append(UnitNorm())
        if settings.gradual:
            ramp, scope = RAMPS[settings.gradual_ramp], self.recipe.prune.scope
            pruning: GradualPruning
            if self.recipe.prune.target:
                pruning = SteeredPruning(self._steering(), ramp, until=settings.until, scope=scope)
            else:
                aim = self._aim(self._decomposed_on_device())
                pruning = GradualPruning(aim, ramp, until=settings.until, scope=scope)
            behaviours += [HoldZeros(), pruning]
        return [*behaviours, SparsityReport(self.recipe.prune.threshold)]

    def _steering(self) -> Steering:
        if self._steered is None:
            targets = self.recipe.prune.targets
            timed = any(target.quantity == "latency" for target in targets)
            self._steered = Steering(
                targets,
                count(self.base, self.example),
                count(self._decomposed_on_device(), self.example),
                self.example,
                scope=self.recipe.prune.scope,
                clock=_engine_clock(self.base, self.data, self.trainer) if timed else None,
            )
        return self._steered

    def _reached(self, shrunk: nn.Module) -> dict[str, object]:
        """What became of the targets, for the record; said too."""
        if not self.recipe.prune.target:
            return {}
        outcomes = self._steering().outcomes(shrunk)
        for outcome in outcomes:
            self.trainer.progress.say(f"target {outcome.text()}")
        return {"targets": [outcome.record() for outcome in outcomes]}

    def _decomposed_on_device(self) -> nn.Module:
        return self.trainer.place(self._decomposed())

    def _finetune_behaviours(self) -> list[Behaviour]:
        interval = self.recipe.finetune.interval
        turn = Alternation(interval) if interval else Together()
        return [turn, HoldZeros(), SparsityReport(self.recipe.prune.threshold)]

    def _prune(self, model: nn.Module) -> None:
        settings = self.recipe.prune
        if settings.target:
            self._steering().finish(model)
        elif settings.has_aim:
            aim = self._aim(self._decomposed_on_device())
            if not aim.reached(model):
                prune_to(model, aim, 1.0, scope=settings.scope)
        else:
            prune_by_deviation(model, settings.threshold)
        dead = kill_dead_filters(model, self.example)
        if dead:
            filters = sum(len(channels) for channels in dead.values())
            self.trainer.progress.say(f"{filters} filters in {len(dead)} layers have no coefficients left")

    def _shrink(self, model: nn.Module) -> nn.Module:
        import penni

        result = penni.shrink(model.eval(), self.example)
        shrunk = result.model
        self._checkpoint(shrunk, CHECKPOINT)
        if not any(record.get("event") == "shrunk" for record in self.state.records):
            self._event("shrunk", shrunk, **self._reached(shrunk))
        self.state.phase, self.state.epoch = "done", 0
        self._keep(model, None)
        return shrunk

    def _event(self, name: str, model: nn.Module, **more: object) -> None:
        accuracy, loss = evaluate(model, self.data, self.trainer)
        counts = count(model, self.example)
        record: Record = {
            "event": name,
            "test_accuracy": accuracy,
            "test_loss": loss,
            "params": counts.params,
            "macs": counts.macs,
            "density": density(model),
            **more,
        }
        self.state.records.append(record)
        self.trainer.progress.say(
            f"{name}: accuracy {accuracy:.2%}, {counts.params:,} parameters, {counts.macs / 1e6:.2f} M MACs"
        )

    def _checkpoint(self, model: nn.Module, name: str) -> None:
        if self.trainer.is_main:
            save(model, self.folder / name, notes=self.notes)

    def _keep(self, model: nn.Module, optimiser: torch.optim.Optimizer | None) -> None:
        self.state.keep(model, optimiser)
        if self.trainer.is_main:
            self.state.write(self.folder)
        self.trainer.accelerator.wait_for_everyone()


def _engine_clock(base: nn.Module, data: ImageSource, trainer: Trainer) -> Clock:
    """Times one image on one thread in the engine. One process measures, and tells the others."""
    from penni.engine.compiling import compile as build_engine
    from penni.engine.peers import measure

    image = example_for(data)
    call = image.numpy()

    def engine(model: nn.Module) -> Any:
        built = build_engine(copy.deepcopy(model).cpu().eval(), image, threads=1)
        return lambda: built(call)

    dense = engine(base) if trainer.is_main else None

    def clock(model: nn.Module) -> tuple[float, float]:
        times = torch.zeros(2, dtype=torch.float64, device=trainer.device)
        if dense is not None:
            found = measure({"model": engine(model), "base": dense}, runs=200)
            times += torch.tensor([found["model"], found["base"]], dtype=torch.float64, device=trainer.device)
        reached, base_time = trainer.total(times).tolist()
        return reached, base_time

    return clock


def phase_for(name: str, settings: Retrain | Finetune, recipe: Recipe) -> Phase:
    """The training loop's view of a recipe's section."""
    shared = recipe.optimiser
    return Phase(
        name=name,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        schedule=settings.schedule,
        milestones=tuple(settings.milestones),
        factor=settings.factor,
        warmup_epochs=settings.warmup_epochs,
        warmup_learning_rate=settings.warmup_learning_rate,
        momentum=shared.momentum,
        nesterov=shared.nesterov,
        weight_decay=shared.weight_decay,
        batch_size=shared.batch_size,
        label_smoothing=shared.label_smoothing,
        distillation=settings.distillation,
        temperature=settings.temperature,
    )


def gamma_for(settings: Retrain, phase: Phase, data: ImageSource) -> float:
    """γ: as given, or what makes Σ learning rate·γ/(1−momentum) over the coefficients' epochs equal `pull`."""
    if not settings.pull:
        return settings.gamma
    steps = data.steps(phase.batch_size)
    turn = Alternation(settings.interval) if settings.interval else None
    ramp = RAMPS[settings.gamma_ramp]
    total = 0.0
    for epoch in range(phase.epochs):
        if turn is None or turn.trains(epoch) == "coefficients":
            for step in range(steps):
                progress = (epoch + step / steps) / phase.epochs
                total += phase.rate(progress) * ramp(progress)
    return settings.pull * (1 - phase.momentum) / total if total else 0.0


def _machine(trainer: Trainer) -> dict[str, object]:
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "processes": trainer.accelerator.num_processes,
        "device": str(trainer.device),
        "precision": trainer.precision,
        "penni": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def example_for(data: ImageSource, batch: int = 1) -> Tensor:
    """A random batch of the data set's shape, for tracing and measuring."""
    return torch.randn(batch, *data.shape, generator=torch.Generator().manual_seed(0))
