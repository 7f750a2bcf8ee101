"""Dot product: against exact rational arithmetic written out term by term from docs/numbers.md, and the rules that follow from it."""
from __future__ import annotations

import zlib
from fractions import Fraction
from itertools import product as pairs

import numpy as np
import pytest

from golden.numeric import fp32
from golden.numeric.convert import narrow, widen
from golden.pe import dot_product as dp
from golden.pe.dot_product import FORMATS, decode, dot_product, lanes
from spec.formats import format_of

FLOATS = [f for f in FORMATS if f != "int8"]
NAN, INF = 0x7FC00000, 0x7F800000


# -- the second model: Python integers and fractions, one element at a time ------------------------------------------------------------

def element(code: int, name: str, scale: int = 127) -> tuple[str, int, Fraction, int]:
    """(kind, sign, value, exponent that counts) of a code."""
    f = format_of(name)
    sign = -1 if code & f.sign_mask else 1
    magnitude = code & f.magnitude_mask
    if f.is_nan(code) or scale == 255:
        return "nan", 1, Fraction(0), 0
    if f.inf_code is not None and magnitude == f.inf_code:
        return "inf", sign, Fraction(0), 0
    field, frac = magnitude >> f.frac_bits, magnitude & f.frac_mask
    exp = (field - f.bias if field else 1 - f.bias) + scale - 127
    sig = Fraction(frac, 1 << f.frac_bits) + (1 if field else 0)
    return ("number" if sig else "zero"), sign, sign * sig * Fraction(2) ** exp, exp


def to_binary32(x: Fraction) -> int:
    if x == 0:
        return 0
    sign, m = (1 << 31 if x < 0 else 0), abs(x)
    e = m.numerator.bit_length() - m.denominator.bit_length()
    while Fraction(2) ** e > m:
        e -= 1
    while Fraction(2) ** (e + 1) <= m:
        e += 1
    q = max(e, -126) - 23
    units = m / Fraction(2) ** q
    n = units.numerator // units.denominator
    rest = units - n
    n += rest > Fraction(1, 2) or rest == Fraction(1, 2) and n & 1
    code = ((q + 149) << 23) + n
    return sign | min(code, INF)


