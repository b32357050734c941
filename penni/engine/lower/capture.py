"""The graph of a network as `torch.export` gives it, with decomposed convolutions kept whole."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import ExportedProgram

from penni.basis import BasisConv2d, basis_layers
from penni.errors import PenniError
from penni.measure.count import evaluating
from penni.quiet import quietly
from penni.regions import flatten_regions

# Exporting two images keeps the batch apart from every size of 1.
BATCH = 2


@torch.library.custom_op("penni::basis_conv2d", mutates_args=())
def _basis_conv2d(
    image: Tensor,
    basis: Tensor,
    coefficients: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """A decomposed convolution as one operator; `padding` is (top, bottom, left, right)."""
    return _convolve(image, basis, coefficients, bias, stride, padding, dilation, groups)


def _convolve(
    image: Tensor,
    basis: Tensor,
    coefficients: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    top, bottom, left, right = padding
    weight = torch.einsum("oib,bhw->oihw", coefficients, basis)
    return F.conv2d(F.pad(image, (left, right, top, bottom)), weight, bias, stride, 0, dilation, groups)


torch.library.register_fake("penni::basis_conv2d", _convolve)


class _KeptWhole(nn.Module):
    """Stands in for a `BasisConv2d` while its network is exported."""

    def __init__(self, layer: BasisConv2d) -> None:
        super().__init__()
        self.basis, self.coefficients, self.bias = layer.basis, layer.coefficients, layer.bias
        self.stride, self.dilation, self.groups = list(layer.stride), list(layer.dilation), layer.groups
        self.mode = layer.padding_mode
        self.sides = four_sides(layer.padding, layer.kernel_size, layer.dilation)

    def forward(self, image: Tensor) -> Tensor:
        padding = self.sides
        if self.mode != "zeros":
            top, bottom, left, right = padding
            image = F.pad(image, (left, right, top, bottom), mode=self.mode)
            padding = [0, 0, 0, 0]
        operator = torch.ops.penni.basis_conv2d
        result: Tensor = operator(
            image, self.basis, self.coefficients, self.bias, self.stride, padding, self.dilation, self.groups
        )
        return result


def four_sides(padding: object, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> list[int]:
    """A convolution's padding, given as PyTorch takes it, as (top, bottom, left, right)."""
    sides: list[int] = []
    for axis in range(2):
        if padding == "same":
            total = dilation[axis] * (kernel[axis] - 1)
            sides += [total // 2, total - total // 2]
        elif isinstance(padding, (tuple, list)):
            sides += [int(padding[axis if len(padding) > 1 else 0])] * 2
        else:
            sides += [0 if padding == "valid" else int(padding)] * 2  # type: ignore[call-overload]
    return sides


def capture(model: nn.Module, example_input: Tensor) -> ExportedProgram:
    """`model` in eval mode as a graph for a batch of `BATCH`; the model is left as it was."""
    marked = _mark(model)
    images = example_input.detach()[:1].expand(BATCH, *example_input.shape[1:]).contiguous()
    parameter = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), None)
    if parameter is not None:
        images = images.to(parameter.device, parameter.dtype)
    # Nothing that the exporter says concerns the user of a compiled network.
    with evaluating(marked), torch.no_grad(), quietly():
        try:
            program = torch.export.export(marked, (images,), strict=False)
            flatten_regions(program.graph_module)
            return program
        except Exception as error:  # export runs the user's own code, which may fail in any way
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise PenniError(f"PyTorch cannot export this network as a graph: {reason}") from error


def _mark(model: nn.Module) -> nn.Module:
    layers = basis_layers(model)
    if not layers:
        return model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    stand_ins = {id(layer): _KeptWhole(layer) for layer in layers.values()}
    # The memo makes the copy use these instead of copying: the tensors are shared, the layers replaced.
    result: nn.Module = copy.deepcopy(model, {**shared, **stand_ins})
    return result
