"""A model from the user's own file: trained, compressed, saved and loaded from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import penni
from penni.models import input_shape

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes=10, channels=1):
        super().__init__()
        self.a = nn.Conv2d(channels, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        x = torch.relu(self.b(torch.relu(self.a(x))))
        return self.head(x.mean((2, 3)))

def make(classes, channels):
    return Net(classes, channels)

def local(classes, channels):
    class Inner(Net):
        pass
    return Inner(classes, channels)

def broken():
    raise RuntimeError("boom")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["make", "local"])
def test_trains_compresses_and_loads_from_another_folder(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, penni_command: Callable[..., tuple[int, str, str]]
) -> None:
    train = ["train", "--model", f"net.py:{name}", "--data", "digits", "--epochs", "1", "--out", "base"]
    assert penni_command(*train)[0] == 0
    compress = ["compress", "--model", "base", "--data", "digits", "--recipe", "digits", "--out", "small"]
    assert penni_command(*compress, "--set", "retrain.epochs=1", "--set", "finetune.epochs=1")[0] == 0
    images = torch.zeros(1, 1, 8, 8)
    expected = penni.load("small")(images)
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = penni.load("../small")
    torch.testing.assert_close(again(images), expected)
    assert input_shape(again) == (1, 8, 8)
    # The size of the images is known from the training, so nobody has to say it.
    for command in (
        ["count", "../small", "--layers"],
        ["analyse", "../base"],
        ["shrink", "../small/finetuned", "--out", "s"],
    ):
        code, _, err = penni_command(*command, folder=elsewhere)
        assert code == 0, (command, err)
    assert str(place) not in (place / "small" / "checkpoint" / "structure.json").read_text()


def test_a_file_that_is_gone_is_named_with_the_checkpoint(place: Path) -> None:
    penni.save(penni.build("net.py:make", classes=3, channels=1), "kept")
    (place / "net.py").unlink()
    with pytest.raises(penni.PenniError, match=r"'kept' cannot be built again: .*net\.py"):
        penni.load("kept")


def test_a_constructor_that_fails_is_a_sentence(place: Path) -> None:
    with pytest.raises(penni.PenniError, match=r"'net\.py:broken' fails when it is called: RuntimeError: boom"):
        penni.build("net.py:broken")


def test_an_input_that_does_not_fit_is_a_sentence(place: Path) -> None:
    model = penni.build("net.py:make", classes=3, channels=1)
    with pytest.raises(penni.PenniError, match="does not run on an input of 3×8×8"):
        penni.count(model, torch.zeros(1, 3, 8, 8))
