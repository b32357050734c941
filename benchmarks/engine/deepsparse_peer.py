"""DeepSparse on the same two-stage graph. Its wheel needs Python 3.11 and an environment of its own.

    python -m venv build/deepsparse && build/deepsparse/bin/pip install deepsparse==1.8.0
    python benchmarks/engine/deepsparse_peer.py vgg16 --python build/deepsparse/bin/python \
        --output results/engine/deepsparse-vgg16.json

The two engines take turns in blocks of calls; DeepSparse's process measures its own calls, so that no pipe is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from compare import NETWORKS

import penni
from penni.exporting import export, two_stage
from penni.measure.machine import time_record

OTHER_PROCESS = r"""
import json, sys, time
import numpy, deepsparse
engine = deepsparse.compile_model(sys.argv[1], batch_size=1, num_cores=1)
images = [numpy.load(sys.argv[2])]
for _ in range(20):
    engine.run(images)
print("ready", deepsparse.__version__, flush=True)
for line in sys.stdin:
    times = []
    engine.run(images)
    for _ in range(int(line)):
        begun = time.perf_counter()
        engine.run(images)
        times.append(time.perf_counter() - begun)
    print(json.dumps(times), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--python", type=Path, required=True, help="the interpreter that has deepsparse")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    _, pruned_of, size = NETWORKS[arguments.network]
    pruned = pruned_of()
    images = np.random.default_rng(0).standard_normal((1, 3, size, size), dtype=np.float32)
    engine = penni.compile(pruned, images, threads=1, tune=True)
    times: dict[str, list[float]] = {"penni": [], "deepsparse": []}
    with tempfile.TemporaryDirectory() as folder:
        graph, given = Path(folder) / "graph.onnx", Path(folder) / "images.npy"
        # DeepSparse is of 2024 and reads no newer graphs.
        export(two_stage(pruned), graph, torch.from_numpy(images), batch=1, opset=17)
        older = onnx.load(graph)
        older.ir_version = 8
        onnx.save(older, graph)
        np.save(given, images)
        command = [str(arguments.python), "-c", OTHER_PROCESS, str(graph), str(given)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            version = next(line.split()[1] for line in other.stdout if line.startswith("ready"))
            for _ in range(10):
                other.stdin.write("20\n")
                other.stdin.flush()
                times["deepsparse"] += json.loads(other.stdout.readline())
                engine(images)
                for _ in range(20):
                    begun = time.perf_counter()
                    engine(images)
                    times["penni"].append(time.perf_counter() - begun)
            other.stdin.close()
    medians = {name: round(statistics.median(values) * 1000, 4) for name, values in times.items()}
    ratio = medians["deepsparse"] / medians["penni"]
    print(f"penni {medians['penni']} ms, DeepSparse {version} {medians['deepsparse']} ms: {ratio:.2f}×")
    if arguments.output:
        words = ["…" if word == str(arguments.python) else word for word in sys.argv]
        record = time_record(medians, threads=1, batch=1) | {"command": "python " + " ".join(words)}
        record |= {"deepsparse": version, "ratio": round(ratio, 2)}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
