"""How long each method's network takes on this machine: latency.json in the record.

    python benchmarks/peers/measure.py results/peers/resnet56

One image, medians; all take turns. The peers' networks run in ONNX Runtime and OpenVINO, and in penni's engine for
comparison; penni's runs in its engine. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from methods import TITLES

import penni
from penni.engine.peers import Run, measure, noise, open_peer
from penni.measure.machine import time_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="the folder that run.py was given as --record")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folders = {name: arguments.record / name / "checkpoint" for name in TITLES}
    folders = {name: folder for name, folder in folders.items() if folder.is_dir()}
    if not folders:
        sys.exit(f"measure.py: there are no networks in {arguments.record}: make them with run.py")
    networks = {name: penni.load(folder).eval() for name, folder in folders.items()}
    structure = json.loads((next(iter(folders.values())) / "structure.json").read_text())
    torch.manual_seed(0)
    networks["base"] = penni.build(structure["model"]["name"], **structure["model"]["arguments"]).eval()
    images = noise(tuple(structure["notes"]["input"]), 1)
    calls: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, network in networks.items():
            engine = penni.compile(network, images, threads=arguments.threads, tune=True)
            calls[f"{name}, penni"] = lambda engine=engine: engine(images)
            if name == "penni":
                continue
            for peer in ("onnxruntime", "openvino"):
                folder = Path(place) / name
                folder.mkdir(exist_ok=True)
                calls[f"{name}, {peer}"] = open_peer(peer, network, images, arguments.threads, folder)
        times = measure(calls, runs=arguments.runs)
    record = time_record(times, threads=arguments.threads, batch=1)
    (arguments.record / "latency.json").write_text(json.dumps(record, indent=1) + "\n")
    for name, time in sorted(times.items(), key=lambda item: item[1]):
        print(f"{name:28} {time:8.3f} ms")


if __name__ == "__main__":
    main()
