"""Write a run's report: `report.html`, and beside it the figures and tables for a paper."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from penni.checkpoint import writing
from penni.report.drawing import FOR_FILES, FOR_PAGE, as_svg, png_file, svg_file
from penni.report.figures import all_figures
from penni.report.findings import read_run
from penni.report.measurements import measure
from penni.report.page import command, page
from penni.report.tables import all_tables
from penni.report.verdict import verdict


def write(folder: str | Path, *, model: nn.Module | None = None, measured: bool = True) -> Path:
    """Write `report.html` into the run's folder, with figures and tables under `report/`; returns the page's path.

    `measured=False` leaves out latency, memory and time per layer. `model` is needed only for a run whose
    checkpoints do not say how their network is built.
    """
    run = read_run(folder, model)
    measurements = measure(run, timed=measured)
    tables = all_tables(run, measurements)
    figures = []
    target = run.folder / "report.html"
    with writing(target):
        pictures, sheets = run.folder / "report" / "figures", run.folder / "report" / "tables"
        for place in (pictures, sheets):
            place.mkdir(parents=True, exist_ok=True)
        for plot in all_figures(run, measurements):
            figures.append((plot.name, plot.title, plot.caption, as_svg(plot.draw(FOR_PAGE), plot.name)))
            plain = plot.draw(FOR_FILES)
            (pictures / f"{plot.name}.svg").write_text(svg_file(plain))
            (pictures / f"{plot.name}.png").write_bytes(png_file(plain))
        for table in tables:
            (sheets / f"{table.name}.csv").write_text(table.csv())
            (sheets / f"{table.name}.tex").write_text(table.latex())
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_text(
            page(run, measurements, verdict(run, measurements), tables, figures, command(run.folder, measured))
        )
        temporary.replace(target)
    return target
