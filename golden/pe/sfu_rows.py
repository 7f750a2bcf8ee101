"""Special function unit, row-wise: sum, minimum and maximum of a row; softmax, LayerNorm and RMSNorm as sequences of the unit's operations.

Rules (docs/numbers.md, "Special functions")
    * The sum of a row is exact and rounded once, so it depends neither on an order nor on lanes. Infinities of both signs, or a NaN, give NaN; a sum
      of zero is +0, but -0 where every element is -0.
    * minimum and maximum as for two operands: NaN propagates, -0 below +0.
    * A kernel is the listed sequence; each step's result is binary32, the last one's the kernel's format. So a NaN in a row makes its row NaN, and
      softmax of a row whose maximum is -Inf (all masked) or +Inf is NaN: Inf - Inf.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import minmax
from golden.numeric.arguments import array
from golden.numeric.fp32 import INF, is_nan
from golden.pe.sfu import (
    I64,
    NEAREST,
    Inner,
    Rounding,
    binary,
    known_format,
    known_op,
    number_of,
    round_once,
    unary,
    widen,
)
from spec.formats import FLOAT32
from spec.sfu import DIGITS, ROW, ROW_ELEMENTS, SfuOp

F32 = "float32"
_DIGIT = (1 << 32) - 1


def row(op: Any, codes: Any, format_in: str, format_out: str | None = None, how: Rounding = NEAREST) -> NDArray[Any]:
    """`op` over the last axis of `codes`; codes of `format_out` (default `format_in`) of the shape without it.

    Raises:
        ValueError: not a row operation, not a format of the unit, an empty row or one above `ROW_ELEMENTS`. TypeError: not integer codes.
    """
    op = known_op(op, ROW, "row operation")
    out = format_out or format_in
    known_format(out, target=True)
    x = widen(codes, format_in)
    if x.ndim == 0 or not 1 <= x.shape[-1] <= ROW_ELEMENTS:
        raise ValueError(f"row operation on shape {x.shape}; expected rows of 1 to {ROW_ELEMENTS} elements")
    if op == SfuOp.ROW_SUM:
        return round_once(_sum(x), out, how)
    pick = minmax.fmin if op == SfuOp.ROW_MIN else minmax.fmax
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = np.concatenate([np.asarray(pick(x[..., :half], x[..., half:2 * half])), x[..., 2 * half:]], axis=-1)
    return round_once(number_of(x[..., 0]), out, how)


def _sum(x: NDArray[np.uint32]) -> Inner:
    """Every element is sig * 2^(q - 149) with q below 254: digits of 32 bits, each summed on its own, carried once at the end."""
    magnitude = (x & np.uint32(FLOAT32.magnitude_mask)).astype(np.int64)
    field, sign = magnitude >> 23, x >> np.uint32(31) != 0
    odd = field == 255
    sig = np.where(odd, 0, np.where(field > 0, magnitude & 0x7FFFFF | 1 << 23, magnitude))
    q = np.where(odd, 0, np.maximum(field, 1) - 1)
    wide = sig << (q & 31)
    place = q >> 5
    low, high = np.where(sign, -(wide & _DIGIT), wide & _DIGIT), np.where(sign, -(wide >> 32), wide >> 32)
    digits: list[I64] = []
    carry = np.zeros(x.shape[:-1], np.int64)
    for d in range(DIGITS):
        total = np.where(place == d, low, 0).sum(axis=-1) + np.where(place == d - 1, high, 0).sum(axis=-1) + carry
        digits.append(total & _DIGIT if d < DIGITS - 1 else total)
        carry = total >> 32
    negative = digits[-1] < 0
    zero_below = np.ones(negative.shape, bool)
    for d in range(DIGITS):  # two's complement of the whole number
        flipped = np.where(zero_below, -digits[d], ~digits[d])
        zero_below &= digits[d] == 0
        digits[d] = np.where(negative, flipped if d == DIGITS - 1 else flipped & _DIGIT, digits[d])
    mag, exp = np.zeros(negative.shape, np.uint64), np.zeros(negative.shape, np.int64)
    rest, sticky = np.zeros(negative.shape, bool), np.zeros(negative.shape, bool)
    under = np.zeros(negative.shape, np.int64)
    for d, digit in enumerate(digits):  # the highest digit that is not 0 and the one below it
        live = digit != 0
        mag = np.where(live, digit.astype(np.uint64) << np.uint64(32) | under.astype(np.uint64), mag)
        exp, sticky = np.where(live, 32 * (d - 1) - 149, exp), np.where(live, rest, sticky)
        rest, under = rest | (under != 0), digit
    plus, minus = (x == INF).any(axis=-1), (x == (INF | np.uint32(1 << 31))).any(axis=-1)
    nan = np.asarray(is_nan(x)).any(axis=-1) | plus & minus
    all_minus_zero = (x == np.uint32(1 << 31)).all(axis=-1)
    return Inner(mag, exp, np.where(plus | minus, minus, negative | all_minus_zero), sticky, plus | minus, nan)


def _f32(x: float) -> NDArray[np.uint32]:
    return np.asarray(np.float32(x)).view(np.uint32)


def _length(codes: Any) -> int:
    shape = array(codes, "codes").shape
    if not shape:
        raise ValueError("norm of a single number; expected rows")
    if not 1 <= shape[-1] <= ROW_ELEMENTS:
        raise ValueError(f"norm of codes of shape {shape}; expected rows of 1 to {ROW_ELEMENTS} elements")
    return shape[-1]


def _epsilon(x: Any) -> NDArray[np.uint32]:
    if not isinstance(x, int | float | np.integer | np.floating) or not 0 <= x <= FLOAT32.max:
        raise ValueError(f"epsilon {x!r}; expected a number from 0 to the largest of float32")
    return _f32(float(x))


def _mean(codes: Any, name: str, n: int) -> NDArray[Any]:
    """row sum, times the reciprocal of n (both binary32)."""
    return binary(SfuOp.MUL, row(SfuOp.ROW_SUM, codes, name, F32), unary(SfuOp.RECIPROCAL, _f32(n), F32), F32)[..., None]


def softmax(codes: Any, name: str, format_out: str | None = None) -> NDArray[Any]:
    """exp(x - max) / sum over the last axis: ROW_MAX, SUB, EXP, ROW_SUM, RECIPROCAL, MUL."""
    known_format(format_out or name)
    d = binary(SfuOp.SUB, codes, row(SfuOp.ROW_MAX, codes, name, F32)[..., None], name, F32, F32)
    e = unary(SfuOp.EXP, d, F32)
    r = unary(SfuOp.RECIPROCAL, row(SfuOp.ROW_SUM, e, F32), F32)[..., None]
    return binary(SfuOp.MUL, e, r, F32, F32, format_out or name)


def _fits(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to `to`."""
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(shape[::-1], to[::-1], strict=False))


