"""The runtime for packed networks: numpy and the native kernels, no torch."""

from penni.engine.engine import Engine, StepReport, load

__all__ = ["Engine", "StepReport", "load"]
