"""Which exported form is faster where: the same pruned networks, dense and two-stage, in three runtimes.

python -m benchmarks.export.forms --out results/export/forms.csv
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

import penni
from benchmarks.engine import networks
from penni.exporting import FORMS, in_form
from penni.measure.latency import compare
from penni.measure.machine import processor


def thinned(name: str, density: float) -> nn.Module:
    """A network of ours, decomposed with five bases and pruned at random weights, then shrunk."""
    torch.manual_seed(0)
    images = torch.zeros(1, 3, 32, 32)
    model = penni.prune(penni.decompose(penni.build(name), 5), density=density, scope="lamp", example_input=images)
    return penni.shrink(model, images).model


# The networks, the size of their images, and the batches they are timed with.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int], tuple[int, ...]]] = {
    "VGG16, paper's structure": (networks.vgg16_pruned, (3, 32, 32), (1, 16)),
    "ResNet56, d = 5, 8 % of A": (lambda: thinned("resnet56", 0.08), (3, 32, 32), (1, 16)),
    "ResNet56, d = 5, all of A": (lambda: penni.decompose(penni.build("resnet56"), 5), (3, 32, 32), (1, 16)),
    "torchvision ResNet18, d = 5, all of A": (
        lambda: penni.decompose(penni.build("torchvision:resnet18"), 5),
        (3, 224, 224),
        (1,),
    ),
}


def main() -> None:
    """Write one row per network and runtime: milliseconds of both forms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=40)
    arguments = parser.parse_args()
    rows = []
    for name, (make, shape, batches) in CASES.items():
        model = make().eval()
        example = torch.zeros(1, *shape)
        modules = {form: in_form(model, form) for form in FORMS}
        # What a runtime that knows nothing of zeros has to do.
        work = [sum(layer.dense_macs for layer in penni.count(m, example).layers) / 1e6 for m in modules.values()]
        with tempfile.TemporaryDirectory() as folder:
            files = {form: Path(folder) / f"{form}.onnx" for form in FORMS}
            for form, file in files.items():
                penni.export(model, file, example, form=form)
            for batch in batches:
                images = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
                for runtime, make_call in RUNTIMES.items():
                    calls = {form: make_call(files[form], modules[form], images) for form in FORMS}
                    # The two forms take turns, and no other runtime comes between them and the caches.
                    runs = arguments.runs if batch == 1 else max(10, arguments.runs // 4)
                    times = compare(calls, list(modules.values()), runs=runs, threads=1)
                    dense, narrow = (times[form] for form in FORMS)
                    macs = [f"{million:.1f}" for million in work]
                    ratio = f"{narrow / dense:.2f}"
                    rows.append([name, *macs, batch, runtime, f"{dense:.3f}", f"{narrow:.3f}", ratio])
                    print(*rows[-1], sep="\t", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as stream:
        stream.write(f"# python -m benchmarks.export.forms --out {arguments.out}\n")
        packages = ", ".join(f"{package} {version(package)}" for package in ("torch", "onnxruntime", "openvino"))
        stream.write(
            f"# {time.strftime('%Y-%m-%d')}, {processor()}, one thread, "
            f"median of {arguments.runs} runs, fewer for a batch, "
        )
        stream.write(f"{packages}; milliseconds; multiply-accumulates of one image, zeros included\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            [
                *("network", "dense_million_macs", "two_stage_million_macs"),
                *("batch", "runtime", "dense_ms", "two_stage_ms", "two_stage_over_dense"),
            ]
        )
        writer.writerows(rows)


def onnxruntime_call(file: Path, _module: nn.Module, images: Tensor) -> Callable[[], object]:
    """One inference in ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    array = images.numpy()
    return lambda: session.run(None, {"images": array})


def openvino_call(file: Path, _module: nn.Module, images: Tensor) -> Callable[[], object]:
    """One inference in OpenVINO on one thread, in fp32."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1", "PERFORMANCE_HINT": "LATENCY"}
    model = openvino.Core().read_model(str(file))
    model.reshape(list(images.shape))
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    array = images.numpy()
    return lambda: request.infer([array])


def torch_call(_file: Path, module: nn.Module, images: Tensor) -> Callable[[], object]:
    """One inference in PyTorch, eagerly; `compare` sees to its threads."""
    return lambda: module(images)


RUNTIMES = {"onnxruntime": onnxruntime_call, "openvino": openvino_call, "torch": torch_call}


if __name__ == "__main__":
    main()
