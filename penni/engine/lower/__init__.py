"""From a PyTorch module to a program: capture its graph, write each operator as steps, simplify."""

from penni.engine.lower.lowering import lower

__all__ = ["lower"]
