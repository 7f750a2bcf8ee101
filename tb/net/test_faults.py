"""Fault injection against its golden twin."""
from __future__ import annotations

import cocotb

from golden.net import faults as golden
from tb.lib.bench import Bench
from tb.net.frames import beats, random_frames, unpack

STATISTICS = ("dropped", "duplicated", "reordered", "corrupted")
KNOBS = ("p_drop", "p_dup", "p_reorder", "p_corrupt")


async def send(b: Bench, frames: list[bytes], expected: list[bytes], deadline: int = 100_000) -> int:
    b.source("i").load(beats(frames))
    b.sink("o").expect(len(beats(expected)))
    cycles = await b.run(deadline, settle=600)
    got = unpack(b.sink("o").array())
    assert [len(f) for f in got] == [len(f) for f in expected]
    assert got == expected
    return cycles


async def faulty(b: Bench, frames: list[bytes], seed: int, **knobs: int) -> golden.Result:
    """One batch under `knobs`, from the seed on; statistics checked as differences."""
    for k in KNOBS:
        b.pin(k).value = 0
    b.pin("seed").value = seed
    await b.wait_cycles(50)
    before = [int(b.pin(s).value) for s in STATISTICS]
    for k, v in knobs.items():
        b.pin(k).value = v
    await b.wait_cycles(2)
    want = golden.inject(frames, seed, **knobs)
    await send(b, frames, want.frames)
    got = [int(b.pin(s).value) - x for s, x in zip(STATISTICS, before, strict=True)]
    assert got == [getattr(want, s) for s in STATISTICS], f"{dict(zip(STATISTICS, got, strict=True))}"
    return want


@cocotb.test()
async def test_pass(dut):
    b = await Bench.start(dut)
    frames = random_frames(b.rng, [1, 64, 65, 4224, *b.rng.integers(1, 500, 40)])
    for stall in (0.0, 0.4):
        b.stalls(stall)
        cycles = await send(b, frames, frames)
        assert stall or cycles <= len(beats(frames)) + 3
    assert all(int(b.pin(s).value) == 0 for s in STATISTICS)


@cocotb.test()
async def test_faults(dut):
    b = await Bench.start(dut)
    for stall in (0.0, 0.3, 0.7):
        b.stalls(stall)
        for name, knobs in (
            ("drop", {"p_drop": 20000}), ("dup", {"p_dup": 20000}), ("reorder", {"p_reorder": 20000}),
            ("corrupt", {"p_corrupt": 30000}), ("all", dict.fromkeys(KNOBS, 12000)),
        ):
            frames = random_frames(b.rng, b.rng.integers(1, 400, 80))
            want = await faulty(b, frames, b.seed32(), **knobs)
            assert want.dropped + want.duplicated + want.reordered + want.corrupted > 5
            b.cover(name)


@cocotb.test()
async def test_sizes(dut):
    b = await Bench.start(dut)
    frames = random_frames(b.rng, [1, 8192, 64, 8193, 63, 128 * 64 + 640, 8128, 2])
    want = await faulty(b, frames, 5, p_corrupt=65535)
    assert want.dropped == 2 and want.corrupted >= 5


@cocotb.test()
async def test_switching(dut):
    b = await Bench.start(dut)
    frames = random_frames(b.rng, b.rng.integers(1, 300, 5))
    want = await faulty(b, frames, 7, p_reorder=65535)  # five frames: two swaps, and the last one is held alone
    assert want.reordered == 2
    b.stalls(0.2)
    for _ in range(3):
        frames = random_frames(b.rng, b.rng.integers(1, 300, 60))
        b.source("i").load(beats(frames))
        b.sink("o").expect(len(beats(frames)), exact=True)
        await b.begin(settle=600)
        for k in range(6):
            await b.wait_cycles(30)
            b.pin("p_dup").value = 0
            b.pin("p_reorder").value = 40000 * (k % 2)
        got = await b.finish(20_000)
        assert got
        assert sorted(unpack(b.sink("o").array())) == sorted(frames)


@cocotb.test()
async def test_rate(dut):
    b = await Bench.start(dut)
    for length, count in ((64, 1000), (4096, 30)):
        b.pin("p_corrupt").value = 1
        frames = random_frames(b.rng, [length] * count)
        for k in KNOBS:
            b.pin(k).value = 0
        b.pin("seed").value = 3
        await b.wait_cycles(20)
        b.pin("p_corrupt").value = 1
        await b.wait_cycles(2)
        want = golden.inject(frames, 3, p_corrupt=1)
        cycles = await send(b, frames, want.frames)
        assert cycles <= len(beats(frames)) + -(-length // 64) + 6, f"{cycles} cycles"
