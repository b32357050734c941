"""penni's engine against others, on networks with the structure of the paper's tables.

    python benchmarks/engine/compare.py vgg16 --threads 1 --batch 1 --output results/engine/vgg16-t1-b1.json

Every engine runs the same input; the calls take turns in blocks of ten, so that a change in the machine's speed
meets all alike. Figures are medians of at least `--runs` calls after warm-up. `dense` is the unpruned network,
`shrunk` the pruned one written out as ordinary convolutions, `two-stage` the pruned one as depthwise and 1×1
convolutions. All threads are pinned to the number given.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch
from peak import fma_peak
from torch import nn

import penni
from penni.basis import reconstruct
from penni.engine.peers import NAMES, measure, open_peer
from penni.exporting import two_stage
from penni.measure.machine import time_record

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], int]] = {
    "vgg16": (networks.vgg16_dense, networks.vgg16_pruned, 32),
    "resnet56": (networks.resnet56_dense, networks.resnet56_pruned, 32),
    "resnet18": (networks.resnet18_dense, networks.resnet18_pruned, 32),
    "resnet50": (networks.resnet50_dense, networks.resnet50_pruned, 224),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--against", default=",".join(NAMES))
    parser.add_argument("--forms", default="dense,shrunk,two-stage")
    parser.add_argument("--no-dense-penni", action="store_true", help="leave out the unpruned network in penni")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    record = compare(arguments)
    print_table(record)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every engine on every form, and penni's steps."""
    torch.set_num_threads(arguments.threads)
    dense_of, pruned_of, size = NETWORKS[arguments.network]
    dense, pruned = dense_of(), pruned_of()
    images = np.random.default_rng(0).standard_normal((arguments.batch, 3, size, size), dtype=np.float32)
    forms = {"dense": dense, "shrunk": reconstruct(pruned), "two-stage": two_stage(pruned)}
    forms = {name: forms[name] for name in arguments.forms.split(",") if name}
    calls: dict[str, Callable[[], object]] = {}
    engine = penni.compile(pruned, images, threads=arguments.threads, tune=True)
    calls["penni"] = lambda: engine(images)
    if not arguments.no_dense_penni:
        plain = penni.compile(dense, images, threads=arguments.threads, tune=True)
        calls["penni, dense"] = lambda: plain(images)
    with tempfile.TemporaryDirectory() as folder:
        for form, model in forms.items():
            place = Path(folder) / form
            place.mkdir()
            for name in arguments.against.split(","):
                # PyTorch's own form of a decomposed layer is the reconstructed one.
                calls[f"{name}, {form}"] = open_peer(name, model, images, arguments.threads, place)
        times = measure(calls, runs=arguments.runs)
    steps = engine.profile(images, repeats=arguments.runs)
    peak = fma_peak()
    share = engine.macs * arguments.batch / (times["penni"] * 1e6) / peak / arguments.threads
    return {
        **time_record(times, threads=arguments.threads, batch=arguments.batch),
        "macs": engine.macs,
        "peak_gmacs_per_second_of_a_core": round(peak, 1),
        "share_of_peak": round(share, 3),
        "steps": [{**vars(step), "gmacs_per_second": _rate(step, arguments.batch)} for step in steps],
    }


def _rate(step: Any, batch: int) -> float:
    return round(step.macs * batch / step.microseconds / 1e3, 1) if step.microseconds else 0.0


def print_table(record: dict[str, Any]) -> None:
    """Times, and how often penni's goes into them."""
    times = record["milliseconds"]
    for name, time in sorted(times.items(), key=lambda item: item[1]):
        print(f"{name:28} {time:9.3f} ms   {time / times['penni']:6.2f}×")
    peak = record["peak_gmacs_per_second_of_a_core"]
    print(f"{record['macs'] / 1e6:.2f} M MACs: {record['share_of_peak']:.0%} of a peak of {peak} GMAC/s a core")


if __name__ == "__main__":
    main()
