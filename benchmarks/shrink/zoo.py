"""Shrink the zoos' networks with random dead channels; one JSON line per run, so that a stopped sweep goes on.

python benchmarks/shrink/zoo.py --out results/shrink/coverage.jsonl
python benchmarks/shrink/zoo.py --table results/shrink

Several processes can share a sweep: give each its `--part`, such as 1/2 and 2/2.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import penni
from penni.measure.machine import processor
from penni.models import parse_size
from penni.shrinking.capture import UntraceableError
from penni.shrinking.exercise import deaden
from penni.shrinking.report import Report
from penni.shrinking.trial import difference, outputs_of

HERE = Path(__file__).parent
# By seed. In all but the last some channels are alive in every layer, so that the answers depend on the image.
SETTINGS: dict[int, dict[str, Any]] = {
    0: {"decomposed": True, "filters": 0.3, "inputs": 0.15, "survivors": 2},
    1: {"decomposed": False, "filters": 0.5, "inputs": 0.3, "survivors": 2},
    2: {"decomposed": False, "filters": 0.95, "inputs": 0.5, "survivors": 2},
    3: {"decomposed": False, "filters": 0.97, "inputs": 0.5, "survivors": 0},  # whole branches die
}


def described() -> dict[int, str]:
    """The seeds in words."""
    words = {}
    for seed, one in SETTINGS.items():
        text = f"{one['filters']:.0%} of the filters and {one['inputs']:.0%} of the input channels zero"
        spared = f"; {one['survivors']} of every width spared" if one["survivors"] else ""
        words[seed] = f"{'decomposed, ' if one['decomposed'] else ''}{text}{spared}"
    return words


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
    record: dict[str, Any] = {"model": name, "size": size, "seed": seed}
    try:
        model, note = prepared(name, seed)
        images = batch(size, seed, 1)
        before = sum(tensor.numel() for tensor in model.parameters())
        start = time.process_time()
        result = penni.shrink(model, images)
        record["seconds"] = round(time.process_time() - start, 2)
        report = result.report
        notes = [note, *report.notes, *(f"not traceable: {name}" for name in report.untraceable)]
        record.update(traced=not report.untraceable, dead=report.dead, removable=report.removable)
        record.update(removed=report.removed, attempts=report.attempts)
        record.update(params_before=before, params_after=sum(tensor.numel() for tensor in result.model.parameters()))
        if report.removed < report.removable:
            record["held"] = held(report)
        # Inputs that shrink has not seen.
        fresh = batch(size, 99 + seed, 2)
        expected = outputs_of(model, (fresh,))
        record["swing"] = rounded(swing(expected))
        record["fp32"] = rounded(difference(expected, outputs_of(result.model, (fresh,))))
        try:
            wide, narrow, fresh = model.double(), result.model.double(), fresh.double()
            record["fp64"] = rounded(difference(outputs_of(wide, (fresh,)), outputs_of(narrow, (fresh,))))
        except RuntimeError as error:
            notes.append(f"does not run in double precision: {first_line(error)}")
        record["exact"] = record["fp32"] <= 1e-4 and record.get("fp64", 1.0) <= 1e-9
        if any(notes):
            record["note"] = "; ".join(note for note in notes if note)
    except TimeoutError:
        raise
    except Exception as error:  # a table of what works lists what does not, with its reason
        record.setdefault("traced", not isinstance(error, penni.UnknownOperatorError | UntraceableError))
        record.update(exact=False, reason=f"{type(error).__name__}: {first_line(error)}")
    return record


def prepared(name: str, seed: int) -> tuple[nn.Module, str]:
    """The network with its dead channels, and what there is to say about it."""
    setting = SETTINGS[seed]
    torch.manual_seed(seed)
    model, note = make(name).eval(), ""
    if setting["decomposed"]:
        try:
            model = decompose_where_possible(model)
        except penni.PenniError as error:
            note = f"not decomposed: {first_line(error)}"
    shares = {key: value for key, value in setting.items() if key != "decomposed"}
    return deaden(model, seed, **shares), note


def batch(size: str, seed: int, number: int) -> Tensor:
    return torch.randn(number, *parse_size(size), generator=torch.Generator().manual_seed(seed))


def swing(outputs: list[Tensor]) -> float:
    """How far the answers to two images are apart, as a share of the largest output: a network that is dead
    altogether agrees with any other.
    """
    parts = [tensor for tensor in outputs if tensor.is_floating_point() and tensor.dim() > 0 and len(tensor) == 2]
    return max((difference([tensor[:1]], [tensor[1:]]) for tensor in parts), default=0.0)


def held(report: Report) -> dict[str, int]:
    """Why channels stayed that the ties would let go, and how many: sizes have to fit."""
    kinds = {
        "groups of equal size": "a grouped convolution needs groups of equal size",
        "pieces of equal size": "a chunk or split needs pieces of equal size",
        "lays channels out": "a reshape needs its layout",
        "one must stay": "all are dead and one must stay",
        "takes its statistics": "a normalisation over groups needs whole groups",
        "written into its code": "sizes are written into the code",
        "needs its sizes": "the code needs its sizes",
        "ties it with a channel that stays": "broadcast with a channel that stays",
    }
    found: dict[str, int] = {}
    for item in report.kept:
        for phrase, kind in kinds.items():
            if phrase in item.reason:
                found[kind] = found.get(kind, 0) + len(item.channels)
    return found


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def rounded(value: float) -> float:
    return float(f"{value:.2g}")


def decompose_where_possible(model: nn.Module) -> nn.Module:
    """Three bases where the kernel has room for them."""
    plan = penni.decomposition_plan(model, 1)
    layers = {choice.name: 3 for choice in plan if choice.bases is not None}
    modules = dict(model.named_modules())
    sizes = {name: modules[name].kernel_size[0] * modules[name].kernel_size[1] for name in layers}
    return penni.decompose(model, {name: min(number, sizes[name]) for name, number in layers.items()})


def sweep(out: Path, only: str, seeds: list[int], limit: int, retry: bool, part: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    number, parts = (int(word) for word in part.split("/"))
    # Seconds of this process, however busy the machine is.
    signal.signal(signal.SIGPROF, _too_long)
    done = {(record["model"], record["seed"]) for record in read(out) if record["exact"] or not retry}
    for seed in seeds:
        for position, (name, size) in enumerate(models()):
            if (name, seed) in done or not re.search(only, name) or position % parts != number - 1:
                continue
            signal.setitimer(signal.ITIMER_PROF, limit)
            try:
                record = run(name, size, seed)
            except TimeoutError:
                record = {"model": name, "size": size, "seed": seed, "exact": False, "reason": f"over {limit} s"}
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            with out.open("a") as stream:  # one short line at once: other processes may write too
                stream.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


def _too_long(*_: object) -> None:
    raise TimeoutError("took too long")


def read(out: Path) -> list[dict[str, Any]]:
    """The last record of each network and seed."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    return list({(record["model"], record["seed"]): record for record in lines}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/shrink/coverage.jsonl"))
    parser.add_argument("--only", default="", help="models whose name matches this regular expression")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SETTINGS))
    parser.add_argument("--limit", type=int, default=240, help="seconds of computing for one run")
    parser.add_argument("--retry", action="store_true", help="run those again that were not exact")
    parser.add_argument("--part", default="1/1", help="the part of the networks that this process takes, such as 2/2")
    parser.add_argument("--table", type=Path, help="write coverage.md and coverage.csv to this folder and end")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.table:
        from table import write

        write(read(options.out), options.table, [name for name, _ in models()], described(), machine())
        return
    sweep(options.out, options.only, options.seeds, options.limit, options.retry, options.part)


def machine() -> str:
    """What the figures were measured on."""
    return f"{processor()}, one thread, PyTorch {torch.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
