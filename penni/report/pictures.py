"""The coefficient matrix and the reconstructed weights of a few layers, as pictures: one pixel per number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penni.basis import BasisConv2d, basis_layers
from penni.report.drawing import Palette, style
from penni.report.findings import Findings

_ROWS, _COLUMNS = 128, 640
_POSITIVE, _NEGATIVE = (0.80, 0.29, 0.10), (0.16, 0.42, 0.86)

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Picture:
    """One figure of pictures."""

    name: str
    title: str
    caption: str
    draw: Callable[[Palette], Any]


def pictures(run: Findings) -> Iterator[Picture]:
    """For an early, a middle and a late layer: A decomposed and pruned; the weights dense, decomposed and pruned."""
    decomposed = {n: x for n, x in basis_layers(run.networks["decomposed"]).items() if not x.is_pointwise}
    unshrunk = [stage for stage in run.networks if stage != "checkpoint"][-1]
    newest = basis_layers(run.networks[unshrunk])
    names = list(decomposed)
    chosen = sorted({round(share * (len(names) - 1)) for share in (0.1, 0.5, 0.9)}) if names else []
    label = {"finetuned": "pruned and fine-tuned", "decomposed": "decomposed"}.get(unshrunk, unshrunk)
    for index in chosen:
        name = names[index]
        layer = decomposed[name]
        coefficients = [("decomposed", _coefficients(layer)), (label, _coefficients(newest[name]))]
        dense = run.networks["base"].get_submodule(name).weight
        assert isinstance(dense, torch.Tensor)
        weights = [
            ("base", _weights(dense)),
            ("decomposed", _weights(layer.weight)),
            (label, _weights(newest[name].weight)),
        ]
        if unshrunk == "decomposed":
            coefficients, weights = coefficients[:1], weights[:2]
        yield Picture(
            f"coefficients-{index}",
            f"Coefficient matrix of {name}",
            f"One row per output channel, one column per basis kernel of each input channel. {_KEY}",
            lambda p, parts=coefficients: _draw(  # type: ignore[misc]
                p, parts, "input channel × basis"
            ),
        )
        yield Picture(
            f"weights-{index}",
            f"Reconstructed weights of {name}",
            f"One row per output channel, one column per kernel position of each input channel. {_KEY}",
            lambda p, parts=weights: _draw(  # type: ignore[misc]
                p, parts, "input channel × kernel position"
            ),
        )


_KEY = "Orange is positive, blue negative, the background zero; each picture has its own scale."


def _coefficients(layer: BasisConv2d) -> Array:
    return _matrix(layer.coefficients)


def _weights(weight: torch.Tensor) -> Array:
    return _matrix(weight)


def _matrix(tensor: torch.Tensor) -> Array:
    matrix: Array = tensor.detach().float().reshape(tensor.shape[0], -1).numpy()
    return matrix


def _draw(palette: Palette, parts: Sequence[tuple[str, Array]], columns: str) -> Any:
    rows, width = parts[0][1].shape
    shown_rows, shown_columns = min(rows, _ROWS), min(width, _COLUMNS)
    with style(palette) as new_figure:
        height = 0.6 + max(0.8, min(2.0, 3.4 * shown_rows / shown_columns))
        figure = new_figure(figsize=(3.9, height * len(parts)))
        for axes, (title, matrix) in zip(figure.subplots(len(parts), 1, squeeze=False)[:, 0], parts, strict=True):
            zeros = float((matrix == 0).mean())
            axes.imshow(_pixels(matrix[:_ROWS, :_COLUMNS]), aspect="auto", interpolation="none")
            axes.set_title(f"{title} ({zeros:.2%} zeros)")
            axes.set_ylabel("output")
            axes.grid(visible=False)
            for side in ("top", "right"):
                axes.spines[side].set_visible(True)
        cut = (shown_rows, shown_columns) != (rows, width)
        part = f"\nthe first {shown_rows} × {shown_columns} of {rows} × {width}" if cut else ""
        axes.set_xlabel(columns + part)
        figure.subplots_adjust(hspace=0.6)
        return figure


def _pixels(matrix: Array) -> NDArray[np.float32]:
    """Colour for the sign, opacity for the size: zero is the page's own background, whatever its theme."""
    sizes = np.abs(matrix)
    used = sizes[sizes > 0]
    scale = float(np.quantile(used, 0.99)) if used.size else 1.0
    picture = np.empty((*matrix.shape, 4), dtype=np.float32)
    picture[..., :3] = np.where(matrix[..., None] > 0, np.array(_POSITIVE), np.array(_NEGATIVE))
    # The square root lets small weights be seen at all.
    picture[..., 3] = np.sqrt(np.clip(sizes / scale, 0, 1))
    return picture
