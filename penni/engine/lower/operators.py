"""Every PyTorch operator that the engine knows, and the function that lowers it."""

from __future__ import annotations

from collections.abc import Mapping

from penni.engine.lower import elementwise, planes, rearrange, weighted
from penni.engine.lower.call import Handler

HANDLERS: Mapping[str, Handler] = {
    **weighted.HANDLERS,
    **elementwise.HANDLERS,
    **planes.HANDLERS,
    **rearrange.HANDLERS,
}
