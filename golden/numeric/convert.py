"""Conversions between binary32 and the narrower float formats of `spec.formats`, in exact integer arithmetic.

`widen` is exact. `narrow` rounds once, to nearest, ties to even, from the exact value. Subnormals are full both ways. A
NaN becomes the canonical NaN of the destination. Overflow (the rounded magnitude lies above the largest finite number)
and infinities follow the mode:

========  =========================================  ==========================================
mode      format with infinity                       format without
========  =========================================  ==========================================
``ovf``   infinity                                   its NaN; without a NaN: the largest number
``sat``   largest finite number, for infinity too    largest finite number, for infinity too
========  =========================================  ==========================================

The IEEE behaviour of the 16-bit formats is ``ovf``, the default. A NaN input to a format without NaN becomes the
largest number, positive; `drops_nan` is the sticky flag that says it happened. float8_e8m0fnu widens here but is
not narrowed to: choosing a block scale is a rule of its own (`golden.numeric.mx`), not a rounding.

With a seed `narrow` rounds stochastically (`golden.numeric.convert_round`). `golden.numeric.convert_any` converts
between any two formats, integers included.

Speed: arrays are taken in pieces that stay in the cache; formats of up to 16 bits widen by a table; formats of up to five
fraction bits are narrowed by a table of the upper 16 bits, whose last bit stands for everything below it.
"""
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric.arguments import array, one_of
from golden.numeric.convert_round import indices, random_bits
from golden.numeric.fp32 import INF, NAN, Bits, as_bits, canonical, is_nan
from spec.convert import RANDOM_BITS
from spec.formats import BFLOAT16, FLOAT32, Format, format_of

MODES = ("ovf", "sat")

_U32 = np.uint32
_CONTAINER = {8: np.uint8, 16: np.uint16, 32: np.uint32}
_PIECE = 1 << 17


def float_format(name: str) -> Format:
    """The named float format.

    Raises:
        ValueError: unknown, or an integer.
    """
    f = format_of(name)
    if not f.is_float:
        raise ValueError(f"format {name!r} is an integer; expected a float format")
    return f


def check_mode(name: str, mode: str) -> None:
    one_of(mode, MODES, f"narrow to {name}: unknown overflow mode")


def codes_of(x: Any, f: Format) -> NDArray[Any]:
    """`x` as an array of codes of `f`, checked."""
    a = array(x, f"{f.name} codes")
    if a.dtype.kind not in "ui" or (a.dtype.kind == "i" and a.size and int(a.min()) < 0):
        raise TypeError(f"expected unsigned {f.name} codes, not {a.dtype}")
    if a.dtype.itemsize * 8 > f.bits and a.size and int(a.max()) > f.mask:
        raise ValueError(f"code 0x{int(a.max()):x} is not a {f.name} code: expected at most 0x{f.mask:x}")
    return a


def _widen(code: Bits, f: Format) -> Bits:
    """Exact value of every code as a binary32 pattern, by normalising the significand."""
    if f.frac_bits > FLOAT32.frac_bits or f.min_quantum < FLOAT32.min_quantum or f.max_exponent > FLOAT32.max_exponent:
        raise ValueError(f"format {f.name} does not fit in float32")
    magnitude = code & _U32(f.magnitude_mask)
    sign = (code & _U32(f.sign_mask)).astype(np.uint32) << _U32(32 - f.bits)
    field = (magnitude >> _U32(f.frac_bits)).astype(np.int64)
    frac = (magnitude & _U32(f.frac_mask)).astype(np.int64)
    subnormal = (field == 0) & f.has_subnormals
    sig = np.where(subnormal, frac, frac | 1 << f.frac_bits)  # value = sig * 2^quantum
    quantum = np.where(subnormal, f.min_exponent, field - f.bias) - f.frac_bits
    smeared = sig.copy()
    for s in (1, 2, 4, 8, 16):
        smeared |= smeared >> s
    top = np.bitwise_count(smeared).astype(np.int64) - 1 + quantum  # exponent of the leading one
    out_quantum = np.maximum(top, FLOAT32.min_exponent) - FLOAT32.frac_bits
    # In units of out_quantum the significand has its leading one at bit 23, unless the result is subnormal.
    aligned = sig << np.maximum(quantum - out_quantum, 0)
    out = ((out_quantum - FLOAT32.min_quantum) << FLOAT32.frac_bits) + aligned
    out = np.where(sig == 0, 0, out).astype(np.uint32) | sign
    if f.inf_code is not None:
        out = np.where(magnitude == _U32(f.inf_code), INF | sign, out)
    if f.nan == "ieee":
        out = np.where(magnitude > _U32(f.exp_mask << f.frac_bits), NAN, out)
    elif f.nan == "all_ones":
        out = np.where(magnitude == _U32(f.magnitude_mask), NAN, out)
    return out


