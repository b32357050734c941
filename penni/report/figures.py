"""The report's figures: what each shows, and how to draw it in a given palette."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penni.report.drawing import Palette, depth_colour, style
from penni.report.findings import Findings, Spectrum
from penni.report.measurements import Measurements
from penni.report.pictures import pictures

Draw = Callable[[Palette], Any]

# Inches: at this width text can be read on a phone without scrolling.
_WIDTH = 3.9
# More layers than these are drawn as bands, of those that are at least so many.
_LINES, _BAND = 12, 5


@dataclass(frozen=True)
class Plot:
    """A figure: its name (and file name), what the reader should see in it, and how it is drawn."""

    name: str
    title: str
    caption: str
    draw: Draw


def all_figures(run: Findings, measured: Measurements) -> list[Plot]:
    """Every figure for which this run has the data."""
    plots = []
    newest = "after shrinking" if run.finished else "now"
    convolutions = [row for row in run.layers if row.kernel != "linear"]
    names = [row.name for row in convolutions]
    latest = [row.after or row.before for row in convolutions]
    after = [entry.width if entry else 0 for entry in latest]
    plots.append(
        Plot(
            "widths",
            "Width of each layer",
            f"Filters of each convolution in the base network and {newest}.",
            lambda p: _bars(p, names, [row.base.width for row in convolutions], after, "filters", newest),
        )
    )
    before_macs = [row.base.macs / 1e6 for row in run.layers]
    after_macs = [(entry.macs / 1e6 if (entry := row.after or row.before) else 0.0) for row in run.layers]
    every = [row.name for row in run.layers]
    plots.append(
        Plot(
            "macs",
            "Multiply-accumulates of each layer",
            "Millions of multiply-accumulates for one image; zeros are not counted.",
            lambda p: _bars(p, every, before_macs, after_macs, "million MACs", newest),
        )
    )
    base_times, times = (measured.layer_microseconds.get(key) for key in ("base", "compressed"))
    if times:
        plots.append(
            Plot(
                "time",
                "Where the time goes in the engine",
                "Median microseconds of each layer for one image on one thread, with what is fused into it "
                "(normalisation, activation, addition).",
                lambda p: _bars(
                    p,
                    every,
                    [(base_times or {}).get(name, 0.0) for name in every],
                    [times.get(name, 0.0) for name in every],
                    "µs",
                    newest,
                ),
            )
        )
    if run.epochs:
        plots.append(
            Plot(
                "curves",
                "Learning curves",
                _about_curves(run),
                lambda p: _curves(p, run),
            )
        )
    if run.spectra:
        bases = sorted({spectrum.bases for spectrum in run.spectra})
        dashed = f"The dashed line is this run's d = {bases[0]}." if len(bases) == 1 else "Dashed: this run's d."
        plots.append(
            Plot(
                "spectra",
                "Singular values of the kernels",
                "All k×k kernels of a layer as the rows of a matrix with k² columns: its singular values, as shares of "
                f"the largest. The faster they fall, the fewer basis kernels a layer needs. {dashed}",
                lambda p: _spectra(p, run, lambda spectrum: spectrum.values, "share of the largest"),
            )
        )
        plots.append(
            Plot(
                "errors",
                "What d basis kernels leave out",
                "The relative error ‖W − Ŵ‖ / ‖W‖ of each layer, before any retraining: W are its kernels, Ŵ the "
                "nearest ones made of d basis kernels, ‖·‖ the root of the sum of squares. "
                f"0 is exact, 1 leaves nothing. {dashed}",
                lambda p: _spectra(p, run, lambda spectrum: spectrum.errors, "relative error"),
            )
        )
    for picture in pictures(run):
        plots.append(Plot(picture.name, picture.title, picture.caption, picture.draw))
    return plots


def _bars(
    palette: Palette,
    labels: Sequence[str],
    before: Sequence[float],
    after: Sequence[float],
    unit: str,
    newest: str,
) -> Any:
    with style(palette) as new_figure:
        figure = new_figure(figsize=(max(_WIDTH, 0.19 * len(labels) + 0.8), 2.8))
        axes = figure.subplots()
        wide = axes.bar(range(len(labels)), before, width=0.86, color=palette.before, label="base")
        slim = axes.bar(range(len(labels)), after, width=0.46, color=palette.after, label=newest)
        for index, (one, other) in enumerate(zip(wide, slim, strict=True)):
            one.set_gid(f"layer-{index}-base")
            other.set_gid(f"layer-{index}-after")
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.tick_params(axis="x", length=0, labelsize=9)
        axes.set_xlim(-0.7, len(labels) - 0.3)
        axes.set_ylabel(unit)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        return figure


def _curves(palette: Palette, run: Findings) -> Any:
    with style(palette) as new_figure:
        figure = new_figure(figsize=(_WIDTH, 5.2))
        accuracy, loss, kept = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
        xs = list(range(1, len(run.epochs) + 1))
        for number, record in zip(xs, run.epochs, strict=True):
            if record.get("trains") == "coefficients":
                for axes in (accuracy, loss, kept):
                    axes.axvspan(number - 0.5, number + 0.5, color=palette.shade, lw=0)
        change = sum(record["phase"] == "retrain" for record in run.epochs) + 0.5
        if change < len(xs):
            for axes in (accuracy, loss, kept):
                axes.axvline(change, color=palette.ink, lw=0.8, ls=":")
            # Where there is room for words: after pruning this curve is low.
            kept.annotate(
                "pruned",
                (change, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4, -2),
                textcoords="offset points",
                va="top",
            )
        for key, label, colour in (("train_accuracy", "training", "before"), ("test_accuracy", "test", "after")):
            values = [100 * record[key] for record in run.epochs]
            accuracy.plot(xs, values, color=getattr(palette, colour), marker="o", ms=3, label=label)
        accuracy.axhline(100 * run.first["test_accuracy"], color=palette.accent, ls="--", lw=1, label="base, test")
        accuracy.set_ylabel("accuracy, %")
        accuracy.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
        for key, label, colour in (("loss", "training", "before"), ("test_loss", "test", "after")):
            values = [record[key] for record in run.epochs]
            loss.plot(xs, values, color=getattr(palette, colour), marker="o", ms=3, label=label)
        loss.set_ylabel("loss")
        loss.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        for key, label, colour, dash in (
            ("density", "not zero", "after", "-"),
            ("under_threshold", "under the threshold", "accent", "--"),
        ):
            if key == "under_threshold" and run.recipe.prune.has_aim:
                continue  # no threshold is used
            points = [(x, 100 * record[key]) for x, record in zip(xs, run.epochs, strict=True) if key in record]
            if points:
                kept.plot(
                    *zip(*points, strict=True), color=getattr(palette, colour), ls=dash, marker="o", ms=3, label=label
                )
        kept.set_ylabel("share of A, %")
        kept.set_ylim(0, 105)
        kept.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        kept.set_xlabel("epoch: retraining, then fine-tuning")
        kept.xaxis.get_major_locator().set_params(integer=True)
        kept.set_xlim(0.5, len(xs) + 0.5)
        figure.align_ylabels()
        figure.subplots_adjust(hspace=0.36)
        return figure


def _about_curves(run: Findings) -> str:
    text = "Retraining and fine-tuning, epoch by epoch. "
    if any(record.get("trains") == "coefficients" for record in run.epochs):
        text += "Shaded epochs train the coefficients A, unshaded ones between them the basis kernels B."
    else:
        text += "The coefficients A and the basis kernels B train at once."
    if run.recipe.prune.has_aim:
        return f"{text} Below: the share of A that is not zero."
    deviations = f"{run.recipe.prune.threshold:g} standard deviation" + "s" * (run.recipe.prune.threshold != 1)
    return f"{text} Below: the share of A that is not zero, and the share under the pruning threshold of {deviations}."


def _spectra(palette: Palette, run: Findings, curve: Callable[[Spectrum], Sequence[float]], unit: str) -> Any:
    longest = max(len(spectrum.values) for spectrum in run.spectra)
    few = len(run.spectra) <= _LINES
    with style(palette) as new_figure:
        figure = new_figure(figsize=(_WIDTH, 3.7))
        axes, scale = figure.subplots(2, 1, height_ratios=(14, 1)) if few else (figure.subplots(), None)
        if few:
            _lines_by_depth(axes, run, curve)
            _depth_scale(scale, palette, [spectrum.name for spectrum in run.spectra])
            figure.subplots_adjust(hspace=0.62)
        else:
            _bands(axes, palette, run.spectra, curve)
        for bases in sorted({spectrum.bases for spectrum in run.spectra}):
            axes.axvline(bases, color=palette.ink, lw=0.9, ls="--")
        axes.set_ylim(0, 1.05)
        axes.set_ylabel(unit)
        axes.set_xlabel("number of the singular value" if unit.startswith("share") else "number of basis kernels, d")
        if longest > 20:
            axes.set_xscale("log")
        else:
            axes.set_xticks(range(1, longest + 1))
        return figure


def _lines_by_depth(axes: Any, run: Findings, curve: Callable[[Spectrum], Sequence[float]]) -> None:
    positions = {row.name: index for index, row in enumerate(run.layers)}
    for index, spectrum in enumerate(run.spectra):
        xs, ys = range(1, len(curve(spectrum)) + 1), curve(spectrum)
        (line,) = axes.plot(xs, ys, color=depth_colour(index / max(1, len(run.spectra) - 1)), lw=1.5)
        line.set_gid(f"layer-{positions[spectrum.name]}-line")
        # What the pointer has to hit is wider than what is seen.
        (around,) = axes.plot(xs, ys, color=line.get_color(), lw=9, alpha=0.004)
        around.set_gid(f"layer-{positions[spectrum.name]}-around")


def _depth_scale(axes: Any, palette: Palette, names: Sequence[str]) -> None:
    count = len(names)
    for index in range(count):
        axes.axvspan(index, index + 1, color=depth_colour(index / max(1, count - 1)), lw=0)
    axes.set_xlim(0, count)
    axes.set_yticks([])
    axes.set_xticks([index + 0.5 for index in range(count)], range(1, count + 1))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("decomposed layer, in order of depth")
    for place, name, side in ((0, names[0], "left"), (count, names[-1], "right")):
        if place == 0 or count > 1:
            axes.annotate(
                _shortened(name),
                (place, 1),
                xytext=(0, 3),
                textcoords="offset points",
                ha=side,
                va="bottom",
                fontsize=9,
            )


def _bands(
    axes: Any, palette: Palette, spectra: Sequence[Spectrum], curve: Callable[[Spectrum], Sequence[float]]
) -> None:
    """All, the middle half and the median of the layers with kernels of one size; lines for those of a rare one."""
    by_length: dict[int, list[Spectrum]] = {}
    for spectrum in spectra:
        by_length.setdefault(len(spectrum.values), []).append(spectrum)
    colours = [palette.after, palette.accent, palette.before]
    rare = []
    for length, group in sorted(by_length.items(), key=lambda entry: -len(entry[1])):
        if len(group) < _BAND or not colours:
            rare += group
            continue
        colour = colours.pop(0)
        values = np.array([curve(spectrum) for spectrum in group])
        low, first, middle, third, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1), axis=0)
        xs = range(1, length + 1)
        side = f"{math.isqrt(length)}×{math.isqrt(length)}" if math.isqrt(length) ** 2 == length else f"{length} places"
        axes.fill_between(xs, low, high, color=colour, alpha=0.16, lw=0, label=f"all {len(group)} layers, {side}")
        axes.fill_between(xs, first, third, color=colour, alpha=0.34, lw=0, label="middle half")
        axes.plot(xs, middle, color=colour, lw=1.8, marker="o", ms=3, label="median")
    for index, spectrum in enumerate(rare):
        ys = curve(spectrum)
        shade = depth_colour(index / max(1, len(rare) - 1))
        axes.plot(range(1, len(ys) + 1), ys, color=shade, lw=1.3, ls="-.", label=_shortened(spectrum.name))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=1 if rare else 2, borderaxespad=0.2)


def _shortened(name: str, most: int = 24) -> str:
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"
