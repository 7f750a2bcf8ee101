"""Row sums against rational numbers, row minimum and maximum, and softmax, LayerNorm and RMSNorm against float64."""
from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.numeric.convert import narrow
from golden.pe import sfu_rows
from spec.formats import format_of
from spec.sfu import NATIVE, ROW, SfuOp
from tests.golden import sfu_reference as ref
from tests.golden.oracle import decode, encode, value
from tests.golden.test_sfu import INF, MINUS, NAN, ONE, ops, patterns, random32

NAMES = tuple(f.name.lower() for f in NATIVE)
names = st.sampled_from(NAMES)


def wanted_sum(x: list[int], name: str, out: str) -> int:
    f, o = format_of(name), format_of(out)
    parts = [decode(c, f) for c in x]
    infinities = {s for s, m in parts if m == "inf"}
    if any(m == "nan" for _, m in parts) or len(infinities) == 2:
        return o.nan_code
    if infinities:
        return o.inf_code | (o.sign_mask if infinities == {1} else 0)
    return encode(sum((value(c, f) for c in x), Fraction(0)), o, zero_sign=int(all(s for s, _ in parts)))


@given(st.lists(patterns, min_size=1, max_size=12), names, st.booleans())
def test_row_sum_is_exact(x, out, cancel):
    if cancel:
        x = x + [c ^ MINUS for c in x[1:]]
    assert int(sfu_rows.row(SfuOp.ROW_SUM, np.array(x, np.uint32), "float32", out)) == wanted_sum(x, "float32", out)


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40), st.sampled_from(("bfloat16", "float16")), names)
def test_row_sum_of_16_bits(x, name, out):
    x = [c for c in x if decode(c, format_of(name))[1] not in ("nan", "inf")] or [0]
    assert int(sfu_rows.row(SfuOp.ROW_SUM, np.array(x, np.uint16), name, out)) == wanted_sum(x, name, out)


def test_row_sum_directed():
    def total(*x, n=1):
        return float(sfu_rows.row(SfuOp.ROW_SUM, np.array(x, np.float32).repeat(n).view(np.uint32), "float32").view(np.float32))
    assert total(3.4e38, 3.4e38, -3.4e38, -3.4e38, 1e-45) == float(np.float32(1e-45))  # nothing overflows or is lost on the way
    assert total(3.4e38, n=1 << 20) == np.inf and total(-3.4e38, n=1 << 20) == -np.inf
    assert total(1.0, n=1 << 20) == 1 << 20
    assert total(1e-45, n=1 << 20) == float(np.float32(1e-45)) * (1 << 20)
    assert np.signbit(total(-0.0, -0.0)) and not np.signbit(total(-0.0, 0.0)) and not np.signbit(total(1.0, -1.0))
    bf = np.array([0x4380] + [0x3F80] * 8, np.uint16)  # 256 + 8 ones
    assert int(sfu_rows.row(SfuOp.ROW_SUM, bf, "bfloat16")) == 0x4384


@ops(ROW)
def test_rows_do_not_depend_on_order(op):
    rng = np.random.default_rng(5)
    x = random32(rng, 3 * 257).reshape(3, 257)
    x[0] = np.where((x[0] & INF) == INF, 0, x[0])
    x[1] = np.where((x[1] & INF) == INF, MINUS, x[1])
    for _ in range(3):
        assert (sfu_rows.row(op, rng.permuted(x, axis=1), "float32") == sfu_rows.row(op, x, "float32")).all()


def test_row_extremes():
    x = np.array([[0, MINUS, 0], [ONE, NAN, 0], [INF, MINUS, INF | MINUS]], np.uint32)
    assert sfu_rows.row(SfuOp.ROW_MIN, x, "float32").tolist() == [MINUS, NAN, INF | MINUS]
    assert sfu_rows.row(SfuOp.ROW_MAX, x, "float32").tolist() == [0, NAN, INF]


# -- kernels -----------------------------------------------------------------------------------------------------------------------------

def rows_of(rng: np.random.Generator, name: str, shape=(64, 300)) -> tuple[np.ndarray, np.ndarray]:
    codes = narrow(rng.normal(0, 3, shape).astype(np.float32).view(np.uint32), name)
    return codes, ref.values(codes, name)


