"""The native engine for Python: plans handed over as flat numbers, arrays in, arrays out. Needs numpy alone."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penni.engine import _native
from penni.engine.layout import NativeStep
from penni.engine.layout_simple import planes
from penni.engine.pack import ALIGNMENT, aligned
from penni.engine.program import Array, Shape
from penni.errors import PenniError

_MAGIC = 0x696E6E6570
_FORMAT = 1

# The native engine's numbers of the operators, and the order of their attributes and tensors (csrc/plan.h).
_OPERATORS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "conv": (
        0,
        ("kernel", "stride", "padding", "dilation", "activation", "slope", "combine", "basis_lines", "bases", "tile"),
        ("bias", "basis", "lines", "blocks", "row_start", "index", "weight"),
    ),
    "pool": (1, ("kernel", "stride", "padding", "dilation", "maximum", "count_padding", "divisor"), ()),
    "adaptive_pool": (2, ("maximum",), ()),
    "binary": (3, ("product", "activation", "slope"), ()),
    "concat": (4, (), ()),
    "take_plane": (5, ("before", "fill"), ("index",)),
    "gather": (6, (), ("index",)),
    "take": (7, (), ("index",)),
    "reshape": (8, (), ()),
    "activation": (9, ("activation", "slope"), ()),
    "affine": (10, ("activation", "slope"), ("scale", "shift")),
    "layer_norm": (11, ("groups", "activation", "slope", "epsilon"), ("weight", "bias")),
    "group_norm": (12, ("groups", "activation", "slope", "epsilon"), ("weight", "bias")),
    "softmax": (13, ("axis", "log"), ()),
    "bilinear": (14, (), ("above", "below", "down", "before", "after", "right")),
    "mean": (15, ("over",), ()),
    "conv_transpose": (
        16,
        ("kernel", "stride", "padding", "dilation", "groups", "activation", "slope"),
        ("weight", "bias"),
    ),
}

_REALS = {"slope", "fill", "epsilon"}

# Every role has one type, whatever the step.
_TYPES: dict[str, Any] = {
    "lines": np.uint32,
    "blocks": np.uint32,
    "row_start": np.uint32,
    "above": np.int32,
    "below": np.int32,
    "before": np.int32,
    "after": np.int32,
}


def tensor_type(op: str, role: str) -> np.dtype[Any]:
    """The element type that the native engine expects in a role of a step."""
    if role == "index":
        return np.dtype(np.uint16) if op == "conv" else np.dtype(np.int32)
    kind: np.dtype[Any] = np.dtype(_TYPES.get(role, np.float32))
    return kind


def available() -> list[str]:
    """The kernel sets that this machine runs, fastest first."""
    return list(_native.available())


def chosen() -> str:
    """The kernel set a new engine uses; PENNI_ISA overrides the fastest."""
    try:
        return str(_native.chosen())
    except ValueError as error:
        raise PenniError(str(error)) from None


def information() -> dict[str, Any]:
    """Which kernels run here, and why."""
    sets, isa = available(), chosen()
    wanted = os.environ.get("PENNI_ISA")
    why = f"PENNI_ISA is '{wanted}'" if wanted else "the fastest of those this machine runs"
    return {"isa": isa, "why": why, "available": sets, "processors": os.cpu_count()}


class NativeEngine:
    """A network ready to run.

    `steps` are those of `layout.prepare`, with every tensor replaced by its `offset` in bytes and `count` of elements
    in `weights`: what a packed file holds. `from_steps` takes arrays instead. A batch goes through the network
    `at_once` images at a time; as many as a cache holds, if not given.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        steps: Sequence[Mapping[str, Any]],
        inputs: Sequence[int],
        outputs: Sequence[int],
        weights: Array,
        threads: int = 1,
        at_once: int | None = None,
    ) -> None:
        self.threads = threads
        try:
            self._outputs = [tuple(shapes[value]) for value in outputs]
            self._inputs = [tuple(shapes[value]) for value in inputs]
            words = encode(shapes, steps, inputs, outputs)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, struct.error) as error:
            raise PenniError(f"the plan is not one of this version of penni: {error!r}") from None
        try:
            self._native = _native.Engine(words, weights, threads)
        except (ValueError, MemoryError) as error:
            raise PenniError(f"the engine refuses this plan: {error}") from None
        self.at_once = at_once or int(self._native.images_for_cache)

    @classmethod
    def from_steps(
        cls,
        shapes: Sequence[Shape],
        steps: Iterable[NativeStep],
        inputs: Sequence[int],
        outputs: Sequence[int],
        threads: int = 1,
    ) -> NativeEngine:
        """An engine over arrays in memory."""
        described, weights = collect(steps)
        return cls(shapes, described, inputs, outputs, weights, threads)

    @property
    def isa(self) -> str:
        """The kernel set that runs."""
        return str(self._native.isa)

    def arena_bytes(self, batch: int = 1) -> int:
        """What activations and scratch take for a batch of this size."""
        return int(self._native.arena_bytes(batch, self.at_once))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs for inputs of shape (n, …)."""
        return self._run(arrays, False)[0]

    def time_steps(self, arrays: Sequence[Array], repeats: int = 20) -> Array:
        """Microseconds of every step in every one of `repeats` runs, (repeats, steps)."""
        return np.asarray([self._run(arrays, True)[1] for _ in range(repeats)])

    def _run(self, arrays: Sequence[Array], timed: bool) -> tuple[list[Array], list[float]]:
        batch = len(arrays[0])
        ready = []
        for array, shape in zip(arrays, self._inputs, strict=True):
            if tuple(array.shape) != (batch, *shape):
                raise PenniError(f"the network takes {(batch, *shape)}, not {tuple(array.shape)}")
            ready.append(np.ascontiguousarray(array, np.float32))
        outputs = [np.empty((batch, *shape), np.float32) for shape in self._outputs]
        if batch == 0:
            return outputs, []
        times = self._native.run(ready, outputs, batch, self.at_once, timed)
        return outputs, times


def collect(steps: Iterable[NativeStep]) -> tuple[list[dict[str, Any]], Array]:
    """Steps whose tensors are places in one block of bytes, and that block."""
    described: list[dict[str, Any]] = []
    parts: list[Array] = []
    size = 0
    for step in steps:
        places = {}
        for role, array in step.tensors.items():
            flat = np.ascontiguousarray(array, tensor_type(step.op, role)).reshape(-1)
            padding = -size % ALIGNMENT
            parts += [np.zeros(padding, np.uint8), flat.view(np.uint8)]
            places[role] = {"offset": size + padding, "count": int(flat.size)}
            size += padding + flat.nbytes
        described.append(
            {
                "op": step.op,
                "inputs": list(step.inputs),
                "output": step.output,
                "attributes": dict(step.attributes),
                "tensors": places,
            }
        )
    block = aligned(size)
    if parts:
        np.concatenate(parts, out=block)
    return described, block


def encode(
    shapes: Sequence[Shape], steps: Sequence[Mapping[str, Any]], inputs: Sequence[int], outputs: Sequence[int]
) -> Array:
    """A plan as the flat numbers that the native engine decodes."""
    words: list[int] = [_MAGIC, _FORMAT, len(shapes)]
    for shape in shapes:
        words += planes(shape)
    words += [len(inputs), *inputs, len(outputs), *outputs, len(steps)]
    for step in steps:
        number, attributes, tensors = _OPERATORS[step["op"]]
        words += [number, len(step["inputs"]), *step["inputs"], step["output"]]
        values = [value for name in attributes for value in _values(name, step["attributes"][name])]
        words += [len(values), *values, len(tensors)]
        for role in tensors:
            words += [step["tensors"][role]["offset"], step["tensors"][role]["count"]]
    # Thousands of them at each loading: looked at one by one only if there is something to find.
    if not all(type(word) is int for word in words):
        words = [_whole(word) for word in words]
    return np.asarray(words, np.int64)


def _values(name: str, value: Any) -> list[int]:
    if name in _REALS:
        return list(struct.unpack("<q", struct.pack("<d", value)))
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)
