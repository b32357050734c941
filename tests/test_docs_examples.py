"""Every script under examples/ runs, in seconds, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SAYS = {
    "own_torchvision_model": "packed:",
    "timm_model": "exported; in onnxruntime",
    "pruned_elsewhere": "answers as the pruned one",
    "image_folder": "parameters are left",
}


def test_every_example_is_expected() -> None:
    assert {file.stem for file in EXAMPLES} == set(SAYS)


@pytest.mark.parametrize("file", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_example(file: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert SAYS[file.stem] in result.stdout