@cache
def _widen_table(f: Format) -> Bits:
    table = _widen(np.arange(1 << f.bits, dtype=np.uint32), f)
    table.flags.writeable = False
    return table


def _widen_piece(code: NDArray[Any], f: Format, out: Bits) -> None:
    if f is BFLOAT16:  # the upper half of a binary32
        out[...] = code
        out <<= _U32(16)
        if np.isnan(out.view(np.float32).max(initial=0)):  # a maximum with a NaN is NaN
            np.copyto(out, NAN, where=is_nan(out))
    elif f.bits <= 16:
        np.take(_widen_table(f), code, out=out, mode="clip")  # codes were checked
    else:
        out[...] = _widen(code.astype(np.uint32), f)


def widen(bits: Any, name: str) -> Bits:
    """binary32 pattern of every code of format `name`; exact, NaN canonical.

    Raises:
        ValueError: unknown format, an integer format, or a code wider than the format. TypeError: not integer codes.
    """
    f = float_format(name)
    if f is FLOAT32:
        return canonical(bits)
    code = codes_of(bits, f)
    out = np.empty(code.shape, np.uint32)
    flat, to = code.reshape(-1), out.reshape(-1)
    for at in range(0, flat.size, _PIECE):
        _widen_piece(flat[at : at + _PIECE], f, to[at : at + _PIECE])
    return out


def _shift_right_rne(x: Bits, shift: Any) -> Bits:
    """x / 2^shift, ties to even; x below 2^31, shift 1 to 25. A carry may go one place beyond x's own top bit."""
    return (x + ((_U32(1) << (shift - _U32(1))) - _U32(1)) + ((x >> shift) & _U32(1))) >> shift


def _shift_right_random(x: Bits, shift: Bits, random: Bits) -> Bits:
    """x / 2^shift, stochastically."""
    wide = (x.astype(np.uint64) << np.uint64(RANDOM_BITS)) >> shift.astype(np.uint64)
    return ((wide + random) >> np.uint64(RANDOM_BITS)).astype(np.uint32)


def _round_finite(magnitude: Bits, f: Format, random: Bits | None) -> Bits:
    """Code of every finite binary32 magnitude, without an upper limit: a code above `max_code` means overflow.

    In both formats codes grow with the number, so a normal result is the binary32 pattern, its exponent rebased, with
    the last fraction bits rounded off; a carry moves into the exponent by itself. A subnormal result is the whole
    significand, rounded to a multiple of the format's least bit.
    """
    drop = FLOAT32.frac_bits - f.frac_bits
    if drop == 0:
        return magnitude.copy()

    def rounded(x: Bits) -> Bits:
        if random is None:
            return _shift_right_rne(x, _U32(drop))
        return (x + (random >> _U32(RANDOM_BITS - drop))) >> _U32(drop)  # the random bits below x's last one cannot carry

    rebase = _U32((FLOAT32.bias - f.bias) << FLOAT32.frac_bits)
    if f.min_exponent == FLOAT32.min_exponent:  # bfloat16, tfloat32: subnormals are subnormals
        return rounded(magnitude)
    smallest = _U32((f.min_exponent + FLOAT32.bias) << FLOAT32.frac_bits)  # normal result
    small = magnitude < smallest
    code = np.asarray(rounded(np.maximum(magnitude, smallest) - rebase))
    m = magnitude[small]
    field = np.maximum(m >> _U32(FLOAT32.frac_bits), _U32(1))
    sig = m & _U32(FLOAT32.frac_mask) | (m > _U32(FLOAT32.frac_mask)).astype(np.uint32) << _U32(FLOAT32.frac_bits)
    shift = f.min_quantum + FLOAT32.bias + FLOAT32.frac_bits - field.astype(np.int32)  # sig * 2^(field - 150)
    if random is None:
        code[small] = _shift_right_rne(sig, np.minimum(shift, 25).astype(np.uint32))
    else:
        code[small] = _shift_right_random(sig, np.minimum(shift, 50).astype(np.uint32), random[small])
    return code


