"""Special functions: all 16-bit inputs against correctly rounded results, binary32 against a bound, tables, special values, arithmetic."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.numeric import convert_any
from golden.numeric.convert import narrow, widen
from golden.pe import sfu, sfu_round, sfu_rows
from spec import sfu as table
from spec.formats import format_of
from spec.sfu import BINARY, NATIVE, UNARY, SfuOp
from spec.sfu_table import OCTAVES, TEXT
from tests.golden import sfu_generate
from tests.golden import sfu_reference as ref
from tests.golden.oracle import decode, encode, value

CODES = np.arange(1 << 16, dtype=np.uint16)
POSITIVE = (SfuOp.LOG, SfuOp.RSQRT)
NAMES = tuple(f.name.lower() for f in NATIVE)
INF, NAN, ONE = 0x7F800000, 0x7FC00000, 0x3F800000
MINUS = 1 << 31

#: Worst error of binary32 results in units in the last place, bound of the contract. Measured values stand in docs/numbers.md.
BOUND = {op: 0.502 if op == SfuOp.GELU else 0.501 for op in UNARY}


def ops(known=UNARY):
    return pytest.mark.parametrize("op", known, ids=lambda o: o.name.lower())


def domain(op: SfuOp, codes: np.ndarray, name: str) -> np.ndarray:
    x = ref.values(codes, name)
    return codes[np.isfinite(x) & (x != 0) & ((x > 0) | (op not in POSITIVE))]


# -- accuracy ----------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@ops()
def test_every_16_bit_input_is_correctly_rounded(op, name):
    codes = domain(op, CODES, name)
    got, want = sfu.unary(op, codes, name), ref.correctly_rounded(op, codes, name, name)
    bad = np.flatnonzero(got != want)
    worst = ref.ulps(op, codes, name, got, name)
    i = int(worst.argmax())
    print(f"{name} {op.name.lower()}: {len(bad)} misrounded of {len(codes)}; worst {worst[i]:.6f} ULP at {codes[i]:#06x}")
    assert not len(bad), [(hex(codes[k]), hex(got[k]), hex(want[k])) for k in bad[:5]]
    x = ref.values(CODES, name)
    invalid = CODES[np.isnan(x) | ((x < 0) & (op in POSITIVE))]
    assert (sfu.unary(op, invalid, name) == format_of(name).nan_code).all()


@ops([op for op in UNARY if op not in (SfuOp.RELU, SfuOp.COPY)])
def test_reference_agrees_with_mpmath_alone(op):
    """The reference's shortcut through float64 decides as mpmath does."""
    for name in ("bfloat16", "float16"):
        codes = domain(op, CODES[::509], name)
        x, f = ref.values(codes, name), format_of(name)
        far = np.abs(x) < 256  # beyond it mpmath would write numbers of thousands of digits
        got = ref.correctly_rounded(op, codes[far], name, name)
        want = [ref._decide(op, float(v), f) & f.mask for v in x[far]]
        assert [int(g) for g in got] == want


def random32(rng: np.random.Generator, n: int) -> np.ndarray:
    """binary32 patterns: any bits, and magnitudes around those where the functions bend."""
    bits = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    near = ((127 + rng.integers(-30, 8, n)).astype(np.uint32) << np.uint32(23)) | bits & np.uint32(0x807FFFFF)
    linear = (rng.uniform(-110, 110, n)).astype(np.float32).view(np.uint32)
    one = (ONE + rng.integers(-1 << 16, 1 << 16, n)).astype(np.uint32)
    return np.choose(rng.integers(0, 4, n), [bits, near, linear, one]).astype(np.uint32)


