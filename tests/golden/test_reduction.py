"""Accumulation: order, bias, hop order, against rational arithmetic rounded step by step."""
from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from golden.pe.dot_product import dot_product
from golden.pe.reduction import ReductionEngine, add, chain, extremes
from spec.params import PeParams

PE = PeParams(rows=4, banks=2, depth=8)
NAN, INF = 0x7FC00000, 0x7F800000


def bits(*x: float) -> np.ndarray:
    return np.array(x, np.float32).view(np.uint32)


def rounded(x: Fraction) -> np.uint32:
    """binary32 of a rational, by NumPy's own parsing of an exact decimal: no rounding but one."""
    return np.float32(x.numerator / x.denominator).view(np.uint32)  # exact quotients of the cases below fit in float64


def test_each_step_is_rounded_once() -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(-(1 << 24), 1 << 24, (40, 4)) * 2.0 ** rng.integers(-12, 12, (40, 4))
    engine = ReductionEngine(PE)
    want = [Fraction(0)] * 4
    for k, row in enumerate(values):
        engine.accumulate(0, 3, row.astype(np.float32).view(np.uint32)[None], first=k == 0)
        for j in range(4):
            exact = (want[j] if k else Fraction(0)) + Fraction(float(np.float32(row[j])))
            want[j] = Fraction(float(rounded(exact).view(np.float32)))
    got = engine.drain(0, 3, 1)[0][0].view(np.float32)
    assert [Fraction(float(x)) for x in got] == want


def test_long_sums_do_not_stick() -> None:
    engine = ReductionEngine(PE)
    for k, x in enumerate([256.0] + [1.0] * 8):
        engine.accumulate(0, 0, np.tile(bits(x), (1, 4)), first=k == 0)
    assert (engine.drain(0, 0, 1)[0] == bits(264.0)).all()
    assert (chain(np.stack([bits(x) for x in (6400, 1600, 400)])) == bits(8400)).all()


def test_hop_order_is_the_order_given() -> None:
    hops = np.stack([bits(x) for x in (1e8, 1.0, -1e8, 1.0)])
    assert chain(hops)[0] == bits(1.0)[0] and chain(hops[[0, 2, 1, 3]])[0] == bits(2.0)[0]
    assert list(chain(np.array([[0x7FFFFFFF], [1], [0xFFFFFFFF]], np.uint32), integer=True)) == [0x7FFFFFFF]


def test_the_engines_of_a_product_give_its_bits() -> None:
    """Dot product by the engine's chunks in order, with bias: the same bits as dot_product of the whole K."""
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 1 << 16, (n, 96)).astype(np.uint16) & 0xBFFF for n in (4, 5))
    bias = rng.standard_normal((4, 5)).astype(np.float32).view(np.uint32)
    engine = ReductionEngine(PE)
    engine.load(1, 0, bias.T)
    for at in range(0, 96, 32):
        engine.accumulate(1, 0, dot_product(a[:, at : at + 32], b[:, at : at + 32], "bfloat16").T)
    assert (engine.drain(1, 0, 5)[0].T == dot_product(a, b, "bfloat16", bias=bias)).all()


def test_moving_keeps_bits_and_adding_makes_nan_canonical() -> None:
    engine = ReductionEngine(PE)
    engine.load(0, 7, np.full((2, 4), 0xFF800001, np.uint32))  # wraps to row 0
    assert (engine.drain(0, 0, 1)[0] == 0xFF800001).all() and (engine.drain(0, 7, 1)[0] == 0xFF800001).all()
    assert (engine.drain(0, 0, 1, partials=np.zeros((1, 4), np.uint32))[0] == NAN).all()
    assert add(bits(np.inf), bits(-np.inf))[0] == NAN and add(bits(0.0), bits(-0.0))[0] == 0


def test_extremes() -> None:
    rows = np.array([[0, 0x80000000, 0, 0x80000000], [INF, 1, 0xFF800000, 2], [NAN, 1, 2, 3]], np.uint32)
    low, high = extremes(rows)
    assert list(low) == [0x80000000, 0xFF800000, NAN] and list(high) == [0, INF, NAN]
    low, high = extremes(rows, integer=True)
    assert low[0] == 0x80000000 and high[2] == NAN


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of shape \(1, 3\); expected \(n, 4\)"):
        ReductionEngine(PE).load(0, 0, np.zeros((1, 3), np.uint32))


def test_misfits_are_refused() -> None:
    engine, width = ReductionEngine(PE), PE.rows
    cases = (
        (lambda: engine.drain(0, 0, 3, partials=np.zeros((1, width), np.uint32)), "1 partial rows for a drain of 3"),
        (lambda: engine.drain(0, 0, 1, partials=np.zeros((3, width), np.uint32)), "3 partial rows for a drain of 1"),
        (lambda: engine.drain(0, 0, -1), "count = -1; expected an integer from 0"),
        (lambda: extremes(np.zeros(3, np.uint32)), r"extremes of shape \(3,\)"),
        (lambda: extremes(np.zeros((3, 0), np.uint32)), "width at least 1"),
        (lambda: chain(np.zeros((0, 3), np.uint32)), "one engine or more"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
