"""The page: everything in one HTML file, with no request to anywhere."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from html import escape
from importlib import resources
from itertools import groupby
from pathlib import Path
from string import Template

from penni._version import __version__
from penni.report.findings import Findings
from penni.report.measurements import Measurements
from penni.report.tables import Table, shown
from penni.report.words import milliseconds, short, size

# Points of width up to which a figure shrinks to a phone's width and stands beside another on a screen.
_NARROW = 330
# Pixels per point of a figure's own width: below the first its text (9 points and more) could not be read.
_LEAST, _MOST = 1.0, 1.6
_LEAST_WIDE = 1.15
# Shown where a table or a figure does not fit.
_HINT = '<p class="hint" aria-hidden="true">scroll sideways ↔</p>'


def page(
    run: Findings,
    measured: Measurements,
    sentences: Sequence[str],
    tables: Sequence[Table],
    figures: Sequence[tuple[str, str, str, str]],
    made_by: str,
) -> str:
    """The report as HTML; `figures` are (name, title, caption, SVG), `made_by` the command."""
    assets = resources.files("penni.report")
    by_name = {table.name: _table(table) for table in tables}
    drawn = {name: (title, caption, svg) for name, title, caption, svg in figures}
    sections = [by_name["phases"]]
    sections += [_figure(name, *drawn[name]) for name in ("curves", "widths") if name in drawn]
    sections.append(by_name["structure"])
    sections += [_figure(name, *drawn[name]) for name in ("macs", "time") if name in drawn]
    sections.append(by_name["costs"])
    for kind, heading in (("coefficients", "Coefficient matrices"), ("weights", "Reconstructed weights")):
        parts = [(name, *rest) for name, rest in drawn.items() if name.startswith(f"{kind}-")]
        if parts:
            sections.append(_choice(kind, heading, parts))
    sections += [_figure(name, *drawn[name]) for name in ("spectra", "errors") if name in drawn]
    return Template((assets / "page.html").read_text()).substitute(
        version=__version__,
        title=escape(_title(run)),
        about=escape(run.recipe.about or "A compression run"),
        css=(assets / "page.css").read_text(),
        js=(assets / "page.js").read_text(),
        tiles="".join(_tiles(run, measured)),
        verdict="".join(f"<p>{escape(sentence)}</p>\n" for sentence in sentences),
        sections="\n".join(sections),
        provenance=_provenance(run, measured, made_by),
        layers=_hover_texts(run, measured).replace("</", "<\\/"),
    )


def command(folder: Path, measured: bool) -> str:
    """The command that writes this report, as it was given; nothing of where on this machine the folder is."""
    return f"penni report {shlex.quote(portable(folder))}" + ("" if measured else " --no-measure")


def portable(path: str | Path) -> str:
    """A path as a page may show it: below the working folder, or else only its last part."""
    path = Path(path)
    if not path.is_absolute():
        return str(path)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else path.name


def _source(text: str) -> str:
    """`imagefolder:PATH` or `PATH.py:callable` with a path that may be shown."""
    return ":".join(portable(part) if part.startswith("/") else part for part in text.split(":"))


def _title(run: Findings) -> str:
    model = _source(run.recipe.model) or type(run.networks["base"]).__name__
    data = _source(run.recipe.data or run.notes.get("data") or "")
    return f"{model} on {data}" if data else model


def _tiles(run: Findings, measured: Measurements) -> list[str]:
    first, last = run.first, run.last
    points = 100 * (last["test_accuracy"] - first["test_accuracy"])
    tiles = [
        _tile(
            "test accuracy",
            f"{last['test_accuracy']:.2%}",
            f"from {first['test_accuracy']:.2%}",
            f"{points:+.2f} points",
            points < 0,
        ),
        _ratio_tile("parameters", first["params"], last["params"], short),
        _ratio_tile("multiply-accumulates", first["macs"], last["macs"], short),
    ]
    times = measured.milliseconds
    if "engine compressed" in times:
        reference = "engine base" if "engine base" in times else "torch base"
        both = " → ".join(milliseconds(times[f"torch {name}"]) for name in ("base", "compressed"))
        where = "dense in the engine" if reference == "engine base" else "dense in PyTorch"
        where += f"; in PyTorch {both}"
        tiles.append(
            _ratio_tile(
                "latency, one image, one thread",
                times[reference],
                times["engine compressed"],
                milliseconds,
                where,
            )
        )
    if {"base", "compressed"} <= measured.kilobytes.keys():
        memory = measured.kilobytes
        tiles.append(_ratio_tile("memory the engine adds", 1024 * memory["base"], 1024 * memory["compressed"], size))
    newest = list(run.bytes)[-1]
    packed = measured.packed_bytes
    if {"base", "compressed"} <= packed.keys():
        note = f"dense, packed; checkpoint {size(run.bytes['base'])} → {size(run.bytes[newest])}"
        tiles.append(_ratio_tile("packed file", packed["base"], packed["compressed"], size, note))
    else:
        tiles.append(_ratio_tile("checkpoint file", run.bytes["base"], run.bytes[newest], size))
    return tiles


def _ratio_tile(title: str, before: float, after: float, write: object, note: str = "") -> str:
    assert callable(write)
    change = after / before - 1 if before else 0.0
    from_ = f"from {write(before)}" + (f" ({note})" if note else "")
    return _tile(title, write(after), from_, f"{change:+.1%}", change > 0.005)


def _tile(title: str, value: str, note: str, change: str, worse: bool) -> str:
    mark = " worse" if worse else ""
    return (
        f'<div class="tile"><h3>{escape(title)}</h3><b>{escape(value)}</b>'
        f'<p><span class="change{mark}">{escape(change.replace("-", "−"))}</span> {escape(note)}</p></div>\n'
    )


def _table(table: Table) -> str:
    headings = [table.heading(column) for column in table.columns]
    groups = ""
    if any(group for group, _ in headings):
        for group, members in groupby(group for group, _ in headings):
            span = len(list(members))
            groups += f'<th scope="colgroup" colspan="{span}">{escape(group)}</th>' if group else "<td></td>" * span
        groups = f'<tr class="groups">{groups}</tr>'
    head = "".join(
        f'<th scope="col" data-kind="{kind}"><button type="button" aria-label="{escape(column)}">'
        f"{escape(short)}</button></th>"
        for column, (_, short), kind in zip(table.columns, headings, table.formats, strict=True)
    )
    rows = list(table.rows)
    foot = ""
    if table.last_is_total:
        foot = f"<tfoot>{_row(table, rows.pop())}</tfoot>"
    body = "\n".join(_row(table, row) for row in rows)
    return (
        f'<section class="card"><h2>{escape(table.title)}</h2><p class="caption">{escape(table.caption)}</p>'
        f'<div class="scroll">{_HINT}<div class="wide table" tabindex="0"><table id="{table.name}">'
        f"<thead>{groups}<tr>{head}</tr></thead>\n<tbody>{body}</tbody>{foot}</table></div></div></section>"
    )


def _row(table: Table, row: Sequence[str | int | float | None]) -> str:
    cells = []
    for cell, kind in zip(row, table.formats, strict=True):
        if kind == "text":
            # A layer's name may be broken after a point, where a phone has no room.
            text = escape(shown(cell, kind)).replace(".", ".<wbr>")
            cells.append(f'<td class="words"><span>{text}</span></td>')
        else:
            value = "" if cell is None else cell
            cells.append(f'<td data-value="{value}">{escape(shown(cell, kind).replace("-", "−"))}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _figure(name: str, title: str, caption: str, svg: str) -> str:
    return (
        f'<section class="card{_half(svg)}"><h2>{escape(title)}</h2><p class="caption">{escape(caption)}</p>'
        f"{_scrolled_figure(name, svg, title)}</section>"
    )


def _choice(kind: str, heading: str, parts: Sequence[tuple[str, str, str, str]]) -> str:
    options = "".join(
        f'<option value="{name}"{" selected" if index == len(parts) // 2 else ""}>'
        f"{escape(title.rpartition(' of ')[2])}</option>"
        for index, (name, title, _, _) in enumerate(parts)
    )
    shown_parts = "".join(
        f'<div data-part="{name}">{_scrolled_figure(name, svg, title)}</div>' for name, title, _, svg in parts
    )
    return (
        f'<section class="card{_half(parts[0][3])}"><h2>{escape(heading)}</h2>'
        f'<p class="caption">{escape(parts[0][2])}</p>'
        f'<p><label>Layer <select data-shows="{kind}">{options}</select></label></p>{shown_parts}</section>'
    )


def _labelled(svg: str, title: str) -> str:
    width = _points(svg)
    # A figure shrinks with its card as long as its text can be read; from there on its card scrolls.
    least = (_LEAST if width <= _NARROW else _LEAST_WIDE) * width
    style = f"min-width:{least:.0f}px;max-width:{_MOST * width:.0f}px"
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" style="{style}" ', 1)


def _half(svg: str) -> str:
    return " half" if _points(svg) <= _NARROW else ""


def _points(svg: str) -> float:
    width = re.search(r'<svg [^>]*?width="([\d.]+)pt"', svg)
    assert width is not None
    return float(width[1])


def _scrolled_figure(name: str, svg: str, title: str) -> str:
    # Of a box that scrolls, page.js shows by its edges where there is more.
    return (
        f'<div class="scroll">{_HINT}<div class="wide figure" tabindex="0" data-figure="{name}">'
        f"{_labelled(svg, title)}</div></div>"
    )


def _provenance(run: Findings, measured: Measurements, made_by: str) -> str:
    machine = run.first.get("machine") or {}
    plural = "" if machine.get("threads") == 1 else "s"
    entries = {
        "recipe": run.recipe.name,
        "seed": run.recipe.seed,
        "data": _source(run.notes.get("data") or "") or None,
        "processor": machine.get("processor"),
        "device": f"{machine.get('device')}, {machine.get('threads')} thread{plural}" if machine else None,
        "number format": machine.get("precision"),
        "date": machine.get("date"),
        "versions": f"penni {machine.get('penni')}, torch {machine.get('torch')}, Python {machine.get('python')}"
        if machine
        else None,
        "engine": measured.isa or None,
        "command": made_by,
    }
    rows = "".join(
        f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in entries.items() if value is not None
    )
    missing = "".join(f"<p>{escape(sentence)}</p>" for sentence in measured.sentences)
    counting = (
        '<p class="caption">Parameters and multiply-accumulates are those of convolutions and linear layers; zeros are '
        "not counted. "
    )
    if measured.milliseconds:
        counting += "Latency and memory were measured when the report was written, on the machine that wrote it. "
    if measured.packed_bytes:
        counting += "The packed file is what the engine loads (penni pack). "
    counting += "</p>"
    return f"{missing}<dl>{rows}</dl>{counting}"


def _hover_texts(run: Findings, measured: Measurements) -> str:
    texts = []
    base, compressed = (measured.layer_microseconds.get(key, {}) for key in ("base", "compressed"))
    for row in run.layers:
        newest = row.after or row.before
        lines = [row.name, f"{row.kernel}, width {row.base.width} → {newest.width if newest else 0}"]
        if newest and newest.bases is not None:
            lines.append(f"{newest.bases} bases, {newest.nonzero:,} of {newest.total:,} coefficients not zero")
        lines.append(f"{row.base.macs / 1e6:,.3f} → {(newest.macs if newest else 0) / 1e6:,.3f} M MACs")
        if row.name in compressed:
            before = f"{base[row.name]:,.1f} → " if row.name in base else ""
            lines.append(f"{before}{compressed[row.name]:,.1f} µs in the engine")
        texts.append("\n".join(lines))
    narrow = [text for text, row in zip(texts, run.layers, strict=True) if row.kernel != "linear"]
    return json.dumps({"all": texts, "widths": narrow})
