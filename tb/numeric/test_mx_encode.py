"""MX encode against the golden model: every setting, every rounding boundary of every element, every exponent, short rows, stalls, full rate."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import convert
from rtl.numeric.mx_encode import MxEncode
from spec.formats import format_of
from spec.mx import ELEMENTS, ScaleRule
from tb.lib.bench import Bench
from tb.numeric import mx_rows
from tb.numeric.mx_rows import ALL, Config


def f32(*x: float) -> np.ndarray:
    return np.array([x], np.float32).view(np.uint32)


def count(b: Bench, n: int) -> int:
    return n if b.sim == "verilator" else max(1, n // 20)


async def check(b: Bench, jobs: list[tuple[np.ndarray, Config]], junk: bool = True) -> int:
    """Rows of every job through the block, one after the other; returns cycles."""
    sent = np.concatenate([mx_rows.encoder_words(x, c, b.rng if junk else None) for x, c in jobs])
    want = np.concatenate([mx_rows.encoded(x, c) for x, c in jobs])
    cycles, depth, got = 0, b.ports["row"].depth, []
    cut = [0]
    last = np.flatnonzero(sent[:, 64] & 0x20) + 1  # a run ends with a row
    while cut[-1] < len(sent):
        cut.append(int(last[last <= cut[-1] + depth].max()))
    for a, z in zip(cut[:-1], cut[1:], strict=True):
        b.source("row").load(sent[a:z])
        b.sink("blocks").expect(z - a)
        cycles += await b.run(deadline=40 * (z - a) + 400)
        got.append(b.sink("blocks").array())
    text = mx_rows.mismatch("blocks", np.concatenate(got), want, sent)
    assert not text, text
    return cycles


@cocotb.test()
async def test_every_setting(dut):
    """Random rows for every element format, block, rule and mode, settings changing from row to row."""
    b = await Bench.start(dut)
    jobs = [(mx_rows.numbers(b.rng, count(b, 120), n), c) for c in ALL for n in (32, 55)]
    await check(b, [jobs[i] for i in b.rng.permutation(len(jobs))])


@cocotb.test()
async def test_element_boundaries(dut):
    """Under a scale of 2^0 set by the first number: -1, 0, +1 in the last place around every value and midpoint of every element format."""
    b = await Bench.start(dut)
    for e, name in enumerate(ELEMENTS):
        f = format_of(name)
        codes = np.arange(f.max_code + 1)
        low = convert.widen(codes.astype(np.uint8), name).view(np.float32).astype(np.float64)
        step = 2.0 ** (np.maximum(codes >> f.frac_bits, 1) - f.bias - f.frac_bits)
        top = 2.0 ** (f.max_exponent + 1)
        at = np.concatenate([low, low + step / 2, [f.min_subnormal * 2.0**-30]]).astype(np.float32).view(np.uint32).astype(np.int64)
        at = np.unique(np.maximum((at[:, None] + np.array([-1, 0, 1])).ravel(), 0)).astype(np.uint32)
        at = at[at.view(np.float32) < top]
        bits = b.rng.permutation(np.concatenate([at, at | np.uint32(0x80000000)]))
        bits = np.resize(bits, -(-len(bits) // 31) * 31).reshape(-1, 31)
        first = np.full((len(bits), 1), np.float32(top / 2).view(np.uint32), np.uint32)
        for block in (16, 32):
            x = np.concatenate([first, bits[:, :15], first, bits[:, 15:30]], axis=1) if block == 16 else np.concatenate([first, bits], axis=1)
            for sat in (0, 1):
                await check(b, [(x, Config(e, block, ScaleRule.FLOOR, sat))])
    b.cover("boundaries")


@cocotb.test()
async def test_every_exponent(dut):
    """The scale of every exponent of amax, of exact powers, their neighbours and ties, for every rule and format."""
    b = await Bench.start(dut)
    powers = np.concatenate([1 << np.arange(23), np.arange(1, 255) << 23])
    ties = powers + powers // 2 * (powers < 1 << 23) + (powers >= 1 << 23) * (1 << 22)
    amax = np.unique(np.concatenate([powers - 1, powers, powers + 1, ties - 1, ties, ties + 1])).astype(np.uint32)
    for e in range(len(ELEMENTS)):
        for rule in ScaleRule:
            here = amax if b.sim == "verilator" else b.rng.choice(amax, 60)
            x = np.stack([here, here // 2, here // 3 | 0x80000000, np.zeros_like(here)], axis=1).astype(np.uint32)
            await check(b, [(x, Config(e, 16, rule, 1))])
    b.cover("subnormal-amax")


@cocotb.test()
async def test_directed(dut):
    """957; amax of 1.125, 1.25, 5, 1.5, 3 by every rule; zeros; tiny numbers; NaN; Inf alone and beside numbers."""
    b = await Bench.start(dut)
    e4m3, e2m1 = ELEMENTS.index("float8_e4m3fn"), ELEMENTS.index("float4_e2m1fn")
    b.source("row").load(mx_rows.encoder_words(f32(957.0, -1.0), Config(e4m3, 32)))
    b.sink("blocks").expect(1)
    await b.run(deadline=100)
    word = b.sink("blocks").array()[0]
    assert word[:3].tolist() == [0x7E, 0xB0, 0] and word[16] == 128, word  # 2^1; 478.5 clips to 448
    for amax, by_rule in ((1.125, (1, 2, 1)), (1.25, (1, 2, 1)), (5.0, (4, 8, 4)), (1.5, (1, 2, 2)), (3.0, (2, 4, 2))):
        for rule, power in enumerate(by_rule):
            b.source("row").load(mx_rows.encoder_words(f32(amax), Config(e4m3, 16, rule)))
            b.sink("blocks").expect(1)
            await b.run(deadline=100)
            assert 2.0 ** (int(b.sink("blocks").array()[0, 16]) - 127 + 8) == power
    special = np.array([[0x3F800000, 0x7F800000, 0xFF800000, 0xFFC00001]], np.uint32)
    jobs = []
    for c in ALL:
        rows = [f32(0.0, -0.0), f32(1e-38, -1e-38), np.array([[1, 0x80000002]], np.uint32), special, special[:, 1:], special[:, 1:3]]
        jobs += [(x, c) for x in rows]
    await check(b, jobs)
    nan = np.zeros((1, 40), np.uint32)
    nan[0, 20] = 0x7F800001  # in the second beat of the first block
    b.source("row").load(mx_rows.encoder_words(nan, Config(e2m1, 32)))
    b.sink("blocks").expect(3)
    await b.run(deadline=100)
    assert b.sink("blocks").array()[:, 16].tolist() == [0xFF, 0xFF, 0]
    b.cover("nan-block")


@cocotb.test()
async def test_short_rows(dut):
    """Rows of 1 to 70 numbers, both block sizes, mixed; numbers beyond `count` do not matter; a beat that waits for its block goes on when the rest
    comes."""
    b = await Bench.start(dut)
    jobs = [(mx_rows.numbers(b.rng, 1, n), Config(int(b.rng.integers(0, 5)), block)) for n in range(1, 71) for block in (16, 32)]
    await check(b, [jobs[i] for i in b.rng.permutation(len(jobs))])
    x = mx_rows.numbers(b.rng, 1, 30)
    words = mx_rows.encoder_words(x, Config(0, 32))
    b.source("row").load(words[:1])
    b.sink("blocks").expect(0)
    await b.run(deadline=200, settle=50)  # the first half waits
    b.source("row").load(words[1:])
    b.sink("blocks").expect(2)
    await b.run(deadline=200)
    assert (b.sink("blocks").array() == mx_rows.encoded(x, Config(0, 32))).all()
    b.cover("half-block-waits")


@cocotb.test()
async def test_any_bits(dut):
    b = await Bench.start(dut)
    jobs = []
    for c in ALL:
        jobs.append((b.rng.integers(0, 1 << 32, (count(b, 40), 48), dtype=np.uint32), c))
    await check(b, jobs)


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for idle in (0.0, 0.3, 0.8):
        for backpressure in (0.0, 0.3, 0.8):
            b.source("row").idle, b.sink("blocks").backpressure = idle, backpressure
            jobs = [(mx_rows.numbers(b.rng, 1, int(n)), ALL[int(b.rng.integers(0, len(ALL)))]) for n in b.rng.integers(1, 100, count(b, 200))]
            await check(b, jobs)
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    """A beat every cycle, blocks of 16 and of 32; short rows between."""
    b = await Bench.start(dut)
    for block in (16, 32):
        for n in (1024, 16, 48):
            x = mx_rows.numbers(b.rng, 2048 // (n // 16), n)
            beats = x.size // 16
            cycles = await check(b, [(x, Config(1, block))])
            assert beats + MxEncode.LATENCY <= cycles <= beats + MxEncode.LATENCY + 7, (block, n, cycles)
