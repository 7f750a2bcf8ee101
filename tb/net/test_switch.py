"""Switch: routing, order, rates, fairness, isolation."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.net import switch as golden
from spec.packet import MAC_BASE
from tb.lib.bench import Bench
from tb.net.frames import beats, unpack


def frame(rng: np.random.Generator, to: int, length: int, source: int, serial: int) -> bytes:
    """Frame to node `to` (its MAC), marked with its source and number."""
    head = (MAC_BASE + to).to_bytes(6, "big") + bytes([source]) + serial.to_bytes(3, "big")
    return head + rng.integers(0, 256, max(0, length - len(head)), dtype=np.uint8).tobytes()


async def run(b: Bench, inputs: list[list[bytes]], deadline: int = 60_000) -> int:
    """Send, and check against the golden flows. Returns cycles."""
    n = len(inputs)
    flows, dropped = golden.route(inputs)
    before = int(b.pin("dropped").value)
    for p in range(n):
        b.source(f"i{p}").load(beats(inputs[p]))
        b.sink(f"o{p}").expect(sum(len(beats(f)) for f in flows[p]))
    cycles = await b.run(deadline)
    for q in range(n):
        got = unpack(b.sink(f"o{q}").array())
        for p in range(n):
            assert [f for f in got if f[6] == p] == flows[q][p], f"frames from {p} to {q}"
        assert len(got) == sum(map(len, flows[q]))
    assert int(b.pin("dropped").value) - before == dropped
    return cycles


@cocotb.test()
async def test_random(dut):
    b = await Bench.start(dut)
    n = b.config.switch.ports
    for stall in (0.0, 0.3, 0.7):
        b.stalls(stall)
        if stall:
            b.cover("idle-and-back-pressure")
        inputs = []
        for p in range(n):
            frames = []
            for k in range(60):
                to = int(b.rng.integers(n))
                if b.rng.random() < 0.15:  # unknown: next to the range, far away, and the low byte alone right
                    to = int(b.rng.choice([-1, n, n + 1, 255, 256, 1 << 24, 1 << 40]))
                    b.cover("dropped")
                if to == p:
                    b.cover("own-port")
                frames.append(frame(b.rng, to, int(b.rng.choice([10, 64, 65, int(b.rng.integers(10, 900))])), p, k))
            inputs.append(frames)
        await run(b, inputs)


@cocotb.test()
async def test_rate(dut):
    b = await Bench.start(dut)
    n = b.config.switch.ports
    cycles = await run(b, [[frame(b.rng, 1, 64, 0, 0)], *[[] for _ in range(n - 1)]])
    assert cycles == 2 + 2, f"latency: {cycles - 2}"
    b.cover("latency")
    for name, length, count in (("single-beat", 64, 1000), ("mtu", 4154, 20)):
        for shift in range(n):
            inputs = [[frame(b.rng, (p + shift) % n, length, p, k) for k in range(count)] for p in range(n)]
            cycles = await run(b, inputs)
            words = len(beats(inputs[0]))
            assert cycles <= words + 4, f"{name}, shift {shift}: {cycles} cycles for {words} beats"
        b.cover(name)


@cocotb.test()
async def test_fair(dut):
    b = await Bench.start(dut)
    n, count = b.config.switch.ports, 40
    inputs = [[frame(b.rng, 0, 256, p, k) for k in range(count)] for p in range(n)]
    cycles = await run(b, inputs)
    assert cycles <= n * count * 4 + 4
    got = unpack(b.sink("o0").array())
    for k in range(0, (count - 1) * n, n):  # every input once in every n frames, after the first turn
        assert sorted(f[6] for f in got[k : k + n]) == list(range(n)), f"frames {k}..{k + n - 1}: {[f[6] for f in got[k:k + n]]}"


@cocotb.test()
async def test_isolation(dut):
    b = await Bench.start(dut)
    n, depth = b.config.switch.ports, b.config.switch.buffer_flits
    # o0 hardly moves; input 1 sends it more than its queue holds; inputs 2 and 3 cross at full rate all the while.
    blocked = [frame(b.rng, 0, 640, 1, k) for k in range(depth // 10 + 20)]
    cross = [[frame(b.rng, 5 - p, 640, p, k) for k in range(100)] for p in (2, 3)]
    b.sink("o0").backpressure = 0.99
    for p, frames in ((0, []), (1, blocked), (2, cross[0]), (3, cross[1])):
        b.source(f"i{p}").load(beats(frames))
    b.sink("o0").expect(len(beats(blocked)))
    for p in range(1, n):
        b.sink(f"o{p}").expect(1000 if p in (2, 3) else 0)
    await b.begin()
    await b.wait_cycles(1010)
    assert b.sink("o2").got == b.sink("o3").got == 1000, "crossing traffic was held up"
    sent = b.source("i1").sent
    assert depth <= sent - b.sink("o0").got <= depth + 5, "the queue of the blocked output and the input's slots, no more"
    await b.finish(200_000)
    assert unpack(b.sink("o0").array()) == blocked
    assert [unpack(b.sink(f"o{p}").array()) for p in (3, 2)] == cross
