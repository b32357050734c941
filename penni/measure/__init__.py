"""What a network costs: parameters and multiply-accumulates, time, memory."""

from penni.measure.count import Counts, LayerCount, count

__all__ = ["Counts", "LayerCount", "count"]
