"""Half-precision storage of weights: fp16 and bf16 in the file, float32 in the engine."""

from __future__ import annotations

import numpy as np

from penni.engine.program import Array
from penni.errors import PenniError

DTYPES = ("fp32", "fp16", "bf16")


def narrow(array: Array, dtype: str) -> tuple[Array, str]:
    """A float32 array in 16 bits, rounded to nearest, and what safetensors calls that type."""
    if dtype == "fp16":
        with np.errstate(over="ignore"):
            result = array.astype("<f2")
        if not np.isfinite(result).all() and np.isfinite(array).all():
            raise PenniError("a weight is too large for fp16 (65504); use dtype='bf16' or 'fp32'")
        return result, "F16"
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4").astype(np.uint64)
    # To nearest, ties to even; adding before the cut carries into the exponent as it should.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2"), "BF16"


def widen(array: Array, name: str) -> Array:
    """The float32 array that a stored one stands for."""
    if name == "F16":
        return array.astype(np.float32)
    return (array.astype("<u4") << 16).view(np.float32)


def rounded(array: Array, dtype: str) -> Array:
    """`array` with its values as `dtype` holds them."""
    if dtype == "fp32":
        return array
    return widen(*narrow(array, dtype))


def holds(array: Array, dtype: str) -> bool:
    """Whether `dtype` holds every value of a float32 array exactly."""
    if array.dtype != np.float32 or (dtype == "fp16" and array.size and float(np.abs(array).max()) > 65504):
        return False
    return bool((rounded(array, dtype) == array).all())
