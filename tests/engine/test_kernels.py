"""Every kernel of every instruction set, on every shape of one table, against a convolution in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_cases import CASES, Case, images_of, program_of

from penni.engine import reference
from penni.engine.layout import candidates, prepare
from penni.engine.program import Array, Program
from penni.engine.runtime import NativeEngine, available, collect
from penni.errors import PenniError

SETS = available()
TOLERANCE = 1e-5


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENNI_ISA", request.param)
    return str(request.param)


def choices_for(program: Program) -> Iterator[dict[str, Any]]:
    """The planner's candidates, and the same kernels with tiles and blocks that it would not choose."""
    listed = candidates(program, program.steps[-1])
    yield from listed
    for kernel, sums in dict.fromkeys((str(choice["kernel"]), str(choice.get("sums", "alone"))) for choice in listed):
        for tile, lines in ((16, 3), (48, 1000), (112, 7)):
            yield {"kernel": kernel, "tile": tile, "lines": lines, "sums": sums}


def run(program: Program, choice: Mapping[str, Any], images: Array, threads: int) -> Array:
    steps = [prepare(program, step, choice if step.op == "conv" else {"kernel": step.op}) for step in program.steps]
    engine = NativeEngine.from_steps(program.shapes, steps, [program.input], [program.output], threads)
    return engine.run([images])[0]


def error(got: Array, wanted: Array) -> float:
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_gives_the_convolution(case: Case, instruction_set: str) -> None:
    program, images = program_of(case), images_of(case)
    wanted = reference.run(program, images)
    tried = 0
    for choice in choices_for(program):
        for threads in (1, 2):
            got = run(program, choice, images, threads)
            assert error(got, wanted) <= TOLERANCE, f"{choice} with {threads} threads"
            tried += 1
    assert tried >= 8


def test_channels_are_mixed_first_where_that_leaves_less_to_convolve() -> None:
    def kernels(case: Case) -> list[str]:
        program = program_of(case)
        return list(dict.fromkeys(str(choice["kernel"]) for choice in candidates(program, program.steps[-1])))

    narrowing = Case(60, (4, 4), 10)
    assert kernels(narrowing)[0] == "mix_first"
    assert kernels(Case(60, (4, 4), 58, density=0.9))[0] != "mix_first"
    for other in (
        Case(10, (4, 4), 60),
        replace(narrowing, stride=(2, 2)),
        replace(narrowing, groups=2),
        replace(narrowing, kernel=(1, 1), padding=(0, 0, 0, 0)),
    ):
        assert "mix_first" not in kernels(other)


SPOILT = {
    "lines": "a plane for a row outside its block",
    "blocks": "blocks that leave out or repeat rows",
    "row_start": "row starts (that go backwards|beyond its entries)",
    "index": "an index outside its input",
}


@pytest.mark.parametrize("role", SPOILT)
@pytest.mark.parametrize("place", [0, -1])
def test_planes_that_reach_outside_are_refused(role: str, place: int) -> None:
    program = program_of(Case(60, (4, 4), 10))
    step = prepare(program, program.steps[-1], {"kernel": "mix_first", "tile": 16, "lines": 20})
    spoilt = step.tensors[role].copy()
    spoilt[place] = 60000
    with pytest.raises(PenniError, match=SPOILT[role]):
        NativeEngine.from_steps(program.shapes, [replace(step, tensors={**step.tensors, role: spoilt})], [0], [1])


SLICES = {"slice": "a group of rows beyond its entries", "row": "blocks that leave out or repeat rows"}


