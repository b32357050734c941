"""Find the largest removal that the model's own code can follow.

The graph shows the sizes that an operator was called with, not where the code took them from. So the search
starts by assuming that they follow from shapes, runs the narrowed model, and where that fails assumes less:
that an attribute of the module holds the size (it is then changed), or that it cannot change at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import fx

from penni.shrinking import sizes
from penni.shrinking.analysis import Analysis, flatten
from penni.shrinking.capture import Graph
from penni.shrinking.cells import Ids, Mask, Value
from penni.shrinking.constraints import Constraint, Removal, Untouched, solve
from penni.shrinking.trial import Failure, suspects


@dataclass
class Search:
    """What is assumed so far, and the removal that follows from it."""

    analysis: Analysis
    roots: Ids
    removable: Mask
    state: sizes.State = field(default_factory=dict)
    written: list[Constraint] = field(default_factory=list)
    keys: dict[int, sizes.Key] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for glue in self.analysis.glue:
            key = sizes.key_of(self.analysis, glue)
            self.keys[id(glue)] = key
            self.state.setdefault(key, sizes.first_state(self.analysis, glue))

    def plan(self) -> tuple[Removal, sizes.Edits]:
        """The largest removal that every constraint allows, and the attributes that must change with it."""
        while True:
            removal = solve(Removal(self.roots, self.removable), [*self.analysis.constraints, *self.written])
            edits: sizes.Edits = {}
            stuck = []
            for glue in self.analysis.glue:
                if self.state[self.keys[id(glue)]] != sizes.ATTRIBUTE:
                    continue
                found = sizes.changes(glue, removal)
                new = sizes.attribute_edits(self.analysis, glue, found) if found else {}
                if new is None or any(edits.get(key, value) != value for key, value in new.items()):
                    stuck.append(glue)
                else:
                    edits.update(new)
            if not stuck:
                return removal, edits
            for key in {self.keys[id(glue)] for glue in stuck}:
                self._write(key)

    def retreat(self, removal: Removal, failure: Failure) -> bool:
        """Assume less of what may have caused a failure; false if there is nothing left to assume."""
        near = suspects(self.analysis, failure)
        open_glue = [
            glue
            for glue in self.analysis.glue
            if self.state[self.keys[id(glue)]] != sizes.WRITTEN and sizes.changes(glue, removal)
        ]
        blamed = {self.keys[id(glue)] for glue in open_glue if glue.node in near}
        if blamed:
            for key in blamed:
                if self.state[key] == sizes.DERIVED:
                    self.state[key] = sizes.ATTRIBUTE
                else:
                    self._write(key)
            return True
        return self._keep_module(removal, near)

    def _write(self, key: sizes.Key) -> None:
        self.state[key] = sizes.WRITTEN
        for glue in self.analysis.glue:
            if self.keys[id(glue)] == key:
                why = f"the sizes of {self.analysis.site(glue.node)} are written into its code"
                self.written.append(Untouched(_cells((*glue.inputs, *glue.outputs)), why))

    def _keep_module(self, removal: Removal, near: set[fx.Node]) -> bool:
        """Keep all that the smallest module around the failure works with: its code mixes sizes in a way unseen."""
        paths = {path for node in near if node.op == "call_function" for path in Graph.paths(node)}
        for path in sorted(paths, key=lambda path: (-path.count("."), -len(path), path)):
            values = self._values_of(path)
            cells = _cells(values)
            if len(cells) and removal.of(cells).any():
                self.written.append(Untouched(cells, f"the code of {path or 'the model'} needs its sizes"))
                return True
        return False

    def _values_of(self, path: str) -> list[Value]:
        """What `path` is given, and what its own code (not that of modules inside it) makes."""
        analysis = self.analysis
        found: list[Value] = []
        for node in analysis.graph.nodes:
            if node.op != "call_function":
                continue
            paths = Graph.paths(node)
            if path not in paths:
                continue
            if paths[-1] == path:
                found += [value for value in flatten(analysis.values[node]) if isinstance(value, Value)]
            for source in node.all_input_nodes:
                if source.op == "call_function" and path not in Graph.paths(source):
                    found += [value for value in flatten(analysis.values[source]) if isinstance(value, Value)]
        return found


def _cells(values: Sequence[Value]) -> Ids:
    if not values:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([value.cells() for value in values]))
