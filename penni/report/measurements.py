"""Latency, memory and where the time goes: the base and the compressed network, in the engine and in PyTorch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from penni.basis import reconstruct
from penni.errors import PenniError
from penni.measure.latency import compare
from penni.report.findings import Findings

_RUNS = 30

# Peak memory that loading a packed network and running one image adds, in a process of its own.
_MEMORY = """
import sys
import numpy
import penni.engine
def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
before = status("VmRSS")
engine = penni.engine.load(sys.argv[1], threads=1)
images = numpy.zeros((1, *engine.input_shape), dtype=numpy.float32)
for _ in range(3):
    engine(images)
print(status("VmHWM") - before)
"""


@dataclass
class Measurements:
    """What was measured; a part that could not be measured is absent, and `sentences` say why."""

    milliseconds: dict[str, float] = field(default_factory=dict)
    kilobytes: dict[str, int] = field(default_factory=dict)
    packed_bytes: dict[str, int] = field(default_factory=dict)
    layer_microseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    isa: str = ""
    sentences: list[str] = field(default_factory=list)


def measure(findings: Findings, *, timed: bool = True) -> Measurements:
    """Measure on one thread, one image at a time, the networks in turn; not `timed`: only the packed files' sizes."""
    found = Measurements()
    images = findings.example[:1]
    base, final = reconstruct(findings.networks["base"]).eval(), findings.final.eval()
    dense = reconstruct(final).eval()
    engines: dict[str, Callable[[], object]] = {}
    networks: dict[str, nn.Module] = {"base": base, "compressed": final}
    with tempfile.TemporaryDirectory() as folder:
        array = images.numpy()
        for name, network in networks.items():
            try:
                from penni.engine.compiling import compile

                engine = compile(network, images, threads=1)
                found.packed_bytes[name] = engine.size
                if not timed:
                    continue
                file = engine.save(Path(folder) / f"{name}.penni")
                reports = engine.profile(array, repeats=_RUNS)
            except (PenniError, ImportError) as error:
                found.sentences.append(
                    f"The engine cannot run the {name} network, so its figures are missing: {error}."
                )
                continue
            found.isa = engine.isa
            engines[f"engine {name}"] = lambda engine=engine: engine(array)  # type: ignore[misc]
            times = found.layer_microseconds.setdefault(name, {})
            for report in reports:
                times[report.module] = times.get(report.module, 0.0) + (report.microseconds or 0.0)
                if name == "compressed" and report.macs:
                    found.kernels[report.module] = report.kernel
            memory = _memory(file)
            if memory is not None:
                found.kilobytes[name] = memory
        if timed:
            # By themselves: whichever came first after PyTorch would find the caches full of other things.
            found.milliseconds = compare(engines, runs=_RUNS, threads=1)
            torch_calls = {"torch base": lambda: base(images), "torch compressed": lambda: dense(images)}
            found.milliseconds |= compare(torch_calls, [base, dense], runs=_RUNS, threads=1)
    return found


def _memory(file: Path) -> int | None:
    if not Path("/proc/self/status").exists():
        return None
    result = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(file)], capture_output=True, text=True, check=False, timeout=120
    )
    return int(result.stdout) if result.returncode == 0 and result.stdout.strip().isdigit() else None
