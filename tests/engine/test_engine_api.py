"""penni.compile and the engine as a program uses them: batches, threads, storage types, tuning, self-check, errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import penni
from penni import DiffersError, PenniError
from penni.engine import load
from penni.models import example_input

Make = Callable[[str, bool], nn.Module]


@pytest.fixture
def model(network: Make) -> nn.Module:
    return network("small", True)


def _answers(model: nn.Module, images: Tensor) -> np.ndarray:
    with torch.no_grad():
        return model(images).numpy()


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 16, 33])
def test_any_batch_size(batch: int, model: nn.Module) -> None:
    engine = penni.compile(model, example_input(model), threads=2)
    images = example_input(model, batch=batch, seed=batch)
    assert np.allclose(engine(images.numpy()), _answers(model, images), rtol=0, atol=1e-5)


def test_an_image_answers_the_same_in_any_batch_and_every_time(model: nn.Module) -> None:
    engine = penni.compile(model, example_input(model), threads=2)
    images = example_input(model, batch=9).numpy()
    whole = engine(images)
    assert np.array_equal(whole, engine(images))
    alone = np.concatenate([engine(images[i : i + 1]) for i in range(9)])
    assert np.allclose(whole, alone, rtol=0, atol=1e-6)


def test_threads_do_not_change_answers(model: nn.Module) -> None:
    images = example_input(model, batch=5).numpy()
    one, many = (penni.compile(model, example_input(model), threads=n)(images) for n in (1, 4))
    assert np.allclose(one, many, rtol=0, atol=1e-6)


def test_one_engine_serves_several_threads_at_once(network: Make) -> None:
    model = network("resnet20", True)
    engine = penni.compile(model, example_input(model), threads=2)
    batches = [example_input(model, batch=1 + number % 5, seed=number).numpy() for number in range(40)]
    expected = [engine(batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        for got, wanted in zip(pool.map(engine, batches), expected, strict=True):
            assert np.array_equal(got, wanted)


def test_an_empty_batch_gives_an_empty_answer(model: nn.Module) -> None:
    engine = penni.compile(model, example_input(model))
    assert engine(np.empty((0, 1, 8, 8), np.float32)).shape == (0, 10)


def test_other_layouts_and_float64_are_taken(model: nn.Module) -> None:
    engine = penni.compile(model, example_input(model), threads=1)
    images = example_input(model, batch=2).numpy()
    assert np.array_equal(engine(images.astype(np.float64)), engine(images))
    turned = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert np.array_equal(engine(turned), engine(images))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((1, 8, 8), np.float32), r"takes \(batch, 1, 8, 8\), not \(1, 8, 8\); add a batch axis"),
        (np.zeros((1, 3, 8, 8), np.float32), r"takes \(batch, 1, 8, 8\), not \(1, 3, 8, 8\)"),
        (np.zeros((1, 1, 8, 8), np.uint8), "normalised floating-point images, not uint8"),
    ],
)
def test_wrong_inputs_are_refused(images: np.ndarray, words: str, small_file: str) -> None:
    with pytest.raises(PenniError, match=words):
        load(small_file)(images)


@pytest.mark.parametrize("threads", [0, -1, 2000, True, 1.5])
def test_impossible_threads_are_refused(threads: int, model: nn.Module, small_file: str) -> None:
    with pytest.raises(PenniError, match="threads="):
        penni.compile(model, example_input(model), threads=threads)
    with pytest.raises(PenniError, match="threads="):
        load(small_file, threads=threads)


@pytest.mark.parametrize("bits", ["fp16", "bf16"])
def test_half_precision_storage(bits: str, network: Make, tmp_path) -> None:
    model = network("resnet20", True)
    images = example_input(model, batch=4)
    full = penni.compile(model, example_input(model), threads=1)
    half = penni.compile(model, example_input(model), threads=1, dtype=bits)
    weights = sum(step.nonzeros or 0 for step in full.steps)
    assert half.size < full.size - weights
    difference = np.abs(half(images.numpy()) - full(images.numpy())).max() / np.abs(full(images.numpy())).max()
    assert 0 < difference < (0.003 if bits == "fp16" else 0.03)
    again = load(half.save(tmp_path / "half.penni"), threads=1)
    assert np.array_equal(again(images.numpy()), half(images.numpy()))
    assert again.dtype == bits


def test_weights_too_large_for_fp16_are_said(model: nn.Module) -> None:
    large = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())
    large[0].weight.data[0, 0, 0, 0] = 1e6
    with pytest.raises(PenniError, match=r"too large for fp16.*bf16"):
        penni.compile(large, torch.randn(1, 1, 8, 8), dtype="fp16")
    with pytest.raises(PenniError, match="no storage type 'int8'"):
        penni.compile(model, example_input(model), dtype="int8")


def test_tuning_measures_and_is_remembered(network: Make, tmp_path) -> None:
    model = network("resnet20", True)
    images = example_input(model, batch=2)
    tuned = penni.compile(model, example_input(model), threads=1, tune=True)
    assert np.allclose(tuned(images.numpy()), _answers(model, images), rtol=0, atol=1e-4)
    again = load(tuned.save(tmp_path / "tuned.penni"), threads=1)
    assert again.tuned == tuned.tuned
    assert tuned.tuned["threads"] == 1
    assert [step.kernel for step in again.steps] == [step.kernel for step in tuned.steps]


def test_every_candidate_gives_the_same_answer(network: Make) -> None:
    from penni.engine.build import build
    from penni.engine.layout import candidates
    from penni.engine.lower import lower

    model = network("resnet20", True)
    images = example_input(model, batch=2)
    program = lower(model, images)
    lists = [candidates(program, step, 1) for step in program.steps]
    wanted = _answers(model, images)
    most = max(map(len, lists))
    assert most > 1
    for number in range(most):
        plan = [choices[min(number, len(choices) - 1)] for choices in lists]
        answer = build(program, plan, 1)(images.numpy())
        assert np.allclose(answer, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max()), number


def test_profile_covers_every_step(small_file: str) -> None:
    engine = load(small_file, threads=1)
    steps = engine.profile(repeats=3)
    assert [step.op for step in steps] == [step.op for step in engine.steps]
    assert all(step.microseconds > 0 for step in steps)
    assert sum(step.share for step in steps) == pytest.approx(1)
    assert "Engine(1×8×8 → 10" in repr(engine)


def test_a_wrong_engine_is_never_returned(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from penni.engine import compiling

    honest = compiling.lower

    def crooked(network: nn.Module, images: Tensor):
        program = honest(network, images)
        step = next(step for step in program.steps if step.op == "conv")
        program.tensors[step.tensors["bias"]][0] += 0.05
        return program

    monkeypatch.setattr(compiling, "lower", crooked)
    with pytest.raises(DiffersError, match="differ from the network's by"):
        penni.compile(model, example_input(model))


def test_compile_leaves_the_model_as_it_was(model: nn.Module) -> None:
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.train()
    penni.compile(model, example_input(model))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (np.zeros((1, 1, 8, 8), np.int64), "floating-point images"),
        (np.zeros((0, 1, 8, 8), np.float32), "batch of floating-point images"),
        (np.full((1, 1, 8, 8), np.nan, np.float32), "not finite"),
        (np.zeros((1, 3, 8, 8), np.float32), "cannot export this network"),
    ],
)
def test_impossible_examples_are_refused(example: np.ndarray, words: str, model: nn.Module) -> None:
    with pytest.raises(PenniError, match=words):
        penni.compile(model, example)


def test_networks_with_several_outputs_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + 1, x * 2

    with pytest.raises(PenniError, match="one output tensor; this one has 2"):
        penni.compile(Two(), torch.randn(1, 1, 8, 8))
