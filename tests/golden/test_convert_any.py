"""Conversions between any two formats, integers, and stochastic rounding: fractions, ml_dtypes, whole code spaces, and what went wrong elsewhere."""
from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.numeric import convert, convert_any, convert_round, fp32
from spec.convert import ConvertFlag, mix, random_bits
from spec.formats import FLOAT32, Format, format_of
from tests.golden.oracle import INF, NAN, decode, encode, value

FLOATS = [format_of(n) for n in convert_any.NAMES if format_of(n).is_float]
INTS = [format_of(n) for n in convert_any.NAMES if not format_of(n).is_float]
SMALL = [f for f in (*FLOATS, *INTS) if f.bits <= 16]
TARGETS = [format_of(n) for n in convert_any.TARGETS]
MODES = convert.MODES

by_name = dict(ids=lambda f: f.name)
sources = pytest.mark.parametrize("src", SMALL, **by_name)
targets = pytest.mark.parametrize("dst", TARGETS, **by_name)


def pattern(x: int, f: Format) -> int:
    """Integer value of a code of an integer format."""
    return x - (1 << f.bits) if f.signed and x >> (f.bits - 1) else x


def clip(x: int, f: Format) -> int:
    return min(max(x, int(f.min)), int(f.max))


def want(code: int, src: Format, dst: Format, mode: str) -> tuple[int, int]:
    """Result (a code; an integer for integer targets) and flags."""
    if not src.is_float:
        number: Fraction | str = Fraction(pattern(code, src))
        sign = int(number < 0)
    else:
        sign, m = decode(code, src)
        number = m if isinstance(m, str) else value(code, src)
    if number == NAN:
        if not dst.is_float:
            return 0, ConvertFlag.NAN_LOST
        return (dst.max_code, ConvertFlag.NAN_LOST) if dst.nan_code is None else (dst.nan_code, 0)
    if not dst.is_float:
        if number == INF:
            return int(dst.min if sign else dst.max), ConvertFlag.OVERFLOW
        whole = round(number)  # half to even
        return clip(whole, dst), 0 if clip(whole, dst) == whole else ConvertFlag.OVERFLOW
    if number == INF:
        out = encode(Fraction(10) ** 60 * (-1) ** sign, dst, mode=mode)
        return out, 0 if mode == "ovf" and dst.inf_code is not None else ConvertFlag.OVERFLOW
    out = encode(number, dst, zero_sign=sign, mode=mode)
    beyond = encode(number, dst, zero_sign=sign, mode="ovf") & dst.magnitude_mask > dst.max_code
    if dst.nan_code is None:  # saturates in either mode: beyond half a step above the largest
        beyond = abs(number) >= Fraction(dst.max) + Fraction(2) ** (dst.max_exponent - dst.frac_bits - 1)
    return out, ConvertFlag.OVERFLOW if beyond else 0


def codes_of(f: Format) -> np.ndarray:
    codes = np.arange(1 << f.bits, dtype=f"u{f.container_bits // 8}")
    return codes if f.is_float else codes.view(f.name)


@sources
@targets
@pytest.mark.parametrize("mode", MODES)
def test_every_code_between_every_two_formats(src, dst, mode):
    """All codes of up to 16 bits: result and flags by fractions (every 97th of the 16-bit codes), and flags that agree with the fast way."""
    codes = codes_of(src)
    got = convert_any.convert(codes, src.name, dst.name, mode)
    flags = convert_any.flags(codes, src.name, dst.name, mode)
    general, overflow, lost = convert_any._general(codes, src.name, dst.name, mode, None)
    np.testing.assert_array_equal(got, general)
    assert got.dtype == (np.dtype(dst.name) if not dst.is_float else np.dtype(f"u{dst.container_bits // 8}"))
    step = 1 if src.bits <= 8 else 97
    for c in range(0, 1 << src.bits, step):
        assert (int(got[c]), int(flags[c])) == want(c, src, dst, mode), hex(c)


