"""Quantities as a reader sees them: three digits, with a unit that fits."""

from __future__ import annotations

from collections.abc import Sequence


def short(value: float) -> str:
    """Parameters or multiply-accumulates: `1.7 k`, `125 M`."""
    return _fitting(value, (("", 1), (" k", 1e3), (" M", 1e6), (" G", 1e9)))


def milliseconds(value: float) -> str:
    """A time given in milliseconds: `7.86 µs`, `12.9 ms`."""
    return _fitting(value, ((" µs", 1e-3), (" ms", 0.1), (" s", 1e3)), {" ms": 1.0})


def size(value: float) -> str:
    """Bytes: `30.3 kB`, `1.38 MB`."""
    return _fitting(value, ((" bytes", 1), (" kB", 1e3), (" MB", 1e6), (" GB", 1e9)))


def _fitting(value: float, units: Sequence[tuple[str, float]], scales: dict[str, float] | None = None) -> str:
    """With the last unit that begins at or below `value`, once it is rounded; a unit is worth where it begins."""
    rounded = float(f"{value:.3g}")
    unit, begins = next((entry for entry in reversed(units) if rounded >= entry[1]), units[0])
    text = f"{value / (scales or {}).get(unit, begins):.3g}"
    return f"{float(text):.0f}{unit}" if "e" in text else f"{text}{unit}"
