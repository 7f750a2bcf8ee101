"""DMA engine, long tier: every alignment, every length, many random descriptors, the whole table of utilisation."""
from __future__ import annotations

from itertools import product

import cocotb

from tb.pe.dma_jobs import copy, random_job
from tb.pe.test_dma import L, M, latencies, start, utilise

WAYS = tuple(product((M, L), (M, L)))


@cocotb.test()
async def test_every_offset(dut):
    b, w = await start(dut)
    pairs = 0
    for n in (1, 17, 64, 65, 130):
        for source, target in WAYS:
            jobs = []
            for k, (a, c) in enumerate(product(range(64), range(64))):
                jobs.append(copy((source, 64 * (k % 300) + a), (target, 0x8000 + 256 * (k % 100) + c), n))
            b.stalls(0.2 if n % 2 else 0.0)
            pairs = len(jobs)
            await w.run(jobs)
    b.cover("offsets-4096", int(pairs == 4096))


@cocotb.test()
async def test_every_length(dut):
    b, w = await start(dut)
    lengths = [*range(301), *range(4096 - 66, 4096 + 67), 8191, 8192, 8193, 16383, 16385]
    for stall, (source, target) in product((0.0, 0.5), WAYS):
        b.stalls(stall)
        jobs = [copy((source, int(b.rng.integers(0, 0x3000))), (target, 0x8000 + int(b.rng.integers(0, 0x3000))), n) for n in lengths]
        await w.run(jobs)
        b.cover("lengths", len(jobs))
    for n in (65535, 65536):
        await w.run([copy((M, 65536 - n), (L, 0), n), copy((L, 0), (M, 0x2_0001), n), copy((M, 0x2_0001), (M, 0x8_0030), n)])


@cocotb.test()
async def test_many(dut):
    b, w = await start(dut)
    for k in range(120):
        b.stalls(float(b.rng.choice([0.0, 0.1, 0.4, 0.8])))
        b.sink("completion").backpressure = float(b.rng.choice([0.0, 0.9]))
        latencies(b, int(b.rng.integers(1, 100)), int(b.rng.integers(1, 8)))
        if k % 2:
            low, near = int(b.rng.integers(0x1000, 0x3000)), int(b.rng.integers(0x400, 0x2000))
            w.errors((low, low + int(b.rng.integers(1, 300))), (near, near + int(b.rng.integers(1, 200))))
        else:
            w.errors()
        await w.run([random_job(b.rng, (0x1000, 0x3000), (0x400, 0x2800), index_at=0x8000 + 256 * i, most=int(b.rng.choice([100, 900])))
                     for i in range(60)])
        b.cover("many", 60)


@cocotb.test()
async def test_utilisation_table(dut):
    b, w = await start(dut)
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
    cases = list(product(sizes, (1, 10, 30, 100, 200, 400), (0, 1), (0, 63)))
    rows = await utilise(b, w, cases)
    b.dut._log.info("beats a cycle (bound), memory to memory")
    for n in sizes:
        cells = [f"{latency:3d}: {got:.4f} ({most:.4f})" for size, latency, a, c, got, most in rows if size == n and (a, c) == (1, 63)]
        b.dut._log.info("%5d bytes, offsets 1 to 63, latency %s", n, ", ".join(cells))
    b.cover("table", len(rows))
