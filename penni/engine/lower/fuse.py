"""Fewer steps that compute the same: normalisation into weights, residual and activation into their producer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from penni.engine.lower.trim import trim
from penni.engine.program import Array, Program, Sparse, Step

_WEIGHTED = ("conv", "conv_transpose", "linear")
_ACTIVATING = (*_WEIGHTED, "add", "mul", "affine", "layer_norm", "group_norm")


def simplify(program: Program) -> Program:
    """The program with everything fused that one step can do, and nothing that no answer needs."""
    graph = _Graph(program)
    for rewrite in (_drop_identity, _merge_pad, _fold_affine, _fuse_residual, _fuse_activation):
        graph.rewrite(rewrite)
    return trim(renumber(graph.program()))


class _Graph:
    """A program being rewritten: the steps by the value they write, in an order that stays valid."""

    def __init__(self, program: Program) -> None:
        self.original = program
        self.tensors = dict(program.tensors)
        self.steps: dict[int, Step] = {step.output: step for step in program.steps}
        self.output = program.output
        self.aliases: dict[int, int] = {}

    def program(self) -> Program:
        steps = tuple(self.steps.values())
        return replace(self.original, steps=steps, output=self.output, tensors=self.tensors)

    def rewrite(self, rule: Callable[[_Graph, Step], Step | None]) -> None:
        """Offer every step to `rule`; what it returns takes the place of the step (and writes the same value)."""
        for output, step in list(self.steps.items()):
            current = replace(step, inputs=tuple(self.aliases.get(v, v) for v in step.inputs))
            self.steps[output] = current
            changed = rule(self, current)
            if changed is not None:
                self.steps[output] = changed
        self.output = self.aliases.get(self.output, self.output)
        self._drop_unused()

    def shape(self, value: int) -> tuple[int, ...]:
        return self.original.shapes[value]

    def alone(self, value: int, ops: tuple[str, ...]) -> Step | None:
        """The step that writes `value`, if it is one of `ops` and this value has one reader only."""
        step = self.steps.get(value)
        if step is None or step.op not in ops or value == self.output:
            return None
        readers = sum(other.inputs.count(value) for other in self.steps.values())
        return step if readers == 1 else None

    def store(self, step: Step, role: str, array: Array) -> str:
        base = step.tensors.get(role) or (f"{step.module}.{role}" if step.module else role)
        name, number = base, 1
        while name in self.tensors:
            number += 1
            name = f"{base}#{number}"
        self.tensors[name] = np.ascontiguousarray(array, dtype=np.float32)
        return name

    def array(self, step: Step, role: str) -> Array | None:
        name = step.tensors.get(role)
        if name is None:
            return None
        tensor = self.tensors[name]
        return (tensor.dense() if isinstance(tensor, Sparse) else tensor).astype(np.float64)

    def _drop_unused(self) -> None:
        needed = {self.output}
        for output, step in reversed(list(self.steps.items())):
            if output in needed:
                needed.update(step.inputs)
            else:
                del self.steps[output]


def _drop_identity(graph: _Graph, step: Step) -> Step | None:
    same = step.op == "activation" and step.activation == "none"
    same = same or (step.op == "reshape" and graph.shape(step.output) == graph.shape(step.inputs[0]))
    if same:
        graph.aliases[step.output] = step.inputs[0]
    return None


def _merge_pad(graph: _Graph, step: Step) -> Step | None:
    if step.op != "conv":
        return None
    pad = graph.alone(step.inputs[0], ("pad",))
    if (
        pad is None
        or pad.attributes["mode"] != "constant"
        or pad.attributes["value"]
        or any(pad.attributes["channels"])
    ):
        return None
    padding = tuple(a + b for a, b in zip(step.attributes["padding"], pad.attributes["padding"], strict=True))
    del graph.steps[pad.output]
    return replace(step, inputs=(pad.inputs[0], *step.inputs[1:]), attributes={**step.attributes, "padding": padding})


def _fold_affine(graph: _Graph, step: Step) -> Step | None:
    if step.op != "affine":
        return None
    source = graph.alone(step.inputs[0], (*_WEIGHTED, "affine"))
    if source is None or source.activation != "none" or len(source.inputs) > 1:
        return None
    scale, shift = graph.array(step, "scale"), graph.array(step, "shift")
    assert scale is not None
    assert shift is not None
    names = dict(source.tensors)
    if source.op == "affine":
        before, moved = graph.array(source, "scale"), graph.array(source, "shift")
        assert before is not None
        assert moved is not None
        names["scale"] = graph.store(source, "scale", before * scale)
        names["shift"] = graph.store(source, "shift", moved * scale + shift)
    else:
        role = "coefficients" if "coefficients" in names else "weight"
        weight = graph.array(source, role)
        assert weight is not None
        if source.op == "conv_transpose":
            groups = source.attributes["groups"]
            grouped = weight.reshape(groups, -1, *weight.shape[1:])
            scaled = (grouped * scale.reshape(groups, 1, -1, 1, 1)).reshape(weight.shape)
        else:
            scaled = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
        names[role] = graph.store(source, role, scaled)
        bias = graph.array(source, "bias")
        names["bias"] = graph.store(source, "bias", shift if bias is None else bias * scale + shift)
    del graph.steps[source.output]
    attributes = {**source.attributes, "activation": step.activation}
    return replace(source, output=step.output, attributes=attributes, tensors=names)


def _fuse_residual(graph: _Graph, step: Step) -> Step | None:
    if step.op != "add" or graph.shape(step.inputs[0]) != graph.shape(step.inputs[1]):
        return None
    # Of two convolutions the later one: when it runs, the other's result is there.
    order = list(graph.steps)
    for value in sorted(set(step.inputs), key=lambda v: order.index(v) if v in graph.steps else -1, reverse=True):
        conv = graph.alone(value, ("conv",))
        if conv is None or conv.activation != "none" or len(conv.inputs) > 1:
            continue
        other = step.inputs[1] if step.inputs[0] == value else step.inputs[0]
        del graph.steps[value]
        attributes = {**conv.attributes, "activation": step.activation}
        return replace(conv, inputs=(conv.inputs[0], other), output=step.output, attributes=attributes)
    return None


def _fuse_activation(graph: _Graph, step: Step) -> Step | None:
    if step.op != "activation":
        return None
    source = graph.alone(step.inputs[0], _ACTIVATING)
    if source is None or source.activation != "none":
        return None
    del graph.steps[source.output]
    return replace(source, output=step.output, attributes={**source.attributes, **step.attributes})


def renumber(program: Program) -> Program:
    """The program with values counted in the order they are written, and only the tensors that steps use."""
    numbers = {program.input: 0}
    for step in program.steps:
        numbers[step.output] = len(numbers)
    steps = tuple(
        replace(step, inputs=tuple(numbers[v] for v in step.inputs), output=numbers[step.output])
        for step in program.steps
    )
    used = {name for step in steps for name in step.tensors.values()}
    return Program(
        shapes=tuple(program.shapes[value] for value in numbers),
        steps=steps,
        input=0,
        output=numbers[program.output],
        tensors={name: tensor for name, tensor in program.tensors.items() if name in used},
    )
