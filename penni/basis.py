"""Phase A: a convolution whose kernels are mixed from a few shared ones, and how to get it from a `Conv2d`.

Every k×k kernel of a layer is a row of a (c_out·c_in)×k² matrix θ. Its best rank-d approximation
A·Bᵀ (Eckart and Young) gives d basis kernels B, shared by the whole layer, and a coefficient per
kernel and basis, A. The forward pass convolves with the reconstructed kernels, so the gradients
of A and B are those of an ordinary convolution put through the chain rule.
"""

from __future__ import annotations

import copy
import fnmatch
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penni.errors import PenniError

log = logging.getLogger(__name__)

Bases = int | Sequence[int] | Mapping[str, int]


class BasisConv2d(nn.Module):
    """A 2-D convolution with kernel[o, i] = Σ_b coefficients[o, i, b] · basis[b].

    The other attributes are those of `nn.Conv2d`. A *pointwise* layer is a 1×1 convolution read as a
    coefficient matrix over the one basis kernel [1], which does not train and costs nothing.
    """

    # Read by serialisation, shrinking and the engine.
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, int]
    bases: int
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        bases: int,
        *,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] | str = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        height, width = kernel_size
        if not 1 <= bases <= height * width:
            raise PenniError(f"{bases} bases do not fit a {height}×{width} kernel: use 1 to {height * width}")
        if in_channels % groups or out_channels % groups:
            raise PenniError(f"{in_channels} inputs and {out_channels} outputs do not divide into {groups} groups")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = (height, width)
        self.bases = bases
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.padding_mode = padding_mode
        self.basis = nn.Parameter(torch.empty(bases, height, width, device=device, dtype=dtype))
        self.coefficients = nn.Parameter(
            torch.empty(out_channels, in_channels // groups, bases, device=device, dtype=dtype)
        )
        if bias:
            self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self._edge_padding = _edge_padding(self.kernel_size, padding, dilation)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Orthonormal basis kernels; coefficients that give the reconstructed kernels He's variance."""
        positions = self.kernel_size[0] * self.kernel_size[1]
        fan_in = max(1, self.in_channels // self.groups) * positions
        if self.is_pointwise:
            self.basis.fill_(1.0)
            self.basis.requires_grad_(False)
        else:
            nn.init.orthogonal_(self.basis.view(self.bases, positions))
        nn.init.normal_(self.coefficients, std=(2.0 * positions / fan_in / self.bases) ** 0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def is_pointwise(self) -> bool:
        """Whether this is a 1×1 convolution: all coefficients, and a basis that is the number one."""
        return self.kernel_size == (1, 1)

    @property
    def weight(self) -> Tensor:
        """The reconstructed kernels, (c_out, c_in/groups, kh, kw), differentiable in A and B."""
        # The product is tiny beside the convolution; in bf16 it would lose digits of A and B for nothing.
        with torch.autocast(device_type=self.basis.device.type, enabled=False):
            kernels = self.coefficients.reshape(-1, self.bases) @ self.basis.reshape(self.bases, -1)
        return kernels.view(self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def forward(self, inputs: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            inputs = F.pad(inputs, self._edge_padding, mode=self.padding_mode)
            padding = (0, 0)
        return F.conv2d(inputs, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def arguments(self) -> dict[str, Any]:
        """What the constructor takes to make a layer of this structure, as plain values."""
        names: tuple[str, ...] = ("in_channels", "out_channels", "kernel_size", "bases")
        names += ("stride", "padding", "dilation", "groups", "padding_mode")
        return {**{name: getattr(self, name) for name in names}, "bias": self.bias is not None}

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, bases={self.bases}"
        for name, default in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1)), ("groups", 1)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode!r}"
        return text


@dataclass(frozen=True)
class LayerChoice:
    """What `decompose` does with one convolution: its number of bases, or why it is left alone."""

    name: str
    bases: int | None
    reason: str = ""


def decompose(
    model: nn.Module,
    bases: Bases = 5,
    *,
    pointwise: bool = False,
    exclude: Sequence[str] = (),
    centred: bool = False,
) -> nn.Module:
    """A copy of `model` whose convolutions share `bases` basis kernels per layer.

    `bases` is one number, a list with one number per decomposed layer in the order of
    `named_modules`, or a mapping from layer-name patterns to numbers (`{"*": 5, "conv1": 7}`; the
    last pattern that matches counts; a layer that none matches is left alone). With k² bases a
    k×k layer is reproduced exactly. `pointwise` reads 1×1 convolutions as coefficient matrices
    too. `centred` takes the basis from the mean-centred kernels, as the paper words it; the
    error of the uncentred default is never larger. `decomposition_plan` tells, before anything is done,
    which layers are left alone and why.
    """
    plan = decomposition_plan(model, bases, pointwise=pointwise, exclude=exclude)
    if not any(choice.bases for choice in plan):
        reasons = "; ".join(sorted({f"{choice.reason}" for choice in plan})) or "it has no convolutions"
        raise PenniError(f"nothing in this model can be decomposed: {reasons}")
    for choice in plan:
        if choice.bases is None:
            log.info("%s is left alone: %s", choice.name, choice.reason)
    # The memo keeps a module that is used in two places one module, in the copy too.
    result = copy.deepcopy(model)
    for choice in plan:
        if choice.bases is not None:
            layer = result.get_submodule(choice.name)
            assert isinstance(layer, nn.Conv2d)
            _replace(result, layer, decompose_layer(layer, choice.bases, centred=centred))
    return result


def decomposition_plan(
    model: nn.Module, bases: Bases = 5, *, pointwise: bool = False, exclude: Sequence[str] = ()
) -> list[LayerChoice]:
    """What `decompose` would do with each convolution of `model`, in order."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    reasons = {name: _why_not(layer, pointwise) for name, layer in layers.items()}
    for pattern in exclude:
        matched = fnmatch.filter(layers, pattern)
        if not matched:
            raise PenniError(f"no convolution is named '{pattern}', which `exclude` asks for")
        reasons.update(dict.fromkeys(matched, "excluded"))
    candidates = {name: layers[name] for name, reason in reasons.items() if not reason}
    numbers = _numbers_per_layer(candidates, layers, bases)
    plan = []
    for name, layer in layers.items():
        if name not in numbers:
            plan.append(LayerChoice(name, None, reasons[name] or "no pattern of `bases` matches it"))
            continue
        number, positions = numbers[name], layer.kernel_size[0] * layer.kernel_size[1]
        if positions == 1:
            number = 1
        elif number > positions and isinstance(bases, int):
            plan.append(LayerChoice(name, None, f"its kernel has only {positions} positions"))
            continue
        plan.append(LayerChoice(name, number))
    return plan


def decompose_layer(layer: nn.Conv2d, bases: int, *, centred: bool = False) -> BasisConv2d:
    """The `BasisConv2d` nearest to `layer`, by the singular value decomposition of its kernels."""
    height, width = layer.kernel_size
    kernels = layer.weight.detach().double().reshape(-1, height * width)
    vectors = principal_kernels(kernels, centred=centred)[1][:, :bases]
    result = BasisConv2d(
        layer.in_channels,
        layer.out_channels,
        (height, width),
        bases,
        stride=_pair(layer.stride),
        padding=layer.padding if isinstance(layer.padding, str) else _pair(layer.padding),
        dilation=_pair(layer.dilation),
        groups=layer.groups,
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode,
        device=layer.weight.device,
        dtype=layer.weight.dtype,
    )
    with torch.no_grad():
        if result.is_pointwise:
            result.coefficients.copy_(layer.weight.reshape(result.coefficients.shape))
        else:
            result.basis.copy_(vectors.T.reshape(bases, height, width))
            result.coefficients.copy_((kernels @ vectors).reshape(result.coefficients.shape))
        if layer.bias is not None and result.bias is not None:
            result.bias.copy_(layer.bias)
    return result.train(layer.training)


def principal_kernels(kernels: Tensor, *, centred: bool = False) -> tuple[Tensor, Tensor]:
    """Singular values, largest first, and the k×k principal directions (as columns) of the rows of `kernels`."""
    if centred:
        kernels = kernels - kernels.mean(dim=0)
    # The k²×k² Gram matrix has the same right singular vectors, and is small however wide the layer.
    squares, vectors = torch.linalg.eigh(kernels.T @ kernels)
    return squares.flip(0).clamp_min(0).sqrt(), vectors.flip(1)


def basis_layers(model: nn.Module) -> dict[str, BasisConv2d]:
    """The decomposed layers of `model` by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, BasisConv2d)}


def reconstruct(model: nn.Module) -> nn.Module:
    """A copy of `model` with every decomposed layer written out as the ordinary `Conv2d` it equals."""
    result = copy.deepcopy(model)
    for layer in basis_layers(result).values():
        plain = nn.Conv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,  # type: ignore[arg-type]
            device=layer.basis.device,
            dtype=layer.basis.dtype,
        )
        with torch.no_grad():
            plain.weight.copy_(layer.weight)
            if layer.bias is not None and plain.bias is not None:
                plain.bias.copy_(layer.bias)
        _replace(result, layer, plain.train(layer.training))
    return result


