"""bfloat16 and float16 <-> binary32 against the golden model: all 16-bit codes, directed cases, random and boundary patterns."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import convert
from rtl.numeric.convert import ConvertOp
from tb.lib.bench import Bench
from tb.numeric import vectors
from tb.numeric.binary import count

CODES = np.arange(1 << 16, dtype=np.uint32)
FORMAT = {
    ConvertOp.WIDEN_BFLOAT16: "bfloat16", ConvertOp.WIDEN_FLOAT16: "float16",
    ConvertOp.NARROW_BFLOAT16: "bfloat16", ConvertOp.NARROW_FLOAT16: "float16",
}
DIRECTED = {
    ConvertOp.NARROW_BFLOAT16: (
        (0x7F800001, 0x7FC0), (0xFF800001, 0x7FC0), (0x7FFFFFFF, 0x7FC0), (0xFFFFFFFF, 0x7FC0),  # any NaN: the canonical one
        (0x3E89CCD5, 0x3E8A), (0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x3F808001, 0x3F81),
        (0x7F7F8000, 0x7F80), (0x7F7F7FFF, 0x7F7F), (0x7F800000, 0x7F80), (0xFF800000, 0xFF80),
        (0x00008000, 0x0000), (0x00008001, 0x0001), (0x80008000, 0x8000), (0x007FFFFF, 0x0080), (0x80000000, 0x8000),
    ),
    ConvertOp.NARROW_FLOAT16: (
        (0x7F800001, 0x7E00), (0xFFFFFFFF, 0x7E00), (0x7F800000, 0x7C00), (0xFF800000, 0xFC00),
        (0x477FE000, 0x7BFF), (0x477FEFFF, 0x7BFF), (0x477FF000, 0x7C00), (0x47800000, 0x7C00), (0xC77FF000, 0xFC00),  # 65504, 65520
        (0x47C00000, 0x7C00), (0xC7FFFFFF, 0xFC00), (0x7F7FFFFF, 0x7C00),  # beyond: Inf, never a NaN code
        (0x38800000, 0x0400), (0x387FE000, 0x0400), (0x387FDFFF, 0x03FF), (0x387FC000, 0x03FF),  # smallest normal, largest subnormal
        (0x33800000, 0x0001), (0x33000000, 0x0000), (0x33000001, 0x0001), (0x32FFFFFF, 0x0000), (0xB3000000, 0x8000),  # 2^-24, 2^-25
        (0x00000001, 0x0000), (0x80000001, 0x8000), (0x3F801000, 0x3C00), (0x3F803000, 0x3C02),
    ),
    ConvertOp.WIDEN_BFLOAT16: (
        (0x0001, 0x00010000), (0x8000, 0x80000000), (0x7F81, 0x7FC00000), (0xFFFF, 0x7FC00000), (0x7F80, 0x7F800000),
    ),
    ConvertOp.WIDEN_FLOAT16: (
        (0x0001, 0x33800000), (0x03FF, 0x387FC000), (0x0400, 0x38800000), (0x7BFF, 0x477FE000), (0x7C00, 0x7F800000),
        (0x7C01, 0x7FC00000), (0xFE00, 0x7FC00000), (0x8000, 0x80000000), (0x8001, 0xB3800000),
    ),
}


def model(op: ConvertOp, bits: np.ndarray) -> np.ndarray:
    if op in (ConvertOp.WIDEN_BFLOAT16, ConvertOp.WIDEN_FLOAT16):
        return convert.widen(bits.astype(np.uint16), FORMAT[op]).astype(np.uint32)
    return convert.narrow(bits.astype(np.uint32), FORMAT[op]).astype(np.uint32)


async def convert_all(b: Bench, op: ConvertOp, bits: np.ndarray) -> tuple[np.ndarray, int]:
    """Results and cycles."""
    depth, out, cycles = b.ports["operands"].depth, [], 0
    for at in range(0, len(bits), depth):
        part = bits[at:at + depth].astype(np.uint32)
        b.source("operands").load(vectors.rows(part, np.full(len(part), op, np.uint8), nbytes=5))
        b.sink("result").expect(len(part))
        cycles += await b.run(deadline=40 * len(part) + 200)
        out.append(vectors.words32(b.sink("result").array()))
    return np.concatenate(out), cycles


async def check(b: Bench, op: ConvertOp, bits: np.ndarray) -> int:
    got, cycles = await convert_all(b, op, bits)
    text = vectors.mismatch(op.name, got, model(op, bits), bits)
    assert not text, text
    return cycles


@cocotb.test()
async def test_widen_bfloat16_all(dut):
    b = await Bench.start(dut)
    await check(b, ConvertOp.WIDEN_BFLOAT16, CODES)
    got, _ = await convert_all(b, ConvertOp.WIDEN_BFLOAT16, CODES[:0x7F81])  # every non-NaN positive code: the bits moved up
    assert (got == CODES[:0x7F81] << 16).all()


@cocotb.test()
async def test_widen_float16_all(dut):
    b = await Bench.start(dut)
    await check(b, ConvertOp.WIDEN_FLOAT16, CODES)
    got, _ = await convert_all(b, ConvertOp.WIDEN_FLOAT16, CODES[:0x7C01])
    assert (got == CODES[:0x7C01].astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)).all()


@cocotb.test()
async def test_round_trip(dut):
    """Narrowing what was widened gives the code back (NaN: the canonical one)."""
    b = await Bench.start(dut)
    for wide, narrow, nan in ((ConvertOp.WIDEN_BFLOAT16, ConvertOp.NARROW_BFLOAT16, 0x7FC0),
                              (ConvertOp.WIDEN_FLOAT16, ConvertOp.NARROW_FLOAT16, 0x7E00)):
        up, _ = await convert_all(b, wide, CODES)
        down, _ = await convert_all(b, narrow, up)
        want = np.where((up & 0x7FFFFFFF) > 0x7F800000, nan, CODES)
        assert (down == want).all()


@cocotb.test()
async def test_directed(dut):
    b = await Bench.start(dut)
    for op, cases in DIRECTED.items():
        bits, want = (np.array(c, np.uint32) for c in zip(*cases, strict=True))
        got, _ = await convert_all(b, op, bits)
        text = vectors.mismatch(op.name, got, want, bits)
        assert not text, text


@cocotb.test()
async def test_narrow_random(dut):
    b = await Bench.start(dut)
    for op in (ConvertOp.NARROW_BFLOAT16, ConvertOp.NARROW_FLOAT16):
        await check(b, op, vectors.floats(b.rng, count(b, 100_000)))


@cocotb.test()
async def test_narrow_boundaries(dut):
    """Around every representable value and every midpoint between neighbours: -1, 0, +1 in the last place of binary32."""
    b = await Bench.start(dut)
    step = 1 if b.sim == "verilator" else 61
    around = np.array([-1, 0, 1])
    bf = (CODES[::step, None].astype(np.int64) << 16) + np.concatenate([around, around + 0x8000])
    bits = (bf & 0xFFFFFFFF).astype(np.uint32).ravel()
    await check(b, ConvertOp.NARROW_BFLOAT16, bits)
    h = CODES[:0x7C00:step].astype(np.uint16)
    value = h.view(np.float16).astype(np.float64)
    up = np.append(h[1:], np.uint16(0x7BFF)).view(np.float16).astype(np.float64) if step == 1 else value
    mid = ((value + up) / 2).astype(np.float32).view(np.uint32).astype(np.int64)
    bits = np.concatenate([value.astype(np.float32).view(np.uint32).astype(np.int64), mid])[:, None] + around
    bits = np.maximum(bits, 0).astype(np.uint32).ravel()
    await check(b, ConvertOp.NARROW_FLOAT16, np.concatenate([bits, bits | np.uint32(0x80000000)]))
    b.cover("boundaries")


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall in (0.1, 0.5, 0.9):
        b.stalls(stall)
        for op in ConvertOp:
            await check(b, op, vectors.floats(b.rng, count(b, 2000)) & (0xFFFF if op < 2 else 0xFFFFFFFF))
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    b = await Bench.start(dut)
    cycles = await check(b, ConvertOp.NARROW_FLOAT16, vectors.floats(b.rng, 4096))
    assert cycles <= 4096 + 7, cycles
