"""Networks by name, and weights that fit or say which key does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import penni
from penni.models import build_for, input_shape, load_weights, origin_of, parse_size


@pytest.mark.parametrize("name", ["resnet18", "resnet20", "resnet56", "vgg16", "small"])
def test_the_own_networks_answer(name: str) -> None:
    model = build_for(name, classes=7, channels=2)
    assert model.eval()(torch.zeros(1, 2, 32, 32)).shape == (1, 7)


def test_zoo_networks_answer() -> None:
    assert build_for("torchvision:mobilenet_v2", 5, 3).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 5)
    model = build_for("timm:resnet10t", 5, 1)
    assert model.eval()(torch.zeros(1, 1, 64, 64)).shape == (1, 5)
    origin = origin_of(model)
    assert origin is not None
    assert origin.name == "timm:resnet10t"


def test_a_users_own_callable(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\ndef make(num_classes):\n    return nn.Linear(3, num_classes)\n")
    assert build_for(f"{file}:make", 4, 3).out_features == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet57", "there is no model 'resnet57': did you mean 'resnet56'"),
        ("torchvision:resnet51", "torchvision has no model 'resnet51': did you mean"),
        ("timm:nothing_like_it", "timm has no model"),
        ("missing.py:make", "there is no file 'missing.py'"),
    ],
)
def test_names_that_are_not_there(name: str, message: str) -> None:
    with pytest.raises(penni.PenniError, match=message):
        penni.build(name)


def test_a_users_file_that_fails(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import not_installed_anywhere\n")
    with pytest.raises(penni.PenniError, match="fails when it is imported: ModuleNotFoundError"):
        penni.build(f"{file}:make")
    file.write_text("def make_it():\n    return 3\n")
    with pytest.raises(penni.PenniError, match="has no callable 'make': did you mean 'make_it'"):
        penni.build(f"{file}:make")
    with pytest.raises(penni.PenniError, match=r"gives an object of type int, not a torch\.nn\.Module"):
        penni.build(f"{file}:make_it")


def test_weights_that_do_not_fit_name_the_first_key(tmp_path: Path) -> None:
    state = penni.build("small").state_dict()
    file = tmp_path / "weights.safetensors"

    def refused(**changes: torch.Tensor | None) -> str:
        changed = {key: value for key, value in {**state, **changes}.items() if value is not None}
        save_file(changed, file)
        with pytest.raises(penni.PenniError) as error:
            load_weights(penni.build("small"), file)
        return str(error.value)

    assert "no weights for 'conv1.weight'" in refused(**{"conv1.weight": None})
    assert "weights for 'extra', which the model does not have" in refused(extra=torch.zeros(1))
    assert "'linear.weight' is (3, 32)" in refused(**{"linear.weight": torch.zeros(3, 32)})
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(penni.PenniError, match="cut short or not a safetensors file"):
        load_weights(penni.build("small"), file)
    with pytest.raises(penni.PenniError, match="there is no weights file"):
        load_weights(penni.build("small"), tmp_path / "none.safetensors")


def test_a_plain_state_dict_is_read(tmp_path: Path) -> None:
    source, target = penni.build("small"), penni.build("small")
    torch.save({"state_dict": source.state_dict()}, tmp_path / "weights.pth")
    load_weights(target, tmp_path / "weights.pth")
    assert torch.equal(target.linear.weight, source.linear.weight)


def test_input_sizes() -> None:
    assert input_shape(penni.build("resnet56")) == (3, 32, 32)
    assert input_shape(penni.build("small")) == (1, 8, 8)
    assert parse_size("3x224x192") == (3, 224, 192)
    with pytest.raises(penni.PenniError, match="write channels×height×width"):
        parse_size("224")
