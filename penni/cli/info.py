"""`penni info`: the version, the kernels that run on this machine and why, and what is installed."""

from __future__ import annotations

from penni.cli.options import Json, print_json


def info(as_json: Json = False) -> None:
    """Show what this installation can do on this machine."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from penni._version import __version__
    from penni.engine.engine import usable_cores
    from penni.engine.runtime import available, chosen

    sets, runs = available(), chosen()
    asked = os.environ.get("PENNI_ISA")
    why = f"PENNI_ISA={asked} asks for it" if asked else "the fastest that this processor has"
    installed: dict[str, str | None] = {}
    for name in ("numpy", "pillow", "torch", "torchvision", "timm", "onnx", "onnxruntime", "openvino"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = None
    about = {
        "penni": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernels": {"runs": runs, "why": why, "available": sets},
        "threads": usable_cores(),
        "installed": installed,
    }
    if as_json:
        print_json(about)
        return
    print(f"penni {__version__}, Python {about['python']}, {about['machine']}")
    print(f"kernels: {runs}, {why} (there are {', '.join(sets)})")
    print(f"threads: {about['threads']} by default, one per usable core")
    for name, number in installed.items():
        print(f"{name}: {number or 'not installed'}")
    if installed["torch"] is None:
        print("Without torch, packed networks run; compressing and packing need: pip install 'penni[compress]'")
