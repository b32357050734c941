"""The README's figures are those of the records."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_table_of_results_is_what_the_records_give() -> None:
    text = (ROOT / "README.md").read_text()
    assert "<!-- results -->\n| network" in text
    assert runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))["with_table"](text) == text
