"""Special function unit, elementwise: exp, log, reciprocal, rsqrt, tanh, sigmoid, GELU, SiLU, ReLU, and binary32 arithmetic; exact-integer NumPy.

Rules (docs/numbers.md, "Special functions")
    * Operands widen exactly to binary32 (int32: rounded, to nearest even). The function gives an internal result, which is rounded once to the result's
      format (`golden.pe.sfu_round`).
    * A function is a range reduction, a polynomial of `spec.sfu.ROWS`, and at most one multiplication after it; every step is said where it is done.
    * Sum, difference and product are exact before the one rounding; minimum, maximum and clamp are exact. For binary32 results that is IEEE 754.
    * NaN operands give the canonical NaN; what zeros and infinities give is the table `_SPECIAL`.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import minmax
from golden.numeric.arguments import together
from golden.numeric.fp32 import NAN, Bits, is_nan, require_subnormals
from golden.pe.sfu_round import I64, NEAREST, U64, Inner, Mask, Rounding, known_format, round_once, top_bit, widen
from spec.formats import FLOAT32
from spec.sfu import (
    BINARY,
    FRACTION,
    LN2,
    LN2_FRACTION,
    LOG2E,
    LOG2E_FRACTION,
    PLACE,
    POWER_FRACTION,
    REGIONS,
    ROWS,
    UNARY,
    SfuOp,
)

_ONE = 1 << FRACTION
_T = (1 << PLACE) - 1
_COLUMNS = tuple(np.array(c, np.int64) for c in zip(*ROWS, strict=True))


def known_op(op: Any, known: tuple[SfuOp, ...], what: str) -> SfuOp:
    if not isinstance(op, int | np.integer) or isinstance(op, bool) or op not in known:
        raise ValueError(f"{op!r} is no {what} of the special function unit; those are {', '.join(o.name for o in known)}")
    return SfuOp(int(op))


# -- operands ----------------------------------------------------------------------------------------------------------------------------

@dataclass
class Number:
    """Operands taken apart: (-1)^negative * sig * 2^(exp - 23), sig with its leading one at bit 23 (0 for zero, infinity, NaN)."""

    sig: I64
    exp: I64
    negative: Mask
    zero: Mask
    inf: Mask
    nan: Mask


def _decode(x: Bits) -> Number:
    magnitude = (x & np.uint32(FLOAT32.magnitude_mask)).astype(np.int64)
    field, frac = magnitude >> 23, magnitude & 0x7FFFFF
    sig = np.where(field > 0, frac | 1 << 23, frac)
    shift = np.where(sig > 0, 23 - top_bit(sig.astype(np.uint64)), 0)
    odd = field == 255
    zero = magnitude == 0
    exp, negative = np.maximum(field, 1) - 127 - shift, (x >> np.uint32(31)) != 0
    return Number(np.where(odd, 0, sig << shift), exp, negative, zero, odd & (frac == 0), odd & (frac != 0))


def _locate(name: str, exp: I64, frac: I64) -> tuple[I64, I64]:
    """Row and place t of argument 2^exp * (1 + frac / 2^23); octaves beyond the last count as the last. Below the first octave bits that do not
    fit in t set its least bit."""
    r = REGIONS[name]
    base, bits = (np.array(c, np.int64) for c in zip(*r.octaves, strict=True))
    o = np.clip(exp - r.first, 0, len(base) - 1)
    row = base[o] + (frac >> (23 - bits[o]))
    t = frac << (PLACE - 23 + bits[o]) & _T
    if r.near >= 0:
        near = exp < r.first
        shift = exp - r.first + PLACE - 23
        sig = frac | 1 << 23
        down = np.clip(-shift, 0, 63)
        small = np.where(shift > 0, sig << np.clip(shift, 0, 5), sig >> down)
        small = small | ((small << down != sig) & (shift < 0))
        row, t = np.where(near, r.near, row), np.where(near, small, t)
    return row, t


def _polynomial(row: I64, t: I64) -> tuple[I64, I64]:
    """P in units of 2^-38 and the row's exponent."""
    c0, c1, c2, c3, c4, e = (c[row] for c in _COLUMNS)
    p = c4
    for c in (c3, c2, c1, c0):
        p = c + (t * p >> PLACE)
    return p, e


# -- functions ---------------------------------------------------------------------------------------------------------------------------

