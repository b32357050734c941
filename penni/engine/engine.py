"""The engine as its users hold it: call it with a batch, save it, ask what its steps cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penni.engine import pack
from penni.engine.program import Array, Shape
from penni.engine.runtime import NativeEngine, tensor_type
from penni.errors import PenniError


@dataclass(frozen=True)
class StepReport:
    """One step of a packed network: what it does, by which kernel, and what it costs per image."""

    op: str
    module: str
    kernel: str
    input_shape: Shape
    output_shape: Shape
    nonzeros: int | None
    macs: int
    microseconds: float | None = None
    share: float | None = None


class Engine:
    """A packed network, ready to run. Several threads may call one engine at once."""

    def __init__(self, packed: pack.Packed, threads: int | None, name: str) -> None:
        self._packed = packed
        self.threads = check_threads(threads)
        try:
            network = packed.network
            self._shapes = [_shape(shape) for shape in network["values"]]
            self._input, self._output = int(network["input"]), int(network["output"])
            self.input_shape: Shape = _shape(network["input_shape"])
            self.output_shape: Shape = _shape(network["output_shape"])
            self.dtype = str(network["dtype"])
            self.preprocessing: dict[str, Any] | None = _object(network["preprocessing"])
            self.origin: dict[str, Any] | None = _object(network["origin"])
            self.tuned: dict[str, Any] | None = _object(network["tuned"])
            at_once = _number_at_once(network.get("at_once"))
            self._steps = [_native_step(step, packed.places) for step in network["steps"]]
            self._reports = [self._report(step) for step in network["steps"]]
            # The native side checks every size, offset and index once more before it runs anything.
            self._native = NativeEngine(
                self._shapes, self._steps, [self._input], [self._output], packed.weights, self.threads, at_once
            )
        except PenniError as error:
            # The native side refuses without knowing the file.
            raise PenniError(f"'{name}' is damaged: {error}") from error
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise PenniError(f"'{name}' is damaged: its plan does not describe a network ({error})") from error
        for value, shape in ((self._input, self.input_shape), (self._output, self.output_shape)):
            if int(np.prod(self._shapes[value])) != int(np.prod(shape)):
                raise PenniError(f"'{name}' is damaged: its plan does not fit its shapes")

    def __call__(self, images: Array) -> Array:
        """The network's answers for a batch of any size: (N, …) float32 in, (N, …) float32 out."""
        batch = self._batch(images)
        if len(batch) == 0:
            return np.empty((0, *self.output_shape), dtype=np.float32)
        result = self._native.run([batch.reshape(len(batch), *self._shapes[self._input])])[0]
        return np.asarray(result.reshape(len(batch), *self.output_shape))

    def __repr__(self) -> str:
        shapes = f"{text(self.input_shape)} → {text(self.output_shape)}"
        return f"Engine({shapes}, {len(self._steps)} steps, {self.isa}, threads={self.threads})"

    def save(self, file: str | Path) -> Path:
        """Write the packed network to one file, whole or not at all."""
        return pack.write(file, bytes(self._packed.content))

    @property
    def isa(self) -> str:
        """The instruction set whose kernels run."""
        return str(self._native.isa)

    @property
    def images_at_once(self) -> int:
        """How many images of a batch go through the network together."""
        return self._native.at_once

    @property
    def size(self) -> int:
        """Bytes of the packed file."""
        return len(self._packed.content)

    @property
    def macs(self) -> int:
        """Multiply-accumulates per image."""
        return sum(report.macs for report in self._reports)

    @property
    def steps(self) -> Sequence[StepReport]:
        """What each step is and costs; `profile` measures them too."""
        return tuple(self._reports)

    def profile(self, images: Array | None = None, *, repeats: int = 50) -> list[StepReport]:
        """Each step with its median time per batch in microseconds and its share of all."""
        if images is None:
            images = np.random.default_rng(0).standard_normal((1, *self.input_shape), dtype=np.float32)
        medians = np.median(self.measure(images, repeats), axis=0)
        total = float(medians.sum()) or 1.0
        return [
            StepReport(**{**vars(report), "microseconds": float(time), "share": float(time) / total})
            for report, time in zip(self._reports, medians, strict=True)
        ]

    def measure(self, images: Array, repeats: int) -> Array:
        """Microseconds of every step (columns) in every repetition (rows)."""
        batch = self._batch(images)
        if len(batch) == 0:
            raise PenniError("an empty batch takes no time to measure")
        return np.asarray(self._native.time_steps([batch.reshape(len(batch), *self._shapes[self._input])], repeats))

    def _batch(self, images: Array) -> Array:
        array = np.asarray(images)
        if not np.issubdtype(array.dtype, np.floating):
            raise PenniError(
                f"the engine takes normalised floating-point images, not {array.dtype}: convert and normalise them "
                "as in training (`penni run --image` does)"
            )
        if array.shape[1:] != self.input_shape or array.ndim != len(self.input_shape) + 1:
            hint = "; add a batch axis in front: x[None]" if array.shape == self.input_shape else ""
            raise PenniError(
                f"this engine takes (batch, {', '.join(map(str, self.input_shape))}), "
                f"not ({', '.join(map(str, array.shape))}){hint}"
            )
        return np.ascontiguousarray(array, dtype=np.float32)

    def _report(self, step: Mapping[str, Any]) -> StepReport:
        return StepReport(
            op=str(step["kind"]),
            module=str(step["module"]),
            kernel=str(step["kernel"]),
            input_shape=self._shapes[int(step["inputs"][0])],
            output_shape=self._shapes[int(step["output"])],
            nonzeros=None if step["nonzeros"] is None else int(step["nonzeros"]),
            macs=int(step["macs"]),
        )


def load(file: str | Path, *, threads: int | None = None) -> Engine:
    """The engine of a `.penni` file. Its weights stay in the file, which is mapped; nothing but numpy is needed."""
    return Engine(pack.read(file), threads, str(file))


def usable_cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(threads: int | None) -> int:
    """The number of threads asked for, all usable cores by default."""
    if threads is None:
        return usable_cores()
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
        raise PenniError(f"threads={threads!r} is not a number of threads: use 1 to 1024")
    return threads


def text(shape: Shape) -> str:
    """A shape as people write it."""
    return "×".join(map(str, shape))


def _shape(value: Any) -> Shape:
    sizes = tuple(value)
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"{value!r} is not a shape")
    return sizes


def _number_at_once(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**24):
        raise ValueError(f"{value!r} is not a number of images")
    return value


def _object(value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value


def _native_step(step: Mapping[str, Any], places: Mapping[str, pack.Place]) -> dict[str, Any]:
    op, tensors = str(step["op"]), {}
    for role, name in dict(step["tensors"]).items():
        place = places[name]
        if place.dtype != tensor_type(op, str(role)):
            raise ValueError(f"{name} has elements of another type")
        tensors[str(role)] = {"offset": place.offset, "count": place.count}
    return {
        "op": op,
        "inputs": list(step["inputs"]),
        "output": step["output"],
        "attributes": dict(step["attributes"]),
        "tensors": tensors,
    }
