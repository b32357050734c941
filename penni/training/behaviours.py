"""What a training phase does beside minimising the loss: regularise, alternate, prune, hold zeros.

The loop calls each behaviour of a phase at the same four moments and knows nothing else about it, so a new
regulariser or schedule is a new class here (or anywhere), not a change of the loop. A behaviour keeps no state that
the model, the step and the epoch do not give back, so a resumed run goes on as if it had not stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penni.basis import BasisConv2d, basis_layers
from penni.pruning import Aim, dead_normalisation, density, prune_to
from penni.training.schedules import Ramp, constant


@dataclass
class Moment:
    """Where training stands when a behaviour is called."""

    model: nn.Module
    epoch: int
    epochs: int
    step: int
    steps: int
    learning_rate: float
    momentum: float

    @property
    def progress(self) -> float:
        """0 at the start of the phase, 1 at its end."""
        return (self.step + self.epoch * self.steps) / max(1, self.epochs * self.steps)


class Behaviour:
    """One thing a phase does beside minimising the loss. Override the moments that matter."""

    def start_phase(self, model: nn.Module) -> None:
        """Before the first epoch, and again when a run is resumed."""

    def start_epoch(self, moment: Moment) -> None:
        """Before an epoch: the place to choose which parameters train."""

    def before_step(self, moment: Moment) -> None:
        """Gradients are there, the optimiser has not stepped yet."""

    def after_step(self, moment: Moment) -> None:
        """The optimiser has stepped."""

    def report(self, moment: Moment) -> dict[str, float | str]:
        """What belongs into this epoch's record."""
        return {}