@ops()
def test_binary32_stays_below_the_bound(op):
    rng = np.random.default_rng(3)
    codes = domain(op, random32(rng, 400_000), "float32")
    worst = ref.ulps(op, codes, "float32", sfu.unary(op, codes, "float32"), "float32")
    i = int(worst.argmax())
    print(f"float32 {op.name.lower()}: worst {worst[i]:.6f} ULP of {len(codes)} at {codes[i]:#010x}")
    assert worst[i] <= BOUND[op]


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@ops()
def test_binary32_to_16_bits_is_rounded_once(op, name):
    """Close to every boundary between two results that float32 inputs can meet at random, and next to ties: one rounding, not two."""
    rng = np.random.default_rng(4)
    f = format_of(name)
    half = np.asarray(widen(CODES[:f.inf_code], name)).astype(np.int64)
    ties = ((half[:-1] + half[1:]) >> 1)[::7]
    codes = np.concatenate([random32(rng, 60_000), (ties[:, None] + [-1, 0, 1]).ravel().astype(np.uint32)])
    codes = domain(op, codes, "float32")
    got, want = sfu.unary(op, codes, "float32", name), ref.correctly_rounded(op, codes, "float32", name)
    bad = np.flatnonzero(got != want)
    assert not len(bad), [(hex(codes[k]), hex(got[k]), hex(want[k])) for k in bad[:5]]


@ops((SfuOp.EXP, SfuOp.TANH, SfuOp.SIGMOID))
def test_monotonic(op):
    """Over all finite float16 in order, in binary32: never down."""
    x = np.concatenate([CODES[0x8001:0xFC00][::-1], CODES[:0x7C00]])
    y = ref.values(sfu.unary(op, x, "float16", "float32"), "float32")
    assert (y[1:] >= y[:-1]).all()


# -- tables ------------------------------------------------------------------------------------------------------------------------------

@pytest.mark.long
def test_table_is_what_the_generator_writes():
    assert sfu_generate.TABLE.read_text() == sfu_generate.generate()


def test_rows_are_what_the_generator_writes():
    """Every 17th row, and the first of every octave."""
    parts, width = sfu_generate.segments(OCTAVES), table.ROW_HEX
    assert len(parts) == len(table.ROWS)
    for n in {*range(0, len(parts), 17), *(base for o in OCTAVES for base, _ in o[3])}:
        assert sfu_generate.row_text(parts[n]) == TEXT[n * width:(n + 1) * width], n
    assert (1 << table.REGIONS["exp2"].octaves[0][1] + table.PLACE) == 1 << table.POWER_FRACTION


def test_constants():
    with ref.mp.workprec(200):
        assert int(ref.mp.nint(1 / ref.mp.log(2) * 2**table.LOG2E_FRACTION)) == table.LOG2E
        assert int(ref.mp.nint(ref.mp.log(2) * 2**table.LN2_FRACTION)) == table.LN2


def test_products_fit_in_64_bits():
    """What the hardware's widths and the golden model's int64 rest on: c_k + t * (...) stays in the width of c_k."""
    for r in table.ROWS:
        bound = abs(r[4])
        for k in (3, 2, 1, 0):
            bound = abs(r[k]) + bound + 1
            assert bound < 1 << (table.COEFFICIENT_BITS[k] - (k > 0)) or k == 0 and bound <= 1 << 39, (r, k)
    rows = np.arange(len(table.ROWS))
    for t in (0, 1, (1 << 28) - 1):
        p, _ = sfu._polynomial(rows, np.full(len(rows), t))
        assert 0 < p.min() and p.max() <= 1 << 38


# -- special values ----------------------------------------------------------------------------------------------------------------------

SPECIALS = {  # +0, -0, +Inf, -Inf, -1
    SfuOp.EXP: (ONE, ONE, INF, 0, None), SfuOp.EXP2: (ONE, ONE, INF, 0, 0x3F000000), SfuOp.LOG: (INF | MINUS, INF | MINUS, INF, NAN, NAN),
    SfuOp.RECIPROCAL: (INF, INF | MINUS, 0, MINUS, ONE | MINUS), SfuOp.RSQRT: (INF, INF | MINUS, 0, NAN, NAN),
    SfuOp.TANH: (0, MINUS, ONE, ONE | MINUS, None), SfuOp.SIGMOID: (0x3F000000, 0x3F000000, ONE, 0, None),
    SfuOp.GELU: (0, MINUS, INF, MINUS, None), SfuOp.SILU: (0, MINUS, INF, MINUS, None), SfuOp.RELU: (0, 0, INF, 0, 0),
    SfuOp.SOFTPLUS: (0x3F317218, 0x3F317218, INF, 0, None), SfuOp.COPY: (0, MINUS, INF, INF | MINUS, ONE | MINUS),
}


