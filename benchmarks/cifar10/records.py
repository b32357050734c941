"""What a compression run wrote down, as its kept record in results/ holds it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from penni.recipes import Recipe, names, read

METRICS, RECIPE, RECORD = "metrics.jsonl", "recipe.toml", "record.json"

# A folder of some machine, where a text names one: not an address on the web, nor a fraction.
_MACHINE_PATH = re.compile(r"""(?:^|(?<=["'\s=(`]))(?:~|/[\w.+-]+)(?:/[\w.+-]+)+""", re.MULTILINE)


def read_metrics(folder: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The events of a run by name, and its epochs."""
    records = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    events = {record["event"]: record for record in records if "event" in record}
    return events, [record for record in records if "phase" in record]


def training_seconds(epochs: list[dict[str, Any]]) -> float:
    """The time in which the network trained, without the evaluations between."""
    return float(sum(epoch["seconds"] for epoch in epochs))


def changes_of(recipe: Recipe) -> list[str] | None:
    """What `--set` and `--target` make of the recipe of that name that comes with penni; None if there is none."""
    if recipe.name not in names():
        return None
    plain, mine = dataclasses.asdict(read(recipe.name)), dataclasses.asdict(recipe)
    changes = []
    for section, fields in mine.items():
        if not isinstance(fields, dict):
            if section not in ("name", "about", "seed", "precision") and fields != plain[section]:
                changes += ["--set", f"{section}={_written(fields)}"]
            continue
        for field, value in fields.items():
            if field == "target":
                changes += [part for name, text in value.items() for part in ("--target", f"{name}={text}")]
            elif value != plain[section][field] and not (recipe.prune.target and section == "prune" and not value):
                changes += ["--set", f"{section}.{field}={_written(value)}"]
    for field in ("seed", "precision"):
        if mine[field] != plain[field]:
            changes += [f"--{field}", str(mine[field])]
    return changes


def machine_paths(text: str) -> list[str]:
    """Folders of a machine that a text names."""
    return _MACHINE_PATH.findall(text)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
