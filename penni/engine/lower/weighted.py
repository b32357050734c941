"""Operators with weights: convolutions, linear layers and normalisations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from penni.engine.lower.builder import Builder
from penni.engine.lower.call import Call, Handler, Unsupported, same_padding
from penni.engine.lower.capture import four_sides
from penni.engine.lower.views import View


def _conv(build: Builder, call: Call) -> View:
    weight = call.constant("weight")
    if weight is None or weight.ndim != 4:
        raise Unsupported("it is not two-dimensional")
    if call.get("transposed", False):
        return _conv_transpose(build, call)
    image = build.value(call.view("input"))
    dilation = call.pair("dilation")
    attributes = {
        "stride": call.pair("stride"),
        "padding": tuple(four_sides(call["padding"], tuple(weight.shape[2:]), dilation)),
        "dilation": dilation,
        "groups": int(call["groups"]),
    }
    return build.emit("conv", (image,), call.shape, attributes, {"weight": weight, "bias": call.constant("bias")})


def _conv1d(build: Builder, call: Call) -> View:
    """A convolution along one axis is one over planes with a single row."""
    view, weight = call.view("input"), call.constant("weight")
    if weight is None or len(view.shape) != 2:
        raise Unsupported("its input is no row per channel")
    image = build.value(view.reshape((view.shape[0], 1, view.shape[1])))
    stride, dilation = call.pair("stride")[-1], call.pair("dilation")[-1]
    padding = call["padding"] if isinstance(call["padding"], str) else (0, call.pair("padding")[-1])
    attributes = {
        "stride": (1, stride),
        "padding": tuple(four_sides(padding, (1, int(weight.shape[2])), (1, dilation))),
        "dilation": (1, dilation),
        "groups": int(call["groups"]),
    }
    tensors = {"weight": weight.unsqueeze(2), "bias": call.constant("bias")}
    shape = (call.shape[0], 1, call.shape[1])
    return build.emit("conv", (image,), shape, attributes, tensors).reshape(call.shape)


def _conv_transpose(build: Builder, call: Call) -> View:
    weight = call.constant("weight")
    if weight is None or weight.ndim != 4:
        raise Unsupported("it is not two-dimensional")
    image = build.value(call.view("input"))
    attributes = {
        "stride": call.pair("stride"),
        "padding": same_padding(call.pair("padding")),
        "output_padding": call.pair("output_padding"),
        "dilation": call.pair("dilation"),
        "groups": int(call["groups"]),
    }
    tensors = {"weight": weight, "bias": call.constant("bias")}
    return build.emit("conv_transpose", (image,), call.shape, attributes, tensors)


def _basis_conv(build: Builder, call: Call) -> View:
    image = build.value(call.view("image"))
    basis, coefficients = call.constant("basis"), call.constant("coefficients")
    assert basis is not None
    assert coefficients is not None
    attributes = {
        "stride": call.pair("stride"),
        "padding": tuple(call["padding"]),
        "dilation": call.pair("dilation"),
        "groups": int(call["groups"]),
    }
    tensors: dict[str, Tensor | None] = {"bias": call.constant("bias")}
    if basis.shape[1:] == (1, 1):
        # A 1×1 kernel's one basis is a number.
        weight = coefficients.double() @ basis.double().reshape(-1, 1)
        tensors["weight"] = weight.reshape(*coefficients.shape[:2], 1, 1)
    else:
        tensors |= {"basis": basis, "coefficients": coefficients}
    return build.emit("conv", (image,), call.shape, attributes, tensors)


def _linear(build: Builder, call: Call) -> View:
    weight, bias = call.constant("weight"), call.constant("bias")
    assert weight is not None
    return _matrix(build, call.view("input"), weight, bias)


def _addmm(build: Builder, call: Call) -> View:
    weight = call.constant("mat2")
    assert weight is not None
    if call.number("alpha", 1) != 1 or call.number("beta", 1) != 1:
        raise Unsupported("it scales its operands")
    return _matrix(build, call.view("mat1"), weight.T, call.constant("self"))


def _matmul(build: Builder, call: Call) -> View:
    names = list(call.arguments)
    weight = call.constant(names[1])
    if weight is None or weight.ndim != 2:
        raise Unsupported("its second operand is not a matrix of weights")
    return _matrix(build, call.view(names[0]), weight.T, None)


def _matrix(build: Builder, view: View, weight: Tensor, bias: Tensor | None) -> View:
    """A linear layer over the last axis; over planes it is a 1×1 convolution."""
    last = len(view.shape) - 1
    base, rest = build.channels_first(view, last)
    tensors = {"weight": weight, "bias": bias}
    if not rest:
        return build.emit("linear", (base,), (weight.shape[0],), {}, tensors)
    tensors["weight"] = weight.reshape(*weight.shape, 1, 1)
    attributes = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    output = build.emit("conv", (base,), (weight.shape[0], *build.shapes[base][1:]), attributes, tensors)
    return build.channels_back(output.base, last, rest)


def _batch_norm(build: Builder, call: Call) -> View:
    mean, variance = call.constant("running_mean"), call.constant("running_var")
    if call.get("training", False) or mean is None or variance is None:
        raise Unsupported("it has no running statistics, so that an image's answer depends on the others")
    scale = torch.rsqrt(variance.double() + float(call["eps"]))
    weight, bias = call.constant("weight"), call.constant("bias")
    if weight is not None:
        scale = scale * weight.double()
    shift = -mean.double() * scale
    if bias is not None:
        shift = shift + bias.double()
    view = call.view("input")
    base, rest = build.channels_first(view, 0)
    output = build.emit("affine", (base,), build.shapes[base], {}, {"scale": scale, "shift": shift})
    result = build.channels_back(output.base, 0, rest)
    # The decomposed form of the operator gives the statistics back too.
    return result if not isinstance(call.result, (tuple, list)) else (result, None, None)  # type: ignore[return-value]


def _layer_norm(build: Builder, call: Call) -> View:
    view, normalised = call.view("input"), call["normalized_shape"]
    weight, bias = call.constant("weight"), call.constant("bias")
    if len(normalised) != 1:
        if len(normalised) == len(view.shape) and weight is None and bias is None:
            base = build.value(view)
            return build.emit("group_norm", (base,), view.shape, {"groups": 1, "epsilon": float(call["eps"])})
        raise Unsupported("it normalises over several axes with a weight at each position")
    last = len(view.shape) - 1
    base, rest = build.channels_first(view, last)
    attributes = {"epsilon": float(call["eps"])}
    output = build.emit("layer_norm", (base,), build.shapes[base], attributes, {"weight": weight, "bias": bias})
    return build.channels_back(output.base, last, rest)


def _group_norm(build: Builder, call: Call) -> View:
    base, rest = build.channels_first(call.view("input"), 0)
    attributes = {"groups": int(call["num_groups"]), "epsilon": float(call["eps"])}
    tensors = {"weight": call.constant("weight"), "bias": call.constant("bias")}
    output = build.emit("group_norm", (base,), build.shapes[base], attributes, tensors)
    return build.channels_back(output.base, 0, rest)


def _instance_norm(build: Builder, call: Call) -> View:
    if not call["use_input_stats"]:
        return _batch_norm(build, call)
    base, rest = build.channels_first(call.view("input"), 0)
    attributes = {"groups": build.shapes[base][0], "epsilon": float(call["eps"])}
    tensors = {"weight": call.constant("weight"), "bias": call.constant("bias")}
    output = build.emit("group_norm", (base,), build.shapes[base], attributes, tensors)
    return build.channels_back(output.base, 0, rest)


HANDLERS: Mapping[str, Handler] = {
    "aten.conv2d": _conv,
    "aten.conv1d": _conv1d,
    "aten.convolution": _conv,
    "aten.conv_transpose2d": _conv_transpose,
    "penni.basis_conv2d": _basis_conv,
    "aten.linear": _linear,
    "aten.addmm": _addmm,
    "aten.matmul": _matmul,
    "aten.mm": _matmul,
    "aten.batch_norm": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.layer_norm": _layer_norm,
    "aten.group_norm": _group_norm,
    "aten.instance_norm": _instance_norm,
}
