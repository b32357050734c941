"""Phase D as one function: capture, analyse, narrow, check."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

import numpy as np
import torch
from torch import Tensor, fx, nn

from penni.errors import DiffersError, PenniError
from penni.shrinking import sizes
from penni.shrinking.analysis import Analysis, Glue
from penni.shrinking.capture import Graph, Inputs, as_inputs, capture
from penni.shrinking.cells import Ids, Mask
from penni.shrinking.constraints import Constraint, Removal, Untouched, solve
from penni.shrinking.report import Kept, Report, compare
from penni.shrinking.rewrite import rewrite
from penni.shrinking.rules import RULES
from penni.shrinking.trial import Failure, difference, in_double, outputs_of, suspects, try_shapes

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
    graph = capture(model, inputs, excluded)
    analysis = Analysis(graph, model, exclude, RULES).run()
    roots = analysis.cells.roots()
    removable = _removable(analysis, roots)
    state: sizes.State = {}
    keys = {id(glue): sizes.key_of(analysis, glue) for glue in analysis.glue}
    attempts = 0
    while True:
        attempts += 1
        removal, edits = _plan(analysis, roots, removable, state, keys)
        narrow = copy.deepcopy(model)
        rewrite(narrow, analysis, removal, edits)
        failure = try_shapes(narrow, analysis, removal, inputs)
        gap = 0.0
        if failure is None and check:
            gap, failure = _compare(model, narrow, analysis, inputs)
        if failure is None:
            break
        if attempts == _MOST_ATTEMPTS or not _retreat(analysis, removal, state, keys, failure):
            where = failure.layer or "the end of the network"
            raise DiffersError(
                f"the shrunk model does not answer as the one given; the first difference is at {where}: {failure.what}"
            )
    report = _report(analysis, roots, removable, removal)
    report = replace(
        report,
        rows=compare(model, narrow),
        excluded=tuple(excluded),
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


def _plan(
    analysis: Analysis, roots: Ids, removable: Mask, state: sizes.State, keys: dict[int, tuple[str, str, int]]
) -> tuple[Removal, sizes.Edits]:
    """The largest removal that every constraint allows, and the attributes that must change with it."""
    constraints: list[Constraint] = list(analysis.constraints)
    for glue in analysis.glue:
        if state.setdefault(keys[id(glue)], sizes.first_state(analysis, glue)) == sizes.WRITTEN:
            constraints.append(_written(analysis, glue))
    while True:
        removal = solve(Removal(roots, removable), constraints)
        edits: sizes.Edits = {}
        stuck = []
        for glue in analysis.glue:
            if state[keys[id(glue)]] != sizes.ATTRIBUTE:
                continue
            found = sizes.changes(glue, removal)
            new = sizes.attribute_edits(analysis, glue, found) if found else {}
            if new is None or any(edits.get(key, value) != value for key, value in new.items()):
                stuck.append(glue)
            else:
                edits.update(new)
        if not stuck:
            return removal, edits
        for glue in stuck:
            state[keys[id(glue)]] = sizes.WRITTEN
            constraints.append(_written(analysis, glue))


def _written(analysis: Analysis, glue: Glue) -> Untouched:
    cells = np.unique(np.concatenate([value.cells() for value in (*glue.inputs, *glue.outputs)]))
    return Untouched(cells, f"the sizes of {analysis.site(glue.node)} are written into its code")


def _retreat(
    analysis: Analysis, removal: Removal, state: sizes.State, keys: dict[int, tuple[str, str, int]], failure: Failure
) -> bool:
    """Assume less of the operators that may have caused a failure; whether there was one to blame."""
    near = suspects(analysis, failure)
    open_glue = [
        glue for glue in analysis.glue if state[keys[id(glue)]] != sizes.WRITTEN and sizes.changes(glue, removal)
    ]
    blamed = [glue for glue in open_glue if glue.node in near]
    if not blamed and open_glue:
        blamed = _before(analysis, open_glue, failure.node)
    for key in {keys[id(glue)] for glue in blamed}:
        state[key] += 1
    return bool(blamed)


def _before(analysis: Analysis, candidates: list[Glue], node: fx.Node | None) -> list[Glue]:
    """The last candidate that runs before `node`, or all of them where that is unknown."""
    if node is None:
        return candidates
    order = {other: position for position, other in enumerate(analysis.graph.nodes)}
    earlier = [glue for glue in candidates if order[glue.node] < order[node]]
    return earlier[-1:] or candidates


def _compare(model: nn.Module, narrow: nn.Module, analysis: Analysis, inputs: Inputs) -> tuple[float, Failure | None]:
    """The difference of the answers, and a failure if it is more than rounding."""
    try:
        wide, doubled = in_double(model, inputs)
        expected, seen = outputs_of(wide, doubled), outputs_of(in_double(narrow, inputs)[0], doubled)
        tolerance = TOLERANCES[torch.float64]
    except RuntimeError:  # code that insists on one precision
        expected, seen = outputs_of(model, inputs), outputs_of(narrow, inputs)
        tolerance = TOLERANCES[torch.float32]
    gap = difference(expected, seen)
    if gap <= tolerance:
        return gap, None
    return gap, Failure("", None, frozenset(), f"the answers differ by {gap:.1e} of their scale")


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
    for ids in (np.flatnonzero(alive), own[alive[own]], np.flatnonzero(pinned)):
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
    site = analysis.cells.sites[analysis.cells.site[member]]
    return f"tied to {site.path or site.node}, which is alive there"


def graph_of(model: nn.Module, example_input: Tensor | Sequence[Tensor], exclude: Sequence[str] = ()) -> Graph:
    """The captured graph alone."""
    return capture(model, as_inputs(example_input), _excluded(model, exclude))
