"""How a network leaves this program: as an ONNX graph or a `torch.export` archive, in either form, checked."""

from penni.exporting.archive import export
from penni.exporting.check import TOLERANCE, Agreement
from penni.exporting.forms import FORMS, in_form
from penni.exporting.two_stage import TwoStageConv2d, two_stage

__all__ = ["FORMS", "TOLERANCE", "Agreement", "TwoStageConv2d", "export", "in_form", "two_stage"]
