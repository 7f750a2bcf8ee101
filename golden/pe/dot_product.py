"""Dot-product engine: every row of one operand dotted with every row of the other, in all its formats; exact-integer NumPy.

Rules (docs/numbers.md)
    * K is cut into chunks of `lanes(format)` elements (64 bytes of the container); a short last chunk is filled with zeros.
    * Within a chunk products are exact. With E the largest sum of operand exponents among the nonzero finite products (a subnormal counts
      with its format's smallest exponent; MX scales add), every product is placed in a fixed-point window whose least bit weighs
      2^(E - 48), its magnitude truncated toward zero; the window is summed exactly and rounded once (to nearest, ties to even) to binary32.
      Order of lanes never matters. An exact sum of zero is +0.
    * NaN and infinities as IEEE 754 has them for the mathematical sum: a NaN operand, Inf x 0, or infinities of both signs give the canonical
      NaN. A scale of 0xFF makes its whole block NaN.
    * Chunks are added in order, in binary32; the first stands for itself, or is added to `bias`.
    * int8 accumulates exactly and wraps modulo 2^32.

Where a chunk's products all fit in 53 bits together and none reaches below the window, float64 sums them without any rounding, in any order:
then a float64 matrix product is the exact sum. Otherwise the window is summed in int64. Both give the same bits; the choice is one of speed.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import fp32
from golden.numeric.arguments import array
from golden.numeric.fp32 import INF, NAN, Bits
from spec.formats import FLOAT32, format_of
from spec.mx import BLOCKS
from spec.pe import WINDOW, DotFormat

FORMATS = tuple(f.name.lower() for f in DotFormat)
_NONE = -(1 << 14)  # exponent of what contributes nothing
_BLOCK = 1 << 18  # products at a time: what stays in the cache

I64 = NDArray[np.int64]


def lanes(name: str) -> int:
    """Elements of a chunk: 64 bytes of 32-, 16-, 8- or 4-bit elements (6-bit elements stand in bytes).

    Raises:
        ValueError: not a format of the engine.
    """
    if name not in FORMATS:
        raise ValueError(f"the dot-product engine has no format {name!r}; it has {', '.join(FORMATS)}")
    return DotFormat[name.upper()].lanes


@dataclass(frozen=True)
class Operand:
    """Rows of decoded elements, (rows, K). `sig` is the significand's magnitude, an element is ±sig * 2^(exp - frac_bits); elements that are
    not finite have sig 0 and a mark."""

    sig: I64
    exp: I64
    negative: NDArray[np.bool_]
    inf: NDArray[np.bool_]
    nan: NDArray[np.bool_]
    frac_bits: int

    def part(self, at: slice) -> Operand:
        return Operand(self.sig[:, at], self.exp[:, at], self.negative[:, at], self.inf[:, at], self.nan[:, at], self.frac_bits)

    @property
    def odd(self) -> bool:
        """Whether any element is Inf or NaN."""
        return bool(self.inf.any() or self.nan.any())


def decode(codes: Any, name: str, scale: Any = None, block: int | None = None) -> Operand:
    """`codes` (rows, K) of a float format, with MX scales (rows, ceil(K / block)), codes of float8_e8m0fnu, where given.

    Raises:
        ValueError: shapes that do not match, a block size other than 16 and 32, codes that the format does not have. TypeError: not integer codes.
    """
    f = format_of(name)
    a = array(codes, "codes")
    if a.ndim != 2:
        raise ValueError(f"operand of shape {a.shape}; expected (rows, K)")
    if a.dtype.kind not in "ui":
        raise TypeError(f"operand of type {a.dtype}; expected integer codes of {name}")
    if a.size and not 0 <= int(a.min()) <= int(a.max()) <= f.mask:
        raise ValueError(f"codes from {int(a.min()):#x} to {int(a.max()):#x}; {name} has 0 to {f.mask:#x}")
    code = a.astype(np.int64)
    magnitude = code & f.magnitude_mask
    field, frac = magnitude >> f.frac_bits, magnitude & f.frac_mask
    sig = np.where(field == 0, frac, frac | 1 << f.frac_bits)
    exp = np.maximum(field, 1) - f.bias
    inf = magnitude == f.inf_code if f.inf_code is not None else np.zeros(a.shape, bool)
    nan = magnitude > f.exp_mask << f.frac_bits if f.nan == "ieee" else (magnitude == f.magnitude_mask) & (f.nan == "all_ones")
    if scale is not None:
        s = _scales(scale, a.shape, block)
        exp = exp + s - 127
        nan = nan | (s == 255)
    sig = np.where(inf | nan, 0, sig)
    return Operand(sig, np.where(sig == 0, _NONE, exp), (code & f.sign_mask) != 0, inf & ~nan, nan, f.frac_bits)


def _scales(scale: Any, shape: tuple[int, ...], block: int | None) -> I64:
    """Scale code of every element."""
    if block is None or block not in BLOCKS:
        raise ValueError(f"MX block of {block}; expected one of {', '.join(map(str, BLOCKS))}")
    s = array(scale, "scales")
    if s.dtype.kind not in "ui":
        raise TypeError(f"scales of type {s.dtype}; expected integer codes of float8_e8m0fnu")
    wanted = (shape[0], -(-shape[1] // block))
    if s.shape != wanted:
        raise ValueError(f"scales of shape {s.shape} for an operand of shape {shape} in blocks of {block}; expected {wanted}")
    if s.size and not 0 <= int(s.min()) <= int(s.max()) <= 255:
        raise ValueError(f"scales from {int(s.min())} to {int(s.max())}; expected codes of float8_e8m0fnu, 0 to 255")
    return np.repeat(s.astype(np.int64), block, axis=1)[:, : shape[1]]


def dot_product(
    a: Any, b: Any, format_a: str, format_b: str | None = None, *, bias: Any = None, scale_a: Any = None, scale_b: Any = None,
    block: int | None = None,
) -> Bits:
    """Every row of `a` (M, K) with every row of `b` (N, K): (M, N) binary32 patterns; int8: int32 patterns.

    Args:
        a, b: codes; int8 may be given as int8 values.
        format_b: default `format_a`. Formats of the two may differ where their elements stand in equally many bits: bfloat16 with float16, 8-bit and 6-bit
            floats with each other; int8 goes with int8.
        bias: (M, N) or broadcast to it: what the first chunk is added to.
        scale_a, scale_b: MX scales, both or neither.
        block: MX block, 16 or 32.

    Raises:
        ValueError: formats, shapes or scales that do not fit together. TypeError: operands that are no integer codes.
    """
    format_b = format_b or format_a
    if lanes(format_a) != lanes(format_b) or "int8" in (format_a, format_b) and format_a != format_b:
        raise ValueError(f"{format_a} with {format_b}: the engine has no such pair")
    a, b = array(a, "a"), array(b, "b")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"operands of shapes {a.shape} and {b.shape}; expected (M, K) and (N, K)")
    if (scale_a is None) != (scale_b is None) or scale_a is None and block is not None:
        raise ValueError("MX scales and their block belong to both operands")
    for name in (format_a, format_b):
        if scale_a is not None and not DotFormat[name.upper()].scaled:
            raise ValueError(f"{name} has no MX scales")
    if bias is not None:
        bias, shape = fp32.as_bits(bias, "bias"), (a.shape[0], b.shape[0])
        try:
            bias = np.broadcast_to(bias, shape)
        except ValueError:
            raise ValueError(f"bias of shape {bias.shape}; expected {shape} or what broadcasts to it") from None
    if format_a == "int8":
        return _integers(a, b, bias)
    x, y = decode(a, format_a, scale_a, block), decode(b, format_b, scale_b, block)
    step = lanes(format_a)
    total = bias
    for at in range(0, a.shape[1], step):
        part = _chunk(x.part(slice(at, at + step)), y.part(slice(at, at + step)))
        total = part if total is None else fp32.add(total, part)
    return np.zeros((a.shape[0], b.shape[0]), np.uint32) if total is None else fp32.canonical(total)


def _integers(a: NDArray[Any], b: NDArray[Any], bias: Bits | None) -> Bits:
    for x in (a, b):
        if x.dtype not in (np.int8, np.uint8):
            raise TypeError(f"int8 operand of type {x.dtype}; expected int8 values, or their codes as uint8")
    values = [np.ascontiguousarray(x).view(np.int8).astype(np.float64) for x in (a, b)]
    total = (values[0] @ values[1].T).astype(np.int64)  # exact: at most K * 2^14
    if bias is not None:
        total = total + bias.astype(np.int64)
    return (total & 0xFFFFFFFF).astype(np.uint32)


def _chunk(x: Operand, y: Operand) -> Bits:
    """One chunk, (M, N) binary32 patterns."""
    out = _exact(x, y)
    if out is None:
        out = _window(x, y)
    return _special(x, y, out) if x.odd or y.odd else out


def _exact(x: Operand, y: Operand) -> Bits | None:
    """By float64, where no sum of these products can need more than its 53 bits and no product has bits below the window.

    E is at most ``high - 2``. A full chunk's sum needs 5 bits or more beyond a product's, which keeps the window; the last one may be shorter.
    """
    fp32.require_subnormals()
    high = low = 0
    for o in (x, y):
        live = o.sig != 0
        if not live.any():
            return np.zeros((x.sig.shape[0], y.sig.shape[0]), np.uint32)
        exp = o.exp[live]
        high += int(exp.max()) + 1
        low += int(exp.min()) - o.frac_bits
    if high + x.sig.shape[1].bit_length() - low > 53 or high - 2 - low > WINDOW or not -1000 < low <= high < 1000:
        return None
    values = [np.ldexp(np.where(o.negative, -o.sig, o.sig).astype(np.float64), np.maximum(o.exp, -1000) - o.frac_bits) for o in (x, y)]
    with np.errstate(over="ignore", under="ignore"):
        return (values[0] @ values[1].T + 0.0).astype(np.float32).view(np.uint32)


def _window(x: Operand, y: Operand) -> Bits:
    """By the window, in int64."""
    left = WINDOW - x.frac_bits - y.frac_bits
    (m, k), n = x.sig.shape, y.sig.shape[0]
    rows = max(1, _BLOCK // max(1, n * k))
    sig_a, exp_b = x.sig << left, y.exp[None]
    sign_a, sign_b = -x.negative.astype(np.int64), -y.negative.astype(np.int64)[None]
    total, top = np.empty((m, n), np.int64), np.empty((m, n), np.int64)
    for i in range(0, m, rows):
        at = slice(i, i + rows)
        exp = x.exp[at, None] + exp_b
        e = exp.max(axis=2)
        np.subtract(e[..., None], exp, out=exp)
        np.minimum(exp, 63, out=exp)
        product = sig_a[at, None] * y.sig[None]
        np.right_shift(product, exp, out=product)
        np.bitwise_xor(sign_a[at, None], sign_b, out=exp)
        np.bitwise_xor(product, exp, out=product)
        np.subtract(product, exp, out=product)
        total[at], top[at] = product.sum(axis=2), e
    return round_sum(total, top - WINDOW)


def round_sum(total: I64, quantum: I64) -> Bits:
    """binary32 pattern of ``total * 2^quantum``, to nearest, ties to even; |total| below 2^62. Zero is +0."""
    magnitude = np.abs(total)
    smeared = magnitude.copy()
    for s in (1, 2, 4, 8, 16, 32):
        smeared |= smeared >> s
    top = np.bitwise_count(smeared).astype(np.int64) - 1 + quantum
    out_quantum = np.maximum(top, FLOAT32.min_exponent) - FLOAT32.frac_bits
    shift = out_quantum - quantum
    right = np.clip(shift, 1, 63)
    half = (np.int64(1) << (right - 1)) - 1
    rounded = np.where(shift > 0, (magnitude + half + (magnitude >> right & 1)) >> right, magnitude << np.clip(-shift, 0, 62))
    code = (np.clip(out_quantum, FLOAT32.min_quantum, 1 << 10) - FLOAT32.min_quantum << FLOAT32.frac_bits) + rounded
    code = np.minimum(code, int(INF)) | (total < 0).astype(np.int64) << 31
    return np.where(magnitude == 0, 0, code).astype(np.uint32)


def _special(x: Operand, y: Operand, out: Bits) -> Bits:
    """What Inf and NaN operands make of the chunk."""
    def meets(p: NDArray[np.bool_], q: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return (p.astype(np.float32) @ q.astype(np.float32).T) > 0

    def parts(o: Operand) -> tuple[NDArray[np.bool_], ...]:
        number = (o.sig != 0) | o.inf
        return number & ~o.negative, number & o.negative, ~number & ~o.nan, o.inf & ~o.negative, o.inf & o.negative

    (xp, xn, xz, xip, xin), (yp, yn, yz, yip, yin) = parts(x), parts(y)
    plus = meets(xip, yp) | meets(xin, yn) | meets(xp, yip) | meets(xn, yin)
    minus = meets(xip, yn) | meets(xin, yp) | meets(xp, yin) | meets(xn, yip)
    nan = np.logical_or.outer(x.nan.any(axis=1), y.nan.any(axis=1)) | meets(x.inf, yz) | meets(xz, y.inf) | plus & minus
    out = np.where(plus, INF, np.where(minus, INF | np.uint32(1 << 31), out))
    return np.where(nan, NAN, out)
