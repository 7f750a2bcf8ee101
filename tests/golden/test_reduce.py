"""Near-memory reduce and copy: the contract per element type, and sums that went wrong elsewhere."""
from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.mem import nmc
from golden.numeric import convert, fp32
from spec.formats import FLOAT32, format_of
from spec.wqe import DTYPE_BYTES, DType, ReduceOp
from tests.golden.oracle import decode, encode, value

SUM, MIN, MAX = ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX
FLOATS = [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16]
HALVES = [DType.BFLOAT16, DType.FLOAT16]
NUMPY = {
    DType.FLOAT32: np.float32, DType.BFLOAT16: ml_dtypes.bfloat16, DType.FLOAT16: np.float16, DType.INT32: np.int32,
}
floats = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name.lower())
everything = pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.name.lower())
ops = pytest.mark.parametrize("rop", list(ReduceOp), ids=lambda o: o.name.lower())


def words(dtype: DType, *codes: int) -> np.ndarray:
    return np.array(codes, dtype=f"<u{DTYPE_BYTES[dtype]}").view(np.uint8)


def values(dtype: DType, *v: float) -> np.ndarray:
    return np.array(v, dtype=NUMPY[dtype]).view(np.uint8)


def codes(dtype: DType, raw: np.ndarray) -> list[int]:
    assert raw.dtype == np.uint8
    return raw.view(f"<u{DTYPE_BYTES[dtype]}").tolist()