def softmax64(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm64(x):
    d = x - x.mean(axis=-1, keepdims=True)
    return d / np.sqrt((d * d).mean(axis=-1, keepdims=True) + float(np.float32(1e-5)))


def rms_norm64(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + float(np.float32(1e-5)))


#: Golden, float64, bound in units in the last place by format. Softmax in binary32: rounding x - max alone moves exp by up to |x - max| units, which
#: is added to its bound. LayerNorm's subtraction cancels, so its unit is that of 1 at least.
KERNELS = {
    "softmax": (sfu_rows.softmax, softmax64, {"float32": 4.0, "bfloat16": 0.51, "float16": 0.51}),
    "layer_norm": (lambda x, n: sfu_rows.layer_norm(x, n, epsilon=1e-5), layer_norm64, {"float32": 4.0, "bfloat16": 0.51, "float16": 0.51}),
    "rms_norm": (lambda x, n: sfu_rows.rms_norm(x, n, epsilon=1e-5), rms_norm64, {"float32": 3.0, "bfloat16": 0.51, "float16": 0.51}),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_against_float64(kernel, name):
    golden, exact, bound = KERNELS[kernel]
    codes, x = rows_of(np.random.default_rng(6), name)
    want = exact(x)
    unit = ref.quantum(np.maximum(np.abs(want), 1.0) if kernel == "layer_norm" else want, format_of(name))
    error = np.abs(ref.values(golden(codes, name), name) - want) / unit
    print(f"{kernel} {name}: worst {error.max():.4f} ULP of {error.size}")
    more = x.max(axis=-1, keepdims=True) - x if (kernel, name) == ("softmax", "float32") else 0.0
    assert (error <= bound[name] + more).all()


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_odd_rows(name):
    f = format_of(name)
    nan, inf, minus = f.nan_code, f.inf_code, f.inf_code | f.sign_mask
    one = int(narrow(np.uint32(ONE), name))
    def rows(*x):
        return np.array([x], np.uint32)
    soft = sfu_rows.softmax
    assert soft(rows(one, nan, one), name).tolist() == [[nan] * 3]
    assert soft(rows(minus, minus), name).tolist() == [[nan] * 2]  # all masked: no plausible distribution
    assert soft(rows(inf, one), name).tolist() == [[nan] * 2]
    assert soft(rows(one, minus, one), name)[0].tolist() == [int(narrow(np.uint32(0x3F000000), name)), 0, int(narrow(np.uint32(0x3F000000), name))]
    for x in (0, one, f.max_code, f.max_code | f.sign_mask, minus ^ f.inf_code):
        assert soft(rows(x), name).tolist() == [[one]]
    for norm in (sfu_rows.layer_norm, sfu_rows.rms_norm):
        assert norm(rows(one, nan, one), name, epsilon=1e-5).tolist() == [[nan] * 3]
        assert norm(rows(one, inf), name, epsilon=1e-5)[0, 1] == nan
        assert norm(rows(0, 0), name, epsilon=1e-5).tolist() == [[0, 0]]
    assert sfu_rows.layer_norm(rows(one), name, epsilon=1e-5).tolist() == [[0]]


def test_gamma_and_beta_round_at_the_end():
    codes, x = rows_of(np.random.default_rng(7), "bfloat16", (8, 40))
    gamma, beta = codes[:1], codes[1:2]
    got = ref.values(sfu_rows.layer_norm(codes, "bfloat16", epsilon=1e-5, gamma=gamma, beta=beta), "bfloat16")
    want = layer_norm64(x) * x[:1] + x[1:2]
    assert (np.abs(got - want) <= 0.51 * ref.quantum(want, format_of("bfloat16")) + 1e-5).all()


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        (dict(epsilon=None), "epsilon None; expected a number"), (dict(epsilon=1e50), r"epsilon 1e\+50"), (dict(epsilon=-1.0), r"epsilon -1\.0"),
        (dict(epsilon=0, gamma=np.ones(3, np.float32)), r"gamma of shape \(3,\) for rows of shape \(1, 4\)"),
        (dict(epsilon=0, gamma=np.ones((5, 4), np.float32)), r"gamma of shape \(5, 4\)"),
    ],
)
def test_norms_refuse_what_does_not_fit(kw: dict, message: str) -> None:
    row = np.ones((1, 4), np.float32)
    for norm in (sfu_rows.layer_norm, sfu_rows.rms_norm):
        with pytest.raises(ValueError, match=message):
            norm(row, "float32", **kw)
        with pytest.raises(ValueError, match="expected rows"):
            norm(row[0, 0], "float32", epsilon=0)
