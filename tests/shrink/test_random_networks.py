"""Whatever the network and whatever is dead in it: the narrower one answers the same, and there is no more to take."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_networks import KINDS, RandomNetwork
from torch import nn

import penni
from penni.shrinking.exercise import deaden

STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=14)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    steps=STEPS,
    seed=st.integers(0, 2**16),
    share=st.sampled_from([0.2, 0.5, 0.9, 1.0]),
    side=st.sampled_from([0, 8]),
    bases=st.sampled_from([0, 4]),
)
def test_random_network_answers_the_same(
    steps: list[tuple[str, int, int]], seed: int, share: float, side: int, bases: int
) -> None:
    torch.manual_seed(seed)
    model: nn.Module = RandomNetwork(steps, side)
    model = penni.decompose(model, bases) if bases else model
    deaden(model.double().eval(), seed, filters=share, inputs=share / 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = penni.shrink(model, torch.randn(1, 3, 8, 8, dtype=torch.float64))
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        expected, seen = model(images), result.model(images)
    assert (expected - seen).abs().max() <= 1e-9 * float(expected.abs().max())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    again = penni.shrink(result.model, images)
    assert again.report.removed == 0
