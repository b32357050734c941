"""`penni export`: a checkpoint as ONNX or `torch.export`, checked before it is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penni.cli.options import Json, print_json


def export(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint folder, a run's folder, or a model by name.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; by default beside the checkpoint.")] = None,
    format: Annotated[str, typer.Option(help="onnx or pt2.")] = "onnx",
    form: Annotated[
        str, typer.Option(help="dense: each layer as one convolution; two-stage: depthwise, then 1×1.")
    ] = "dense",
    input_size: Annotated[
        str | None, typer.Option(help="Channels×height×width, such as 3x224x224; by default what the model expects.")
    ] = None,
    opset: Annotated[int | None, typer.Option(help="The ONNX opset; by default the exporter's current one.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Fix the batch size; by default it is dynamic.")] = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a standard ONNX graph or a `torch.export` archive.

    The file is run (ONNX in onnxruntime) and compared with the checkpoint; if they differ, nothing is written.
    """
    from penni.cli.options import open_model
    from penni.errors import PenniError
    from penni.exporting.archive import FORMATS
    from penni.exporting.archive import export as write
    from penni.exporting.provenance import finished_checkpoint, provenance_of
    from penni.models import example_input

    source = finished_checkpoint(checkpoint)
    if format not in FORMATS:
        raise PenniError(f"there is no format '{format}': use onnx or pt2")
    network = open_model(source)
    about = provenance_of(network, source, input_size)
    if out is None:
        folder = Path(source)
        stem = f"{folder.name if folder.is_dir() else source.replace(':', '-')}-{form}.{format}"
        out = folder.with_name(stem) if folder.is_dir() else Path(stem)
    size = input_size or about.get("input")
    example = example_input(network, size if isinstance(size, str) else None)
    agreement = write(network, out, example, format=format, form=form, opset=opset, batch=batch, provenance=about)
    if as_json:
        print_json(
            {
                "file": str(out),
                "format": format,
                "form": form,
                "bytes": out.stat().st_size,
                "checked_in": agreement.runtime,
                "largest_difference": agreement.difference,
                "batches": list(agreement.batches),
            }
        )
        return
    batches = ", ".join(map(str, agreement.batches))
    print(
        f"{out}: {out.stat().st_size / 1e6:.2f} MB, equal to the network in {agreement.runtime} to "
        f"{agreement.difference:.1e} (batches of {batches})"
    )