def f32(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def want_sum(dtype: DType, a: int, b: int, scale: int | None) -> int:
    """The contract in fractions: widen, add rounded to binary32, multiply rounded to binary32, one rounding out."""
    f = format_of(nmc.FORMAT_OF[dtype])

    def step(x, y, product):
        (sx, mx), (sy, my) = x, y
        if "nan" in (mx, my):
            return 0, "nan"
        if "inf" in (mx, my):
            if product:
                return (0, "nan") if 0 in (mx, my) else (sx ^ sy, "inf")
            if mx == my and sx != sy:
                return 0, "nan"
            return (sx if mx == "inf" else sy), "inf"
        vx, vy = (-mx if sx else mx), (-my if sy else my)
        zero = sx ^ sy if product else sx & sy
        return decode(encode(vx * vy if product else vx + vy, FLOAT32, zero), FLOAT32)

    r = step(decode(a, f), decode(b, f), False)
    if scale is not None:
        r = step(r, decode(scale, FLOAT32), True)
    sign, m = r
    if m == "nan":
        return f.nan_code
    if m == "inf":
        return f.inf_code | (f.sign_mask if sign else 0)
    return encode(-m if sign else m, f, zero_sign=sign)


@floats
@given(data=st.data())
def test_sum_and_scale_follow_the_contract(dtype, data):
    f = format_of(nmc.FORMAT_OF[dtype])
    special = [0, 1, f.frac_mask + 1, f.max_code, f.inf_code, f.nan_code, f.inf_code + 1, f.bias << f.frac_bits]
    special += [s | f.sign_mask for s in special]
    code = st.one_of(st.sampled_from(special), st.integers(0, f.mask))
    scale = st.one_of(st.none(), st.sampled_from([f32(x) for x in (1.0, 0.25, 1 / 3, -0.0, 2.0**-130, np.inf)]),
                      st.integers(0, (1 << 32) - 1))
    a, b, s = data.draw(code), data.draw(code), data.draw(scale)
    want = [want_sum(dtype, a, b, s)]
    assert codes(dtype, nmc.reduce(words(dtype, a), words(dtype, b), dtype, SUM, s)) == want
    assert codes(dtype, nmc.reduce(words(dtype, b), words(dtype, a), dtype, SUM, s)) == want


def test_float16_sum_is_the_exact_sum_rounded_through_binary32():
    """float64 holds every float16 sum exactly, so NumPy's two roundings after it are the contract's two."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 1 << 16, 1 << 18, dtype=np.uint16) for _ in range(2))
    with np.errstate(all="ignore"):
        exact = a.view(np.float16).astype(np.float64) + b.view(np.float16).astype(np.float64)
        r = exact.astype(np.float32).astype(np.float16)
    want = np.where(np.isnan(r), np.uint16(0x7E00), r.view(np.uint16))
    got = nmc.reduce(a.view(np.uint8), b.view(np.uint8), DType.FLOAT16, SUM)
    np.testing.assert_array_equal(got.view(np.uint16), want)


def test_bfloat16_sum_matches_ml_dtypes_apart_from_nan():
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, 1 << 16, 1 << 18, dtype=np.uint16) for _ in range(2))
    with np.errstate(all="ignore"):
        r = a.view(ml_dtypes.bfloat16) + b.view(ml_dtypes.bfloat16)
    want = np.where(np.isnan(r), np.uint16(0x7FC0), r.view(np.uint16))
    got = nmc.reduce(a.view(np.uint8), b.view(np.uint8), DType.BFLOAT16, SUM)
    np.testing.assert_array_equal(got.view(np.uint16), want)


@floats
def test_infinity_minus_infinity_is_nan(dtype):
    f = format_of(nmc.FORMAT_OF[dtype])
    inf, ninf = f.inf_code, f.inf_code | f.sign_mask
    for a, b in ((inf, ninf), (ninf, inf)):
        assert codes(dtype, nmc.reduce(words(dtype, a), words(dtype, b), dtype, SUM)) == [f.nan_code]
    assert codes(dtype, nmc.reduce(words(dtype, inf), words(dtype, inf), dtype, SUM)) == [inf]
    # Inf * 0, from either side
    assert codes(dtype, nmc.reduce(words(dtype, inf), words(dtype, 0), dtype, SUM, 0)) == [f.nan_code]
    assert codes(dtype, nmc.reduce(words(dtype, 0), words(dtype, 0), dtype, SUM, f32(np.inf))) == [f.nan_code]


@floats
@ops
def test_nan_of_any_payload_gives_the_canonical_one(dtype, rop):
    f = format_of(nmc.FORMAT_OF[dtype])
    for nan in (f.inf_code + 1, f.mask, f.nan_code | f.sign_mask, f.nan_code):
        for a, b in ((nan, f.max_code), (f.max_code, nan), (nan, nan)):
            assert codes(dtype, nmc.reduce(words(dtype, a), words(dtype, b), dtype, rop)) == [f.nan_code]


@floats
def test_min_and_max(dtype):
    f = format_of(nmc.FORMAT_OF[dtype])
    minus = f.sign_mask
    a = words(dtype, minus, 0, f.max_code, f.inf_code, 1, 1 | minus)
    b = words(dtype, 0, minus, f.max_code | minus, f.max_code, 0, 0)
    low = [minus, minus, f.max_code | minus, f.max_code, 0, 1 | minus]
    high = [0, 0, f.max_code, f.inf_code, 1, 0]
    for x, y in ((a, b), (b, a)):
        assert codes(dtype, nmc.reduce(x, y, dtype, MIN)) == low
        assert codes(dtype, nmc.reduce(x, y, dtype, MAX)) == high


@floats
def test_scale_applies_to_every_op(dtype):
    a, b, half = values(dtype, 3.0, -8.0), values(dtype, 5.0, 2.0), f32(0.5)
    assert nmc.reduce(a, b, dtype, SUM, half).tolist() == values(dtype, 4.0, -3.0).tolist()
    assert nmc.reduce(a, b, dtype, MIN, half).tolist() == values(dtype, 1.5, -4.0).tolist()
    assert nmc.reduce(a, b, dtype, MAX, half).tolist() == values(dtype, 2.5, 1.0).tolist()


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name.lower())
def test_scale_comes_before_the_one_rounding(dtype):
    """The largest number twice overflows the format, its average does not; and 1/3 is applied to the unrounded sum."""
    f = format_of(nmc.FORMAT_OF[dtype])
    if dtype is DType.FLOAT16:
        top = words(dtype, f.max_code)
        assert codes(dtype, nmc.reduce(top, top, dtype, SUM)) == [f.inf_code]
        assert codes(dtype, nmc.reduce(top, top, dtype, SUM, f32(0.5))) == [f.max_code]
    one_ulp = f.frac_bits
    a, b = values(dtype, 1.0), values(dtype, 2.0 ** -(one_ulp + 1))  # the sum is a tie in the narrow format
    scaled = codes(dtype, nmc.reduce(a, b, dtype, SUM, f32(3.0)))
    assert scaled == values(dtype, 3 + 3 * 2.0 ** -(one_ulp + 1)).view(np.uint16).tolist()
    assert scaled != values(dtype, 3.0).view(np.uint16).tolist()


def test_bfloat16_overflow_is_infinity_even_when_a_scale_would_fit():
    """bfloat16 has binary32's range: the binary32 sum itself overflows, before the scale."""
    top = words(DType.BFLOAT16, 0x7F7F)
    assert codes(DType.BFLOAT16, nmc.reduce(top, top, DType.BFLOAT16, SUM, f32(0.5))) == [0x7F80]


def test_integers_wrap_and_compare_signed():
    a, b = words(DType.INT32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF), words(DType.INT32, 1, 0xFFFFFFFF, 1)
    assert codes(DType.INT32, nmc.reduce(a, b, DType.INT32, SUM)) == [0x80000000, 0x7FFFFFFF, 0]
    assert codes(DType.INT32, nmc.reduce(a, b, DType.INT32, MIN)) == [1, 0x80000000, 0xFFFFFFFF]
    assert codes(DType.INT32, nmc.reduce(a, b, DType.INT32, MAX)) == [0x7FFFFFFF, 0xFFFFFFFF, 1]


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_integer_sum_is_modulo_2_to_32(a, b):
    got = nmc.reduce(words(DType.INT32, a), words(DType.INT32, b), DType.INT32, SUM)
    assert codes(DType.INT32, got) == [(a + b) % (1 << 32)]


def test_integer_sum_never_passes_through_a_float():
    """6400 + 1600 + 400 is 8400; through bfloat16 it would be 8384. 2^24 + 1 shows the same for binary32."""
    acc = values(DType.INT32, 6400, 1 << 24)
    for x in (values(DType.INT32, 1600, 1), values(DType.INT32, 400, 0)):
        acc = nmc.reduce(acc, x, DType.INT32, SUM)
    assert acc.view(np.int32).tolist() == [8400, (1 << 24) + 1]


def test_accumulate_in_binary32_and_round_once():
    """256 + eight ones: 264 in a binary32 accumulator narrowed once. A chain of bfloat16 reduces rounds at every step,
    as its contract says, and stays at 256: long sums belong in float32."""
    acc = convert.widen(np.uint16([0x4380]), "bfloat16")
    for _ in range(8):
        acc = fp32.add(acc, convert.widen(np.uint16([0x3F80]), "bfloat16"))
    assert convert.narrow(acc, "bfloat16").view(ml_dtypes.bfloat16).tolist() == [264.0]
    chain = values(DType.BFLOAT16, 256.0)
    for _ in range(8):
        chain = nmc.reduce(chain, values(DType.BFLOAT16, 1.0), DType.BFLOAT16, SUM)
    assert chain.view(ml_dtypes.bfloat16).tolist() == [256.0]


def test_two_stage_reduce_rounds_once():
    """Sum over one axis, then the other: same bits as one binary32 pass over exactly representable partial sums."""
    x = np.full((16, 17), 1 + 2.0**-7, np.float32).astype(ml_dtypes.bfloat16)
    wide = convert.widen(x.view(np.uint16), "bfloat16")
    rows = wide[:, 0]
    for k in range(1, wide.shape[1]):
        rows = fp32.add(rows, wide[:, k])
    total = rows[0]
    for r in rows[1:]:
        total = fp32.add(total, r)
    exact = 16 * 17 * (1 + 2.0**-7)
    assert convert.narrow(total, "bfloat16").view(ml_dtypes.bfloat16) == ml_dtypes.bfloat16(exact)


# Copy


def test_copy_keeps_every_bit():
    """All 254 bfloat16 NaN codes, and every other code, through a copy."""
    every = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    out = nmc.copy(every)
    np.testing.assert_array_equal(out, every)
    assert not np.shares_memory(out, every)
    kept = out.view(np.uint16)
    assert int(((kept & 0x7FFF) > 0x7F80).sum()) == 254
    snan = words(DType.FLOAT32, 0x7F800001, 0xFFFFFFFF)
    assert nmc.copy(snan).tolist() == snan.tolist()
    assert nmc.copy(np.arange(7, dtype=np.uint8)).tolist() == list(range(7))  # any length
    assert nmc.copy(np.zeros(0, np.uint8)).size == 0


# Shape, purity, refusals


@everything
@ops
def test_lengths_strides_and_purity(dtype, rop):
    size = DTYPE_BYTES[dtype]
    rng = np.random.default_rng(5)
    for n in (0, 1, 2, 31, 33, 1000):
        a, b = (rng.integers(0, 256, n * size, dtype=np.uint8) for _ in range(2))
        before = a.tolist(), b.tolist()
        out = nmc.reduce(a, b, dtype, rop)
        assert (out.shape, out.dtype) == ((n * size,), np.uint8)
        assert (a.tolist(), b.tolist()) == before
        assert not np.shares_memory(out, a) and not np.shares_memory(out, b)
        for i in (0, n // 2, n - 1)[: n or 0]:  # elementwise: each element alone gives the same
            s = slice(i * size, (i + 1) * size)
            assert nmc.reduce(a[s], b[s], dtype, rop).tolist() == out[s].tolist()
    odd = np.zeros(1 + 8 * size, np.uint8)[1:]  # unaligned
    assert nmc.reduce(odd, odd, dtype, rop).size == 8 * size
    strided = np.zeros(16 * size, np.uint8)[::2]
    assert nmc.reduce(strided, strided, dtype, rop).size == 8 * size


@floats
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_blocks_of_work_leave_no_seam(dtype, extra):
    n = 2 * nmc.BLOCK + extra
    rng = np.random.default_rng(8)
    a, b = (rng.integers(0, 256, n * DTYPE_BYTES[dtype], dtype=np.uint8) for _ in range(2))
    whole = nmc.reduce(a, b, dtype, SUM)
    at = (nmc.BLOCK - 3) * DTYPE_BYTES[dtype]
    parts = [nmc.reduce(a[s], b[s], dtype, SUM) for s in (slice(0, at), slice(at, None))]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_plain_integers_name_dtype_and_op():
    assert nmc.reduce(values(DType.FLOAT32, 1), values(DType.FLOAT32, 2), 0, 0).view(np.float32).tolist() == [3.0]


Z4, Z6, Z8 = (np.zeros(n, np.uint8) for n in (4, 6, 8))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((Z4, Z4, 7, SUM), r"unknown dtype 7; expected one of 0 FLOAT32, 1 BFLOAT16, 2 FLOAT16, 3 INT32"),
        ((Z4, Z4, DType.FLOAT32, 3), r"unknown op 3; expected one of 0 SUM, 1 MIN, 2 MAX"),
        ((Z4, Z4, DType.FLOAT32, "sum"), r"unknown op 'sum'"),
        ((Z6, Z6, DType.FLOAT32, SUM), r"operand a has 6 bytes; expected a multiple of 4 for float32"),
        ((Z4, Z6, DType.INT32, SUM), r"operand b has 6 bytes; expected a multiple of 4 for int32"),
        ((Z4[:3], Z4[:3], DType.BFLOAT16, SUM), r"operand a has 3 bytes; expected a multiple of 2 for bfloat16"),
        ((Z4, Z8, DType.FLOAT32, SUM), r"operand a has 4 bytes, operand b 8; expected the same length"),
        ((Z4, Z4, DType.INT32, SUM, 0x3F800000), r"int32 has no scale; expected scale_bits None"),
        ((Z4, Z4, DType.FLOAT32, SUM, 1 << 32), r"scale_bits = 4294967296; expected a 32-bit binary32 pattern"),
        ((Z4, Z4, DType.FLOAT32, SUM, -1), r"scale_bits = -1; expected a 32-bit"),
        ((Z4, Z4, DType.FLOAT32, SUM, 0.5), r"scale_bits = 0.5; expected a 32-bit"),
        ((np.zeros(4, np.float32), Z4, DType.FLOAT32, SUM), r"operand a is float32 of shape \(4,\); expected a row"),
        ((np.zeros((2, 4), np.uint8), Z8, DType.FLOAT32, SUM), r"operand a is uint8 of shape \(2, 4\); expected a row"),
    ],
)
def test_refusals(args, message):
    with pytest.raises(ValueError, match=message):
        nmc.reduce(*args)


def test_copy_refuses_what_is_not_bytes():
    with pytest.raises(ValueError, match=r"nmc.copy: operand is float32 of shape \(2,\); expected a row of uint8"):
        nmc.copy(np.zeros(2, np.float32))


@everything
def test_a_mebibyte_is_quick(dtype):
    """1 MiB of each operand in well under 50 ms of processor time (best of five: a busy machine does not decide)."""
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 256, 1 << 20, dtype=np.uint8) for _ in range(2))

    def once() -> float:
        start = time.process_time()
        nmc.reduce(a, b, dtype, SUM)
        return time.process_time() - start

    assert min(once() for _ in range(5)) < 0.05


def test_signed_value_helper_agrees_with_numpy():
    """The oracle itself, on numbers NumPy knows."""
    for x in (1.0, -2.5, 2.0**-149, -(2.0**-126), 3.4e38):
        assert value(f32(x), FLOAT32) == float(np.float32(x))
        assert encode(value(f32(x), FLOAT32), FLOAT32) == f32(x)
