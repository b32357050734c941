"""Write a network as ONNX or as a `torch.export` archive, with its provenance, and only after it was checked."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from penni._version import __version__
from penni.checkpoint import writing
from penni.errors import PenniError, in_frames, nearest
from penni.exporting.check import Agreement, archive_runner, compare, onnxruntime_runner
from penni.exporting.forms import in_form
from penni.quiet import quietly

FORMATS = ("onnx", "pt2")

# Networks are exported with, and checked on, batches of these sizes: two that differ, and one alone.
_BATCHES = (2, 1, 3)


def export(
    model: nn.Module,
    file: str | Path,
    example_input: Tensor,
    *,
    format: str = "onnx",
    form: str = "dense",
    opset: int | None = None,
    batch: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Agreement:
    """Write `model` to `file`, run the file and compare it with `model`; nothing is written if they differ.

    `form` is `dense` (every decomposed layer as the one convolution it equals) or `two-stage` (depthwise, then 1×1).
    The batch is dynamic unless `batch` fixes it. `provenance` is kept in the file's metadata, as text.
    """
    file = Path(file)
    if format not in FORMATS:
        raise PenniError(f"there is no format '{format}': {nearest(format, FORMATS)}")
    if opset is not None and format != "onnx":
        raise PenniError("an opset is a matter of ONNX; leave it out for pt2")
    if batch is not None and batch < 1:
        raise PenniError(f"a batch of {batch} images is none: fix it to 1 or more, or leave it out")
    if file.is_dir():
        raise PenniError(f"'{file}' is a folder: name the file to write, such as '{file / f'network.{format}'}'")
    written = in_form(model, form).cpu().float()
    reference = in_form(model, "dense").cpu().float()
    shape = example_input.shape[1:]
    sizes = (batch,) if batch else _BATCHES
    generator = torch.Generator().manual_seed(0)
    examples = [torch.randn(size, *shape, generator=generator) for size in sizes]
    about = {"penni": __version__, "torch": torch.__version__, "form": form, **(provenance or {})}
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as folder:
            # The suffix matters: torch.export refuses another.
            temporary = Path(folder) / f"model.{format}"
            if format == "onnx":
                _write_onnx(written, temporary, examples[0], opset, batch is None, text)
                agreement = compare(reference, onnxruntime_runner(temporary), "onnxruntime", examples, file)
            else:
                _write_archive(written, temporary, examples[0], batch is None, text)
                agreement = compare(reference, archive_runner(temporary), "torch.export", examples, file)
            temporary.replace(file)
    return agreement


def _write_onnx(
    model: nn.Module, file: Path, example: Tensor, opset: int | None, dynamic: bool, about: dict[str, str]
) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise PenniError("writing ONNX needs onnx and onnxscript: pip install 'penni[export]'") from error
    with quietly(), _explaining():
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=({0: "batch"},) if dynamic else None,
            input_names=["images"],
            verbose=False,
            external_data=False,
        )
        assert program is not None
        # What it cannot convert, the exporter leaves as it was.
        written = program.model.opset_imports.get("")
        if opset is not None and written != opset:
            raise PenniError(f"this network cannot be written with opset {opset}: leave it out, or use {written}")
        for position, output in enumerate(program.model.graph.outputs):
            output.name = "logits" if len(program.model.graph.outputs) == 1 else f"output{position}"
        program.model.producer_name = "penni"
        program.model.producer_version = __version__
        # File names and line numbers of this machine's Python are of no use elsewhere.
        for node in program.model.graph:
            node.metadata_props.clear()
        program.model.metadata_props.update(about)
    with quietly():  # a disk that is full is no matter of the network
        program.save(file, external_data=False)


def _write_archive(model: nn.Module, file: Path, example: Tensor, dynamic: bool, about: dict[str, str]) -> None:
    # The archive's own writer ends the process when a disk is full, so it writes to memory.
    content = io.BytesIO()
    with quietly(), _explaining():
        shapes = ({0: torch.export.Dim("batch", min=1)},) if dynamic else None
        program = torch.export.export(model, (example,), dynamic_shapes=shapes)
        # The file carries neither the example nor where the code stood.
        program._example_inputs = None
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)
        torch.export.save(program, content, extra_files={"penni.json": json.dumps(about, indent=1)})
    file.write_bytes(content.getbuffer())


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    """What torch raises when a network's code cannot be traced, as a sentence."""
    try:
        yield
    except PenniError:
        raise
    except Exception as error:  # torch.export raises a dozen kinds, and user code any
        cause = error.__cause__ or error
        if isinstance(cause, torch.onnx.OnnxExporterError):
            node = next(in_frames(cause, fx.Node), None)
            if node is not None:
                raise PenniError(
                    f"ONNX has no form for the operator {node.target}, which is used in {_place(node)}: write that "
                    "part with other operators, or use the format pt2"
                ) from error
        lines = [line.strip(" -\t") for line in str(cause).splitlines() if line.strip()]
        reason = (lines or [type(cause).__name__])[0].rstrip(":")
        text = str(cause)
        on_batch = "user-specified ranges" in text or "ConstraintViolation" in text or "specialized" in text
        hint = "; its code depends on the batch's size, so fix that with --batch 1" if on_batch else ""
        raise PenniError(f"torch.export cannot trace this model: {reason[:300]}{hint}") from error


def _place(node: fx.Node) -> str:
    """The innermost module that a node comes from, in words."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    kind = str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    return f"'{path}' (a {kind})" if path else "the network's own forward"
