"""Phase D as one function: capture, analyse, narrow, check."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

import numpy as np
import torch
from torch import Tensor, nn

from penni.errors import DiffersError, PenniError
from penni.shrinking.analysis import Analysis
from penni.shrinking.capture import (
    Graph,
    Inputs,
    UntraceableError,
    as_inputs,
    capture,
    unreached_layers,
    untraceable_parts,
)
from penni.shrinking.cells import Ids, Mask
from penni.shrinking.constraints import Removal
from penni.shrinking.report import Kept, Report, compare
from penni.shrinking.rewrite import rewrite
from penni.shrinking.rules import RULES
from penni.shrinking.search import Search
from penni.shrinking.training_only import keep_what_training_reads
from penni.shrinking.trial import Failure, difference, first_difference, in_double, other_inputs, outputs_of, try_shapes

# Differences above this share of the largest output are not rounding.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}

# A search for sizes that are written into the code is given up after so many runs.
_MOST_ATTEMPTS = 60


@dataclass(frozen=True)
class Shrunk:
    """A narrower model, and what was done to get it."""

    model: nn.Module
    report: Report


def shrink(
    model: nn.Module, example_input: Tensor | Sequence[Tensor], *, exclude: Sequence[str] = (), check: bool = True
) -> Shrunk:
    """A copy of `model` without the channels and basis kernels that nothing needs; it answers the same in eval mode.

    `exclude` names modules (patterns such as `layer4.*`) whose insides are left as they are. An operator that
    the analysis does not know is an `UnknownOperatorError`; a narrowed model that answers differently on
    `example_input` is a `DiffersError`, never a result. `check=False` leaves out only the comparison
    of the answers, not that of the layers' sizes.
    """
    start = time.perf_counter()
    inputs = as_inputs(example_input)
    excluded = _excluded(model, exclude)
    untraceable: list[str] = []
    try:
        graph = capture(model, inputs, excluded)
    except UntraceableError:
        untraceable = untraceable_parts(model, inputs)
        if not untraceable:
            raise
        graph = capture(model, inputs, [*excluded, *untraceable])
    analysis = Analysis(graph, model, RULES).run()
    unreached = unreached_layers(model, graph, [*excluded, *untraceable])
    note = keep_what_training_reads(analysis, unreached, inputs) if unreached else None
    roots = analysis.cells.roots()
    removable = _removable(analysis, roots)
    search = Search(analysis, roots, removable)
    attempts = 0
    while True:
        attempts += 1
        removal, edits = search.plan()
        narrow = copy.deepcopy(model)
        rewrite(narrow, analysis, removal, edits)
        failure = try_shapes(narrow, analysis, removal, inputs)
        gap = 0.0
        if failure is None and check:
            gap, failure = _compare(model, narrow, analysis, removal, inputs)
        if failure is None:
            break
        if attempts == _MOST_ATTEMPTS or not search.retreat(removal, failure):
            where = failure.layer or "the end of the network"
            raise DiffersError(
                f"the shrunk model does not answer as the one given; the first difference is at {where}: {failure.what}"
            )
    report = _report(analysis, roots, removable, removal)
    report = replace(
        report,
        rows=compare(model, narrow),
        excluded=tuple(excluded),
        untraceable=tuple(untraceable),
        unreached=tuple(unreached),
        notes=(note,) if note else (),
        difference=gap,
        attempts=attempts,
        seconds=time.perf_counter() - start,
    )
    return Shrunk(narrow, report)


def _excluded(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    names = [name for name, _ in model.named_modules() if name]
    found: list[str] = []
    for pattern in patterns:
        matched = [name for name in names if fnmatch(name, pattern)]
        if not matched:
            raise PenniError(f"no module is named '{pattern}', which `exclude` asks for")
        found += matched
    return sorted(name for name in set(found) if not any(name.startswith(f"{other}.") for other in found))


def _removable(analysis: Analysis, roots: Ids) -> Mask:
    """By class: whether every member is dead and none must stay."""
    count = analysis.cells.count
    stays = (analysis.read & ~analysis.cells.zero[:count]) | (analysis.cells.pinned[:count] > 0)
    result = np.zeros(count, dtype=bool)
    result[roots] = True
    result[roots[stays]] = False
    return result


def _compare(
    model: nn.Module, narrow: nn.Module, analysis: Analysis, removal: Removal, inputs: Inputs
) -> tuple[float, Failure | None]:
    """The difference of the answers on the example and on other numbers, and a failure if it is more than rounding."""
    try:
        wide, doubled = in_double(model, inputs)
        thin = in_double(narrow, inputs)[0]
        tolerance = TOLERANCES[torch.float64]
        expected = outputs_of(wide, doubled)
    except RuntimeError:  # code that insists on one precision
        wide, thin, doubled = model, narrow, inputs
        tolerance = TOLERANCES[torch.float32]
        expected = outputs_of(wide, doubled)
    gap = difference(expected, outputs_of(thin, doubled))
    if gap <= tolerance:
        other = other_inputs(doubled)
        try:
            expected = outputs_of(wide, other)
        except Exception:  # a model may insist on the batch size that it was captured with
            return gap, None
        gap = max(gap, difference(expected, outputs_of(thin, other)))
    if gap <= tolerance:
        return gap, None
    layer = first_difference(wide, thin, analysis, removal, doubled, tolerance)
    return gap, layer or Failure("", None, frozenset(), f"the answers differ by {gap:.1e} of their scale")


def _report(analysis: Analysis, roots: Ids, removable: Mask, removal: Removal) -> Report:
    cells = analysis.cells
    dead_cells = cells.zero[: cells.count] | ~analysis.read
    members = _alive_members(analysis, roots)
    dead = could = gone = 0
    kept: list[Kept] = []
    seen: set[str] = set()
    for layer in analysis.layers:
        if layer.path in seen:
            continue
        seen.add(layer.path)
        is_dead = dead_cells[layer.outputs]
        removed = removal.of(layer.outputs)
        dead += int(is_dead.sum())
        could += int(removable[roots[layer.outputs]].sum())
        gone += int(removed.sum())
        by_reason: dict[str, list[int]] = {}
        for channel in np.flatnonzero(is_dead & ~removed):
            cell = int(layer.outputs[channel])
            by_reason.setdefault(_reason(analysis, removal, roots, members, cell), []).append(int(channel))
        kept += [Kept(layer.path, tuple(channels), reason) for reason, channels in by_reason.items()]
    return Report((), tuple(kept), dead=dead, removable=could, removed=gone)


def _alive_members(analysis: Analysis, roots: Ids) -> dict[int, int]:
    """For each class of tied cells one member that must stay, a layer's own output if there is one."""
    cells = analysis.cells
    count = cells.count
    pinned = cells.pinned[:count] > 0
    alive = analysis.read & ~cells.zero[:count]
    result: dict[int, int] = {}
    outputs = [layer.outputs for layer in analysis.layers]
    own = np.concatenate(outputs) if outputs else np.zeros(0, dtype=np.int64)
    shifted = alive & ~np.isnan(cells.constant[:count])
    for ids in (np.flatnonzero(alive), np.flatnonzero(shifted)[::-1], own[alive[own]], np.flatnonzero(pinned)):
        result.update(zip(roots[ids].tolist(), ids.tolist(), strict=True))
    return result


def _reason(analysis: Analysis, removal: Removal, roots: Ids, members: dict[int, int], cell: int) -> str:
    root = int(roots[cell])
    if root in removal.reasons:
        return removal.reasons[root]
    member = members.get(root)
    if member is None:
        return "it goes together with a channel that stays"
    pinned: str = analysis.cells.reasons[analysis.cells.pinned[member]]
    if pinned:
        return pinned
    held = analysis.cells.constant[member]
    site = analysis.cells.sites[analysis.cells.site[member]]
    if not np.isnan(held) and held != 0:
        return f"{site.path or site} makes a constant of it that is not zero"
    return f"tied to {site.path or site.node}, which is alive there"


def graph_of(model: nn.Module, example_input: Tensor | Sequence[Tensor], exclude: Sequence[str] = ()) -> Graph:
    """The captured graph alone."""
    return capture(model, as_inputs(example_input), _excluded(model, exclude))
