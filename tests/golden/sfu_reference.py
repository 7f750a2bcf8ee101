"""Correctly rounded results of the special functions: float64 where it decides the rounding, mpmath with rising precision where it does not, and
exact rationals where the result is one (only those can be ties)."""
from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from mpmath import mp, mpf

from golden.numeric.convert import widen
from spec.formats import Format, format_of
from spec.sfu import SfuOp
from tests.golden.oracle import encode

SLACK = 2.0**-42  # far above the relative error of the float64 values below
_erfc = np.frompyfunc(math.erfc, 1, 1)


def _tail(x: Any) -> Any:
    """Phi(-x), the normal distribution, in float64."""
    return _erfc(x / math.sqrt(2)).astype(np.float64) / 2


def _sigmoid(x: Any) -> Any:
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


FLOAT64 = {
    SfuOp.EXP: np.exp, SfuOp.EXP2: np.exp2, SfuOp.LOG: np.log, SfuOp.RECIPROCAL: lambda x: 1 / x, SfuOp.RSQRT: lambda x: 1 / np.sqrt(x),
    SfuOp.TANH: np.tanh, SfuOp.SIGMOID: _sigmoid, SfuOp.SILU: lambda x: x * _sigmoid(x),
    SfuOp.GELU: lambda x: np.where(x < 0, x * _tail(-x), x - x * _tail(x)), SfuOp.SOFTPLUS: lambda x: np.logaddexp(0.0, x), SfuOp.RELU: lambda x: np.where(x > 0, x, 0.0),
    SfuOp.COPY: lambda x: x,
}
MPMATH = {
    SfuOp.EXP: mp.exp, SfuOp.EXP2: lambda x: mpf(2) ** x, SfuOp.LOG: mp.log, SfuOp.RECIPROCAL: lambda x: 1 / x, SfuOp.RSQRT: lambda x: 1 / mp.sqrt(x),
    SfuOp.TANH: mp.tanh, SfuOp.SIGMOID: lambda x: 1 / (1 + mp.exp(-x)), SfuOp.SILU: lambda x: x / (1 + mp.exp(-x)),
    SfuOp.GELU: lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2, SfuOp.SOFTPLUS: lambda x: mp.log1p(mp.exp(x)),
}


def values(codes: Any, name: str) -> np.ndarray:
    """float64 of every code."""
    return np.asarray(widen(codes, name)).view(np.float32).astype(np.float64)


def quantum(v: np.ndarray, f: Format) -> np.ndarray:
    """Unit in the last place of `f` at v."""
    _, e = np.frexp(v)
    return np.ldexp(1.0, np.maximum(e - 1, f.min_exponent) - f.frac_bits)


def _code(steps: np.ndarray, q: np.ndarray, f: Format) -> np.ndarray:
    """Codes of steps * q, integers times powers of two that `f` has, or beyond its largest."""
    y = steps * q
    with np.errstate(over="ignore"):
        wide = np.where(np.abs(y) > float(f.max), np.copysign(np.inf, y), y).astype(np.float32).view(np.uint32)
    if f.name == "bfloat16":
        return wide >> 16
    return np.where(np.abs(y) > float(f.max), np.copysign(np.inf, y), y).astype(np.float16).view(np.uint16) if f.name == "float16" else wide


def _exact(op: SfuOp, x: Fraction) -> Fraction | None:
    """The result where it is rational."""
    if op == SfuOp.RECIPROCAL:
        return 1 / x
    if op == SfuOp.EXP2 and x.denominator == 1 and abs(x) < 1 << 12:
        return Fraction(2) ** x.numerator
    if op == SfuOp.RSQRT:
        n, d = math.isqrt(x.numerator), math.isqrt(x.denominator)
        return Fraction(d, n) if n * n == x.numerator and d * d == x.denominator else None
    return Fraction(0) if op == SfuOp.LOG and x == 1 else None


def _decide(op: SfuOp, x: float, f: Format) -> int:
    exact = _exact(op, Fraction(x))
    if exact is not None:
        return encode(exact, f)
    if x > {SfuOp.GELU: 30, SfuOp.SILU: 500, SfuOp.SOFTPLUS: 500}.get(op, np.inf):  # within 2^-600 of x, softplus above it, the others below
        return encode(Fraction(x) * (1 + Fraction(1 if op == SfuOp.SOFTPLUS else -1, 1 << 600)), f)
    for precision in (100, 300, 900, 2700):
        with mp.workprec(precision):
            y = MPMATH[op](mpf(x))
            man, e = int(y.man) * (-1 if y < 0 and y.man > 0 else 1), int(y.exp)
        value = Fraction(man) * Fraction(2) ** e
        both = {encode(value * (1 + s * Fraction(1, 1 << (precision - 40))), f) for s in (-1, 1)}
        if len(both) == 1:
            return both.pop()
    raise AssertionError(f"{op.name}({x!r}) is undecided")


def correctly_rounded(op: SfuOp, codes: Any, format_in: str, format_out: str) -> np.ndarray:
    """uint32 codes of `format_out` for finite nonzero operands in the function's domain."""
    f, x = format_of(format_out), values(codes, format_in)
    with np.errstate(all="ignore"):
        v = FLOAT64[op](x)
        if op in (SfuOp.RELU, SfuOp.COPY):
            q = quantum(v, f)
            return _code(np.rint(v / q), q, f).astype(np.uint32)
        q = quantum(np.where(np.isfinite(v), v, 0.0), f)
        low, high = np.rint(v * (1 - SLACK) / q), np.rint(v * (1 + SLACK) / q)
        out = _code(low, q, f).astype(np.uint32)
        tiny = np.abs(v) < 2.0**-900
    out[tiny] = np.where(np.signbit(v[tiny]), f.sign_mask, 0)
    for i in np.flatnonzero((low != high) & np.isfinite(v) & ~tiny):
        out[i] = _decide(op, float(x[i]), f)
    return out


def ulps(op: SfuOp, codes: Any, format_in: str, result: Any, format_out: str) -> np.ndarray:
    """Error of finite results in units in the last place at the exact value; overflow to infinity counts from the largest number plus one unit."""
    f = format_of(format_out)
    with np.errstate(all="ignore"):
        v = FLOAT64[op](values(codes, format_in))
        r = values(result, format_out)
        r = np.where(np.isinf(r), np.copysign(2.0 ** (f.max_exponent + 1), r), r)
        v = np.clip(v, -(2.0 ** (f.max_exponent + 1)), 2.0 ** (f.max_exponent + 1))
        return np.abs(r - v) / quantum(v, f)
