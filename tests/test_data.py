"""Data: the official formats are read, damage is said, augmentation and sharing are what they should be."""

from __future__ import annotations

import json
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import penni
from penni.data import ArraySource, Normalisation, cifar10, open_data
from penni.data.source import Augmentation, Shard

CPU = torch.device("cpu")


def records(count: int = 10_000, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    content = random.integers(0, 256, (count, 3073), dtype=np.uint8)
    content[:, 0] %= 10
    return content


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar")
    for seed, name in enumerate([*cifar10._TRAIN, cifar10._TEST]):
        (folder / f"{name}.bin").write_bytes(records(seed=seed).tobytes())
    return folder


def test_the_binary_and_the_python_version_are_the_same(binary: Path, tmp_path: Path) -> None:
    for seed, name in enumerate([*cifar10._TRAIN, cifar10._TEST]):
        content = records(seed=seed)
        batch = {b"data": content[:, 1:], b"labels": content[:, 0].tolist(), b"batch_label": b"some"}
        (tmp_path / name).write_bytes(pickle.dumps(batch))
    one, other = open_data("cifar10", binary), open_data("cifar10", tmp_path)
    assert isinstance(one, ArraySource)
    assert isinstance(other, ArraySource)
    assert torch.equal(one.train_images, other.train_images)
    assert torch.equal(one.train_labels, other.train_labels)
    assert torch.equal(one.test_images, other.test_images)
    # Planes come as red, green, blue.
    assert one.train_images[0, 1, 0, 0] == records()[0, 1 + 1024]


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return eval, ("1/0",)

    for name in [*cifar10._TRAIN, cifar10._TEST]:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(penni.PenniError, match=r"it asks for builtins\.eval"):
        open_data("cifar10", tmp_path)


def test_damaged_files(binary: Path, tmp_path: Path) -> None:
    with pytest.raises(penni.PenniError, match="has no CIFAR-10 files; get them with: penni data fetch cifar10"):
        open_data("cifar10", tmp_path)
    for file in binary.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    short = tmp_path / "data_batch_3.bin"
    short.write_bytes(short.read_bytes()[:-7])
    with pytest.raises(penni.PenniError, match=r"data_batch_3\.bin' is cut short: 30,729,993 bytes"):
        open_data("cifar10", tmp_path)
    short.unlink()
    with pytest.raises(penni.PenniError, match=r"data_batch_3\.bin' is missing"):
        open_data("cifar10", tmp_path)


def test_the_npm_package_becomes_the_official_layout(tmp_path: Path) -> None:
    """A package laid out like the real one: rows of images as PNG, labels as JSON."""
    home = tmp_path / "package"
    home.mkdir()
    train_labels: list[int] = []
    for seed, name in enumerate([*cifar10._TRAIN, cifar10._TEST]):
        content = records(seed=seed)
        pixels = content[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(pixels).save(home / f"{name}.png", compress_level=0)
        if name == cifar10._TEST:
            (home / "test_lables.json").write_text(json.dumps(content[:, 0].tolist()))
        else:
            train_labels += content[:, 0].tolist()
    (home / "train_lables.json").write_text(json.dumps(train_labels))
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w") as out:
        out.add(home, "package")
    with tarfile.open(archive) as content_archive:
        files = cifar10._decode_npm(content_archive)
    for seed, name in enumerate([*cifar10._TRAIN, cifar10._TEST]):
        assert files[name] == records(seed=seed).tobytes()
    with pytest.raises(penni.PenniError, match="the train images are not CIFAR-10's"):
        cifar10._check(files)


def test_fetching_tells_each_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> dict[str, bytes]:
        raise penni.PenniError("it cannot be reached")

    monkeypatch.setattr(cifar10, "_official_records", unreachable)
    monkeypatch.setattr(cifar10.shutil, "which", lambda _name: None)
    with pytest.raises(
        penni.PenniError, match=r"official download: it cannot be reached; the npm .*: npm is not installed"
    ):
        cifar10.fetch_cifar10(tmp_path / "new", say=lambda _text: None)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["/proc/cifar", "file/cifar", "file"])
def test_a_folder_that_cannot_be_written_is_said_before_the_download(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(cifar10, "_official_records", lambda: pytest.fail("it was downloaded"))
    with pytest.raises(penni.PenniError, match=r"cifar' cannot be written \(.*choose another|file' cannot be written"):
        cifar10.fetch_cifar10(tmp_path / place, say=lambda _text: None)
    monkeypatch.setattr(cifar10.shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(2e6, 1e6, 1e6))
    with pytest.raises(penni.PenniError, match=r"1 MB left for .* CIFAR-10 takes 184 MB"):
        cifar10.fetch_cifar10(tmp_path / "a" / "b", say=lambda _text: None)
    assert not (tmp_path / "a").exists()


def test_augmentation_shifts_and_mirrors() -> None:
    image = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).expand(400, 1, 4, 4)
    result = Augmentation(pad=2, flip=True)(image, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(image[:1], [2] * 4)
    crops = {
        tuple(crop.flatten().tolist())
        for y in range(5)
        for x in range(5)
        for crop in (padded[0, :, y : y + 4, x : x + 4], padded[0, :, y : y + 4, x : x + 4].flip(-1))
    }
    seen = {tuple(each.flatten().tolist()) for each in result}
    assert seen <= crops
    # 5×5 shifts, mirrored or not; 400 draws see nearly all of them.
    assert len(seen) > 40


def digits() -> ArraySource:
    source = open_data("digits")
    assert isinstance(source, ArraySource)
    return source


def test_the_digits() -> None:
    source = digits()
    assert (len(source.train_labels), len(source.test_labels), source.shape, source.classes) == (
        1437,
        360,
        (1, 8, 8),
        10,
    )
    images = torch.cat([images for images, _ in source.test(100, shard=Shard(), device=CPU)])
    assert abs(float(images.mean())) < 0.1
    assert abs(float(images.std()) - 1) < 0.1


def test_processes_share_the_very_batches_of_one() -> None:
    source = digits()

    def epoch(shard: Shard) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(source.train(100, seed=1, epoch=2, shard=shard, device=CPU))

    whole, first, second = epoch(Shard()), epoch(Shard(0, 2)), epoch(Shard(1, 2))
    for (images, labels), (x, a), (y, b) in zip(whole, first, second, strict=True):
        assert torch.equal(images, torch.cat([x, y]))
        assert torch.equal(labels, torch.cat([a, b]))


def test_an_epoch_follows_from_seed_and_number() -> None:
    source = digits()

    def first(seed: int, epoch: int) -> torch.Tensor:
        return next(iter(source.train(100, seed=seed, epoch=epoch, shard=Shard(), device=CPU)))[0]

    assert torch.equal(first(1, 2), first(1, 2))
    assert not torch.equal(first(1, 2), first(1, 3))
    assert not torch.equal(first(1, 2), first(2, 2))


def make_folder(home: Path, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 5), ("val", 3)):
        for name in classes:
            (home / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(0, 256, (40 + index, 60, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(home / part / name / f"{index}.png")
    return home


def test_a_folder_of_images(tmp_path: Path) -> None:
    source = open_data(f"imagefolder:{make_folder(tmp_path)}")
    source.workers = 0  # type: ignore[attr-defined]
    assert (source.classes, source.shape, source.steps(4)) == (2, (3, 224, 224), 3)
    batches = list(source.train(4, seed=0, epoch=0, shard=Shard(), device=CPU))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert batches[0][0].shape == (4, 3, 224, 224)
    again = list(source.train(4, seed=0, epoch=0, shard=Shard(), device=CPU))
    assert torch.equal(batches[0][0], again[0][0])
    labels = torch.cat([labels for _, labels in source.test(4, shard=Shard(), device=CPU)])
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a text", r"^'[^']*4\.png' is not an image, though it is named as one: take it out of the folder$"),
        (None, r"^'[^']*4\.png' cannot be read as an image \(.*\): replace it or take it out of the folder$"),
    ],
)
def test_a_file_that_is_no_image_is_one_sentence(
    content: bytes | None, message: str, workers: int, tmp_path: Path
) -> None:
    file = make_folder(tmp_path) / "train" / "cat" / "4.png"
    file.write_bytes(file.read_bytes()[:-900] if content is None else content)
    source = open_data(f"imagefolder:{tmp_path}")
    source.workers = workers  # type: ignore[attr-defined]
    with pytest.raises(penni.PenniError, match=message):
        list(source.train(4, seed=0, epoch=0, shard=Shard(), device=CPU))


def test_a_batch_of_nothing(tmp_path: Path) -> None:
    for source in (digits(), open_data(f"imagefolder:{make_folder(tmp_path)}")):
        with pytest.raises(penni.PenniError, match="a batch of 0 images is too small: use 1 or more"):
            source.steps(0)
        with pytest.raises(penni.PenniError, match="a batch of -1 images is too small"):
            list(source.test(-1, shard=Shard(), device=CPU))


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(penni.PenniError, match="an image folder has train/ and val/"):
        open_data(f"imagefolder:{tmp_path}")
    make_folder(tmp_path)
    (tmp_path / "val" / "horse").mkdir()
    with pytest.raises(penni.PenniError, match="different classes in train/ and val/: horse"):
        open_data(f"imagefolder:{tmp_path}")


def test_names() -> None:
    with pytest.raises(penni.PenniError, match="did you mean 'cifar10'"):
        open_data("cifar")
    with pytest.raises(penni.PenniError, match="did you mean 'imagenet'"):
        open_data("digits", normalise="imagnet")
    with pytest.raises(penni.PenniError, match="has 1 channels, its normalisation 3"):
        open_data("digits", normalise="imagenet")
    for name in ("cifar10", "digits", "imagefolder"):
        with pytest.raises(penni.PenniError, match=f"there is no folder '/nowhere' to read {name} from"):
            open_data(name, "/nowhere")
    assert Normalisation((0.5,), (0.5,)).mean == (0.5,)
