"""Converters: every 16-bit code, every rounding boundary of every format, and the cases that went wrong elsewhere."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.numeric import convert, fp32
from spec.formats import FLOAT32, FORMATS, Format, format_of
from tests.golden.oracle import decode, encode, value

NARROW = [f for f in FORMATS.values() if f.is_float and f.has_subnormals and f is not FLOAT32]
HALVES = [format_of("bfloat16"), format_of("float16")]
NANS = [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F80FFFF, 0x7FBFFFFF]
INFS = [0x7F800000, 0xFF800000]

formats = pytest.mark.parametrize("f", NARROW, ids=lambda f: f.name)
halves = pytest.mark.parametrize("f", HALVES, ids=lambda f: f.name)


def dtype_of(f: Format) -> np.dtype:
    return np.dtype(f.name if f.name == "float16" else getattr(ml_dtypes, f.name))


def f32(x: float) -> np.uint32:
    return np.float32(x).view(np.uint32)


def want_narrow(bits: int, f: Format, mode: str) -> int:
    sign, m = decode(bits, FLOAT32)
    if m == "nan":
        return f.max_code if f.nan_code is None else f.nan_code
    if m == "inf":
        top = f.max_code if mode == "sat" or f.nan_code is None else f.inf_code
        return f.nan_code if top is None else top | (f.sign_mask if sign else 0)
    return encode(value(bits, FLOAT32), f, zero_sign=sign, mode=mode)


# Widening


def test_every_bfloat16_widens_to_its_own_bits():
    codes = np.arange(1 << 16, dtype=np.uint16)
    wide = codes.astype(np.uint32) << 16
    got = convert.widen(codes, "bfloat16")
    nan = fp32.is_nan(wide)
    assert nan.sum() == 254
    np.testing.assert_array_equal(got[~nan], wide[~nan])
    assert set(got[nan].tolist()) == {0x7FC00000}


@halves
def test_every_code_widens_as_elsewhere(f):
    codes = np.arange(1 << 16, dtype=np.uint16)
    theirs = codes.view(dtype_of(f)).astype(np.float32)
    want = np.where(np.isnan(theirs), np.uint32(0x7FC00000), theirs.view(np.uint32))
    np.testing.assert_array_equal(convert.widen(codes, f.name), want)


@formats
def test_round_trip_of_every_number(f):
    codes = np.arange(1 << f.bits, dtype=np.uint32)
    back = convert.narrow(convert.widen(codes, f.name), f.name)
    nan = np.array([f.is_nan(c) for c in codes.tolist()])
    np.testing.assert_array_equal(back[~nan], codes[~nan])
    if f.nan_code is not None:
        assert set(back[nan].tolist()) == {f.nan_code}


@given(st.sampled_from(NARROW), st.integers(0, (1 << 19) - 1))
def test_widen_is_exact(f, code):
    code &= f.mask
    sign, m = decode(code, f)
    if not isinstance(m, str):
        got = int(convert.widen(np.uint32(code), f.name))
        assert decode(got, FLOAT32) == (sign, m)


# Narrowing


@formats
@pytest.mark.parametrize("mode", convert.MODES)
def test_every_rounding_boundary(f, mode):
    """For each pair of neighbours: their midpoint goes to the even one, the float32 beside it to the nearer one."""
    low = np.arange(f.max_code + 1, dtype=np.uint32)
    step = np.float64(2.0) ** (np.maximum(low >> f.frac_bits, 1).astype(np.float64) - f.bias - f.frac_bits)
    low_value = convert.widen(low, f.name).view(np.float32).astype(np.float64)
    mid64 = low_value + step / 2
    mid = mid64.astype(np.float32)
    assert (mid.astype(np.float64) == mid64).all()  # exact in float32
    bits = mid.view(np.uint32)
    high = low + 1
    if mode == "sat" or f.nan_code is None:
        high[-1] = f.max_code
    else:
        high[-1] = f.nan_code if f.inf_code is None else f.inf_code
    even = np.where(low & 1, high, low)
    for sign in (0, 1):
        s32, s = np.uint32(sign << 31), np.uint32(f.sign_mask if sign else 0)

        def signed(code, s=s):
            return np.where(code == (f.nan_code or -1), code, code | s)

        np.testing.assert_array_equal(convert.narrow(bits | s32, f.name, mode), signed(even))
        np.testing.assert_array_equal(convert.narrow((bits - 1) | s32, f.name, mode), signed(low))
        np.testing.assert_array_equal(convert.narrow((bits + 1) | s32, f.name, mode), signed(high))


@given(st.sampled_from(NARROW), st.integers(0, (1 << 32) - 1), st.sampled_from(convert.MODES))
def test_narrow_rounds_once_from_the_exact_value(f, bits, mode):
    assert int(convert.narrow(np.uint32(bits), f.name, mode)) == want_narrow(bits, f, mode)


@given(st.sampled_from(NARROW), st.data())
def test_narrow_near_the_limits(f, data):
    near = data.draw(st.sampled_from([f.max, f.min_normal, f.min_subnormal, f.min_subnormal / 2]))
    bits = (int(f32(near)) + data.draw(st.integers(-300, 300))) % (1 << 31) | data.draw(st.booleans()) << 31
    for mode in convert.MODES:
        assert int(convert.narrow(np.uint32(bits), f.name, mode)) == want_narrow(bits, f, mode)


@halves
def test_narrow_matches_outside(f):
    rng = np.random.default_rng(20260101)
    bits = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16  # every upper half with the lower halves that decide
    bits = np.concatenate([bits, *(upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF))])
    with np.errstate(all="ignore"):
        theirs = bits.view(np.float32).astype(dtype_of(f)).view(np.uint16)
    theirs = np.where(fp32.is_nan(bits), np.uint16(f.nan_code), theirs)
    np.testing.assert_array_equal(convert.narrow(bits, f.name), theirs)


def test_nan_never_becomes_a_number_or_infinity():
    """Truncation makes Inf of 0x7F800001; adding a rounding bit wraps 0x7FFFFFFF to -0."""
    for f in NARROW:
        if f.nan_code is not None:
            for mode in convert.MODES:
                assert set(convert.narrow(np.array(NANS, np.uint32), f.name, mode).tolist()) == {f.nan_code}
    assert set(convert.narrow(np.array(NANS, np.uint32), "float32").tolist()) == {0x7FC00000}


@pytest.mark.parametrize(
    ("bits", "want"),
    [
        (0x3E89CCD5, 0x3E8A), (0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x7F7F8000, 0x7F80), (0x7F7F7FFF, 0x7F7F),
        (0x00008000, 0x0000), (0x00008001, 0x0001), (0x80008000, 0x8000), (0xFF7F8000, 0xFF80), (0x007FFFFF, 0x0080),
        (0x7F800000, 0x7F80), (0xFF800000, 0xFF80), (0x00000001, 0x0000), (0x80000001, 0x8000), (0x00018000, 0x0002),
    ],
)
def test_bfloat16_known(bits, want):
    assert int(convert.narrow(np.uint32(bits), "bfloat16")) == want


@pytest.mark.parametrize(
    ("x", "want"),
    [
        (65504.0, 0x7BFF), (65519.996, 0x7BFF), (65520.0, 0x7C00), (-65520.0, 0xFC00), (2.0**-24, 1), (2.0**-25, 0),
        (1.5 * 2.0**-25, 1), (3 * 2.0**-25, 2), (2.0**-14, 0x0400), (2.0**-14 - 2.0**-25, 0x0400), (-0.0, 0x8000),
        (1 + 2.0**-11, 0x3C00), (1 + 3 * 2.0**-11, 0x3C02), (2.0**-149, 0), (float("inf"), 0x7C00),
    ],
)
def test_float16_known(x, want):
    assert int(convert.narrow(f32(x), "float16")) == want


@pytest.mark.parametrize(
    ("x", "ovf", "sat"),
    [
        (448.0, 0x7E, 0x7E), (464.0, 0x7E, 0x7E), (465.0, 0x7F, 0x7E), (1e9, 0x7F, 0x7E), (float("inf"), 0x7F, 0x7E),
        (-465.0, 0x7F, 0xFE), (float("-inf"), 0x7F, 0xFE), (4.25, 0x48, 0x48), (-0.0, 0x80, 0x80), (-1e-7, 0x80, 0x80),
        (2.0**-10, 0x00, 0x00), (3 * 2.0**-10, 0x02, 0x02),
    ],
)
def test_float8_e4m3fn_overflow_modes(x, ovf, sat):
    assert int(convert.narrow(f32(x), "float8_e4m3fn", "ovf")) == ovf
    assert int(convert.narrow(f32(x), "float8_e4m3fn", "sat")) == sat


@pytest.mark.parametrize(
    ("x", "ovf", "sat"),
    [
        (57344.0, 0x7B, 0x7B), (61439.0, 0x7B, 0x7B), (61440.0, 0x7C, 0x7B), (-61440.0, 0xFC, 0xFB),
        (float("inf"), 0x7C, 0x7B), (float("-inf"), 0xFC, 0xFB), (2.0**-17, 0, 0),
    ],
)
def test_float8_e5m2_overflow_modes(x, ovf, sat):
    assert int(convert.narrow(f32(x), "float8_e5m2", "ovf")) == ovf
    assert int(convert.narrow(f32(x), "float8_e5m2", "sat")) == sat


@pytest.mark.parametrize("name", ["float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn"])
def test_formats_without_nan_saturate_and_tell(name):
    f = format_of(name)
    for mode in convert.MODES:
        got = convert.narrow(np.array([*INFS, *NANS], np.uint32), name, mode)
        assert got.tolist() == [f.max_code, f.max_code | f.sign_mask] + [f.max_code] * len(NANS)
    assert convert.drops_nan(np.uint32([0x3F800000, 0xFFC00000]), name)
    assert not convert.drops_nan(np.uint32([0x3F800000, 0x7F800000]), name)
    assert not convert.drops_nan(np.uint32([0x7FC00000]), "bfloat16")


def test_float32_itself_saturates_on_request():
    x = np.array([0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000001, 0xFFC00001], np.uint32)
    assert convert.narrow(x, "float32").tolist() == [0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000001, 0x7FC00000]
    assert convert.narrow(x, "float32", "sat").tolist() == [0x7F7FFFFF, 0xFF7FFFFF, 0x7F7FFFFF, 0x80000001, 0x7FC00000]


def test_never_through_an_intermediate_format():
    """A float32 one bit above a narrow tie rounds up; a stop at a format in between would lose that bit first."""
    assert int(convert.narrow(np.uint32(0x3F808001), "bfloat16")) == 0x3F81
    assert int(convert.narrow(np.uint32(0x3F808001), "float8_e5m2")) == 0x3C
    assert int(convert.narrow(f32(1 + 2.0**-3 + 2.0**-23), "float8_e5m2")) == 0x3D  # through float16: the tie, 0x3C


# ml_dtypes 0.6.0 differs here, each on purpose: (input, format, its code, ours in mode ovf)
DEVIATIONS = [
    (0xFFC00000, "bfloat16", 0xFFC0, 0x7FC0),  # keeps the sign of a NaN
    (0xFFC00000, "float8_e4m3fn", 0xFF, 0x7F),
    (0xFFC00000, "float8_e5m2", 0xFE, 0x7E),
    (0xFF800000, "float8_e4m3fn", 0xFF, 0x7F),  # -Inf to a NaN with a sign
    # No NaN in the format: zero of the other sign there; here the largest number and a sticky flag.
    (0x7FC00000, "float6_e3m2fn", 0x20, 0x1F),
    (0xFFC00000, "float6_e3m2fn", 0x00, 0x1F),
    (0x7FC00000, "float6_e2m3fn", 0x20, 0x1F),
    (0xFFC00000, "float6_e2m3fn", 0x00, 0x1F),
    (0x7FC00000, "float4_e2m1fn", 0x8, 0x7),
    (0xFFC00000, "float4_e2m1fn", 0x0, 0x7),
]


@pytest.mark.parametrize(("bits", "name", "theirs", "ours"), DEVIATIONS)
def test_listed_deviations_from_ml_dtypes(bits, name, theirs, ours):
    dtype = getattr(ml_dtypes, name)
    got = np.array([bits], np.uint32).view(np.float32).astype(dtype).view(f"u{np.dtype(dtype).itemsize}")
    assert int(got[0]) == theirs
    assert int(convert.narrow(np.uint32(bits), name)) == ours


@pytest.mark.parametrize("f", [f for f in NARROW if f.bits <= 8], ids=lambda f: f.name)
def test_small_formats_match_ml_dtypes_apart_from_nan(f):
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    moderate = (rng.standard_normal(1 << 16) * 8).astype(np.float32).view(np.uint32)
    bits = np.concatenate([bits, moderate])
    ours = convert.narrow(bits, f.name)
    with np.errstate(all="ignore"):
        theirs = bits.view(np.float32).astype(dtype_of(f)).view(np.uint8)
    number = ~fp32.is_nan(bits) & (ours != (f.nan_code or -1))
    assert number.sum() > 1 << 16
    np.testing.assert_array_equal(ours[number], theirs[number])


# Refusals, shapes


def test_refusals_say_what_and_what_was_expected():
    x = np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="unknown format 'bf16'; known: .*bfloat16"):
        convert.narrow(x, "bf16")
    with pytest.raises(ValueError, match="'int32' is an integer; expected a float format"):
        convert.widen(x, "int32")
    with pytest.raises(ValueError, match="unknown overflow mode 'clip'; expected one of ovf, sat"):
        convert.narrow(x, "float8_e5m2", "clip")
    with pytest.raises(ValueError, match="chosen by a block's scale rule"):
        convert.narrow(x, "float8_e8m0fnu")
    with pytest.raises(ValueError, match="code 0x40 is not a float6_e3m2fn code: expected at most 0x3f"):
        convert.widen(np.uint8([0x40]), "float6_e3m2fn")
    with pytest.raises(TypeError, match="expected unsigned bfloat16 codes, not float32"):
        convert.widen(np.float32([1.0]), "bfloat16")
    with pytest.raises(TypeError, match="expected unsigned bfloat16 codes"):
        convert.widen(np.int16([-1]), "bfloat16")
    with pytest.raises(TypeError, match="expected uint32 bit patterns"):
        convert.narrow(np.float64([1.0]), "bfloat16")


@formats
def test_shapes_types_and_empty(f):
    x = np.full((2, 3), 0x3F800000, np.uint32)
    got = convert.narrow(x, f.name)
    assert got.shape == (2, 3) and got.dtype.itemsize * 8 == f.container_bits
    assert convert.widen(got, f.name).tolist() == x.tolist()
    assert convert.narrow(np.zeros(0, np.uint32), f.name).shape == (0,)
    assert convert.widen(np.zeros(0, np.uint8), f.name).shape == (0,)
    assert (x == 0x3F800000).all()
