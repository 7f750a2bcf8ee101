"""The full-size dot-product engine, 32 rows: a million dot products of every format, with and without MX scales; full rate."""
from __future__ import annotations

import time

import cocotb

from rtl.pe.dot_product import LATENCY
from spec.params import config
from spec.pe import DotFormat as F
from spec.pe import Mx
from tb.lib.bench import Bench
from tb.pe.dot_jobs import SCALED, random_tile, run

ROWS = config("mtia300").node.pe.rows
COUNT = 1_000_000


async def many(b: Bench, fmt: F, mx: int = Mx.NONE) -> None:
    """Tiles of 32 rows and 64 to 320 streamed rows until COUNT dot products are done."""
    name = f"{fmt.name.lower()}{('', ' MX 16', ' MX 32')[mx]}"
    done, start, cycles = 0, time.perf_counter(), 0
    while done < COUNT:
        tiles = [random_tile(b.rng, fmt, fmt, ROWS, int(b.rng.integers(64, 321)), mx, mx) for _ in range(20)]
        values, n = await run(b, tiles, ROWS)
        b.cover(name, values.size)
        done, cycles = done + values.size, cycles + n
    b.dut._log.info("%s: %d dot products equal, %d cycles, %.0f a second", name, done, cycles, done / (time.perf_counter() - start))


@cocotb.test()
async def test_million(dut):
    b = await Bench.start(dut)
    for f in F:
        await many(b, f)


@cocotb.test()
async def test_million_mx(dut):
    b = await Bench.start(dut)
    for f in SCALED:
        for mx in (Mx.BLOCK_16, Mx.BLOCK_32):
            await many(b, f, mx)


@cocotb.test()
async def test_rate(dut):
    b = await Bench.start(dut)
    tiles = [random_tile(b.rng, f, f, ROWS, n) for n in (ROWS, 64, 200) for f in F]
    n = sum(len(t.streamed.codes) for t in tiles)
    _, cycles = await run(b, tiles, ROWS)
    assert cycles <= n + ROWS + LATENCY + 7, f"{cycles} cycles for {n} rows"
