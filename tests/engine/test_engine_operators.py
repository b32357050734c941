"""Every operator that the engine knows, alone or nearly so, against PyTorch: interpreted and in the native engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import penni
from penni import BasisConv2d, UnknownOperatorError
from penni.engine import reference
from penni.engine.build import build
from penni.engine.lower import lower
from penni.engine.plan import plan_by_cost


class Call(nn.Module):
    """A function as a network, with a convolution in front so that it works on a computed value."""

    def __init__(self, function: Callable[[Tensor], Tensor], **tensors: Tensor) -> None:
        super().__init__()
        self.front = nn.Conv2d(4, 6, 3, padding=1)
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.front(x))


def _se(x: Tensor) -> Tensor:
    return x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1))


def _shuffle(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w) * 1.5


def _split(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=1)
    return torch.cat((F.relu(second), first, x[:, 1:2]), dim=1)


def _in_place_alias(x: Tensor) -> Tensor:
    before = x.view(x.shape[0], -1)
    F.relu_(x)
    return before + 1.0


def _in_place_copy(x: Tensor) -> Tensor:
    kept = x.clone()
    F.relu_(x)
    return kept + x


def _in_place_sum(x: Tensor) -> Tensor:
    y = F.avg_pool2d(x, 3, 1, 1)
    y += x
    y.mul_(2.0)
    return F.relu_(y) - x


def _zero_channels(x: Tensor) -> Tensor:
    zeros = torch.zeros(x.shape[0], 2, x.shape[2], x.shape[3])
    return torch.cat((zeros, x, zeros[:, :1]), dim=1)


def _put_back(x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], 9, *x.shape[2:]).index_copy(1, torch.tensor([0, 3, 4, 8, 2, 7]), x)


def _efficient_attention(x: Tensor) -> Tensor:
    rows = F.conv1d(x.mean((2, 3)).unsqueeze(1), torch.tensor([[[0.5, 1.0, -0.5]]]), padding=1)
    return x * rows.transpose(1, 2).unsqueeze(-1).sigmoid().expand_as(x)


def _split_sum(x: Tensor) -> Tensor:
    parts = x.view(x.shape[0], 2, 3, *x.shape[2:])
    return (parts * F.adaptive_avg_pool2d(x, 1).view(x.shape[0], 2, 3, 1, 1)).sum(1) * parts.mean(1)


def _channels_last(x: Tensor) -> Tensor:
    y = x.permute(0, 2, 3, 1)
    y = F.layer_norm(y, (6,), torch.linspace(0.5, 1.5, 6), torch.linspace(-1, 1, 6))
    y = F.gelu(F.linear(y, torch.linspace(-1, 1, 48).view(8, 6), torch.ones(8)))
    return y.permute(0, 3, 1, 2) * torch.linspace(1, 2, 8).view(8, 1, 1)


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": lambda x: F.relu6(x * 6),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "silu": F.silu,
    "hardswish": lambda x: F.hardswish(x * 3),
    "hardsigmoid": lambda x: F.hardsigmoid(x * 3),
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "elu": lambda x: F.elu(x, 0.7),
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-0.2, 0.4),
    "clamp_min": lambda x: x.clamp(min=-0.1),
    "clamp_max": lambda x: x.clamp(max=0.1),
    "add_scalar": lambda x: 1 + x,
    "subtract": lambda x: x - F.relu(x),
    "reverse_subtract": lambda x: 1 - x,
    "divide": lambda x: x / 3,
    "negate": lambda x: -x,
    "multiply_channels": lambda x: x * torch.linspace(0, 1, 6).view(1, 6, 1, 1),
    "add_alpha": lambda x: torch.add(x, F.relu(x), alpha=0.5),
    "squeeze_excite": _se,
    "shuffle": _shuffle,
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3) * 2,
    "split": _split,
    "in_place_alias": _in_place_alias,
    "in_place_copy": _in_place_copy,
    "in_place_sum": _in_place_sum,
    "zero_channels": _zero_channels,
    "put_back": _put_back,
    "channels_last": _channels_last,
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool_many_rows": lambda x: F.max_pool2d(F.interpolate(x, scale_factor=5.0), 3, 2, 1),
    "avg_pool_many_rows": lambda x: F.avg_pool2d(F.interpolate(x, scale_factor=5.0), 3, 2, 1),
    "max_pool_ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max_pool_dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "max_pool_flat": lambda x: F.max_pool2d(x, (1, 3), (2, 1), (0, 1)),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool_inside": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, (2, 5)),
    "adaptive_avg_larger": lambda x: F.adaptive_avg_pool2d(x, 13),
    "mean_plane": lambda x: x.mean((2, 3)),
    "mean_channels": lambda x: x.mean(1, keepdim=True) + x,
    "mean_row": lambda x: x.mean(3, keepdim=True) * x,
    "efficient_attention": _efficient_attention,
    "split_sum": _split_sum,
    "sum_plane": lambda x: x.sum((2, 3)),
    "sum_channels": lambda x: x.sum(1, keepdim=True),
    "batched_constant": lambda x: x + torch.linspace(0, 1, 6).view(1, 6, 1, 1).repeat(x.shape[0], 1, 1, 1),
    "softmax": lambda x: F.softmax(x.mean((2, 3)), dim=1),
    "softmax_channels": lambda x: F.softmax(x, dim=1),
    "log_softmax": lambda x: F.log_softmax(x.flatten(1), dim=-1),
    "strided_slice": lambda x: x[:, :, 1::2, ::3] * 2,
    "option_a": lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 3)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "pad_negative": lambda x: F.pad(x, (-1, 2, 1, -2)),
    "pad_reflect": lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (2, 1, 1, 2), mode="circular"),
    "flip": lambda x: x.flip(3) + x,
    "transpose_planes": lambda x: x.transpose(2, 3) * 2,
    "flatten_permuted": lambda x: x.permute(0, 2, 3, 1).flatten(1),
    "index_select": lambda x: x.index_select(1, torch.tensor([5, 0, 0, 3])),
    "index": lambda x: x[:, [1, 4]] + 1,
    "unbind": lambda x: torch.stack(x.unbind(1)[::-1], dim=1),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1, -1) * 2,
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4], 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :8, :6], 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest_size": lambda x: F.interpolate(x, size=(5, 13)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(x, size=(15, 4), mode="bilinear", align_corners=True),
    "group_norm": lambda x: F.group_norm(x, 3, torch.linspace(0.5, 1, 6), torch.linspace(-1, 1, 6)),
    "instance_norm": F.instance_norm,
    "layer_norm_all": lambda x: F.layer_norm(x, x.shape[1:]),
    "concat_rows": lambda x: torch.cat((x, x * 2), dim=2),
    "normalised_weight": lambda x: F.conv2d(x, F.normalize(torch.linspace(-1, 1, 48).view(8, 6, 1, 1), dim=1)),
    "matmul": lambda x: x.flatten(1)[:, :30] @ torch.linspace(-1, 1, 150).view(30, 5),
    "split_sizes": lambda x: x.split([1, 2, 3], dim=1)[2] + 1,
    "reshape_features": lambda x: F.relu(x.flatten(1)).view(x.shape[0], -1, 3, 3),
}


def _agree(model: nn.Module, image: Tensor) -> None:
    model = model.eval()
    with torch.no_grad():
        expected = model(image.clone()).numpy()
    scale = max(1e-3, float(np.abs(expected).max()))
    program = lower(model, image)
    interpreted = reference.run(program, image.numpy())
    assert interpreted.shape == expected.shape
    assert float(np.abs(interpreted - expected).max()) <= 1e-5 * scale
    answer = build(program, plan_by_cost(program, 2), 2)(image.numpy())
    assert answer.shape == expected.shape
    assert float(np.abs(answer - expected).max()) <= 1e-5 * scale


@pytest.fixture
def image() -> Tensor:
    return torch.randn(3, 4, 9, 7, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_answers_as_pytorch(name: str, image: Tensor) -> None:
    torch.manual_seed(0)
    _agree(Call(OPERATORS[name]), image)


def _bn(channels: int) -> nn.Module:
    layer = nn.BatchNorm2d(channels)
    layer.running_mean = torch.linspace(-1, 1, channels)
    layer.running_var = torch.linspace(0.5, 2, channels)
    layer.weight.data = torch.linspace(-1, 2, channels)
    layer.bias.data = torch.linspace(1, 0, channels)
    return layer


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(4, 5, 3),
    "conv_stride": lambda: nn.Conv2d(4, 5, (3, 2), stride=(2, 3), padding=(0, 2), dilation=(2, 1)),
    "conv_groups": lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1, bias=False),
    "conv_depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1),
    "conv_same_even": lambda: nn.Conv2d(4, 5, (2, 4), padding="same"),
    "conv_valid": lambda: nn.Conv2d(4, 5, 3, padding="valid"),
    "conv_reflect": lambda: nn.Conv2d(4, 5, 3, padding=2, padding_mode="reflect"),
    "conv_circular": lambda: nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular"),
    "conv_whole_plane": lambda: nn.Conv2d(4, 5, (9, 7)),
    "conv_norm": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), _bn(6), nn.SiLU()),
    "conv_norm_groups": lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, bias=False), _bn(6), nn.Hardswish()),
    "norm_alone": lambda: nn.Sequential(_bn(4), nn.ReLU()),
    "norm_before_conv": lambda: nn.Sequential(_bn(4), nn.Conv2d(4, 6, 3, padding=1)),
    "norm_twice": lambda: nn.Sequential(_bn(4), _bn(4)),
    "zero_pad_conv": lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 2, 1)), nn.Conv2d(4, 6, 3, padding=1)),
    "transpose": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
    "transpose_groups": lambda: nn.ConvTranspose2d(4, 6, (2, 3), stride=(1, 2), groups=2, dilation=(2, 1), bias=False),
    "transpose_norm": lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), _bn(6), nn.ReLU()),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(252, 5), nn.LeakyReLU()),
    "linear_norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(252, 5, bias=False), nn.BatchNorm1d(5), nn.Dropout(), nn.ELU()
    ),
    "unflatten": lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 9, 7)), nn.ReLU(inplace=True)),
    "basis": lambda: BasisConv2d(4, 6, (3, 3), 4, padding=(1, 1)),
    "basis_stride_groups": lambda: BasisConv2d(4, 6, (3, 3), 2, stride=(2, 2), groups=2, bias=False),
    "basis_same_even": lambda: BasisConv2d(4, 6, (4, 2), 3, padding="same"),
    "basis_dilated": lambda: BasisConv2d(4, 6, (3, 2), 3, padding=(2, 1), dilation=(2, 3)),
    "basis_reflect": lambda: BasisConv2d(4, 6, (3, 3), 3, padding=(2, 1), padding_mode="reflect"),
    "basis_pointwise": lambda: BasisConv2d(4, 6, (1, 1), 1, stride=(2, 1)),
    "basis_norm": lambda: nn.Sequential(BasisConv2d(4, 6, (3, 3), 4), _bn(6), nn.ReLU6()),
}


@pytest.mark.parametrize("sparse", [False, True], ids=["full", "zeros"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_layer_answers_as_pytorch(name: str, sparse: bool, image: Tensor) -> None:
    torch.manual_seed(0)
    model = LAYERS[name]()
    if sparse:
        for tensor in model.state_dict().values():
            if tensor.ndim > 2:
                tensor.mul_(torch.rand_like(tensor) < 0.4)
    _agree(model, image)


def test_shared_modules_and_two_residuals(image: Tensor) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = BasisConv2d(4, 4, (3, 3), 3, padding=(1, 1))
            self.norm, self.other = _bn(4), _bn(4)

        def forward(self, x: Tensor) -> Tensor:
            once = F.relu(self.norm(self.conv(x)) + x)
            twice = self.other(self.conv(once)) + self.norm(self.conv(x))
            return F.relu(twice) + once

    torch.manual_seed(0)
    _agree(Shared(), image)


def test_parts_under_no_grad_and_under_no_autocast(image: Tensor) -> None:
    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            return x.relu() * 2

    _agree(Call(function), image)


def test_an_unknown_operator_is_named_with_its_place(image: Tensor) -> None:
    class Strange(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.erfinv(x * 0.1)

    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sequential(nn.ReLU(), Strange()))
    with pytest.raises(UnknownOperatorError, match=r"'aten\.erfinv', used in '1\.1' \(a Strange\).*engine\.md"):
        penni.compile(model, image)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.sum(0, keepdim=True) + x, "across the images of a batch"),
        (lambda x: x.mean(3), r"needs a tensor of shape \(batch, 6, 9\)"),
        (lambda x: x.mean(), "across the images of a batch"),
        (lambda x: x.flatten(0, 1), "merges the batch"),
        (lambda x: x.permute(1, 0, 2, 3), "moves the batch"),
        (lambda x: x / x.mean((2, 3), keepdim=True), "divides by something computed"),
        (lambda x: x * torch.randn(1, 6, 9, 7), "differs within a channel"),
        (lambda x: F.conv2d(x, x[:1, :6, :3, :3].contiguous()), "computed from the image|part of the batch"),
    ],
)
def test_a_use_without_a_step_says_why(function: Callable[[Tensor], Tensor], words: str, image: Tensor) -> None:
    with pytest.raises(UnknownOperatorError, match=words):
        penni.compile(Call(function), image)


def test_a_norm_without_running_statistics_is_refused(image: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(UnknownOperatorError, match="running statistics"):
        penni.compile(model, image)