@given(st.sampled_from(TARGETS), st.integers(0, (1 << 32) - 1), st.sampled_from(MODES))
def test_float32_to_anything(dst, bits, mode):
    x = np.uint32(bits)
    got = int(convert_any.convert(x, "float32", dst.name, mode)), int(convert_any.flags(x, "float32", dst.name, mode))
    assert got == want(bits, FLOAT32, dst, mode)


@given(st.sampled_from(TARGETS), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 31), st.sampled_from(MODES))
def test_int32_to_anything(dst, x, shift, mode):
    x >>= shift
    a = np.int32(x)
    got = int(convert_any.convert(a, "int32", dst.name, mode)), int(convert_any.flags(a, "int32", dst.name, mode))
    assert got == want(x & 0xFFFFFFFF, format_of("int32"), dst, mode)


@given(st.integers(0, 30), st.integers(-2, 2), st.sampled_from(TARGETS), st.booleans())
def test_floats_near_integers_and_limits(power, ulps, dst, half):
    """Integers and halves around every power of two, and the numbers beside them."""
    near = np.float32(2.0**power + (0.5 if half else 0.0)).view(np.uint32)
    for bits in (int(near) + ulps, int(near) + ulps | 1 << 31):
        assert int(convert_any.convert(np.uint32(bits), "float32", dst.name)) == want(bits, FLOAT32, dst, "ovf")[0]


# What went wrong elsewhere


def test_integers_round_once():
    """A stop at float32 makes a tie of it: 2^24 + 2^16 + 1 lies above the bfloat16 tie and must go up."""
    x = np.int32([(1 << 24) + (1 << 16) + 1, -((1 << 24) + (1 << 16) + 1), (1 << 25) + (1 << 17) + 1])
    assert convert_any.convert(x, "int32", "bfloat16").tolist() == [0x4B81, 0xCB81, 0x4C01]
    through = convert.narrow(convert_any.convert(x, "int32", "float32"), "bfloat16")
    assert through.tolist() == [0x4B80, 0xCB80, 0x4C00]


def test_integer_sum_is_not_taken_in_bfloat16():
    """6400 + 1600 + 400 = 8400; bfloat16 has 8384 there."""
    total = np.int32([6400, 1600, 400]).sum(dtype=np.int32)
    assert total == 8400
    assert convert.widen(convert_any.convert(total, "int32", "bfloat16"), "bfloat16").view(np.float32) == 8384.0
    assert convert_any.convert(convert_any.convert(total, "int32", "float32"), "float32", "int32") == 8400


def test_float_to_integer_known():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 128.5, -128.5, -129.0, 1e10, -1e10, np.inf, -np.inf, np.nan, -0.0], np.float32)
    got = convert_any.convert(x, "float32", "int8")
    assert got.tolist() == [0, 2, 2, 0, -2, 127, 127, -128, -128, 127, -128, 127, -128, 0, 0]
    flags = convert_any.flags(x, "float32", "int8").tolist()
    assert flags == [0, 0, 0, 0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 1, 0]
    limits = np.array([2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0], np.float32)
    assert convert_any.convert(limits, "float32", "int32").tolist() == [2147483520, 2147483647, -2147483648, -2147483648]
    assert convert_any.convert(np.float32([-0.5, -0.75, 255.4, 255.5]), "float32", "uint8").tolist() == [0, 0, 255, 255]
    assert convert_any.convert(np.int32([127, 128, -128, -129]), "int32", "int8").tolist() == [127, 127, -128, -128]


def test_every_float8_code_against_a_table():
    """0x7F and 0xFF of float8_e4m3fn are NaN, not 480 and 0; every other code is ml_dtypes' number."""
    for name in ("float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn", "float8_e8m0fnu"):
        f = format_of(name)
        codes = np.arange(1 << f.bits, dtype=np.uint8)
        theirs = codes.view(getattr(ml_dtypes, name)).astype(np.float32)
        theirs = np.where(np.isnan(theirs), np.uint32(0x7FC00000), theirs.view(np.uint32))
        np.testing.assert_array_equal(convert.widen(codes, name), theirs)
    assert convert.widen(np.uint8([0x7F, 0xFF]), "float8_e4m3fn").tolist() == [0x7FC00000] * 2


