"""Operators with weights: convolutions, linear layers, normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx, nn

from penni.basis import BasisConv2d
from penni.shrinking.analysis import AllOrNothing, Analysis, Axis, Edges, Glue, Grouped, Layer, Mixture
from penni.shrinking.capture import Graph
from penni.shrinking.cells import Constant, Ids, Mask, Value, along, compact, varying_axes
from penni.shrinking.constraints import EqualGroups, WholeGroups


def convolution(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """`conv1d` to `conv3d` and their transposes: output channels read input channels through non-zero kernels."""
    value, weight = arguments[0], arguments[1]
    bias = _argument(arguments, named, 2, "bias", None)
    transposed = "transpose" in str(node.target)
    groups = int(_argument(arguments, named, 6, "groups", 1))
    if not isinstance(value, Value) or not isinstance(weight, Constant) or isinstance(bias, Value):
        operands = [value, weight, bias]
        return analysis.barrier(node, operands, f"{analysis.site(node)} computes its kernels from the input")
    axis = len(value.shape) - (weight.value.dim() - 1)
    if any(other > axis for other in varying_axes(value)) and value.plane.shape[axis] == 1:
        return analysis.barrier(node, [value], f"{analysis.site(node)} slides over the channels")
    inputs = analysis.by_axis(node, value, axis)
    used = nonzero_kernels(analysis, node, weight)
    if transposed:  # (I, O/G) → (G, O, I)
        used = used.reshape(groups, -1, used.shape[1]).transpose(0, 2, 1)
    else:  # (O, I/G) → (G, O, I)
        used = used.reshape(groups, -1, used.shape[1])
    outputs = _mix(analysis, node, inputs, used, bias)
    direct = weight.parameter
    if direct is None:
        _computed_kernel(analysis, node, inputs, outputs)
    elif groups == 1:
        analysis.axes.append(Axis(direct, 1 if transposed else 0, outputs))
        analysis.axes.append(Axis(direct, 0 if transposed else 1, inputs))
    else:
        grouped_inputs, grouped_outputs = inputs.reshape(groups, -1), outputs.reshape(groups, -1)
        if grouped_inputs.shape == grouped_outputs.shape == (groups, 1):  # depthwise: what comes in goes out
            analysis.cells.tie(outputs, inputs)
        analysis.constraints.append(EqualGroups(grouped_inputs, grouped_outputs, analysis.site(node)))
        analysis.grouped.append(Grouped(direct, grouped_inputs, grouped_outputs, transposed))
    if direct is not None:
        analysis.hold_axis(bias, 0, outputs)
    analysis.layers.append(Layer(Graph.path(node), inputs, outputs))
    shape = tuple(node.meta["val"].shape)
    result = Value(shape, along(axis, len(shape), outputs))
    layer = analysis.module(node)
    if groups > 1 and not isinstance(layer, (nn.modules.conv._ConvNd, BasisConv2d)):
        analysis.glue.append(Glue(node, "groups", (value,), (result,)))
    return result


def linear(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """`linear` over the last axis; where channels lie along another axis it works on each of them alone."""
    value, weight = arguments[0], arguments[1]
    bias = _argument(arguments, named, 2, "bias", None)
    if not isinstance(value, Value) or not isinstance(weight, Constant) or isinstance(bias, Value):
        return analysis.barrier(node, [value, weight, bias], f"{analysis.site(node)} computes its weights")
    shape = tuple(node.meta["val"].shape)
    last = len(value.shape) - 1
    if value.plane.shape[last] == 1 and varying_axes(value):
        blank = bias is None or bool((bias.value == 0).all())
        return Value(shape, _renew(analysis, node, value, analysis.cells.zero if blank else None).plane)
    inputs = analysis.by_axis(node, value, last)
    used = (weight.value != 0).numpy()
    outputs = _mix(analysis, node, inputs, used[None], bias)
    if weight.parameter is not None:
        analysis.axes.append(Axis(weight.parameter, 0, outputs))
        analysis.axes.append(Axis(weight.parameter, 1, inputs))
        analysis.hold_axis(bias, 0, outputs)
    else:
        _computed_kernel(analysis, node, inputs, outputs)
    analysis.layers.append(Layer(Graph.path(node), inputs, outputs))
    return Value(shape, along(last, len(shape), outputs))


def batch_norm(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Each channel is scaled and shifted alone; a zero stays one only without a shift."""
    value, weight, bias, mean, variance = arguments[:5]
    epsilon = float(_argument(arguments, named, 7, "eps", 1e-5))
    inputs = analysis.by_axis(node, value, 1)
    size = len(inputs)
    scale = weight.value.double() if weight is not None else torch.ones(size, dtype=torch.float64)
    shift = bias.value.double().clone() if bias is not None else torch.zeros(size, dtype=torch.float64)
    flat, shifted = (scale == 0).numpy(), shift.numpy().copy()
    if mean is not None and variance is not None:
        shift = shift - scale * mean.value.double() / torch.sqrt(variance.value.double() + epsilon)
    constant = np.where(flat, shifted, analysis.cells.constant[inputs] * scale.numpy() + shift.numpy())
    outputs = analysis.fresh(node, size, constant=constant)
    analysis.cells.tie(outputs, inputs)
    live = (scale != 0).numpy()
    analysis.reads.append(Edges(outputs[live], inputs[live]))
    for constant in (weight, bias, mean, variance):
        analysis.hold_axis(constant, 0, outputs)
    analysis.hold_norm(node, outputs)
    return Value(value.shape, along(1, len(value.shape), outputs))


