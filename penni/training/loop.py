"""One phase of training, on one process or many: the loop, and how well a network does on the test images."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from penni.basis import basis_layers
from penni.data.source import ImageSource, Shard
from penni.errors import PenniError
from penni.measure.count import evaluating
from penni.pruning import density
from penni.training.behaviours import Behaviour, Moment
from penni.training.precision import choose_precision
from penni.training.progress import Progress, silent
from penni.training.schedules import learning_rate_factor

Record = dict[str, Any]

_STEPS_BETWEEN_COUNTS = 25


@dataclass(frozen=True)
class Phase:
    """How one phase trains; the recipes fill this in."""

    name: str
    epochs: int
    learning_rate: float
    schedule: str = "cosine"
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1
    warmup_epochs: int = 0
    warmup_learning_rate: float = 0.0
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    batch_size: int = 128
    label_smoothing: float = 0.0
    distillation: float = 0.0
    temperature: float = 4.0
    clip: float = 0.0

    def rate(self, progress: float) -> float:
        """The learning rate when `progress` (0…1) of the phase is done."""
        warm = self.warmup_epochs / self.epochs if self.epochs else 0.0
        if progress < warm:
            return self.warmup_learning_rate
        rest = (progress - warm) / (1 - warm) if warm < 1 else 1.0
        return self.learning_rate * learning_rate_factor(self.schedule, rest, self.milestones, self.factor)


@dataclass
class Trainer:
    """The machine to train on: devices, number format, seed, and where progress is shown."""

    seed: int = 0
    precision: str = "auto"
    progress: Progress = field(default_factory=silent)
    accelerator: Accelerator = field(init=False)

    def __post_init__(self) -> None:
        # Said outright: without a GPU, Accelerate joins processes over gloo only when told to use the CPU.
        self.accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        self.precision = choose_precision(self.precision, self.device)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def shard(self) -> Shard:
        """This process's part of each batch."""
        return Shard(self.accelerator.process_index, self.accelerator.num_processes)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return bool(self.accelerator.is_main_process)

    def place(self, model: nn.Module) -> nn.Module:
        """Move `model` to the device, with channels last: the layout in which convolutions run fastest."""
        return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """The number format of forward passes."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""
        summed: Tensor = self.accelerator.reduce(values, reduction="sum")
        return summed


def optimiser_for(model: nn.Module, phase: Phase) -> torch.optim.SGD:
    """SGD with momentum over every parameter; one that does not train has no gradient and is skipped."""
    return torch.optim.SGD(
        list(model.parameters()),
        lr=phase.rate(0.0) or phase.learning_rate,
        momentum=phase.momentum,
        weight_decay=phase.weight_decay,
        nesterov=phase.nesterov,
    )


def run_phase(
    model: nn.Module,
    data: ImageSource,
    phase: Phase,
    trainer: Trainer,
    *,
    behaviours: Sequence[Behaviour] = (),
    teacher: nn.Module | None = None,
    optimiser: torch.optim.Optimizer | None = None,
    first_epoch: int = 0,
    after_epoch: Callable[[int, Record], None] | None = None,
) -> list[Record]:
    """Train `model` in place from `first_epoch` on; a record per epoch is returned and given to `after_epoch`."""
    trainer.place(model)
    optimiser = optimiser or optimiser_for(model, phase)
    if teacher is not None:
        trainer.place(teacher).eval()
    for behaviour in behaviours:
        behaviour.start_phase(model)
    records = []
    for epoch in range(first_epoch, phase.epochs):
        record = _run_epoch(model, data, phase, trainer, behaviours, teacher, optimiser, epoch)
        records.append(record)
        if after_epoch is not None:
            after_epoch(epoch, record)
        # Said last: what is said to be done is also kept.
        trainer.progress.finished(record)
    return records


def evaluate(model: nn.Module, data: ImageSource, trainer: Trainer, batch_size: int = 500) -> tuple[float, float]:
    """Accuracy (0…1) and mean cross-entropy on the test images, in fp32 whatever the training used."""
    trainer.place(model)
    sums = torch.zeros(3, dtype=torch.float64, device=trainer.device)
    with evaluating(model), torch.no_grad():
        for images, labels in data.test(batch_size, shard=trainer.shard, device=trainer.device):
            if len(labels) == 0:
                continue
            outputs = logits_of(model(images))
            sums[0] += F.cross_entropy(outputs, labels, reduction="sum").double()
            sums[1] += (outputs.argmax(dim=1) == labels).sum()
            sums[2] += len(labels)
    loss, right, count = trainer.total(sums).tolist()
    return right / count, loss / count


def logits_of(outputs: Any) -> Tensor:
    """The class scores in what a network returns: some zoo networks return auxiliary ones beside them."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise PenniError(f"the model returns a {type(outputs).__name__}, not class scores")


