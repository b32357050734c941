"""Weights without what nothing reads: basis kernels that no coefficient uses, and zeros."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penni.engine.program import Program, Sparse, Step, Tensor

# Below this share of non-zeros their positions cost less than the zeros do.
_SPARSE_BELOW = 0.75


def trim(program: Program) -> Program:
    """The same program, its mostly-zero weights as non-zeros, each layer with only the basis kernels it uses."""
    tensors: dict[str, Tensor] = dict(program.tensors)
    readers: dict[str, int] = {}
    for step in program.steps:
        for name in step.tensors.values():
            readers[name] = readers.get(name, 0) + 1
    for step in program.steps:
        # A module used twice shares its tensors; its second use finds them trimmed.
        if "coefficients" in step.tensors and all(readers[step.tensors[r]] == 1 for r in ("basis", "coefficients")):
            _trim_basis(program, step, tensors)
        for role in ("weight", "coefficients"):
            if role not in step.tensors or step.op not in ("conv", "linear"):
                continue
            name = step.tensors[role]
            tensor = tensors[name]
            if isinstance(tensor, np.ndarray):
                density = np.count_nonzero(tensor) / max(1, tensor.size)
                if density < _SPARSE_BELOW:
                    tensors[name] = Sparse.of(tensor)
    return replace(program, tensors=tensors)


def _trim_basis(program: Program, step: Step, tensors: dict[str, Tensor]) -> None:
    basis, coefficients = program.dense(step, "basis"), program.dense(step, "coefficients")
    assert basis is not None
    assert coefficients is not None
    used = np.flatnonzero((coefficients != 0).any(axis=(0, 1)))
    if len(used) == 0:
        used = np.array([0])
    if len(used) < len(basis):
        tensors[step.tensors["basis"]] = np.ascontiguousarray(basis[used])
        tensors[step.tensors["coefficients"]] = np.ascontiguousarray(coefficients[:, :, used])