def _scaled(x: Any, r: Any, gamma: Any, beta: Any, name: str, x_name: str, out: str) -> NDArray[Any]:
    """x * r, then * gamma, then + beta, where given; the last step rounds to `out`."""
    for what, v in (("gamma", gamma), ("beta", beta)):
        if v is not None and not _fits(array(v, what).shape, np.shape(x)):
            raise ValueError(f"{what} of shape {np.shape(v)} for rows of shape {np.shape(x)}; expected what broadcasts to it")
    steps = [(SfuOp.MUL, r, F32)] + [(op, v, name) for op, v in ((SfuOp.MUL, gamma), (SfuOp.ADD, beta)) if v is not None]
    for k, (op, v, v_name) in enumerate(steps):
        target = out if k == len(steps) - 1 else F32
        x, x_name = binary(op, x, v, x_name, v_name, target), target
    return x


def layer_norm(
    codes: Any, name: str, *, epsilon: float, gamma: Any = None, beta: Any = None, format_out: str | None = None,
) -> NDArray[Any]:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axis.

    mean: ROW_SUM, MUL by RECIPROCAL of n; SUB; square: MUL; variance: as the mean; ADD epsilon (binary32); RSQRT; MUL; then MUL `gamma`, ADD `beta`
    (codes of format `name`) where given.
    """
    n = _length(codes)
    d = binary(SfuOp.SUB, codes, _mean(codes, name, n), name, F32, F32)
    variance = _mean(binary(SfuOp.MUL, d, d, F32), F32, n)
    r = unary(SfuOp.RSQRT, binary(SfuOp.ADD, variance, _epsilon(epsilon), F32), F32)
    return _scaled(d, r, gamma, beta, name, F32, format_out or name)


def rms_norm(codes: Any, name: str, *, epsilon: float, gamma: Any = None, format_out: str | None = None) -> NDArray[Any]:
    """x / sqrt(mean of squares + epsilon) * gamma over the last axis: MUL, ROW_SUM, MUL, ADD epsilon, RSQRT, MUL, and MUL `gamma` where given."""
    n = _length(codes)
    square = binary(SfuOp.MUL, codes, codes, name, name, F32)
    r = unary(SfuOp.RSQRT, binary(SfuOp.ADD, _mean(square, F32, n), _epsilon(epsilon), F32), F32)
    return _scaled(codes, r, gamma, None, name, name, format_out or name)
