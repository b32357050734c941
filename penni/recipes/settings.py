"""Every setting of a compression run, with what is allowed for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from penni.errors import PenniError, nearest
from penni.recipes.targets import Target, parse_target

_SCHEDULES = ("step", "cosine", "one-cycle", "constant")
_RAMPS = ("constant", "linear", "cubic")
_SCOPES = ("layer", "global", "lamp", "balanced")


@dataclass(frozen=True)
class Optimiser:
    """Stochastic gradient descent, and what all phases share."""

    batch_size: int = 128
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _at_least("optimiser.batch_size", self.batch_size, 1)
        _within("optimiser.momentum", self.momentum, 0, 0.9999)
        _at_least("optimiser.weight_decay", self.weight_decay, 0)
        _within("optimiser.label_smoothing", self.label_smoothing, 0, 1)


@dataclass(frozen=True)
class Decompose:
    """Phase A."""

    bases: int | list[int] | dict[str, int] = 5
    pointwise: bool = False
    centred: bool = False
    exclude: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Schedule:
    """How long a phase trains, and its learning rate."""

    epochs: int = 0
    learning_rate: float = 0.01
    schedule: str = "step"
    milestones: list[float] = field(default_factory=lambda: [0.5, 0.75])
    factor: float = 0.1
    warmup_epochs: int = 0
    warmup_learning_rate: float = 0.0
    distillation: float = 0.0
    temperature: float = 4.0

    def __post_init__(self) -> None:
        where = type(self).__name__.lower()
        _at_least(f"{where}.epochs", self.epochs, 0)
        _at_least(f"{where}.learning_rate", self.learning_rate, 0)
        _one_of(f"{where}.schedule", self.schedule, _SCHEDULES)
        _within(f"{where}.distillation", self.distillation, 0, 1)
        _at_least(f"{where}.temperature", self.temperature, 0.01)
        _within(f"{where}.warmup_epochs", self.warmup_epochs, 0, self.epochs)


@dataclass(frozen=True)
class Retrain(Schedule):
    """Phase B: alternate, regularise, and prune along the way if asked to.

    `interval` 0 trains coefficients and bases together. `gamma` is the L1 strength; `pull`, if given, sets it so
    that Σ learning rate·γ/(1−momentum) over the epochs in which coefficients train is that number, whatever the
    schedule's length (the paper's full recipe comes to about 0.1). `gradual` prunes during this phase, up to the aim in
    [prune], done after the share `until` of it.
    """

    interval: int = 5
    regulariser: str = "l1"
    gamma: float = 0.0
    pull: float = 0.0
    gamma_ramp: str = "constant"
    scaled_penalty: bool = False
    unit_norm: bool = False
    gradual: bool = False
    until: float = 0.75
    gradual_ramp: str = "cubic"

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("retrain.interval", self.interval, 0)
        _one_of("retrain.regulariser", self.regulariser, ("l1", "proximal-l1", "none"))
        _one_of("retrain.gamma_ramp", self.gamma_ramp, _RAMPS)
        _one_of("retrain.gradual_ramp", self.gradual_ramp, _RAMPS)
        _at_least("retrain.gamma", self.gamma, 0)
        _at_least("retrain.pull", self.pull, 0)
        _within("retrain.until", self.until, 0.01, 1)


@dataclass(frozen=True)
class Prune:
    """Phase C: a threshold in standard deviations per layer, or shares to keep of coefficients, MACs, parameters.

    `target` says where the finished network is to end: `{macs = "-80%"}`, `{params = "40K"}`, `{latency = "2x"}` (in
    penni's engine, one image on one thread, against the base network there) or several, of which the hardest counts. It
    is met after shrinking, within one percent, where `macs` and `params` are shares not to exceed before it.
    """

    threshold: float = 1.0
    density: float = 0.0
    macs: float = 0.0
    params: float = 0.0
    scope: str = "global"
    target: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least("prune.threshold", self.threshold, 0)
        for name in ("density", "macs", "params"):
            _within(f"prune.{name}", getattr(self, name), 0, 1)
        _one_of("prune.scope", self.scope, _SCOPES)
        _ = self.targets
        shares = [f"prune.{name}" for name in ("density", "macs", "params") if getattr(self, name)]
        if self.target and shares:
            raise PenniError(f"prune.target and {shares[0]} both say how far to prune: set {shares[0]}=0, or no target")

    @property
    def targets(self) -> list[Target]:
        """The targets, understood."""
        return [parse_target(quantity, text) for quantity, text in self.target.items()]

    @property
    def has_aim(self) -> bool:
        """Whether a target or shares to keep are given, in place of the threshold."""
        return bool(self.density or self.macs or self.params or self.target)


@dataclass(frozen=True)
class Finetune(Schedule):
    """The end of phase C: train what is left, with the zeros held."""

    interval: int = 0


@dataclass(frozen=True)
class Recipe:
    """A whole compression run."""

    name: str = "custom"
    about: str = ""
    model: str = ""
    data: str = ""
    normalise: str = ""
    precision: str = "auto"
    seed: int = 0
    optimiser: Optimiser = field(default_factory=Optimiser)
    decompose: Decompose = field(default_factory=Decompose)
    retrain: Retrain = field(default_factory=Retrain)
    prune: Prune = field(default_factory=Prune)
    finetune: Finetune = field(default_factory=Finetune)

    def __post_init__(self) -> None:
        _one_of("precision", self.precision, ("auto", "fp32", "bf16"))
        if self.retrain.gradual and not self.prune.has_aim:
            raise PenniError("retrain.gradual needs an aim: set prune.density, prune.macs, prune.params or a target")
        if self.prune.target and self.retrain.regulariser == "proximal-l1":
            raise PenniError(
                "the penalty proximal-l1 makes zeros of its own, so a target cannot be steered to: use l1 or none"
            )


def _at_least(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise PenniError(f"{name} = {value} is too small: use {low} or more")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise PenniError(f"{name} = {value} is out of range: use {low} to {high}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PenniError(f"{name} = '{value}' is not known: {nearest(value, known)}")
