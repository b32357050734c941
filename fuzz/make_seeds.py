"""Valid plans for the fuzzer to spoil: one per kernel and shape of the test table, and one per other operator.

python fuzz/make_seeds.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

from kernel_cases import CASES, program_of

from penni.engine.layout import candidates, prepare_all
from penni.engine.program import Array, Program, Step
from penni.engine.runtime import collect, encode


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for program in [*(program_of(case) for case in CASES), *others()]:
        choices = candidates(program, program.steps[-1])
        if any(choice["kernel"] == "mix_first" for choice in choices):
            choices.append({"kernel": "mix_first", "tile": 16, "lines": 7})  # bands of few rows, many blocks
        for choice in choices:
            plan = [candidates(program, step)[0] for step in program.steps[:-1]] + [choice]
            steps, weights = collect(prepare_all(program, plan))
            words = encode(program.shapes, steps, [program.input], [program.output])
            content = np.int64(len(words)).tobytes() + words.tobytes() + weights.tobytes()
            (folder / f"{number:03}.seed").write_bytes(content)
            number += 1
    print(f"{number} seeds")


def others() -> list[Program]:
    """Every other operator, one after another."""
    planes, small, half = (6, 8, 8), (6, 4, 4), (3, 8, 8)
    ramp = np.arange(6, dtype=np.float32)
    pool = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
    resize = {"align_corners": False, "scale": (2.0, 2.0)}
    weights: dict[str, Array] = {
        "scale": ramp,
        "shift": ramp,
        "weight": np.ones((6, 1, 3, 3), np.float32),
        "bias": ramp,
    }
    steps = [
        (small, Step("max_pool", (0,), 1, {**pool, "dilation": (1, 1)})),
        (
            small,
            Step("max_pool", (0,), 1, {"kernel": (2, 2), "stride": (2, 2), "padding": (0,) * 4, "dilation": (1, 1)}),
        ),
        (small, Step("avg_pool", (0,), 1, {**pool, "count_include_pad": False, "divisor": 0})),
        ((6, 3, 5), Step("adaptive_avg_pool", (0,), 1)),
        (planes, Step("add", (0, 0), 1, {"activation": "relu"})),
        (planes, Step("mul", (0, 0), 1)),
        ((12, 8, 8), Step("concat", (0, 0), 1)),
        (half, Step("gather", (0,), 1, {}, {"index": "three"})),
        (half, Step("take", (0,), 1, {}, {"index": "many"})),
        (small, Step("slice", (0,), 1, {"start": (0, 0), "step": (2, 2)})),
        (
            (9, 9, 9),
            Step("pad", (0,), 1, {"padding": (1, 0, 1, 0), "channels": (1, 2), "mode": "constant", "value": 1.0}),
        ),
        ((384,), Step("reshape", (0,), 1)),
        ((6, 1, 8), Step("mean", (0,), 1, {"axes": (1,)})),
        (planes, Step("softmax", (0,), 1, {"axis": 0, "log": True})),
        (planes, Step("activation", (0,), 1, {"activation": "gelu"})),
        (planes, Step("affine", (0,), 1, {}, {"scale": "scale", "shift": "shift"})),
        (planes, Step("layer_norm", (0,), 1, {"epsilon": 1e-5}, {"weight": "scale", "bias": "shift"})),
        (planes, Step("group_norm", (0,), 1, {"groups": 2, "epsilon": 1e-5})),
        (small, Step("interpolate", (0,), 1, {"mode": "bilinear", **resize})),
        (
            (6, 17, 17),
            Step(
                "conv_transpose",
                (0,),
                1,
                {
                    "stride": (2, 2),
                    "padding": (0, 0, 0, 0),
                    "output_padding": (0, 0),
                    "dilation": (1, 1),
                    "groups": 6,
                },
                {"weight": "weight", "bias": "bias"},
            ),
        ),
    ]
    random = np.random.default_rng(0)
    weights["three"] = np.array([2, -1, 5], np.int32)
    weights["many"] = random.integers(0, 384, 192).astype(np.int32)
    programs = []
    for shape, step in steps:
        used = {name: weights[name] for name in step.tensors.values()}
        programs.append(Program((planes, shape), (step,), 0, 1, used).validate())
    return programs


if __name__ == "__main__":
    main()
