"""The engine's commands as a user types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import penni
from penni.cli import main
from penni.models import example_input


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penni", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return tmp_path / "a.png"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pruned `small` as training leaves it, with notes."""
    torch.manual_seed(0)
    model = penni.decompose(penni.build("small"), 3).eval()
    for layer in penni.basis.basis_layers(model).values():
        layer.coefficients.data.mul_(torch.rand_like(layer.coefficients) < 0.3)
    notes = {"data": "digits", "normalisation": {"mean": [0.3], "std": [0.4]}, "input": [1, 8, 8]}
    return str(penni.save(model, tmp_path_factory.mktemp("run") / "digits", notes=notes))


def test_pack_then_run_on_an_image(command, checkpoint: str, picture: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.penni"
    code, out, _ = command("pack", checkpoint, "-o", file, "--threads", 1)
    assert code == 0
    assert out.startswith(f"{file}: ")
    assert "planned for 1 thread with" in out
    code, out, _ = command("run", file, "--image", picture, "--top", 3)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 3
    shares = [float(line.split("%")[0]) for line in lines]
    assert shares == sorted(shares, reverse=True)

    # The same by hand: shorter side to 8, the middle, grey, normalised.
    image = Image.open(picture).convert("L").resize((12, 8), Image.Resampling.BILINEAR).crop((2, 0, 10, 8))
    pixels = (np.asarray(image, np.float32) / 255 - np.float32(0.3)) / np.float32(0.4)
    with torch.no_grad():
        expected = penni.load(checkpoint)(torch.from_numpy(pixels)[None, None]).softmax(1)[0]
    _, out, _ = command("run", file, "--image", picture, "--top", 10, "--json")
    (found,) = json.loads(out)
    assert len(found) == 10
    for entry in found:
        assert entry["probability"] == pytest.approx(float(expected[entry["class"]]), abs=1e-5)


def test_run_on_arrays_with_labels_and_output(command, small_file: str, tmp_path: Path) -> None:
    images = np.random.default_rng(1).standard_normal((3, 1, 8, 8), dtype=np.float32)
    np.save(tmp_path / "in.npy", images)
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"digit {n}" for n in range(10)) + "\n")
    arguments = ("--top", 2, "--labels", labels, "-o", tmp_path / "out.npy")
    code, out, _ = command("run", small_file, "--image", tmp_path / "in.npy", *arguments)
    assert code == 0
    answers = np.load(tmp_path / "out.npy")
    assert answers.shape == (3, 10)
    for number in range(3):
        assert f"item {number}" in out
    assert f"digit {answers[0].argmax()}" in out.splitlines()[1]
    np.save(tmp_path / "one.npy", images[0])
    assert command("run", small_file, "--image", tmp_path / "one.npy")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "FILE", "--image", "nothing.png"), "there is no image 'nothing.png'"),
        (("run", "FILE", "--image", "nothing.npy"), "there is no file 'nothing.npy'"),
        (("run", "nothing.penni", "--image", "a.png"), "there is no file 'nothing.penni'"),
        (("run", "FILE", "--image", "FILE"), "cannot be read as an image"),
        (("run", "FILE", "--image", "PICTURE", "--mean", "a"), "--mean is 'a'; write numbers"),
        (("run", "FILE", "--image", "PICTURE", "--mean", "1,2,3"), "needs 1 numbers, one per channel"),
        (("run", "FILE", "--image", "PICTURE", "--std", "0"), "a standard deviation is above zero"),
        (("run", "FILE", "--image", "PICTURE", "--labels", "FILE"), "cannot be read as a list"),
        (("run", "FILE", "--image", "PICTURE", "--threads", "0"), "threads=0"),
        (("bench", "FILE", "--against", "tflite"), "no engine 'tflite' to compare with"),
        (("bench", "FILE", "--threads", "1,a"), "--threads is '1,a'; write whole numbers"),
        (("bench", "FILE", "--model", "small", "--checkpoint", "x"), "name one network"),
        (("inspect", "nothing.penni"), "there is no file"),
        (("pack", "no-such-model", "-o", "m.penni"), "there is no model 'no-such-model'"),
        (("pack", "small", "-o", "m.penni", "--mean", "0.5"), "give both --mean and --std"),
        (("pack", "small", "-o", "m.penni", "--dtype", "int8"), "no storage type 'int8'"),
    ],
)
def test_mistakes_are_one_sentence_and_code_2(
    arguments: tuple[str, ...], words: str, command, small_file: str, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(picture.parent)
    given = [{"FILE": small_file, "PICTURE": str(picture)}.get(word, word) for word in arguments]
    code, out, error = command(*given)
    assert code == 2
    assert words in error
    assert error.startswith("penni: ")
    assert len(error.splitlines()) == 1
    assert out == ""
    assert not (picture.parent / "m.penni").exists()


def test_a_file_without_preprocessing_says_what_to_give(command, picture: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain.penni"
    code, out, _ = command("pack", "small", "-o", file)
    assert code == 0
    assert "give --mean and --std" in out
    code, _, error = command("run", file, "--image", picture)
    assert code == 2
    assert "give --mean and --std" in error
    assert command("run", file, "--image", picture, "--mean", "0.3", "--std", "0.4")[0] == 0


def test_inspect_shows_every_step(command, small_file: str) -> None:
    code, out, _ = command("inspect", small_file, "--repeats", 3, "--threads", 1)
    assert code == 0
    for word in ("layer1.0.conv1", "decomposed conv + relu", "two_stage", "linear", "GMAC/s", "threads=1", "of small"):
        assert word in out, word
    code, out, _ = command("inspect", small_file, "--repeats", 3, "--json", "--batch", 4)
    described = json.loads(out)
    assert described["batch"] == 4
    assert sum(step["share"] for step in described["steps"]) == pytest.approx(1)
    assert sum(step["macs"] for step in described["steps"]) == described["macs"]


def test_bench_compares_in_one_run(command, small_file: str) -> None:
    code, out, _ = command(
        "bench", small_file, "--against", "torch,onnxruntime", "--threads", 1, "--batch", "1,2", "--runs", 5, "--json"
    )
    assert code == 0
    described = json.loads(out)
    assert described["others_run"] == "the unpruned small"
    assert [(row["threads"], row["batch"]) for row in described["results"]] == [(1, 1), (1, 2)]
    for row in described["results"]:
        times = row["milliseconds"]
        assert set(times) == {"penni", "torch", "onnxruntime"}
        assert row["ratios"]["torch"] == pytest.approx(times["torch"] / times["penni"])


def test_bench_table_and_another_network(command, small_file: str, checkpoint: str) -> None:
    code, out, _ = command("bench", small_file, "--against", "torch", "--runs", 3, "--checkpoint", checkpoint)
    assert code == 0
    assert f"the others run '{checkpoint}'" in out


def test_info_says_which_kernels_run_and_why(command, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = command("info", "--json")
    about = json.loads(out)
    assert code == 0
    assert about["penni"] == penni.__version__
    assert about["kernels"]["runs"] == about["kernels"]["available"][0]
    assert about["installed"]["torch"] is not None
    monkeypatch.setenv("PENNI_ISA", "portable")
    code, out, _ = command("info")
    assert code == 0
    assert "kernels: portable, PENNI_ISA=portable asks for it" in out
    monkeypatch.setenv("PENNI_ISA", "quantum")
    code, _, error = command("info")
    assert code == 2
    assert "quantum" in error


def test_pack_json_and_half_precision(command, checkpoint: str, tmp_path: Path) -> None:
    sizes = {}
    for dtype in ("fp32", "bf16"):
        file = tmp_path / f"{dtype}.penni"
        code, out, _ = command("pack", checkpoint, "-o", file, "--dtype", dtype, "--tune", "--threads", 1, "--json")
        assert code == 0
        described = json.loads(out)
        assert described["bytes"] == file.stat().st_size
        assert described["tuned"]["threads"] == 1
        assert described["preprocessing"] == {"mean": [0.3], "std": [0.4], "crop": 1.0}
        sizes[dtype] = described["bytes"]
    assert sizes["bf16"] < sizes["fp32"]


def test_the_packed_network_equals_the_checkpoint(command, checkpoint: str, tmp_path: Path) -> None:
    command("pack", checkpoint, "-o", tmp_path / "m.penni")
    model = penni.load(checkpoint)
    images = example_input(model, batch=6, seed=5)
    with torch.no_grad():
        expected = model(images).numpy()
    answer = penni.engine.load(tmp_path / "m.penni", threads=2)(images.numpy())
    assert np.allclose(answer, expected, rtol=0, atol=1e-5)