def layer_norm(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Statistics over the last axes: where channels lie there, none can go without changing the others."""
    value, normalised = arguments[0], list(arguments[1])
    weight = _argument(arguments, named, 2, "weight", None)
    bias = _argument(arguments, named, 3, "bias", None)
    first = len(value.shape) - len(normalised)
    coupled = [axis for axis in varying_axes(value) if axis >= first]
    if not coupled:
        blank = bias is None or bool((bias.value == 0).all())
        return _renew(analysis, node, value, analysis.cells.zero if blank else None)
    inputs = value.cells()
    analysis.cells.pin(inputs, f"{analysis.site(node)} takes its statistics over the channels")
    if coupled != [len(value.shape) - 1]:
        return analysis.barrier(node, [value], f"{analysis.site(node)} takes its statistics over the channels")
    last = len(value.shape) - 1
    columns = analysis.by_axis(node, value, last)
    zero = np.zeros(len(columns), dtype=bool)
    if weight is not None and len(normalised) == 1:
        zero = (weight.value == 0).numpy() & (bias is None or (bias.value == 0).numpy())
    outputs = analysis.fresh(node, len(columns), zero)
    analysis.cells.tie(outputs, columns)
    live = outputs[~zero]
    analysis.reads.append(AllOrNothing(live, columns))
    return Value(value.shape, along(last, len(value.shape), outputs))


def group_norm(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Statistics over groups of channels: whole groups can go."""
    value, groups = arguments[0], int(arguments[1])
    weight = _argument(arguments, named, 2, "weight", None)
    bias = _argument(arguments, named, 3, "bias", None)
    return _grouped_norm(analysis, node, value, groups, weight, bias)


def instance_norm(analysis: Analysis, node: fx.Node, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Statistics over each channel alone."""
    value, weight, bias, mean, variance, use_input = arguments[:6]
    if not use_input:
        return batch_norm(analysis, node, (value, weight, bias, mean, variance, False, 0.0, arguments[7]), {})
    result = _grouped_norm(analysis, node, value, value.shape[1], weight, bias)
    for constant in (mean, variance):
        analysis.hold_axis(constant, 0, analysis.by_axis(node, result, 1))
    return result


def _grouped_norm(
    analysis: Analysis, node: fx.Node, value: Value, groups: int, weight: Constant | None, bias: Constant | None
) -> Value:
    inputs = analysis.by_axis(node, value, 1)
    size = len(inputs)
    scale = (weight.value != 0).numpy() if weight is not None else np.ones(size, dtype=bool)
    shift = (bias.value != 0).numpy() if bias is not None else np.zeros(size, dtype=bool)
    by_group = inputs.reshape(groups, -1)
    # A group that is zero throughout normalises to zero.
    silent = np.repeat(analysis.cells.zero[by_group].all(axis=1), size // groups)
    outputs = analysis.fresh(node, size, ~shift & (~scale | silent))
    analysis.cells.tie(outputs, inputs)
    for row_in, row_out, live in zip(by_group, outputs.reshape(groups, -1), scale.reshape(groups, -1), strict=True):
        analysis.reads.append(AllOrNothing(row_out[live], row_in))
    if groups < size:
        analysis.constraints.append(WholeGroups(by_group, analysis.site(node)))
        analysis.glue.append(Glue(node, "norm groups", (value,), (value,)))
    for constant in (weight, bias):
        analysis.hold_axis(constant, 0, outputs)
    analysis.hold_norm(node, outputs, groups)
    return Value(value.shape, along(1, len(value.shape), outputs))


def _mix(analysis: Analysis, node: fx.Node, inputs: Ids, used: Mask, bias: Constant | None) -> Ids:
    """Cells for the outputs of a layer whose kernels `used` (G, O, I) says are not zero."""
    groups, per_group = used.shape[0], used.shape[1]
    grouped = inputs.reshape(groups, -1)
    heard = (used & ~analysis.cells.zero[grouped][:, None, :]).any(axis=2).reshape(-1)
    # What hears nothing holds its bias.
    held = bias.value.double().numpy() if bias is not None else np.zeros(groups * per_group)
    outputs = analysis.fresh(node, groups * per_group, constant=np.where(heard, np.nan, held))
    # A zero input is not read: removing it changes nothing.
    analysis.reads.append(Mixture(outputs.reshape(groups, -1), grouped, used))
    return outputs


def nonzero_kernels(analysis: Analysis, node: fx.Node, weight: Constant) -> Mask:
    """Which kernels are not all zero, (first axis, second axis) of the weight."""
    module = analysis.model.get_submodule(Graph.path(node))
    if isinstance(module, BasisConv2d):
        # The reconstructed kernel could be zero by rounding; the coefficients say what is meant.
        spans = (module.basis.detach() != 0).flatten(1).any(dim=1)
        result: Mask = ((module.coefficients.detach() != 0) & spans).any(dim=2).cpu().numpy()
        return result
    kernels: Mask = (weight.value != 0).flatten(2).any(dim=2).cpu().numpy()
    return kernels


def _computed_kernel(analysis: Analysis, node: fx.Node, inputs: Ids, outputs: Ids) -> None:
    why = f"the weights of {analysis.site(node)} are computed from other parameters"
    analysis.cells.pin(inputs, why)
    analysis.cells.pin(outputs, why)


def _renew(analysis: Analysis, node: fx.Node, value: Value, zero: Mask | None) -> Value:
    """The same channels as new cells; zero where `zero` says so."""
    cells, inverse = torch.unique(value.plane, return_inverse=True)
    ids = analysis.fresh(node, len(cells), zero[cells.numpy()] if zero is not None else False)
    analysis.cells.tie(ids, cells.numpy())
    analysis.reads.append(Edges(ids, cells.numpy()))
    return Value(value.shape, compact(torch.from_numpy(ids)[inverse]))


def _argument(arguments: tuple[Any, ...], named: dict[str, Any], position: int, name: str, default: Any) -> Any:
    if len(arguments) > position:
        return arguments[position]
    return named.get(name, default)
