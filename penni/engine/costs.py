"""What a step costs: its non-zero weights and multiply-accumulates, by the definition of `penni.measure.count`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penni.engine.program import Program, Sparse, Step, Tensor


@dataclass(frozen=True)
class Cost:
    """Non-zero weights (None where a step has none) and MACs per image."""

    nonzeros: int | None
    macs: int


def cost(program: Program, step: Step) -> Cost:
    """The cost of one step."""
    plane = int(np.prod(program.shapes[step.output][1:], dtype=np.int64))
    if step.op == "conv" and "coefficients" in step.tensors:
        coefficients, basis = program.dense(step, "coefficients"), program.tensors[step.tensors["basis"]]
        assert coefficients is not None
        used = coefficients != 0
        nonzeros = int(used.sum())
        # Groups read different input channels, so each group has its own (channel, basis) pairs.
        pairs = int(used.reshape(step.attributes["groups"], -1, *used.shape[1:]).any(axis=1).sum())
        bases = int(used.any(axis=(0, 1)).sum())
        assert isinstance(basis, np.ndarray)
        positions = int(np.prod(basis.shape[1:]))
        return Cost(nonzeros + bases * positions, (pairs * positions + nonzeros) * plane)
    if step.op not in ("conv", "linear", "conv_transpose"):
        return Cost(None, 0)
    nonzeros = count(program.tensors[step.tensors["weight"]])
    if step.op == "conv_transpose":
        plane = int(np.prod(program.shapes[step.inputs[0]][1:], dtype=np.int64))
    return Cost(nonzeros, nonzeros * plane)


def count(tensor: Tensor) -> int:
    """The non-zeros of a tensor."""
    return int(np.count_nonzero(tensor.values if isinstance(tensor, Sparse) else tensor))