def _narrow(x: Bits, f: Format, mode: str, random: Bits | None = None) -> NDArray[Any]:
    magnitude = x & _U32(FLOAT32.magnitude_mask)
    code = _round_finite(magnitude, f, random)

    # What an overflow becomes; a NaN has no sign.
    special = None if mode == "sat" else f.nan_code if f.inf_code is None else f.inf_code
    code = np.where(code > _U32(f.max_code), _U32(f.max_code if special is None else special), code)
    sign = (x >> _U32(31)) << _U32(f.bits - 1)
    if special is not None and special == f.nan_code:
        sign = np.where(code == _U32(special), _U32(0), sign)
    nan = _U32(f.max_code if f.nan_code is None else f.nan_code)
    return np.where(is_nan(x), nan, code | sign).astype(_CONTAINER[f.container_bits])


@cache
def _narrow_table(f: Format, mode: str) -> NDArray[np.uint8]:
    """Code for every upper half of a binary32, its last bit set if any bit from there down is: that bit lies below the rounding bit."""
    table = _narrow(np.arange(1 << 16, dtype=np.uint32) << _U32(16), f, mode)
    table.flags.writeable = False
    return table


def _narrow_piece(x: Bits, f: Format, mode: str, out: NDArray[Any]) -> None:
    if f is BFLOAT16 and mode == "ovf":
        t = x >> _U32(16)
        t &= _U32(1)
        t += _U32(0x7FFF)
        t += x
        t >>= _U32(16)
        out[...] = t
        nan = np.isnan(x.view(np.float32))
        if nan.any():
            out[nan] = f.nan_code
    elif f.frac_bits <= 5:
        t = x & _U32(0xFFFF)
        t += _U32(0xFFFF)
        t |= x
        t >>= _U32(16)
        np.take(_narrow_table(f, mode), t, out=out, mode="clip")
    else:
        out[...] = _narrow(x, f, mode)


def narrow(bits32: Any, name: str, mode: str = "ovf", seed: int | None = None, index: Any = None) -> NDArray[Any]:
    """Codes of format `name`, rounded once from binary32; uint8, uint16 or uint32, the smallest that holds a code.

    Args:
        seed: 32 bits; rounds stochastically instead of to nearest even.
        index: with a seed, the number of each element (modulo 2^32; broadcast); default: its place in C order.

    Raises:
        ValueError: unknown format or mode, an integer format, float8_e8m0fnu, a seed out of range, indices that do not fit.
    """
    f = float_format(name)
    check_mode(name, mode)
    if not f.has_subnormals:
        raise ValueError(f"narrow to {name}: a scale is chosen by a block's scale rule, not by rounding")
    x = as_bits(bits32, "bits32")
    if seed is None and index is None and f is FLOAT32 and mode == "ovf":
        return canonical(x)
    places = indices(x.shape, seed, index)
    out = np.empty(x.shape, _CONTAINER[f.container_bits])
    flat, to = x.reshape(-1), out.reshape(-1)
    for at in range(0, flat.size, _PIECE):
        piece = slice(at, at + _PIECE)
        if seed is None or places is None:
            _narrow_piece(flat[piece], f, mode, to[piece])
        else:
            to[piece] = _narrow(flat[piece], f, mode, random_bits(seed, places.reshape(-1)[piece]))
    return out


def drops_nan(bits32: Any, name: str) -> bool:
    """Sticky flag of `narrow`: the format has no NaN and an input was one."""
    return float_format(name).nan_code is None and bool(np.any(is_nan(as_bits(bits32, "bits32"))))
