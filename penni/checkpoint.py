"""A network as a folder: `model.safetensors` and `structure.json`. Never a pickle, never half-written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penni._version import __version__
from penni.errors import PenniError
from penni.models import Origin, build, moved, origin_of
from penni.structure import Description, describe, rebuild

FORMAT = 1
STRUCTURE = "structure.json"
WEIGHTS = "model.safetensors"

# A tensor this large with this share of zeros is written as its non-zeros and one bit per element.
_SPARSE_FROM_ELEMENTS = 256
_SPARSE_BELOW_DENSITY = 0.9


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    origin: Origin | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write `model` to `folder`, whole or not at all; a checkpoint already there is replaced.

    A model made by `penni.models.build` remembers how; for another, give `origin`, or give the
    constructed model to `load`. `notes` (plain JSON) are kept with the structure.
    """
    folder = Path(folder)
    origin = origin or origin_of(model)
    layers = _layers_of(model, origin)
    structure: dict[str, Any] = {
        "format": FORMAT,
        "penni": __version__,
        "torch": torch.__version__,
        "model": asdict(moved(origin, to=folder)) if origin is not None else None,
        "layers": layers,
        "notes": dict(notes or {}),
    }
    tensors, packing = _pack(model.state_dict())
    with replacing_folder(folder) as temporary:
        from safetensors.torch import save as serialise

        content = serialise(tensors)
        (temporary / WEIGHTS).write_bytes(content)
        structure["weights"] = {"sha256": hashlib.sha256(content).hexdigest(), **packing}
        (temporary / STRUCTURE).write_text(json.dumps(structure, indent=1) + "\n")
    return folder


def check_saveable(model: nn.Module) -> None:
    """The error that `save` would end in, before the time is spent that makes a network worth saving."""
    _layers_of(model, origin_of(model))


def _layers_of(model: nn.Module, origin: Origin | None) -> Description:
    return describe(model, build(origin.name, **origin.arguments) if origin is not None else None)


