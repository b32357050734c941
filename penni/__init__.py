"""penni compresses trained convolutional networks and runs the result fast.

This is the whole public API. Importing penni imports no torch: each name is fetched when it is first used,
so that a device which only runs packed networks needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penni._version import __version__
from penni.errors import DiffersError, PenniError, UnknownOperatorError

if TYPE_CHECKING:
    from penni.analysis import Analysis as Analysis
    from penni.analysis import analyse as analyse
    from penni.basis import BasisConv2d as BasisConv2d
    from penni.basis import decompose as decompose
    from penni.basis import decomposition_plan as decomposition_plan
    from penni.basis import reconstruct as reconstruct
    from penni.checkpoint import load as load
    from penni.checkpoint import save as save
    from penni.compression import compress as compress
    from penni.compression import resume as resume
    from penni.data import open_data as open_data
    from penni.engine import Engine as Engine
    from penni.engine.compiling import compile as compile
    from penni.exporting import export as export
    from penni.measure import Counts as Counts
    from penni.measure import count as count
    from penni.models import build as build
    from penni.pruning import prune as prune
    from penni.recipes import Recipe as Recipe
    from penni.shrinking import Shrunk as Shrunk
    from penni.shrinking import shrink as shrink
    from penni.training.loop import Phase as Phase
    from penni.training.loop import Trainer as Trainer
    from penni.training.loop import evaluate as evaluate
    from penni.training.run import fit as fit

# Modules are named so that none hides a function: `penni.prune` is in pruning.py.
_HOME = {
    "Analysis": "penni.analysis",
    "analyse": "penni.analysis",
    "BasisConv2d": "penni.basis",
    "decompose": "penni.basis",
    "decomposition_plan": "penni.basis",
    "reconstruct": "penni.basis",
    "load": "penni.checkpoint",
    "save": "penni.checkpoint",
    "compress": "penni.compression",
    "resume": "penni.compression",
    "open_data": "penni.data",
    "Engine": "penni.engine",
    "compile": "penni.engine.compiling",
    "export": "penni.exporting",
    "Counts": "penni.measure",
    "count": "penni.measure",
    "build": "penni.models",
    "prune": "penni.pruning",
    "Recipe": "penni.recipes",
    "Shrunk": "penni.shrinking",
    "shrink": "penni.shrinking",
    "Phase": "penni.training.loop",
    "Trainer": "penni.training.loop",
    "evaluate": "penni.training.loop",
    "fit": "penni.training.run",
}

__all__ = ["DiffersError", "PenniError", "UnknownOperatorError", "__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name == "engine":
        return importlib.import_module("penni.engine")
    raise AttributeError(f"module 'penni' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
