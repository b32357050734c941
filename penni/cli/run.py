"""`penni run`: a packed network on an image or an array. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penni.cli.options import Json, print_json
from penni.cli.pack import Crop, Mean, Std, numbers

if TYPE_CHECKING:
    from penni.engine import Engine

Threads = Annotated[int | None, typer.Option(help="Number of threads; by default all cores.")]


def run(
    file: Annotated[Path, typer.Argument(help="A packed network, which `penni pack` makes.")],
    image: Annotated[Path, typer.Option(help="An image file, or a .npy file with normalised inputs (N, C, H, W).")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 5,
    labels: Annotated[Path | None, typer.Option(help="A text file with the name of one class per line.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the network's answers to this .npy file.")
    ] = None,
    threads: Threads = None,
    mean: Mean = None,
    std: Std = None,
    crop: Crop = None,
    as_json: Json = False,
) -> None:
    """Run a packed network and show the classes it finds most probable."""
    from penni.engine import load
    from penni.engine.images import best, read_array, read_image

    engine = load(file, threads=threads)
    names = _names(labels, engine)
    if image.suffix.lower() == ".npy":
        inputs = read_array(image, engine.input_shape)
    else:
        inputs = read_image(image, engine.input_shape, _settings(engine, file, mean, std, crop))
    answers = engine(inputs)
    if out is not None:
        _write(out, answers)
    found = [best(answer, top) for answer in answers]
    if as_json:
        print_json(
            [
                [
                    {"class": index, "label": names[index] if names else None, "probability": share}
                    for index, share in each
                ]
                for each in found
            ]
        )
        return
    width = max((len(names[index]) for each in found for index, _ in each), default=0) if names else 0
    for number, each in enumerate(found):
        if len(found) > 1:
            print(f"item {number}")
        for index, share in each:
            print(f"{share:8.2%}  {index:>4}" + (f"  {names[index]:<{width}}".rstrip() if names else ""))


def _settings(engine: Engine, file: Path, mean: str | None, std: str | None, crop: float | None) -> dict[str, Any]:
    from penni.errors import PenniError

    settings = dict(engine.preprocessing or {})
    if mean is not None:
        settings["mean"] = numbers(mean, "--mean")
    if std is not None:
        settings["std"] = numbers(std, "--std")
    if crop is not None:
        settings["crop"] = crop
    if "mean" not in settings or "std" not in settings:
        raise PenniError(f"'{file}' does not say how its training images were normalised: give --mean and --std")
    return settings


def _names(labels: Path | None, engine: Engine) -> list[str] | None:
    from penni.errors import PenniError

    if labels is None:
        return None
    try:
        names = [line.strip() for line in labels.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise PenniError(f"'{labels}' cannot be read as a list of class names: {error}") from error
    classes = 1
    for size in engine.output_shape:
        classes *= size
    if len(names) != classes:
        raise PenniError(f"'{labels}' has {len(names)} names, and the network {classes} classes")
    return names


def _write(out: Path, answers: Any) -> None:
    import numpy as np

    from penni.errors import PenniError

    try:
        with out.open("wb") as stream:
            np.save(stream, answers, allow_pickle=False)
    except OSError as error:
        raise PenniError(f"'{out}' cannot be written: {error.strerror}") from error
