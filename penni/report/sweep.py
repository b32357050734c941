"""The figure of a sweep: accuracy, parameters and MACs against what was varied, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penni.report.drawing import FOR_FILES, Palette, png_file, style, svg_file
from penni.sweeping import Point


def draw_sweep(folder: Path, points: Sequence[Point]) -> Path:
    """Write `sweep.svg` and `sweep.png` into the sweep's folder; the SVG's path is returned."""
    figure = _figure(FOR_FILES, points)
    (folder / "sweep.png").write_bytes(png_file(figure))
    target = folder / "sweep.svg"
    target.write_text(svg_file(figure))
    return target


def _figure(palette: Palette, points: Sequence[Point]) -> Any:
    field = next(iter(points[0].values))
    plain = len(points[0].values) == 1 and all(isinstance(point.values[field], int | float) for point in points)
    with style(palette) as new_figure:
        if not plain:
            figure = new_figure(figsize=(5.4, 3.4))
            _front(figure.subplots(), palette, points)
            return figure
        figure = new_figure(figsize=(9.6, 6.2))
        (accuracy, macs), (params, front) = figure.subplots(2, 2)
        ordered = sorted(points, key=lambda point: point.values[field])
        xs = [point.values[field] for point in ordered]
        accuracy.plot(xs, [100 * p.accuracy for p in ordered], color=palette.after, marker="o", label="compressed")
        accuracy.axhline(100 * ordered[0].base_accuracy, color=palette.accent, ls="--", lw=1, label="base")
        accuracy.set_ylabel("test accuracy, %")
        for axes, key, unit in ((macs, "macs", "million MACs"), (params, "params", "million parameters")):
            for name, label, colour in ((f"decomposed_{key}", "decomposed", "before"), (key, "compressed", "after")):
                values = [getattr(point, name) / 1e6 for point in ordered]
                axes.plot(xs, values, color=getattr(palette, colour), marker="o", label=label)
            level = getattr(ordered[0], f"base_{key}") / 1e6
            axes.axhline(level, color=palette.accent, ls="--", lw=1, label="base")
            axes.set_ylim(bottom=0)
            axes.set_ylabel(unit)
        for axes in (accuracy, macs, params):
            axes.set_xlabel({"d": "basis kernels per layer, d"}.get(_name(field), field))
            _legend(axes)
            if all(isinstance(x, int) for x in xs):
                axes.set_xticks(xs)
        _front(front, palette, points)
        figure.subplots_adjust(hspace=0.46, wspace=0.24)
        return figure


def _front(axes: Any, palette: Palette, points: Sequence[Point]) -> None:
    beaten = [point for point in points if not point.best]
    best = sorted((point for point in points if point.best), key=lambda point: point.macs)
    for group, colour, line, label in (
        (best, palette.after, "-", "Pareto front"),
        (beaten, palette.before, "none", "beaten by another"),
    ):
        if group:
            places = [p.macs / 1e6 for p in group], [100 * p.accuracy for p in group]
            axes.plot(*places, color=colour, marker="o", ls=line, label=label)
    for point in points:
        text = ", ".join(str(value) for value in point.values.values())
        place = (point.macs / 1e6, 100 * point.accuracy)
        axes.annotate(text, place, xytext=(4, -11), textcoords="offset points", fontsize=9)
    axes.margins(0.08, 0.14)  # room for the words beside the points
    names = ", ".join(_name(field) for field in points[0].values)
    axes.set_xlabel(f"million MACs, compressed; beside each point: {names}")
    axes.set_ylabel("test accuracy, %")
    _legend(axes)


def _legend(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _name(field: str) -> str:
    return {"decompose.bases": "d"}.get(field, field)
