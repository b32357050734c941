"""Other ways to make a residual network smaller, each for the same epochs, data and learning rates as penni's.

All structured ones prune the channels inside of the blocks. Shortcuts tie the outer channels of a whole stage, and
those of ResNet56 pad channels with zeros, which Torch-Pruning's dependency graph does not follow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

import penni
from penni.measure.count import Counts, count
from penni.models.cifar import BasicBlock
from penni.training.behaviours import Behaviour, Moment
from penni.training.schedules import cubic


class Method:
    """What a method does while the network trains, and when and how it prunes."""

    prunes_first = False

    def __init__(self, base: Counts, example: Tensor, share: float) -> None:
        self.base = base
        self.example = example
        self.limit = share * base.macs

    def fits(self, model: nn.Module) -> bool:
        """Whether a network is small enough."""
        return count(model, self.example).macs <= self.limit

    def behaviours(self) -> list[Behaviour]:
        """In the first phase."""
        return []

    def prune(self, model: nn.Module) -> nn.Module:
        """The smaller network, of no more MACs than allowed."""
        return model

    def finetune_behaviours(self) -> list[Behaviour]:
        """In the second phase."""
        return []

    def settings(self) -> dict[str, float | str]:
        """What belongs into the record."""
        return {}


class L1Filters(Method):
    """Li et al. 2017: of every layer the same share of filters, those of the smallest L1 norm, goes at once."""

    prunes_first = True

    def prune(self, model: nn.Module) -> nn.Module:
        sizes = {name: block.conv1.weight.detach().abs().sum(dim=(1, 2, 3)) for name, block in blocks(model).items()}
        ranks = {name: size.argsort().argsort().double() / len(size) for name, size in sizes.items()}
        return _narrowest(model, ranks, self)


class Slimming(L1Filters):
    """Liu et al. 2017: an L1 penalty on the normalisations' scales, then the smallest of all layers go at once."""

    prunes_first = False

    # Theirs is 1e-4 over 160 epochs at a rate of up to 0.1; so few epochs as here need more to move a scale at all.
    def __init__(self, base: Counts, example: Tensor, share: float, penalty: float = 1e-3) -> None:
        super().__init__(base, example, share)
        self.penalty = penalty

    def behaviours(self) -> list[Behaviour]:
        return [_ScalePenalty(self.penalty)]

    def prune(self, model: nn.Module) -> nn.Module:
        scales = {name: block.bn1.weight.detach().abs() for name, block in blocks(model).items()}
        return _narrowest(model, scales, self)

    def settings(self) -> dict[str, float | str]:
        return {"penalty": self.penalty}


class TorchPruning(Method):
    """Fang et al. 2023 (DepGraph), by their own package: group-norm regularisation, then global pruning by it."""

    def __init__(self, base: Counts, example: Tensor, share: float, penalty: float = 5e-4) -> None:
        super().__init__(base, example, share)
        self.penalty = penalty

    def behaviours(self) -> list[Behaviour]:
        return [_GroupNorms(self)]

    def pruner(self, model: nn.Module, ratio: float) -> object:
        """Theirs, for the channels inside of the blocks."""
        import torch_pruning

        inside = {id(block.conv1) for block in blocks(model).values()}
        outside = [
            layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear) and id(layer) not in inside
        ]
        return torch_pruning.pruner.GroupNormPruner(
            model,
            self.example,
            importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
            global_pruning=True,
            pruning_ratio=ratio,
            reg=self.penalty,
            ignored_layers=outside,
        )

    def prune(self, model: nn.Module) -> nn.Module:
        low, high, best = 0.0, 1.0, None
        for _ in range(12):
            ratio = (low + high) / 2
            tried = copy.deepcopy(model).eval()
            self.pruner(tried, ratio).step()  # type: ignore[attr-defined]
            if self.fits(tried):
                high, best = ratio, tried
            else:
                low = ratio
        if best is None:
            raise penni.PenniError("Torch-Pruning leaves more MACs than allowed, whatever its ratio")
        return best

    def settings(self) -> dict[str, float | str]:
        import torch_pruning

        return {"penalty": self.penalty, "torch-pruning": str(torch_pruning.__version__)}


