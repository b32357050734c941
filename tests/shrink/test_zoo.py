"""The zoos: every network answers the same after it was narrowed; on small ones nothing more could have gone."""

from __future__ import annotations

import copy
import gc
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from brute_force import dead_channels, removable
from zoo_ties import ZOO_CASES

import penni
from penni.shrinking.exercise import deaden

pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]  # the zoos' own warnings


def _sweep() -> ModuleType:
    """The script behind the coverage table: these tests run what it runs."""
    path = Path(__file__).parents[2] / "benchmarks" / "shrink" / "zoo.py"
    specification = importlib.util.spec_from_file_location("shrink_zoo", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["shrink_zoo"] = module
    specification.loader.exec_module(module)
    return module


zoo = _sweep()


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", zoo.SETTINGS)
@pytest.mark.parametrize(("name", "size"), zoo.models(), ids=[name for name, _ in zoo.models()])
def test_network_answers_the_same(name: str, size: str, seed: int) -> None:
    pytest.importorskip("timm" if name.startswith("timm:") else "torchvision")
    record = zoo.run(name, size, seed)
    assert "reason" not in record, record["reason"]
    assert record["fp32"] <= 1e-4, record
    assert record["fp64"] <= 1e-9, record
    # What the ties would let go and sizes hold back is all accounted for.
    assert record["removed"] + sum(record.get("held", {}).values()) == record["removable"], record


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ZOO_CASES)
def test_removes_exactly_what_the_oracle_finds(name: str, seed: int) -> None:
    pytest.importorskip("torchvision")
    case = ZOO_CASES[name]
    torch.manual_seed(seed)
    extreme = seed == 3
    model = case.make().eval()
    deaden(model, seed, filters=0.9 if extreme else 0.4, inputs=0.5 if extreme else 0.25, survivors=2)
    images = torch.randn(1, 3, case.side, case.side)
    ties = case.ties(model)
    names = [member for group in ties for member in group]
    expected = removable(dead_channels(copy.deepcopy(model), images, names, ties), ties)
    result = penni.shrink(model, images)
    rows = {row.name: row for row in result.report.rows}
    compared = 0
    for layer in names:
        if layer in rows:
            before, after = rows[layer].before.width, rows[layer].after.width
            # A layer whose every channel is dead keeps one.
            assert before - after == min(len(expected[layer]), before - 1), f"{layer}: {sorted(expected[layer])}"
            compared += before - after
    assert compared > 0


def test_the_list_holds_what_torchvision_classifies_with() -> None:
    models = pytest.importorskip("torchvision").models
    transformers = ("vit_", "swin_", "maxvit_")
    names = {f"torchvision:{name}" for name in models.list_models(models) if not name.startswith(transformers)}
    names |= {f"torchvision:{name}" for name in models.list_models(models.segmentation)}
    assert names <= {name for name, _ in zoo.models()}


def test_the_list_holds_enough_of_timm() -> None:
    timm = pytest.importorskip("timm")
    names = [name.partition(":")[2] for name, _ in zoo.models() if name.startswith("timm:")]
    assert len(set(names)) >= 120
    assert len({timm.models.model_entrypoint(name).__module__ for name in names}) >= 40


ORDINARY = {
    "torchvision:googlenet": 64,
    "torchvision:mobilenet_v3_small": 64,
    "torchvision:shufflenet_v2_x1_0": 64,
    "torchvision:convnext_tiny": 64,
    "torchvision:densenet121": 64,
    "torchvision:deeplabv3_mobilenet_v3_large": 64,
    "timm:regnety_002": 64,
    "timm:dla34": 64,
    "timm:mixnet_s": 64,
    "timm:ghostnet_050": 64,
    "timm:res2net50_26w_4s": 64,
    "timm:mobilevit_xxs": 64,
    "timm:resnest14d": 64,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_the_result_saves_loads_exports_copies_and_trains(name: str, tmp_path: Path) -> None:
    pytest.importorskip("timm" if name.startswith("timm:") else "torchvision")
    torch.manual_seed(0)
    images = torch.randn(2, 3, ORDINARY[name], ORDINARY[name])
    model = deaden(penni.build(name).eval(), 0, filters=0.5, inputs=0.3, survivors=2)
    result = penni.shrink(model, images)
    assert result.report.removed > 0
    expected = zoo.outputs_of(result.model, (images,))

    penni.save(result.model, tmp_path / "narrow")
    loaded = penni.load(tmp_path / "narrow")  # no constructor given: the checkpoint knows the zoo's name
    assert all(map(torch.equal, zoo.outputs_of(loaded, (images,)), expected))
    assert all(map(torch.equal, zoo.outputs_of(copy.deepcopy(result.model), (images,)), expected))
    program = torch.export.export(result.model.eval(), (images,)).module()
    answers = [leaf for leaf in torch.utils._pytree.tree_leaves(program(images)) if isinstance(leaf, torch.Tensor)]
    assert zoo.difference(expected, answers) < 1e-5

    trained = result.model.train()
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
    before = [parameter.clone() for parameter in trained.parameters()]
    answers = [leaf for leaf in torch.utils._pytree.tree_leaves(trained(images)) if isinstance(leaf, torch.Tensor)]
    sum(answer.square().mean() for answer in answers).backward()
    optimizer.step()
    changed = sum(not torch.equal(old, new) for old, new in zip(before, trained.parameters(), strict=True))
    assert changed > len(before) // 2


@pytest.mark.parametrize("decomposed", [False, True], ids=["plain", "decomposed"])
def test_resnet50_shrinks_in_twenty_seconds(decomposed: bool) -> None:
    pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = penni.build("torchvision:resnet50").eval()
    model = penni.decompose(model, 5) if decomposed else model
    deaden(model, 0, filters=0.5, inputs=0.3, survivors=2)
    start = time.perf_counter()
    result = penni.shrink(model, torch.randn(1, 3, 224, 224))
    assert time.perf_counter() - start < 20
    assert result.report.removed > 0
