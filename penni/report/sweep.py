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
    short = {"decompose.bases": "basis kernels d"}.get(field, field)
    plain = len(points[0].values) == 1 and all(isinstance(point.values[field], int | float) for point in points)
    with style(palette) as new_figure:
        figure = new_figure(figsize=(9.6 if plain else 5.4, 3.2 if not plain else 5.8))
        if plain:
            (accuracy, macs), (params, front) = figure.subplots(2, 2)
            ordered = sorted(points, key=lambda point: point.values[field])
            xs = [point.values[field] for point in ordered]
            accuracy.plot(xs, [100 * p.accuracy for p in ordered], color=palette.after, marker="o", label="compressed")
            accuracy.axhline(100 * ordered[0].base_accuracy, color=palette.accent, ls="--", lw=1, label="base")
            accuracy.set_title("test accuracy, %")
            for axes, key, title in ((macs, "macs", "million MACs"), (params, "params", "million parameters")):
                for name, label, colour in (
                    (f"decomposed_{key}", "decomposed", "before"),
                    (key, "compressed", "after"),
                ):
                    values = [getattr(point, name) / 1e6 for point in ordered]
                    axes.plot(xs, values, color=getattr(palette, colour), marker="o", label=label)
                level = getattr(ordered[0], f"base_{key}") / 1e6
                axes.axhline(level, color=palette.accent, ls="--", lw=1, label="base")
                axes.set_ylim(bottom=0)
                axes.set_title(title)
            for axes in (accuracy, macs, params):
                axes.set_xlabel(short)
                axes.legend(loc="best")
                if all(isinstance(x, int) for x in xs):
                    axes.set_xticks(xs)
        else:
            front = figure.subplots()
        _front(front, palette, points)
        figure.subplots_adjust(hspace=0.5, wspace=0.22)
        return figure


def _front(axes: Any, palette: Palette, points: Sequence[Point]) -> None:
    axes.scatter([p.macs / 1e6 for p in points], [100 * p.accuracy for p in points], color=palette.before, zorder=2)
    best = sorted((point for point in points if point.best), key=lambda point: point.macs)
    axes.plot(
        [p.macs / 1e6 for p in best], [100 * p.accuracy for p in best], color=palette.after, marker="o", label="best"
    )
    for point in points:
        text = ", ".join(str(value) for value in point.values.values())
        place = (point.macs / 1e6, 100 * point.accuracy)
        axes.annotate(text, place, xytext=(4, -10), textcoords="offset points", fontsize=8)
    axes.set_xlabel("million MACs, compressed")
    axes.set_title("test accuracy, %, and the Pareto front")
    axes.legend(loc="best")
