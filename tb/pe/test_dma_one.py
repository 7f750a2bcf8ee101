"""DMA engine with one burst in flight: nothing hangs, bits are the same, and the rate is what one burst allows."""
from __future__ import annotations

import cocotb

from tb.pe.dma_jobs import JOBS, copy, load, random_job
from tb.pe.test_dma import M, bound, latencies, start


@cocotb.test()
async def test_jobs_one(dut):
    b, w = await start(dut)
    for path in sorted(JOBS.glob("*.toml")):
        file = load(path, b.rng)
        w.errors(file.memory_error, file.local_error)
        for stall in (0.0, 0.5):
            b.stalls(stall)
            await w.run(load(path, b.rng).jobs)
    b.cover("jobs")


@cocotb.test()
async def test_random_one(dut):
    b, w = await start(dut)
    for k in range(12):
        b.stalls((0.0, 0.3, 0.7)[k % 3])
        latencies(b, (1, 20)[k % 2], (1, 5)[k % 2])
        low = int(b.rng.integers(0x1000, 0x4000))
        w.errors((low, low + 100) if k % 4 == 3 else (0, 0))
        await w.run([random_job(b.rng, (0x1000, 0x3000), (0x400, 0x3000), index_at=0x8000 + 256 * i) for i in range(30)])
    b.cover("random")


@cocotb.test()
async def test_utilisation_one(dut):
    b, w = await start(dut)
    for n in (64, 1024, 4096):
        for latency in (1, 50):
            latencies(b, latency)
            beats, most = bound(n, latency, 0, 0, 1, M, M)
            jobs = [copy((M, 4096 * k), (M, 0x8_0000 + 4096 * k), n) for k in range(60)]
            short = await w.run(jobs[:20])
            got = 40 * beats / (await w.run(jobs) - short)
            assert 0.99 * most <= got <= most + 0.001, f"{n} bytes, latency {latency}: {got:.4f} beats a cycle, bound {most:.4f}"
    b.cover("rate")
