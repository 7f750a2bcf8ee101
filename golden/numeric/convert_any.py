"""Conversion between any two formats, floats and integers (int8, uint8, int16, int32), each with one rounding from the exact value.

========  ======================================================================================================================
from, to  rule
========  ======================================================================================================================
float     widened to binary32 exactly, then narrowed (`golden.numeric.convert`); float8_e8m0fnu is a source only
int →     the exact integer is rounded once to the float format; overflow follows the mode; 0 is +0
float
float →   rounded to an integer (to nearest, ties to even), then saturated, infinities too, in either mode; NaN becomes 0
int
int       saturated
========  ======================================================================================================================

With a seed every rounding is stochastic (`golden.numeric.convert_round`). `flags` tells what was lost, per element.

Codes of floats are unsigned integers as in `golden.numeric.convert`; integers are arrays of their own type (int8 …), and may come as patterns in
the unsigned type of the same width.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert as floats
from golden.numeric.arguments import array, one_of
from golden.numeric.convert_round import Exact, Mask, of_float32, of_integers, randoms, round_code, settle
from golden.numeric.fp32 import Bits, is_nan
from spec.convert import RANDOM_BITS, ConvertFlag, ConvertFormat
from spec.formats import FLOAT8_E8M0FNU, Format, format_of

NAMES = tuple(f.name.lower() for f in ConvertFormat)
TARGETS = tuple(n for n in NAMES if n != FLOAT8_E8M0FNU.name)


def _format(name: str) -> Format:
    return format_of(one_of(name, NAMES, "no converter for format"))


def _target(name: str) -> Format:
    f = _format(name)
    if name not in TARGETS:
        raise ValueError(f"convert to {name}: a scale is chosen by a block's scale rule, not by rounding")
    return f


def _integers(x: Any, f: Format) -> NDArray[Any]:
    """`x` as an array of the integer format's own type."""
    a = array(x, f"{f.name} values")
    if a.dtype == np.dtype(f.name):
        return a
    if a.dtype.kind == "u" and a.dtype.itemsize * 8 == f.bits:
        return a.view(f.name)
    raise TypeError(f"expected {f.name} values (or patterns in uint{f.bits}), not {a.dtype}")


def _to_integers(bits32: Bits, f: Format, random: Bits | None) -> tuple[NDArray[Any], Mask, Mask]:
    """Integers of binary32 numbers; where the range was exceeded; where a NaN was."""
    nan = is_nan(bits32)
    with np.errstate(invalid="ignore"):
        value = np.where(nan, 0.0, bits32.view(np.float32).astype(np.float64))
    if random is None:
        whole = np.rint(value)  # IEEE 754 roundToIntegralTiesToEven
    else:
        # At most 24 significant bits: the product is exact. From 2^32 on every target saturates.
        steps = np.floor(np.minimum(np.abs(value), 2.0**32) * 2.0**RANDOM_BITS).astype(np.uint64)
        whole = np.copysign((steps + random >> np.uint64(RANDOM_BITS)).astype(np.float64), value)
        whole = np.where(np.abs(value) >= 2.0**32, value, whole)
    kept = np.clip(whole, float(f.min), float(f.max))
    return kept.astype(np.int64).astype(f.name), kept != whole, nan


def _general(x: Any, source: str, target: str, mode: str, random: Any) -> tuple[NDArray[Any], Mask, Mask]:
    """Result, overflow and lost NaN of every element, by the general rounding."""
    src, dst = _format(source), _target(target)
    exact: Exact
    if src.is_float:
        bits = np.asarray(floats.widen(x, source))
        if not dst.is_float:
            return _to_integers(bits, dst, random)
        exact = of_float32(bits)
    else:
        values = _integers(x, src)
        if not dst.is_float:
            wide = values.astype(np.int64)
            kept = np.clip(wide, int(dst.min), int(dst.max))
            return kept.astype(dst.name), kept != wide, np.zeros(wide.shape, bool)
        exact = of_integers(values)
    code, overflow = settle(round_code(exact, dst, random), exact, dst, mode)
    lost = exact.nan & (dst.nan_code is None)
    return code.astype(f"u{dst.container_bits // 8}"), overflow, lost


def convert(x: Any, source: str, target: str, mode: str = "ovf", seed: int | None = None, index: Any = None) -> NDArray[Any]:
    """`x` of format `source` in format `target`.

    Args:
        mode: `ovf` or `sat`; what an overflow to a float format becomes.
        seed, index: stochastic rounding, as in `golden.numeric.convert.narrow`.

    Raises:
        ValueError: a format without converter, float8_e8m0fnu as target, an unknown mode, a seed or codes out of range.
        TypeError: elements of the wrong type.
    """
    src, dst = _format(source), _target(target)
    floats.check_mode(target, mode)
    if src.is_float and dst.is_float:
        return floats.narrow(floats.widen(x, source), target, mode, seed, index)
    return np.asarray(_general(x, source, target, mode, randoms(array(x, f"{source} values").shape, seed, index))[0])


def flags(x: Any, source: str, target: str, mode: str = "ovf", seed: int | None = None, index: Any = None) -> NDArray[np.uint8]:
    """`spec.convert.ConvertFlag` bits of every element of the same call of `convert`."""
    floats.check_mode(target, mode)
    _, overflow, lost = _general(x, source, target, mode, randoms(array(x, f"{source} values").shape, seed, index))
    return np.asarray(overflow * np.uint8(ConvertFlag.OVERFLOW) | lost * np.uint8(ConvertFlag.NAN_LOST), np.uint8)
