"""minimum and maximum: NaN and signed zeros in both operand orders, total order, every pair of special codes."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.numeric import minmax
from spec.formats import format_of
from tests.golden.oracle import decode

F32 = ("float32", np.uint32)
HALVES = [("bfloat16", np.uint16), ("float16", np.uint16)]
kinds = pytest.mark.parametrize(("name", "word"), [F32, *HALVES], ids=["float32", "bfloat16", "float16"])


def run(name, word, a, b):
    a, b = word(a), word(b)
    if name == "float32":
        return int(minmax.fmin(a, b)), int(minmax.fmax(a, b))
    return int(minmax.minimum(a, b, name)), int(minmax.maximum(a, b, name))


def key(code, f):
    """Orders as the number does, -0 below +0."""
    sign, m = decode(code, f)
    m = float("inf") if m == "inf" else m
    return (-m if sign else m, not sign)


def want(name, a, b):
    f = format_of(name)
    if f.is_nan(a) or f.is_nan(b):
        return f.nan_code, f.nan_code
    low, high = sorted((a, b), key=lambda c: key(c, f))
    return low, high


def specials(name):
    f = format_of(name)
    codes = [0, 1, f.frac_mask, f.frac_mask + 1, f.bias << f.frac_bits]
    codes += [f.max_code, f.inf_code, f.nan_code, f.inf_code + 1]
    return codes + [c | f.sign_mask for c in codes]


@kinds
def test_every_pair_of_special_codes(name, word):
    for a in specials(name):
        for b in specials(name):
            assert run(name, word, a, b) == want(name, a, b), (hex(a), hex(b))


@kinds
def test_zeros_order_whatever_the_operand_order(name, word):
    minus = format_of(name).sign_mask
    assert run(name, word, minus, 0) == (minus, 0) == run(name, word, 0, minus)


@kinds
def test_nan_propagates_from_either_side(name, word):
    f = format_of(name)
    for nan in (f.nan_code, f.inf_code + 1, f.sign_mask | f.magnitude_mask):
        for other in (0, f.sign_mask, f.max_code, f.inf_code, f.inf_code | f.sign_mask):
            assert run(name, word, nan, other) == (f.nan_code,) * 2 == run(name, word, other, nan)


@pytest.mark.parametrize("kind", [F32, *HALVES], ids=lambda k: k[0])
@given(data=st.data())
def test_random_pairs(kind, data):
    name, word = kind
    bits = format_of(name).bits
    a, b = data.draw(st.integers(0, (1 << bits) - 1)), data.draw(st.integers(0, (1 << bits) - 1))
    assert run(name, word, a, b) == want(name, a, b) == run(name, word, b, a)


@pytest.mark.parametrize(("name", "word"), HALVES, ids=lambda v: v if isinstance(v, str) else "")
def test_every_code_is_its_own_min_and_max(name, word):
    f = format_of(name)
    codes = np.arange(1 << 16, dtype=word)
    own = np.array([f.nan_code if f.is_nan(c) else c for c in codes.tolist()], dtype=word)
    np.testing.assert_array_equal(minmax.minimum(codes, codes, name), own)
    np.testing.assert_array_equal(minmax.maximum(codes, codes, name), own)
    # Neighbours: with code + 1 the magnitude grows, so sign decides which is the smaller.
    a, b = codes[:-1], codes[1:]
    nan = np.array([f.is_nan(x) or f.is_nan(x + 1) for x in a.tolist()])
    low = np.where(nan, f.nan_code, np.where((a & f.sign_mask) != 0, b, a))
    low[0x7FFF] = f.nan_code  # the last NaN and -0
    np.testing.assert_array_equal(minmax.minimum(a, b, name), low)
    np.testing.assert_array_equal(minmax.minimum(b, a, name), low)


def test_integers_compare_signed():
    a = np.array([0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 5, 0], np.uint32)
    b = np.array([0x7FFFFFFF, 0, 0xFFFFFFFF, 5, 0x80000000], np.uint32)
    low = [0x80000000, 0xFFFFFFFF, 0xFFFFFFFF, 5, 0x80000000]
    high = [0x7FFFFFFF, 0, 0x7FFFFFFF, 5, 0]
    assert minmax.imin(a, b).tolist() == low == minmax.imin(b, a).tolist()
    assert minmax.imax(a, b).tolist() == high == minmax.imax(b, a).tolist()
    assert minmax.imin(a, b).dtype == np.uint32


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 31), (1 << 31) - 1))
def test_random_integers(a, b):
    x, y = np.int32([a]), np.int32([b])
    assert minmax.imin(x, y).view(np.int32).tolist() == [min(a, b)]
    assert minmax.imax(x, y).view(np.int32).tolist() == [max(a, b)]


def test_shapes():
    z = np.zeros((2, 0, 3), np.uint32)
    for f in (minmax.fmin, minmax.fmax, minmax.imin, minmax.imax):
        assert f(z, z).shape == (2, 0, 3)
    assert minmax.minimum(np.zeros((2, 2), np.uint16), np.uint16(0x8000), "bfloat16").tolist() == [[0x8000] * 2] * 2


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bfloat16", "float16"])
def test_listed_deviation_of_ml_dtypes_and_numpy(dtype):
    """Their minimum and maximum of zeros depend on the order of the operands; here they do not."""
    name = np.dtype(dtype).name
    a, b = np.array([0.0, -0.0], dtype), np.array([-0.0, 0.0], dtype)
    x, y = a.view(np.uint16), b.view(np.uint16)
    for theirs in (np.minimum, np.maximum):
        assert theirs(a, b).view(np.uint16).tolist() != theirs(b, a).view(np.uint16).tolist()
    assert minmax.minimum(x, y, name).tolist() == [0x8000] * 2 == minmax.minimum(y, x, name).tolist()
    assert minmax.maximum(x, y, name).tolist() == [0, 0] == minmax.maximum(y, x, name).tolist()
