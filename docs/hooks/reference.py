"""Write the reference pages from the code while the site is built: commands, recipes, the public names."""

from __future__ import annotations

import re
from typing import Any


def on_config(config: Any) -> Any:
    """Leave out of the navigation what this checkout does not have, and take in pages that it does."""
    from pathlib import Path

    folder = Path(config["docs_dir"])
    config["nav"] = [entry for entry in config["nav"] if _exists(folder, entry)]
    named = {page for entry in config["nav"] for page in _pages(entry)}
    for file in sorted(folder.glob("*.md")):
        if file.name not in named:
            config["nav"].append(file.name)
    return config


def on_page_markdown(markdown: str, **_arguments: Any) -> str:
    """Replace the marks `<!-- reference: … -->`."""
    makers = {"commands": commands, "recipes": recipes, "python": python}
    return re.sub(r"<!-- reference: (\w+) -->", lambda match: makers[match[1]](), markdown)


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


def _command(title: str, command: Any) -> str:
    if hasattr(command, "commands"):
        return "\n".join(_command(f"{title} {name}", child) for name, child in sorted(command.commands.items()))
    text = [f"## {title}", "", (command.help or "").strip(), ""]
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        option = parameter.param_type_name == "option"
        names = ", ".join(f"`{flag}`" for flag in parameter.opts) if option else f"`{parameter.name.upper()}`"
        help_text = (getattr(parameter, "help", "") or "").replace("|", "\\|").strip()
        usual = parameter.default
        shown = "" if usual is None or usual is False or callable(usual) or parameter.required else f"`{usual}`"
        rows.append(f"| {names} | {help_text} | {'required' if parameter.required else shown} |")
    if rows:
        text += ["| | | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(text)


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [
        page
        for value in entry.values()
        for item in (value if isinstance(value, list) else [value])
        for page in _pages(item)
    ]


def _exists(folder: Any, entry: Any) -> bool:
    return all((folder / page).is_file() for page in _pages(entry))
