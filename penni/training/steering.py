"""Prune towards a target that the finished, shrunk network meets: macs=-80%, params=40K, latency=2x.

Shrinking removes more than the zeros say: what reads a dead filter goes with it, and a filter that nothing reads. So
costs are those of a shrunk copy, here called relative: 1 is the target, more is too much. For a given ranking of the
coefficients the cost falls as more of them go, and how many must go is searched.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from penni.errors import PenniError
from penni.measure.count import Counts, count
from penni.pruning import Aim, Ranking, cost_of, keep_only, kill_dead_filters, prune_to
from penni.recipes.targets import Target
from penni.training.behaviours import GradualPruning, Moment
from penni.training.schedules import Ramp
from penni.training.search import Masks, Search, Ways, fine_ways

TOLERANCE = 0.01
# While training goes on the aim is kept a little short of the target: what was taken too much cannot come back.
_ON_THE_WAY = (1.0, 1.04)
_ATTEMPTS, _ATTEMPTS_ON_THE_WAY = 40, 6
_ATTEMPTS_BY_TIMING = 12
# What was steered to its time before is not pruned further for a slower second measurement.
_NOISE = 0.03
# From so far before the aim every step towards it is tried on a copy first.
_NEAR = 1.25


class Clock(Protocol):
    """How long one image takes in the engine: the network given, and the base network, in milliseconds."""

    def __call__(self, model: nn.Module) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Outcome:
    """A target and what became of it. `base` and `reached` are MACs, parameters or milliseconds."""

    target: str
    base: float
    limit: float
    reached: float

    @property
    def difference(self) -> float:
        """How far from the target, as a share of it; below zero is better than asked."""
        return self.reached / self.limit - 1

    def text(self) -> str:
        """For people."""
        share = self.reached / self.base
        quantity = self.target.partition("=")[0]
        amount = f"{self.reached:.3g} ms" if quantity == "latency" else f"{self.reached:,.0f}"
        ratio = f"{1 / share:.2f} times faster" if quantity == "latency" else f"{share - 1:+.2%}"
        return f"{self.target}: {amount} ({ratio}), {abs(self.difference):.2%} {self._side()} the target"

    def record(self) -> dict[str, Any]:
        """For the records."""
        return {**vars(self), "difference": self.difference}

    def _side(self) -> str:
        return "above" if self.difference > 0 else "below"


class Steering:
    """How far to prune so that the shrunk network ends at its targets; the hardest of several decides."""

    def __init__(
        self,
        targets: Sequence[Target],
        base: Counts,
        decomposed: Counts,
        example: Tensor,
        *,
        scope: str = "global",
        clock: Clock | None = None,
    ) -> None:
        self.targets = list(targets)
        self.base = base
        self.decomposed = decomposed
        self.example = example
        self.scope = scope
        self.clock = clock
        if clock is None and any(target.quantity == "latency" for target in targets):
            raise PenniError("a target for latency needs the engine to measure in")

    def outcomes(self, shrunk: nn.Module) -> list[Outcome]:
        """What a shrunk network costs, target by target."""
        counts = count(shrunk, self.example)
        found = []
        for target in self.targets:
            if target.quantity == "latency":
                assert self.clock is not None
                reached, base = self.clock(shrunk)
            elif target.quantity == "macs":
                reached, base = counts.macs, self.base.macs
            else:
                reached, base = counts.params, self.base.params
            found.append(Outcome(str(target), base, target.limit(base), reached))
        return found

    def after_shrinking(self, model: nn.Module) -> list[Outcome]:
        """What `model` would cost if its training ended here and it was shrunk."""
        import penni

        narrow = copy.deepcopy(model).eval()
        kill_dead_filters(narrow, self.example)
        return self.outcomes(penni.shrink(narrow, self.example, check=False).model)

    def cost(self, model: nn.Module) -> float:
        """The relative cost of `model` after shrinking."""
        return _hardest(self.after_shrinking(model))

    def check(self, decomposed: nn.Module) -> None:
        """The error if no pruning of this network ends at the targets."""
        now = self.after_shrinking(decomposed)
        if _hardest(now) < 1 - TOLERANCE:
            easy = max(now, key=lambda outcome: outcome.difference)
            raise PenniError(
                f"the target {easy.target} asks for less than decomposition alone saves ({_saved(easy)}): "
                "ask for more, or decompose into more bases"
            )
        ranking = Ranking(decomposed, self.scope, self.decomposed)
        bare = self.after_shrinking(self._pruned(decomposed, ranking.masks(len(ranking) - 1)))
        if _hardest(bare) > 1:
            hard = max(bare, key=lambda outcome: outcome.difference)
            raise PenniError(
                f"the target {hard.target} cannot be reached: with one coefficient left per layer it would be "
                f"{_saved(hard)}, the rest is in what is not pruned; ask for less, or decompose more layers"
            )

    def aim(self, model: nn.Module) -> Aim:
        """Where pruning by the present scores must end, before shrinking, to come close to the targets after it."""
        ranking, search = self._search(model, _ON_THE_WAY, _ATTEMPTS_ON_THE_WAY)
        # Never past the target: of what was tried, the one nearest to it from above.
        taken = max((tried for tried, cost in search.costs.items() if cost >= 1), default=ranking.gone)
        macs, params = cost_of(ranking.masks(taken), self.decomposed)
        if self._hardest_quantity(macs, params) == "params":
            return Aim(params=min(1.0, params / self.base.params), base=self.base, counts=self.decomposed)
        return Aim(macs=min(1.0, macs / self.base.macs), base=self.base, counts=self.decomposed)

    def finish(self, model: nn.Module) -> None:
        """In place: prune until the targets are met, and no further."""
        if self.cost(model) <= (1 + _NOISE if self._timed else 1):
            return
        ranking, search = self._search(model, (1 - TOLERANCE, 1.0), self._attempts)
        if search.found is not None:
            keep_only(model, ranking.masks(search.found))
            return
        if not self._timed:
            # One coefficient more, and a filter goes with all that hangs on it: so others go, on which nothing
            # hangs, or some stay when it has gone.
            for ways in fine_ways(ranking, search):
                masks = self._found_among(model, ways)
                if masks is not None:
                    keep_only(model, masks)
                    return
        keep_only(model, ranking.masks(search.nearest(below=not self._timed)))

    @property
    def _timed(self) -> bool:
        return any(target.quantity == "latency" for target in self.targets)

    @property
    def _attempts(self) -> int:
        return _ATTEMPTS_BY_TIMING if self._timed else _ATTEMPTS

    def _search(self, model: nn.Module, window: tuple[float, float], attempts: int) -> tuple[Ranking, Search]:
        ranking = Ranking(model, self.scope, self.decomposed)
        search = Search(window, ranking.gone, len(ranking) - 1)
        search.run(lambda taken: self._cost_at(model, ranking.masks(taken)), self._guess(ranking), attempts)
        return ranking, search

    def _guess(self, ranking: Ranking) -> int:
        """How many must go by the zeros alone; times are guessed to fall as MACs do."""
        limits = {"macs": math.inf, "params": math.inf}
        for target in self.targets:
            known = "params" if target.quantity == "params" else "macs"
            base = self.base.params if known == "params" else self.base.macs
            limit = target.limit(base) if target.quantity != "latency" else (target.share or 0.5) * base
            limits[known] = min(limits[known], limit)

        def met(masks: Masks) -> bool:
            macs, params = cost_of(masks, self.decomposed)
            return macs <= limits["macs"] and params <= limits["params"]

        return ranking.fewest(met)

    def _hardest_quantity(self, macs: float, params: float) -> str:
        over = {}
        for target in self.targets:
            if target.quantity == "params":
                over["params"] = params / target.limit(self.base.params)
            elif target.quantity == "macs":
                over["macs"] = macs / target.limit(self.base.macs)
            else:
                return "macs"
        return max(over, key=lambda quantity: over[quantity])

    def _cost_at(self, model: nn.Module, masks: Masks) -> float:
        return self.cost(self._pruned(model, masks))

    @staticmethod
    def _pruned(model: nn.Module, masks: Masks) -> nn.Module:
        result = copy.deepcopy(model)
        keep_only(result, masks, quiet=True)
        return result

    def _found_among(self, model: nn.Module, ways: Ways) -> Masks | None:
        if not len(ways):
            return None
        search = Search((1 - TOLERANCE, 1.0), 0, len(ways))
        search.run(lambda taken: self._cost_at(model, ways.masks(taken)), len(ways) // 2, self._attempts)
        return ways.masks(search.found) if search.found is not None else None


class SteeredPruning(GradualPruning):
    """Gradual pruning towards targets: where it must end is found anew each epoch, and then exactly."""

    def __init__(
        self, steering: Steering, ramp: Ramp, *, until: float = 0.75, every: int = 25, scope: str = "global"
    ) -> None:
        super().__init__(Aim(), ramp, until=until, every=every, scope=scope)
        self.steering = steering
        self._done = False
        self._seen: list[Outcome] = []

    def start_epoch(self, moment: Moment) -> None:
        if moment.progress < self.until:
            self.aim = self.steering.aim(moment.model)

    def after_step(self, moment: Moment) -> None:
        if moment.progress >= self.until:
            # A run that is resumed after this was done finds the targets met, and takes nothing more.
            if not self._done:
                self.steering.finish(moment.model)
                self._done = True
        elif moment.step % self.every == 0:
            self._prune(moment.model, self.ramp(moment.progress / self.until))

    def _prune(self, model: nn.Module, progress: float) -> None:
        if not self.aim.near(progress, _NEAR):
            prune_to(model, self.aim, progress, scope=self.scope)
            return
        tried = copy.deepcopy(model)
        prune_to(tried, self.aim, progress, scope=self.scope)
        if self.steering.cost(tried) >= 1:
            prune_to(model, self.aim, progress, scope=self.scope)

    def report(self, moment: Moment) -> dict[str, float | str]:
        """Where the network would end if it was shrunk now, as shares of the base network's costs."""
        outcomes = self.steering.after_shrinking(moment.model)
        return {f"shrunk_{one.target.partition('=')[0]}": round(one.reached / one.base, 5) for one in outcomes}


def _hardest(outcomes: Sequence[Outcome]) -> float:
    return max(1 + outcome.difference for outcome in outcomes)


def _saved(outcome: Outcome) -> str:
    share = outcome.reached / outcome.base
    if outcome.target.startswith("latency"):
        return f"{1 / share:.2f} times faster"
    return f"{share - 1:+.1%}"
