"""minimum, maximum and int32 sum against the golden model: corners in both operand orders, random vectors, stalls, full rate."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import minmax
from rtl.numeric.minmax import MinMaxOp
from tb.lib.bench import Bench
from tb.numeric import vectors
from tb.numeric.binary import count

MODEL = {
    MinMaxOp.FMIN: minmax.fmin, MinMaxOp.FMAX: minmax.fmax, MinMaxOp.IMIN: minmax.imin, MinMaxOp.IMAX: minmax.imax,
    MinMaxOp.IADD: lambda a, b: (a + b).astype(np.uint32),
}
INTS = np.array([0, 1, 2, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32)
DIRECTED = (  # op, a, b, result
    (MinMaxOp.FMIN, 0x80000000, 0x00000000, 0x80000000), (MinMaxOp.FMIN, 0x00000000, 0x80000000, 0x80000000),
    (MinMaxOp.FMAX, 0x80000000, 0x00000000, 0x00000000), (MinMaxOp.FMAX, 0x00000000, 0x80000000, 0x00000000),
    (MinMaxOp.FMIN, 0x7F800001, 0x3F800000, 0x7FC00000), (MinMaxOp.FMIN, 0x3F800000, 0xFFFFFFFF, 0x7FC00000),
    (MinMaxOp.FMAX, 0xFFC00001, 0x7F800000, 0x7FC00000), (MinMaxOp.FMAX, 0x7F800000, 0x7FC00001, 0x7FC00000),
    (MinMaxOp.FMIN, 0xFF800000, 0xFF7FFFFF, 0xFF800000), (MinMaxOp.FMAX, 0x80000001, 0x80000002, 0x80000001),
    (MinMaxOp.IMIN, 0x80000000, 0x7FFFFFFF, 0x80000000), (MinMaxOp.IMAX, 0xFFFFFFFF, 0x00000000, 0x00000000),
    (MinMaxOp.IMIN, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFE), (MinMaxOp.IADD, 0x7FFFFFFF, 0x00000001, 0x80000000),
    (MinMaxOp.IMAX, 0x7FC00000, 0x7F800001, 0x7FC00000),  # int32: no NaN
)


async def run(b: Bench, op: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, int]:
    b.source("operands").load(vectors.rows(x.astype(np.uint32), y.astype(np.uint32), op.astype(np.uint8), nbytes=9))
    b.sink("result").expect(len(x))
    cycles = await b.run(deadline=40 * len(x) + 200)
    return vectors.words32(b.sink("result").array()), cycles


async def check(b: Bench, op: MinMaxOp, x: np.ndarray, y: np.ndarray) -> int:
    got, cycles = await run(b, np.full(len(x), op), x, y)
    text = vectors.mismatch(op.name, got, MODEL[op](x, y), x, y)
    assert not text, text
    return cycles


@cocotb.test()
async def test_corners(dut):
    b = await Bench.start(dut)
    x, y = vectors.corner_pairs()
    p, q = (g.ravel() for g in np.meshgrid(INTS, INTS))
    for op in MinMaxOp:
        await check(b, op, x, y)
        await check(b, op, p, q)


@cocotb.test()
async def test_directed(dut):
    b = await Bench.start(dut)
    op, x, y, want = (np.array(c, np.uint32) for c in zip(*DIRECTED, strict=True))
    got, _ = await run(b, op, x, y)
    text = vectors.mismatch("directed", got, want, op, x, y)
    assert not text, text


@cocotb.test()
async def test_either_order(dut):
    b = await Bench.start(dut)
    for x, y in (vectors.corner_pairs(), vectors.pairs(b.rng, count(b, 16000))):
        for op in MinMaxOp:
            there, _ = await run(b, np.full(len(x), op), x, y)
            back, _ = await run(b, np.full(len(x), op), y, x)
            assert (there == back).all(), op.name


@cocotb.test()
async def test_random(dut):
    b = await Bench.start(dut)
    for op in MinMaxOp:
        await check(b, op, *vectors.pairs(b.rng, count(b, 16000)))


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall in (0.1, 0.5, 0.9):
        b.stalls(stall)
        for op in MinMaxOp:
            await check(b, op, *vectors.pairs(b.rng, count(b, 1000)))
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    b = await Bench.start(dut)
    cycles = await check(b, MinMaxOp.FMAX, *vectors.pairs(b.rng, 4096))
    assert cycles <= 4096 + 7, cycles