_ZERO, _UNIT, _HALF, _INF, _NAN, _SIGNED_ZERO, _SIGNED_UNIT, _SIGNED_INF, _NEGATIVE_ZERO, _NEGATIVE_INF = range(10)
#: Result of +-0, +Inf, -Inf, and of negative numbers where they have none of their own.
_SPECIAL = {
    SfuOp.EXP: (_UNIT, _INF, _ZERO, None), SfuOp.EXP2: (_UNIT, _INF, _ZERO, None), SfuOp.LOG: (_NEGATIVE_INF, _INF, _NAN, _NAN),
    SfuOp.RECIPROCAL: (_SIGNED_INF, _SIGNED_ZERO, _SIGNED_ZERO, None), SfuOp.RSQRT: (_SIGNED_INF, _ZERO, _NAN, _NAN),
    SfuOp.TANH: (_SIGNED_ZERO, _SIGNED_UNIT, _SIGNED_UNIT, None), SfuOp.SIGMOID: (_HALF, _UNIT, _ZERO, None),
    SfuOp.GELU: (_SIGNED_ZERO, _INF, _NEGATIVE_ZERO, None), SfuOp.SILU: (_SIGNED_ZERO, _INF, _NEGATIVE_ZERO, None),
    SfuOp.SOFTPLUS: (None, _INF, _ZERO, None), SfuOp.RELU: (_ZERO, _INF, _ZERO, _ZERO), SfuOp.COPY: (_SIGNED_ZERO, _SIGNED_INF, _SIGNED_INF, None),
}


def _power(x: Number, multiplier: int) -> tuple[I64, I64, I64, Mask]:
    """2^y for y = x * multiplier / 2^39 as P and exponent; y is cut (toward minus infinity) to 34 bits below the point. Last: is y an integer?"""
    product = x.sig.astype(np.uint64) * np.uint64(multiplier)
    shift = np.clip(LOG2E_FRACTION + 23 - POWER_FRACTION - x.exp, 0, 63).astype(np.uint64)
    y = (product >> shift).astype(np.int64)
    lost = (y.astype(np.uint64) << shift) != product
    y = np.where(x.negative, -y - lost, y)
    k, f = y >> POWER_FRACTION, y & (1 << POWER_FRACTION) - 1
    (base, _), = REGIONS["exp2"].octaves
    p, e = _polynomial(base + (f >> PLACE), f & _T)
    return p, k, e, (f == 0) & ~lost


def _logarithm(x: Number) -> tuple[U64, I64, Mask]:
    """ln of 2^exp * m: d * Q(d) + n * ln 2, with d = m - 1 and n = exp below m = 1.5, d = m / 2 - 1 and n = exp + 1 from there.
    For n = 0 in units of 2^-62, else d * Q(d) cut (its magnitude) to units of 2^-54 and added to n times ln 2 in those."""
    frac = x.sig & 0x7FFFFF
    high = frac >> 22 != 0
    d = np.where(high, frac - (1 << 23), 2 * frac)  # units of 2^-24
    n = x.exp + high
    p, e = _polynomial(*_locate("log", np.zeros_like(frac), frac))
    part = np.abs(d) * (p << e)
    cut = part >> (FRACTION + 24 - LN2_FRACTION)
    total = n * LN2 + np.where(d < 0, -cut, cut)
    mag = np.where(n == 0, part, np.abs(total)).astype(np.uint64)
    return mag, np.where(n == 0, -(FRACTION + 24), -LN2_FRACTION), np.where(n == 0, d < 0, total < 0)


def _evaluate(op: SfuOp, x: Number) -> Inner:
    """The function of finite, nonzero operands in its domain."""
    frac = x.sig & 0x7FFFFF
    negative = x.negative & (op in (SfuOp.RECIPROCAL, SfuOp.TANH, SfuOp.GELU, SfuOp.SILU))
    sticky = np.ones(frac.shape, bool)
    none = np.zeros(frac.shape, bool)
    times = np.full(frac.shape, 1 << 23, np.int64)  # significand that P is multiplied by, in units of 2^-23
    if op in (SfuOp.RELU, SfuOp.COPY):
        return Inner(x.sig.astype(np.uint64), x.exp - 23, x.negative & (op == SfuOp.COPY), none, none, none)
    if op == SfuOp.LOG:
        mag, exp, negative = _logarithm(x)
        return Inner(mag, exp, negative, mag != 0, none, none)
    if op in (SfuOp.EXP, SfuOp.EXP2):
        big = x.exp >= 8  # beyond all results: 2^512 and 2^-512 stand for them
        p, k, e, integer = _power(x, LOG2E if op == SfuOp.EXP else 1 << LOG2E_FRACTION)
        exp = np.where(big, np.where(x.negative, -512, 512), k) + e
        sticky = ~integer | (op == SfuOp.EXP)
    elif op == SfuOp.RECIPROCAL:
        p, e = _polynomial(*_locate("reciprocal", np.zeros_like(frac), frac))
        exp, sticky = e - x.exp, frac != 0
    elif op == SfuOp.RSQRT:
        p, e = _polynomial(*_locate("rsqrt", x.exp & 1, frac))
        exp, sticky = e - (x.exp >> 1), (frac != 0) | (x.exp & 1 != 0)
    elif op == SfuOp.TANH:
        p, e = _polynomial(*_locate("tanh", x.exp, frac))
        big = x.exp >= 4
        p, exp, times = np.where(big, _ONE - 1, p), np.where(big, 0, e + x.exp), np.where(big, times, x.sig)
    elif op == SfuOp.SOFTPLUS:
        return _softplus(x, frac)
    else:
        p, exp = _one_sided(op, x, frac)
        if op != SfuOp.SIGMOID:
            exp, times = exp + x.exp, x.sig
    return Inner((times * p).astype(np.uint64), exp - FRACTION - 23, negative, sticky, none, none)


