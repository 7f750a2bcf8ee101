"""binary32 multiplication against the golden model and NumPy: corners, directed cases, random vectors, stalls, full rate."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import fp32
from tb.lib.bench import Bench
from tb.numeric import binary, vectors

OP, MODEL = np.multiply, fp32.mul

DIRECTED = (  # a, b, product
    (0x00000000, 0x80000000, 0x80000000), (0x80000000, 0x80000000, 0x00000000),
    (0x7F800000, 0x00000000, 0x7FC00000), (0x80000000, 0xFF800000, 0x7FC00000),  # Inf * 0
    (0x7F800000, 0x80000001, 0xFF800000),
    (0x7F800001, 0x3F800000, 0x7FC00000), (0x00000000, 0xFFFFFFFF, 0x7FC00000),  # NaN in: the canonical NaN
    (0x7F7FFFFF, 0x40000000, 0x7F800000), (0x7F7FFFFF, 0x3F800001, 0x7F800000),
    (0x00000001, 0x3F000000, 0x00000000), (0x00000003, 0x3F000000, 0x00000002),  # half of the smallest: ties to even
    (0x00000001, 0x3F000001, 0x00000001), (0x80000001, 0x3E800000, 0x80000000),
    (0x00800000, 0x3F7FFFFF, 0x00800000), (0x00FFFFFF, 0x3F000000, 0x00800000),  # rounds back up to the smallest normal
    (0x00000001, 0x4B000000, 0x00800000), (0x007FFFFF, 0x7F000000, 0x3FFFFFFE),  # subnormal times large
    (0x3F800001, 0x3F800001, 0x3F800002), (0x40400000, 0x3EAAAAAB, 0x3F800000),
)


@cocotb.test()
async def test_corners(dut):
    b = await Bench.start(dut)
    await binary.check(b, OP, MODEL, *vectors.corner_pairs())


@cocotb.test()
async def test_directed(dut):
    b = await Bench.start(dut)
    x, y, want = (np.array(c, np.uint32) for c in zip(*DIRECTED, strict=True))
    b.source("operands").load(vectors.rows(x, y, nbytes=8))
    b.sink("result").expect(len(x))
    await b.run(deadline=1000)
    text = vectors.mismatch("directed", vectors.words32(b.sink("result").array()), want, x, y)
    assert not text, text


@cocotb.test()
async def test_random(dut):
    b = await Bench.start(dut)
    await binary.check(b, OP, MODEL, *vectors.pairs(b.rng, binary.count(b, 200_000)))


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall in (0.1, 0.5, 0.9):
        await binary.check(b, OP, MODEL, *vectors.pairs(b.rng, binary.count(b, 4000)), stall=stall)
    b.cover("stalls")


@cocotb.test()
async def test_one(dut):
    b = await Bench.start(dut)
    for n in (1, 2, 3):
        await binary.check(b, OP, MODEL, *vectors.pairs(b.rng, n))


@cocotb.test()
async def test_full_rate(dut):
    b = await Bench.start(dut)
    await binary.full_rate(b, OP, MODEL)
