"""Networks made of random operators in a random order, each reading results of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = tuple[str, int, int]
KINDS = (
    "conv",
    "conv3",
    "grouped",
    "depthwise",
    "deconv",
    "batch norm",
    "group norm",
    "layer norm",
    "prelu",
    "relu",
    "sigmoid",
    "silu",
    "add",
    "multiply",
    "concat",
    "chunk",
    "slice",
    "pad",
    "shuffle",
    "gate",
    "pool",
    "resize",
)


class RandomNetwork(nn.Module):
    """Runs `steps` one after another; what no later step reads is read by the head."""

    def __init__(self, steps: Sequence[Step], side: int = 0) -> None:
        """`side` is the images' size for a head that reads every position; 0 for one that reads means."""
        super().__init__()
        self.layers = nn.ModuleList()
        self.program: list[tuple[tuple[int, ...], Callable[..., Tensor]]] = []
        self.widths = [3]
        self._append((0,), self._layer(nn.Conv2d(3, 8, 3, padding=1)), 8)
        for kind, first, second in steps:
            one = 1 + first % (len(self.widths) - 1)
            two = 1 + second % (len(self.widths) - 1)
            self._step(kind, one, two, second)
        used = {source for sources, _ in self.program for source in sources}
        self.ends = [index for index in range(1, len(self.widths)) if index not in used]
        self.side = side
        self.head = nn.Linear(sum(self.widths[index] for index in self.ends) * max(1, side * side), 5)

    def forward(self, images: Tensor) -> Tensor:
        results = [images]
        for sources, run in self.program:
            results.append(run(self, *(results[source] for source in sources)))
        ends = [results[index] if self.side else results[index].mean((2, 3)) for index in self.ends]
        return self.head(torch.cat(ends, 1).flatten(1))

    def _layer(self, layer: nn.Module) -> Callable[..., Tensor]:
        # By its number, not itself: copies of this network have copies of its layers.
        self.layers.append(layer)
        index = len(self.layers) - 1
        return lambda net, x: net.layers[index](x)

    def _append(self, sources: tuple[int, ...], run: Callable[..., Tensor], width: int) -> None:
        self.program.append((sources, run))
        self.widths.append(width)

    def _step(self, kind: str, one: int, two: int, number: int) -> None:
        width = self.widths[one]
        wider = 4 + 2 * (number % 5)
        if kind == "conv":
            self._append((one,), self._layer(nn.Conv2d(width, wider, 1)), wider)
        elif kind == "conv3":
            self._append((one,), self._layer(nn.Conv2d(width, wider, 3, padding=1, bias=False)), wider)
        elif kind == "grouped" and width % 2 == 0:
            self._append((one,), self._layer(nn.Conv2d(width, wider, 3, padding=1, groups=2)), wider)
        elif kind == "depthwise":
            self._append((one,), self._layer(nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)), width)
        elif kind == "deconv":
            self._append((one,), self._layer(nn.ConvTranspose2d(width, wider, 3, padding=1)), wider)
        elif kind == "batch norm":
            self._append((one,), self._layer(nn.BatchNorm2d(width)), width)
        elif kind == "group norm" and width % 2 == 0:
            self._append((one,), self._layer(nn.GroupNorm(2, width)), width)
        elif kind == "layer norm":
            norm = self._layer(nn.LayerNorm(width))
            self._append((one,), lambda net, x: norm(net, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), width)
        elif kind == "prelu":
            self._append((one,), self._layer(nn.PReLU(width)), width)
        elif kind in ("relu", "sigmoid", "silu"):
            function = {"relu": F.relu, "sigmoid": torch.sigmoid, "silu": F.silu}[kind]
            self._append((one,), lambda net, x: function(x), width)
        elif kind in ("add", "multiply"):
            same = [index for index in range(1, len(self.widths)) if self.widths[index] == width]
            other = same[number % len(same)]
            join = torch.add if kind == "add" else torch.mul
            self._append((one, other), lambda net, x, y: join(x, y), width)
        elif kind == "concat" and width + self.widths[two] <= 64:
            self._append((one, two), lambda net, x, y: torch.cat([x, y], 1), width + self.widths[two])
        elif kind == "chunk" and width % 2 == 0:
            self._append((one,), lambda net, x: torch.mul(*x.chunk(2, dim=1)), width // 2)
        elif kind == "slice":
            self._append((one,), lambda net, x: x[:, x.shape[1] // 2 :], width - width // 2)
        elif kind == "pad" and width <= 24:
            self._append((one,), lambda net, x: F.pad(x, (0, 0, 0, 0, 1, 2)), width + 3)
        elif kind == "shuffle" and width % 2 == 0:
            self._append((one,), lambda net, x: F.channel_shuffle(x, 2), width)
        elif kind == "gate":
            gate = self._layer(nn.Conv2d(width, width, 1))
            self._append((one,), lambda net, x: x * torch.sigmoid(gate(net, F.adaptive_avg_pool2d(x, 1))), width)
        elif kind == "pool":
            self._append((one,), lambda net, x: F.max_pool2d(x, 3, stride=1, padding=1), width)
        elif kind == "resize":
            self._append(
                (one,), lambda net, x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear"), width
            )
