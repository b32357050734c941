"""Phase A: the decomposition is the best there is, and computes what the convolution computed."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import penni
from penni.basis import basis_layers, decompose_layer, principal_kernels


def conv(**options: object) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(6, 8, options.pop("kernel_size", 3), **options).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("bases", range(1, 10))
def test_error_is_the_tail_of_the_spectrum(bases: int) -> None:
    """Eckart and Young: no rank-d matrix is nearer than √(Σ of the squared singular values left out)."""
    layer = conv()
    values = torch.linalg.svdvals(layer.weight.detach().reshape(-1, 9))
    error = (decompose_layer(layer, bases).weight - layer.weight).norm()
    torch.testing.assert_close(error, values[bases:].square().sum().sqrt(), rtol=1e-9, atol=1e-9)


def test_uncentred_is_never_worse_than_centred() -> None:
    torch.manual_seed(1)
    layer = nn.Conv2d(8, 8, 3)
    with torch.no_grad():
        layer.weight += 0.5  # a mean that matters
    errors = [(decompose_layer(layer, 3, centred=c).weight - layer.weight).norm() for c in (False, True)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"dilation": 2},
        {"padding": 1},
        {"padding": (2, 0)},
        {"padding": "same"},
        {"padding": "valid"},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "circular"},
        {"padding": "same", "padding_mode": "replicate", "dilation": 2},
        {"groups": 2},
        {"kernel_size": (1, 5), "padding": (0, 2)},
        {"kernel_size": 7, "stride": 2, "padding": 3},
        {"bias": False},
    ],
    ids=str,
)
def test_all_bases_reproduce_any_layer(options: dict[str, object]) -> None:
    layer = conv(**options)
    images = torch.randn(2, 6, 13, 11, dtype=torch.float64)
    exact = decompose_layer(layer, layer.kernel_size[0] * layer.kernel_size[1])
    torch.testing.assert_close(exact(images), layer(images), rtol=1e-9, atol=1e-9)


def test_gradients_follow_the_chain_rule_of_the_paper() -> None:
    layer = decompose_layer(conv(), 4)
    images = torch.randn(2, 6, 9, 9, dtype=torch.float64)
    kernels = layer.weight.detach().requires_grad_()
    F.conv2d(images, kernels, layer.bias).square().sum().backward()
    assert kernels.grad is not None
    by_kernel = kernels.grad.reshape(-1, 9)
    layer(images).square().sum().backward()
    a, b = layer.coefficients, layer.basis
    assert a.grad is not None
    assert b.grad is not None
    torch.testing.assert_close(b.grad.reshape(4, 9), a.detach().reshape(-1, 4).T @ by_kernel)
    torch.testing.assert_close(a.grad.reshape(-1, 4), by_kernel @ b.detach().reshape(4, 9).T)


def test_reconstruct_gives_back_ordinary_layers() -> None:
    model = penni.decompose(penni.build("small"), 4).eval()
    plain = penni.reconstruct(model)
    assert not basis_layers(plain)
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(plain(images), model(images))


def test_the_model_given_is_left_as_it_was() -> None:
    model = penni.build("small")
    before = copy.deepcopy(model.state_dict())
    penni.decompose(model, 3)
    assert not basis_layers(model)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_shared_layer_stays_shared() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)
    model = penni.decompose(nn.Sequential(layer, nn.ReLU(), layer), 3)
    assert model[0] is model[2]  # type: ignore[index]


def test_depthwise_and_pointwise_layers_are_left_alone_and_it_is_said() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1))
    choices = {choice.name: choice for choice in penni.decomposition_plan(model, 5)}
    assert choices["0"].bases == 5
    assert choices["1"].bases is None
    assert "depthwise" in choices["1"].reason
    assert "1×1" in choices["2"].reason
    assert {c.name: c.bases for c in penni.decomposition_plan(model, 5, pointwise=True)} == {"0": 5, "1": None, "2": 1}


def test_pointwise_layers_are_exact() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    images = torch.randn(1, 4, 9, 9)
    torch.testing.assert_close(penni.decompose(model, 9, pointwise=True)(images), model(images), rtol=1e-5, atol=1e-5)


def test_bases_per_layer() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 7), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    by_list = basis_layers(penni.decompose(model, [20, 5, 4]))
    assert [layer.bases for layer in by_list.values()] == [20, 5, 4]
    by_pattern = basis_layers(penni.decompose(model, {"*": 5, "2": 3}))
    assert [layer.bases for layer in by_pattern.values()] == [5, 5, 3]
    assert list(basis_layers(penni.decompose(model, {"[12]": 2}))) == ["1", "2"]
    assert list(basis_layers(penni.decompose(model, 5, exclude=["0"]))) == ["1", "2"]


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        (0, "bases=0 is out of range: use 1 to 9"),
        (10, "bases=10 is out of range: use 1 to 9"),
        ([5], "lists 1 numbers for 2 layers"),
        ([5, 12], "bases=12 is out of range for 1: use 1 to 9"),
        ({"conv*": 5}, "no convolution is named 'conv\\*'"),
        ({"0": 0}, "bases=0 is out of range for 0"),
    ],
)
def test_bases_that_cannot_be(bases: penni.basis.Bases, message: str) -> None:
    with pytest.raises(penni.PenniError, match=message):
        penni.decompose(nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3)), bases)


def test_a_small_kernel_is_left_alone_by_one_number_for_all() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, (1, 3)))
    plan = penni.decomposition_plan(model, 5)
    assert plan[1].bases is None
    assert "3 positions" in plan[1].reason


def test_a_model_without_convolutions() -> None:
    with pytest.raises(penni.PenniError, match="nothing in this model can be decomposed: it has no convolutions"):
        penni.decompose(nn.Sequential(nn.Linear(4, 4)), 5)


def test_the_layer_prints_its_rank() -> None:
    text = str(decompose_layer(nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), 5))
    assert text == "BasisConv2d(3, 16, kernel_size=(3, 3), bases=5, stride=(2, 2), padding=(1, 1), bias=False)"


def test_singular_values_match_numpy() -> None:
    kernels = torch.randn(50, 9, dtype=torch.float64)
    torch.testing.assert_close(principal_kernels(kernels)[0], torch.linalg.svdvals(kernels))
