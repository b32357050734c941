"""Networks by name: the CIFAR ones of the paper, torchvision's, timm's, or the user's own."""

from penni.models.build import (
    CIFAR_MODELS,
    Origin,
    build,
    build_for,
    example_input,
    input_shape,
    load_weights,
    moved,
    origin_of,
    parse_size,
)

__all__ = [
    "CIFAR_MODELS",
    "Origin",
    "build",
    "build_for",
    "example_input",
    "input_shape",
    "load_weights",
    "moved",
    "origin_of",
    "parse_size",
]
