"""The captured channel graphs of six architectures, kept as text: a change of the capture shows as a difference.

After a change that is meant, write them anew with `PENNI_WRITE_GOLDEN=1 pytest tests/shrink/test_golden_graphs.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import penni
from penni.shrinking.graph_text import graph_text

GOLDEN = Path(__file__).parent / "golden"
ARCHITECTURES = {
    "resnet20": 32,
    "vgg16": 32,
    "torchvision:mobilenet_v3_small": 32,
    "torchvision:shufflenet_v2_x0_5": 32,
    "torchvision:squeezenet1_1": 32,
    "torchvision:convnext_tiny": 32,
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_channel_graph_is_the_one_on_file(name: str) -> None:
    if ":" in name:
        pytest.importorskip("torchvision")
    side = ARCHITECTURES[name]
    text = graph_text(penni.build(name).eval(), torch.zeros(1, 3, side, side))
    file = GOLDEN / f"{name.partition(':')[2] or name}.txt"
    if os.environ.get("PENNI_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()
