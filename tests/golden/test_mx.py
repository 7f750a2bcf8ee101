"""MX blocks against a second implementation in Python fractions, one block at a time, and the cases that went wrong elsewhere."""
from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.numeric import mx
from golden.numeric.convert import MODES, narrow, widen
from spec.formats import FLOAT8_E8M0FNU, FLOAT32, format_of
from spec.mx import BLOCKS, ELEMENTS
from tests.golden.oracle import INF, NAN, decode, encode, value

elements = pytest.mark.parametrize("element", ELEMENTS)
rules = pytest.mark.parametrize("rule", mx.RULES)
blocks = pytest.mark.parametrize("block", BLOCKS)


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e - (x < Fraction(2) ** e)


def want_block(bits: list[int], element: str, rule: str, mode: str) -> tuple[list[int], int]:
    """One block, straight from the rules."""
    f = format_of(element)
    numbers = [decode(b, FLOAT32) for b in bits]
    finite = [m for _, m in numbers if isinstance(m, Fraction)]
    amax = max(finite, default=Fraction(0))
    scale = -127
    if amax:
        low = floor_log2(amax)
        above = amax / Fraction(2) ** low  # 1 <= above < 2
        up = {"floor": False, "ceil": above > 1, "rne": above > Fraction(3, 2) or (above == Fraction(3, 2) and (low + 127) % 2 == 1)}[rule]
        scale = max(-127, low + up - floor_log2(Fraction(f.max)))
    out = []
    for b, (sign, m) in zip(bits, numbers, strict=True):
        if m == NAN:
            if f.nan_code is None:
                return [0] * len(bits), 0xFF
            out.append(f.nan_code)
        elif m == INF:
            out.append(encode(Fraction(10) ** 60 * (-1) ** sign, f, mode=mode))
        else:
            out.append(encode(value(b, FLOAT32) / Fraction(2) ** scale, f, zero_sign=sign, mode=mode))
    return out, scale + 127


def want_decode(code: int, scale: int, element: str) -> int:
    f = format_of(element)
    sign, m = decode(code, f)
    if scale == 0xFF or m == NAN:
        return 0x7FC00000
    if m == INF:
        return 0x7F800000 | sign << 31
    return encode(value(code, f) * Fraction(2) ** (scale - 127), FLOAT32, zero_sign=sign)


