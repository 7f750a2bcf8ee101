"""Rounding of exact numbers to a float format, to nearest even or stochastically: the general way, for any source and any target.

A number is (negative, sig, exp): ±sig * 2^(exp - 31), with bit 31 of `sig` its leading one; zero has sig 0.

Stochastic rounding takes the 24 bits below the kept ones (what lies below them is cut off), adds 24 random bits there and cuts off: a number
goes away from zero with the probability of its distance, in units of the last place, from the neighbour towards zero; a number of the format
never changes. The random bits of an element depend on seed and index alone (`spec.convert`).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric.arguments import array
from golden.numeric.fp32 import INF, Bits
from spec.convert import MIX, RANDOM_BITS, SEED_XOR
from spec.convert import mix as mix_int
from spec.formats import FLOAT32, Format

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Exact:
    """Numbers as in the module's text; `sig` of NaN and infinities means nothing."""

    negative: Mask
    sig: U64
    exp: I64
    nan: Mask
    inf: Mask


def _normal(magnitude: NDArray[Any]) -> tuple[U64, I64]:
    """Whole numbers below 2^32 as (sig, exp)."""
    length = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)  # exact: below 2^53
    return magnitude.astype(np.uint64) << (32 - length).astype(np.uint64), length - 1


def of_float32(bits: Bits) -> Exact:
    magnitude = bits & np.uint32(FLOAT32.magnitude_mask)
    field = (magnitude >> np.uint32(FLOAT32.frac_bits)).astype(np.int64)
    sig, top = _normal((magnitude & np.uint32(FLOAT32.frac_mask)) | (field > 0).astype(np.uint32) << np.uint32(FLOAT32.frac_bits))
    exp = top + np.maximum(field, 1) - FLOAT32.bias - FLOAT32.frac_bits
    return Exact(bits >> np.uint32(31) != 0, sig, exp, magnitude > INF, magnitude == INF)


def of_integers(values: NDArray[Any]) -> Exact:
    """Integers of up to 32 bits."""
    wide = values.astype(np.int64)
    no = np.zeros(wide.shape, bool)
    return Exact(wide < 0, *_normal(np.abs(wide)), no, no)


def check_seed(seed: Any) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 1 << 32:
        raise ValueError(f"seed {seed!r}: expected an integer, 0 <= seed < 2^32")


def random_bits(seed: int, index: Any) -> Bits:
    """24 bits of every index (modulo 2^32).

    Raises:
        ValueError: a seed that is not of 32 bits. TypeError: indices that are not integers.
    """
    check_seed(seed)
    a = array(index, "index")
    if a.dtype.kind not in "ui":
        raise TypeError(f"indices of type {a.dtype}; expected integers")
    x = np.atleast_1d(a.astype(np.uint32)) ^ np.uint32(mix_int(int(seed) ^ SEED_XOR))
    for shift, multiplier in MIX:
        x ^= x >> np.uint32(shift)
        if multiplier is not None:
            x *= np.uint32(multiplier)
    return (x >> np.uint32(32 - RANDOM_BITS)).reshape(a.shape)


def indices(shape: tuple[int, ...], seed: int | None, index: Any) -> NDArray[Any] | None:
    """Index of every element of an array: None without a seed; without `index` elements count from 0 in C order.

    Raises:
        ValueError: a seed out of range, indices without a seed, or of another shape.
    """
    if seed is None:
        if index is not None:
            raise ValueError("indices without a seed; expected both or none")
        return None
    check_seed(seed)
    if index is None:
        return np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    try:
        return np.broadcast_to(array(index, "index"), shape)
    except ValueError:
        raise ValueError(f"indices of shape {np.shape(index)} for elements of shape {shape}") from None


def randoms(shape: tuple[int, ...], seed: int | None, index: Any) -> Bits | None:
    """Random bits of every element, as :func:`indices` counts them."""
    at = indices(shape, seed, index)
    return None if seed is None or at is None else random_bits(seed, at)


def round_shift(sig: U64, shift: I64, random: Bits | None) -> U64:
    """sig / 2^shift rounded: to nearest even, or with random bits; sig below 2^32, shift at least 0."""
    k = np.minimum(shift, 60).astype(np.uint64)  # from 57 on nothing is left of the 24 bits below
    wide = sig << np.uint64(RANDOM_BITS)
    t = wide >> k
    if random is not None:
        return t + random >> np.uint64(RANDOM_BITS)
    whole = t >> np.uint64(RANDOM_BITS)
    below = t & np.uint64((1 << RANDOM_BITS) - 1) | (t << k != wide).astype(np.uint64)
    half = np.uint64(1 << (RANDOM_BITS - 1))
    return whole + ((below > half) | (below == half) & (whole & np.uint64(1) == 1)).astype(np.uint64)


def round_code(x: Exact, f: Format, random: Bits | None) -> I64:
    """Magnitude code of the finite numbers, without an upper limit: above `f.max_code` means overflow."""
    place = np.maximum(x.exp, f.min_exponent)  # of the result's leading bit, or of the largest subnormal's
    steps = round_shift(x.sig, 31 - f.frac_bits + place - x.exp, random)
    code = (place - f.min_exponent << f.frac_bits) + steps.astype(np.int64)
    return np.where(x.sig == 0, 0, code)


def settle(code: I64, x: Exact, f: Format, mode: str) -> tuple[NDArray[np.uint32], Mask]:
    """Final codes of `round_code`'s, with signs, infinities and NaN; and where the range was exceeded (`ConvertFlag.OVERFLOW`)."""
    beyond = ~x.nan & ((code > f.max_code) | x.inf)
    special = None if mode == "sat" else f.nan_code if f.inf_code is None else f.inf_code
    top = f.max_code if special is None else special
    signless = beyond & (special is not None and special == f.nan_code)
    out = np.where(beyond, top, code) | np.where(x.negative & ~signless, f.sign_mask, 0)
    out = np.where(x.nan, f.max_code if f.nan_code is None else f.nan_code, out)
    kept_inf = x.inf & (special is not None and special == f.inf_code)
    return out.astype(np.uint32), beyond & ~kept_inf
