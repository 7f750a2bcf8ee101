"""IEEE 754 binary32 addition and multiplication on bit patterns, round to nearest even.

NumPy's own float32 operators are the definition: on every supported host they are the processor's IEEE operations,
correctly rounded, with subnormals. Every NaN result is the canonical one, 0x7FC00000. Arrays in and out are uint32 bit
patterns of one shape (scalars broadcast). No warning leaves this module.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric.arguments import array, together
from spec.formats import FLOAT32

Bits = NDArray[np.uint32]

NAN = np.uint32(FLOAT32.nan_code or 0)
INF = np.uint32(FLOAT32.inf_code or 0)
_MAGNITUDE = np.uint32(FLOAT32.magnitude_mask)
_SUBNORMAL = np.array([1, 0x00400000], dtype=np.uint32).view(np.float32)


def as_bits(x: Any, name: str = "operand") -> Bits:
    """`x` as uint32 bit patterns: uint32 passes; float32 and int32 arrays are reinterpreted; Python ints are patterns.

    Raises:
        TypeError: any other element type (a silent value conversion would hide a bug). `name` says of what.
    """
    a = array(x, name)
    if a.dtype == np.uint32:
        return a
    if a.dtype in (np.float32, np.int32):
        return a.view(np.uint32)
    if isinstance(x, int) and 0 <= x < 1 << 32:
        return np.asarray(x, dtype=np.uint32)
    raise TypeError(f"{name}: expected uint32 bit patterns (or float32, int32 arrays), not {f'{x!r:.40}' if isinstance(x, int) else a.dtype}")


def is_nan(bits: Bits) -> NDArray[np.bool_]:
    return (bits & _MAGNITUDE) > INF


def canonical(bits: Any) -> Bits:
    """The same numbers, every NaN replaced by the canonical one."""
    bits = as_bits(bits, "bits")
    return np.where(is_nan(bits), NAN, bits)


def require_subnormals() -> None:
    """The host's flush-to-zero and denormals-are-zero modes must be off.

    Raises:
        RuntimeError: another library switched them on in this thread.
    """
    with np.errstate(all="ignore"):
        kept = (_SUBNORMAL * np.float32(0.5))[1] + _SUBNORMAL[0]
    if int(kept.view(np.uint32)) != 0x00200001:
        raise RuntimeError(
            "this thread flushes subnormal numbers to zero, so IEEE results are not available; "
            "switch it off (torch.set_flush_denormal(False)) or call from another thread"
        )


def _apply(ufunc: np.ufunc, a: Any, b: Any) -> Bits:
    require_subnormals()
    x, y = as_bits(a, "a"), as_bits(b, "b")
    together(f"binary32 {ufunc.__name__}", a=x, b=y)
    with np.errstate(all="ignore"):
        r = np.asarray(ufunc(x.view(np.float32), y.view(np.float32)))
    bits = r.view(np.uint32)
    np.copyto(bits, NAN, where=np.isnan(r))
    return bits


def add(a: Any, b: Any) -> Bits:
    """a + b. x + (-x) is +0; (-0) + (-0) is -0; Inf - Inf is the canonical NaN."""
    return _apply(np.add, a, b)


def mul(a: Any, b: Any) -> Bits:
    """a * b. Inf * 0 is the canonical NaN."""
    return _apply(np.multiply, a, b)
