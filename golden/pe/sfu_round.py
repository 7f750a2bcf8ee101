"""The special function unit's one rounding: an internal result to any format, to nearest even or stochastically.

An internal result (:class:`Inner`) is a magnitude M * 2^E with M below 2^64 and a mark that the exact value lies above it by less than one unit of M. It is
rounded once: to nearest, ties to even, or (:class:`Rounding`) with random bits added to the 24 bits of M below the kept ones, and cut. Subnormals are full;
overflow and infinities follow the mode; integers saturate.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert, convert_any
from golden.numeric.arguments import one_of
from golden.numeric.convert_round import Exact, randoms, settle
from golden.numeric.fp32 import Bits
from spec.convert import RANDOM_BITS
from spec.formats import Format, format_of

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

FORMATS = convert_any.NAMES
_STORE = {8: np.uint8, 16: np.uint16, 32: np.uint32}


@dataclass
class Inner:
    """Results before rounding: (-1)^negative * (mag + less than 1 where `sticky`) * 2^exp; `inf` and `nan` override."""

    mag: U64
    exp: I64
    negative: Mask
    sticky: Mask
    inf: Mask
    nan: Mask


@dataclass(frozen=True)
class Rounding:
    """`mode`: `ovf` or `sat` (`golden.numeric.convert`). With a seed rounding is stochastic; `index` of every result, from 0 in C order without it."""

    mode: str = "ovf"
    seed: int | None = None
    index: Any = None


NEAREST = Rounding()


def known_format(name: str, target: bool = False) -> Format:
    known = convert_any.TARGETS if target else FORMATS
    return format_of(one_of(name, known, f"the special function unit has no {'result' if target else 'operand'} format"))


def widen(codes: Any, name: str) -> Bits:
    """Operands as binary32 patterns. Codes of integers are patterns."""
    f = known_format(name)
    if f.is_float:
        return np.asarray(convert.widen(codes, name))
    return np.asarray(convert_any.convert(convert.codes_of(codes, f).astype(_STORE[f.bits]), name, "float32"))


def top_bit(x: U64) -> I64:
    """Place of the leading one; -1 for 0."""
    y = x.astype(np.uint64)
    for s in (1, 2, 4, 8, 16, 32):
        y = y | y >> np.uint64(s)
    return np.bitwise_count(y).astype(np.int64) - 1


def round_once(r: Inner, name: str, how: Rounding = NEAREST) -> NDArray[Any]:
    """Codes of format `name`: the leading one of M fixes the place of the least bit, which a subnormal has at the format's smallest exponent, and an
    integer at 0."""
    f = known_format(name, target=True)
    convert.check_mode(name, how.mode)
    top = top_bit(r.mag) + r.exp
    low = np.maximum(top, f.min_exponent) - f.frac_bits if f.is_float else np.zeros_like(top)  # weight of the result's least bit
    drop = low - r.exp
    random = randoms(r.mag.shape, how.seed, how.index)
    number = np.where(drop > 0, _nearest(r, drop) if random is None else _stochastic(r.mag, drop, random), r.mag << np.clip(-drop, 0, 63).astype(np.uint64))
    number = np.where(r.mag == 0, 0, number.astype(np.int64))
    if not f.is_float:
        number = np.where(top > 34, np.int64(1) << 34, number)  # beyond all of them; above 2^39 random bits would not fit
        largest = np.where(r.negative, -int(f.min), int(f.max))
        number = np.where(r.inf, largest, np.minimum(number, largest))
        return (np.where(r.nan, 0, np.where(r.negative, -number, number)) & f.mask).astype(_STORE[f.container_bits])
    code = np.where(r.mag == 0, 0, (np.clip(low - f.min_quantum, 0, 1 << 9) << f.frac_bits) + number)
    return settle(code, Exact(r.negative, r.mag, r.exp, r.nan, r.inf & ~r.nan), f, how.mode)[0].astype(_STORE[f.container_bits])


def _nearest(r: Inner, drop: I64) -> U64:
    """mag / 2^drop, drop above 0, to nearest even; what `sticky` stands for counts."""
    right = np.clip(drop, 1, 64).astype(np.uint64)
    whole = np.where(right < 64, r.mag >> np.minimum(right, np.uint64(63)), np.uint64(0))
    rest = r.mag - np.where(right < 64, whole << np.minimum(right, np.uint64(63)), np.uint64(0))
    half = np.uint64(1) << (right - np.uint64(1))
    up = (rest > half) | (rest == half) & (r.sticky | (whole & np.uint64(1) != 0))
    return np.where(drop > 64, np.uint64(0), whole + up)  # beyond 64 even the leading one is below half of the least bit


def _stochastic(mag: U64, drop: I64, random: Bits) -> U64:
    """mag / 2^drop cut to 24 bits below the point, random bits added, and cut."""
    shift = drop - RANDOM_BITS
    steps = np.where(shift < 64, mag >> np.clip(shift, 0, 63).astype(np.uint64), np.uint64(0)) << np.clip(-shift, 0, RANDOM_BITS).astype(np.uint64)
    return np.asarray(steps + random.astype(np.uint64) >> np.uint64(RANDOM_BITS))
