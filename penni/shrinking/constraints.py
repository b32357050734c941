"""What must hold for narrowed tensors to fit together, each with how to restore it: by keeping more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penni.shrinking.cells import Ids, Mask, Site, Value, varying_axes


class Removal:
    """Which classes of tied cells go; `keep` only ever takes some back, so that every search ends."""

    def __init__(self, roots: Ids, removable: Mask) -> None:
        self.roots = roots
        self.classes = removable.copy()
        self.reasons: dict[int, str] = {}

    def of(self, ids: Ids) -> Mask:
        """Which of these cells are removed."""
        result: Mask = self.classes[self.roots[ids]]
        return result

    def mask(self, value: Value) -> Tensor:
        """Which elements of this tensor are removed, in the compact shape of its plane."""
        return torch.from_numpy(self.of(value.plane.numpy().reshape(-1)).reshape(value.plane.shape))

    def kept(self, value: Value, axis: int) -> Mask:
        """Which positions along `axis` of this tensor stay."""
        kept = ~self.mask(value)
        others = [other for other in range(kept.dim()) if other != axis]
        line = kept.amax(dim=others) if others else kept
        result: Mask = line.expand(value.shape[axis]).numpy()
        return result

    def shape(self, value: Value) -> tuple[int, ...]:
        """The narrowed tensor's shape."""
        return tuple(int(self.kept(value, axis).sum()) for axis in range(len(value.shape)))

    def keep(self, ids: Ids, reason: str) -> bool:
        """Take these cells, and all tied to them, back; whether that changed anything."""
        roots = np.unique(self.roots[ids])
        roots = roots[self.classes[roots]]
        self.classes[roots] = False
        for root in roots.tolist():
            self.reasons[root] = reason
        return len(roots) > 0


class Constraint(Protocol):
    def enforce(self, removal: Removal) -> bool:
        """Keep what must be kept; whether that changed anything."""
        ...


@dataclass(frozen=True)
class Filled:
    """What is left of a tensor is a box, and not an empty one."""

    value: Value
    site: Site

    def enforce(self, removal: Removal) -> bool:
        removed = removal.mask(self.value)
        if not bool(removed.any()):
            return False
        if bool(removed.all()):
            first = self.value.plane.reshape(-1)[:1].numpy()
            return removal.keep(first, f"all channels are dead and one must stay in {self.site}")
        axes = varying_axes(self.value)
        if len(axes) == 1:
            return False
        # Only whole hyperplanes can go.
        whole = torch.zeros_like(removed)
        for axis in axes:
            others = [other for other in range(removed.dim()) if other != axis]
            whole |= removed.amin(dim=others, keepdim=True)
        stray = self.value.plane[removed & ~whole].numpy()
        return removal.keep(stray, f"{self.site} lays channels out so that not this one alone can go")


@dataclass(frozen=True)
class Aligned:
    """An operand that is broadcast in some axes has the same positions as the result in all others."""

    operand: Value
    result: Value
    site: Site

    def enforce(self, removal: Removal) -> bool:
        changed = False
        offset = len(self.result.shape) - len(self.operand.shape)
        reason = f"{self.site} ties it with a channel that stays"
        for axis, size in enumerate(self.operand.shape):
            if size == 1 or size != self.result.shape[axis + offset]:
                continue
            mine, theirs = removal.kept(self.operand, axis), removal.kept(self.result, axis + offset)
            changed |= _keep_positions(removal, self.operand, axis, theirs & ~mine, reason)
            changed |= _keep_positions(removal, self.result, axis + offset, mine & ~theirs, reason)
        return changed


@dataclass(frozen=True)
class EqualPieces:
    """A chunk or an even split gives pieces of one size."""

    pieces: Sequence[Value]
    axis: int
    site: Site

    def enforce(self, removal: Removal) -> bool:
        kept = [removal.kept(piece, self.axis) for piece in self.pieces]
        most = max(int(line.sum()) for line in kept)
        changed = False
        for piece, line in zip(self.pieces, kept, strict=True):
            missing = np.flatnonzero(~line)[: most - int(line.sum())]
            if len(missing):
                positions = np.zeros_like(line)
                positions[missing] = True
                reason = f"{self.site} needs pieces of equal size"
                changed |= _keep_positions(removal, piece, self.axis, positions, reason)
        return changed


@dataclass(frozen=True)
class EqualGroups:
    """A grouped convolution loses whole groups, or the same number of channels in every group."""

    inputs: Ids
    outputs: Ids
    site: Site

    def enforce(self, removal: Removal) -> bool:
        inputs, outputs = ~removal.of(self.inputs), ~removal.of(self.outputs)
        alive = inputs.any(axis=1) | outputs.any(axis=1)
        reason = f"{self.site} needs groups of equal size"
        changed = False
        for cells, kept in ((self.inputs, inputs), (self.outputs, outputs)):
            counts = kept.sum(axis=1)
            most = max(1, int(counts[alive].max())) if alive.any() else 0
            for group in np.flatnonzero(alive & (counts < most)):
                missing = np.flatnonzero(~kept[group])[: most - counts[group]]
                changed |= removal.keep(cells[group, missing], reason)
        return changed


@dataclass(frozen=True)
class WholeGroups:
    """A normalisation over groups of channels loses whole groups only, as long as the rest keep their size."""

    groups: Ids
    site: Site

    def enforce(self, removal: Removal) -> bool:
        removed = removal.of(self.groups)
        part = removed.any(axis=1) & ~removed.all(axis=1)
        if not part.any():
            return False
        stray = self.groups[part].reshape(-1)
        return removal.keep(stray, f"{self.site} takes its statistics over a channel that stays")


@dataclass(frozen=True)
class Untouched:
    """These cells stay: the sizes they are reshaped or cut with are written into the model's code."""

    cells: Ids
    reason: str

    def enforce(self, removal: Removal) -> bool:
        return removal.keep(self.cells, self.reason)


def solve(removal: Removal, constraints: Sequence[Constraint]) -> Removal:
    """Keep more until every constraint holds."""
    changed = True
    while changed:
        changed = False
        for constraint in constraints:
            changed |= constraint.enforce(removal)
    return removal


def _keep_positions(removal: Removal, value: Value, axis: int, positions: Mask, reason: str) -> bool:
    if not positions.any():
        return False
    plane = value.plane.expand(*[-1 if other != axis else size for other, size in enumerate(value.shape)])
    return removal.keep(plane.movedim(axis, 0)[torch.from_numpy(positions)].reshape(-1).numpy(), reason)