def _one_sided(op: SfuOp, x: Number, frac: I64) -> tuple[I64, I64]:
    """Phi(x) (GELU) or sigmoid(x): U of the magnitude for negative x, 1 - U (U cut upward to units of 2^-38) for positive.
    From 32 on sigmoid is the exponential; Phi beyond its last octave is 0 (as its last row, times 2^-256)."""
    p, e = _polynomial(*_locate("gelu" if op == SfuOp.GELU else "sigmoid", x.exp, frac))
    p, e = (p, np.where(x.exp >= 4, e - 256, e)) if op == SfuOp.GELU else _or_power(x, p, e)
    cut = np.minimum(-e, 63)
    whole = p >> cut
    rest = _ONE - whole - (whole << cut != p)
    return np.where(x.negative, p, rest), np.where(x.negative, e, 0)


def _or_power(x: Number, p: I64, e: I64) -> tuple[I64, I64]:
    """P and exponent, from 32 on those of e^-|x|."""
    far = Number(x.sig, np.minimum(x.exp, 8), np.ones_like(x.negative), x.zero, x.inf, x.nan)
    fp, k, fe, _ = _power(far, LOG2E)
    return np.where(x.exp >= 5, fp, p), np.where(x.exp >= 5, np.where(x.exp >= 8, -512, k) + fe, e)


def _softplus(x: Number, frac: I64) -> Inner:
    """ln(1 + e^x): U = ln(1 + e^-|x|) of zero and negative x; of positive x + U, x cut to units of 2^-54 and U to those of 2^-38; from 2^9 on just above x."""
    row, t = _locate("softplus", x.exp, frac)
    p, e = _or_power(x, *_polynomial(np.where(x.zero, REGIONS["softplus"].near, row), np.where(x.zero, 0, t)))
    whole = p >> np.minimum(-e, 63)
    up = x.exp + 31
    own = np.where(up > 0, x.sig << np.clip(up, 0, 39), x.sig >> np.clip(-up, 0, 63))
    beyond, negative = x.exp >= 9, x.negative | x.zero
    mag = np.where(negative, p << 23, np.where(beyond, x.sig, own + (whole << 16)))
    exp = np.where(negative, e - FRACTION - 23, np.where(beyond, x.exp - 23, -54))
    return Inner(mag.astype(np.uint64), exp, np.zeros(frac.shape, bool), np.ones(frac.shape, bool), x.inf, x.nan)


def unary(op: Any, codes: Any, format_in: str, format_out: str | None = None, how: Rounding = NEAREST) -> NDArray[Any]:
    """`op` of every code of `format_in`: codes of `format_out` (default the same), correctly shaped. Results of integer formats are patterns.

    Raises:
        ValueError: not an operation of one operand, or not a format of the unit. TypeError: not integer codes.
    """
    op = known_op(op, UNARY, "operation of one operand")
    out = format_out or format_in
    known_format(out, target=True)
    x = widen(codes, format_in)
    n = _decode(x)
    with np.errstate(over="ignore"):
        r = _evaluate(op, n)
    at_zero, at_inf, at_minus_inf, at_negative = _SPECIAL[op]
    what = np.full(x.shape, -1)
    if at_negative is not None:
        what[n.negative] = at_negative
    if at_zero is not None:
        what[n.zero] = at_zero
    what[n.inf] = at_inf
    what[n.inf & n.negative] = at_minus_inf
    what[n.nan] = _NAN
    special = what >= 0
    minus = np.isin(what, (_SIGNED_ZERO, _SIGNED_UNIT, _SIGNED_INF)) & n.negative | np.isin(what, (_NEGATIVE_ZERO, _NEGATIVE_INF))
    r.mag = np.where(special, np.isin(what, (_UNIT, _SIGNED_UNIT, _HALF)), r.mag).astype(np.uint64)
    r.exp = np.where(special, -(what == _HALF).astype(np.int64), r.exp)
    r.negative, r.sticky = np.where(special, minus, r.negative), r.sticky & ~special
    r.inf, r.nan = np.isin(what, (_INF, _SIGNED_INF, _NEGATIVE_INF)), what == _NAN
    return round_once(r, out, how)


