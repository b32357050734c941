"""A decomposed convolution written as two standard ones: depthwise with the basis kernels, then 1×1 with A.

This is the form in which fewer MACs can be seen by other programs: d·c_in depthwise planes, then a matrix.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penni.basis import BasisConv2d, basis_layers, reconstruct


class TwoStageConv2d(nn.Module):
    """What a `BasisConv2d` computes, as a grouped convolution (c_in groups, d outputs each) and a 1×1 convolution."""

    def __init__(self, layer: BasisConv2d) -> None:
        super().__init__()
        used = (layer.coefficients.detach() != 0).flatten(0, 1).any(dim=0)
        if not bool(used.any()):
            used[0] = True  # a layer of zeros still has an output
        basis = layer.basis.detach()[used]
        coefficients = layer.coefficients.detach()[:, :, used]
        bases = basis.shape[0]
        self.padding_mode = layer.padding_mode
        self._edge_padding = list(layer._edge_padding)
        plain_padding = layer.padding_mode == "zeros"
        self.basis = nn.Conv2d(
            layer.in_channels,
            layer.in_channels * bases,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding if plain_padding else (0, 0),
            dilation=layer.dilation,
            groups=layer.in_channels,
            bias=False,
        )
        # Channel i·d + b of the first stage is input i through kernel b, so that the groups of the second, which
        # are runs of channels, are the groups of the convolution.
        self.mix = nn.Conv2d(
            layer.in_channels * bases, layer.out_channels, 1, groups=layer.groups, bias=layer.bias is not None
        )
        self.to(device=basis.device, dtype=basis.dtype)
        with torch.no_grad():
            self.basis.weight.copy_(basis.repeat(layer.in_channels, 1, 1).unsqueeze(1))
            self.mix.weight.copy_(coefficients.reshape(self.mix.weight.shape))
            if layer.bias is not None and self.mix.bias is not None:
                self.mix.bias.copy_(layer.bias)
        self.train(layer.training)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.padding_mode != "zeros":
            inputs = F.pad(inputs, self._edge_padding, mode=self.padding_mode)
        outputs: Tensor = self.mix(self.basis(inputs))
        return outputs


def two_stage(model: nn.Module) -> nn.Module:
    """A copy of `model` with every decomposed k×k layer as two convolutions, every 1×1 one as a plain `Conv2d`."""
    result = copy.deepcopy(model)
    for layer in basis_layers(result).values():
        if layer.is_pointwise:
            continue
        new = TwoStageConv2d(layer)
        for parent in list(result.modules()):
            for name, child in parent._modules.items():
                if child is layer:
                    parent._modules[name] = new
    return reconstruct(result)
