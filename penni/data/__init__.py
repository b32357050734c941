"""Images to train and test on: CIFAR-10, folders of images, handwritten digits."""

from penni.data.cifar10 import fetch_cifar10
from penni.data.open import NAMES, open_data
from penni.data.source import ArraySource, ImageSource, Normalisation

__all__ = ["NAMES", "ArraySource", "ImageSource", "Normalisation", "fetch_cifar10", "open_data"]
