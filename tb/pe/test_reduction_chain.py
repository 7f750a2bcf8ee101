"""Three reduction engines in a chain: hop order, bit for bit, under stalls; full rate."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.pe.reduction import ReductionEngine, chain
from spec.params import config
from spec.pe import RE_DRAIN, RE_FILL, Drain
from tb.lib.bench import Bench
from tb.pe.reduction_chain import ENGINES
from tb.pe.reduction_jobs import floats, joined, words

PE = config("tiny").node.pe
EMPTY = np.zeros((0, 5), np.uint8)


async def through(b: Bench, n: int, chunks: int, jobs: int) -> int:
    """Each engine sums `chunks` of its own; the chain adds the engines' sums; cycles."""
    want: list[np.ndarray] = []
    own: list[list[np.ndarray]] = [[] for _ in range(ENGINES)]
    reverse = []
    for _ in range(jobs):
        totals = []
        for k in range(ENGINES):
            engine = ReductionEngine(PE)
            for c in range(chunks):
                values = floats(b.rng, n, PE.rows)
                own[k].append(values)
                engine.accumulate(0, 0, values, first=c == 0)
            totals.append(engine.drain(0, 0, n)[0])
        want.append(chain(np.stack(totals)))
        reverse.append(chain(np.stack(totals[::-1])))
    if any((x != y).any() for x, y in zip(want, reverse, strict=True)):
        b.cover("order matters")
    for k in range(ENGINES):
        fills = [dict(bank=j % PE.banks, count=n, first=c == 0, open=c == 0, close=c == chunks - 1) for j in range(jobs) for c in range(chunks)]
        drains = [dict(bank=j % PE.banks, count=n, to=Drain.NEIGHBOUR, merge=k > 0, free=1) for j in range(jobs)]
        b.source(f"fill{k}").load(words(RE_FILL, fills))
        b.source(f"drain{k}").load(words(RE_DRAIN, drains))
        rows = np.concatenate(own[k])
        b.source(f"sums{k}").load(np.concatenate([np.ascontiguousarray(rows).view(np.uint8), np.zeros((len(rows), 3), np.uint8)], axis=1))
        b.source(f"bias{k}").load(joined([], 4 * PE.rows))
    b.sink("neighbour").expect(n * jobs)
    cycles = await b.run(60 * n * jobs * chunks + 1000, settle=24)
    got = np.ascontiguousarray(b.sink("neighbour").array()[:, : 4 * PE.rows]).view("<u4")
    assert (got == np.concatenate(want)).all()
    return cycles


@cocotb.test()
async def test_hop_order(dut):
    b = await Bench.start(dut)
    for stall in (0.0, 0.3, 0.8):
        b.stalls(stall)
        await through(b, 17, 3, 12)
        for k in range(ENGINES):
            b.source(f"sums{k}").idle = 0.9 if k == 1 else 0.0
        await through(b, 9, 2, 8)


@cocotb.test()
async def test_rate(dut):
    b = await Bench.start(dut)
    cycles = await through(b, 32, 3, 20)
    assert cycles <= 20 * 3 * 32 + 32 + 40, cycles
