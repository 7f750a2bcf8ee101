"""minimum and maximum, IEEE 754-2019 section 9.6: NaN propagates as the canonical NaN, and -0 orders below +0.

The result does not depend on the order of the operands. All compares are integer compares of sign-magnitude keys.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert
from golden.numeric.arguments import together
from golden.numeric.fp32 import NAN, Bits, as_bits, is_nan


def _key(bits: Bits) -> NDArray[np.int32]:
    """int32 that orders as the number does: -Inf … -0 < +0 … +Inf."""
    s = bits.view(np.int32)
    return s ^ ((s >> 31) & np.int32(0x7FFFFFFF))


def _pair(a: Any, b: Any, what: str) -> tuple[Bits, Bits]:
    x, y = as_bits(a, "a"), as_bits(b, "b")
    together(what, a=x, b=y)
    return x, y


def _select(a: Any, b: Any, low: bool) -> Bits:
    a, b = _pair(a, b, "minimum" if low else "maximum")
    ka, kb = _key(a), _key(b)
    r = np.where(ka < kb if low else ka > kb, a, b)
    return np.where(is_nan(a) | is_nan(b), NAN, r)


def fmin(a: Any, b: Any) -> Bits:
    """Smaller of two binary32 patterns."""
    return _select(a, b, True)


def fmax(a: Any, b: Any) -> Bits:
    """Larger of two binary32 patterns."""
    return _select(a, b, False)


def imin(a: Any, b: Any) -> Bits:
    """Smaller of two int32 (two's complement) patterns."""
    x, y = _pair(a, b, "int32 minimum")
    return np.minimum(x.view(np.int32), y.view(np.int32)).view(np.uint32)


def imax(a: Any, b: Any) -> Bits:
    """Larger of two int32 (two's complement) patterns."""
    x, y = _pair(a, b, "int32 maximum")
    return np.maximum(x.view(np.int32), y.view(np.int32)).view(np.uint32)


def minimum(a: Any, b: Any, name: str) -> NDArray[Any]:
    """Smaller of two codes of the float format `name`: widened exactly, compared, and narrowed back without change."""
    return convert.narrow(fmin(convert.widen(a, name), convert.widen(b, name)), name)


def maximum(a: Any, b: Any, name: str) -> NDArray[Any]:
    """Larger of two codes of the float format `name`."""
    return convert.narrow(fmax(convert.widen(a, name), convert.widen(b, name)), name)
