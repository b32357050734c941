"""Other engines on the same network and input, each held to the same number of threads: what `penni bench` compares."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penni.engine.program import Array
from penni.errors import PenniError, nearest

if TYPE_CHECKING:
    from torch import nn

Run = Callable[[], object]
_CALM_SECONDS = 0.05
_UNCOUNTED_SECONDS = 0.03
NAMES = ("torch", "torch.compile", "onnxruntime", "openvino")


def check_names(names: Sequence[str]) -> None:
    """Refuse an engine that there is not."""
    for name in names:
        if name not in NAMES:
            raise PenniError(f"there is no engine '{name}' to compare with: {nearest(name, NAMES)}")


def open_peer(name: str, model: nn.Module, images: Array, threads: int, folder: Path) -> Run:
    """A call that runs `model` on `images` in the engine `name`; files it needs are put in `folder`."""
    check_names([name])
    if name.startswith("torch"):
        return _torch(model, images, compiled=name == "torch.compile")
    file = folder / f"batch{len(images)}.onnx"
    if not file.exists():
        import torch

        from penni.exporting import export

        export(model, file, torch.from_numpy(images), batch=len(images))
    return (_onnxruntime if name == "onnxruntime" else _openvino)(file, images, threads)


def _torch(model: nn.Module, images: Array, *, compiled: bool) -> Run:
    import torch

    from penni.basis import reconstruct

    # A decomposed layer is at its best in PyTorch as the one convolution it equals.
    network = reconstruct(model).eval().to(memory_format=torch.channels_last)
    given = torch.from_numpy(images).to(memory_format=torch.channels_last)
    call = torch.compile(network) if compiled else network

    def run() -> object:
        with torch.inference_mode():
            return call(given)

    return run


def _onnxruntime(file: Path, images: Array, threads: int) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise PenniError("onnxruntime is not installed: pip install 'penni[export]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: images})


def _openvino(file: Path, images: Array, threads: int) -> Run:
    try:
        import openvino
    except ImportError as error:
        raise PenniError("openvino is not installed: pip install 'penni[export]'") from error
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # Some processors would compute in bf16 otherwise, which is another task.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = openvino.compile_model(str(file), "CPU", settings).create_infer_request()
    return lambda: request.infer({0: images})


def measure(calls: Mapping[str, Run], *, runs: int, warm_up: int = 5, block: int = 10) -> dict[str, float]:
    """Median milliseconds of each call.

    The calls take turns in blocks, so that a change in the machine's speed meets all alike. Before each block is a
    pause, in which the threads of the engine before stop spinning for more work, and then calls that are not counted,
    until the cores are awake again.
    """
    for call in calls.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    while min(map(len, times.values())) < runs:
        for name, call in calls.items():
            time.sleep(_CALM_SECONDS)
            awake = time.perf_counter() + _UNCOUNTED_SECONDS
            call()
            while time.perf_counter() < awake:
                call()
            for _ in range(block):
                begun = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) * 1000 for name, values in times.items()}


def noise(shape: tuple[int, ...], batch: int) -> Array:
    """A random batch."""
    return np.random.default_rng(0).standard_normal((batch, *shape), dtype=np.float32)
