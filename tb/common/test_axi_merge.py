"""Three managers on one port: every answer against a byte mirror, rates, fairness."""
from __future__ import annotations

import cocotb
import numpy as np

from tb.common.bursts import Burst, Port, apply, check, linear, load
from tb.lib.bench import Bench

MANAGERS = 3
REGION = 1 << 18  # a manager's own bytes
IDS = 4  # own ids: 4 bits, two of which say the manager


def own(x: Burst) -> Burst:
    x.id %= IDS
    return x


async def run(b: Bench, works: list[Port], mirror: np.ndarray, deadline: int = 60_000) -> int:
    for k, work in enumerate(works):
        load(b, f"m{k}", work)
    cycles = await b.run(deadline)
    for k, work in enumerate(works):
        check(b, f"m{k}", work, mirror)
        for x in work.writes:
            apply(mirror, x)
    memory = b.memory("axi").image
    assert (memory == mirror).all(), f"{np.flatnonzero(memory != mirror)[:4]} of memory"
    return cycles


async def fresh(dut) -> tuple[Bench, np.ndarray]:
    b = await Bench.start(dut)
    mirror = b.rng.integers(0, 256, 1 << 20, dtype=np.uint8)
    b.memory("axi").write(0, mirror)
    return b, mirror.copy()


def bursts(b: Bench, manager: int, count: int, most: int, *, write: bool) -> list[Burst]:
    """Writes in the first half of the manager's region, reads in the second."""
    first = manager * REGION + (0 if write else REGION // 2)
    return [own(x) for x in linear(b.rng, first + 64 * int(b.rng.integers(0, 64)), count, most, write=write)]


@cocotb.test()
async def test_random(dut):
    b, mirror = await fresh(dut)
    for latency, stall in ((1, 0.0), (40, 0.0), (3, 0.5), (10, 0.9)):
        b.memory("axi").latency = latency
        b.stalls(stall)
        for _ in range(2):
            works = [Port(*(bursts(b, k, int(b.rng.integers(1, 150)), 16, write=w) for w in (True, False))) for k in range(MANAGERS)]
            await run(b, works, mirror)
        b.cover("stalls", int(stall > 0))
    b.cover("write")
    b.cover("read")


@cocotb.test()
async def test_rate(dut):
    b, mirror = await fresh(dut)
    for write in (True, False):
        for most in (1, 16):
            works = [Port() for _ in range(MANAGERS)]
            for k in range(MANAGERS):
                (works[k].writes if write else works[k].reads).extend(bursts(b, k, 300, most, write=write))
            cycles = await run(b, works, mirror)
            dut._log.info("%s, bursts of up to %d: 900 beats in %d cycles", "writes" if write else "reads", most, cycles)
            assert cycles <= 900 + 12


@cocotb.test()
async def test_fair(dut):
    """One beat of two managers beside a third that asks for hundreds: answered at once."""
    b, mirror = await fresh(dut)
    works = [Port(reads=bursts(b, 0, 800, 8, write=False)), Port(reads=bursts(b, 1, 1, 1, write=False)), Port(reads=bursts(b, 2, 1, 1, write=False))]
    for k, work in enumerate(works):
        load(b, f"m{k}", work)
    await b.begin()
    await b.wait_cycles(30)
    assert [b.sink(f"m{k}__r").got for k in (1, 2)] == [1, 1]
    await b.finish(4000)
    for k, work in enumerate(works):
        check(b, f"m{k}", work, mirror)