@ops()
def test_special_values_in_every_format(op):
    for name in NAMES:
        f = format_of(name)
        for x, want in zip((0, MINUS, INF, INF | MINUS, ONE | MINUS), SPECIALS[op], strict=True):
            if want is not None:
                assert int(sfu.unary(op, narrow(np.uint32(x), name), name)) == int(narrow(np.uint32(want), name)), (name, hex(x))
        nans = [f.inf_code + 1, f.magnitude_mask, f.mask, f.inf_code + 1 | f.sign_mask]
        assert set(sfu.unary(op, np.array(nans, np.uint32), name).tolist()) == {f.nan_code}


@pytest.mark.parametrize("op,x,want", [
    (SfuOp.TANH, 30.0, 1.0), (SfuOp.TANH, -30.0, -1.0), (SfuOp.GELU, 25.0, 25.0), (SfuOp.GELU, -25.0, -0.0), (SfuOp.SILU, 1e7, 1e7),
    (SfuOp.SILU, -1e7, -0.0), (SfuOp.SIGMOID, -1e7, 0.0), (SfuOp.SIGMOID, 1e7, 1.0), (SfuOp.EXP, 1e-30, 1.0), (SfuOp.EXP, 89.0, np.inf),
    (SfuOp.EXP, -104.0, 0.0), (SfuOp.EXP2, 127.0, 2.0**127), (SfuOp.EXP2, -149.0, 2.0**-149), (SfuOp.EXP2, -150.0, 0.0), (SfuOp.EXP2, 128.0, np.inf),
    (SfuOp.LOG, 1.0, 0.0), (SfuOp.RECIPROCAL, 2.0**-149, np.inf), (SfuOp.RECIPROCAL, 2.0**127, 2.0**-127), (SfuOp.RSQRT, 2.0**-148, 2.0**74),
    (SfuOp.TANH, 2.0**-149, 2.0**-149), (SfuOp.GELU, 2.0**-149, 2.0**-149), (SfuOp.GELU, -(2.0**-149), -0.0), (SfuOp.SILU, 3 * 2.0**-149, 2.0**-148),
    (SfuOp.SILU, -3 * 2.0**-149, -(2.0**-149)), (SfuOp.SIGMOID, 3e38, 1.0), (SfuOp.EXP, -3e38, 0.0), (SfuOp.EXP, 3e38, np.inf),
])
def test_large_and_tiny(op, x, want):
    got = sfu.unary(op, np.asarray(np.float32(x)).view(np.uint32), "float32")
    assert int(got) == int(np.asarray(np.float32(want)).view(np.uint32))


# -- arithmetic --------------------------------------------------------------------------------------------------------------------------

patterns = st.one_of(st.integers(0, (1 << 32) - 1), st.sampled_from(
    [s | m for s in (0, MINUS) for m in (0, 1, 2, 0x7FFFFF, 0x800000, ONE, ONE + 1, 0x7F7FFFFF, INF, INF + 1, NAN, 0x33800000, 0x3F808000)]))
names = st.sampled_from(NAMES)


