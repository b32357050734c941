"""The packed file: what it holds, and that a damaged one is refused with one sentence."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penni.engine import Engine, load, pack
from penni.errors import PenniError


@pytest.fixture(scope="module")
def content(small_file: str) -> bytes:
    return Path(small_file).read_bytes()


def _refused(content: bytes, folder: Path) -> str:
    """The sentence with which a file of this content is refused."""
    file = folder / "damaged.penni"
    file.write_bytes(content)
    with pytest.raises(PenniError) as caught:
        load(file, threads=1)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def _repacked(content: bytes, change) -> bytes:
    """The file with its network changed and a checksum that fits: an edit with bad intent."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    network = json.loads(header["__metadata__"]["network"])
    header = change(network, header) or header
    header["__metadata__"] = {"penni": "1", "checksum": "0" * 64, "network": json.dumps(network, separators=(",", ":"))}
    ordered = {"__metadata__": header.pop("__metadata__"), **header}
    text = json.dumps(ordered, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    whole = len(text).to_bytes(8, "little") + text + content[8 + length :]
    return pack._with_checksum(whole, 8 + text.index(b'"checksum":"') + 12)


def test_a_saved_engine_answers_the_same(small_file: str, tmp_path: Path) -> None:
    engine = load(small_file, threads=1)
    images = pack.np.random.default_rng(0).standard_normal((5, 1, 8, 8), dtype=np.float32)
    again = load(engine.save(tmp_path / "again.penni"), threads=1)
    assert np.array_equal(engine(images), again(images))
    assert (tmp_path / "again.penni").read_bytes() == Path(small_file).read_bytes()


def test_the_file_is_safetensors_and_aligned(small_file: str) -> None:
    from safetensors.numpy import load_file

    tensors = {name: array for name, array in load_file(small_file).items() if not name.startswith("~")}
    packed = pack.read(small_file)
    assert set(tensors) == set(packed.places)
    for name, place in packed.places.items():
        array = packed.weights[place.offset : place.offset + place.count * place.dtype.itemsize].view(place.dtype)
        assert np.array_equal(array, tensors[name].ravel())
        assert array.ctypes.data % 64 == 0


def test_a_file_cut_anywhere_is_refused(content: bytes, tmp_path: Path) -> None:
    length = int.from_bytes(content[:8], "little")
    places = [0, 1, 7, 8, 9, 40, 120, 8 + length // 2, 8 + length - 1, 8 + length, 8 + length + 1, len(content) - 1]
    places += [random.Random(place).randrange(len(content)) for place in range(40)]
    for place in places:
        assert re.search("cut short|is empty|not a packed network", _refused(content[:place], tmp_path)), place


def test_any_flipped_bit_is_refused(content: bytes, tmp_path: Path) -> None:
    chooser = random.Random(0)
    length = int.from_bytes(content[:8], "little")
    places = [*range(8), *range(8, 120), *(chooser.randrange(len(content)) for _ in range(150)), 8 + length]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << chooser.randrange(8)
        _refused(bytes(damaged), tmp_path)


def test_bytes_after_the_end_are_refused(content: bytes, tmp_path: Path) -> None:
    assert "changed after it was written" in _refused(content + b"\0", tmp_path)


def test_another_version_is_refused_by_its_number(content: bytes, tmp_path: Path) -> None:
    later = content.replace(b'{"penni":"1"', b'{"penni":"2"', 1)
    assert "format 2, and this penni" in _refused(later, tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "not a packed network" in _refused(b"PK\x03\x04" + bytes(200), tmp_path)
    with pytest.raises(PenniError, match="there is no file"):
        load(tmp_path / "nothing.penni")
    with pytest.raises(PenniError, match=r"is a folder.*penni pack"):
        load(tmp_path)


def _set(*keys, value):
    def change(network, header):
        target = network
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


EDITS = {
    "no steps": _set("steps", value=None),
    "steps of nothing": _set("steps", value=[None]),
    "no such operator": _set("steps", 0, "op", value="explode"),
    "an input that is not there": _set("steps", 0, "inputs", value=[999]),
    "a negative input": _set("steps", 0, "inputs", value=[-1]),
    "an output past the end": _set("output", value=10_000),
    "a value without size": _set("values", 1, value=[0, 8, 8]),
    "a value with two sizes": _set("values", 1, value=[8, 8]),
    "a larger value": _set("values", 1, value=[64, 8, 8]),
    "a huge value": _set("values", 1, value=[2**40, 2**40, 2**40]),
    "a wrong input": _set("input_shape", value=[3, 8, 8]),
    "a wrong output": _set("output_shape", value=[11]),
    "a kernel that is larger": _set("steps", 0, "attributes", "kernel", value=[5, 5]),
    "a stride of nothing": _set("steps", 0, "attributes", "stride", value=[0, 1]),
    "a stride in words": _set("steps", 0, "attributes", "stride", value="fast"),
    "a true stride": _set("steps", 0, "attributes", "stride", value=[True, 1]),
    "a negative padding": _set("steps", 0, "attributes", "padding", value=[-1, 1, 1, 1]),
    "attributes of nothing": _set("steps", 0, "attributes", value={}),
    "a tensor that is not there": _set("steps", 0, "tensors", "weight", value="nowhere"),
    "another step's tensor": _set("steps", 0, "tensors", "weight", value="3.weight"),
    "a tensor of another type": _set("steps", 0, "tensors", "index", value="0.weight"),
    "an origin in words": _set("origin", value="resnet"),
    "no MACs": _set("steps", 0, "macs", value=None),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_is_refused(edit: str, content: bytes, tmp_path: Path) -> None:
    assert "damaged.penni' is damaged: " in _refused(_repacked(content, EDITS[edit]), tmp_path)


def _tensor(key, value):
    def change(network, header):
        name = network["steps"][0]["tensors"]["weight"]
        header[name][key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _tensor("data_offsets", [-4, 0]),
        _tensor("data_offsets", [0, 2**62]),
        _tensor("data_offsets", ["a", "b"]),
        _tensor("data_offsets", [8, 4]),
        _tensor("shape", [2**62, 2**62]),
        _tensor("shape", [-1]),
        _tensor("shape", [1.5]),
        _tensor("dtype", "F64"),
        _tensor("dtype", "U16"),
    ],
)
def test_an_edited_tensor_is_refused(change, content: bytes, tmp_path: Path) -> None:
    assert re.search("damaged|cut short", _refused(_repacked(content, change), tmp_path))


def test_indices_that_point_outside_are_refused(content: bytes, tmp_path: Path) -> None:
    packed = pack.decode(memoryview(content), "it")
    length = int.from_bytes(content[:8], "little")
    for role in ("index", "lines", "row_start", "blocks"):
        place = packed.places[packed.network["steps"][1]["tensors"][role]]
        begin = 8 + length + place.offset
        damaged = bytearray(content)
        damaged[begin : begin + place.dtype.itemsize * place.count] = b"\xf0" * (place.dtype.itemsize * place.count)
        assert "refuses this plan" in _refused(_repacked(bytes(damaged), lambda network, header: None), tmp_path), role


def test_random_edits_never_crash(content: bytes, tmp_path: Path) -> None:
    """Numbers of the plan changed at random, with a checksum that fits: refused, or harmless."""
    chooser = random.Random(0)

    def change(network, header):
        for _ in range(chooser.randint(1, 3)):
            target = chooser.choice([network["values"], network["steps"]])
            place = chooser.randrange(len(target))
            if target is network["steps"]:
                target, place = target[place]["attributes"], chooser.choice(sorted(target[place]["attributes"]) or [""])
                if place == "":
                    continue
            value = target[place]
            if isinstance(value, list) and value:
                value[chooser.randrange(len(value))] = chooser.choice([0, -1, 1, 2, 3, 7, 64, 2**31, 2**63, 1.5, None])
            else:
                target[place] = chooser.choice([0, 1, -1, 2**40, "x", None, 3])

    refused = 0
    images = np.ones((2, 1, 8, 8), np.float32)
    for _ in range(150):
        file = tmp_path / "edited.penni"
        file.write_bytes(_repacked(content, change))
        try:
            load(file, threads=1)(images)
        except PenniError:
            refused += 1
    assert refused > 75


def test_writing_is_whole_or_not_at_all(small_file: str, tmp_path: Path) -> None:
    engine = load(small_file, threads=1)
    target = tmp_path / "m.penni"
    target.write_bytes(b"before")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(PenniError, match="cannot be written"):
            engine.save(target)
        tmp_path.chmod(0o700)
    with pytest.raises(PenniError, match="cannot be written"):
        engine.save(target / "inside")
    assert target.read_bytes() == b"before"
    engine.save(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.penni"]
    assert target.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_it_loads_and_runs_without_torch(small_file: str) -> None:
    """A process that can import neither torch nor safetensors nor scipy runs the file, and the command line too."""
    script = f"""
import sys
for name in ("torch", "safetensors", "scipy", "torchvision", "onnx"):
    sys.modules[name] = None
import numpy as np
import penni.engine
engine = penni.engine.load({small_file!r}, threads=1)
answer = engine(np.ones((2, 1, 8, 8), np.float32))
assert answer.shape == (2, 10) and np.isfinite(answer).all()
from penni.cli import main
np.save("in.npy", np.ones((1, 1, 8, 8), np.float32))
for arguments in (["info"], ["run", {small_file!r}, "--image", "in.npy"], ["inspect", {small_file!r}, "--repeats", "2"],
                  ["bench", {small_file!r}, "--against", "none", "--runs", "3"]):
    sys.argv = ["penni", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
loaded = [name for name in sys.modules if name.partition(".")[0] in ("torch", "safetensors") and sys.modules[name]]
assert not loaded, loaded
print("done")
"""
    folder = Path(small_file).parent
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


def test_the_engine_class_is_the_public_one(small_file: str) -> None:
    import penni

    assert isinstance(penni.engine.load(small_file), penni.Engine)
    assert penni.Engine is Engine
