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
    from penni.basis import BasisConv2d as BasisConv2d
    from penni.basis import decompose as decompose
    from penni.basis import decomposition_plan as decomposition_plan
    from penni.basis import reconstruct as reconstruct
    from penni.checkpoint import load as load
    from penni.checkpoint import save as save
    from penni.measure import Counts as Counts
    from penni.measure import count as count
    from penni.models import build as build

_HOME = {
    "BasisConv2d": "penni.basis",
    "decompose": "penni.basis",
    "decomposition_plan": "penni.basis",
    "reconstruct": "penni.basis",
    "load": "penni.checkpoint",
    "save": "penni.checkpoint",
    "Counts": "penni.measure",
    "count": "penni.measure",
    "build": "penni.models",
}

__all__ = ["DiffersError", "PenniError", "UnknownOperatorError", "__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'penni' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
