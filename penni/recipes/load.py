"""Read recipes from TOML, and change single fields; a field that does not exist is an error that names the nearest."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from penni.errors import PenniError, nearest
from penni.recipes.settings import Recipe
from penni.recipes.targets import split_targets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_SHARES = ("density", "macs", "params")

# The kinds of values that fields have, as people call them.
_KIND_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    list: "a list",
    dict: "a table",
}


def names() -> list[str]:
    """The recipes that come with penni."""
    folder = resources.files("penni.recipes")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read(name: str | Path) -> Recipe:
    """A recipe by the name of one that comes with penni, or from a TOML file."""
    file = Path(name)
    if file.suffix == ".toml":
        if not file.is_file():
            raise PenniError(f"there is no recipe file '{file}'")
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise PenniError(f"the recipe '{file}' is not a text file: {error}") from error
        title = file.stem
    elif str(name) in names():
        text = (resources.files("penni.recipes") / f"{name}.toml").read_text()
        title = str(name)
    else:
        raise PenniError(f"there is no recipe '{name}': {nearest(str(name), names())}")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PenniError(f"the recipe '{name}' is not valid TOML: {error}") from error
    return from_dictionary({"name": title, **content})


def from_dictionary(content: Mapping[str, Any]) -> Recipe:
    """A recipe from nested plain values."""
    return _make(Recipe, content, "")


def override(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe with fields changed as a user writes them: `retrain.epochs=12`, `decompose.bases={"*": 5}`."""
    content = dataclasses.asdict(recipe)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise PenniError(f"'{change}' changes nothing: write field=value, such as retrain.epochs=12")
        place, field = content, path.strip()
        section, dot, rest = field.partition(".")
        if dot:
            if not isinstance(content.get(section), dict):
                sections = [key for key, value in content.items() if isinstance(value, dict)]
                raise PenniError(f"a recipe has no section '{section}': {nearest(section, sections)}")
            place, field = content[section], rest
        if field not in place:
            raise PenniError(_no_such_field(path.strip(), section if dot else "", place if dot else content))
        place[field] = _value(text.strip())
    return from_dictionary(content)


def with_target(recipe: Recipe, targets: Sequence[str], changes: Sequence[str] = ()) -> tuple[Recipe, str]:
    """The recipe steered to `targets` (`macs=-80%`) in place of its own aim, and the sentence that says so.

    `changes` are those of `override`; all is checked together, since a change may need the target.
    """
    target = split_targets(targets)
    before = recipe.prune
    shares = [f"prune.{name} = {getattr(before, name)}" for name in _SHARES if getattr(before, name)]
    instead = shares or [f"target {before.target}" if before.target else f"prune.threshold = {before.threshold}"]
    steered = [*(f"prune.{name}=0" for name in _SHARES), f"prune.target={json.dumps(target)}"]
    result = override(recipe, [*steered, *changes])
    said = f"the target {', '.join(f'{name}={value}' for name, value in target.items())}"
    said += f" takes the place of the recipe's {' and '.join(instead)}"
    if not result.retrain.gradual:
        said += "; all is pruned at once after retraining, and bit by bit during it with --set retrain.gradual=true"
    return result, said


def to_toml(recipe: Recipe) -> str:
    """The recipe as a file that `read` takes."""
    lines, sections = [], []
    for key, value in dataclasses.asdict(recipe).items():
        if isinstance(value, dict):
            sections.append(f"\n[{key}]")
            sections += [f"{name} = {_toml_value(entry)}" for name, entry in value.items()]
        else:
            lines.append(f"{key} = {_toml_value(value)}")
    return "\n".join(lines + sections) + "\n"


def _no_such_field(path: str, section: str, fields: Mapping[str, Any]) -> str:
    """The sentence for a field that `fields`, which stand in `section`, do not have."""
    if not section:
        return f"a recipe has no field '{path}': {nearest(path, _all_fields(fields))}"
    field = path.removeprefix(f"{section}.")
    return f"a recipe has no field '{path}': {nearest(field, fields, within=f'{section}.')}"


def _all_fields(content: Mapping[str, Any]) -> list[str]:
    fields = []
    for key, value in content.items():
        fields += [f"{key}.{name}" for name in value] if isinstance(value, dict) else [key]
    return fields


def _make(kind: type[T], content: Mapping[str, Any], where: str) -> T:
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{where}.{key}" if where else key
        if key not in hints:
            raise PenniError(_no_such_field(path, where, hints))
        wanted = hints[key]
        if dataclasses.is_dataclass(wanted):
            if not isinstance(value, Mapping):
                raise PenniError(f"'{path}' is a section of a recipe, not a single value")
            values[key] = _make(typing.cast(type[Any], wanted), value, path)
        else:
            values[key] = _checked(wanted, value, path)
    return kind(**values)


def _checked(wanted: Any, value: Any, path: str) -> Any:
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    for option in options:
        plain = typing.get_origin(option) or option
        if plain is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, plain) and not (isinstance(value, bool) and plain is not bool):
            return value
    kinds = " or ".join(_KIND_WORDS[typing.get_origin(option) or option] for option in options)
    raise PenniError(f"'{path}' takes {kinds}, not {value!r}")


def _value(text: str) -> Any:
    """A value as a user types it: JSON where it is JSON, otherwise a word."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml_value(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False)
