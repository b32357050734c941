"""What the report says is what the run's files say."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penni
from penni.cli import application
from penni.report.findings import read_run
from penni.report.measurements import Measurements
from penni.report.verdict import verdict


def _table(page: Path, name: str) -> list[dict[str, str]]:
    with (page.parent / "report" / "tables" / f"{name}.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_the_page_needs_nothing_else(written_report: Path) -> None:
    text = written_report.read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!#|data:)", text)
    assert "@import" not in text
    assert not re.findall(r"url\([\"']?https?:", text)
    assert "<tests> &" not in text, "the recipe's words must be escaped"
    assert "&lt;tests&gt; &amp; nothing else" in text


def test_the_structure_table_is_the_networks(written_report: Path) -> None:
    run = written_report.parent
    images = read_run(run).example
    before = {layer.name: layer for layer in penni.count(penni.load(run / "finetuned"), images).layers}
    after = {layer.name: layer for layer in penni.count(penni.load(run / "checkpoint"), images).layers}
    rows = _table(written_report, "structure")
    assert [row["layer"] for row in rows[:-1]] == [name for name in before if name != "linear"]
    for row in rows[:-1]:
        assert int(row["non-zero before"]) == before[row["layer"]].nonzero
        assert int(row["total after"]) == after[row["layer"]].total
        assert int(row["width after"]) == after[row["layer"]].width
    assert int(rows[-1]["non-zero after"]) == sum(int(row["non-zero after"]) for row in rows[:-1])


def test_phases_and_costs(written_report: Path) -> None:
    phases = _table(written_report, "phases")
    assert [row["after phase"] for row in phases] == [
        "base", "decomposed", "retrained", "pruned", "finetuned", "shrunk"
    ]  # fmt: skip
    lines = (written_report.parent / "metrics.jsonl").read_text().splitlines()
    last = next(record for record in map(json.loads, lines) if record.get("event") == "shrunk")
    assert int(phases[-1]["parameters"]) == last["params"]
    costs = _table(written_report, "costs")
    assert sum(int(row["MACs after"]) for row in costs) == last["macs"]
    assert all(float(row["µs after"]) > 0 for row in costs)


def test_figures_and_tables_for_a_paper(written_report: Path) -> None:
    figures = written_report.parent / "report" / "figures"
    names = {file.stem for file in figures.glob("*.svg")}
    assert {"widths", "macs", "time", "curves", "spectra"} <= names
    assert any(name.startswith("coefficients") for name in names)
    for name in names:
        ElementTree.parse(figures / f"{name}.svg")
        assert "var(--" not in (figures / f"{name}.svg").read_text()
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    latex = (written_report.parent / "report" / "tables" / "structure.tex").read_text()
    assert latex.count(r"\\") == len(_table(written_report, "structure")) + 2, "two lines of headings"
    assert r"\multicolumn{5}{c}{before shrinking} & \multicolumn{5}{c}{after shrinking} \\" in latex
    phases = (written_report.parent / "report" / "tables" / "phases.tex").read_text()
    assert re.search(r" \$-\$\d+\.\d+\\% ", phases), "a minus sign, not a hyphen"
    assert r"$\times$" in latex


def test_the_verdict_states_gain_and_cost(finished_run: Path) -> None:
    run = read_run(finished_run)
    text = " ".join(verdict(run, Measurements()))
    assert f"{run.last['params']:,} of {run.first['params']:,} parameters" in text
    assert f"{run.last['test_accuracy']:.2%}" in text
    assert "not finished" not in text


def test_an_unfinished_run_is_reported_as_such(finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    shutil.copytree(finished_run, folder, ignore=shutil.ignore_patterns("report*"))
    for stage in ("retrained", "pruned", "finetuned", "checkpoint"):
        shutil.rmtree(folder / stage)
    lines = (folder / "metrics.jsonl").read_text().splitlines()[:4]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = CliRunner().invoke(application(), ["report", str(folder), "--no-measure"], catch_exceptions=False)
    assert str(folder / "report.html") in result.stdout
    page = (folder / "report.html").read_text()
    assert "This run is not finished" in page
    assert "Where the time goes" not in page


def _compress(folder: Path, *arguments: str) -> str:
    base = penni.save(penni.build("small"), folder / "base", notes={"data": "digits", "input": [1, 8, 8]})
    short = ("--set", "retrain.epochs=0", "--set", "finetune.epochs=0")
    command = ["compress", "--model", str(base), "--data", "digits", "--recipe", "digits", *short]
    result = CliRunner().invoke(application(), [*command, "--out", str(folder / "run"), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_compressing_ends_with_a_report(tmp_path: Path) -> None:
    told = _compress(tmp_path)
    assert "the report is" in told
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Where the time goes" in page
    assert "Learning curves" not in page, "without an epoch there is no curve"


def test_a_compression_without_report_and_one_that_cannot_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    assert "report" not in _compress(tmp_path / "one", "--no-report")
    assert not (tmp_path / "one" / "run" / "report.html").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "two").mkdir()
    told = _compress(tmp_path / "two")
    assert "no report was written" in told
    assert "pip install 'penni[report]'" in told
    assert (tmp_path / "two" / "run" / "checkpoint" / "model.safetensors").is_file()


@pytest.mark.parametrize("content", [None, "{not json"])
def test_what_is_not_a_run_is_a_sentence(finished_run: Path, tmp_path: Path, content: str | None) -> None:
    from penni.report import write

    folder = tmp_path / "run"
    folder.mkdir()
    if content is not None:
        shutil.copytree(finished_run / "base", folder / "base")
        (folder / "metrics.jsonl").write_text(content)
    with pytest.raises(penni.PenniError, match="not the folder" if content is None else "damaged in line 1"):
        write(folder)
