"""Shrink the zoos' networks with random dead channels; one JSON line per run, so that a stopped sweep goes on.

python benchmarks/shrink/zoo.py --out results/shrink/coverage.jsonl
python benchmarks/shrink/zoo.py --table results/shrink
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import penni
from penni.models import parse_size
from penni.shrinking.exercise import deaden
from penni.shrinking.trial import difference, outputs_of

HERE = Path(__file__).parent
# Seeds: the first decomposed with some dead channels, the second plain, the third with whole branches dead.
SETTINGS: dict[int, dict[str, Any]] = {
    0: {"decomposed": True, "filters": 0.3, "inputs": 0.15},
    1: {"decomposed": False, "filters": 0.5, "inputs": 0.3},
    2: {"decomposed": False, "filters": 0.97, "inputs": 0.5},
}


def models() -> list[tuple[str, str]]:
    """Names and input sizes of the sweep."""
    lines = (HERE / "models.txt").read_text().splitlines()
    return [(line.split()[0], line.split()[1]) for line in lines if line and not line.startswith("#")]


def make(name: str) -> nn.Module:
    """The network called `name`; `detection:…` are the parts of torchvision's detectors that are convolutional."""
    if not name.startswith("detection:"):
        return penni.build(name)
    from torchvision.models import detection

    kind = name.partition(":")[2]
    if kind == "resnet50_fpn":
        return detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet50", weights=None)
    if kind == "mobilenet_v3_large_fpn":
        return detection.backbone_utils.mobilenet_backbone(backbone_name="mobilenet_v3_large", weights=None, fpn=True)
    if kind == "retinanet_heads":
        return RetinaHeads()
    return detection.__dict__[kind](weights=None, weights_backbone=None).backbone


class RetinaHeads(nn.Module):
    """RetinaNet's backbone and its two heads, which run over every level with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection import retinanet_resnet50_fpn

        detector = retinanet_resnet50_fpn(weights=None, weights_backbone=None)
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.head(list(self.backbone(images).values()))


def run(name: str, size: str, seed: int) -> dict[str, Any]:
    """One network, one seed."""
    setting = SETTINGS[seed]
    record: dict[str, Any] = {"model": name, "size": size, "seed": seed}
    try:
        torch.manual_seed(seed)
        model = make(name).eval()
        if setting["decomposed"]:
            try:
                model = decompose_where_possible(model)
            except penni.PenniError as error:
                record["note"] = f"not decomposed: {error}"
        deaden(model, seed, filters=setting["filters"], inputs=setting["inputs"])
        images = torch.randn(1, *parse_size(size), generator=torch.Generator().manual_seed(seed))
        start = time.perf_counter()
        result = penni.shrink(model, images)
        record["seconds"] = round(time.perf_counter() - start, 2)
        report = result.report
        if report.notes or report.untraceable:
            record["note"] = "; ".join([*report.notes, *(f"not traceable: {name}" for name in report.untraceable)])
        record.update(traced=True, dead=report.dead, removable=report.removable, removed=report.removed)
        record.update(attempts=report.attempts)
        # Inputs that shrink has not seen.
        fresh = torch.randn(2, *parse_size(size), generator=torch.Generator().manual_seed(99 + seed))
        record["fp32"] = difference(outputs_of(model, (fresh,)), outputs_of(result.model, (fresh,)))
        # Shrink itself compares in double precision, on two inputs and two batch sizes.
        record["fp64"] = report.difference
        before = sum(tensor.numel() for tensor in model.parameters())
        after = sum(tensor.numel() for tensor in result.model.parameters())
        record.update(params_before=before, params_after=after)
        record["exact"] = record["fp32"] <= 1e-4 and record["fp64"] <= 1e-9
    except Exception as error:  # a table of what works lists what does not, with its reason
        first = (str(error).strip() or "no message").splitlines()[0]
        record.update(exact=False, reason=f"{type(error).__name__}: {first}")
    return record


def decompose_where_possible(model: nn.Module) -> nn.Module:
    """Three bases where the kernel has room for them."""
    plan = penni.decomposition_plan(model, 1)
    layers = {choice.name: 3 for choice in plan if choice.bases is not None}
    modules = dict(model.named_modules())
    sizes = {name: modules[name].kernel_size[0] * modules[name].kernel_size[1] for name in layers}
    return penni.decompose(model, {name: min(number, sizes[name]) for name, number in layers.items()})


def sweep(out: Path, only: str, seeds: list[int], limit: int, retry: bool) -> None:
    done = {(record["model"], record["seed"]) for record in read(out) if record["exact"] or not retry}
    out.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _too_long)
    for seed in seeds:
        for name, size in models():
            if (name, seed) in done or not re.search(only, name):
                continue
            signal.alarm(limit)
            try:
                record = run(name, size, seed)
            except TimeoutError:
                record = {"model": name, "size": size, "seed": seed, "exact": False, "reason": f"over {limit} s"}
            finally:
                signal.alarm(0)
            with out.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


def _too_long(*_: object) -> None:
    raise TimeoutError("took too long")


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/shrink/coverage.jsonl"))
    parser.add_argument("--only", default="", help="models whose name matches this regular expression")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SETTINGS))
    parser.add_argument("--limit", type=int, default=240, help="seconds for one run")
    parser.add_argument("--retry", action="store_true", help="run those again that were not exact")
    parser.add_argument("--table", type=Path, help="write coverage.md and coverage.csv to this folder and end")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.table:
        from table import write

        write(read(options.out), options.table, sys.argv, machine())
        return
    sweep(options.out, options.only, options.seeds, options.limit, options.retry)


def machine() -> str:
    """What the figures were measured on."""
    versions = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
    return f"{platform.machine()}, {torch.get_num_threads()} threads, {versions}"


if __name__ == "__main__":
    main()
