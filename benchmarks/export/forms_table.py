"""Dense and two-stage form of the same pruned networks, out of the engine's benchmark, which runs both in all runtimes.

python -m benchmarks.export.forms_table --out results/export/forms-pruned.csv
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

SOURCE = Path("results/engine")
RUNTIMES = ("onnxruntime", "openvino", "torch")


def main() -> None:
    """One row per network, number of threads, batch and runtime."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    about = ""
    for file in sorted(SOURCE.glob("*-t*-b*.json")):
        record = json.loads(file.read_text())
        times, machine = record["milliseconds"], record["machine"]
        versions = ", ".join(f"{name} {machine['versions'][name]}" for name in RUNTIMES if name in machine["versions"])
        about = f"# {record['date'][:10]}, {machine['processor']}, {versions}; milliseconds\n"
        for runtime in RUNTIMES:
            dense, narrow = times.get(f"{runtime}, shrunk"), times.get(f"{runtime}, two-stage")
            if dense is not None and narrow is not None:
                name = file.stem.partition("-")[0]
                ratio = f"{narrow / dense:.2f}"
                rows.append([name, record["threads"], record["batch"], runtime, f"{dense:.3f}", f"{narrow:.3f}", ratio])
    with arguments.out.open("w", newline="") as stream:
        stream.write(
            f"# benchmarks/engine/run_all, then python -m benchmarks.export.forms_table --out {arguments.out}\n"
        )
        stream.write(about)
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["network", "threads", "batch", "runtime", "dense_ms", "two_stage_ms", "two_stage_over_dense"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
