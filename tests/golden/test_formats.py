"""The format table against ml_dtypes and NumPy, driven by the formats' own limits."""
from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from golden.numeric import convert
from spec.formats import FORMATS, Format, format_of
from tests.golden.oracle import decode

FLOATS = [f for f in FORMATS.values() if f.is_float]
INTS = [f for f in FORMATS.values() if not f.is_float]
OUTSIDE = [f for f in FLOATS if f.name != "tfloat32"]  # ml_dtypes has no tfloat32


def info(f: Format):
    return ml_dtypes.finfo(f.name if f.name in ("float16", "float32") else getattr(ml_dtypes, f.name))


@pytest.mark.parametrize("f", OUTSIDE, ids=lambda f: f.name)
def test_limits_match_ml_dtypes(f):
    i = info(f)
    assert i.bits == f.bits
    assert i.nmant == f.frac_bits
    assert f.max == float(i.max)
    assert f.min == float(i.min)
    assert f.min_normal == float(i.smallest_normal)
    if f.has_subnormals:
        assert f.min_subnormal == float(i.smallest_subnormal)
    assert f.max_exponent == i.maxexp - 1
    assert f.min_exponent == i.minexp


@pytest.mark.parametrize("f", INTS, ids=lambda f: f.name)
def test_integer_limits_match_numpy(f):
    i = np.iinfo(f.name)
    assert (f.bits, f.min, f.max) == (i.bits, i.min, i.max)
    assert f.min_subnormal == f.min_normal == 1


def test_canonical_nans():
    want = {
        "float32": 0x7FC00000, "tfloat32": 0x3FE00, "bfloat16": 0x7FC0, "float16": 0x7E00, "float8_e4m3fn": 0x7F,
        "float8_e5m2": 0x7E,
        "float6_e3m2fn": None, "float6_e2m3fn": None, "float4_e2m1fn": None, "float8_e8m0fnu": 0xFF,
    }
    assert {f.name: f.nan_code for f in FLOATS} == want


def test_tfloat32_is_float32_with_a_short_fraction():
    t, s = format_of("tfloat32"), format_of("float32")
    assert (t.exp_bits, t.bias, t.max_exponent, t.min_exponent) == (s.exp_bits, s.bias, s.max_exponent, s.min_exponent)
    assert t.max_code << 13 | 0x1FFF == s.max_code


@pytest.mark.parametrize("f", [f for f in FLOATS if f.bits <= 8], ids=lambda f: f.name)
def test_every_small_code_has_its_value(f):
    """All codes, against the module's formula in fractions and against ml_dtypes (0x7F of e4m3fn is NaN, not 480)."""
    codes = np.arange(1 << f.bits, dtype=np.uint8)
    ours = convert.widen(codes, f.name).view(np.float32)
    theirs = codes.view(getattr(ml_dtypes, f.name)).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs) & ~np.isnan(theirs))
    for code, got in zip(codes.tolist(), ours.tolist(), strict=True):
        sign, m = decode(code, f)
        if m == "nan":
            assert math.isnan(got)
        elif m == "inf":
            assert math.isinf(got)
        else:
            assert Fraction(got) == (-m if sign else m)


def test_named_codes():
    e4, e5, e8 = format_of("float8_e4m3fn"), format_of("float8_e5m2"), format_of("float8_e8m0fnu")
    assert [c for c in range(256) if e4.is_nan(c)] == [0x7F, 0xFF]
    assert [c for c in range(256) if e5.is_nan(c)] == [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]
    assert [c for c in range(256) if e8.is_nan(c)] == [0xFF]
    assert (e4.max_code, e5.max_code, e8.max_code) == (0x7E, 0x7B, 0xFE)
    scales = convert.widen(np.array([0, 127, 254], np.uint8), e8.name).view(np.float32)
    assert scales.tolist() == [2.0**-127, 1.0, 2.0**127]


def test_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown format 'float7'; known: float32, tfloat32, .*uint8"):
        format_of("float7")


def test_bad_formats_are_refused():
    with pytest.raises(ValueError, match="fill 9 bits, expected 8"):
        Format(name="x", bits=8, exp_bits=5, frac_bits=3, bias=1)
    with pytest.raises(ValueError, match=r"nan = 'some': expected one of ieee, all_ones, none"):
        Format(name="x", bits=8, exp_bits=4, frac_bits=3, bias=1, nan="some")
    with pytest.raises(ValueError, match="has_inf needs nan = 'ieee'"):
        Format(name="x", bits=8, exp_bits=4, frac_bits=3, bias=1, has_inf=True)