def _run_epoch(
    model: nn.Module,
    data: ImageSource,
    phase: Phase,
    trainer: Trainer,
    behaviours: Sequence[Behaviour],
    teacher: nn.Module | None,
    optimiser: torch.optim.Optimizer,
    epoch: int,
) -> Record:
    begun = time.perf_counter()
    steps = data.steps(phase.batch_size)
    moment = Moment(model, epoch, phase.epochs, 0, steps, phase.rate(0.0), phase.momentum)
    # Dropout and the like draw from here: from the epoch alone, so that a resumed run draws the same.
    seed = trainer.seed * 7919 + zlib.crc32(phase.name.encode()) % 7919
    torch.manual_seed((seed * 1009 + epoch) * 31 + trainer.accelerator.process_index)
    for behaviour in behaviours:
        behaviour.start_epoch(moment)
    parallel = _parallel(model, trainer)
    parallel.train()
    sums = torch.zeros(3, dtype=torch.float64, device=trainer.device)
    decomposed, kept = bool(basis_layers(model)), None
    with trainer.progress.epoch(phase.name, epoch, phase.epochs, steps) as tick:
        batches = data.train(phase.batch_size, seed=seed, epoch=epoch, shard=trainer.shard, device=trainer.device)
        for step, (images, labels) in enumerate(batches):
            moment.step = step
            moment.learning_rate = phase.rate(moment.progress)
            for group in optimiser.param_groups:
                group["lr"] = moment.learning_rate
            loss, right = _step(parallel, images, labels, phase, trainer, behaviours, teacher, optimiser, moment)
            sums += torch.tensor([loss * len(labels), right, len(labels)], dtype=torch.float64, device=sums.device)
            if decomposed and step % _STEPS_BETWEEN_COUNTS == 0:
                kept = density(model)
            tick(loss=float(sums[0] / sums[2]), accuracy=float(sums[1] / sums[2]), kept=kept)
    loss, right, count = trainer.total(sums).tolist()
    seconds = time.perf_counter() - begun
    accuracy, test_loss = evaluate(model, data, trainer)
    record: Record = {
        "phase": phase.name,
        "epoch": epoch + 1,
        "learning_rate": moment.learning_rate,
        "loss": loss / count,
        "train_accuracy": right / count,
        "test_loss": test_loss,
        "test_accuracy": accuracy,
        "seconds": round(seconds, 2),
    }
    for behaviour in behaviours:
        record.update(behaviour.report(moment))
    return record


def _step(
    parallel: nn.Module,
    images: Tensor,
    labels: Tensor,
    phase: Phase,
    trainer: Trainer,
    behaviours: Sequence[Behaviour],
    teacher: nn.Module | None,
    optimiser: torch.optim.Optimizer,
    moment: Moment,
) -> tuple[float, float]:
    optimiser.zero_grad(set_to_none=True)
    with trainer.autocast():
        outputs = logits_of(parallel(images)).float()
        if teacher is not None:
            with torch.no_grad():
                target = logits_of(teacher(images)).float()
    loss = F.cross_entropy(outputs, labels, label_smoothing=phase.label_smoothing)
    if teacher is not None and phase.distillation > 0:
        t = phase.temperature
        divergence = F.kl_div(
            F.log_softmax(outputs / t, dim=1), F.log_softmax(target / t, dim=1), reduction="batchmean", log_target=True
        )
        loss = (1 - phase.distillation) * loss + phase.distillation * t * t * divergence
    if not bool(loss.isfinite()):
        # Before the step, which would spoil the weights.
        earlier = f"the state after epoch {moment.epoch} is kept" if moment.epoch else "nothing was kept of this phase"
        raise PenniError(
            f"the loss became {loss.item()} in epoch {moment.epoch + 1} of {phase.name}, step {moment.step + 1}; "
            f"{earlier}. Start again, in another folder, with a lower learning rate"
        )
    trainer.accelerator.backward(loss)
    for behaviour in behaviours:
        behaviour.before_step(moment)
    if phase.clip > 0:
        torch.nn.utils.clip_grad_norm_(moment.model.parameters(), phase.clip)
    optimiser.step()
    for behaviour in behaviours:
        behaviour.after_step(moment)
    return float(loss.detach()), float((outputs.argmax(dim=1) == labels).sum())


def _parallel(model: nn.Module, trainer: Trainer) -> nn.Module:
    """The model as all processes share it. Wrapped anew each epoch, since other parameters may train in the next."""
    if trainer.accelerator.num_processes == 1:
        return model
    ids = [trainer.device.index] if trainer.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids)
