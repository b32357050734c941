"""Whole networks through the engine, dense and pruned, against PyTorch; and the counts that go with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import penni
from penni.engine import reference
from penni.engine.lower import lower
from penni.models import example_input, input_shape

Make = Callable[[str, bool], nn.Module]

SOME = (
    "small",
    "resnet20",
    "torchvision:squeezenet1_1",
    "torchvision:mobilenet_v3_small",
    "torchvision:shufflenet_v2_x0_5",
)

ZOO = (
    "resnet18",
    "resnet56",
    "vgg16",
    *(
        f"torchvision:{name}"
        for name in (
            *("alexnet", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"),
            *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
            *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"),
            *("densenet121", "densenet161", "densenet169", "densenet201", "googlenet", "inception_v3"),
            *("squeezenet1_0", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
            *("shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0"),
            *("mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3"),
            *(f"efficientnet_b{size}" for size in range(8)),
            *("efficientnet_v2_s", "efficientnet_v2_m", "efficientnet_v2_l"),
            *(f"regnet_{kind}" for kind in ("x_400mf", "x_800mf", "x_1_6gf", "x_3_2gf", "x_8gf", "x_16gf", "x_32gf")),
            *(f"regnet_{kind}" for kind in ("y_400mf", "y_800mf", "y_1_6gf", "y_3_2gf", "y_8gf", "y_16gf", "y_32gf")),
            *(f"convnext_{size}" for size in ("tiny", "small", "base", "large")),
        )
    ),
)


def _side(name: str) -> str | None:
    """A small image, where the network takes any."""
    if not name.startswith("torchvision:"):
        return None
    return {"torchvision:inception_v3": "3x107x107", "torchvision:alexnet": "3x80x96"}.get(name, "3x64x96")


def _agrees(name: str, model: nn.Module, threads: int) -> None:
    image = example_input(model, _side(name), batch=2, seed=7)
    with torch.no_grad():
        expected = model(image).numpy()
    # `compile` checks one example of its own; this is another.
    engine = penni.compile(model, image.flip(0) * 0.5, threads=threads)
    answer = engine(image.numpy())
    assert answer.shape == expected.shape
    assert float(np.abs(answer - expected).max()) <= 1e-4 * float(np.abs(expected).max())


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "pruned"])
@pytest.mark.parametrize("name", SOME)
def test_network_answers_as_pytorch(name: str, sparse: bool, network: Make) -> None:
    _agrees(name, network(name, sparse), threads=2)


@pytest.mark.zoo
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "pruned"])
@pytest.mark.parametrize("name", ZOO)
def test_zoo_network_answers_as_pytorch(name: str, sparse: bool, network: Make) -> None:
    _agrees(name, network(name, sparse), threads=2)


def test_interpreter_and_engine_agree_closely(network: Make) -> None:
    model = network("resnet20", True)
    image = example_input(model, batch=3)
    exact = reference.run(lower(model, image), image.numpy())
    answer = penni.compile(model, image)(image.numpy())
    assert float(np.abs(answer - exact).max()) <= 1e-5 * float(np.abs(exact).max())


@pytest.mark.parametrize("name", ["small", "torchvision:mobilenet_v3_small"])
def test_macs_are_those_of_the_one_definition(name: str, network: Make) -> None:
    model = network(name, True)
    image = example_input(model, _side(name))
    counted = penni.count(model, image)
    engine = penni.compile(model, image)
    assert engine.macs == counted.macs
    by_module = {layer.name: layer.macs for layer in counted.layers}
    for step in engine.steps:
        if step.macs:
            assert by_module[step.module] == step.macs, step.module


def test_normalisation_residual_and_activation_are_fused(network: Make) -> None:
    model = network("resnet20", False)
    steps = [step.op for step in penni.compile(model, example_input(model)).steps]
    assert steps.count("conv + relu") == 10
    assert steps.count("conv + add + relu") == 9
    assert not [step for step in steps if step in ("affine", "add", "relu")]


def test_what_no_coefficient_reads_is_not_stored(network: Make) -> None:
    model = network("resnet20", True)
    program = lower(model, example_input(model))
    for step in program.steps:
        if "coefficients" not in step.tensors:
            continue
        basis, coefficients = program.dense(step, "basis"), program.tensor(step, "coefficients")
        # The fixture leaves the last of three basis kernels unread.
        assert len(basis) == 2
        layer = model.get_submodule(step.module)
        assert coefficients.values.size == int((layer.coefficients != 0).sum())
    wasteful = sum(layer.coefficients.numel() * 4 for layer in penni.basis.basis_layers(model).values())
    assert penni.compile(model, example_input(model), threads=1).size < wasteful


def test_a_narrower_network_lowers(network: Make) -> None:
    model = network("resnet20", True)
    image = torch.randn(2, *input_shape(model), generator=torch.Generator().manual_seed(0))
    narrow = penni.shrink(model, image).model
    engine = penni.compile(narrow, image)
    with torch.no_grad():
        expected = model(image).numpy()
    assert engine.macs <= penni.count(model, image).macs
    assert float(np.abs(engine(image.numpy()) - expected).max()) <= 1e-4 * float(np.abs(expected).max())