class Alternation(Behaviour):
    """Train the coefficients for `interval` epochs, then the bases, and so on; all else always trains."""

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def trains(self, epoch: int) -> str:
        """Which of the two trains in `epoch`."""
        return "coefficients" if (epoch // self.interval) % 2 == 0 else "basis"

    def start_epoch(self, moment: Moment) -> None:
        turn = self.trains(moment.epoch)
        for layer in basis_layers(moment.model).values():
            layer.coefficients.requires_grad_(turn == "coefficients")
            layer.basis.requires_grad_(turn == "basis" and not layer.is_pointwise)

    def report(self, moment: Moment) -> dict[str, float | str]:
        return {"trains": self.trains(moment.epoch)}


class Together(Behaviour):
    """Train coefficients and bases at once."""

    def start_epoch(self, moment: Moment) -> None:
        for layer in basis_layers(moment.model).values():
            layer.coefficients.requires_grad_(True)
            layer.basis.requires_grad_(not layer.is_pointwise)

    def report(self, moment: Moment) -> dict[str, float | str]:
        return {"trains": "both"}


class L1(Behaviour):
    """γ·‖A‖₁ as the paper has it: γ·sign(a) is added to the gradient of every coefficient that trains.

    γ follows `ramp`. With `scaled` the penalty counts each coefficient times the norm of its basis kernel, which
    growing that kernel cannot evade.
    """

    def __init__(self, gamma: float, ramp: Ramp = constant, *, scaled: bool = False) -> None:
        self.gamma = gamma
        self.ramp = ramp
        self.scaled = scaled

    def strength(self, moment: Moment) -> float:
        """γ at this moment."""
        return self.gamma * self.ramp(moment.progress)

    def before_step(self, moment: Moment) -> None:
        gamma = self.strength(moment)
        for layer in basis_layers(moment.model).values():
            gradient = layer.coefficients.grad
            if layer.coefficients.requires_grad and gradient is not None:
                gradient.add_(self._weighted(layer, layer.coefficients.detach().sign()), alpha=gamma)

    def report(self, moment: Moment) -> dict[str, float | str]:
        return {"gamma": self.strength(moment)}

    def _weighted(self, layer: BasisConv2d, values: Tensor) -> Tensor:
        return values * _norms(layer) if self.scaled else values


class ProximalL1(L1):
    """The same penalty by soft thresholding after each step, which reaches exact zeros and may leave them again.

    With momentum m the sub-gradient is applied 1/(1−m) times over; so that γ means the same here, so is this.
    """

    def before_step(self, moment: Moment) -> None:
        """Nothing goes into the gradient."""

    @torch.no_grad()
    def after_step(self, moment: Moment) -> None:
        amount = self.strength(moment) * moment.learning_rate / (1 - moment.momentum)
        for layer in basis_layers(moment.model).values():
            a = layer.coefficients
            if a.requires_grad:
                thresholds = self._weighted(layer, torch.full_like(a, amount))
                a.copy_(torch.where(a.abs() > thresholds, a - thresholds * a.sign(), torch.zeros_like(a)))


class UnitNorm(Behaviour):
    """Keep every basis kernel at norm one, and its coefficients at the scale that leaves the product as it is.

    A·Bᵀ does not change when B grows and A shrinks; with this, the size of a coefficient means something. A basis
    kernel's gradient sums over every kernel of the layer, so its curvature is its coefficients' squared norm times that
    of a coefficient (whose basis has norm one): its step is scaled by the inverse, or it blows up where A is large.
    """

    @torch.no_grad()
    def before_step(self, moment: Moment) -> None:
        for layer in basis_layers(moment.model).values():
            if layer.basis.grad is not None:
                squares = layer.coefficients.square().sum(dim=(0, 1)).clamp_min(1.0)
                layer.basis.grad.div_(squares.view(-1, 1, 1))

    def start_epoch(self, moment: Moment) -> None:
        # Not again when a run is resumed: dividing by a norm of one, give or take a rounding, changes bits.
        if moment.epoch == 0:
            normalise_bases(moment.model)

    def after_step(self, moment: Moment) -> None:
        normalise_bases(moment.model)


class GradualPruning(Behaviour):
    """Prune a little at every few steps, until `aim` is reached after the first `until` of the phase.

    What is pruned stays zero: the behaviour `HoldZeros` belongs beside it.
    """

    def __init__(self, aim: Aim, ramp: Ramp, *, until: float = 0.75, every: int = 25, scope: str = "global") -> None:
        self.aim = aim
        self.ramp = ramp
        self.until = until
        self.every = every
        self.scope = scope

    def after_step(self, moment: Moment) -> None:
        last = moment.progress >= self.until
        if moment.step % self.every == 0 or last:
            reached = self.ramp(moment.progress / self.until) if not last else 1.0
            if not (last and self.aim.reached(moment.model)):
                prune_to(moment.model, self.aim, reached, scope=self.scope)


class HoldZeros(Behaviour):
    """What is zero before a step is zero, to the bit, after it: coefficients, and dead channels' norms."""

    def start_phase(self, model: nn.Module) -> None:
        self._dead = dead_normalisation(model)

    def before_step(self, moment: Moment) -> None:
        self._zeros = [
            (layer.coefficients, layer.coefficients.detach() == 0) for layer in basis_layers(moment.model).values()
        ]

    @torch.no_grad()
    def after_step(self, moment: Moment) -> None:
        for coefficients, zeros in self._zeros:
            coefficients.masked_fill_(zeros, 0.0)
        for parameter, zeros in self._dead:
            parameter.masked_fill_(zeros, 0.0)


class SparsityReport(Behaviour):
    """Write down, each epoch, the share of coefficients that is left, and the share a threshold would take."""

    def __init__(self, threshold: float = 1.0) -> None:
        self.threshold = threshold

    @torch.no_grad()
    def report(self, moment: Moment) -> dict[str, float | str]:
        layers = list(basis_layers(moment.model).values())
        if not layers:
            return {}
        total = sum(layer.coefficients.numel() for layer in layers)
        under = sum(
            int((layer.coefficients.abs() < self.threshold * layer.coefficients.std()).sum()) for layer in layers
        )
        return {"density": density(moment.model), "under_threshold": under / total}


@torch.no_grad()
def normalise_bases(model: nn.Module) -> None:
    """Scale every basis kernel to norm one and its coefficients by the inverse."""
    for layer in basis_layers(model).values():
        if not layer.is_pointwise:
            norms = _norms(layer).clamp_min(1e-12)
            layer.basis.div_(norms.view(-1, 1, 1))
            layer.coefficients.mul_(norms)


def _norms(layer: BasisConv2d) -> Tensor:
    norms: Tensor = layer.basis.detach().flatten(1).norm(dim=1)
    return norms
