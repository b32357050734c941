"""Open a data set by the name a user gives it."""

from __future__ import annotations

from pathlib import Path

from penni.data.cifar10 import read_cifar10
from penni.data.digits import read_digits
from penni.data.imagefolder import ImageFolderSource
from penni.data.source import ImageSource, normalisation
from penni.errors import PenniError, nearest

NAMES = ("cifar10", "digits", "imagefolder:PATH")


def _how_to_get(kind: str, folder: str | Path) -> str:
    return f"; get its files with: penni data fetch cifar10 --data-dir {folder}" if kind == "cifar10" else ""


def open_data(name: str, folder: str | Path | None = None, normalise: str | None = None) -> ImageSource:
    """The data set called `name`: `cifar10` (its files in `folder`), `digits`, or `imagefolder:PATH`.

    `normalise` names the normalisation where it is not the data set's own.
    """
    kind, _, path = name.partition(":")
    if folder is not None and not Path(folder).is_dir():
        raise PenniError(f"there is no folder '{folder}' to read {kind} from{_how_to_get(kind, folder)}")
    if kind == "cifar10":
        return read_cifar10(Path(folder or ".data/cifar10"), normalisation(normalise or "cifar10"))
    if kind == "digits":
        return read_digits(normalisation(normalise or "digits"))
    if kind == "imagefolder":
        if not (path or folder):
            raise PenniError("say where the images are: imagefolder:PATH")
        return ImageFolderSource(Path(path or str(folder)), normalisation(normalise or "imagenet"))
    raise PenniError(f"there is no data set '{name}': {nearest(name, ('cifar10', 'digits', 'imagefolder:PATH'))}")
