"""The arithmetic limit of one core, measured: what the engine's speed is a share of."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path


def fma_peak() -> float:
    """10⁹ multiply-accumulates per second, in the best of several tries; x86 with AVX2 at least."""
    compiler = os.environ.get("CXX", "g++")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peak"
        source = Path(__file__).with_suffix(".cpp")
        subprocess.run([compiler, "-O2", "-march=native", "-o", str(program), str(source)], check=True)
        return float(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)