def wanted(op: SfuOp, a: int, b: int, name: str) -> int:
    """By rational numbers."""
    f, out = format_of("float32"), format_of(name)
    (sa, x), (sb, y) = decode(a, f), decode(b, f)
    if "nan" in (x, y):
        return out.nan_code
    if op in (SfuOp.MIN, SfuOp.MAX):
        def key(s, m):
            return (-1 if s else 1) * (float("inf") if m == "inf" else m), -s
        first = key(sa, x) < key(sb, y)
        s, m = (sa, x) if first == (op == SfuOp.MIN) else (sb, y)
        return encode(-m if s else m, out, zero_sign=s) if m != "inf" else out.inf_code | (out.sign_mask if s else 0)
    if op == SfuOp.MUL:
        if "inf" in (x, y):
            return out.nan_code if 0 in (x, y) else out.inf_code | (out.sign_mask if sa ^ sb else 0)
        return encode(value(a, f) * value(b, f), out, zero_sign=sa ^ sb)
    sb ^= op == SfuOp.SUB
    if x == y == "inf" and sa != sb:
        return out.nan_code
    if "inf" in (x, y):
        return out.inf_code | (out.sign_mask if (sa if x == "inf" else sb) else 0)
    return encode(value(a, f) + value(b, f) * (-1 if op == SfuOp.SUB else 1), out, zero_sign=sa & sb)


@ops(BINARY)
@given(a=patterns, b=patterns, name=names, near=st.integers(-3, 3), kind=st.integers(0, 2))
def test_arithmetic_is_rounded_once(op, a, b, name, near, kind):
    """Also with operands that nearly cancel, and with sums next to a tie of the result's format."""
    if kind == 1:
        b = (a ^ MINUS) + near & 0xFFFFFFFF
    if kind == 2:
        a, b = a & 0xFFFF8000, max(0, (a & INF) - 0x0A000000) | b & 0x807FFFFF
    got = sfu.binary(op, np.uint32(a), np.uint32(b), "float32", "float32", name)
    assert int(got) == wanted(op, a, b, name)


@pytest.mark.parametrize("op", BINARY, ids=lambda o: o.name.lower())
def test_nan_and_infinities_in_every_format(op):
    for name in NAMES:
        f = format_of(name)
        inf, minus = f.inf_code, f.inf_code | f.sign_mask
        for a, b in ((f.nan_code, 0), (0, f.mask), (inf + 1, inf)):
            assert int(sfu.binary(op, np.uint32(a), np.uint32(b), name)) == f.nan_code
        invalid = {SfuOp.ADD: (inf, minus), SfuOp.SUB: (inf, inf), SfuOp.MUL: (inf, 0)}.get(op)
        if invalid:
            assert int(sfu.binary(op, np.uint32(invalid[0]), np.uint32(invalid[1]), name)) == f.nan_code


TARGETS = pytest.mark.parametrize("name", convert_any.TARGETS)


@TARGETS
def test_copy_is_the_conversion(name):
    """Every format, mode, nearest and stochastic, against the conversion that has an implementation of its own."""
    rng = np.random.default_rng(11)
    halves = (rng.integers(-300, 300, 4000) / 2.0 ** rng.integers(-50, 3, 4000)).astype(np.float32).view(np.uint32)  # and far beyond integers
    x = np.concatenate([random32(rng, 20_000), np.arange(1 << 8, dtype=np.uint32) << np.uint32(23), halves])
    for mode in ("ovf", "sat"):
        for seed in (None, 0, 0xDEADBEEF):
            index = None if seed is None else rng.integers(0, 1 << 32, len(x))
            got = sfu.unary(SfuOp.COPY, x, "float32", name, sfu_round.Rounding(mode, seed, index))
            want = convert_any.convert(x, "float32", name, mode, seed, index)
            assert np.array_equal(got, np.asarray(want).view(got.dtype)), (mode, seed)


