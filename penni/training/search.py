"""How many coefficients must go until a cost, which can only be tried, is within a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from penni.pruning import Ranking

Masks = Mapping[str, Tensor]


class Search:
    """How many of something must go until a cost, which falls as more go, is within a window."""

    def __init__(self, window: tuple[float, float], low: int, high: int) -> None:
        self.window = window
        self.low = low
        self.high = high
        self.top = high + 1
        self.costs: dict[int, float] = {}
        self.found: int | None = None

    def run(self, cost: Callable[[int], float], guess: int, attempts: int) -> None:
        """Try, and narrow the bounds, until something is found or the bounds meet."""
        taken, sides = min(max(guess, self.low), self.high), 0
        for _ in range(attempts):
            value = self.costs[taken] = cost(taken)
            if self.window[0] <= value <= self.window[1]:
                self.found = taken
                return
            if value > self.window[1]:
                self.low, sides = taken, max(1, sides + 1)
            else:
                self.high, sides = taken, min(-1, sides - 1)
            left = [bound for bound in (self.low, self.high) if bound not in self.costs]
            if self.high - self.low <= 1:
                if not left:
                    return
                taken = left[0]
                continue
            taken = min(max(self._next(sides), self.low + 1), self.high - 1)

    def nearest(self, *, below: bool) -> int:
        """Of what was tried the one nearest to the window, not above it if that is asked and there is one."""
        allowed = {taken: cost for taken, cost in self.costs.items() if not below or cost <= self.window[1]}
        middle = sum(self.window) / 2
        return min(allowed or self.costs, key=lambda taken: (abs(self.costs[taken] - middle), taken))

    def _next(self, sides: int) -> int:
        """On the line between the bounds, both taken as logarithms; halfway if one bound has moved too often."""
        goal = math.log(sum(self.window) / 2)
        low, high = (math.log(self.top - bound) for bound in (self.low, self.high))
        ends = [self.costs.get(bound) for bound in (self.low, self.high)]
        above, below = (math.log(end) if end else None for end in ends)
        if abs(sides) >= 3:
            left = (low + high) / 2
        elif above is not None and below is not None:
            left = low + (goal - above) / (below - above) * (high - low)
        elif above is not None:
            left = max((low + high) / 2, low + 1.5 * (goal - above))
        else:
            assert below is not None
            left = min((low + high) / 2, high + 1.2 * (goal - below))
        return self.top - round(math.exp(left))


class Ways:
    """Ways to prune a little further: masks from `start` on, by taking the lowest-scored of `candidates`."""

    def __init__(self, start: Masks, candidates: Masks, ranking: Ranking) -> None:
        self.start = start
        self.candidates = candidates
        self.scores = ranking.scores
        self._ordered = torch.cat([self.scores[name][mask] for name, mask in candidates.items()]).sort().values

    def __len__(self) -> int:
        return len(self._ordered)

    def masks(self, taken: int) -> Masks:
        """What is left once so many were taken."""
        if not taken:
            return self.start
        cut = self._ordered[taken - 1]
        return {name: mask & ~(self.candidates[name] & (self.scores[name] <= cut)) for name, mask in self.start.items()}


def fine_ways(ranking: Ranking, search: Search) -> Iterator[Ways]:
    """Small changes on either side of the place where the cost jumps past the window."""
    if search.low in search.costs:
        kept = ranking.masks(search.low)
        for pairs in (True, False):
            yield Ways(kept, {name: _spare(mask, ranking, name, pairs) for name, mask in kept.items()}, ranking)
    kept = ranking.masks(search.high)
    candidates = {name: _beside(mask, ranking, name) for name, mask in kept.items()}
    yield Ways({name: mask | candidates[name] for name, mask in kept.items()}, candidates, ranking)


def _spare(mask: Tensor, ranking: Ranking, name: str, pairs: bool) -> Tensor:
    """Coefficients that are not the best of their filter, nor of their input (or even input and basis)."""
    layer = ranking.layers[name]
    scores = ranking.scores[name].masked_fill(~mask, -1.0)
    best = scores == scores.flatten(1).max(dim=1).values.view(-1, 1, 1)
    groups = scores.view(layer.groups, -1, *scores.shape[1:])
    columns = groups.amax(dim=1, keepdim=True) if pairs else groups.amax(dim=(1, 3), keepdim=True)
    best |= (groups == columns).view_as(best)
    return mask & ~best


def _beside(mask: Tensor, ranking: Ranking, name: str) -> Tensor:
    """Coefficients outside of the mask, of filters and inputs that have others in it."""
    groups = ranking.layers[name].groups
    rows = mask.flatten(1).any(dim=1).view(-1, 1, 1)
    grouped = mask.view(groups, -1, *mask.shape[1:])
    columns = grouped.any(dim=1, keepdim=True).any(dim=3, keepdim=True).expand_as(grouped).reshape_as(mask)
    return (ranking.scores[name] > 0) & ~mask & rows & columns
