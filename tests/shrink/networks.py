"""Small networks, each around one way in which channels are tied; and which of their modules' outputs are tied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penni.models.cifar import ChannelPadShortcut


@dataclass(frozen=True)
class Case:
    """A network and, for the oracle, its groups of modules whose outputs go together channel by channel."""

    make: Callable[[], nn.Module]
    ties: tuple[tuple[str, ...], ...]
    side: int = 8


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.an = nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10)
        self.b, self.bn = nn.Conv2d(10, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.an(self.a(x)))
        x = F.max_pool2d(F.hardswish(self.bn(self.b(x))), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stemn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.a, self.an = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.b, self.bn = nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.join = nn.Identity()
        self.c, self.cn = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.d, self.dn = nn.Conv2d(6, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12)
        self.short, self.shortn = nn.Conv2d(8, 12, 1, stride=2), nn.BatchNorm2d(12)
        self.join2 = nn.Identity()
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stemn(self.stem(x)))
        x = F.relu(self.join(x + self.bn(self.b(F.relu(self.an(self.a(x)))))))
        x = F.relu(self.join2(self.dn(self.d(F.relu(self.cn(self.c(x))))) + self.shortn(self.short(x))))
        return self.head(x.mean((2, 3)))


class PaddedShortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stemn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.a, self.an = nn.Conv2d(8, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)
        self.b, self.bn = nn.Conv2d(6, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.short = ChannelPadShortcut(2, 3, 5)
        self.join = nn.Identity()
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stemn(self.stem(x)))
        x = F.relu(self.join(self.bn(self.b(F.relu(self.an(self.a(x))))) + self.short(x)))
        return self.head(x.mean((2, 3)))


class Concat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 7, 3, padding=1)
        self.b = nn.Conv2d(3, 5, 1)
        self.c = nn.Conv2d(12, 6, 3, padding=1)
        self.d = nn.Conv2d(18, 8, 1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.relu(self.a(x)), F.silu(self.b(x))], 1)
        x = torch.cat([x, F.relu(self.c(x))], 1)
        return self.head(F.gelu(self.d(x)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.an = nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10)
        self.reduce, self.expand = nn.Conv2d(10, 5, 1), nn.Conv2d(5, 10, 1)
        self.gated = nn.Identity()
        self.b = nn.Conv2d(10, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.an(self.a(x)))
        gate = torch.sigmoid(self.expand(F.silu(self.reduce(F.adaptive_avg_pool2d(x, 1)))))
        return self.b(self.gated(x * gate))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.an = nn.Conv2d(3, 9, 1, bias=False), nn.BatchNorm2d(9)
        self.w, self.wn = nn.Conv2d(9, 9, 3, padding=1, groups=9, bias=False), nn.BatchNorm2d(9)
        self.b = nn.Conv2d(9, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu6(self.wn(self.w(F.relu6(self.an(self.a(x)))))))


class Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
        self.slope = nn.PReLU(5)
        self.hidden = nn.Linear(5 * 16, 11)
        self.head = nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.up(F.relu(self.a(x))))
        x = F.interpolate(F.avg_pool2d(x, 4), scale_factor=1.0)
        return self.head(F.relu(self.hidden(x.flatten(1))))


class Sliced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.c = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.a(x).relu().chunk(2, dim=1)
        return self.c(torch.cat([left, self.b(right).relu()], 1))


CASES = {
    "chain": Case(Chain, (("a", "an"), ("b", "bn"))),
    "shortcut": Case(
        Shortcut,
        (("stem", "stemn", "b", "bn", "join"), ("a", "an"), ("c", "cn"), ("d", "dn", "short", "shortn", "join2")),
    ),
    "concat": Case(Concat, (("a",), ("b",), ("c",), ("d",))),
    "squeeze-excite": Case(SqueezeExcite, (("a", "an", "expand", "gated"), ("reduce",))),
    "depthwise": Case(Depthwise, (("a", "an", "w", "wn"),)),
    "flattened": Case(Flattened, (("a",), ("up", "slope"), ("hidden",))),
}