def load(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The network saved in `folder`, in eval mode.

    `model` is what the constructor gives, needed only where the checkpoint does not say how to
    build it; it is changed and returned.
    """
    folder = _home(Path(folder))
    structure = read_structure(folder)
    if model is None:
        if structure["model"] is None:
            raise PenniError(
                f"'{folder}' does not say how its model is built: load it with penni.load(folder, model=YourModel())"
            )
        origin = moved(Origin(**structure["model"]), back_from=folder)
        try:
            model = build(origin.name, **origin.arguments)
        except PenniError as error:
            raise PenniError(f"'{folder}' cannot be built again: {error}") from error
    model = rebuild(model, structure["layers"])
    if structure["model"] is not None:
        model._penni_origin = moved(Origin(**structure["model"]), back_from=folder)  # type: ignore[assignment]
    model._penni_input = _input_of(structure)  # type: ignore[assignment]
    state = _read_tensors(folder, structure["weights"])
    expected = model.state_dict()
    for key, tensor in expected.items():
        if key not in state:
            raise PenniError(f"'{folder}' has no weights for '{key}', which its structure needs")
        if state[key].shape != tensor.shape:
            raise PenniError(f"'{key}' is {tuple(state[key].shape)} in '{folder}' but should be {tuple(tensor.shape)}")
    for key in state:
        if key not in expected:
            raise PenniError(f"'{folder}' has weights for '{key}', which its structure does not have")
    model.load_state_dict(state)
    return model.eval()


def _input_of(structure: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Channels, height and width of the images it was trained on, if its notes tell."""
    noted = structure.get("notes", {}).get("input")
    return tuple(noted) if isinstance(noted, list) and len(noted) == 3 else None


def is_checkpoint(folder: str | Path) -> bool:
    """Whether `folder` holds a checkpoint, or a finished run with one."""
    return (_home(Path(folder)) / STRUCTURE).is_file()


def _home(folder: Path) -> Path:
    """A run's folder stands for the checkpoint that the run ended with."""
    inside = folder / "checkpoint"
    return inside if not (folder / STRUCTURE).is_file() and (inside / STRUCTURE).is_file() else folder


def read_structure(folder: str | Path) -> dict[str, Any]:
    """The checked content of a checkpoint's `structure.json`."""
    if not Path(folder).is_dir():
        raise PenniError(f"there is no checkpoint folder '{folder}'")
    file = _home(Path(folder)) / STRUCTURE
    if not file.is_file():
        unfinished = (Path(folder) / "state.safetensors").is_file()
        why = "its run is not finished; go on with --resume" if unfinished else f"it has no {STRUCTURE}"
        raise PenniError(f"'{folder}' is not a checkpoint: {why}")
    try:
        structure = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PenniError(f"'{file}' is damaged: {error}") from error
    needed = {"format": int, "layers": dict, "weights": dict}
    if not isinstance(structure, dict) or not all(isinstance(structure.get(k), t) for k, t in needed.items()):
        raise PenniError(f"'{file}' is damaged: it lacks one of {', '.join(needed)}")
    if structure["format"] != FORMAT:
        raise PenniError(
            f"'{folder}' has checkpoint format {structure['format']}, this penni {__version__} reads format {FORMAT}"
        )
    origin = structure.setdefault("model", None)
    if origin is not None and not (
        isinstance(origin, dict) and isinstance(origin.get("name"), str) and isinstance(origin.get("arguments"), dict)
    ):
        raise PenniError(f"'{file}' is damaged: 'model' is not a name with arguments")
    return structure


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block ends well, and vanishes otherwise."""
    if folder.exists() and not folder.is_dir():
        raise PenniError(f"'{folder}' is a file; a checkpoint is a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / STRUCTURE).is_file():
        raise PenniError(f"'{folder}' holds something else than a checkpoint; choose another folder")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            temporary.chmod(0o755)
            yield temporary
            for file in temporary.iterdir():
                _flush(file)
            if folder.exists():
                old = temporary.with_name(temporary.name + ".old")
                folder.rename(old)
                temporary.rename(folder)
                shutil.rmtree(old)
            else:
                temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PenniError(f"no disk space left to write '{target}'; nothing was changed") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.ENOENT, errno.EFBIG):
            raise PenniError(f"'{target}' cannot be written: {error.strerror}") from error
        raise


def _flush(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def _pack(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors to write, and how to get the state dict from them: mostly-zero ones sparse, tied ones once."""
    tensors: dict[str, Tensor] = {}
    sparse: dict[str, list[int]] = {}
    shared: dict[str, str] = {}
    seen: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for key, tensor in state.items():
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and identity in seen:
            shared[key] = seen[identity]
            continue
        seen[identity] = key
        tensor = tensor.detach().cpu().contiguous()
        used = tensor != 0
        if (
            tensor.is_floating_point()
            and tensor.numel() >= _SPARSE_FROM_ELEMENTS
            and int(used.sum()) < _SPARSE_BELOW_DENSITY * tensor.numel()
        ):
            sparse[key] = list(tensor.shape)
            tensors[f"{key}#values"] = tensor[used].clone()
            tensors[f"{key}#bits"] = torch.from_numpy(np.packbits(used.numpy().ravel()))
        else:
            tensors[key] = tensor.clone()
    return tensors, {"sparse": sparse, "shared": shared}


def _read_tensors(folder: Path, packing: Mapping[str, Any]) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as deserialise

    file = folder / WEIGHTS
    if not file.is_file():
        raise PenniError(f"'{folder}' has no {WEIGHTS}")
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != packing.get("sha256"):
        raise PenniError(f"'{file}' is cut short or was edited: it is not the file that {STRUCTURE} describes")
    try:
        tensors = deserialise(content)
        for key, shape in packing.get("sparse", {}).items():
            values, bits = tensors.pop(f"{key}#values"), tensors.pop(f"{key}#bits")
            dense = torch.zeros(shape, dtype=values.dtype)
            used = np.unpackbits(bits.numpy(), count=dense.numel()).astype(bool)
            dense.view(-1)[torch.from_numpy(used)] = values
            tensors[key] = dense
        for key, source in packing.get("shared", {}).items():
            tensors[key] = tensors[source]
    except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError, IndexError) as error:
        raise PenniError(f"'{file}' is damaged: {error}") from error
    return tensors