@TARGETS
def test_arithmetic_rounds_once_into_every_format(name):
    """Sums, products and sums of rows, exact in fractions, next to ties of the result's format."""
    rng, f = np.random.default_rng(12), format_of(name)
    a = (rng.integers(-1 << 12, 1 << 12, 300) / 2.0 ** rng.integers(0, 12, 300)).astype(np.float32).view(np.uint32)
    b = (rng.integers(1, 1 << 24, 300) * 2.0 ** rng.integers(-60, -20, 300)).astype(np.float32).view(np.uint32)
    x, y = ([value(int(v), format_of("float32")) for v in p] for p in (a, b))
    for op, exact in ((SfuOp.ADD, [p + q for p, q in zip(x, y, strict=True)]), (SfuOp.SUB, [p - q for p, q in zip(x, y, strict=True)]),
                      (SfuOp.MUL, [p * q * 2**30 for p, q in zip(x, y, strict=True)])):
        scaled = b + np.uint32(30 << 23) if op == SfuOp.MUL else b
        got = sfu.binary(op, a, scaled, "float32", format_out=name, how=sfu_round.Rounding("sat"))
        if f.is_float:
            signs = ((a ^ scaled) if op == SfuOp.MUL else a & (b ^ np.uint32(MINUS if op == SfuOp.SUB else 0))) >> 31
            want = [encode(v, f, int(s), "sat") for v, s in zip(exact, signs, strict=True)]
        else:
            want = [min(max(round(v), int(f.min)), int(f.max)) & f.mask for v in exact]
        assert got.tolist() == want, op
    if not f.is_float:  # internal results of 64 bits far beyond: nothing wraps, stochastically neither
        far = np.arange(128, 160, dtype=np.uint32) << np.uint32(23)
        for how in (sfu_round.Rounding(), sfu_round.Rounding(seed=1)):
            for got in (sfu.unary(SfuOp.EXP2, (np.arange(32, 128)).astype(np.float32).view(np.uint32), "float32", name, how),
                        sfu.binary(SfuOp.ADD, far + np.uint32(32 << 23), far[0], "float32", format_out=name, how=how)):
                assert set(got.tolist()) == {int(f.max)}
    if f.is_float:
        assert sfu_rows.row(SfuOp.ROW_SUM, np.stack([a, b], axis=1), "float32", name, sfu_round.Rounding("sat")).tolist() == [
            encode(p + q, f, 0, "sat") for p, q in zip(x, y, strict=True)]


def test_clamp():
    x = np.array([-3, -1, -0.0, 0.0, 0.5, 2, 7, np.inf, -np.inf, np.nan], np.float32)
    got = sfu.clamp(x.view(np.uint32), np.float32(-1).view(np.uint32), np.float32(6).view(np.uint32), "float32").view(np.float32)
    assert np.array_equal(got, np.clip(x, -1, 6), equal_nan=True)
    bad = np.uint32(NAN)
    for args in ((ONE, NAN, ONE), (ONE, ONE, NAN), (NAN, ONE, ONE)):
        assert int(sfu.clamp(*(np.uint32(v) for v in args), "float32")) == bad
    assert int(sfu.clamp(np.uint32(ONE), np.uint32(0x40400000), np.uint32(0x40000000), "float32")) == 0x40000000  # low above high: high


def test_refusals():
    one = np.array([0x3F80], np.uint16)
    with pytest.raises(ValueError, match="no operation of one operand.*EXP"):
        sfu.unary(SfuOp.ADD, one, "bfloat16")
    with pytest.raises(ValueError, match="no operation of two operands"):
        sfu.binary(SfuOp.EXP, one, one, "bfloat16")
    with pytest.raises(ValueError, match="no operand format 'int64'"):
        sfu.unary(SfuOp.EXP, one, "int64", "float32")
    with pytest.raises(ValueError, match="no result format 'float8_e8m0fnu'"):
        sfu.unary(SfuOp.EXP, one, "bfloat16", "float8_e8m0fnu")
    with pytest.raises(ValueError, match="unknown overflow mode 'wrap'"):
        sfu.unary(SfuOp.EXP, one, "bfloat16", how=sfu_round.Rounding("wrap"))
    with pytest.raises(ValueError, match="rows of 1 to"):
        sfu_rows.row(SfuOp.ROW_SUM, np.zeros((2, 0), np.uint16), "bfloat16")
    with pytest.raises(TypeError):
        sfu.unary(SfuOp.EXP, np.array([1.0]), "bfloat16")
