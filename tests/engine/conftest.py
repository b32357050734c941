"""Networks for the engine's tests: every statistic and coefficient random, so that no mistake hides behind a zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from penni import build, decompose
from penni.basis import basis_layers


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Normalisations that do something."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            count = module.num_features
            module.running_mean = torch.randn(count, generator=generator) * 0.1
            module.running_var = torch.rand(count, generator=generator) + 0.5
            if module.affine:
                module.weight.data = torch.rand(count, generator=generator) + 0.5
                module.bias.data = torch.randn(count, generator=generator) * 0.1
    return model.eval()


def pruned(model: nn.Module, bases: int = 3, density: float = 0.3, *, pointwise: bool = False) -> nn.Module:
    """Decomposed, with most coefficients zero, one basis kernel and one input channel unused."""
    result = decompose(model, bases, pointwise=pointwise)
    generator = torch.Generator().manual_seed(1)
    for layer in basis_layers(result).values():
        keep = torch.rand(layer.coefficients.shape, generator=generator) < density
        keep[:, 0, :] = False
        if layer.bases > 1:
            keep[:, :, -1] = False
        layer.coefficients.data.mul_(keep)
    return result.eval()


@pytest.fixture
def network() -> Callable[[str, bool], nn.Module]:
    """A network by name, dense or decomposed and pruned."""

    def make(name: str, sparse: bool) -> nn.Module:
        torch.manual_seed(0)
        model = randomise(build(name))
        return pruned(model) if sparse else model

    return make


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A packed `small`, pruned, with preprocessing."""
    import penni
    from penni.models import example_input

    torch.manual_seed(0)
    model = randomise(build("small"))
    origin = model._penni_origin
    model = pruned(model)
    model._penni_origin = origin
    preprocessing = {"mean": [0.3], "std": [0.4], "crop": 1.0}
    engine = penni.compile(model, example_input(model), threads=1, preprocessing=preprocessing)
    return str(engine.save(tmp_path_factory.mktemp("packed") / "small.penni"))
