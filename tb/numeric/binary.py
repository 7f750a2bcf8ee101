"""The bench shared by the binary32 adder and multiplier: corners, random vectors, stalls, full rate.

Two oracles: the golden model, and NumPy's own float32 arithmetic with NaN made canonical.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tb.lib.bench import Bench
from tb.numeric import vectors

LATENCY = 2
NAN = np.uint32(0x7FC00000)


def outside(op: Callable, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NumPy's float32 `op` on bit patterns, NaN canonical."""
    with np.errstate(all="ignore"):
        r = op(a.view(np.float32), b.view(np.float32)).view(np.uint32)
    return np.where((r & 0x7FFFFFFF) > 0x7F800000, NAN, r).astype(np.uint32)


def classes(b: Bench, x: np.ndarray, y: np.ndarray, result: np.ndarray) -> None:
    """Coverage of result classes."""
    mag = result & 0x7FFFFFFF
    exact_in = (x & 0x7FFFFFFF < 0x7F800000) & (y & 0x7FFFFFFF < 0x7F800000)
    for name, hit in {
        "subnormal-result": (mag > 0) & (mag < 0x00800000), "overflow": (mag == 0x7F800000) & exact_in,
        "nan": mag > 0x7F800000, "minus-zero": result == 0x80000000, "plus-zero": result == 0,
    }.items():
        if hit.any():
            b.cover(name)


async def check(b: Bench, op: Callable, model: Callable, x: np.ndarray, y: np.ndarray, *, stall: float = 0.0) -> int:
    """Run the pairs, in batches of the bench's depth; both oracles must agree with every result. Returns cycles."""
    depth, cycles = b.ports["operands"].depth, 0
    for at in range(0, len(x), depth):
        p, q = x[at:at + depth], y[at:at + depth]
        b.stalls(stall)
        b.source("operands").load(vectors.rows(p, q, nbytes=8))
        b.sink("result").expect(len(p))
        cycles += await b.run(deadline=40 * len(p) + 200)
        got = vectors.words32(b.sink("result").array())
        for name, want in (("golden", model(p, q)), ("numpy", outside(op, p, q))):
            text = vectors.mismatch(f"{b.block} against {name}", got, want, p, q)
            assert not text, text
        classes(b, p, q, got)
    return cycles


def count(b: Bench, n: int) -> int:
    """Fewer vectors on the four-state simulator."""
    return n if b.sim == "verilator" else max(1, n // 20)


async def full_rate(b: Bench, op: Callable, model: Callable) -> None:
    """Interval 1: n results take n + latency + a few cycles of the bench's own."""
    n = 4096
    x, y = vectors.pairs(b.rng, n)
    cycles = await check(b, op, model, x, y)
    assert cycles <= n + LATENCY + 6, f"{cycles} cycles for {n} results"
