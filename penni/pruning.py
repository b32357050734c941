"""Phase C: which coefficients become zero, and what dies with a filter that has none left."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from penni.basis import BasisConv2d, basis_layers
from penni.errors import PenniError, nearest
from penni.measure.count import Counts, count, evaluating, two_stage_macs

log = logging.getLogger(__name__)

_Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def prune(
    model: nn.Module,
    threshold: float | None = None,
    *,
    density: float | None = None,
    scope: str = "layer",
    example_input: Tensor | None = None,
) -> nn.Module:
    """A copy of `model` with its small coefficients set to zero.

    Give either `threshold` s: per layer, |a| < s·std(A) becomes zero (1 unless said otherwise); or `density`: the
    share of all coefficients to keep, ranked within each layer or over all (`scope`, see `scores`). A layer keeps at
    least its largest coefficient. With an `example_input` the normalisation that follows a filter without
    coefficients dies with it, so that the filter can be removed without changing any answer.
    """
    if threshold is not None and density is not None:
        raise PenniError("give a threshold or a density, not both")
    if not basis_layers(model):
        raise PenniError("nothing to prune: the model has no decomposed layers; call penni.decompose first")
    result = copy.deepcopy(model)
    if density is not None:
        counts = count(model, example_input) if example_input is not None else None
        prune_to(result, Aim(density=density, counts=counts), 1.0, scope=scope)
    else:
        prune_by_deviation(result, 1.0 if threshold is None else threshold)
    if example_input is not None:
        kill_dead_filters(result, example_input)
    return result


@torch.no_grad()
def prune_by_deviation(model: nn.Module, threshold: float) -> None:
    """In place, per layer: |a| < threshold·std(A) becomes zero."""
    if threshold < 0:
        raise PenniError(f"a threshold of {threshold} makes no sense; use 0 or more standard deviations")
    for name, layer in basis_layers(model).items():
        a = layer.coefficients
        if a.numel() < 2:
            continue
        keep = a.abs() >= threshold * a.std()
        _apply(name, layer, keep, a.abs())


@dataclass(frozen=True)
class Aim:
    """How far to prune: the shares of coefficients, MACs and parameters to keep; every one given must be met.

    MACs and parameters are shares of `base`, counted on the network before it was decomposed; `counts` tells the
    output positions of the layers of the network that is pruned.
    """

    density: float | None = None
    macs: float | None = None
    params: float | None = None
    base: Counts | None = None
    counts: Counts | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("density", "macs", "params"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise PenniError(f"{name}={share} is not a share to keep: use a number above 0, up to 1")
        if (self.macs or self.params) and (self.base is None or self.counts is None):
            raise PenniError("a target for MACs or parameters needs the counts of the network")

    def reached(self, model: nn.Module) -> bool:
        """Whether `model` is there already."""
        return self._met({n: layer.coefficients.detach() != 0 for n, layer in basis_layers(model).items()}, 1.0)

    def near(self, progress: float, factor: float) -> bool:
        """Whether this progress allows no more than `factor` times the MACs (or parameters) that the aim does."""
        if self.base is None or self.counts is None:
            return True
        ways = [(self.counts.macs, self.macs, self.base.macs), (self.counts.params, self.params, self.base.params)]
        goals = [(start, share * base) for start, share, base in ways if share is not None]
        return all(_part_way(start, goal, progress) <= factor * goal for start, goal in goals)

    def _met(self, masks: Mapping[str, Tensor], progress: float) -> bool:
        """Whether these masks keep no more than this progress towards the aim allows."""
        if self.density is not None:
            kept = sum(int(mask.sum()) for mask in masks.values()) / sum(mask.numel() for mask in masks.values())
            if kept > _part_way(1.0, self.density, progress):
                return False
        if self.macs is not None or self.params is not None:
            assert self.base is not None
            assert self.counts is not None
            macs, params = cost_of(masks, self.counts)
            if self.macs is not None:
                goal = _part_way(self.counts.macs, self.macs * self.base.macs, progress)
                if macs > goal:
                    return False
            if self.params is not None:
                goal = _part_way(self.counts.params, self.params * self.base.params, progress)
                if params > goal:
                    return False
        return True


def cost_of(masks: Mapping[str, Tensor], counts: Counts) -> tuple[int, int]:
    """MACs and parameters of a counted network once only the coefficients in `masks` (c_out, c_in/g, d) are left."""
    macs, params = counts.macs, counts.params
    for layer in counts.layers:
        mask = masks.get(layer.name)
        if mask is None:
            continue
        nonzero = int(mask.sum())
        pairs = int(mask.view(layer.groups, -1, *mask.shape[1:]).any(dim=1).sum())
        bases = int(mask.flatten(0, 1).any(dim=0).sum()) if layer.kernel_positions > 1 else 0
        macs += two_stage_macs(pairs, nonzero, layer.kernel_positions, layer.positions) - layer.macs
        params += nonzero + bases * layer.kernel_positions - layer.params
    return macs, params


class Ranking:
    """The coefficients of a network in the order in which they go, the lowest-scored first."""

    def __init__(self, model: nn.Module, scope: str, counts: Counts | None = None) -> None:
        self.layers = basis_layers(model)
        positions = {layer.name: layer.positions for layer in counts.layers} if counts else None
        self.scores = scores(self.layers, scope, positions)
        flat = torch.cat([score.flatten() for score in self.scores.values()])
        # How many are zero already.
        self.gone = int((flat == 0).sum())
        self._ordered = flat.sort().values

    def __len__(self) -> int:
        return len(self._ordered)

    def masks(self, taken: int) -> dict[str, Tensor]:
        """What is left by layer once (about) so many are zero, these included that are zero already."""
        cut = self._ordered[min(taken, len(self) - 1)]
        return {name: (score >= cut) & (score > 0) for name, score in self.scores.items()}

    def fewest(self, met: Callable[[Mapping[str, Tensor]], bool]) -> int:
        """The fewest that must go until the masks `met` what is asked, which more can only meet better."""
        low, high = self.gone, len(self) - 1
        best = high
        while low <= high:
            middle = (low + high) // 2
            if met(self.masks(middle)):
                best, high = middle, middle - 1
            else:
                low = middle + 1
        return best


@torch.no_grad()
def prune_to(model: nn.Module, aim: Aim, progress: float, *, scope: str = "global") -> None:
    """In place: zero the lowest-scored coefficients until `progress` (0…1) of the way to `aim` is reached."""
    ranking = Ranking(model, scope, aim.counts)
    keep_only(model, ranking.masks(ranking.fewest(lambda masks: aim._met(masks, progress))))


@torch.no_grad()
def keep_only(model: nn.Module, masks: Mapping[str, Tensor], *, quiet: bool = False) -> None:
    """In place: zero all coefficients outside of `masks`, but for the largest of a layer that would have none."""
    for name, layer in basis_layers(model).items():
        _apply(name, layer, masks[name], layer.coefficients.abs(), quiet=quiet)


def scores(
    layers: Mapping[str, BasisConv2d], scope: str, positions: Mapping[str, int] | None = None
) -> dict[str, Tensor]:
    """How much each coefficient matters, comparable over all layers; a coefficient that is zero scores zero.

    `layer`: its rank within its layer, so every layer keeps the same share. `global`: its size (times its
    basis kernel's norm) over the layer's root mean square. `lamp`: its square over the squares of all in its
    layer that are at least as large (Lee et al. 2021), which protects layers with few coefficients.
    `balanced`: lamp over the
    square root of the layer's output positions, a middle between ranking for parameters and ranking for MACs.
    """
    if scope not in SCOPES:
        raise PenniError(f"there is no scope '{scope}': {nearest(scope, SCOPES)}")
    result = {}
    for name, layer in layers.items():
        a = layer.coefficients.detach()
        size = a.abs() * layer.basis.detach().flatten(1).norm(dim=1)
        if scope == "global":
            result[name] = size / size.square().mean().sqrt().clamp_min(1e-30)
            continue
        order = size.flatten().argsort()
        values = size.flatten()[order]
        if scope in ("lamp", "balanced"):
            squares = values.double().square()
            rest = squares.flip(0).cumsum(0).flip(0).clamp_min(1e-300)
            ranked = squares / rest
            if scope == "balanced":
                if positions is None:
                    raise PenniError("scope 'balanced' weighs layers by their output positions: give an example_input")
                ranked = ranked / positions[name] ** 0.5
        else:
            ranked = torch.arange(1, len(values) + 1, dtype=torch.float64, device=values.device) / len(values)
        score = torch.empty_like(ranked)
        score[order] = torch.where(values > 0, ranked, torch.zeros_like(ranked))
        result[name] = score.view_as(a).float() if scope == "layer" else score.view_as(a)
    return result


SCOPES = ("layer", "global", "lamp", "balanced")


def density(model: nn.Module) -> float:
    """The share of coefficients that is not zero."""
    layers = basis_layers(model).values()
    total = sum(layer.coefficients.numel() for layer in layers)
    return sum(int(torch.count_nonzero(layer.coefficients)) for layer in layers) / max(1, total)


@torch.no_grad()
def kill_dead_filters(model: nn.Module, example_input: Tensor) -> dict[str, list[int]]:
    """In place: a filter without coefficients loses its bias and the scale and shift of the norm that reads it.

    Such a filter gives a constant, which a batch normalisation shifts; behind zero padding a constant is not a bias,
    so it cannot be folded away exactly. Zeroed here, before the fine-tune, it can be removed exactly later.
    """
    readers = _normalisation_after(model, example_input)
    dead: dict[str, list[int]] = {}
    for name, layer in basis_layers(model).items():
        gone = (layer.coefficients == 0).flatten(1).all(dim=1)
        if not bool(gone.any()):
            continue
        dead[name] = gone.nonzero().flatten().tolist()
        if layer.bias is not None:
            layer.bias[gone] = 0.0
        norm = readers.get(name)
        if norm is not None and norm.weight is not None:
            norm.weight[gone] = 0.0
            norm.bias[gone] = 0.0
            if norm.running_mean is not None:
                norm.running_mean[gone] = 0.0
    return dead


def dead_normalisation(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """Parameters, and where in them zeros belong to dead filters: a norm's scale and shift, or a filter's bias."""
    found = []
    for module in model.modules():
        if isinstance(module, _Norm) and module.weight is not None:
            zeros = (module.weight.detach() == 0) & (module.bias.detach() == 0)
            if bool(zeros.any()):
                found += [(module.weight, zeros), (module.bias, zeros)]
        elif isinstance(module, BasisConv2d) and module.bias is not None:
            zeros = (module.coefficients.detach() == 0).flatten(1).all(dim=1) & (module.bias.detach() == 0)
            if bool(zeros.any()):
                found.append((module.bias, zeros))
    return found


def _normalisation_after(model: nn.Module, example_input: Tensor) -> dict[str, _Norm]:
    """The batch normalisation that reads each decomposed layer's output as it is, found by running the network."""
    made: dict[int, str] = {}
    kept_alive: list[Tensor] = []
    readers: dict[str, _Norm] = {}
    handles = []

    for name, module in model.named_modules():
        if isinstance(module, BasisConv2d):

            def note(_module: nn.Module, _inputs: object, output: Tensor, name: str = name) -> None:
                made[id(output)] = name
                kept_alive.append(output)  # so that its id is not given to another tensor

            handles.append(module.register_forward_hook(note))
        elif isinstance(module, _Norm):

            def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                if id(inputs[0]) in made:
                    assert isinstance(module, _Norm)
                    readers[made[id(inputs[0])]] = module

            handles.append(module.register_forward_pre_hook(look))
    try:
        with evaluating(model), torch.no_grad():
            model(example_input)
    finally:
        for handle in handles:
            handle.remove()
    return readers


def _apply(name: str, layer: BasisConv2d, keep: Tensor, sizes: Tensor, *, quiet: bool = False) -> None:
    """Zero what is not kept; a layer that would lose everything keeps its largest coefficient, and it is said."""
    if not bool(keep.any()):
        largest = int(sizes.flatten().argmax())
        keep = torch.zeros_like(keep)
        keep.view(-1)[largest] = True
        if not quiet:
            log.warning("%s would have lost its last coefficient; its largest one stays", name)
    layer.coefficients.masked_fill_(~keep, 0.0)


def _part_way(start: float, goal: float, progress: float) -> float:
    return start + (goal - start) * progress


def aim_for(
    model: nn.Module,
    base: Counts,
    example_input: Tensor,
    *,
    density: float | None = None,
    macs: float | None = None,
    params: float | None = None,
) -> Aim:
    """An aim for the decomposed `model`, with MACs and parameters as shares of `base`."""
    return Aim(density=density, macs=macs, params=params, base=base, counts=count(model, example_input))
