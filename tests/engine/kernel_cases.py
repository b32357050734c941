"""The one table of convolution shapes that the kernel tests run through, and programs made from its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penni.engine.program import Array, Program, Sparse, Step


@dataclass(frozen=True)
class Case:
    """A convolution and the batch it runs on. `bases` 0: an ordinary convolution."""

    inputs: int
    size: tuple[int, int]
    outputs: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bases: int = 5
    density: float = 0.2
    activation: str = "relu"
    residual: bool = False
    batch: int = 1

    def __str__(self) -> str:
        text = f"{self.inputs}-{self.outputs}ch {self.size[0]}x{self.size[1]} k{self.kernel[0]}x{self.kernel[1]}"
        plain = Case(self.inputs, self.size, self.outputs, self.kernel)
        for name in ("stride", "padding", "dilation", "groups", "bases", "density", "activation", "residual", "batch"):
            if getattr(self, name) != getattr(plain, name):
                text += f" {name}{getattr(self, name)}"
        return text.replace(", ", ",")


_NONE = (0, 0, 0, 0)
_DECOMPOSED = [
    Case(3, (32, 32), 17),
    Case(7, (16, 16), 24, residual=True),
    Case(5, (8, 8), 70, activation="none", residual=True, batch=2),
    Case(6, (7, 9), 5, stride=(2, 2)),
    Case(6, (13, 6), 9, stride=(2, 1), batch=3),
    Case(4, (1, 1), 6, batch=33),
    Case(4, (2, 2), 50, batch=5),
    Case(9, (4, 4), 31, batch=7, activation="silu", residual=True),
    Case(4, (5, 3), 3, padding=(2, 0, 1, 3)),
    Case(4, (11, 11), 3, dilation=(2, 3), padding=(2, 2, 3, 3)),
    Case(3, (3, 130), 4, activation="hardswish"),
    Case(3, (70, 2), 4, padding=_NONE, kernel=(3, 1), bases=2),
    Case(3, (29, 31), 10, kernel=(7, 7), stride=(2, 2), padding=(3, 3, 3, 3), bases=14),
    Case(2, (12, 12), 3, kernel=(11, 11), stride=(4, 4), padding=(2, 2, 2, 2), bases=64),
    Case(8, (14, 14), 12, groups=2, activation="relu6"),
    Case(6, (6, 6), 9, groups=3, density=0.0),
    Case(40, (10, 10), 30, bases=9, density=0.5),
    Case(3, (5, 5), 4, kernel=(5, 5), padding=_NONE, bases=3),
    Case(300, (6, 6), 3, density=0.02),
    Case(30, (4, 4), 9, density=0.6),
    Case(40, (4, 4), 17, activation="silu", residual=True, batch=3),
    Case(64, (8, 8), 21, density=0.5, residual=True, batch=2),
    Case(400, (8, 8), 5, density=0.1),
    Case(20, (2, 2), 7, batch=33),
    Case(23, (7, 9), 6, activation="relu6", batch=2),
    Case(30, (27, 13), 5, dilation=(2, 3), padding=(2, 1, 4, 3), residual=True),
    Case(12, (16, 40), 3, kernel=(2, 5), padding=(4, 5, 6, 7)),
    Case(8, (6, 6), 3, padding=(9, 12, 7, 15), activation="gelu"),
    Case(33, (8, 8), 12, density=0.02),
    # Rows that fill vectors or divide them, by any number of basis kernels, and neighbours that lie to one side.
    Case(5, (20, 64), 9, bases=6, density=0.6, residual=True),
    Case(6, (11, 32), 8, bases=4, density=0.4),
    Case(7, (5, 8), 6, bases=3, batch=2),
    Case(6, (6, 24), 5, bases=7, density=0.7),
    Case(4, (9, 16), 7, padding=(0, 2, 2, 0)),
    Case(4, (9, 16), 7, padding=(2, 0, 0, 2)),
    Case(3, (12, 48), 5, dilation=(2, 1), padding=(2, 2, 1, 1)),
    Case(12, (6, 16), 5, bases=1, density=0.5),
]
_ORDINARY = [
    Case(3, (17, 19), 26, density=1.0),
    Case(16, (8, 8), 49, density=1.0, residual=True, batch=2),
    Case(33, (4, 4), 100, density=1.0, batch=9, activation="leaky_relu"),
    Case(20, (2, 2), 65, density=1.0),
    Case(64, (1, 1), 130, kernel=(1, 1), padding=_NONE, density=1.0, batch=33),
    Case(64, (14, 14), 30, kernel=(1, 1), padding=_NONE, residual=True),
    Case(10, (15, 15), 20, kernel=(1, 1), stride=(2, 2), padding=_NONE, density=0.6),
    Case(12, (9, 9), 8, kernel=(1, 1), stride=(3, 3), padding=(1, 1, 1, 1), density=1.0),
    Case(3, (40, 40), 16, kernel=(7, 7), stride=(2, 2), padding=(3, 3, 3, 3), density=1.0),
    Case(24, (10, 10), 24, groups=4, density=1.0, activation="gelu"),
    Case(8, (12, 12), 8, groups=8, density=1.0, activation="relu6"),
    Case(8, (9, 7), 16, groups=8, density=1.0, stride=(2, 2), residual=True),
    Case(5, (6, 6), 5, groups=5, kernel=(5, 5), padding=(2, 2, 2, 2), density=1.0, activation="silu", batch=3),
    Case(5, (9, 32), 5, groups=5, density=1.0, batch=2),
    Case(6, (5, 64), 6, groups=6, density=1.0, residual=True, activation="relu6"),
    Case(4, (6, 16), 8, groups=4, density=1.0, padding=(1, 1, 2, 0)),
    Case(6, (8, 8), 6, groups=6, density=1.0, activation="hardswish"),
    Case(3, (7, 24), 3, groups=3, density=1.0),
    Case(5, (3, 100), 5, groups=5, dilation=(1, 2), padding=(1, 1, 2, 2), density=1.0),
    Case(256, (3, 3), 25, density=0.1),
    Case(6, (8, 8), 6, kernel=(1, 7), padding=(0, 0, 3, 3), density=0.5),
    Case(6, (8, 8), 6, kernel=(2, 2), padding=(0, 1, 0, 1), density=0.9),
]

CASES = [*_DECOMPOSED, *(replace(case, bases=0) for case in _ORDINARY)]


def program_of(case: Case) -> Program:
    """The convolution as a program of one step."""
    random = np.random.default_rng([case.inputs, *case.size, case.outputs])
    size = [
        (case.size[axis] + case.padding[2 * axis] + case.padding[2 * axis + 1] - reach) // case.stride[axis] + 1
        for axis, reach in enumerate(d * (k - 1) + 1 for d, k in zip(case.dilation, case.kernel, strict=True))
    ]
    output = (case.outputs, size[0], size[1])
    tensors: dict[str, Array | Sparse] = {"bias": _noise(random, case.outputs)}
    roles = {"bias": "bias"}
    inputs = case.inputs // case.groups
    if case.bases:
        tensors["basis"] = _noise(random, case.bases, *case.kernel)
        tensors["coefficients"] = Sparse.of(_thin(random, case.density, case.outputs, inputs, case.bases))
        roles |= {"basis": "basis", "coefficients": "coefficients"}
    else:
        tensors["weight"] = _thin(random, case.density, case.outputs, inputs, *case.kernel)
        roles["weight"] = "weight"
    attributes = {
        "stride": case.stride,
        "padding": case.padding,
        "dilation": case.dilation,
        "groups": case.groups,
        "activation": case.activation,
        "slope": 0.1,
    }
    shapes = [(case.inputs, *case.size), output, output] if case.residual else [(case.inputs, *case.size), output]
    steps = []
    if case.residual:
        index = random.integers(0, case.inputs * case.size[0] * case.size[1], int(np.prod(output))).astype(np.int32)
        tensors["index"] = index
        steps.append(Step("take", (0,), 1, {}, {"index": "index"}, "residual"))
    last = len(shapes) - 1
    steps.append(Step("conv", (0, 1) if case.residual else (0,), last, attributes, roles, "layer"))
    return Program(tuple(shapes), tuple(steps), 0, last, tensors).validate()


def images_of(case: Case) -> Array:
    """A batch for it."""
    return np.random.default_rng(1).standard_normal((case.batch, case.inputs, *case.size), dtype=np.float32)


def _noise(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape, dtype=np.float32)


def _thin(random: np.random.Generator, density: float, *shape: int) -> Array:
    return np.asarray(_noise(random, *shape) * (random.random(shape) < density), np.float32)
