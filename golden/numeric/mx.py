"""Microscaling (MX) blocks, encode and decode: 16 or 32 elements of a row share one float8_e8m0fnu scale (code c is 2^(c - 127)).

Encode
    * A block is `block` consecutive elements along the axis, from the row's first element on; the last may be short. Rows share nothing.
    * amax is the largest finite magnitude of the block. The rule (`spec.mx.ScaleRule`) makes a power of two of it, 2^p; the scale is
      2^(p - emax), emax the exponent of the element format's largest number, and not below 2^-127. It never exceeds 2^126.
      Without a finite number other than 0 the scale is 2^-127, code 0.
    * Every element is its number divided by the scale, exactly, and rounded once (to nearest, ties to even) to the element format. Overflow and
      infinities follow the mode, `sat` (the default) or `ovf`.
    * A NaN becomes the NaN of the element format. Where that has none, the block's scale becomes 0xFF and its elements 0.

Decode
    * An element is its code's number times the scale: exact, or infinite from 2^128 on. A scale of 0xFF makes the whole block NaN.

With rule `floor` and mode `sat`, encoding what was decoded gives the same codes and scales; with the other rules the scale may differ.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import fp32
from golden.numeric.arguments import array, integer, one_of
from golden.numeric.convert import narrow, widen
from golden.numeric.fp32 import INF, NAN, Bits, as_bits, is_nan
from spec.formats import FLOAT32, format_of
from spec.mx import BLOCKS, ELEMENTS, SCALE, SCALE_NAN, ScaleRule

_U32 = np.uint32
_FRAC = FLOAT32.frac_bits
RULES = tuple(r.name.lower() for r in ScaleRule)


def _check(element: str, block: int, ndim: int, axis: int) -> None:
    one_of(element, ELEMENTS, "MX element format")
    one_of(block, BLOCKS, "MX block of")
    if not -ndim <= integer(axis, "axis") < ndim:
        raise ValueError(f"axis {axis} of an array of {ndim} dimensions")


def _blocks(a: NDArray[Any], block: int, axis: int) -> NDArray[Any]:
    """(…, blocks, block), the axis last, the last block filled with zeros."""
    rows = np.moveaxis(a, axis, -1)
    missing = -rows.shape[-1] % block
    if missing:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:-1], missing), a.dtype)], axis=-1)
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // block, block)


def _rows(blocks: NDArray[Any], n: int, axis: int) -> NDArray[Any]:
    """`_blocks` undone: rows of `n` elements."""
    flat = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
    return np.ascontiguousarray(np.moveaxis(flat[..., :n], -1, axis))


def scale_codes(amax: Bits, element: str, rule: str) -> NDArray[np.uint8]:
    """Scale of blocks whose largest finite magnitude, a binary32 pattern, is `amax`.

    Raises:
        ValueError: unknown element format or rule, a pattern that is no finite magnitude. TypeError: no patterns.
    """
    one_of(element, ELEMENTS, "MX element format")
    one_of(rule, RULES, "scale rule")
    amax = as_bits(amax, "amax")
    if np.any(amax >= INF):
        raise ValueError(f"amax up to {int(np.max(amax)):#x}; expected finite magnitudes, below {int(INF):#x}")
    # The leading bit to bit 23, and its biased exponent: subnormals by an exact multiplication with 2^32.
    small = amax < _U32(1 << _FRAC)
    normal = np.where(small, fp32.mul(amax, _U32(127 + 32 << _FRAC)), amax)
    power = (normal >> _U32(_FRAC)).astype(np.int64) - np.where(small, 32, 0)  # biased: 2^(power - 127)
    frac = normal & _U32(FLOAT32.frac_mask)
    half = _U32(1 << (_FRAC - 1))
    if rule == "ceil":
        power += frac > 0
    elif rule == "rne":
        power += (frac > half) | (frac == half) & (power & 1 == 1)
    code = np.where(amax == 0, 0, power - format_of(element).max_exponent)
    return np.maximum(code, 0).astype(np.uint8)


def encode(
    bits32: Any, element: str, block: int = 32, rule: str = "floor", mode: str = "sat", axis: int = -1,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Element codes, of the shape of `bits32`, and scale codes, of that shape with ceil(n / block) along `axis`.

    Args:
        bits32: binary32 patterns.
        element: of `spec.mx.ELEMENTS`. rule: floor, ceil or rne. mode: sat or ovf.

    Raises:
        ValueError: an element format, block, rule, mode or axis that does not exist.
    """
    x = as_bits(bits32, "bits32")
    _check(element, block, x.ndim, axis)
    n = x.shape[axis]
    b = _blocks(x, block, axis)
    magnitude = b & _U32(FLOAT32.magnitude_mask)
    scale = scale_codes(np.where(magnitude < INF, magnitude, _U32(0)).max(axis=-1, initial=0), element, rule)
    # Exact where it matters: a product inexact in binary32 lies far below half of the element format's smallest number.
    inverse = ((254 - scale.astype(np.uint32)) << _U32(_FRAC)).astype(np.uint32)
    codes = narrow(fp32.mul(b, inverse[..., None]), element, mode)
    if format_of(element).nan_code is None:
        lost = np.asarray(is_nan(b).any(axis=-1))
        scale = np.where(lost, np.uint8(SCALE_NAN), scale)
        codes = np.where(lost[..., None], np.uint8(0), codes)
    return _rows(codes, n, axis), np.ascontiguousarray(np.moveaxis(scale, -1, axis))


def decode(codes: Any, scales: Any, element: str, block: int = 32, axis: int = -1) -> Bits:
    """binary32 patterns of MX blocks.

    Raises:
        ValueError: a format, block or axis that does not exist, codes that the format does not have, scales of another shape.
        TypeError: not integer codes.
    """
    c, s = array(codes, "codes"), array(scales, "scales")
    _check(element, block, c.ndim, axis)
    n = c.shape[axis]
    wanted = list(c.shape)
    wanted[axis] = -(-n // block)
    if s.shape != tuple(wanted):
        raise ValueError(f"scales of shape {s.shape} for codes of shape {c.shape} in blocks of {block} along axis {axis}; expected {tuple(wanted)}")
    value = _blocks(widen(c, element), block, axis)
    factor = np.moveaxis(widen(s, SCALE), axis, -1)
    out = fp32.mul(value, factor[..., None])
    return _rows(np.where(factor[..., None] == NAN, NAN, out), n, axis)
