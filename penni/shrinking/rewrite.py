"""Make a model's layers narrower in place: tensors are cut, and the attributes that repeat their sizes follow."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from penni.basis import BasisConv2d
from penni.shrinking.analysis import Analysis, Elements, Grouped
from penni.shrinking.cells import Ids, Mask
from penni.shrinking.constraints import Removal
from penni.shrinking.sizes import Edits


def rewrite(model: nn.Module, analysis: Analysis, removal: Removal, edits: Edits) -> None:
    """Narrow `model` in place."""
    with torch.no_grad():
        _clear_dead_weights(model, analysis)
        lines: dict[tuple[str, int], Mask] = {}
        for axis in analysis.axes:
            kept = ~removal.of(axis.cells)
            known = lines.setdefault((axis.name, axis.axis), kept)
            assert (known == kept).all(), f"{axis.name} is used in two ways"
        for (name, number), kept in lines.items():
            _cut(model, name, number, kept)
        # Uses of one parameter are tied, so the first speaks for all.
        for elements in {use.name: use for use in reversed(analysis.elements)}.values():
            _cut_elements(model, elements, removal)
        for grouped in {use.name: use for use in analysis.grouped}.values():
            _cut_groups(model, grouped, removal)
        _drop_bases(model)
        _follow(model, analysis, removal)
    for (path, attribute), value in edits.items():
        held = getattr(model.get_submodule(path), attribute)
        setattr(model.get_submodule(path), attribute, tuple(value) if isinstance(held, tuple) else value)


def _clear_dead_weights(model: nn.Module, analysis: Analysis) -> None:
    """Weights that read a zero or feed what nobody reads become zeros, so that what stays is not counted."""
    zero, read = analysis.cells.zero, analysis.read
    dead: dict[str, Tensor] = {}
    for axis in analysis.axes:
        holder, name = _holder(model, axis.name)
        if not isinstance(holder, (nn.modules.conv._ConvNd, nn.Linear, BasisConv2d)) or name == "bias":
            continue
        transposed = isinstance(holder, nn.modules.conv._ConvTransposeNd)
        is_input = (axis.axis == 0) if transposed else (axis.axis == 1)
        line = zero[axis.cells] if is_input else ~read[axis.cells]
        key = f"{axis.name}#{axis.axis}"
        mask = torch.from_numpy(line.copy())
        dead[key] = dead[key] & mask if key in dead else mask
    for key, mask in dead.items():
        full, _, number = key.partition("#")
        holder, name = _holder(model, full)
        tensor = getattr(holder, name)
        shape = [1] * tensor.dim()
        shape[int(number)] = -1
        tensor.masked_fill_(mask.to(tensor.device).reshape(shape), 0)


def _holder(model: nn.Module, full_name: str) -> tuple[nn.Module, str]:
    """The module that holds a captured tensor, and its name there; a rebuilt kernel is held as coefficients."""
    path, _, name = full_name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, BasisConv2d) and name == "weight":
        name = "coefficients"
    return module, name


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    old = getattr(module, name)
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    if name in module._parameters:
        setattr(module, name, nn.Parameter(tensor, old.requires_grad))
    elif name in module._buffers:
        module._buffers[name] = tensor
    else:  # a tensor kept as a plain attribute
        setattr(module, name, tensor)


def _cut(model: nn.Module, full_name: str, axis: int, kept: Mask) -> None:
    if kept.all():
        return
    module, name = _holder(model, full_name)
    tensor = getattr(module, name)
    _put(module, name, tensor.index_select(axis, torch.from_numpy(np.flatnonzero(kept)).to(tensor.device)))


def _cut_elements(model: nn.Module, elements: Elements, removal: Removal) -> None:
    flat = elements.plane.reshape(-1).numpy()
    removed = np.zeros(len(flat), dtype=bool)
    removed[flat >= 0] = removal.of(flat[flat >= 0])
    if not removed.any():
        return
    gone = removed.reshape(elements.plane.shape)
    for axis in range(gone.ndim):
        others = tuple(other for other in range(gone.ndim) if other != axis)
        # Along an axis of a box that lost hyperplanes, some stay.
        line = gone.all(axis=others)
        if line.any() and not line.all():
            _cut(model, elements.name, axis, np.asarray(~line))


def _cut_groups(model: nn.Module, grouped: Grouped, removal: Removal) -> None:
    module, name = _holder(model, grouped.name)
    weight = getattr(module, name)
    inputs, outputs = ~removal.of(grouped.inputs), ~removal.of(grouped.outputs)
    if inputs.all() and outputs.all():
        return
    parts = []
    width = outputs.shape[1] if not grouped.transposed else inputs.shape[1]
    alive = outputs.any(axis=1)
    for group in np.flatnonzero(alive):
        part = weight[group * width : (group + 1) * width]
        first, second = outputs[group], inputs[group]
        if grouped.transposed:
            first, second = second, first
        part = part.index_select(0, torch.from_numpy(np.flatnonzero(first)).to(weight.device))
        parts.append(part.index_select(1, torch.from_numpy(np.flatnonzero(second)).to(weight.device)))
    _put(module, name, torch.cat(parts))
    if isinstance(module, (nn.modules.conv._ConvNd, BasisConv2d)):
        module.groups = int(alive.sum())


def _drop_bases(model: nn.Module) -> None:
    """Basis kernels that no coefficient uses go; one stays even in a layer that is all zeros."""
    for module in model.modules():
        if not isinstance(module, BasisConv2d) or module.is_pointwise:
            continue
        used = (module.coefficients != 0).flatten(0, 1).any(dim=0)
        if not bool(used.any()):
            used[0] = True
        if not bool(used.all()):
            _put(module, "basis", module.basis[used])
            _put(module, "coefficients", module.coefficients[:, :, used])


def _follow(model: nn.Module, analysis: Analysis, removal: Removal) -> None:
    """The attributes in which layers repeat the sizes of their tensors."""
    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            module.in_channels, module.out_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
        elif isinstance(module, nn.modules.conv._ConvNd):
            module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
        elif isinstance(module, BasisConv2d):
            module.out_channels, inputs, module.bases = module.coefficients.shape
            module.in_channels = inputs * module.groups
        elif isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif isinstance(module, nn.PReLU):
            module.num_parameters = module.weight.numel()
    for norm in analysis.norms:
        holder = model.get_submodule(norm.path)
        kept = _count(removal, norm.cells)
        if kept == len(norm.cells):
            continue
        if isinstance(holder, nn.GroupNorm):
            holder.num_channels = kept
            holder.num_groups = max(1, norm.groups * kept // len(norm.cells))
        elif hasattr(holder, "num_features"):
            holder.num_features = kept  # type: ignore[assignment]


def _count(removal: Removal, cells: Ids) -> int:
    return int((~removal.of(cells)).sum())
