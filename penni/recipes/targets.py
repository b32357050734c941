"""Targets as people write them: `macs=-80%`, `params=40K`, `latency=2x`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penni.errors import PenniError, nearest

QUANTITIES = ("macs", "params", "latency")
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_AMOUNT = re.compile(r"([0-9.]+(?:e[0-9]+)?)\s*(ms|k|m|g|)", re.IGNORECASE)
_EXAMPLES = {"macs": "macs=-80% or macs=25M", "params": "params=-95% or params=40K", "latency": "latency=2x"}


@dataclass(frozen=True)
class Target:
    """What the finished network may cost: a share of the base network's cost, or an amount (of milliseconds)."""

    quantity: str
    text: str
    share: float = 0.0
    amount: float = 0.0

    def limit(self, base: float) -> float:
        """The cost to end at, for a base network that costs `base`."""
        return self.amount or self.share * base

    def __str__(self) -> str:
        return f"{self.quantity}={self.text}"


def parse_target(quantity: str, text: str) -> Target:
    """`-80%` takes four fifths away, `5x` leaves a fifth, `25M` (or `1.5ms`) is an amount."""
    if quantity not in QUANTITIES:
        raise PenniError(f"there is no target '{quantity}': {nearest(quantity, QUANTITIES)}")
    plain = text.strip().replace("−", "-")
    try:
        if plain.endswith("%"):
            if not plain.startswith("-"):
                raise PenniError(
                    f"the target '{quantity}={text}' does not say whether to keep or to remove: "
                    f"write {quantity}=-80% to remove 80 %"
                )
            share = 1 - float(plain[1:-1]) / 100
        elif plain.lower().endswith(("x", "×")):
            share = 1 / float(plain[:-1])
        else:
            return Target(quantity, text, amount=_amount(quantity, plain))
    except (ValueError, ZeroDivisionError):
        raise PenniError(f"the target '{quantity}={text}' is not understood: write {_EXAMPLES[quantity]}") from None
    if not 0 < share < 1:
        raise PenniError(f"the target '{quantity}={text}' makes nothing smaller, or leaves nothing: {_hint(quantity)}")
    return Target(quantity, text, share=share)


def split_targets(texts: Sequence[str]) -> dict[str, str]:
    """Targets from the command line, each `quantity=value` or several with commas between, as the recipe holds them."""
    found: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        quantity, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise PenniError(f"the target '{part}' is not understood: write macs=-80%, params=-95% or latency=2x")
        parse_target(quantity, value)
        if quantity in found:
            raise PenniError(f"there are two targets for {quantity}, {found[quantity]} and {value}: give one")
        found[quantity] = value
    return found


def _amount(quantity: str, text: str) -> float:
    match = _AMOUNT.fullmatch(text)
    if match is None or (match[2].lower() == "ms") != (quantity == "latency"):
        raise ValueError(text)
    amount = float(match[1]) * _UNITS.get(match[2].lower(), 1.0)
    if not amount > 0:
        raise ValueError(text)
    return amount


def _hint(quantity: str) -> str:
    return f"write something such as {_EXAMPLES[quantity]}"
