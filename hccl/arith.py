"""Reductions on the host: what near-memory compute has no arithmetic for.

One call is one op of the documented order, on rows of bytes. Floats narrower than binary32 are widened exactly, the op is a binary32 op, and the
result is rounded once to the element type (overflow: infinity, or NaN where there is none). float64 ops are binary64. A NaN result is the
canonical one. Integers wrap. An average divides the last sum by the number of ranks: floats are multiplied by the nearest 1/n before their rounding,
integers are divided and truncated toward zero. bool: sum, max and bor are "or", prod, min and band are "and", bxor is "exclusive or".
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.mem import nmc
from golden.numeric import convert, fp32, minmax
from hccl.dtypes import COMPONENT, DTYPES, engine_of
from spec.wqe import ReduceOp

Bytes = NDArray[np.uint8]
Binary = Callable[[Any, Any], Any]
ROP = {"sum": ReduceOp.SUM, "avg": ReduceOp.SUM, "premul_sum": ReduceOp.SUM, "min": ReduceOp.MIN, "max": ReduceOp.MAX}
_NAN64 = np.uint64(0x7FF8000000000000)
_INTEGER: dict[str, Binary] = {
    "sum": np.add, "avg": np.add, "premul_sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
_BOOL: dict[str, Binary] = {
    "sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "prod": np.logical_and, "min": np.logical_and,
    "band": np.logical_and, "bxor": np.logical_xor,
}  # fmt: skip


def scale_bits(value: float) -> int:
    """binary32 nearest `value`."""
    with np.errstate(all="ignore"):
        return int(np.float32(value).view(np.uint32))


def reduce(a: Bytes, b: Bytes, dtype: str, op: str, divide: int = 1) -> Bytes:
    """Bytes of ``a op b``, elementwise; `divide` above 1: the last op of an average over that many ranks."""
    engine = engine_of(dtype, op, divide > 1)
    if engine is not None:
        return nmc.reduce(a, b, engine, ROP[op], scale_bits(1 / divide) if divide > 1 else None)
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return np.asarray(_BOOL[op](a != 0, b != 0), dtype=np.uint8)
    if kind in ("int", "uint"):
        x, y = a.view(dtype), b.view(dtype)
        with np.errstate(over="ignore"):
            r = _INTEGER[op](x, y)
        return _bytes(r if divide == 1 else _quotient(r, divide))
    if kind == "complex":
        return _complex(a, b, dtype, op, divide)
    return _float(_widen(a, dtype), _widen(b, dtype), dtype, op, divide)


def premultiply(a: Bytes, dtype: str, factor: float | int) -> Bytes:
    """Bytes of every element times `factor`: rounded once to the element type (narrow floats: from the binary32 product); integers wrap."""
    kind = DTYPES[dtype].kind
    if kind in ("int", "uint"):
        with np.errstate(over="ignore"):
            return _bytes(a.view(dtype) * np.asarray(factor, dtype=dtype))
    part = COMPONENT.get(dtype, dtype)
    if part == "float64":
        with np.errstate(all="ignore"):
            return _canonical64(a.view(np.float64) * np.float64(factor))
    return _bytes(convert.narrow(fp32.mul(_widen(a, part), np.uint32(scale_bits(factor))), part))


def _bytes(x: Any) -> Bytes:
    return np.ascontiguousarray(x).view(np.uint8)


def _quotient(x: NDArray[Any], n: int) -> NDArray[Any]:
    """x / n truncated toward zero."""
    if x.dtype.kind == "u":
        return np.asarray(x // n if n <= np.iinfo(x.dtype).max else np.zeros_like(x))
    wide = x.astype(np.int64)
    q = wide // n
    return np.asarray(q + ((wide < 0) & (q * n != wide))).astype(x.dtype)


def _widen(a: Bytes, dtype: str) -> NDArray[Any]:
    """binary32 patterns, or float64 values."""
    return a.view(np.float64) if dtype == "float64" else convert.widen(a.view(f"<u{DTYPES[dtype].size}"), dtype)


def _canonical64(x: NDArray[np.float64]) -> Bytes:
    return _bytes(np.where(np.isnan(x), _NAN64, x.view(np.uint64)))


def _float(x: NDArray[Any], y: NDArray[Any], dtype: str, op: str, divide: int) -> Bytes:
    if dtype == "float64":
        with np.errstate(all="ignore"):
            r = _select64(x, y, op == "min") if op in ("min", "max") else x * y if op == "prod" else x + y
            return _canonical64(r if divide == 1 else r * (np.float64(1) / divide))
    r = {"min": minmax.fmin, "max": minmax.fmax, "prod": fp32.mul}.get(op, fp32.add)(x, y)
    if divide > 1:
        r = fp32.mul(r, np.uint32(scale_bits(1 / divide)))
    return _bytes(convert.narrow(r, dtype))


def _select64(x: NDArray[np.float64], y: NDArray[np.float64], low: bool) -> NDArray[np.float64]:
    """IEEE 754-2019 minimum or maximum."""
    less = (x < y) | ((x == y) & np.signbit(x))
    r = np.where(less == low, x, y)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, r)


def _complex(a: Bytes, b: Bytes, dtype: str, op: str, divide: int) -> Bytes:
    """Sums by component; a product as (ac − bd) + (ad + bc)i, each op rounded as an op of the component (narrow ones: of binary32)."""
    part = COMPONENT[dtype]
    if op != "prod":
        return reduce(a, b, part, op, divide)
    x, y = _widen(a, part), _widen(b, part)
    if part != "float64":
        x, y = x.view(np.float32), y.view(np.float32)
    re, im, c, d = x[0::2], x[1::2], y[0::2], y[1::2]
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        out[0::2] = re * c - im * d
        out[1::2] = re * d + im * c
    return _canonical64(out) if part == "float64" else _bytes(convert.narrow(fp32.canonical(out.view(np.uint32)), part))
