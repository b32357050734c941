"""Compress a network on a folder of images: train/CLASS/*.png and val/CLASS/*.png.

Give your own folder as the first argument. Without one, a few coloured squares are drawn, which shows that every
step works in seconds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import penni
from penni.recipes import Finetune, Prune, Retrain


def draw_images(folder: Path) -> Path:
    """Red and blue squares with noise."""
    generator = np.random.default_rng(0)
    for split, number in (("train", 8), ("val", 4)):
        for name, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
            place = folder / split / name
            place.mkdir(parents=True)
            for index in range(number):
                pixels = generator.normal(colour, 30, (40, 40, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")
    return folder


def main() -> None:
    """Open the folder, compress with a short recipe, write the report."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else draw_images(Path(temporary) / "images")
        data = penni.open_data(f"imagefolder:{folder}")
        model = penni.build("torchvision:mobilenet_v3_small", num_classes=data.classes)
        recipe = penni.Recipe(
            retrain=Retrain(epochs=1, interval=0, regulariser="none", unit_norm=True),
            prune=Prune(density=0.3),
            finetune=Finetune(epochs=1),
        )
        small = penni.compress(model, data, recipe, Path(temporary) / "run")
        print(f"{sum(parameter.numel() for parameter in small.parameters()):,} parameters are left")


if __name__ == "__main__":
    main()
