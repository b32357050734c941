"""Advice before training: what decomposing a network would give, layer by layer, from its weights alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penni.basis import decomposition_plan, principal_kernels
from penni.errors import PenniError
from penni.measure.count import Counts, count, two_stage_macs

# The share of coefficients that the paper's networks keep, all layers together, before shrinking: its parameter
# counts without the basis kernels, over the coefficients that d = 5 gives.
PAPER_DENSITIES = {"ResNet56": 0.077, "ResNet18": 0.055, "VGG16": 0.0166}
# The same where 1×1 convolutions are read as coefficients too: the non-zeros in the paper's table of ResNet50 R1.
PAPER_POINTWISE_DENSITIES = {"ResNet50 R1": 0.161}

_POINTWISE_FROM = 0.4
_DEPTHWISE_FROM = 0.01
_REPEATS = 7


@dataclass(frozen=True)
class LayerAnalysis:
    """One convolution: what it costs, and how well d shared kernels stand for its own.

    `spectrum` has the singular values of its kernels as shares of the largest; `errors[d - 1]` is the relative error
    ‖θ − A·Bᵀ‖ / ‖θ‖ that d basis kernels leave. Both are empty where nothing can be decomposed; `reason` says why.
    """

    name: str
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    groups: int
    positions: int
    params: int
    macs: int
    reason: str
    spectrum: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    microseconds: float | None = None

    @property
    def size(self) -> int:
        """Positions of the kernel."""
        return self.kernel[0] * self.kernel[1]

    def cost(self, bases: int, density: float = 1.0) -> tuple[int, int]:
        """Parameters and MACs with `bases` kernels, if the share `density` of A is left, at random places."""
        if self.reason or (self.size > 1 and bases > self.size):
            return self.params, self.macs
        bases = min(bases, self.size)
        coefficients = self.outputs * (self.inputs // self.groups) * bases
        nonzero = round(coefficients * density)
        # An (input, basis) plane is computed unless none of its group's outputs reads it.
        read = 1 - (1 - density) ** (self.outputs // self.groups)
        pairs = round(self.inputs * bases * read)
        basis = bases * self.size if self.size > 1 else 0
        return nonzero + basis, two_stage_macs(pairs, nonzero, self.size, self.positions)


@dataclass(frozen=True)
class Estimate:
    """Parameters and MACs of the whole network at some number of bases, and share of coefficients kept."""

    bases: int
    params: int
    macs: int
    density: float = 1.0
    like: str = ""


@dataclass(frozen=True)
class Analysis:
    """What `analyse` found."""

    params: int
    macs: int
    pointwise: bool
    layers: tuple[LayerAnalysis, ...]
    by_bases: tuple[Estimate, ...]
    pruned: tuple[Estimate, ...]
    warnings: tuple[str, ...]
    timing: str

    def slowest(self, number: int = 5) -> list[tuple[LayerAnalysis, float]]:
        """The layers in which the engine spends most time, each with its share of all convolutions' time."""
        timed = [layer for layer in self.layers if layer.microseconds is not None]
        spent = sum(layer.microseconds or 0 for layer in timed) or 1
        timed.sort(key=lambda layer: -(layer.microseconds or 0))
        return [(layer, (layer.microseconds or 0) / spent) for layer in timed[:number]]


def analyse(
    model: nn.Module,
    example_input: Tensor,
    *,
    bases: int = 5,
    pointwise: bool = False,
    exclude: Sequence[str] = (),
    timing: bool = True,
) -> Analysis:
    """What decomposing `model` would give; nothing is trained, and `model` stays as it is.

    `timing` also measures where the dense network's time goes in penni's engine.
    """
    counts = count(model, example_input)
    positions = {layer.name: layer for layer in counts.layers}
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        raise PenniError("there is nothing to analyse: the model has no two-dimensional convolutions")
    plan = decomposition_plan(model, {"*": 1}, pointwise=pointwise, exclude=exclude)
    times, sentence = engine_times(model, example_input) if timing else ({}, "not measured")
    layers = []
    for choice in plan:
        layer = model.get_submodule(choice.name)
        assert isinstance(layer, nn.Conv2d)
        if choice.name not in positions:
            continue  # only used in training, such as an auxiliary head
        reason = "" if choice.bases else choice.reason
        entry = positions[choice.name]
        spectrum, errors = _spectrum(layer) if not reason and entry.kernel_positions > 1 else ((), ())
        layers.append(
            LayerAnalysis(
                name=choice.name,
                inputs=layer.in_channels,
                outputs=layer.out_channels,
                kernel=(layer.kernel_size[0], layer.kernel_size[1]),
                groups=layer.groups,
                positions=entry.positions,
                params=entry.params,
                macs=entry.macs,
                reason=reason,
                spectrum=spectrum,
                errors=errors,
                microseconds=times.get(choice.name),
            )
        )
    most = max((layer.size for layer in layers if not layer.reason), default=1)
    by_bases = tuple(_estimate(layers, counts, number) for number in range(1, min(most, 9) + 1))
    bases = min(bases, most)
    densities = PAPER_POINTWISE_DENSITIES if pointwise else {}
    pruned = tuple(
        _estimate(layers, counts, bases, density, network)
        for network, density in {**densities, **PAPER_DENSITIES}.items()
    )
    warnings = tuple(_warnings(layers, counts, pointwise, bases))
    return Analysis(counts.params, counts.macs, pointwise, tuple(layers), by_bases, pruned, warnings, sentence)


