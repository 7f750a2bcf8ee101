"""MX decode against the golden model: every code of every element format under every scale, short rows, stalls, full rate."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import mx
from rtl.numeric.mx_decode import MxDecode
from spec.formats import format_of
from spec.mx import ELEMENTS
from tb.lib.bench import Bench
from tb.numeric import mx_rows
from tb.numeric.mx_rows import Config


def count(b: Bench, n: int) -> int:
    return n if b.sim == "verilator" else max(1, n // 20)


async def check(b: Bench, jobs: list[tuple[np.ndarray, np.ndarray, Config]]) -> int:
    sent = np.concatenate([mx_rows.block_words(codes, scales, c) for codes, scales, c in jobs])
    want = np.concatenate([mx_rows.decoded(codes, scales, c) for codes, scales, c in jobs])
    cycles, depth, got = 0, b.ports["blocks"].depth, []
    for at in range(0, len(sent), depth):
        part = sent[at:at + depth]
        b.source("blocks").load(part)
        b.sink("row").expect(len(part))
        cycles += await b.run(deadline=40 * len(part) + 200)
        got.append(b.sink("row").array())
    text = mx_rows.mismatch("row", np.concatenate(got), want, sent)
    assert not text, text
    return cycles


def random_rows(b: Bench, rows: int, n: int, c: Config) -> tuple[np.ndarray, np.ndarray, Config]:
    codes = b.rng.integers(0, format_of(ELEMENTS[c.element]).mask + 1, (rows, n)).astype(np.uint8)
    return codes, b.rng.choice([0, 1, 120, 127, 130, 253, 254, 255], (rows, -(-n // c.block))).astype(np.uint8), c


@cocotb.test()
async def test_every_code_and_scale(dut):
    """Every code under all 256 scales (on the four-state simulator sixteen of them)."""
    b = await Bench.start(dut)
    for e, name in enumerate(ELEMENTS):
        scales = np.arange(256) if b.sim == "verilator" else np.array([0, 1, 2, 8, 14, 20, 100, 127, 128, 200, 239, 245, 250, 253, 254, 255])
        codes = np.arange(format_of(name).mask + 1, dtype=np.uint8)
        rows = np.tile(codes, (len(scales), 1))
        for block in (16, 32):
            await check(b, [(rows, np.repeat(scales[:, None], -(-len(codes) // block), axis=1).astype(np.uint8), Config(e, block))])
    b.cover("all-scales")


@cocotb.test()
async def test_directed(dut):
    """Known answers: a code, its scale, the binary32 pattern."""
    b = await Bench.start(dut)
    cases = (
        ("float8_e4m3fn", 0x7E, 128, 0x44600000), ("float8_e4m3fn", 0x7F, 127, 0x7FC00000),  # 896; NaN
        ("float8_e4m3fn", 0x01, 0, 0x00002000),  # 2^-136
        ("float8_e5m2", 0x01, 0, 0x00000040), ("float8_e5m2", 0xFC, 3, 0xFF800000), ("float8_e5m2", 0x7B, 254, 0x7F800000),  # 2^-143; -Inf; too large
        ("float4_e2m1fn", 0x7, 254, 0x7F800000), ("float4_e2m1fn", 0x5, 254, 0x7F800000),
        ("float4_e2m1fn", 0x2, 254, 0x7F000000), ("float4_e2m1fn", 0x1, 254, 0x7E800000),
        ("float4_e2m1fn", 0x8, 0, 0x80000000), ("float6_e2m3fn", 0x3F, 127, 0xC0F00000), ("float6_e3m2fn", 0x1F, 0xFF, 0x7FC00000),
        ("float6_e3m2fn", 0x04, 3, 0x00800000), ("float6_e3m2fn", 0x03, 3, 0x00600000),
    )
    for name, code, scale, want in cases:
        c = Config(ELEMENTS.index(name), 32)
        b.source("blocks").load(mx_rows.block_words(np.full((1, 16), code, np.uint8), np.full((1, 1), scale, np.uint8), c))
        b.sink("row").expect(1)
        await b.run(deadline=100)
        got = np.ascontiguousarray(b.sink("row").array()[0, :64]).view(np.uint32)
        assert (got == want).all(), (name, hex(code), scale, [hex(g) for g in got])


@cocotb.test()
async def test_short_rows(dut):
    """Rows of 1 to 70 elements: lanes beyond the end are 0, count and last pass through; what the encoder makes comes back as golden has it."""
    b = await Bench.start(dut)
    jobs = [random_rows(b, 1, n, Config(int(b.rng.integers(0, 5)), block)) for n in range(1, 71) for block in (16, 32)]
    for n in (5, 33):
        for e in range(len(ELEMENTS)):
            x = mx_rows.numbers(b.rng, 10, n)
            jobs.append((*mx.encode(x, ELEMENTS[e], 32), Config(e, 32)))
    await check(b, [jobs[i] for i in b.rng.permutation(len(jobs))])


@cocotb.test()
async def test_unknown_elements(dut):
    """One beat for each, no X, no stall."""
    b = await Bench.start(dut)
    words = b.rng.integers(0, 256, (200, 19), dtype=np.uint8)
    words[:, 18] &= 3  # 146 bits
    b.source("blocks").load(words)
    b.sink("row").expect(len(words))
    await b.run(deadline=1000)
    assert len(b.sink("row").array()) == 200


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for idle in (0.0, 0.3, 0.8):
        for backpressure in (0.0, 0.3, 0.8):
            b.source("blocks").idle, b.sink("row").backpressure = idle, backpressure
            await check(b, [random_rows(b, 1, int(n), Config(int(b.rng.integers(0, 5)), 16)) for n in b.rng.integers(1, 100, count(b, 200))])
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    b = await Bench.start(dut)
    for n in (1024, 16):
        cycles = await check(b, [random_rows(b, 32768 // n, n, Config(0, 32))])
        assert 2048 + MxDecode.LATENCY <= cycles <= 2048 + MxDecode.LATENCY + 6, cycles
