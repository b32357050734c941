"""Turn a model name into a network that remembers how it was made, and put weights into it."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from penni.errors import PenniError, nearest
from penni.models import cifar

CIFAR_MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "resnet18": cifar.resnet18,
    "resnet20": cifar.resnet20,
    "resnet56": cifar.resnet56,
    "small": cifar.small,
    "vgg16": cifar.vgg16,
}


@dataclass(frozen=True)
class Origin:
    """How a network was made: the name given to `build` and its arguments. Checkpoints keep it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def build(name: str, **arguments: Any) -> nn.Module:
    """The network called `name`: `resnet56`, `torchvision:resnet50`, `timm:convnext_nano`, `my_file.py:make_model`.

    `arguments` go to the constructor. The zoos' networks come with random weights unless asked
    otherwise in `arguments`.
    """
    make = _constructor(name)
    try:
        model = make(**_known_arguments(name, arguments))
    except PenniError:
        raise
    except Exception as error:  # a constructor may fail in any way
        raise PenniError(f"'{name}' fails when it is called: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise PenniError(f"'{name}' gives an object of type {type(model).__name__}, not a torch.nn.Module")
    # A plain attribute: copies keep it, state dicts do not.
    model._penni_origin = Origin(name, dict(arguments))  # type: ignore[assignment]
    return model


def build_for(name: str, classes: int, channels: int) -> nn.Module:
    """The network called `name` for a data set: with so many classes and input channels, as far as it can be told.

    A user's own callable is given `classes` (or `num_classes`) and `channels` if it has parameters of these names.
    """
    source = name.partition(":")[0]
    make = _constructor(name)  # a name that there is not is said before anything else
    if source == "torchvision":
        if channels != 3:
            raise PenniError(f"torchvision's networks take 3 channels, the data has {channels}")
        return build(name, classes=classes)
    sizes = {"classes": classes, "channels": channels}
    if name not in CIFAR_MODELS and source != "timm":
        accepted = inspect.signature(make).parameters
        if "classes" not in accepted and "num_classes" in accepted:
            sizes = {"num_classes": classes, "channels": channels}
        sizes = {key: value for key, value in sizes.items() if key in accepted}
    return build(name, **sizes)


def origin_of(model: nn.Module) -> Origin | None:
    """How `model` was made, if `build` made it."""
    origin = model.__dict__.get("_penni_origin")
    return origin if isinstance(origin, Origin) else None


def moved(origin: Origin, *, to: Path | None = None, back_from: Path | None = None) -> Origin:
    """An origin that names a file, for a checkpoint in the folder `to`, or as a checkpoint in `back_from` has it.

    A checkpoint names the user's file from its own place, so that both can be used from any folder and moved together.
    """
    file, colon, attribute = origin.name.rpartition(":")
    if not colon or not file.endswith(".py"):
        return origin
    if to is not None:
        return replace(origin, name=f"{os.path.relpath(Path(file).resolve(), to.resolve())}:{attribute}")
    beside = (back_from or Path()) / file
    # Older checkpoints, and those moved alone: the file may be where the user is.
    return replace(origin, name=f"{os.path.relpath(beside) if beside.is_file() else file}:{attribute}")


def load_weights(model: nn.Module, file: str | Path) -> None:
    """Read a `.safetensors` file (or a plain PyTorch state dict) into `model`, or say which key does not fit."""
    file = Path(file)
    if not file.is_file():
        raise PenniError(f"there is no weights file '{file}'")
    state = _read_state(file)
    expected = model.state_dict()
    for key, tensor in expected.items():
        # BatchNorm counts its batches; files that never counted are as good.
        if key not in state and not key.endswith("num_batches_tracked"):
            raise PenniError(f"'{file}' has no weights for '{key}', which the model needs")
        if key in state and state[key].shape != tensor.shape:
            raise PenniError(f"'{key}' is {tuple(state[key].shape)} in '{file}' but {tuple(tensor.shape)} in the model")
    for key in state:
        if key not in expected:
            raise PenniError(f"'{file}' has weights for '{key}', which the model does not have")
    model.load_state_dict(state, strict=False)


def _read_state(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise PenniError(f"'{file}' cannot be read: it is cut short or not a safetensors file") from error
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises anything from EOFError to UnpicklingError
        raise PenniError(f"'{file}' cannot be read as weights; convert it to .safetensors") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise PenniError(f"'{file}' holds no plain state dict")
    return state


def _constructor(name: str) -> Callable[..., nn.Module]:
    if name in CIFAR_MODELS:
        return CIFAR_MODELS[name]
    source, colon, rest = name.partition(":")
    if colon and source == "torchvision":
        return _torchvision(rest)
    if colon and source == "timm":
        return _timm(rest)
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _from_file(Path(file), attribute)
    raise PenniError(
        f"there is no model '{name}': {nearest(name, CIFAR_MODELS)}; "
        "or use torchvision:NAME, timm:NAME, path/to/file.py:callable"
    )


def _torchvision(name: str) -> Callable[..., nn.Module]:
    try:
        from torchvision.models import get_model, get_model_builder, list_models
    except ImportError as error:
        raise PenniError("torchvision is not installed: pip install 'penni[zoo]'") from error
    if name not in list_models():
        raise PenniError(f"torchvision has no model '{name}': {_short_hint(name, list_models())}")

    def make(**arguments: Any) -> nn.Module:
        arguments.setdefault("weights", None)
        if "weights_backbone" in inspect.signature(get_model_builder(name)).parameters:
            arguments.setdefault("weights_backbone", None)
        if name in ("googlenet", "inception_v3"):
            arguments.setdefault("init_weights", True)
        model: nn.Module = get_model(name, **arguments)
        return model

    return make


def _timm(name: str) -> Callable[..., nn.Module]:
    try:
        import timm
    except ImportError as error:
        raise PenniError("timm is not installed: pip install 'penni[zoo]'") from error
    if not timm.is_model(name):
        raise PenniError(f"timm has no model '{name}': {_short_hint(name, timm.list_models())}")

    def make(**arguments: Any) -> nn.Module:
        model: nn.Module = timm.create_model(name, **arguments)
        return model

    return make


def _from_file(file: Path, attribute: str) -> Callable[..., nn.Module]:
    if not file.is_file():
        raise PenniError(f"there is no file '{file}' to build the model from; it is looked for from the current folder")
    module = _imported(file.resolve(), file.stat().st_mtime_ns)
    make = getattr(module, attribute, None)
    if not callable(make):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise PenniError(f"'{file}' has no callable '{attribute}': {nearest(attribute, names)}")
    return make  # type: ignore[no-any-return]


@functools.cache
def _imported(file: Path, _version: int) -> ModuleType:
    """The user's file as a module; once per version of it, so that a class is the same class at every build."""
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # the user's own code may fail in any way
        raise PenniError(f"'{file.name}' fails when it is imported: {type(error).__name__}: {error}") from error
    return module


def _known_arguments(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`classes` is our word; the zoos say `num_classes`."""
    result = dict(arguments)
    if name.partition(":")[0] in ("torchvision", "timm"):
        for ours, theirs in (("classes", "num_classes"), ("channels", "in_chans")):
            if ours in result:
                result[theirs] = result.pop(ours)
    return result


def _short_hint(name: str, known: list[str]) -> str:
    hint = nearest(name, known)
    return hint if hint.startswith("did") else "list them with that package"


def input_shape(model: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width of the images that `model` was made for, as far as its checkpoint or origin tells."""
    kept = model.__dict__.get("_penni_input")
    if kept is not None:
        channels, height, width = kept
        return (channels, height, width)
    origin = origin_of(model)
    name = origin.name if origin else ""
    arguments = origin.arguments if origin else {}
    if name in CIFAR_MODELS:
        channels = arguments.get("channels", 1 if name == "small" else 3)
        return (channels, 8, 8) if name == "small" else (channels, 32, 32)
    if name.startswith("timm:"):
        size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
        return (int(size[0]), int(size[1]), int(size[2]))
    side = 299 if name == "torchvision:inception_v3" else 224
    return (3, side, side)


def example_input(model: nn.Module, size: str | None = None, batch: int = 1, seed: int = 0) -> Tensor:
    """A random batch that `model` accepts; `size` is channels×height×width as a user writes it."""
    shape = parse_size(size) if size else input_shape(model)
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed))


def parse_size(text: str) -> tuple[int, int, int]:
    """`3x224x224` as numbers."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise PenniError(f"'{text}' is not an input size; write channels×height×width, such as 3x224x224")
    return (int(parts[0]), int(parts[1]), int(parts[2]))
