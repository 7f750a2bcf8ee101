"""Near-memory compute: D = A op B elementwise on bytes in memory, and copy.

========  ==============================================================  =====================
dtype     sum                                                             min, max
========  ==============================================================  =====================
float32   binary32 sum (RNE)                                              IEEE 754-2019
bfloat16  both widened exactly, binary32 sum (RNE), one RNE rounding      widened, exact
float16   both widened exactly, binary32 sum (RNE), one RNE rounding      widened, exact
int32     two's complement, wraps modulo 2^32                             signed
========  ==============================================================  =====================

With a scale the binary32 result of the op is multiplied by it in binary32 (RNE) before the rounding to the element
type; integers have no scale. Every NaN result is canonical; overflow of a narrow result gives infinity. A copy never
changes bits.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert, fp32, minmax
from spec.wqe import DTYPE_BYTES, DType, ReduceOp

Bytes = NDArray[np.uint8]

BLOCK = 1 << 15  # elements worked on at a time: temporaries stay in cache, which is 2 to 3 times faster
FORMAT_OF = {DType.FLOAT32: "float32", DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16", DType.INT32: "int32"}
Op = Callable[[Any, Any], Any]
_FLOAT: dict[ReduceOp, Op] = {ReduceOp.SUM: fp32.add, ReduceOp.MIN: minmax.fmin, ReduceOp.MAX: minmax.fmax}
_INT: dict[ReduceOp, Op] = {ReduceOp.SUM: np.add, ReduceOp.MIN: minmax.imin, ReduceOp.MAX: minmax.imax}


def _operand(name: str, x: Any, dtype: DType) -> NDArray[Any]:
    a = np.asarray(x)
    if a.dtype != np.uint8 or a.ndim != 1:
        raise ValueError(f"nmc.reduce: operand {name} is {a.dtype} of shape {a.shape}; expected a row of uint8")
    size = DTYPE_BYTES[dtype]
    if a.size % size:
        raise ValueError(
            f"nmc.reduce: operand {name} has {a.size} bytes; expected a multiple of {size} for {FORMAT_OF[dtype]}"
        )
    return np.ascontiguousarray(a).view(f"<u{size}")


def _enum(what: str, kind: type[Any], value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"{int(k)} {k.name}" for k in kind)
        raise ValueError(f"nmc.reduce: unknown {what} {value!r}; expected one of {known}") from None


def reduce(a: Any, b: Any, dtype: DType, rop: ReduceOp, scale_bits: int | None = None) -> Bytes:
    """Result bytes of ``A op B``, `scale_bits` the binary32 pattern of the final scale (None: no scale).

    Raises:
        ValueError: unknown `dtype` or `rop`; operands that are not rows of bytes, of different length or not a multiple
            of the element; a scale with int32, or not a 32-bit pattern.
    """
    dtype = _enum("dtype", DType, dtype)
    rop = _enum("op", ReduceOp, rop)
    x, y = _operand("a", a, dtype), _operand("b", b, dtype)
    if x.size != y.size:
        raise ValueError(f"nmc.reduce: operand a has {x.nbytes} bytes, operand b {y.nbytes}; expected the same length")
    if dtype is DType.INT32:
        if scale_bits is not None:
            raise ValueError("nmc.reduce: int32 has no scale; expected scale_bits None")
        return np.asarray(_INT[rop](x, y), dtype="<u4").view(np.uint8)
    if scale_bits is not None and (not isinstance(scale_bits, (int, np.integer)) or not 0 <= scale_bits < 1 << 32):
        raise ValueError(f"nmc.reduce: scale_bits = {scale_bits!r}; expected a 32-bit binary32 pattern")
    out = np.empty_like(x)
    for i in range(0, x.size, BLOCK):
        s = slice(i, i + BLOCK)
        out[s] = _block(x[s], y[s], FORMAT_OF[dtype], rop, scale_bits)
    return out.view(np.uint8)


def _block(x: NDArray[Any], y: NDArray[Any], name: str, rop: ReduceOp, scale_bits: int | None) -> NDArray[Any]:
    r = _FLOAT[rop](convert.widen(x, name), convert.widen(y, name))
    if scale_bits is not None:
        r = fp32.mul(r, np.uint32(scale_bits))
    return convert.narrow(r, name)


def copy(a: Any) -> Bytes:
    """The same bytes, in memory of their own: NaN payloads, signs and everything else unchanged.

    Raises:
        ValueError: not a row of bytes.
    """
    x = np.asarray(a)
    if x.dtype != np.uint8 or x.ndim != 1:
        raise ValueError(f"nmc.copy: operand is {x.dtype} of shape {x.shape}; expected a row of uint8")
    return x.copy()
