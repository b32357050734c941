"""From a program and a plan to an engine: costs, kernel-ready tensors, one piece of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penni._version import __version__
from penni.engine import pack
from penni.engine.costs import cost
from penni.engine.engine import Engine
from penni.engine.layout import ALONE, SHARED, SLICED, prepare
from penni.engine.narrow import DTYPES, holds, rounded
from penni.engine.plan import Choice
from penni.engine.program import Program, Sparse, Tensor
from penni.engine.runtime import tensor_type
from penni.errors import PenniError, nearest

# A tensor this small costs nothing.
_NARROW_FROM_ELEMENTS = 64
_NARROWED_ROLES = ("weight", "coefficients")


def build(
    program: Program,
    plan: Sequence[Choice],
    threads: int,
    *,
    dtype: str = "fp32",
    extras: Mapping[str, Any] | None = None,
) -> Engine:
    """The engine that runs `program` by `plan`. `extras` (plain JSON) are kept with it."""
    check_dtype(dtype)
    narrowed = narrow_weights(program, dtype)
    tensors: dict[str, Any] = {}
    storage: dict[str, str] = {}
    steps = []
    for index, (step, choice) in enumerate(zip(narrowed.steps, plan, strict=True)):
        native = prepare(narrowed, step, choice)
        names = {}
        for role, given in native.tensors.items():
            names[role] = f"{index}.{role}"
            array = np.ascontiguousarray(given, tensor_type(native.op, role)).reshape(-1)
            tensors[names[role]] = array
            # Kernel-ready weights are mostly the rounded ones in another order, so nothing more is lost.
            if dtype != "fp32" and array.size >= _NARROW_FROM_ELEMENTS and holds(array, dtype):
                storage[names[role]] = dtype
        costs = cost(narrowed, step)
        steps.append(
            {
                "op": native.op,
                "inputs": list(native.inputs),
                "output": native.output,
                "attributes": dict(native.attributes),
                "tensors": names,
                "kind": kind(narrowed, index),
                "module": step.module,
                "kernel": kernel_name(choice),
                "nonzeros": costs.nonzeros,
                "macs": costs.macs,
            }
        )
    network = {
        "made_by": f"penni {__version__}",
        "input": program.input,
        "output": program.output,
        "input_shape": list(program.shapes[program.input]),
        "output_shape": list(program.shapes[program.output]),
        "values": [list(shape) if len(shape) == 3 else [shape[0], 1, 1] for shape in program.shapes],
        "steps": steps,
        "dtype": dtype,
        "preprocessing": None,
        "origin": None,
        "tuned": None,
        "at_once": None,
        **(extras or {}),
    }
    content = pack.encode(network, tensors, storage)
    memory = pack.aligned(len(content))
    memory[:] = np.frombuffer(content, dtype=np.uint8)
    return Engine(pack.decode(memory.data, "the packed network"), threads, "the packed network")


def kernel_name(choice: Choice) -> str:
    """What the kernel is called in reports."""
    return str(choice["kernel"]) + {SHARED: " ×4", SLICED: " sliced"}.get(str(choice.get("sums", ALONE)), "")


def check_dtype(dtype: str) -> None:
    """Refuse a storage type that there is not."""
    if dtype not in DTYPES:
        raise PenniError(f"there is no storage type '{dtype}': {nearest(dtype, DTYPES)}")


def narrow_weights(program: Program, dtype: str) -> Program:
    """The program with the weights that `dtype` will hold."""
    if dtype == "fp32":
        return program
    tensors: dict[str, Tensor] = dict(program.tensors)
    for step in program.steps:
        for role in _NARROWED_ROLES:
            name = step.tensors.get(role)
            if name is None or step.op not in ("conv", "linear"):
                continue
            tensor = program.tensors[name]
            if isinstance(tensor, Sparse):
                tensors[name] = replace(tensor, values=rounded(tensor.values, dtype))
            else:
                tensors[name] = rounded(tensor, dtype)
    return replace(program, tensors=tensors)


def kind(program: Program, index: int) -> str:
    """What a step is, in a word or two, for people."""
    step = program.steps[index]
    parts = [step.op]
    if step.op == "conv":
        if "coefficients" in step.tensors:
            parts = ["decomposed conv"]
        elif step.attributes["groups"] == program.shapes[step.inputs[0]][0] > 1:
            parts = ["depthwise conv"]
        if len(step.inputs) == 2:
            parts.append("add")
    if step.activation != "none" and step.op != "activation":
        parts.append(step.activation)
    return " + ".join(parts) if step.op != "activation" else step.activation
