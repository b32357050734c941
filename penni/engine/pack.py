"""The packed file: safetensors with the plan as metadata, read and written with numpy alone.

A `.penni` file is a safetensors file, which any reader of that format opens. Its header starts with a
fixed prefix, so that the version and the checksum are found before anything else is believed:

    8 bytes    length of the header, little-endian
    header     {"__metadata__":{"penni":"<format>","checksum":"<sha-256>","network":"<JSON>"},"<tensor>":{…},…}
    tensors    each at a multiple of 64 bytes from the start of the file, with the gaps as tensors "~0", "~1", …

The checksum is that of the whole file with its own 64 digits as zeros.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penni._version import __version__
from penni.engine.narrow import narrow, widen
from penni.engine.program import Array
from penni.errors import PenniError

FORMAT = 1
ALIGNMENT = 64
_LARGEST_HEADER = 64 * 2**20
_PREFIX = re.compile(rb'\{"__metadata__":\{"penni":"(\d{1,6})","checksum":"([0-9a-f]{64})","network":')
_NAMES = {"<f4": "F32", "<i4": "I32", "<u4": "U32", "<u2": "U16", "<i2": "I16", "|u1": "U8", "<f2": "F16"}
_TYPES = {name: np.dtype(code) for code, name in _NAMES.items()}
# bf16 has no numpy type: its bits are kept as whole numbers.
_TYPES["BF16"] = np.dtype("<u2")
_BIG_ENDIAN = np.dtype("=i4").str.startswith(">")


@dataclass(frozen=True)
class Place:
    """Where a tensor is in the weights, in bytes, and how many elements of which type it has."""

    offset: int
    count: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Packed:
    """The content of a packed file: the network as plain JSON, and its tensors in one piece of memory."""

    network: dict[str, Any]
    weights: Array
    places: Mapping[str, Place]
    content: memoryview


def encode(network: Mapping[str, Any], tensors: Mapping[str, Array], storage: Mapping[str, str] | None = None) -> bytes:
    """The content of a file. `storage` says which float32 tensors are kept as "fp16" or "bf16"."""
    if _BIG_ENDIAN:
        raise PenniError("the engine works on little-endian machines only")
    chosen = storage or {}
    names: dict[str, str] = {}
    stored: dict[str, Array] = {}
    for name, array in tensors.items():
        stored[name], names[name] = narrow(array, chosen[name]) if name in chosen else (array, _NAMES[array.dtype.str])
    plain = json.dumps(network, separators=(",", ":"))
    # Offsets depend on the header's length only through its padding, which brings it to the alignment.
    entries: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = gaps = 0
    for name, array in stored.items():
        gap = -offset % ALIGNMENT
        if gap:
            entries[f"~{gaps}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [offset, offset + gap]}
            parts.append(bytes(gap))
            offset, gaps = offset + gap, gaps + 1
        content = np.ascontiguousarray(array).tobytes()
        entries[name] = {
            "dtype": names[name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(content)],
        }
        parts.append(content)
        offset += len(content)
    metadata = {"penni": str(FORMAT), "checksum": "0" * 64, "network": plain}
    header = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    content = b"".join([len(header).to_bytes(8, "little"), header, *parts])
    match = _PREFIX.match(header)
    assert match is not None
    return _with_checksum(content, 8 + match.start(2))


def _with_checksum(content: bytes, place: int) -> bytes:
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:place] + digest + content[place + 64 :]


def write(file: str | Path, content: bytes) -> Path:
    """Put `content` at `file`, whole or not at all."""
    # Loading must be quick, and only writing needs this.
    import tempfile

    file = Path(file)
    temporary = ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes it private; a packed network is as readable as any new file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PenniError(f"no disk space left to write '{file}'; nothing was changed") from error
        raise PenniError(f"'{file}' cannot be written: {error.strerror}") from error
    return file


def read(file: str | Path) -> Packed:
    """The content of a file, whose tensors stay in it and are mapped; or the `PenniError` that refuses it."""
    file = Path(file)
    try:
        with file.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise PenniError(f"'{file}' is empty")
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise PenniError(f"there is no file '{file}'") from error
    except IsADirectoryError as error:
        raise PenniError(
            f"'{file}' is a folder; a packed network is a file, which `penni pack` makes of a checkpoint"
        ) from error
    except (OSError, ValueError) as error:
        raise PenniError(f"'{file}' cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return decode(memoryview(mapped), str(file))


def decode(content: memoryview, name: str) -> Packed:
    """What `encode` made, its tensors without a copy unless some are stored narrow."""
    if len(content) < 8:
        raise PenniError(f"'{name}' is cut short: it has {len(content)} bytes")
    length = int.from_bytes(content[:8], "little")
    match = _PREFIX.match(bytes(content[8 : 8 + 256]))
    if match is None:
        raise PenniError(f"'{name}' is not a packed network, or its beginning is damaged")
    if int(match[1]) != FORMAT:
        raise PenniError(
            f"'{name}' has format {int(match[1])}, and this penni {__version__} reads format {FORMAT}: "
            "pack the checkpoint again with this version"
        )
    if length > _LARGEST_HEADER:
        raise PenniError(f"'{name}' is damaged: its header would have {length} bytes")
    if len(content) < 8 + length:
        raise PenniError(f"'{name}' is cut short: it has {len(content)} bytes and its header needs {8 + length}")
    place = 8 + match.start(2)
    digest = hashlib.sha256(content[:place])
    digest.update(b"0" * 64)
    digest.update(content[place + 64 :])
    intact = digest.hexdigest().encode() == match[2]
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
        network = json.loads(header.pop("__metadata__")["network"])
        needed = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        if len(content) < 8 + length + needed:
            raise PenniError(f"'{name}' is cut short: it has {len(content)} of {8 + length + needed} bytes")
        if not intact:
            raise PenniError(f"'{name}' was changed after it was written: its checksum does not fit")
        if not isinstance(network, dict):
            raise TypeError("its network is no object")
        weights = np.frombuffer(content, dtype=np.uint8)[8 + length :]
        entries = {str(key): entry for key, entry in header.items() if not key.startswith("~")}
        weights, places = _places(weights, entries)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        if not intact:
            raise PenniError(f"'{name}' was changed after it was written: its checksum does not fit") from None
        raise PenniError(f"'{name}' is damaged: its header does not describe a network ({error})") from error
    return Packed(network, weights, places, content)


def _places(weights: Array, entries: Mapping[str, Mapping[str, Any]]) -> tuple[Array, dict[str, Place]]:
    stored = {name: _place(weights, entry) for name, entry in entries.items()}
    half = {name for name, entry in entries.items() if entry["dtype"] in ("F16", "BF16")}
    if not half:
        return weights, stored
    # Half-precision weights are written out as the float32 that the kernels read.
    places: dict[str, Place] = {}
    offset = 0
    for name, place in stored.items():
        kind = np.dtype("<f4") if name in half else place.dtype
        places[name] = Place(offset, place.count, kind)
        offset += -(-place.count * kind.itemsize // ALIGNMENT) * ALIGNMENT
    expanded = aligned(offset)
    for name, place in stored.items():
        array = weights[place.offset : place.offset + place.count * place.dtype.itemsize].view(place.dtype)
        wide = widen(array, entries[name]["dtype"]) if name in half else array
        start = places[name].offset
        expanded[start : start + wide.nbytes] = wide.view(np.uint8)
    return expanded, places


def _place(weights: Array, entry: Mapping[str, Any]) -> Place:
    kind = _TYPES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    for number in (begin, end, *shape):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a size")
    count = math.prod(shape)
    if not begin <= end <= len(weights) or end - begin != count * kind.itemsize or begin % kind.itemsize:
        raise ValueError("a tensor's size does not fit its place")
    return Place(begin, count, kind)


def aligned(size: int) -> Array:
    """So many bytes of memory that begin at a cache line."""
    memory = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]
