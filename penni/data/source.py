"""What the training loop needs of a data set, and the data sets that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from penni.errors import PenniError, nearest

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Normalisation:
    """Per-channel mean and standard deviation of pixels in 0…1; a network must see what it was trained with."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


NORMALISATIONS = {
    "cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "imagenet": Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "digits": Normalisation((0.3053,), (0.3770,)),
}


def normalisation(name: str) -> Normalisation:
    """A normalisation by name."""
    if name not in NORMALISATIONS:
        raise PenniError(f"there is no normalisation '{name}': {nearest(name, NORMALISATIONS)}")
    return NORMALISATIONS[name]


def check_batch(size: int) -> int:
    """A number of images per batch, or the error if there is no such batch."""
    if size < 1:
        raise PenniError(f"a batch of {size} images is too small: use 1 or more")
    return size


@dataclass(frozen=True)
class Shard:
    """Which of several training processes this is: each takes its part of every batch."""

    rank: int = 0
    count: int = 1

    def of(self, batch: Tensor) -> Tensor:
        """This process's part of a batch of indices."""
        return batch.tensor_split(self.count)[self.rank]


class ImageSource(Protocol):
    """A training and a test set of images that know how they are augmented and normalised.

    An epoch's order and augmentation follow from (seed, epoch) alone, so that a resumed run sees what the
    uninterrupted one would have seen; and the batch is the same however many processes share it.
    """

    name: str
    normalisation: Normalisation
    classes: int
    shape: tuple[int, int, int]

    def steps(self, batch_size: int) -> int:
        """Training batches in an epoch."""
        ...

    def train(self, batch_size: int, *, seed: int, epoch: int, shard: Shard, device: torch.device) -> Iterator[Batch]:
        """One epoch of shuffled, augmented, normalised training batches."""
        ...

    def test(self, batch_size: int, *, shard: Shard, device: torch.device) -> Iterator[Batch]:
        """The test set, in order."""
        ...


@dataclass(frozen=True)
class Augmentation:
    """Shift by up to `pad` pixels (the border is black), and mirror half of the images."""

    pad: int
    flip: bool

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        padded = F.pad(images, [self.pad] * 4)
        # Every crop of every image is a view; indexing picks one per image without a loop.
        crops = padded.unfold(2, height, 1).unfold(3, width, 1)
        offsets = torch.randint(0, 2 * self.pad + 1, (2, count), generator=generator)
        chosen = crops[torch.arange(count), :, offsets[0], offsets[1]]
        if self.flip:
            mirrored = torch.rand(count, generator=generator) < 0.5
            chosen[mirrored] = chosen[mirrored].flip(-1)
        return chosen


class ArraySource:
    """Images held in memory as bytes."""

    def __init__(
        self,
        name: str,
        train: Batch,
        test: Batch,
        *,
        normalisation: Normalisation,
        augmentation: Augmentation | None,
        classes: int,
    ) -> None:
        self.name = name
        self.normalisation = normalisation
        self.augmentation = augmentation
        self.classes = classes
        self.train_images, self.train_labels = train
        self.test_images, self.test_labels = test
        channels, height, width = self.train_images.shape[1:]
        self.shape = (channels, height, width)
        if len(normalisation.mean) != channels:
            raise PenniError(f"{name} has {channels} channels, its normalisation {len(normalisation.mean)}")

    def steps(self, batch_size: int) -> int:
        """Training batches in an epoch; the last, smaller one counts."""
        return -(-len(self.train_labels) // check_batch(batch_size))

    def train(self, batch_size: int, *, seed: int, epoch: int, shard: Shard, device: torch.device) -> Iterator[Batch]:
        """One epoch of shuffled, augmented, normalised training batches."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.train_labels), generator=generator)
        for batch in torch.split(order, check_batch(batch_size)):
            images = self.train_images[batch]
            if self.augmentation is not None:
                # Augmented before it is shared out, so that the number of processes changes nothing.
                images = self.augmentation(images, generator)
            mine = shard.of(torch.arange(len(batch)))
            yield self._normalised(images[mine], device), self.train_labels[batch[mine]].to(device)

    def test(self, batch_size: int, *, shard: Shard, device: torch.device) -> Iterator[Batch]:
        """The test set, in order."""
        for batch in torch.split(torch.arange(len(self.test_labels)), check_batch(batch_size)):
            mine = shard.of(batch)
            yield self._normalised(self.test_images[mine], device), self.test_labels[mine].to(device)

    def _normalised(self, images: Tensor, device: torch.device) -> Tensor:
        mean = torch.tensor(self.normalisation.mean, device=device).view(-1, 1, 1) * 255
        std = torch.tensor(self.normalisation.std, device=device).view(-1, 1, 1) * 255
        floats = images.to(device, non_blocking=True).float().sub_(mean).div_(std)
        return floats.contiguous(memory_format=torch.channels_last)