def check(bits: np.ndarray, element: str, block: int, rule: str, mode: str) -> None:
    codes, scales = mx.encode(bits, element, block, rule, mode)
    back = mx.decode(codes, scales, element, block)
    for at in range(0, len(bits), block):
        part = slice(at, at + block)
        want, scale = want_block(bits[part].tolist(), element, rule, mode)
        assert codes[part].tolist() == want and int(scales[at // block]) == scale, (at, [hex(b) for b in bits[part]])
        assert back[part].tolist() == [want_decode(c, scale, element) for c in want]


def f32(x: list[float]) -> np.ndarray:
    return np.array(x, np.float32).view(np.uint32)


def blocks_of(rng: np.random.Generator, n: int, block: int) -> np.ndarray:
    """Blocks around every magnitude that binary32 has, of a few binades each, with zeros; some with Inf, some with NaN."""
    centre = rng.integers(0, 256, (n, 1))
    field = np.clip(centre + rng.integers(-12, 2, (n, block)), 0, 254).astype(np.uint32)
    frac = rng.integers(0, 1 << 23, (n, block), dtype=np.uint32)
    coarse = rng.integers(0, 2, (n, 1), dtype=np.uint32).astype(bool)
    frac = np.where(coarse, frac & np.uint32(0x780000), frac)  # ties
    bits = field << np.uint32(23) | frac | rng.integers(0, 2, (n, block), dtype=np.uint32) << np.uint32(31)
    kind = rng.integers(0, 10, n)
    place = rng.integers(0, block, n)
    bits[kind == 0, place[kind == 0]] = 0x7F800000
    bits[kind == 1, place[kind == 1]] = 0xFF800001
    bits[kind == 2] &= np.uint32(0x80000000)
    bits[kind == 3, place[kind == 3]] = 0xFF800000
    return bits.ravel()


@elements
@rules
@pytest.mark.parametrize("mode", MODES)
def test_blocks_against_fractions(element, rule, mode):
    rng = np.random.default_rng(3)
    for block in BLOCKS:
        check(blocks_of(rng, 60, block)[: 60 * block - 7], element, block, rule, mode)


@settings(max_examples=150)
@given(
    st.lists(
        st.one_of(st.integers(0, (1 << 32) - 1), st.sampled_from([0, 1, 0x80000000, 0x7F7FFFFF, 0x7F800000, 0x00800000])), min_size=1, max_size=40),
    st.sampled_from(ELEMENTS), st.sampled_from(BLOCKS), st.sampled_from(mx.RULES), st.sampled_from(MODES),
)
def test_any_bits(bits, element, block, rule, mode):
    check(np.array(bits, np.uint32), element, block, rule, mode)


@elements
def test_every_code_and_scale_decodes(element):
    """All element codes under all 256 scales."""
    f = format_of(element)
    codes, scales = np.meshgrid(np.arange(f.mask + 1, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    got = mx.decode(codes.reshape(-1, 1), scales.reshape(-1, 1), element).reshape(codes.shape)
    value64 = widen(np.arange(f.mask + 1, dtype=np.uint8), element).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        want = np.ldexp(value64[None, :], np.arange(256)[:, None] - 127).astype(np.float32)
    want[255] = np.nan
    want = np.where(np.isnan(want), np.uint32(0x7FC00000), want.view(np.uint32))
    np.testing.assert_array_equal(got, want)
    back = got.view(np.float32).astype(np.float64)  # exact: only what exceeds binary32 changed
    finite = np.isfinite(back)
    np.testing.assert_array_equal(back[finite], np.ldexp(value64[None, :], np.arange(256)[:, None] - 127)[finite])


# Scale


@rules
def test_every_exponent_of_amax(rule):
    """Every power of two of binary32, and its neighbours: the scale of a block is amax's power of two, less the element's largest exponent."""
    powers = np.concatenate([1 << np.arange(23), np.arange(1, 255) << 23]).astype(np.int64)
    bits = np.unique(np.concatenate([powers - 1, powers, powers + 1, powers + (powers >= 1 << 23) * (1 << 22)]))
    for element in ELEMENTS:
        got = mx.scale_codes(bits.astype(np.uint32), element, rule)
        want = [want_block([b], element, rule, "sat")[1] for b in bits.tolist()]
        assert got.tolist() == want


@pytest.mark.parametrize(
    ("amax", "floor", "ceil", "rne"), [(1.125, 1, 2, 1), (1.25, 1, 2, 1), (5.0, 4, 8, 4), (1.5, 1, 2, 2), (3.0, 2, 4, 2), (7.0, 4, 8, 8)])
def test_rules_give_different_powers(amax, floor, ceil, rne):
    """What amax is rounded to; the scale is that over the element's largest power of two (float8_e4m3fn: 2^8)."""
    for rule, power in (("floor", floor), ("ceil", ceil), ("rne", rne)):
        _, scale = mx.encode(f32([amax, 0.25]), "float8_e4m3fn", 32, rule)
        assert 2.0 ** (int(scale[0]) - 127) == power / 256


def test_rne_differs_from_ml_dtypes_in_ties_only():
    """ml_dtypes takes every tie upwards: 3.0 to code 129; here to the even code, 128."""
    rng = np.random.default_rng(5)
    bits = rng.integers(1 << 23, 0x7E800000, 20000, dtype=np.uint32)
    bits[::5] = bits[::5] & 0x7F800000 | 0x400000
    theirs = bits.view(np.float32).astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    ours = mx.scale_codes(bits, "float4_e2m1fn", "rne").astype(int) + 2
    clear = ours > 2
    tie = (bits & 0x7FFFFF) == 0x400000
    np.testing.assert_array_equal(ours[clear & ~tie], theirs[clear & ~tie])
    down = clear & tie & (((bits >> 23) & 1) == 0)
    assert down.any()
    np.testing.assert_array_equal(ours[down] + 1, theirs[down])
    np.testing.assert_array_equal(ours[clear & tie & ~down], theirs[clear & tie & ~down])


def test_largest_of_a_block_may_clip():
    """957 with the floor rule: the scale is 2^1, 478.5 clips to 448, so 896 comes back."""
    codes, scales = mx.encode(f32([957.0, -1.0]), "float8_e4m3fn")
    assert scales.tolist() == [128] and codes.tolist() == [0x7E, 0xB0]
    assert mx.decode(codes, scales, "float8_e4m3fn").view(np.float32).tolist() == [896.0, -1.0]
    codes, scales = mx.encode(f32([957.0]), "float8_e4m3fn", mode="ovf")
    assert codes.tolist() == [0x7F]
    codes, scales = mx.encode(f32([957.0]), "float8_e4m3fn", rule="ceil")
    assert mx.decode(codes, scales, "float8_e4m3fn").view(np.float32).tolist() == [960.0]


# Zeros, specials


@elements
@rules
def test_zero_block(element, rule):
    codes, scales = mx.encode(f32([0.0] * 31 + [-0.0]), element, 32, rule)
    f = format_of(element)
    assert scales.tolist() == [0] and codes.tolist() == [0] * 31 + [f.sign_mask]
    assert mx.decode(codes, scales, element).tolist() == [0] * 31 + [0x80000000]


@elements
def test_tiny_block_does_not_overflow(element):
    """amax near the smallest binary32: 1/scale is 2^127, never infinite."""
    for x in (1e-38, 2.0**-126, 2.0**-127, 2.0**-149):
        check(f32([x, -x, 0.0]), element, 16, "floor", "sat")
        codes, scales = mx.encode(f32([x]), element)
        assert scales.tolist() == [max(0, int(np.floor(np.log2(x))) - format_of(element).max_exponent + 127)]


@elements
def test_scale_0xff_makes_the_block_nan(element):
    codes = np.zeros(40, np.uint8)
    got = mx.decode(codes, np.array([0xFF, 127], np.uint8), element)
    assert set(got[:32].tolist()) == {0x7FC00000} and set(got[32:].tolist()) == {0}


@elements
def test_nan_element(element):
    f = format_of(element)
    codes, scales = mx.encode(np.array([0x3F800000, 0xFF800001, 0x40000000], np.uint32), element, 16)
    back = mx.decode(codes, scales, element, 16).tolist()
    if f.nan_code is None:
        assert scales.tolist() == [0xFF] and codes.tolist() == [0, 0, 0]
        assert back == [0x7FC00000] * 3
    else:
        assert codes[1] == f.nan_code and back == [0x3F800000, 0x7FC00000, 0x40000000]


@elements
def test_infinity_does_not_set_the_scale(element):
    f = format_of(element)
    x = np.array([0x3F800000, 0x7F800000, 0xFF800000], np.uint32)
    codes, scales = mx.encode(x, element, 16, mode="sat")
    assert scales.tolist() == [127 - f.max_exponent] and codes[1:].tolist() == [f.max_code, f.max_code | f.sign_mask]
    codes, _ = mx.encode(x, element, 16, mode="ovf")
    want = {"float8_e4m3fn": [0x7F, 0x7F], "float8_e5m2": [0x7C, 0xFC]}.get(element, [f.max_code, f.max_code | f.sign_mask])
    assert codes[1:].tolist() == want
    codes, scales = mx.encode(x[1:], element, 16)  # nothing finite at all
    assert scales.tolist() == [0]


# Rows, axes, repetition


@blocks
def test_blocks_never_straddle_rows(block):
    rng = np.random.default_rng(11)
    x = blocks_of(rng, 10, 20).reshape(5, 40)
    codes, scales = mx.encode(x, "float8_e5m2", block)
    assert codes.shape == (5, 40) and scales.shape == (5, -(-40 // block))
    for r in range(5):
        c, s = mx.encode(x[r], "float8_e5m2", block)
        np.testing.assert_array_equal(codes[r], c)
        np.testing.assert_array_equal(scales[r], s)
    alone, scale = mx.encode(x[1, 32:], "float8_e5m2", block)  # the short block is a block of its own
    np.testing.assert_array_equal(codes[1, 32:], alone)
    assert scales[1, -1] == scale[0]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_axes(axis):
    rng = np.random.default_rng(12)
    x = (rng.standard_normal((5, 33, 17)) * 30).astype(np.float32)
    codes, scales = mx.encode(x, "float6_e2m3fn", 16, axis=axis)
    c, s = mx.encode(np.moveaxis(x, axis, -1), "float6_e2m3fn", 16)
    np.testing.assert_array_equal(np.moveaxis(codes, axis, -1), c)
    np.testing.assert_array_equal(np.moveaxis(scales, axis, -1), s)
    back = mx.decode(codes, scales, "float6_e2m3fn", 16, axis)
    np.testing.assert_array_equal(np.moveaxis(back, axis, -1), mx.decode(c, s, "float6_e2m3fn", 16))


@elements
@blocks
def test_encoding_again_changes_nothing(element, block):
    x = blocks_of(np.random.default_rng(13), 200, block)
    codes, scales = mx.encode(x, element, block)
    back = mx.decode(codes, scales, element, block)
    again = mx.encode(back, element, block)
    inf = np.isinf(back.view(np.float32)).reshape(-1, block).any(axis=1)
    nan = scales == 0xFF
    keep = ~(inf | nan)
    np.testing.assert_array_equal(again[1][keep], scales[keep])
    np.testing.assert_array_equal(again[0].reshape(-1, block)[keep], codes.reshape(-1, block)[keep])
    assert keep.sum() > 120 and (again[1][nan] == 0xFF).all()


def test_an_element_of_one_is_a_plain_conversion():
    """With a scale of 1 an element is what narrowing gives."""
    x = (np.random.default_rng(14).standard_normal(512) * 100).astype(np.float32).view(np.uint32).reshape(-1, 32)
    x[:, 0] = 0x43800000  # 256: scale 1 for float8_e4m3fn
    x = np.where((x & 0x7FFFFFFF) > 0x43FFFFFF, np.uint32(0x3F800000), x)
    codes, scales = mx.encode(x, "float8_e4m3fn")
    assert (scales == 127).all()
    np.testing.assert_array_equal(codes, narrow(x, "float8_e4m3fn", "sat"))


def test_shapes_and_refusals():
    x = np.zeros((2, 0), np.uint32)
    codes, scales = mx.encode(x, "float4_e2m1fn")
    assert codes.shape == (2, 0) and scales.shape == (2, 0) and mx.decode(codes, scales, "float4_e2m1fn").shape == (2, 0)
    x = np.zeros(40, np.uint32)
    with pytest.raises(ValueError, match="MX element format 'int8'; expected one of float8_e4m3fn"):
        mx.encode(x, "int8")
    with pytest.raises(ValueError, match="MX block of 8; expected one of 16, 32"):
        mx.encode(x, "float8_e5m2", 8)
    with pytest.raises(ValueError, match="scale rule 'up'; expected one of floor, ceil, rne"):
        mx.encode(x, "float8_e5m2", rule="up")
    with pytest.raises(ValueError, match="unknown overflow mode"):
        mx.encode(x, "float8_e5m2", mode="clip")
    with pytest.raises(ValueError, match="axis 1 of an array of 1 dimensions"):
        mx.encode(x, "float8_e5m2", axis=1)
    with pytest.raises(ValueError, match=r"scales of shape \(1,\) for codes of shape \(40,\) in blocks of 32 along axis -1; expected \(2,\)"):
        mx.decode(np.zeros(40, np.uint8), np.zeros(1, np.uint8), "float8_e5m2")
    with pytest.raises(ValueError, match="not a float4_e2m1fn code"):
        mx.decode(np.full(16, 16, np.uint8), np.zeros(1, np.uint8), "float4_e2m1fn")
    assert FLOAT8_E8M0FNU.nan_code == 0xFF