def _why_not(layer: nn.Conv2d, pointwise: bool) -> str:
    """Why this convolution is not decomposed; empty if it can be."""
    if type(layer) is not nn.Conv2d:
        return f"it is a {type(layer).__name__}, which computes its kernels in its own way"
    if layer.groups > 1 and layer.in_channels == layer.groups:
        return "depthwise: each kernel already stands alone, there is nothing to share"
    if layer.kernel_size == (1, 1) and not pointwise:
        return "1×1: it has a single position (`pointwise=True` reads it as coefficients)"
    return ""


def _numbers_per_layer(
    candidates: Mapping[str, nn.Conv2d], layers: Mapping[str, nn.Conv2d], bases: Bases
) -> dict[str, int]:
    """The number of bases asked for each candidate layer; the error if what was asked cannot be."""
    sizes = {name: layer.kernel_size[0] * layer.kernel_size[1] for name, layer in candidates.items()}
    if isinstance(bases, int):
        largest = max(sizes.values(), default=None)
        if bases < 1 or (largest is not None and bases > largest):
            raise PenniError(f"bases={bases} is out of range: use 1 to {largest or 'k²'} for this model")
        return dict.fromkeys(candidates, bases)
    spatial = [name for name, size in sizes.items() if size > 1]
    numbers = {name: 1 for name, size in sizes.items() if size == 1}
    if isinstance(bases, Mapping):
        for pattern, number in bases.items():
            if not fnmatch.filter(layers, pattern):
                raise PenniError(f"no convolution is named '{pattern}', which `bases` asks for")
            numbers.update(dict.fromkeys(fnmatch.filter(spatial, pattern), number))
    else:
        if len(bases) != len(spatial):
            raise PenniError(f"`bases` lists {len(bases)} numbers for {len(spatial)} layers: {', '.join(spatial)}")
        numbers.update(zip(spatial, bases, strict=True))
    for name, number in numbers.items():
        if not 1 <= number <= sizes[name]:
            raise PenniError(f"bases={number} is out of range for {name}: use 1 to {sizes[name]}")
    return numbers


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` stands in `model`, so that a shared layer stays shared."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return int(first), int(second)


def _edge_padding(kernel_size: tuple[int, int], padding: tuple[int, int] | str, dilation: tuple[int, int]) -> list[int]:
    """What `F.pad` takes for the padding modes that `F.conv2d` does not know: left, right, top, bottom."""
    if padding == "valid":
        return [0, 0, 0, 0]
    amounts: list[int] = []
    for axis in (1, 0):
        if isinstance(padding, str):
            total = dilation[axis] * (kernel_size[axis] - 1)
            amounts += [total // 2, total - total // 2]
        else:
            amounts += [padding[axis], padding[axis]]
    return amounts
