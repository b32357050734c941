"""Write the reference pages from the code while the site is built: commands, recipes, the public names."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent.parent / "results"


def on_page_markdown(markdown: str, **_arguments: Any) -> str:
    """Replace the marks `<!-- reference: … -->` and `<!-- results: file -->`."""
    makers = {"commands": commands, "recipes": recipes, "python": python}
    markdown = re.sub(r"<!-- reference: (\w+) -->", lambda match: makers[match[1]](), markdown)
    return re.sub(r"<!-- results: (\S+) -->", lambda match: results(RESULTS / match[1]), markdown)


def commands() -> str:
    """Every subcommand with its arguments and options, as `--help` has them."""
    import typer

    from penni.cli import application

    root = typer.main.get_command(application())
    return "\n".join(_command(f"penni {name}", command) for name, command in sorted(root.commands.items()))  # type: ignore[attr-defined]


def recipes() -> str:
    """The recipes that come with penni."""
    from penni.recipes import names, read

    rows = [f"| `{name}` | {read(name).about} |" for name in names()]
    return "\n".join(["| recipe | what it is |", "| --- | --- |", *rows])


def python() -> str:
    """The public names of `penni`, each from where it is written."""
    import penni

    parts = []
    for name in sorted(penni.__all__, key=str.lower):
        value = getattr(penni, name)
        module = getattr(value, "__module__", None)
        if module and not name.startswith("_"):
            parts.append(f"::: {module}.{value.__qualname__}\n")
    return "\n".join(parts)


def results(file: Path) -> str:
    """A file of measured figures as a part of a page, or a sentence that it is not there."""
    if not file.is_file():
        return f"*Not measured yet: there is no `results/{file.relative_to(RESULTS)}`.*"
    text = file.read_text()
    if file.suffix == ".csv":
        lines = text.splitlines()
        rows = list(csv.reader(line for line in lines if not line.startswith("#")))
        table = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        about = " ".join(line.strip("# ") for line in lines if line.startswith("#") and "python -m" not in line)
        return "\n".join([about, "", *("| " + " | ".join(row).replace("_", " ") + " |" for row in table)])
    # Its title is a heading within the page.
    return re.sub(r"(?m)^#", "###", text)


def _command(title: str, command: Any) -> str:
    if hasattr(command, "commands"):
        return "\n".join(_command(f"{title} {name}", child) for name, child in sorted(command.commands.items()))
    text = [f"## {title}", "", (command.help or "").strip(), ""]
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        names = f"`{parameter.name.upper()}`"
        if parameter.param_type_name == "option":
            names = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
        help_text = (getattr(parameter, "help", "") or "").replace("|", "\\|").strip()
        shown = _default(parameter)
        rows.append(f"| {names} | {help_text} | {shown} |")
    if rows:
        text += ["| | | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(text)


def _default(parameter: Any) -> str:
    """What counts if a parameter is not given: of two flags, the one that is meant."""
    if parameter.required:
        return "required"
    usual = parameter.default
    if usual is None or callable(usual):
        return ""
    if isinstance(usual, bool):
        flags = parameter.opts if usual else parameter.secondary_opts
        return f"`{flags[0]}`" if flags else ""
    return f"`{usual}`"
