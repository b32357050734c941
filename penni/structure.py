"""How a network differs from what its constructor builds: described as JSON, and applied again on loading.

Compressing a network replaces some modules by penni's own and makes others narrower. Both are written
down per module: `{"kind": …, "arguments": …}` builds one of penni's, `{"attributes": …, "tensors": …}` edits
the one the constructor made. So any model can be rebuilt from its constructor, without pickled code.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import nn

from penni.errors import PenniError

Description = dict[str, dict[str, Any]]

# penni's own modules, which a structure may ask to be built; each tells its constructor's arguments.
KINDS: Mapping[str, str] = {"BasisConv2d": "penni.basis"}


class Describable(Protocol):
    """One of penni's own modules: says with which arguments its constructor makes one like it."""

    def arguments(self) -> dict[str, Any]: ...


def describe(model: nn.Module, reference: nn.Module | None) -> Description:
    """What must be done to `reference` (a fresh model of the same constructor) to give it the structure of `model`.

    Without a reference every leaf module is described.
    """
    originals: dict[str, nn.Module] = dict(reference.named_modules()) if reference is not None else {}
    description: Description = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        original = originals.get(name)
        same_class = original is not None and _class_name(original) == _class_name(module)
        if KINDS.get(kind) == type(module).__module__:
            if not same_class or _edits(module, original):
                description[name] = {"kind": kind, "arguments": cast(Describable, module).arguments()}
        elif original is not None and not same_class:
            raise PenniError(
                f"{name or 'the model itself'} became a {kind}, which a checkpoint cannot describe: it holds penni's "
                "own layers, and the model's own made narrower"
            )
        elif reference is not None and original is None:
            if not any(name.startswith(f"{parent}.") for parent in description):
                raise PenniError(f"{name} is not in the model that the constructor builds")
        else:
            edits = _edits(module, original)
            if edits:
                description[name] = edits
    return description


def _class_name(module: nn.Module) -> tuple[str, str]:
    """Two calls of a function that defines a class make two classes of one name."""
    return type(module).__module__, type(module).__qualname__


def rebuild(model: nn.Module, description: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    """Give `model`, fresh from its constructor, the described structure, in place; values are left arbitrary."""
    for name, entry in description.items():
        try:
            if "kind" in entry:
                model = _put(model, name, _build(entry["kind"], entry["arguments"]))
            else:
                _apply_edits(model.get_submodule(name), entry)
        except PenniError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise PenniError(f"the structure of '{name}' does not fit this model: {error}") from error
    return model


def _build(kind: str, arguments: Mapping[str, Any]) -> nn.Module:
    if kind not in KINDS:
        raise PenniError(f"the structure asks for a '{kind}', which this version of penni does not know")
    make = getattr(importlib.import_module(KINDS[kind]), kind)
    module: nn.Module = make(**{key: _tuples(value) for key, value in arguments.items()})
    return module


def _put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Replace the submodule called `name`, wherever that one module stands."""
    if not name:
        return module
    old = model.get_submodule(name)
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = module
    return model


def _edits(module: nn.Module, original: nn.Module | None) -> dict[str, Any]:
    """The plain attributes and tensor shapes of `module` itself (not its children) that `original` lacks."""
    before = _plain_attributes(original) if original is not None else {}
    attributes = {k: v for k, v in _plain_attributes(module).items() if k not in before or before[k] != v}
    shapes_before = _shapes(original) if original is not None else {}
    shapes = {k: v for k, v in _shapes(module).items() if k not in shapes_before or shapes_before[k] != v}
    edits: dict[str, Any] = {}
    if attributes:
        edits["attributes"] = attributes
    if shapes:
        edits["tensors"] = shapes
    return edits


def _apply_edits(module: nn.Module, entry: Mapping[str, Any]) -> None:
    for key, value in entry.get("attributes", {}).items():
        setattr(module, key, _tuples(value))
    for key, shape in entry.get("tensors", {}).items():
        old = module._parameters.get(key, module._buffers.get(key))
        if shape is None:
            setattr(module, key, None)
            continue
        template = old if old is not None else torch.empty(0)
        tensor = torch.zeros(shape, dtype=template.dtype, device=template.device)
        if key in module._buffers:
            module._buffers[key] = tensor
        elif key in module._parameters:
            module._parameters[key] = nn.Parameter(tensor, template.requires_grad and tensor.is_floating_point())
        else:
            raise PenniError(f"a {type(module).__name__} has no tensor '{key}'")


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Numbers, words and short lists that a module keeps on itself, as JSON gives them back."""
    plain: dict[str, Any] = {}
    for key, value in vars(module).items():
        if not key.startswith("_") and key != "training" and _is_plain(value):
            plain[key] = list(value) if isinstance(value, tuple) else value
    return plain


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) and not isinstance(item, (list, tuple)) for item in value)
    return isinstance(value, (bool, int, float, str))


def _shapes(module: nn.Module) -> dict[str, list[int] | None]:
    tensors = {**module._parameters, **module._buffers}
    return {key: None if tensor is None else list(tensor.shape) for key, tensor in tensors.items()}


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