def test_minus_zero_keeps_its_sign():
    zeros = np.uint32([0x00000000, 0x80000000, 0xB3D6BF95])  # +0, -0, -1e-7
    for f in TARGETS:
        if f.is_float and f.bits <= 8:
            assert convert.narrow(zeros, f.name).tolist() == [0, f.sign_mask, f.sign_mask]
    assert convert_any.convert(zeros, "float32", "int32").tolist() == [0, 0, 0]


def test_nan_survives_or_tells():
    for src in FLOATS:
        nans = np.array([c for c in range(1 << min(src.bits, 19)) if src.is_nan(c)] if src.bits < 32 else [0x7F800001, 0xFFFFFFFF], np.uint32)
        if not nans.size:
            continue
        for dst in TARGETS:
            got = convert_any.convert(nans, src.name, dst.name)
            expected = 0 if not dst.is_float else dst.max_code if dst.nan_code is None else dst.nan_code
            assert set(got.tolist()) == {expected}
            lost = not dst.is_float or dst.nan_code is None
            assert set(convert_any.flags(nans, src.name, dst.name).tolist()) == {int(ConvertFlag.NAN_LOST) if lost else 0}


@pytest.mark.parametrize("f", [f for f in FLOATS if f.inf_code is not None], **by_name)
def test_nan_of_arithmetic_reaches_every_format(f):
    """Inf - Inf and Inf * 0, widened, computed and narrowed: the format's NaN, never 0 or Inf."""
    inf, zero = (np.asarray(convert.widen(np.uint32(c), f.name)) for c in (f.inf_code, 0))
    for wide in (fp32.add(inf, inf ^ np.uint32(1 << 31)), fp32.mul(inf, zero), fp32.mul(zero | np.uint32(1 << 31), inf)):
        for mode in MODES:
            assert int(convert.narrow(wide, f.name, mode)) == f.nan_code
            assert int(convert.narrow(wide, f.name, mode, seed=1)) == f.nan_code


