"""What many tests share: small data, small networks, and one thread each so that parallel tests do not fight."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Before torch is imported anywhere: several test processes share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def penni_command(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run `penni …` in this process, in an empty folder or another; gives the exit code and what was printed."""
    import contextlib
    import io
    import sys

    from penni.cli import main

    def run(*arguments: object, folder: Path = tmp_path) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        before_arguments, before_folder = sys.argv, Path.cwd()
        sys.argv = ["penni", *map(str, arguments)]
        os.chdir(folder)
        code = 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.argv = before_arguments
            os.chdir(before_folder)
        return code, out.getvalue(), err.getvalue()

    return run
