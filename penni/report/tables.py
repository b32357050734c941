"""The report's tables, as plain rows: for the page, for a spreadsheet (CSV) and for a paper (LaTeX)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from penni.measure.count import LayerCount
from penni.report.findings import Findings
from penni.report.measurements import Measurements

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table with a format per column: `text`, `integer`, `percent` (of a share), `mega`, `decimal`.

    A column's name says all there is to say; on the page a heading over several columns (`groups`: its words, and
    the words at the end of the names that it stands for) may take a part of it.
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    formats: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    last_is_total: bool = False
    groups: tuple[tuple[str, str], ...] = ()

    def without_empty_columns(self) -> Table:
        """What nobody measured, or is not there yet, takes no room."""
        kept = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            formats=tuple(self.formats[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
        )

    def heading(self, column: str) -> tuple[str, str]:
        """The group of a column ("" without one), and what is left of its name under that group's heading."""
        used = [(words, ending) for words, ending in self.groups if any(c.endswith(f" {ending}") for c in self.columns)]
        for words, ending in used:
            if column.endswith(f" {ending}"):
                # One group alone tells nothing apart.
                return words if len(used) > 1 else "", column.removesuffix(f" {ending}")
        return "", column

    def csv(self) -> str:
        """With a header line, numbers in full: so no unit that stands for a million."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.replace(" (M)", "") for column in self.columns])
        writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])
        return stream.getvalue()

    def latex(self) -> str:
        """A booktabs table."""
        aligned = "".join("l" if kind == "text" else "r" for kind in self.formats)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escape(f'{self.title}. {self.caption}')}}}"]
        lines += [rf"\label{{tab:{self.name}}}", rf"\begin{{tabular}}{{{aligned}}}", r"\toprule"]
        headings = [self.heading(column) for column in self.columns]
        if any(group for group, _ in headings):
            lines += _latex_groups([group for group, _ in headings])
        lines.append(" & ".join(_escape(short) for _, short in headings) + r" \\")
        lines.append(r"\midrule")
        for index, row in enumerate(self.rows):
            if self.last_is_total and index == len(self.rows) - 1:
                lines.append(r"\midrule")
            lines.append(" & ".join(_latex_cell(c, f) for c, f in zip(row, self.formats, strict=True)) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def shown(cell: Cell, kind: str) -> str:
    """A cell as a reader sees it."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if kind == "percent":
        return f"{cell:.2%}"
    if kind == "mega":
        return f"{cell / 1e6:,.3f}" if cell >= 1e5 else f"{cell / 1e6:.3g}"
    if kind == "decimal":
        return f"{cell:,.3g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}"


def all_tables(run: Findings, measured: Measurements) -> list[Table]:
    """Every table of the report."""
    return [table.without_empty_columns() for table in (phases(run), structure(run), costs(run, measured))]


def phases(run: Findings) -> Table:
    """What each phase left."""
    first = run.first
    rows: list[tuple[Cell, ...]] = []
    for name, event in run.events.items():
        rows.append(
            (
                name,
                event["test_accuracy"],
                event["params"],
                event["params"] / first["params"] - 1,
                event["macs"],
                event["macs"] / first["macs"] - 1,
                event.get("density") or None,
            )
        )
    columns = (
        *("after phase", "test accuracy", "parameters", "change of parameters"),
        *("MACs (M)", "change of MACs", "non-zeros in A"),
    )
    formats = ("text", "percent", "integer", "percent", "mega", "percent", "percent")
    caption = "Changes are from the base network. A: the coefficients of all decomposed layers."
    return Table("phases", "The network after each phase", caption, columns, formats, tuple(rows))


def structure(run: Findings) -> Table:
    """Width, bases, non-zeros and sparsity of each convolution, before and after shrinking."""
    rows: list[tuple[Cell, ...]] = []
    totals = [0, 0, 0, 0]
    for row in run.layers:
        if row.kernel == "linear":
            continue
        before, after = _structure(row.before), _structure(row.after)
        rows.append((row.name, row.kernel, *before, *after))
        for index, entry in enumerate((row.before, row.after)):
            if entry is not None:
                totals[2 * index] += entry.nonzero
                totals[2 * index + 1] += entry.total
    sparsity = [1 - totals[i] / totals[i + 1] if totals[i + 1] else None for i in (0, 2)]
    kept: tuple[Cell, ...] = (None, None, totals[2] or None, totals[3] or None, sparsity[1])
    rows.append(("total", "", None, None, totals[0], totals[1], sparsity[0], *kept))
    half = ("width", "bases", "non-zero", "total", "sparsity")
    columns = ("layer", "kernel", *(f"{name} before" for name in half), *(f"{name} after" for name in half))
    kinds = ("integer", "integer", "integer", "integer", "percent")
    caption = (
        "Width: filters. Bases: basis kernels d of a decomposed layer. Non-zero and total: coefficients, or weights "
        "where a layer was not decomposed."
    )
    if not run.finished:
        caption = f"As the network is now. {caption}"
    return Table(
        "structure",
        "Structure of the convolutions",
        caption,
        columns,
        ("text", "text", *kinds, *kinds),
        tuple(rows),
        last_is_total=True,
        groups=(("before shrinking", "before"), ("after shrinking", "after")),
    )


def costs(run: Findings, measured: Measurements) -> Table:
    """MACs and time of each layer, in the base and in the compressed network."""
    rows: list[tuple[Cell, ...]] = []
    base_times, times = (measured.layer_microseconds.get(name, {}) for name in ("base", "compressed"))
    for row in run.layers:
        newest = row.after or row.before
        macs = newest.macs if newest else 0
        rows.append(
            (
                row.name,
                row.base.macs,
                macs,
                macs / row.base.macs - 1 if row.base.macs else None,
                base_times.get(row.name),
                times.get(row.name),
                measured.kernels.get(row.name),
            )
        )
    columns = ("layer", "MACs (M) before", "MACs (M) after", "change of MACs", "µs before", "µs after", "kernel")
    formats = ("text", "mega", "mega", "percent", "decimal", "decimal", "text")
    caption = f"Before: the base network. After: {'the shrunk network' if run.finished else 'the network now'}. "
    caption += "M: millions for one image."
    if times:
        caption += " µs: in the engine, one image on one thread. Kernel: the engine's, after."
    return Table("costs", "Cost of each layer", caption, columns, formats, tuple(rows))


def _structure(entry: LayerCount | None) -> tuple[Cell, ...]:
    if entry is None:
        return (None, None, None, None, None)
    sparsity = 1 - entry.nonzero / entry.total if entry.total else None
    return (entry.width, entry.bases, entry.nonzero, entry.total, sparsity)


def _latex_groups(groups: Sequence[str]) -> list[str]:
    """A line with the headings over several columns, and the rules under them."""
    cells, rules, first = [], [], 1
    for group, members in groupby(groups):
        number = len(list(members))
        cells += [rf"\multicolumn{{{number}}}{{c}}{{{_escape(group)}}}"] if group else [""] * number
        if group:
            rules.append(rf"\cmidrule(lr){{{first}-{first + number - 1}}}")
        first += number
    return [" & ".join(cells) + r" \\", "".join(rules)]


def _latex_cell(cell: Cell, kind: str) -> str:
    text = shown(cell, kind)
    return _escape(text if kind == "text" else text.replace("-", "−"))


def _escape(text: str) -> str:
    for plain, escaped in (("\\", r"\textbackslash{}"), ("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("#", r"\#")):
        text = text.replace(plain, escaped)
    return text.replace("×", r"$\times$").replace("µ", r"$\mu$").replace("–", "--").replace("−", "$-$")
