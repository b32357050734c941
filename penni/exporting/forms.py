"""The two forms in which a decomposed network can be written with standard operators."""

from __future__ import annotations

from torch import nn

from penni.basis import basis_layers, reconstruct
from penni.errors import PenniError, nearest
from penni.exporting.two_stage import two_stage

FORMS = ("dense", "two-stage")


def in_form(model: nn.Module, form: str) -> nn.Module:
    """A copy of `model` in eval mode with its decomposed layers in `form`."""
    if form not in FORMS:
        raise PenniError(f"there is no form '{form}': {nearest(form, FORMS)}")
    if form == "two-stage" and not any(not layer.is_pointwise for layer in basis_layers(model).values()):
        raise PenniError(
            "the form two-stage needs decomposed layers, which this model does not have: use --form dense, "
            "or decompose it first"
        )
    return (reconstruct(model) if form == "dense" else two_stage(model)).eval()
