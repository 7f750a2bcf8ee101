"""Skid buffer: stall matrix and full rate."""
import cocotb

from tb.lib.bench import Bench


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for idle in (0.0, 0.3, 0.8):
        for back in (0.0, 0.3, 0.8):
            words = [int(x) for x in b.rng.integers(0, 1 << 40, 500)]
            b.source("i").load(words)
            b.source("i").idle, b.sink("o").backpressure = idle, back
            b.sink("o").expect(len(words))
            await b.run(deadline=20_000)
            assert b.sink("o").words() == words
            if idle and back:
                b.cover("both-stalled")


@cocotb.test()
async def test_rate(dut):
    b = await Bench.start(dut)
    for n in (1, 2, 1000):
        words = list(range(n))
        b.source("i").load(words)
        b.sink("o").expect(n)
        cycles = await b.run(deadline=5000)
        assert b.sink("o").words() == words
        assert cycles <= n + 4, f"{cycles} cycles for {n} words"
