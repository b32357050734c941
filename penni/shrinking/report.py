"""What a shrink did: the structure of each layer before and after, and every channel that stayed although dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from penni.basis import BasisConv2d

_LAYERS = (nn.modules.conv._ConvNd, nn.Linear, BasisConv2d)


@dataclass(frozen=True)
class Structure:
    """One layer's sizes, as the paper's appendix lists them. `bases` is None where there are none."""

    width: int
    inputs: int
    bases: int | None
    nonzero: int
    total: int

    @property
    def sparsity(self) -> float:
        """Zeros, in percent."""
        return 100.0 * (1 - self.nonzero / self.total) if self.total else 0.0


@dataclass(frozen=True)
class Row:
    """One layer before and after. `size` is its kernel: 3, or 1×7; 0 for a linear layer."""

    name: str
    kind: str
    size: str
    before: Structure
    after: Structure


@dataclass(frozen=True)
class Kept:
    """Channels of a layer's output that are dead and stayed."""

    layer: str
    channels: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Report:
    """What was removed, what was not and why."""

    rows: tuple[Row, ...]
    kept: tuple[Kept, ...] = ()
    excluded: tuple[str, ...] = ()
    untraceable: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    dead: int = 0
    removable: int = 0
    removed: int = 0
    difference: float = 0.0
    attempts: int = 1
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def text(self, changed_only: bool = True) -> str:
        """For reading in a terminal."""
        lines = [
            f"{self.removed} of {self.dead} dead channels removed ({self.removable} could go by the ties alone); "
            f"outputs differ by {self.difference:.1e} of their scale"
        ]
        rows = [row for row in self.rows if row.before != row.after] if changed_only else list(self.rows)
        if rows:
            lines += ["", *_aligned(_header(), [_cells(row) for row in rows])]
            if len(rows) < len(self.rows):
                lines.append(f"({len(self.rows) - len(rows)} layers stay as they were)")
        if self.kept:
            lines += ["", "dead but kept:"]
            lines += [f"  {item.layer}: {_ranges(item.channels)}: {item.reason}" for item in self.kept]
        for title, names in (
            ("excluded", self.excluded),
            ("not traceable, kept as they are", self.untraceable),
            ("not reached in eval mode, kept as they are", self.unreached),
            ("notes", self.notes),
        ):
            if names:
                lines += ["", f"{title}: {', '.join(names)}"]
        return "\n".join(lines)

    def table(self, form: str = "markdown", *, convolutions_only: bool = False) -> str:
        """The layers as the paper's appendix lays them out, as `markdown`, `csv` or `latex` rows."""
        rows = [row for row in self.rows if row.size or not convolutions_only]
        body = [_cells(row) for row in rows] + [_total(rows)]
        if form == "csv":
            return "\n".join(",".join(cells) for cells in [_header(), *body]) + "\n"
        if form == "latex":
            escaped = [[cell.replace("_", r"\_").replace("×", r"$\times$") for cell in cells] for cells in body]
            return "\n".join(" & ".join(cells) + r" \\ \hline" for cells in escaped) + "\n"
        head = _header()
        ruler = ["---"] * 2 + ["---:"] * (len(head) - 2)
        return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ruler, *body]) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return self.text()


def structures(model: nn.Module) -> dict[str, tuple[str, str, Structure]]:
    """Kind, kernel size and structure of each layer with weights."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, _LAYERS):
            found[name] = (type(layer).__name__, _size(layer), _structure(layer))
    return found


def compare(before: nn.Module, after: nn.Module) -> tuple[Row, ...]:
    """The layers of two models of one make, side by side."""
    old, new = structures(before), structures(after)
    return tuple(Row(name, *old[name][:2], old[name][2], new[name][2]) for name in old if name in new)


def _structure(layer: nn.Module) -> Structure:
    if isinstance(layer, BasisConv2d):
        tensor, bases = layer.coefficients.detach(), None if layer.is_pointwise else layer.bases
        return Structure(layer.out_channels, layer.in_channels, bases, _nonzero(tensor), tensor.numel())
    held: Any = layer
    weight = held.weight.detach()
    if isinstance(layer, nn.Linear):
        return Structure(layer.out_features, layer.in_features, None, _nonzero(weight), weight.numel())
    return Structure(held.out_channels, held.in_channels, None, _nonzero(weight), weight.numel())


def _nonzero(tensor: Any) -> int:
    return int(torch.count_nonzero(tensor))


def _size(layer: nn.Module) -> str:
    sizes: Sequence[int] = () if isinstance(layer, nn.Linear) else layer.kernel_size  # type: ignore[assignment]
    if not sizes:
        return ""
    return str(sizes[0]) if len(set(sizes)) == 1 else "×".join(str(size) for size in sizes)


def _header() -> list[str]:
    side = ["width", "basis", "non-zero/total", "sparsity %"]
    return ["name", "size", *(f"{name} before" for name in side), *(f"{name} after" for name in side)]


def _cells(row: Row) -> list[str]:
    cells = [row.name, row.size or "-"]
    for side in (row.before, row.after):
        bases = "-" if side.bases is None else str(side.bases)
        cells += [str(side.width), bases, f"{side.nonzero}/{side.total}", f"{side.sparsity:.2f}"]
    return cells


def _total(rows: Sequence[Row]) -> list[str]:
    cells = ["total", ""]
    for sides in ([row.before for row in rows], [row.after for row in rows]):
        nonzero, total = sum(side.nonzero for side in sides), sum(side.total for side in sides)
        cells += ["", "", f"{nonzero}/{total}", f"{100.0 * (1 - nonzero / total) if total else 0.0:.2f}"]
    return cells


def _aligned(head: list[str], body: list[list[str]]) -> list[str]:
    widths = [max(len(cells[column]) for cells in [head, *body]) for column in range(len(head))]
    lines = []
    for cells in [head, *body]:
        parts = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def _ranges(channels: Sequence[int]) -> str:
    """`0–3, 7` for 0 1 2 3 7, cut short where there are many."""
    runs: list[list[int]] = []
    for channel in channels:
        if runs and channel == runs[-1][1] + 1:
            runs[-1][1] = channel
        else:
            runs.append([channel, channel])
    words = [str(a) if a == b else f"{a}–{b}" for a, b in runs]
    if len(words) > 8:
        words = [*words[:8], "…"]
    return f"{len(channels)} ({', '.join(words)})"
