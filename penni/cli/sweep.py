"""`penni sweep`: the same compression with many settings, and what they show together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penni.cli.options import Json, Weights, print_json
from penni.errors import PenniError

if TYPE_CHECKING:
    from torch import nn

    from penni.recipes import Recipe
    from penni.sweeping import Point


def sweep(
    out: Annotated[Path, typer.Option(help="The folder of the sweep: one run per point, table and figure.")],
    recipe: Annotated[str, typer.Option(help="A recipe that comes with penni, or a TOML file.")],
    bases: Annotated[str | None, typer.Option(help="Numbers of bases, such as 1..9.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A recipe field and its values: --vary retrain.gamma=1e-4,5e-5. Repeatable: a grid."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="As for `penni compress`.")] = None,
    weights: Weights = None,
    data: Annotated[str | None, typer.Option(help="cifar10, digits or imagefolder:PATH.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder with the data set's files.")] = None,
    normalise: Annotated[str | None, typer.Option(help="As for `penni compress`.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a recipe field in all runs.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once; by default one per GPU, or one.")] = None,
    as_json: Json = False,
) -> None:
    """Compress with every combination of settings; started again, finished runs are kept and stopped ones go on."""
    import sys

    from penni.recipes import override, read
    from penni.report.sweep import draw_sweep
    from penni.sweeping import combinations, grid_of, name_of, numbers
    from penni.sweeping import sweep as run_all
    from penni.training.state import STATE

    grid = {"decompose.bases": numbers(bases)} if bases else {}
    grid |= grid_of(vary or [])
    arguments = ["--recipe", recipe]
    for flag, value in (
        ("--model", model),
        ("--weights", weights),
        ("--data", data),
        ("--data-dir", data_dir),
        ("--normalise", normalise),
    ):
        arguments += [flag, str(value)] if value else []
    for entry in change or []:
        arguments += ["--set", entry]
    # A wrong field or value should stop the sweep now, not its fifth run.
    chosen = override(read(recipe), change or [])
    recipes = {
        name_of(values): override(chosen, [f"{field}={_written(value)}" for field, value in values.items()])
        for values in combinations(grid)
    }
    begun = {name for name in recipes if (out / name / STATE).is_file()}
    _check([recipe for name, recipe in recipes.items() if name not in begun], model, weights, data, data_dir, normalise)
    points = run_all(out, grid, arguments, jobs=jobs, say=lambda text: print(text, file=sys.stderr))
    figure = draw_sweep(out, points)
    if as_json:
        from dataclasses import asdict

        print_json({"points": [asdict(point) for point in points], "figure": str(figure)})
        return
    _show(points)
    print(f"the table is {out / 'sweep.csv'}, the figure {figure}")


def _check(
    recipes: Sequence[Recipe],
    model: str | None,
    weights: Path | None,
    data: str | None,
    data_dir: Path | None,
    normalise: str | None,
) -> None:
    """The error that a run with one of these recipes would end with at its beginning, such as too many bases."""
    from penni.cli.options import open_model
    from penni.compression import decomposition_plan_of
    from penni.data import open_data

    networks: dict[tuple[str, str, str | None], nn.Module] = {}
    for recipe in recipes:
        asked = model or recipe.model, data or recipe.data, normalise or recipe.normalise or None
        if not asked[0] or not asked[1]:
            raise PenniError("this recipe names no model or data set of its own: give --model and --data")
        if asked not in networks:
            networks[asked] = open_model(asked[0], weights, open_data(asked[1], data_dir, asked[2]))
        decomposition_plan_of(networks[asked], recipe)


def _written(value: object) -> str:
    import json

    return json.dumps(value)


def _show(points: list[Point]) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table

    table = Table(*points[0].values, "accuracy", "parameters", "", "MACs", "", "Pareto front")
    for point in points:
        table.add_row(
            *[str(value) for value in point.values.values()],
            f"{point.accuracy:.2%}",
            f"{point.params:,}",
            f"{point.params / point.base_params - 1:+.1%}",
            f"{point.macs / 1e6:,.2f} M",
            f"{point.macs / point.base_macs - 1:+.1%}",
            "best" if point.best else "",
        )
    # A file or a pipe has no width; rich would take 80 letters.
    Console(width=None if sys.stdout.isatty() else 100).print(table)
