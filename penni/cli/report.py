"""`penni report`: the page that shows and explains a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a compression run, finished or not.")],
    measure: Annotated[bool, typer.Option(help="Measure latency, memory and where the time goes.")] = True,
) -> None:
    """Write a run's report: one HTML page that opens offline, and its figures (SVG, PNG) and tables (CSV, LaTeX)."""
    from penni.report import write

    page = write(run, measured=measure)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB; figures and tables are in {run / 'report'}")
