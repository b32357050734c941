"""How long a kept network takes in penni's engine, and the unpruned one in every engine: latency.json in its record.

    python benchmarks/cifar10/latency.py results/resnet56-cifar10-short

The calls take turns in blocks, so that a change in the machine's speed meets all alike. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

import penni
from penni.engine.peers import NAMES, Run, measure, noise, open_peer
from penni.measure.machine import time_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="a folder that keep.py made")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--against", default=",".join(NAMES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    network = penni.load(arguments.record / "checkpoint").eval()
    structure = json.loads((arguments.record / "checkpoint" / "structure.json").read_text())
    torch.manual_seed(0)
    dense = penni.build(structure["model"]["name"], **structure["model"]["arguments"]).eval()
    images = noise(tuple(structure["notes"]["input"]), 1)
    engines = {
        "penni": penni.compile(network, images, threads=arguments.threads, tune=True),
        "penni, dense": penni.compile(dense, images, threads=arguments.threads, tune=True),
    }
    calls: dict[str, Run] = {name: lambda engine=engine: engine(images) for name, engine in engines.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.against.split(","):
            calls[f"{name}, dense"] = open_peer(name, dense, images, arguments.threads, Path(folder))
        times = measure(calls, runs=arguments.runs)
    record = time_record(times, threads=arguments.threads, batch=1)
    (arguments.record / "latency.json").write_text(json.dumps(record, indent=1) + "\n")
    for name, time in sorted(times.items(), key=lambda item: item[1]):
        print(f"{name:24} {time:8.3f} ms")


if __name__ == "__main__":
    main()
