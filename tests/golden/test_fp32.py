"""binary32 add and multiply: against fractions, special values, and the host's floating-point mode."""
from __future__ import annotations

import ctypes
import platform
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.numeric import fp32
from golden.pe import sfu
from golden.pe.dot_product import dot_product
from spec.formats import FLOAT32
from spec.sfu import SfuOp
from tests.golden.oracle import decode, encode, value

INF, NINF, NAN, ONE = 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000
SPECIAL = [
    0, 1, 2, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F7FFFFF, ONE, 0x3F800001, 0x4B800000, 0x7F7FFFFF, INF, NAN,
    0x7F800001, 0x7FFFFFFF,
]
SPECIAL += [s | 0x80000000 for s in SPECIAL]
patterns = st.one_of(st.sampled_from(SPECIAL), st.integers(0, (1 << 32) - 1))


def want_add(a: int, b: int) -> int:
    (sa, x), (sb, y) = decode(a, FLOAT32), decode(b, FLOAT32)
    if "nan" in (x, y) or (x == y == "inf" and sa != sb):
        return NAN
    if "inf" in (x, y):
        return (NINF if (sa if x == "inf" else sb) else INF)
    return encode(value(a, FLOAT32) + value(b, FLOAT32), FLOAT32, zero_sign=sa & sb)


def want_mul(a: int, b: int) -> int:
    (sa, x), (sb, y) = decode(a, FLOAT32), decode(b, FLOAT32)
    if "nan" in (x, y) or ("inf" in (x, y) and 0 in (x, y)):
        return NAN
    if "inf" in (x, y):
        return NINF if sa ^ sb else INF
    return encode(value(a, FLOAT32) * value(b, FLOAT32), FLOAT32, zero_sign=sa ^ sb)


def one(f, a: int, b: int) -> int:
    return int(f(np.uint32(a), np.uint32(b)))


@given(patterns, patterns)
def test_add_is_correctly_rounded(a, b):
    assert one(fp32.add, a, b) == want_add(a, b) == one(fp32.add, b, a)


@given(st.integers(0, (1 << 32) - 1), st.integers(-64, 64), st.booleans())
def test_add_near_cancellation(a, delta, negate):
    b = (a + delta) % (1 << 32) ^ (0x80000000 if negate else 0)
    assert one(fp32.add, a, b) == want_add(a, b)


@given(patterns, patterns)
def test_mul_is_correctly_rounded(a, b):
    assert one(fp32.mul, a, b) == want_mul(a, b) == one(fp32.mul, b, a)


@given(st.integers(1, 0x00FFFFFF), st.integers(0x33000000, 0x3F800000))
def test_mul_into_subnormals(a, b):
    assert one(fp32.mul, a, b) == want_mul(a, b)


def test_every_pair_of_special_values():
    a, b = (g.ravel() for g in np.meshgrid(np.array(SPECIAL, np.uint32), np.array(SPECIAL, np.uint32)))
    assert fp32.add(a, b).tolist() == [want_add(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert fp32.mul(a, b).tolist() == [want_mul(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (ONE, 0xBF800000, 0),  # x + (-x) = +0
        (0x80000000, 0x80000000, 0x80000000),  # (-0) + (-0) = -0
        (0, 0x80000000, 0),
        (INF, NINF, NAN),
        (0xFFC00000, ONE, NAN),  # sign of a NaN is dropped
        (0x7F800001, ONE, NAN),  # signalling
        (0x7F7FFFFF, 0x73000000, INF),  # max + half ulp: tie to even is infinity
        (0x7F7FFFFF, 0x72FFFFFF, 0x7F7FFFFF),
        (1, 1, 2),
        (0x00800000, 0x80000001, 0x007FFFFF),  # normal to subnormal
        (ONE, 0x33800000, ONE),  # 1 + 2^-24: tie to even
        (0x3F800001, 0x33800000, 0x3F800002),  # tie to even, upward
        (ONE, 0x33800001, 0x3F800001),
    ],
)
def test_add_known(a, b, want):
    assert one(fp32.add, a, b) == want == one(fp32.add, b, a)


def test_shapes_and_empty():
    assert fp32.add(np.zeros((2, 3, 4), np.uint32), np.uint32(ONE)).shape == (2, 3, 4)
    assert fp32.add(np.zeros(0, np.uint32), np.zeros(0, np.uint32)).shape == (0,)
    assert fp32.mul(np.float32([2.0]), np.float32([3.0])).view(np.float32).tolist() == [6.0]
    a = np.array([NAN, 1], np.uint32)
    fp32.add(a, a)
    assert a.tolist() == [NAN, 1]


def test_values_are_not_taken_for_patterns():
    with pytest.raises(TypeError, match="expected uint32 bit patterns .* not float64"):
        fp32.add(np.float64([1.0]), np.float64([1.0]))
    with pytest.raises(TypeError, match="not int64"):
        fp32.add(np.int64([1]), np.int64([1]))
    with pytest.raises(TypeError, match="a: expected .* not -1"):
        fp32.add(-1, 0)


def test_no_warning_leaks():
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        fp32.add(np.uint32([INF, 0x7F7FFFFF, 0x7F800001]), np.uint32([NINF, 0x7F7FFFFF, 0]))
        fp32.mul(np.uint32([INF, 1, 0x7F7FFFFF]), np.uint32([0, 1, 0x7F7FFFFF]))


def flush_to_zero(libm: ctypes.CDLL) -> None:
    """Set this thread's flush-to-zero mode, as torch.set_flush_denormal(True) does."""
    env = (ctypes.c_uint8 * 64)()
    assert libm.fegetenv(env) == 0
    x86 = platform.machine() in ("x86_64", "AMD64")
    at, bits = (28, 0x8040) if x86 else (0, 1 << 24)  # MXCSR DAZ and FTZ; AArch64 FPCR.FZ
    word = int.from_bytes(env[at : at + 4], "little") | bits
    env[at : at + 4] = word.to_bytes(4, "little")
    assert libm.fesetenv(env) == 0


def test_flush_to_zero_mode_is_refused_not_obeyed():
    """Whatever uses the processor's own arithmetic; a dot product of one chunk never comes to `fp32.add`."""
    seen: list[str] = []
    small = np.uint16([[0x1F00]])  # 2^-65
    calls = (
        lambda: fp32.add(np.uint32(1), np.uint32(1)), lambda: fp32.mul(np.uint32(1), np.uint32(1)), lambda: dot_product(small, small, "bfloat16"),
        lambda: sfu.binary(SfuOp.ADD, np.uint32(1), np.uint32(1), "float32"), lambda: sfu.binary(SfuOp.MUL, np.uint32(1), np.uint32(2), "float32"),
    )

    def run() -> None:
        flush_to_zero(ctypes.CDLL("libm.so.6"))
        for f in calls:
            try:
                f()
            except RuntimeError as e:
                seen.append(str(e))

    thread = threading.Thread(target=run)  # the mode is per thread and ends with it
    thread.start()
    thread.join()
    assert len(seen) == len(calls)
    assert "flushes subnormal numbers to zero" in seen[0] and "torch.set_flush_denormal(False)" in seen[0]
    assert one(fp32.add, 1, 1) == 2
