"""scikit-learn's 1,797 handwritten digits, 8×8 grey: what needs no download."""

from __future__ import annotations

import numpy as np
import torch

from penni.data.source import ArraySource, Augmentation, Normalisation
from penni.errors import PenniError

_TEST_IMAGES = 360


def read_digits(normalisation: Normalisation) -> ArraySource:
    """The digits, shuffled once with a fixed seed and split 1,437 : 360."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise PenniError("the digits come with scikit-learn: pip install 'penni[digits]'") from error
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.from_numpy((digits.images[order] * 255 / 16).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target[order].astype(np.int64))
    return ArraySource(
        "digits",
        (images[:-_TEST_IMAGES], labels[:-_TEST_IMAGES]),
        (images[-_TEST_IMAGES:], labels[-_TEST_IMAGES:]),
        normalisation=normalisation,
        augmentation=Augmentation(pad=1, flip=False),
        classes=10,
    )