def engine_times(model: nn.Module, example_input: Tensor) -> tuple[dict[str, float], str]:
    """Microseconds per layer of `model` in penni's engine on one thread, and a sentence on how they were measured."""
    from penni.engine.compiling import compile

    try:
        engine = compile(model, example_input[:1], threads=1)
        image = example_input[:1].numpy()
        reports = engine.profile(image, repeats=1)
        # The fastest of a few: on a busy machine a median of so few would name layers that were only interrupted.
        fastest = engine.measure(image, _REPEATS).min(axis=0)
    except PenniError as error:
        return {}, f"the engine cannot run this network, so no times: {error}"
    times: dict[str, float] = {}
    for report, time in zip(reports, fastest, strict=True):
        times[report.module] = times.get(report.module, 0.0) + float(time)
    return times, f"measured in penni's engine, dense, one image, one thread, {engine.isa}; the fastest of {_REPEATS}"


def _spectrum(layer: nn.Conv2d) -> tuple[tuple[float, ...], tuple[float, ...]]:
    kernels = layer.weight.detach().double().reshape(-1, layer.kernel_size[0] * layer.kernel_size[1])
    values = principal_kernels(kernels)[0]
    energy = values.square()
    total = float(energy.sum()) or 1.0
    left = (energy.sum() - energy.cumsum(0)).clamp_min(0) / total
    shares = values / max(float(values[0]), torch.finfo(values.dtype).tiny)
    return tuple(shares.tolist()), tuple(left.sqrt().tolist())


def _estimate(
    layers: Sequence[LayerAnalysis], counts: Counts, bases: int, density: float = 1.0, like: str = ""
) -> Estimate:
    params, macs = counts.params, counts.macs
    for layer in layers:
        new_params, new_macs = layer.cost(bases, density)
        params += new_params - layer.params
        macs += new_macs - layer.macs
    return Estimate(bases, params, macs, density, like)


def _warnings(layers: Sequence[LayerAnalysis], counts: Counts, pointwise: bool, bases: int) -> list[str]:
    warnings = []
    total = counts.macs or 1
    narrow = sum(layer.macs for layer in layers if layer.size == 1) / total
    depthwise = sum(layer.macs for layer in layers if layer.groups == layer.inputs > 1) / total
    open_ = sum(layer.macs for layer in layers if not layer.reason) / total
    other = 1 - sum(layer.macs for layer in layers) / total
    if narrow >= _POINTWISE_FROM and not pointwise:
        warnings.append(
            f"1×1 convolutions do {narrow:.0%} of the MACs and are left alone by default: use --pointwise "
            "(decompose.pointwise in a recipe), so that they are regularised and pruned too"
        )
    if depthwise >= _DEPTHWISE_FROM and narrow >= _POINTWISE_FROM:
        now = _estimate(layers, counts, bases)
        warnings.append(
            f"this is a depthwise network: its depthwise convolutions ({depthwise:.0%} of the MACs) have no kernels to "
            f"share. Decomposing alone changes the MACs by {now.macs / total - 1:+.1%}; whatever can be gained "
            "comes from zeros in the 1×1 convolutions" + ("" if pointwise else ", which need --pointwise")
        )
    if open_ < 0.5 and narrow < _POINTWISE_FROM:
        warnings.append(f"only {open_:.0%} of the MACs are in layers that can be decomposed")
    if other >= 0.25:
        warnings.append(
            f"{other:.0%} of the MACs are in linear and other layers, which penni counts but does not decompose"
        )
    flat = [layer.name for layer in layers if layer.errors and layer.errors[min(bases, layer.size) - 1] > 0.5]
    if flat and len(flat) > len([layer for layer in layers if layer.errors]) / 2:
        warnings.append(
            f"in {len(flat)} layers {bases} bases leave an error above 50 %, as with random weights: give trained "
            "ones with --weights, or expect more retraining"
        )
    return warnings
