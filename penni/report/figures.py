"""The report's figures: what each shows, and how to draw it in a given palette."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penni.report.drawing import Palette, depth_colour, style
from penni.report.findings import Findings
from penni.report.measurements import Measurements
from penni.report.pictures import pictures

Draw = Callable[[Palette], Any]


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
                "Retraining and fine-tuning, epoch by epoch. Shaded epochs train the coefficients A, unshaded ones "
                "between them the basis kernels B; where nothing is shaded, both train at once.",
                lambda p: _curves(p, run),
            )
        )
    if run.spectra:
        plots.append(
            Plot(
                "spectra",
                "Singular values of the kernels",
                "Left: singular values of each layer's kernels over the largest. Right: the relative error that d "
                "shared kernels leave. The dashed line is the d of this run.",
                lambda p: _spectra(p, run),
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
        figure = new_figure(figsize=(max(5.4, 0.19 * len(labels) + 0.8), 3.0))
        axes = figure.subplots()
        wide = axes.bar(range(len(labels)), before, width=0.86, color=palette.before, label="base")
        slim = axes.bar(range(len(labels)), after, width=0.46, color=palette.after, label=newest)
        for index, (one, other) in enumerate(zip(wide, slim, strict=True)):
            one.set_gid(f"layer-{index}-base")
            other.set_gid(f"layer-{index}-after")
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.tick_params(axis="x", length=0, labelsize=8)
        axes.set_xlim(-0.7, len(labels) - 0.3)
        axes.set_ylabel(unit)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        return figure


def _curves(palette: Palette, run: Findings) -> Any:
    with style(palette) as new_figure:
        figure = new_figure(figsize=(5.4, 6.2))
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
            accuracy.annotate(
                "pruned", (change, 0), xycoords=("data", "axes fraction"), xytext=(3, 4), textcoords="offset points"
            )
        for key, label, colour in (("train_accuracy", "training", "before"), ("test_accuracy", "test", "after")):
            values = [100 * record[key] for record in run.epochs]
            accuracy.plot(xs, values, color=getattr(palette, colour), marker="o", ms=3, label=label)
        accuracy.axhline(100 * run.first["test_accuracy"], color=palette.accent, ls="--", lw=1, label="base, test")
        accuracy.set_ylabel("accuracy, %")
        accuracy.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
        loss.plot(xs, [record["loss"] for record in run.epochs], color=palette.before, marker="o", ms=3)
        loss.plot(xs, [record["test_loss"] for record in run.epochs], color=palette.after, marker="o", ms=3)
        loss.set_ylabel("loss")
        for key, label, colour, dash in (
            ("density", "not zero", "after", "-"),
            ("under_threshold", "under the threshold", "accent", "--"),
        ):
            points = [(x, 100 * record[key]) for x, record in zip(xs, run.epochs, strict=True) if key in record]
            if points:
                kept.plot(
                    *zip(*points, strict=True), color=getattr(palette, colour), ls=dash, marker="o", ms=3, label=label
                )
        kept.set_ylabel("of A, %")
        kept.set_ylim(0, 105)
        kept.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        kept.set_xlabel("epoch: retraining, then fine-tuning")
        kept.xaxis.get_major_locator().set_params(integer=True)
        kept.set_xlim(0.5, len(xs) + 0.5)
        figure.align_ylabels()
        figure.subplots_adjust(hspace=0.32)
        return figure


def _spectra(palette: Palette, run: Findings) -> Any:
    with style(palette) as new_figure:
        figure = new_figure(figsize=(5.8, 3.0))
        left, right = figure.subplots(1, 2)
        positions = {row.name: index for index, row in enumerate(run.layers)}
        longest = max(len(spectrum.values) for spectrum in run.spectra)
        for index, spectrum in enumerate(run.spectra):
            share = index / max(1, len(run.spectra) - 1)
            xs = range(1, len(spectrum.values) + 1)
            label = "first layer" if index == 0 else "last layer" if index == len(run.spectra) - 1 else None
            for axes, values, part in ((left, spectrum.values, "values"), (right, spectrum.errors, "errors")):
                (line,) = axes.plot(xs, values, color=depth_colour(share), lw=1.2, alpha=0.75, label=label)
                line.set_gid(f"layer-{positions[spectrum.name]}-{part}")
        for axes, title in ((left, "singular values"), (right, "relative error")):
            for bases in sorted({spectrum.bases for spectrum in run.spectra}):
                axes.axvline(bases, color=palette.ink, lw=0.9, ls="--")
            axes.set_title(title)
            axes.set_ylim(0, 1.05)
            if longest > 20:
                axes.set_xscale("log")
            else:
                axes.set_xticks(range(1, longest + 1))
        left.set_xlabel("number of the singular value")
        right.set_xlabel("basis kernels d")
        right.legend(loc="upper right")
        figure.subplots_adjust(wspace=0.2)
        return figure
