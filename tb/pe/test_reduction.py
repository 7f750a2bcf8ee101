"""Reduction engine against the golden model: accumulation, bias, merge, minima and maxima, banks, order, stalls, full rate, latency."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import fp32
from rtl.pe.reduction import ROW_LATENCY
from spec.params import config
from spec.pe import RE_DRAIN, Drain, Fill
from tb.lib.bench import Bench
from tb.pe.reduction_jobs import Program, floats, run, words

PE = config("tiny").node.pe
ONE, NAN = 0x3F800000, 0x7FC00000


def amount(b: Bench, n: int) -> int:
    return n if b.sim == "verilator" else max(2, n // 10)


def random_program(b: Bench, jobs: int, *, integer: bool = False, rows: int = PE.depth) -> Program:
    """Jobs on banks in turn: bias or a first chunk, more chunks, drained with or without merge, to any outlet, in one piece or two."""
    rng, p = b.rng, Program(PE)
    bank = int(rng.integers(PE.banks))
    for _ in range(jobs):
        bank = (bank + 1) % PE.banks
        n, base, chunks = int(rng.integers(1, rows + 1)), int(rng.integers(PE.depth)), int(rng.integers(1, 5))
        name = bank + PE.banks * int(rng.integers(16 // PE.banks))  # the same bank under another number

        def values(n: int = n) -> np.ndarray:
            return rng.integers(0, 1 << 32, (n, PE.rows), dtype=np.uint32) if integer else floats(rng, n, PE.rows)

        loaded = bool(rng.integers(2))
        if loaded:
            p.fill(rng, name, base, values(), op=Fill.LOAD, opens=True)
        for k in range(chunks):
            last = k == chunks - 1
            bad = int(rng.integers(n)) if rng.random() < 0.1 else -1
            p.fill(rng, name, base, values(), first=not loaded and k == 0, opens=not loaded and k == 0, close=last, integer=integer, bad=bad)
        cut = int(rng.integers(0, n + 1)) if rng.random() < 0.4 else n
        for start, count in ((0, cut), (cut, n - cut)):
            if count or start == 0:
                to, merge = int(rng.integers(4)), bool(rng.integers(2))
                b.cover("nowhere") if to == Drain.NOWHERE else None
                if merge and count:
                    b.cover("merge")
                p.drain(name, (base + start) % PE.depth, count, to, free=start + count == n, integer=integer,
                        partials=values(count) if merge else None)
        if cut < n and cut == 0:
            b.cover("empty drain")
    return p


@cocotb.test()
async def test_random(dut):
    b = await Bench.start(dut)
    for integer in (False, True):
        for _ in range(amount(b, 10)):
            await run(b, random_program(b, amount(b, 40), integer=integer))


@cocotb.test()
async def test_directed(dut):
    """Order of addition, first row, bias, NaN, signed zero, bits that only move, wrap of int32."""
    b = await Bench.start(dut)

    def fill(*bits: int) -> np.ndarray:
        return np.array([bits], np.uint32)

    f = [int(fp32.as_bits(np.float32(x).view(np.uint32))) for x in (1e8, 1.0, -1e8, 256.0, 264.0, 0.0, -0.0, np.inf, -np.inf)]
    big, one, minus_big, c256, c264, zero, minus_zero, inf, minus_inf = f
    cases = [
        ([big, one, minus_big, one], one), ([c256] + [one] * 8, c264), ([minus_zero], minus_zero), ([minus_zero, zero], zero),
        ([minus_zero, minus_zero], minus_zero), ([inf, minus_inf, one], NAN), ([one, NAN], NAN), ([0x7F7FFFFF, 0x7F7FFFFF], inf), ([1, 1], 2),
    ]
    p = Program(PE)
    for values, _ in cases:
        for k, v in enumerate(values):
            p.fill(b.rng, 0, 3, fill(*[v] * PE.rows), first=k == 0, opens=k == 0, close=k == len(values) - 1)
        p.drain(0, 3, 1, Drain.MEMORY, free=True)
    await run(b, p)
    got = np.ascontiguousarray(b.sink("memory").array()[:, :4]).view("<u4").ravel()
    assert list(got) == [w for _, w in cases], [hex(x) for x in got]
    # A loaded row drained at once keeps its bits, a signalling NaN too; added to, it becomes canonical. int32 wraps.
    p = Program(PE)
    p.fill(b.rng, 1, 0, fill(*[0xFF800001] * PE.rows), op=Fill.LOAD, opens=True, close=True)
    p.drain(1, 0, 1, Drain.SFU)
    p.drain(1, 0, 1, Drain.SFU, free=True, partials=fill(*[ONE] * PE.rows))
    p.fill(b.rng, 0, 0, fill(*[0x7FFFFFFF] * PE.rows), first=True, opens=True, integer=True)
    p.fill(b.rng, 0, 0, fill(*[1] * PE.rows), close=True, integer=True)
    p.drain(0, 0, 1, Drain.SFU, free=True, integer=True)
    await run(b, p)
    got = np.ascontiguousarray(b.sink("sfu").array()[:, :4]).view("<u4").ravel()
    assert list(got) == [0xFF800001, NAN, 0x80000000], [hex(x) for x in got]
    # Minimum and maximum: NaN counts, -0 is below +0, int32 is signed.
    p = Program(PE)
    rows = np.array([[zero, minus_zero, zero, minus_zero], [minus_inf, one, inf, 1], [one, NAN, minus_inf, 0], [5, 0xFFFFFFFF, 0x80000000, 7]], np.uint32)
    p.fill(b.rng, 0, 0, rows, first=True, opens=True, close=True)
    p.drain(0, 0, 3, Drain.MEMORY)
    p.drain(0, 3, 1, Drain.MEMORY, integer=True, free=True)
    await run(b, p)
    got = np.ascontiguousarray(b.sink("memory").array()[:, 16:24]).view("<u4")
    assert [list(x) for x in got] == [[minus_zero, zero], [minus_inf, inf], [NAN, NAN], [0x80000000, 7]]


@cocotb.test()
async def test_short_jobs(dut):
    """Jobs of one to five rows: an accumulator row is added to again before its sum is in the bank."""
    b = await Bench.start(dut)
    for n in (1, 2, 3, 4, 5):
        p = Program(PE)
        for k in range(amount(b, 40)):
            bank = k % PE.banks
            for c in range(5):
                p.fill(b.rng, bank, 1, floats(b.rng, n, PE.rows), first=c == 0, opens=c == 0, close=c == 4)
            p.drain(bank, 1, n, Drain.MEMORY, free=True)
        cycles = await run(b, p)
        if n >= ROW_LATENCY:
            assert cycles <= len(p.fills) * n + 30, f"{n} rows: {cycles} cycles"
    b.cover("short")


@cocotb.test()
async def test_one_bank(dut):
    """Sum after sum in one bank: the next begins when the last row of the one before is read, whether or not that row has left."""
    b = await Bench.start(dut)
    for backpressure in (0.0, 0.5, 0.9):
        b.sink("memory").backpressure = backpressure
        for n in (1, 2, 5):
            p = Program(PE)
            for _ in range(12):
                for c in range(3):
                    p.fill(b.rng, 0, 0, floats(b.rng, n, PE.rows), first=c == 0, opens=c == 0, close=c == 2)
                p.drain(0, 0, n, Drain.MEMORY, free=True)
            await run(b, p)
    b.sink("memory").backpressure = 0.0


@cocotb.test()
async def test_empty(dut):
    """Commands of no rows open, close and free; a bank filled beyond its depth wraps."""
    b = await Bench.start(dut)
    p = Program(PE)
    for k in range(6):
        bank = k % PE.banks
        p.fill(b.rng, bank, 0, floats(b.rng, 3, PE.rows), first=True, opens=True)
        p.fill(b.rng, bank, 0, floats(b.rng, 0, PE.rows), close=True)
        p.drain(bank, 0, 3, Drain.NEIGHBOUR)
        p.drain(bank, 0, 0, Drain.NEIGHBOUR, free=True)
        p.fill(b.rng, bank, 0, floats(b.rng, 0, PE.rows), opens=True, close=True)
        p.drain(bank, 0, 0, Drain.NOWHERE, free=True)
    n = PE.depth + 5
    p.fill(b.rng, 0, 7, floats(b.rng, n, PE.rows), opens=True, first=True)
    p.fill(b.rng, 0, 7, floats(b.rng, n, PE.rows), close=True)
    p.drain(0, 0, n, Drain.MEMORY, free=True)
    await run(b, p)
    b.cover("wrap")


@cocotb.test()
async def test_waits(dut):
    """A drain waits for the closing fill, a fill for the drain that frees; `closed` says so."""
    b = await Bench.start(dut)

    def closing(bank: int, n: int) -> Program:
        p = Program(PE)
        p.fill(b.rng, bank, 0, floats(b.rng, n, PE.rows), first=True, opens=True, close=True)
        return p

    await run(b, closing(0, 4))
    assert int(b.pin("closed").value) == 1
    second = closing(0, 4)  # the command is taken, its rows are not
    rows, second.sums = second.sums, []
    await run(b, second)
    free = Program(PE)
    free.drain(0, 0, 0, Drain.NOWHERE, free=True)
    b.source("sums").load(rows[0])
    b.source("drain").load(words(RE_DRAIN, free.drains))
    b.source("drain").idle = 0.9999
    await b.begin()
    await b.wait_cycles(200)
    assert b.source("sums").sent == 0 and int(b.pin("closed").value) == 1
    b.pin("drain__idle").value = 0
    await b.finish(2000)
    b.source("drain").idle = 0.0
    assert b.source("sums").sent == 4 and int(b.pin("closed").value) == 1
    p = Program(PE)
    p.drain(1, 0, 1, Drain.MEMORY, free=True)  # bank 1 was never closed
    await run(b, p, expected=False)
    assert b.sink("memory").got == 0
    p = closing(1, 1)
    p.drain(1, 0, 1, Drain.MEMORY)
    p.drains = []  # the command that waits gives the row
    await run(b, p)
    assert int(b.pin("closed").value) == 1
    b.cover("waits")


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall in (0.1, 0.5, 0.85):
        b.stalls(stall)
        await run(b, random_program(b, amount(b, 30), rows=20))
    for name in ("fill", "drain", "sums", "bias", "partial"):
        b.stalls(0)
        b.source(name).idle = 0.8
        await run(b, random_program(b, amount(b, 20), rows=12))
    for name in ("memory", "sfu", "neighbour"):
        b.stalls(0)
        b.sink(name).backpressure = 0.9
        await run(b, random_program(b, amount(b, 20), rows=12))
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    """Chunks into one bank while the other is drained with merge: a row a cycle in, over every command."""
    b = await Bench.start(dut)
    p, n, chunks, jobs = Program(PE), 32, 4, 24
    for k in range(jobs):
        for c in range(chunks):
            p.fill(b.rng, k % PE.banks, 0, floats(b.rng, n, PE.rows), first=c == 0, opens=c == 0, close=c == chunks - 1)
        p.drain(k % PE.banks, 0, n, Drain.MEMORY, free=True, partials=floats(b.rng, n, PE.rows))
    cycles = await run(b, p)
    rows = jobs * chunks * n
    dut._log.info("%d rows in %d cycles, %.4f of the bound", rows, cycles, rows / cycles)
    assert cycles <= rows + n + 20, f"{cycles} cycles for {rows} rows"
    p = Program(PE)  # and out: the bank drained over and over
    p.fill(b.rng, 0, 0, floats(b.rng, 64, PE.rows), first=True, opens=True, close=True)
    for _ in range(32):
        p.drain(0, 0, 64, Drain.SFU, partials=floats(b.rng, 64, PE.rows))
    p.drain(0, 0, 0, Drain.NOWHERE, free=True)
    cycles = await run(b, p)
    assert cycles <= 33 * 64 + 20, f"{cycles} cycles for {32 * 64} rows out"