# -- two and three operands --------------------------------------------------------------------------------------------------------------

def _exact(value: NDArray[np.float64], error: NDArray[np.float64]) -> Inner:
    """Internal result of value + error, where |error| is below half a unit in the last place of `value` (float64)."""
    bits = np.abs(value).view(np.uint64)
    field = (bits >> np.uint64(52)).astype(np.int64)
    number = np.isfinite(value) & (value != 0)
    mag = np.where(number, bits & np.uint64((1 << 52) - 1) | np.uint64(1 << 52), np.uint64(0)) << np.uint64(8)
    inexact = number & (error != 0)
    mag = mag - (inexact & (np.signbit(error) != np.signbit(value)))
    return Inner(mag, field - 1083, np.signbit(value), inexact, np.isinf(value), np.isnan(value))


def _float64(a: Any, b: Any) -> list[NDArray[np.float64]]:
    """Values of binary32 patterns; RuntimeError where this thread would take subnormals for zeros."""
    require_subnormals()
    return [np.asarray(v).view(np.float32).astype(np.float64) for v in np.broadcast_arrays(a, b)]


def add(a: Any, b: Any, *, minus: bool = False) -> Inner:
    """a + b or (`minus`) a - b of binary32 patterns, exactly: float64 sum and its error (Knuth's two-sum)."""
    x, y = _float64(a, b)
    if minus:
        y = -y
    with np.errstate(invalid="ignore"):
        s = x + y
        z = s - x
        error = (x - (s - z)) + (y - z)
    return _exact(s, np.where(np.isfinite(s), error, 0.0))


def multiply(a: Any, b: Any) -> Inner:
    """a * b of binary32 patterns, exactly: 48 bits fit in float64."""
    x, y = _float64(a, b)
    with np.errstate(invalid="ignore"):
        p = x * y
    return _exact(p, np.zeros_like(p))


def number_of(x: Bits) -> Inner:
    n = _decode(x)
    return Inner(n.sig.astype(np.uint64), n.exp - 23, n.negative, np.zeros(x.shape, bool), n.inf, n.nan)


def binary(
    op: Any, a: Any, b: Any, format_a: str, format_b: str | None = None, format_out: str | None = None, how: Rounding = NEAREST,
) -> NDArray[Any]:
    """`op` of codes of `format_a` and `format_b` (default `format_a`), broadcast, in `format_out` (default `format_a`), rounded once.

    Raises:
        ValueError: not an operation of two operands, not a format of the unit. TypeError: not integer codes.
    """
    op = known_op(op, BINARY, "operation of two operands")
    out = format_out or format_a
    known_format(out, target=True)
    x, y = widen(a, format_a), widen(b, format_b or format_a)
    together(op.name, a=x, b=y)
    if op in (SfuOp.MIN, SfuOp.MAX):
        return round_once(number_of(np.asarray((minmax.fmin if op == SfuOp.MIN else minmax.fmax)(x, y))), out, how)
    return round_once(multiply(x, y) if op == SfuOp.MUL else add(x, y, minus=op == SfuOp.SUB), out, how)


def clamp(
    x: Any, low: Any, high: Any, format_in: str, format_low: str = "float32", format_out: str | None = None, how: Rounding = NEAREST,
) -> NDArray[Any]:
    """min(max(x, low), high); `high` is binary32. NaN in any operand gives NaN; low above high gives high.

    Raises:
        ValueError: not a format of the unit. TypeError: not integer codes.
    """
    out = format_out or format_in
    known_format(out, target=True)
    a, b, c = widen(x, format_in), widen(low, format_low), widen(high, "float32")
    together("CLAMP", x=a, low=b, high=c)
    y = minmax.fmin(minmax.fmax(a, b), c)
    return round_once(number_of(np.where(is_nan(a) | is_nan(b) | is_nan(c), NAN, y)), out, how)