def chunk(a: list, b: list) -> int:
    kinds = [(x, y) for x, y in zip(a, b, strict=True)]
    if any("nan" in (x[0], y[0]) or {x[0], y[0]} == {"inf", "zero"} for x, y in kinds):
        return NAN
    infinities = {x[1] * y[1] for x, y in kinds if "inf" in (x[0], y[0])}
    if infinities:
        return NAN if len(infinities) == 2 else INF | (1 << 31 if infinities == {-1} else 0)
    live = [(x, y) for x, y in kinds if x[0] == y[0] == "number"]
    if not live:
        return 0
    unit = Fraction(2) ** (max(x[3] + y[3] for x, y in live) - 48)
    total = 0
    for x, y in live:
        units = abs(x[2] * y[2]) / unit
        total += (units.numerator // units.denominator) * x[1] * y[1]
    return to_binary32(total * unit)


def reference(a, b, name_a: str, name_b: str, scale_a=None, scale_b=None, block: int = 32) -> np.ndarray:
    step = lanes(name_a)
    out = np.zeros((len(a), len(b)), np.uint32)
    for i, j in pairs(range(len(a)), range(len(b))):
        row = [element(int(c), name_a, 127 if scale_a is None else int(scale_a[i][k // block])) for k, c in enumerate(a[i])]
        col = [element(int(c), name_b, 127 if scale_b is None else int(scale_b[j][k // block])) for k, c in enumerate(b[j])]
        total = None
        for at in range(0, len(row), step):
            part = chunk(row[at : at + step], col[at : at + step])
            total = part if total is None else int(fp32.add(np.uint32(total), np.uint32(part)))
        out[i, j] = total or 0
    return out


def seeded(*what: object) -> np.random.Generator:
    """The same numbers for the same case, in every run."""
    return np.random.default_rng(zlib.crc32(repr(what).encode()))


# -- stimulus --------------------------------------------------------------------------------------------------------------------------

def codes(rng: np.random.Generator, name: str, shape: tuple[int, int], kind: str) -> np.ndarray:
    f = format_of(name)
    any_code = rng.integers(0, f.mask + 1, shape).astype(np.uint32)
    if kind == "any":
        return any_code
    finite = np.where([[f.is_nan(int(c)) or int(c) & f.magnitude_mask == f.inf_code for c in row] for row in any_code], f.max_code, any_code)
    if kind == "finite":
        return finite.astype(np.uint32)
    extremes = np.array([0, f.sign_mask, 1, f.sign_mask | 1, f.max_code, f.sign_mask | f.max_code, f.frac_mask, (f.frac_mask + 1)], np.uint32)
    if kind == "extremes":
        return rng.choice(extremes, shape)
    if kind == "one huge, many tiny":
        out = rng.integers(0, f.frac_mask + 2, shape).astype(np.uint32)
        out[:, int(rng.integers(shape[1]))] = f.max_code
        return out
    if kind == "cancelling":
        half = finite[:, : -(-shape[1] // 2)]
        return np.concatenate([half, half ^ np.uint32(f.sign_mask)], axis=1)[:, : shape[1]].astype(np.uint32)
    normal = narrow(rng.standard_normal(shape).astype(np.float32), name, "sat")
    return normal.astype(np.uint32)


KINDS = ("any", "finite", "extremes", "one huge, many tiny", "cancelling", "normal")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("kind", KINDS)
def test_against_fractions(name: str, kind: str) -> None:
    rng = seeded(name, kind)
    k = 2 * lanes(name) + 5
    a, b = codes(rng, name, (3, k), kind), codes(rng, name, (4, k), "normal" if kind == "cancelling" else kind)
    if kind == "cancelling":
        b = np.concatenate([b[:, : -(-k // 2)]] * 2, axis=1)[:, :k]
    assert np.array_equal(dot_product(a, b, name), reference(a, b, name, name))


@pytest.mark.parametrize("pair", [("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn"), ("float6_e3m2fn", "float8_e4m3fn")])
def test_mixed_formats(pair: tuple[str, str]) -> None:
    rng = seeded(*pair)
    a, b = codes(rng, pair[0], (3, 70), "any"), codes(rng, pair[1], (3, 70), "finite")
    assert np.array_equal(dot_product(a, b, *pair), reference(a, b, *pair))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn"])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("spread", [2, 120])
def test_mx_scales(name: str, block: int, spread: int) -> None:
    rng = seeded(name, block, spread)
    k = lanes(name) + 41
    a, b = codes(rng, name, (3, k), "finite"), codes(rng, name, (3, k), "normal")
    sa, sb = (rng.integers(127 - spread, 128 + spread, (3, -(-k // block))) for _ in range(2))
    sa[0, 0] = 255
    got = dot_product(a, b, name, scale_a=sa, scale_b=sb, block=block)
    assert np.array_equal(got, reference(a, b, name, name, sa, sb, block))
    assert (got[0] == NAN).all()


@pytest.mark.parametrize("name", FLOATS)
def test_both_ways_of_summing_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded(name)
    a, b = codes(rng, name, (33, 130), "normal"), codes(rng, name, (29, 130), "normal")
    fast = dot_product(a, b, name)
    used: list[bool] = []
    exact = dp._exact
    monkeypatch.setattr(dp, "_exact", lambda x, y: used.append(exact(x, y) is not None))
    assert np.array_equal(dot_product(a, b, name), fast)
    assert any(used), "float64 was never chosen: the test compares the window with itself"


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_short_chunk_is_a_chunk_filled_with_zeros(name: str, k: int) -> None:
    """Bits below 2^(E - 48) are cut off in it too: large products that cancel, and one whose least bit is about there."""
    f, rng = format_of(name), seeded(name, k)
    a, b = (np.full((64, k), (4 if f.max_exponent > 8 else 0) + f.bias << f.frac_bits, np.uint32) for _ in range(2))
    b[:, 1::2] |= np.uint32(f.sign_mask)
    for i in range(64):
        least = 2 * (int(a[i, 0]) >> f.frac_bits) - 48 + i % 6 - 3 + 2 * f.frac_bits  # exponent fields of the last product, together
        for x, field in ((a, least // 2), (b, least - least // 2)):
            x[i, -1] = max(field, 0) << f.frac_bits | int(rng.integers(0, f.frac_mask + 1)) | 1
    zeros = np.zeros((1, lanes(name) - k), np.uint32)
    for x, y in zip(a[:, None], b[:, None], strict=True):  # one pair at a time: the way of summing is chosen for all rows together
        got = dot_product(x, y, name)
        assert np.array_equal(got, reference(x, y, name, name)), (x, y)
        assert np.array_equal(got, dot_product(np.hstack([x, zeros]), np.hstack([y, zeros]), name)), (x, y)


def test_what_lies_below_the_window_of_a_short_chunk() -> None:
    a, b = np.uint16([[0x3F80, 0x3F80, 0x3701]]), np.uint16([[0x3F80, 0xBF80, 0x3681]])  # 1 - 1 + (1 + 2^-7)^2 * 2^-35, least bit 2^-49
    assert int(dot_product(a, b, "bfloat16")[0, 0]) == 0x2E020000


@pytest.mark.parametrize("name", FLOATS)
def test_order_of_lanes_does_not_matter(name: str) -> None:
    rng = seeded(name)
    step = lanes(name)
    a, b = codes(rng, name, (4, 2 * step), "finite"), codes(rng, name, (4, 2 * step), "one huge, many tiny")
    order = np.concatenate([rng.permutation(step), step + rng.permutation(step)])
    assert np.array_equal(dot_product(a, b, name), dot_product(a[:, order], b[:, order], name))


@pytest.mark.parametrize("name", FLOATS)
def test_published_error_bound(name: str) -> None:
    """Below lanes * 2^(E - 48) plus half an ulp of the exact sum; correctly rounded where the product range fits in the window."""
    rng = seeded(name)
    step, fits = lanes(name), name in ("float8_e4m3fn", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn")
    for kind in ("finite", "one huge, many tiny", "normal"):
        a, b = codes(rng, name, (8, step), kind), codes(rng, name, (8, step), kind)
        got = dot_product(a, b, name)
        for i, j in pairs(range(8), range(8)):
            x, y = ([element(int(c), name) for c in r] for r in (a[i], b[j]))
            exact = sum((p[2] * q[2] for p, q in zip(x, y, strict=True)), Fraction(0))
            if fits:
                assert got[i, j] == to_binary32(exact) or exact == 0 and got[i, j] == 0
                continue
            if got[i, j] & 0x7FFFFFFF == INF:
                assert abs(exact) > Fraction(2) ** 127
                continue
            value = Fraction(float(got[i, j : j + 1].view(np.float32)[0]))
            top = max((p[3] + q[3] for p, q in zip(x, y, strict=True) if p[0] == q[0] == "number"), default=0)
            ulp = Fraction(2) ** (max(int(got[i, j]) >> 23 & 0xFF, 1) - 150)
            assert abs(value - exact) < step * Fraction(2) ** (top - 48) + ulp / 2 + Fraction(1, 1 << 200)


def test_values_that_others_got_wrong() -> None:
    one = np.full((1, 9), 0x3F80, np.uint32)
    sums = one.copy()
    sums[0, 0] = 0x4380  # 256
    assert dot_product(one, sums, "bfloat16").view(np.float32)[0, 0] == 264.0  # not stuck at 256
    big = np.zeros((1, 32), np.uint32)
    big[0, 0], big[0, 1:] = 0x7E, 0x08  # 448 and thirty-one 2^-6
    ones = np.full((1, 32), 0x38, np.uint32)
    assert dot_product(big, ones, "float8_e4m3fn").view(np.float32)[0, 0] == np.float32(448 + 31 / 64)
    inf, zero, less = 0x7F80, 0x0000, 0xFF80
    for x, y, want in (([inf, less], [0x3F80, 0x3F80], NAN), ([inf, 0], [zero, 0], NAN), ([inf, 0x3F80], [0xBF80, 0x3F80], INF | 1 << 31),
                       ([0x7F81, 0], [0, 0], NAN), ([0x8000, 0x8000], [0x3F80, 0x3F80], 0), ([0x3F80, 0xBF80], [0x3F80, 0x3F80], 0)):
        assert int(dot_product([x], [y], "bfloat16")[0, 0]) == want


def test_int8_is_exact_and_wraps() -> None:
    rng = seeded("int8")
    a, b = (rng.integers(-128, 128, (5, 300)).astype(np.int8) for _ in range(2))
    want = (a.astype(object) @ b.T.astype(object)) & 0xFFFFFFFF
    assert np.array_equal(dot_product(a, b, "int8"), want.astype(np.uint32))
    assert np.array_equal(dot_product(a.view(np.uint8), b.view(np.uint8), "int8"), want.astype(np.uint32))
    low = np.full((1, 1), 0x80000001, np.uint32)
    assert int(dot_product(np.full((1, 2), -128, np.int8), np.full((1, 2), 1, np.int8), "int8", bias=low)[0, 0]) == (0x80000001 - 256) & 0xFFFFFFFF


def test_bias_and_empty_operands() -> None:
    a = np.full((2, 3), 0x3F80, np.uint32)
    bias = np.array([[0x3F800000, NAN, 0x80000000]], np.uint32)
    got = dot_product(a, np.full((3, 3), 0x3F80, np.uint32), "bfloat16", bias=bias)
    assert got.tolist() == [[0x40800000, NAN, 0x40400000]] * 2
    empty = np.zeros((2, 0), np.uint32)
    assert dot_product(empty, empty, "bfloat16").tolist() == [[0, 0]] * 2
    assert dot_product(empty, empty[:1], "float16", bias=np.uint32(0x40000000)).tolist() == [[0x40000000]] * 2
    assert dot_product(np.zeros((0, 4), np.uint32), np.zeros((3, 4), np.uint32), "float16").shape == (0, 3)


def test_widened_to_binary32_one_lane_is_the_rounded_product() -> None:
    rng = seeded("one")
    for name in ("bfloat16", "float16", "float8_e5m2", "tfloat32"):
        x, y = codes(rng, name, (64, 1), "any"), codes(rng, name, (64, 1), "any")
        with np.errstate(all="ignore"):
            want = widen(x, name).view(np.float32).astype(np.float64) @ widen(y, name).view(np.float32).astype(np.float64).T
            want = (want + 0.0).astype(np.float32).view(np.uint32)
        assert np.array_equal(dot_product(x, y, name), fp32.canonical(want))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dot_product([[0]], [[0]], "float64"), ValueError, "no format 'float64'; it has tfloat32"),
        (lambda: dot_product([[0]], [[0]], "bfloat16", "float8_e5m2"), ValueError, "no such pair"),
        (lambda: dot_product([[0]], [[0, 0]], "bfloat16"), ValueError, r"shapes \(1, 1\) and \(1, 2\)"),
        (lambda: dot_product([0], [0], "bfloat16"), ValueError, r"expected \(M, K\)"),
        (lambda: dot_product([[0.5]], [[0.5]], "bfloat16"), TypeError, "expected integer codes of bfloat16"),
        (lambda: dot_product([[0x100]], [[0]], "float8_e5m2"), ValueError, "0 to 0xff"),
        (lambda: dot_product([[300]], [[0]], "int8"), TypeError, "int8 values"),
        (lambda: dot_product([[0]], [[0]], "float8_e5m2", scale_a=[[1]], block=32), ValueError, "both operands"),
        (lambda: dot_product([[0]], [[0]], "float8_e5m2", scale_a=[[1]], scale_b=[[1]], block=8), ValueError, "expected one of 16, 32"),
        (lambda: dot_product([[0]], [[0]], "float8_e5m2", scale_a=[[1, 1]], scale_b=[[1]], block=32), ValueError, r"expected \(1, 1\)"),
        (lambda: dot_product([[0]], [[0]], "float8_e5m2", scale_a=[[127.5]], scale_b=[[1]], block=32), TypeError, "scales of type float64"),
        (lambda: dot_product([[0]], [[0]], "bfloat16", scale_a=[[1]], scale_b=[[1]], block=32), ValueError, "bfloat16 has no MX scales"),
        (lambda: dot_product(np.int8([[0]]), np.int8([[0]]), "int8", bias=np.uint32([1, 2])), ValueError, r"bias of shape \(2,\); expected \(1, 1\)"),
        (lambda: dot_product([[0]], [[0]], "float16", bias=np.zeros((2, 1, 1), np.uint32)), ValueError, r"bias of shape \(2, 1, 1\)"),
        (lambda: dot_product([[0]], [[0]], "float8_e5m2", scale_a=[[256]], scale_b=[[1]], block=32), ValueError, "0 to 255"),
    ],
)
def test_refusals(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_decode_marks_what_is_not_finite() -> None:
    o = decode(np.array([[0x7C, 0xFC, 0x7D, 0x00, 0x01]], np.uint32), "float8_e5m2")
    assert o.inf.tolist() == [[True, True, False, False, False]] and o.nan.tolist() == [[False, False, True, False, False]]
    assert o.sig.tolist() == [[0, 0, 0, 0, 1]] and o.exp[0, 4] == -14
