"""A folder with train/ and val/, one sub-folder of images per class, prepared as for ImageNet."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from penni.data.source import Batch, Normalisation, Shard, check_batch
from penni.errors import PenniError

_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


class ImageFolderSource:
    """Images read from disk by worker processes."""

    name = "imagefolder"

    def __init__(
        self, folder: Path, normalisation: Normalisation, *, size: int = 224, workers: int | None = None
    ) -> None:
        self.normalisation = normalisation
        self.shape = (3, size, size)
        self.workers = min(8, os.cpu_count() or 1) if workers is None else workers
        self.class_names, self.train_files = _list_images(folder / "train")
        test_names, self.test_files = _list_images(folder / "val")
        if test_names != self.class_names:
            odd = sorted(set(test_names) ^ set(self.class_names))
            raise PenniError(f"'{folder}' has different classes in train/ and val/: {', '.join(odd[:5])}")
        self.classes = len(self.class_names)

    def steps(self, batch_size: int) -> int:
        """Training batches in an epoch; the last, smaller one counts."""
        return -(-len(self.train_files) // check_batch(batch_size))

    def train(self, batch_size: int, *, seed: int, epoch: int, shard: Shard, device: torch.device) -> Iterator[Batch]:
        """One epoch: a random part of each image, half of them mirrored."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.train_files), generator=generator)
        batches = [shard.of(batch).tolist() for batch in torch.split(order, check_batch(batch_size))]
        images = _Images(self.train_files, self.shape[1], epoch_seed=seed * 1_000_003 + epoch)
        yield from self._load(images, batches, device)

    def test(self, batch_size: int, *, shard: Shard, device: torch.device) -> Iterator[Batch]:
        """The validation images, in order: the middle of each."""
        order = torch.arange(len(self.test_files))
        batches = [shard.of(batch).tolist() for batch in torch.split(order, check_batch(batch_size))]
        yield from self._load(_Images(self.test_files, self.shape[1], epoch_seed=None), batches, device)

    def _load(self, images: _Images, batches: list[list[int]], device: torch.device) -> Iterator[Batch]:
        mean = torch.tensor(self.normalisation.mean, device=device).view(-1, 1, 1) * 255
        std = torch.tensor(self.normalisation.std, device=device).view(-1, 1, 1) * 255
        batches = [batch for batch in batches if batch]
        loader: DataLoader[Any] = DataLoader(
            images, batch_sampler=batches, num_workers=self.workers, collate_fn=_together
        )
        for batch in loader:
            if isinstance(batch, PenniError):
                raise batch
            pixels, labels = batch
            floats = pixels.to(device, non_blocking=True).float().sub_(mean).div_(std)
            yield floats.contiguous(memory_format=torch.channels_last), labels.to(device)


class _Images(Dataset[tuple[Tensor, int] | PenniError]):
    """Decoded, cropped images; the crop of an image follows from the epoch's seed and its index alone.

    A file that is no image is given back as the error: raised in a worker process, it would come with a traceback.
    """

    def __init__(self, files: list[tuple[Path, int]], size: int, epoch_seed: int | None) -> None:
        self.files = files
        self.size = size
        self.epoch_seed = epoch_seed

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | PenniError:
        file, label = self.files[index]
        try:
            with Image.open(file) as opened:
                image = opened.convert("RGB")
        except UnidentifiedImageError:
            return PenniError(f"'{file}' is not an image, though it is named as one: take it out of the folder")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return PenniError(f"'{file}' cannot be read as an image ({error}): replace it or take it out of the folder")
        if self.epoch_seed is None:
            image = _middle(image, self.size)
        else:
            image = _random_part(image, self.size, np.random.default_rng((self.epoch_seed, index)))
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()), label


def _together(items: list[tuple[Tensor, int] | PenniError]) -> tuple[Tensor, Tensor] | PenniError:
    """A batch of the images, or the first error among them."""
    images = []
    for item in items:
        if isinstance(item, PenniError):
            return item
        images.append(item)
    return torch.stack([pixels for pixels, _ in images]), torch.tensor([label for _, label in images])


def _random_part(image: Image.Image, size: int, random: np.random.Generator) -> Image.Image:
    """A part of 8 to 100 % of the area with an aspect ratio of 3:4 to 4:3, mirrored half of the time."""
    width, height = image.size
    box = (0, 0, width, height)
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        part_width, part_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < part_width <= width and 0 < part_height <= height:
            left = int(random.integers(0, width - part_width + 1))
            top = int(random.integers(0, height - part_height + 1))
            box = (left, top, left + part_width, top + part_height)
            break
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def _middle(image: Image.Image, size: int) -> Image.Image:
    """The shorter side to 256/224 of the size, then the square in the middle."""
    width, height = image.size
    scale = size * 256 / 224 / min(width, height)
    image = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


def _list_images(folder: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    if not folder.is_dir():
        raise PenniError(f"there is no folder '{folder}'; an image folder has train/ and val/")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = [
        (file, label)
        for label, name in enumerate(names)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in _ENDINGS
    ]
    if not files:
        raise PenniError(f"'{folder}' has no sub-folders with images; it needs one per class")
    return names, files