class Magnitude(Method):
    """Zhu and Gupta 2017: the smallest weights of all convolutions go bit by bit on a cubic schedule; no structure."""

    def behaviours(self) -> list[Behaviour]:
        return [_HoldWeights(), _GradualMagnitude(self)]

    def finetune_behaviours(self) -> list[Behaviour]:
        return [_HoldWeights()]

    def prune(self, model: nn.Module) -> nn.Module:
        self.prune_to(model, self.limit)
        return model

    @torch.no_grad()
    def prune_to(self, model: nn.Module, limit: float) -> None:
        """In place: zero the smallest weights until no more MACs are left."""
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
        positions = {layer.name: layer.positions for layer in self.base.layers}
        sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in layers.values()])
        costs = torch.cat(
            [
                torch.full((layer.weight.numel(),), positions[name], dtype=torch.float64)
                for name, layer in layers.items()
            ]
        ).to(sizes.device)
        rest = sum(layer.macs for layer in self.base.layers if layer.name not in layers)
        order = sizes.argsort(descending=True)
        used = (costs[order] * (sizes[order] > 0)).cumsum(0) + rest
        kept = int((used <= limit).sum())
        if kept < len(order):
            cut = sizes[order[kept]]
            for layer in layers.values():
                layer.weight.masked_fill_(layer.weight.abs() <= cut, 0.0)


METHODS: Mapping[str, Callable[..., Method]] = {
    "torch-pruning": TorchPruning,
    "l1-filters": L1Filters,
    "slimming": Slimming,
    "magnitude": Magnitude,
}
TITLES = {
    "penni": "penni",
    "torch-pruning": "Torch-Pruning, group norm",
    "l1-filters": "L1 filter pruning",
    "slimming": "network slimming",
    "magnitude": "magnitude, unstructured",
}


def blocks(model: nn.Module) -> dict[str, BasicBlock]:
    """The residual blocks by name."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, BasicBlock)}
    if not found:
        raise penni.PenniError("the peers prune residual networks made of basic blocks, such as resnet56")
    return found


class _ScalePenalty(Behaviour):
    def __init__(self, strength: float) -> None:
        self.strength = strength

    def before_step(self, moment: Moment) -> None:
        for module in moment.model.modules():
            if isinstance(module, nn.BatchNorm2d) and module.weight.grad is not None:
                module.weight.grad.add_(module.weight.detach().sign(), alpha=self.strength)


class _GroupNorms(Behaviour):
    def __init__(self, method: TorchPruning) -> None:
        self.method = method

    def start_phase(self, model: nn.Module) -> None:
        # Tracing runs the network, which must not move its running statistics.
        training = model.training
        self.pruner = self.method.pruner(model.eval(), 0.5)
        model.train(training)

    def start_epoch(self, moment: Moment) -> None:
        self.pruner.update_regularizer()  # type: ignore[attr-defined]

    def before_step(self, moment: Moment) -> None:
        self.pruner.regularize(moment.model)  # type: ignore[attr-defined]


class _HoldWeights(Behaviour):
    def before_step(self, moment: Moment) -> None:
        convolutions = [module for module in moment.model.modules() if isinstance(module, nn.Conv2d)]
        self.zeros = [(layer.weight, layer.weight.detach() == 0) for layer in convolutions]

    @torch.no_grad()
    def after_step(self, moment: Moment) -> None:
        for weight, zeros in self.zeros:
            weight.masked_fill_(zeros, 0.0)


class _GradualMagnitude(Behaviour):
    def __init__(self, method: Magnitude, until: float = 0.95, every: int = 25) -> None:
        self.method = method
        self.until = until
        self.every = every

    def after_step(self, moment: Moment) -> None:
        if moment.step % self.every == 0 or moment.progress >= self.until:
            base = self.method.base.macs
            done = cubic(moment.progress / self.until)
            self.method.prune_to(moment.model, base + (self.method.limit - base) * done)


def _narrowest(model: nn.Module, scores: Mapping[str, Tensor], method: Method) -> nn.Module:
    """The network without its lowest-scored channels, of which as few go as fit; a layer keeps its best one."""
    ordered = torch.cat([score.flatten() for score in scores.values()]).sort().values
    low, high, best = 0, len(ordered) - 1, None
    while low <= high:
        middle = (low + high) // 2
        tried = _without(
            model, {name: score < ordered[middle] for name, score in scores.items()}, scores, method.example
        )
        if method.fits(tried):
            best, high = tried, middle - 1
        else:
            low = middle + 1
    if best is None:
        raise penni.PenniError("with one channel inside of each block there are more MACs left than allowed")
    return best


@torch.no_grad()
def _without(model: nn.Module, gone: Mapping[str, Tensor], scores: Mapping[str, Tensor], example: Tensor) -> nn.Module:
    """The network without these channels inside of its blocks: silenced, then removed by penni's own shrinking."""
    result = copy.deepcopy(model).eval()
    for name, block in blocks(result).items():
        channels = gone[name].clone()
        channels[int(scores[name].argmax())] = False
        block.conv1.weight[channels] = 0.0
        block.bn1.weight[channels] = 0.0
        block.bn1.bias[channels] = 0.0
        assert block.bn1.running_mean is not None
        block.bn1.running_mean[channels] = 0.0
    return penni.shrink(result, example, check=False).model
