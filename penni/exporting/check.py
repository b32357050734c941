"""Whether an exported file answers as the checkpoint does: it is loaded anew and run on batches of two sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penni.errors import DiffersError, PenniError

# The largest difference allowed, relative to the largest answer where that is above one.
TOLERANCE = 1e-4

Run = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Agreement:
    """How close the exported file's answers are, and what ran it."""

    runtime: str
    difference: float
    batches: tuple[int, ...]


def flatten(outputs: Any) -> list[Tensor]:
    """The tensors that a network returns, in order: one, a tuple, or a named collection."""
    if isinstance(outputs, Tensor):
        return [outputs]
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, (list, tuple)):
        return [tensor for output in outputs if output is not None for tensor in flatten(output)]
    raise PenniError(f"the model returns a {type(outputs).__name__}, which has no standard form: return tensors")


def compare(model: nn.Module, run: Run, runtime: str, examples: list[Tensor], file: Path) -> Agreement:
    """Run both on `examples`; an error if they differ by more than `TOLERANCE`."""
    largest = 0.0
    for images in examples:
        with torch.no_grad():
            expected = flatten(model(images))
        answers = run(images)
        if len(answers) != len(expected):
            raise DiffersError(f"'{file}' gives {len(answers)} outputs in {runtime}, the model {len(expected)}")
        for ours, theirs in zip(expected, answers, strict=True):
            if ours.shape != theirs.shape:
                raise DiffersError(f"'{file}' gives {tuple(theirs.shape)} in {runtime}, the model {tuple(ours.shape)}")
            scale = max(1.0, float(ours.abs().max()))
            largest = max(largest, float((ours - theirs).abs().max()) / scale)
    if not largest <= TOLERANCE:
        raise DiffersError(
            f"'{file}' was not written: in {runtime} its answers differ from the network's by {largest:.1e}, "
            f"more than {TOLERANCE:.0e}"
        )
    return Agreement(runtime, largest, tuple(len(images) for images in examples))


def onnxruntime_runner(file: Path) -> Run:
    """Run an ONNX file in ONNX Runtime on the CPU."""
    try:
        import onnxruntime
    except ImportError as error:
        raise PenniError("an export is checked in onnxruntime: pip install 'penni[export]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds have no base class of their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PenniError(
            f"onnxruntime {onnxruntime.__version__} does not run what was exported, so nothing was written: {reason}; "
            "a newer onnxruntime, or another --opset, may"
        ) from error
    name = session.get_inputs()[0].name
    return lambda images: [torch.from_numpy(answer) for answer in session.run(None, {name: images.numpy()})]


def openvino_runner(file: Path) -> Run:
    """Run an ONNX file in OpenVINO on the CPU, in full precision."""
    import openvino

    # By default OpenVINO may compute in bf16 where the processor can.
    compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: [torch.from_numpy(answer.copy()) for answer in compiled(images.numpy()).values()]


def archive_runner(file: Path) -> Run:
    """Run a `torch.export` archive."""
    program = torch.export.load(file).module()

    def run(images: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return flatten(program(images))

    return run