def test_the_fast_ways_are_exact():
    """Narrowing by tables and integer tricks, to nearest and stochastically: every upper half with lower halves that decide, against the general
    rounding."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = ((np.arange(1 << 16, dtype=np.uint32) << np.uint32(16))[:, None] | low).ravel()
    for f in TARGETS:
        if f.is_float:
            for mode in MODES:
                exact = convert_round.of_float32(bits)
                for seed in (None, 77):
                    random = convert_round.randoms(bits.shape, seed, None)
                    general, _ = convert_round.settle(convert_round.round_code(exact, f, random), exact, f, mode)
                    np.testing.assert_array_equal(convert.narrow(bits, f.name, mode, seed), general)


# Stochastic rounding


def test_random_bits_are_those_of_the_contract():
    x = np.arange(1 << 20, dtype=np.uint32) * np.uint32(4093)
    y = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    y = (y ^ y >> np.uint32(15)) * np.uint32(0x846CA68B)
    y ^= y >> np.uint32(16)
    assert [mix(int(v)) for v in x[:500]] == y[:500].tolist() and mix(0xFFFFFFFF) == 0x6768824A
    assert len(np.unique(y)) == len(x)  # one to one
    index = np.array([0, 1, 2, 1000, (1 << 32) - 1, 1 << 32, (1 << 40) + 7], np.uint64)
    for seed in (0, 1, 0x9E3779B9, 0xFFFFFFFF):
        assert convert_round.random_bits(seed, index).tolist() == [random_bits(seed, int(i)) for i in index]
    many = convert_round.random_bits(7, np.arange(1 << 18))
    assert many.max() < 1 << 24
    for k in range(24):  # every bit is fair, and independent of its neighbour in the next element
        bit = (many >> np.uint64(k)) & np.uint64(1)
        assert abs(bit.mean() - 0.5) < 0.005
        assert abs((bit[1:] == bit[:-1]).mean() - 0.5) < 0.005
    other = convert_round.random_bits(8, np.arange(1 << 18))
    assert abs(np.corrcoef(many.astype(float), other.astype(float))[0, 1]) < 0.01


@pytest.mark.parametrize("f", [f for f in TARGETS if f.is_float and f is not FLOAT32], **by_name)
def test_only_the_two_neighbours_and_the_mean_is_exact(f):
    """40,000 draws of one number: the lower or the upper neighbour, as often as its distance says (five standard errors)."""
    n = 40_000
    rng = np.random.default_rng(17)
    for fraction in (1 / 64, 0.25, 0.5, 0.8125):
        for base in (f.min_subnormal * 2, f.min_normal, 1.0, f.max / 2 if f.frac_bits else 2.0):
            low = int(convert.narrow(np.float32(base), f.name))
            quantum = 2.0 ** (max(low >> f.frac_bits, 1) - f.bias - f.frac_bits)
            a = np.float32(base + fraction * quantum)
            for sign in (1, -1):
                got = convert.narrow(np.full(n, sign * a), f.name, seed=int(rng.integers(1 << 32)))
                s = f.sign_mask if sign < 0 else 0
                assert set(got.tolist()) == {low | s, low + 1 | s}
                up = (got == low + 1 | s).mean()
                assert abs(up - fraction) < 5 * np.sqrt(fraction * (1 - fraction) / n)


@pytest.mark.parametrize("f", [f for f in TARGETS if f.is_float], **by_name)
def test_numbers_of_the_format_never_change(f):
    codes = np.arange(1 << min(f.bits, 19), dtype=np.uint32) if f.bits < 32 else np.arange(0, 1 << 32, 65537, dtype=np.uint64).astype(np.uint32)
    wide = convert.widen(codes, f.name)
    for seed in (0, 1, 99):
        got = convert.narrow(wide, f.name, "ovf", seed)
        np.testing.assert_array_equal(got, convert.narrow(wide, f.name, "ovf"))


@given(st.sampled_from(TARGETS), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 40), st.sampled_from(MODES))
def test_stochastic_by_fractions(dst, bits, seed, index, mode):
    """From the rule: 24 bits below the kept ones, random bits added, cut off."""
    got = int(convert_any.convert(np.uint32(bits), "float32", dst.name, mode, seed, index))
    sign, m = decode(bits, FLOAT32)
    if isinstance(m, str):
        assert got == want(bits, FLOAT32, dst, mode)[0]
        return
    if dst.is_float:
        exponent = dst.min_exponent
        if m:
            top = m.numerator.bit_length() - m.denominator.bit_length()
            exponent = max(exponent, top - (m < Fraction(2) ** top))
        quantum = Fraction(2) ** (exponent - dst.frac_bits)
    else:
        quantum = Fraction(1)
    steps = (m / quantum * (1 << 24)).__floor__() + random_bits(seed, index) >> 24
    number = steps * quantum * (-1) ** sign
    if dst.is_float:
        assert got == encode(number, dst, zero_sign=sign, mode=mode) | (dst.sign_mask if sign and number == 0 else 0)
    else:
        assert got == clip(int(number), dst)


def test_stochastic_integers():
    x = np.full(40_000, 2.75, np.float32)
    got = convert_any.convert(x, "float32", "int8", seed=3)
    assert set(got.tolist()) == {2, 3} and abs(got.mean() - 2.75) < 0.011
    got = convert_any.convert(-x, "float32", "int8", seed=3)
    assert set(got.tolist()) == {-2, -3} and abs(got.mean() + 2.75) < 0.011
    x = np.full(40_000, (1 << 24) + 1, np.int32)
    got = convert.widen(convert_any.convert(x, "int32", "float32", seed=4), "float32").view(np.float32).astype(np.float64)
    assert set(got.tolist()) == {2.0**24, 2.0**24 + 2} and abs((got - 2.0**24).mean() - 1) < 0.05
    whole = np.arange(-128, 128, dtype=np.float32)
    np.testing.assert_array_equal(convert_any.convert(whole, "float32", "int8", seed=5), whole.astype(np.int8))


def test_stochastic_sum_of_errors_goes_to_zero():
    """Over many numbers of all magnitudes the mean error, in units of the last place, vanishes; to nearest even it is small too, but a sum of
    ones in bfloat16 sticks at 256 with it and does not here."""
    total = np.uint16(0)
    for i in range(2000):
        wide = fp32.add(convert.widen(total, "bfloat16"), np.float32(1.0))
        total = np.uint16(convert.narrow(wide, "bfloat16", seed=21, index=i))
    assert 1600 < convert.widen(total, "bfloat16").view(np.float32) < 2400
    rng = np.random.default_rng(22)
    x = rng.standard_normal(200_000).astype(np.float32)
    got = convert.widen(convert.narrow(x, "bfloat16", seed=23), "bfloat16").view(np.float32).astype(np.float64)
    ulp = 2.0 ** (np.floor(np.log2(np.abs(x.astype(np.float64)))) - 7)
    error = (got - x) / ulp
    assert np.abs(error).max() < 1 and abs(error.mean()) < 0.005


def test_bits_repeat_whatever_the_pieces():
    x = np.random.default_rng(24).standard_normal((37, 61)).astype(np.float32).view(np.uint32)
    whole = convert.narrow(x, "float8_e5m2", seed=9)
    flat = x.ravel()
    parts = [convert.narrow(flat[a : a + 100], "float8_e5m2", seed=9, index=np.arange(a, min(a + 100, flat.size))) for a in range(0, flat.size, 100)]
    np.testing.assert_array_equal(whole.ravel(), np.concatenate(parts))
    again = convert.narrow(x[::-1], "float8_e5m2", seed=9, index=np.arange(x.size).reshape(x.shape)[::-1])
    np.testing.assert_array_equal(whole, again[::-1])
    assert (convert.narrow(x, "float8_e5m2", seed=10) != whole).any()


def test_stochastic_overflow_follows_the_mode():
    """Between 448 and 480 either neighbour; from 480 on always beyond. NaN and infinities as ever."""
    x = np.full(4000, 464.0, np.float32)
    assert set(convert.narrow(x, "float8_e4m3fn", "ovf", 1).tolist()) == {0x7E, 0x7F}
    assert set(convert.narrow(x, "float8_e4m3fn", "sat", 1).tolist()) == {0x7E}
    assert set(convert.narrow(np.full(100, 480.0, np.float32), "float8_e4m3fn", "ovf", 1).tolist()) == {0x7F}
    special = np.uint32([0x7F800001, 0x7F800000, 0xFF800000])
    assert convert.narrow(special, "float8_e5m2", "ovf", 1).tolist() == [0x7E, 0x7C, 0xFC]


def test_refusals():
    x = np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="no converter for format 'int64'; expected one of float32, .*int32"):
        convert_any.convert(np.zeros(2, np.int64), "int64", "float32")
    with pytest.raises(ValueError, match="chosen by a block's scale rule"):
        convert_any.convert(x, "float32", "float8_e8m0fnu")
    with pytest.raises(TypeError, match=r"expected int8 values \(or patterns in uint8\), not int32"):
        convert_any.convert(np.zeros(2, np.int32), "int8", "float32")
    with pytest.raises(ValueError, match="unknown overflow mode 'x'"):
        convert_any.convert(np.zeros(2, np.int32), "int32", "int8", "x")
    with pytest.raises(ValueError, match="seed 4294967296: expected an integer, 0 <= seed < 2\\^32"):
        convert.narrow(x, "bfloat16", seed=1 << 32)
    with pytest.raises(ValueError, match="seed -1: expected 0 <= seed"):
        random_bits(-1, 0)
    with pytest.raises(ValueError, match="indices without a seed"):
        convert.narrow(x, "bfloat16", index=np.arange(2))
    with pytest.raises(ValueError, match=r"indices of shape \(3,\) for elements of shape \(2,\)"):
        convert.narrow(x, "bfloat16", seed=0, index=np.arange(3))
    with pytest.raises(TypeError, match="indices of type float64"):
        convert.narrow(x, "bfloat16", seed=0, index=np.zeros(2))


def test_patterns_of_integers():
    assert convert_any.convert(np.uint8([0xFF, 0x80]), "int8", "int32").tolist() == [-1, -128]
    assert convert_any.convert(np.uint32([0xFFFFFFFF]), "int32", "float32").tolist() == [0xBF800000]
    assert convert_any.convert(np.int8([]), "int8", "float16").shape == (0,)
