"""From an image file to a network's input, as the packed file says; and from its answer to classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penni.engine.program import Array, Shape
from penni.errors import PenniError


def check_preprocessing(given: Mapping[str, Any], input_shape: Shape) -> dict[str, Any]:
    """`mean`, `std` (per channel, of pixels in 0…1), `crop` (the share of the shorter side that the network sees)."""
    channels = input_shape[0]
    result: dict[str, Any] = {}
    for key in ("mean", "std"):
        values = given.get(key)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != channels:
            raise PenniError(f"{key} is {values!r}; the network's input needs {channels} numbers, one per channel")
        try:
            result[key] = [float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise PenniError(f"{key} is {values!r}, which are not numbers") from error
    if not all(value > 0 for value in result["std"]):
        raise PenniError(f"std is {result['std']}; a standard deviation is above zero")
    crop = given.get("crop", 1.0)
    if isinstance(crop, bool) or not isinstance(crop, (int, float)) or not 0 < crop <= 1:
        raise PenniError(f"crop is {crop!r}; use a share above 0 and up to 1")
    return {**result, "crop": float(crop)}


def read_image(file: str | Path, input_shape: Shape, preprocessing: Mapping[str, Any]) -> Array:
    """One image as a batch of one: its shorter side resized, the middle cut out, normalised."""
    from PIL import Image, UnidentifiedImageError

    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        raise PenniError(f"this network takes inputs of shape {input_shape}, which are not images: give it a .npy file")
    settings = check_preprocessing(preprocessing, input_shape)
    channels, height, width = input_shape
    if not Path(file).is_file():
        raise PenniError(f"there is no image '{file}'")
    try:
        with Image.open(file) as opened:
            image = opened.convert("L" if channels == 1 else "RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise PenniError(f"'{file}' cannot be read as an image: {error}") from error
    # The smallest picture of this shape that covers the input with the margin that `crop` leaves.
    scale = max(height / image.height, width / image.width) / settings["crop"]
    size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    if size != image.size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    image = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(image, dtype=np.float32).reshape(height, width, channels) / 255
    normalised = (pixels - np.float32(settings["mean"])) / np.float32(settings["std"])
    return np.ascontiguousarray(normalised.transpose(2, 0, 1)[None], dtype=np.float32)


def read_array(file: str | Path, input_shape: Shape) -> Array:
    """A batch (N, …), or one item without the batch axis, from a `.npy` file."""
    if not Path(file).is_file():
        raise PenniError(f"there is no file '{file}'")
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise PenniError(f"'{file}' cannot be read as a NumPy array: {error}") from error
    if not isinstance(array, np.ndarray):
        raise PenniError(f"'{file}' holds several arrays; give one in a .npy file")
    return array[None] if array.shape == input_shape else array


def best(answer: Array, top: int) -> list[tuple[int, float]]:
    """The `top` classes of one answer with their probabilities (softmax, unless the answer is one already)."""
    scores = np.asarray(answer, dtype=np.float64).ravel()
    is_share = bool((scores >= 0).all()) and abs(float(scores.sum()) - 1) < 1e-4
    if not is_share:
        exponents = np.exp(scores - scores.max())
        scores = exponents / exponents.sum()
    return [(int(index), float(scores[index])) for index in np.argsort(-scores, kind="stable")[:top]]
