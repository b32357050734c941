"""Memory and time to the first answer: one fresh process per engine that loads its file and runs one image.

    python benchmarks/engine/footprint.py vgg16 resnet56 --output results/engine/footprint.json

Each engine gets the file that it loads in deployment: penni a `.penni` file, the others the unpruned and the shrunk
network (ONNX; for PyTorch a `torch.export` archive). Memory is the process's peak (VmHWM) and what it adds to an
interpreter that has imported numpy alone; the paper's way of counting, weights and activations, is in the column
"network's own": what is added from after the engine's import to after the answer. Medians of several processes,
which take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ONE_PROCESS = r"""
import json, sys, time

def resident(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) / 1024

kind, file, images = sys.argv[1:4]
import numpy
image = numpy.load(images)
numpy_alone = resident("VmRSS")
begun = time.perf_counter()
if kind == "penni":
    import penni.engine as library
elif kind == "onnxruntime":
    import onnxruntime as library
elif kind == "openvino":
    import openvino as library
else:
    import torch as library
imported, imported_at = resident("VmRSS"), time.perf_counter()
if kind == "penni":
    engine = library.load(file, threads=1)
    answer = engine(image)
elif kind == "onnxruntime":
    options = library.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = library.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    answer = session.run(None, {session.get_inputs()[0].name: image})[0]
elif kind == "openvino":
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    answer = library.compile_model(file, "CPU", settings)(image)[0]
else:
    library.set_num_threads(1)
    with library.inference_mode():
        answer = library.export.load(file).module()(library.from_numpy(image)).numpy()
done = time.perf_counter()
assert numpy.isfinite(answer).all()
print(json.dumps({
    "peak_mib": resident("VmHWM"),
    "added_mib": resident("VmHWM") - numpy_alone,
    "own_mib": resident("VmHWM") - imported,
    "import_ms": (imported_at - begun) * 1000,
    "load_to_answer_ms": (done - imported_at) * 1000,
}))
"""


def measure(files: dict[str, tuple[str, Path]], images: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Medians for every name in `files` (kind, file)."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in files}
    for repeat in range(repeats + 1):
        for name, (kind, file) in files.items():
            command = [sys.executable, "-c", ONE_PROCESS, kind, str(file), str(images)]
            result = subprocess.run(command, check=False, capture_output=True, text=True)
            if result.returncode:
                raise SystemExit(f"{name}: {result.stderr}")
            if repeat:  # the first time the files are not in the page cache
                found[name].append(json.loads(result.stdout.splitlines()[-1]))
    return {
        name: {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        for name, runs in found.items()
    }


def prepare(network: str, folder: Path) -> tuple[dict[str, tuple[str, Path]], Path]:
    """The files that every engine loads, and one image."""
    import numpy as np
    import torch
    from compare import NETWORKS

    import penni
    from penni.basis import reconstruct
    from penni.exporting import export

    dense_of, pruned_of, size = NETWORKS[network]
    images = np.random.default_rng(0).standard_normal((1, 3, size, size), dtype=np.float32)
    np.save(folder / "image.npy", images)
    pruned = pruned_of()
    penni.compile(pruned, images, threads=1).save(folder / "m.penni")
    files = {"penni": ("penni", folder / "m.penni")}
    for form, model in (("dense", dense_of()), ("shrunk", reconstruct(pruned))):
        example = torch.from_numpy(images)
        export(model, folder / f"{form}.onnx", example)
        export(model, folder / f"{form}.pt2", example, format="pt2")
        files[f"onnxruntime, {form}"] = ("onnxruntime", folder / f"{form}.onnx")
        files[f"openvino, {form}"] = ("openvino", folder / f"{form}.onnx")
        files[f"torch, {form}"] = ("torch", folder / f"{form}.pt2")
    return files, folder / "image.npy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", choices=["vgg16", "resnet18", "resnet50", "resnet56"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    from penni.measure.machine import machine, now

    record: dict[str, Any] = {"command": "python " + " ".join(sys.argv), "date": now(), "machine": machine()}
    for network in arguments.networks:
        with tempfile.TemporaryDirectory() as folder:
            files, images = prepare(network, Path(folder))
            record[network] = measure(files, images, arguments.repeats)
        print(network)
        for name, row in record[network].items():
            print(
                f"  {name:22} peak {row['peak_mib']:7.1f} MiB, added {row['added_mib']:7.1f}, network's own "
                f"{row['own_mib']:7.1f}; import {row['import_ms']:7.1f} ms, "
                f"load to answer {row['load_to_answer_ms']:7.1f} ms"
            )
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
