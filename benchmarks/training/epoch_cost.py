"""What training costs beside the plain network: the input pipeline, and the decomposed network's extra work.

    python benchmarks/training/epoch_cost.py --model resnet56 --steps 30 --out results/training/epoch_cost.md

Random images of CIFAR-10's shape cost what the real ones cost. The plain and the decomposed network train in turn, a
few steps each, so that a change in the machine's speed meets both; compared are the medians of a step.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import torch

import penni
from penni.data import ArraySource
from penni.data.source import NORMALISATIONS, Augmentation, Shard
from penni.measure.machine import processor
from penni.training.behaviours import Alternation, Behaviour, HoldZeros, Moment, Together, UnitNorm
from penni.training.loop import Phase, Trainer, _step, optimiser_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (50_000,))
    data = ArraySource(
        "random",
        (images, labels),
        (images[:500], labels[:500]),
        normalisation=NORMALISATIONS["cifar10"],
        augmentation=Augmentation(4, flip=True),
        classes=10,
    )
    trainer = Trainer(precision=arguments.precision)
    plain = penni.build(arguments.model)
    contenders: dict[str, tuple[torch.nn.Module, list[Behaviour]]] = {
        "plain": (plain, []),
        "decomposed, alternating": (penni.decompose(plain, 5), [Alternation(5)]),
        "decomposed, both, zeros held": (penni.decompose(plain, 5), [Together(), UnitNorm(), HoldZeros()]),
    }
    phase = Phase("benchmark", 1, 1e-4)
    steppers = {name: Stepper(model, behaviours, phase, trainer) for name, (model, behaviours) in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in [*steppers, "input"]}
    batches = data.train(128, seed=0, epoch=0, shard=Shard(), device=trainer.device)
    for step in range(arguments.steps + 3):
        begun = time.perf_counter()
        batch = next(batches)
        elapsed = {"input": time.perf_counter() - begun}
        for name, stepper in steppers.items():
            begun = time.perf_counter()
            stepper(*batch)
            elapsed[name] = time.perf_counter() - begun
        if step >= 3:  # the first steps choose kernels and fill caches
            for name, seconds in elapsed.items():
                times[name].append(seconds)
    median = {name: statistics.median(values) for name, values in times.items()}
    lines = [
        f"# What an epoch costs: {arguments.model}, {trainer.precision}, batch 128",
        "",
        f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {time.strftime('%Y-%m-%d')}; medians of {arguments.steps} steps taken in turn.",
        "",
        f"    python benchmarks/training/epoch_cost.py --model {arguments.model} --steps {arguments.steps}",
        "",
        "| | ms a step | of the plain network's step | aim |",
        "| --- | --- | --- | --- |",
    ]
    for name, seconds in median.items():
        aim = "< 5 %" if name == "input" else "" if name == "plain" else "≤ 115 %"
        lines.append(f"| {name} | {seconds * 1000:.1f} | {seconds / median['plain']:.1%} | {aim} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


class Stepper:
    """One network's training step."""

    def __init__(self, model: torch.nn.Module, behaviours: list[Behaviour], phase: Phase, trainer: Trainer) -> None:
        self.model, self.behaviours, self.phase, self.trainer = trainer.place(model).train(), behaviours, phase, trainer
        self.optimiser = optimiser_for(self.model, phase)
        self.moment = Moment(self.model, 0, 1, 0, 1, 1e-4, phase.momentum)
        for behaviour in behaviours:
            behaviour.start_phase(self.model)
            behaviour.start_epoch(self.moment)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        _step(self.model, images, labels, self.phase, self.trainer, self.behaviours, None, self.optimiser, self.moment)


if __name__ == "__main__":
    main()
