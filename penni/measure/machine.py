"""What a measurement was made on and with: every record of times says so in the same words."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("penni", "torch", "onnxruntime", "openvino", "numpy")


def processor() -> str:
    """The processor's name, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions(*packages: str) -> dict[str, str]:
    """Those of the packages that are installed, with their versions."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine, the engine's kernels on it, and the versions of what is compared."""
    from penni.engine.runtime import information

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "isa": information()["isa"],
        "python": platform.python_version(),
        "versions": versions(*_PACKAGES),
    }


def now() -> str:
    """The date and time for a record."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def time_record(milliseconds: Mapping[str, float], *, threads: int, batch: int) -> dict[str, Any]:
    """The record of a comparison of engines: by which command, when, on what, and the times."""
    return {
        "command": "python " + shlex.join(sys.argv),
        "date": now(),
        "machine": machine(),
        "threads": threads,
        "batch": batch,
        "milliseconds": {name: round(time, 4) for name, time in milliseconds.items()},
    }