@pytest.mark.parametrize("part", [*SLICES, "index"])
def test_slices_of_rows_that_reach_outside_are_refused(part: str) -> None:
    program = program_of(Case(8, (9, 9), 130))
    choice = {"kernel": "two_stage", "tile": 64, "lines": 20, "sums": "sliced"}
    step = prepare(program, program.steps[-1], choice)
    words, index = step.tensors["row_start"].reshape(-1, 6).copy(), step.tensors["index"].copy()
    assert (words[:, 1] > 0).any()
    spoilt = []
    if part == "slice":
        for number in (0, 1):  # where its entries begin, how many they are
            spoilt.append(words.copy())
            spoilt[-1][0, number] = 10**6
    elif part == "row":
        for row in (words[1, 2], 130, 64, 0xFFFFFFFF):  # of another slice, none, of another window, a gap
            spoilt.append(words.copy())
            spoilt[-1][0, 2] = row
    else:
        index[int(words[0, 0])] = 60000
    for tensors in [{"row_start": each.reshape(-1)} for each in spoilt] or [{"index": index}]:
        changed = replace(step, tensors={**step.tensors, **tensors})
        with pytest.raises(PenniError, match=SLICES.get(part, "an index outside its lines")):
            NativeEngine.from_steps(program.shapes, [changed], [0], [1])


def test_what_fills_up_a_slice_brings_nothing_in_that_its_rows_do_not_read() -> None:
    case = Case(12, (8, 8), 6, kernel=(1, 1), padding=(0, 0, 0, 0), bases=0, density=0.3)
    program = program_of(case)
    wanted = reference.run(program, images_of(case))
    met = 0
    for spoilt in range(case.inputs):
        images = images_of(case).copy()
        images[:, spoilt] = np.nan
        for choice in candidates(program, program.steps[-1]):
            if choice.get("sums") != "sliced":
                continue
            got = run(program, choice, images, 1)
            weight = program.dense(program.steps[-1], "weight")
            assert weight is not None
            reads = (weight[:, spoilt] != 0).reshape(6, -1).any(axis=1)
            met += int((~reads).sum())
            np.testing.assert_allclose(got[:, ~reads], wanted[:, ~reads], rtol=1e-4, atol=1e-4)
    assert met


@pytest.mark.parametrize("case", CASES[::3], ids=str)
@pytest.mark.parametrize("at_once", [1, 2, 5, 100])
@pytest.mark.parametrize("threads", [1, 3])
def test_however_many_images_go_together_each_gets_its_answer(case: Case, at_once: int, threads: int) -> None:
    program = program_of(case)
    images = np.random.default_rng(3).standard_normal((7, *program.shapes[0]), dtype=np.float32)
    wanted = reference.run(program, images)
    steps = [prepare(program, step, candidates(program, step)[0]) for step in program.steps]
    described, weights = collect(steps)
    engine = NativeEngine(program.shapes, described, [program.input], [program.output], weights, threads, at_once)
    assert error(engine.run([images])[0], wanted) <= TOLERANCE
    assert (engine.time_steps([images], 3) > 0).all()


@pytest.mark.parametrize("case", CASES[::4], ids=str)
@pytest.mark.parametrize("batch", range(1, 34, 4))
def test_every_batch_size_gives_each_image_its_answer(case: Case, batch: int) -> None:
    program = program_of(case)
    images = np.random.default_rng(2).standard_normal((batch, *program.shapes[0]), dtype=np.float32)
    wanted = reference.run(program, images)
    for choice in candidates(program, program.steps[-1]):
        assert error(run(program, choice, images, 2), wanted) <= TOLERANCE, choice


@pytest.mark.parametrize("case", CASES[::5], ids=str)
def test_the_same_plan_gives_the_same_bits(case: Case, instruction_set: str) -> None:
    program, images = program_of(case), images_of(case)
    choice = candidates(program, program.steps[-1])[0]
    first = run(program, choice, images, 1)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(run(program, choice, images, threads), first)


def test_what_is_not_a_number_is_not_hidden(instruction_set: str) -> None:
    program = program_of(Case(3, (8, 8), 4, density=1.0))
    images = np.zeros((1, 3, 8, 8), np.float32)
    images[0, 1, 4, 4] = np.nan
    for choice in candidates(program, program.steps[-1]):
        got = run(program, choice, images, 1)
        assert np.isnan(got[0, :, 4, 4]).all()
        assert np.isfinite(got[0, :, 0, 0]).all()
