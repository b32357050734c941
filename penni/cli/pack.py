"""`penni pack`: a checkpoint as one file for the engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penni.cli.options import Json, Weights, print_json

if TYPE_CHECKING:
    from torch import nn

Mean = Annotated[str | None, typer.Option(help="Mean of each channel's pixels in 0…1, such as 0.49,0.48,0.45.")]
Std = Annotated[str | None, typer.Option(help="Standard deviation of each channel's pixels, such as 0.2,0.2,0.2.")]
Crop = Annotated[float | None, typer.Option(help="Share of an image's shorter side that the network sees.")]


def pack(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint folder, or a model by name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as m.penni.")],
    weights: Weights = None,
    tune: Annotated[bool, typer.Option("--tune", help="Choose each kernel by measuring it on this machine.")] = False,
    threads: Annotated[int | None, typer.Option(help="Threads to plan for; by default all cores.")] = None,
    dtype: Annotated[str, typer.Option(help="Storage of the weights: fp32, fp16 or bf16.")] = "fp32",
    input_size: Annotated[
        str | None, typer.Option(help="Channels×height×width; by default what the network was made for.")
    ] = None,
    mean: Mean = None,
    std: Std = None,
    crop: Crop = None,
    as_json: Json = False,
) -> None:
    """Pack a checkpoint into one file that `penni run` and `penni.engine.load` run without PyTorch.

    The engine's answers are compared with the network's before anything is written. A file tuned on one
    machine runs on every other, though perhaps not with the kernels that are fastest there.
    """
    from penni.cli.options import open_model
    from penni.engine.compiling import compile as compile_model
    from penni.models import example_input

    network = open_model(checkpoint, weights)
    notes = _notes(checkpoint)
    size = input_size or ("x".join(map(str, notes["input"])) if isinstance(notes.get("input"), list) else None)
    example = example_input(network, size)
    preprocessing = _preprocessing(notes, tuple(example.shape[1:]), mean, std, crop)
    engine = compile_model(network, example, threads=threads, tune=tune, dtype=dtype, preprocessing=preprocessing)
    engine.save(out)
    dense = _dense_bytes(network)
    if as_json:
        result = {"file": str(out), "bytes": engine.size, "state_dict_bytes": dense, "macs": engine.macs}
        settings = {"dtype": dtype, "tuned": engine.tuned, "preprocessing": preprocessing}
        print_json({**result, "steps": len(engine.steps), "isa": engine.isa, **settings})
        return
    print(
        f"{out}: {engine.size / 1e6:.2f} MB ({dense / 1e6:.2f} MB as tensors), {len(engine.steps)} steps, "
        f"{engine.macs / 1e6:,.2f} M MACs, {'tuned' if tune else 'planned'} for {engine.threads} "
        f"{'thread' if engine.threads == 1 else 'threads'} with {engine.isa}"
    )
    if preprocessing is None:
        print("It does not know how its training images were normalised: give --mean and --std here or to `penni run`.")


def numbers(text: str, option: str) -> list[float]:
    """`0.49,0.48,0.45` as numbers."""
    from penni.errors import PenniError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise PenniError(f"{option} is '{text}'; write numbers with commas between, such as 0.49,0.48,0.45") from error


def _notes(checkpoint: str) -> dict[str, Any]:
    from penni.checkpoint import is_checkpoint, read_structure

    return dict(read_structure(checkpoint).get("notes") or {}) if is_checkpoint(checkpoint) else {}


def _preprocessing(
    notes: dict[str, Any], shape: tuple[int, ...], mean: str | None, std: str | None, crop: float | None
) -> dict[str, Any] | None:
    from penni.engine.images import check_preprocessing
    from penni.errors import PenniError

    noted = notes.get("normalisation")
    settings: dict[str, Any] = dict(noted) if isinstance(noted, dict) else {}
    # Folders of photographs are resized with a margin, as usual for ImageNet; small data sets fill the input.
    settings["crop"] = 0.875 if str(notes.get("data", "")).startswith("imagefolder") else 1.0
    if mean is not None:
        settings["mean"] = numbers(mean, "--mean")
    if std is not None:
        settings["std"] = numbers(std, "--std")
    if crop is not None:
        settings["crop"] = crop
    if ("mean" in settings) != ("std" in settings):
        raise PenniError("give both --mean and --std: one alone does not say how an image is normalised")
    return check_preprocessing(settings, shape) if "mean" in settings else None


def _dense_bytes(network: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
