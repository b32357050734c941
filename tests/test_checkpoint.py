"""A network as a folder: whole or not at all, smaller when it is sparse, and damage is refused with a sentence."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import penni
from penni.models import example_input


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return penni.prune(penni.decompose(penni.build("small"), 4), 1.0).eval()


def test_what_is_loaded_answers_the_same(model: nn.Module, tmp_path: Path) -> None:
    penni.save(model, tmp_path / "saved")
    again = penni.load(tmp_path / "saved")
    image = example_input(model)
    assert torch.equal(again(image), model(image))
    assert not again.training


def test_zeros_take_no_space(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense = penni.decompose(penni.build("resnet20"), 5)
    sparse = penni.prune(dense, density=0.05, scope="global")
    sizes = []
    for name, network in (("dense", dense), ("sparse", sparse)):
        sizes.append((penni.save(network, tmp_path / name) / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.25 * sizes[0]
    image = example_input(sparse)
    assert torch.equal(penni.load(tmp_path / "sparse")(image), sparse.eval()(image))


def test_a_model_of_ones_own_is_loaded_into_what_its_constructor_gives(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4))

    model = penni.decompose(make(), 3).eval()
    penni.save(model, tmp_path / "own")
    with pytest.raises(penni.PenniError, match="does not say how its model is built: load it with"):
        penni.load(tmp_path / "own")
    image = torch.randn(2, 3, 8, 8)
    assert torch.equal(penni.load(tmp_path / "own", model=make())(image), model(image))


def test_a_model_from_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\ndef make(width=4):\n    return nn.Sequential(nn.Conv2d(3, width, 3))\n")
    model = penni.decompose(penni.build(f"{file}:make", width=6), 2)
    penni.save(model, tmp_path / "saved")
    image = torch.randn(1, 3, 8, 8)
    assert torch.equal(penni.load(tmp_path / "saved")(image), model(image))


def test_a_narrower_layer_is_rebuilt(tmp_path: Path) -> None:
    model = penni.build("small").eval()
    model.bn1 = nn.BatchNorm2d(16, eps=1e-3).eval()
    with torch.no_grad():
        model.layer1[0].conv1.weight = nn.Parameter(torch.randn(10, 16, 3, 3))  # type: ignore[index,union-attr]
    block = model.layer1[0]  # type: ignore[index]
    block.conv1.out_channels, block.bn1, block.conv2 = 10, nn.BatchNorm2d(10).eval(), nn.Conv2d(10, 16, 3, padding=1)
    penni.save(model, tmp_path / "saved")
    again, image = penni.load(tmp_path / "saved"), example_input(model)
    assert torch.equal(again(image), model(image))
    assert again.bn1.eps == 1e-3


def test_saving_over_a_checkpoint_replaces_it(model: nn.Module, tmp_path: Path) -> None:
    penni.save(penni.build("small"), tmp_path / "saved")
    penni.save(model, tmp_path / "saved")
    assert penni.load(tmp_path / "saved").conv1.bases == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_other_folders_are_not_overwritten(model: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(penni.PenniError, match="holds something else than a checkpoint"):
        penni.save(model, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


def test_a_full_disk_leaves_nothing_behind(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    penni.save(penni.build("small"), tmp_path / "saved")

    def full(_self: Path, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(penni.PenniError, match="no disk space left to write"):
        penni.save(model, tmp_path / "saved")
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]
    assert isinstance(penni.load(tmp_path / "saved").conv1, nn.Conv2d)


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _flip(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-50] ^= 1
    file.write_bytes(bytes(content))


def _edit(folder: Path, change: dict[str, object]) -> None:
    file = folder / "structure.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


def _cut_structure(folder: Path) -> None:
    file = folder / "structure.json"
    file.write_text(file.read_text()[:200])


def _narrow(folder: Path) -> None:
    file = folder / "structure.json"
    file.write_text(file.read_text().replace('"out_channels": 16', '"out_channels": 15', 1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "is cut short or was edited"),
        (_flip, "is cut short or was edited"),
        (_cut_structure, "structure.json' is damaged"),
        (_narrow, "should be"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
        (lambda folder: (folder / "structure.json").unlink(), "is not a checkpoint: it has no structure.json"),
        (lambda folder: _edit(folder, {"format": 99}), "has checkpoint format 99, this penni"),
        (lambda folder: _edit(folder, {"layers": []}), "is damaged"),
        (lambda folder: _edit(folder, {"model": "resnet"}), "'model' is not a name with arguments"),
        (lambda folder: _edit(folder, {"layers": {"conv1": {"kind": "os.system", "arguments": {}}}}), "does not know"),
    ],
)
def test_damage_is_refused_with_a_sentence(model: nn.Module, tmp_path: Path, damage: object, message: str) -> None:
    penni.save(model, tmp_path / "saved")
    damage(tmp_path / "saved")  # type: ignore[operator]
    with pytest.raises(penni.PenniError, match=message):
        penni.load(tmp_path / "saved")
