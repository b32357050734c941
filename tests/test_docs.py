"""Every command in the README and the documentation runs, and the site builds without a warning.

The `bash` blocks of one page are one script, run in an empty folder. A comment above a block takes it out:
`<!-- skip: reason -->` always, `<!-- slow: reason -->` unless slow tests are asked for.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>\w+)(?P<reason>:[^>]*)? -->\n)?```(?:bash|sh|shell|console)\n(?P<body>.*?)```", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A block of commands: run always, only when slow tests are, or never."""

    when: str
    reason: str
    body: str


def _blocks(page: Path) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(page.read_text()):
        mark = match["mark"] or "always"
        found.append(Block(mark, (match["reason"] or "").strip(": "), match["body"]))
    return found


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {page: _blocks(page) for page in PAGES}
IDS = {page: page.stem for page in PAGES}


def _run(page: Path, blocks: list[Block], folder: Path) -> None:
    script = "set -euxo pipefail\n" + "\n".join(block.body for block in blocks)
    binaries = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": binaries + os.pathsep + os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{page.name}: {result.stderr[-1500:]}"


def test_marks_are_known_and_have_a_reason() -> None:
    for page, blocks in BLOCKS.items():
        for block in blocks:
            assert block.when in ("always", "skip", "slow"), f"{page.name}: unknown mark '{block.when}'"
            assert block.when == "always" or len(block.reason) > 10, f"{page.name}: say why\n{block.body}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.when == "always" for b in BLOCKS[p])], ids=lambda page: IDS[page]
)
def test_commands(page: Path, tmp_path: Path) -> None:
    _run(page, [block for block in BLOCKS[page] if block.when == "always"], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.when == "slow" for b in BLOCKS[p])], ids=lambda page: IDS[page]
)
def test_all_commands(page: Path, tmp_path: Path) -> None:
    _run(page, [block for block in BLOCKS[page] if block.when != "skip"], tmp_path)


def _skipped_commands() -> list[tuple[str, list[str]]]:
    """Page and words of each command that no test runs."""
    found = []
    for page, blocks in BLOCKS.items():
        for block in blocks:
            if block.when == "skip":
                lines = block.body.replace("\\\n", " ").splitlines()
                for line in lines:
                    found += [
                        (page.name, words) for part in line.split("&&") if (words := shlex.split(part, comments=True))
                    ]
    return found


@pytest.mark.parametrize(
    ("page", "words"), _skipped_commands(), ids=lambda value: value if isinstance(value, str) else " ".join(value)[:60]
)
def test_a_command_that_is_not_run_is_at_least_understood(page: str, words: list[str]) -> None:
    """Of `penni`, every option and recipe is known; of a script, it is there and knows its options."""
    import typer

    from penni.cli import application
    from penni.recipes import names

    if words[0] == "penni":
        command, rest = typer.main.get_command(application()), words[1:]
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context("penni", list(rest)).close()
        if "--recipe" in words:
            recipe = words[words.index("--recipe") + 1]
            assert recipe in names() or recipe.endswith(".toml"), page
        return
    tools = ("make", "pip", ".venv/bin/pip", "ruff", "mypy", "pytest", "mkdocs")
    script = ROOT / (
        words[2].replace(".", "/") + ".py" if words[:2] == ["python", "-m"] else words[words[0] == "python"]
    )
    if words[0] in tools or words[:3] == ["python", "-m", "venv"]:
        return  # what is not ours
    assert script.is_file(), f"{page} names {script}"
    for flag in (word for word in words if word.startswith("--")):
        assert f'"{flag}"' in script.read_text(), f"{page}: {script.name} has no {flag}"


def test_every_command_named_in_the_docs_exists() -> None:
    import typer

    from penni.cli import application

    known = set(typer.main.get_command(application()).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        named = set(re.findall(r"(?m)^(?:.*`)?penni ([a-z]+)\b", "\n".join(b.body for b in BLOCKS[page])))
        named |= set(re.findall(r"`penni ([a-z]+)[ `]", page.read_text()))
        assert named <= known, f"{page.name} names {sorted(named - known)}"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'penni[docs]'")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    commands = (tmp_path / "site" / "cli" / "index.html").read_text()
    assert "penni export" in commands
    assert "--form" in commands
    assert "decompose" in (tmp_path / "site" / "api" / "index.html").read_text()
    assert "def make_model" in re.sub(r"<[^>]+>", "", (tmp_path / "site" / "own-model" / "index.html").read_text())
