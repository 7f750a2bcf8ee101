"""Local memory against the golden memory in the order of acceptance: random traffic, one row by all ports, stalls, fairness, rates, latency."""
from __future__ import annotations

import cocotb
import numpy as np

from rtl.pe.local_memory import LATENCY, SLOTS
from tb.lib.bench import Bench
from tb.pe.local_traffic import ROW, Board, joined, random_traffic, reads, traffic, writes

PORTS = 4
RUN = LATENCY + 1  # cycles of a run beyond its requests: from the last one to its answer


async def start(dut) -> Board:
    board = Board(await Bench.start(dut), PORTS)
    await board.fill()
    return board


def amount(b: Bench, n: int) -> int:
    return n if b.sim == "verilator" else max(4, n // 10)


@cocotb.test()
async def test_random(dut):
    """Ports over all rows, over a few, over one each."""
    board = await start(dut)
    b = board.b
    for rows in (board.golden.rows, 16, 5):
        for reading in (0.5, 0.1, 0.9):
            await board.run({p: random_traffic(b.rng, amount(b, 300), rows, reading=reading) for p in range(PORTS)})
        b.cover(f"rows-{rows}")
    share = board.golden.rows // PORTS
    await board.run({p: reads(np.arange(p * share, (p + 1) * share)) for p in range(PORTS)})


@cocotb.test()
async def test_same_row(dut):
    """All ports on one row and its neighbour in the bank: reads see what was accepted before, bytes of several writers meet."""
    board = await start(dut)
    b, banks = board.b, board.pe.local_banks
    for row in (0, 3, board.golden.rows - 1 - banks):
        work = {}
        for p in range(PORTS):
            t = random_traffic(b.rng, amount(b, 200), 2, reading=0.4)
            t.addr = row + banks * (t.addr % 2)
            work[p] = t
        await board.run(work)
        assert board.longest == PORTS - 1, f"all ports on one bank: passed over {board.longest} times at most"
    # One writes, the others look: each sees the row change in the writer's order.
    n = amount(b, 100)
    await board.run({0: writes(b.rng, [7] * n), **{p: reads([7] * n) for p in range(1, PORTS)}})
    b.cover("one-row")


@cocotb.test()
async def test_strobes(dut):
    """Every byte alone, every prefix and suffix, none, on a row of every bank; read back each time."""
    board = await start(dut)
    b = board.b
    k, byte = np.arange(ROW)[:, None], np.arange(ROW)[None]
    strb = np.concatenate([byte == k, byte < k, byte >= k, (byte % 2 == k % 2)])
    if b.sim != "verilator":
        strb = strb[::5]
    addr = np.repeat(np.arange(len(strb)) % (2 * board.pe.local_banks), 2)
    t = traffic(np.tile([True, False], len(strb)), addr, b.rng.integers(0, 256, (len(addr), ROW), dtype=np.uint8), np.repeat(strb, 2, axis=0))
    await board.run({1: t})
    b.cover("strobe-none", int((~strb.any(axis=1)).sum()))
    b.cover("strobe-byte", int((strb.sum(axis=1) == 1).sum()))


@cocotb.test()
async def test_stalls(dut):
    board = await start(dut)
    b = board.b
    for stall in (0.1, 0.5, 0.85):
        b.stalls(stall)
        await board.run({p: random_traffic(b.rng, amount(b, 120), 40) for p in range(PORTS)}, fair=False)
    for p in range(PORTS):
        b.stalls(0)
        b.source(f"p{p}__request").idle = 0.8
        await board.run({p: random_traffic(b.rng, amount(b, 80), 40) for p in range(PORTS)})
        b.stalls(0)
        b.sink(f"p{p}__response").backpressure = 0.9
        await board.run({p: random_traffic(b.rng, amount(b, 80), 40) for p in range(PORTS)}, fair=False)
    b.cover("idle-and-back-pressure")


@cocotb.test()
async def test_blocked_port(dut):
    """A port whose answers are not taken stops after its slots and costs the others no cycle."""
    board = await start(dut)
    b, n = board.b, 400
    rows = np.arange(n) % board.golden.rows
    held = joined(reads(np.zeros(3 * SLOTS, int)), writes(b.rng, [1, 2]))
    b.sink("p0__response").backpressure = 0.9985
    work = {0: held, **{p: joined(reads(rows + p), writes(b.rng, (rows + p)[: n // 4])) for p in range(1, PORTS)}}
    await board.run(work, fair=False, deadline=400_000)
    last = max(int(a[-1]) for a in board.accepted[1:])
    length = n + n // 4
    assert last <= length + SLOTS + PORTS, f"{last} cycles for {length} requests of the other ports"
    early = int((board.accepted[0] <= last).sum())
    assert SLOTS <= early < len(held), f"{early} requests of the blocked port were accepted"
    assert (board.accepted[0][:SLOTS] < 8 * SLOTS).all()
    b.cover("blocked")


@cocotb.test()
async def test_latency(dut):
    board = await start(dut)
    for p in range(PORTS):
        cycles = await board.run({p: reads([5])})
        assert cycles == LATENCY + 2, f"port {p}: {cycles}"
    cycles = await board.run({p: reads([4 + p]) for p in range(PORTS)})
    assert cycles == LATENCY + 2, f"ports in different banks: {cycles}"


@cocotb.test()
async def test_full_rate(dut):
    """One port over all banks; k ports in different banks; k ports that begin in the same bank: a row a cycle each."""
    board = await start(dut)
    b, n = board.b, amount(board.b, 1000)
    order = np.arange(n) % board.golden.rows
    for write in (False, True):
        for k in range(1, PORTS + 1):
            for apart in (True, False):
                work = {}
                for p in range(k):
                    rows = (order + 64 * board.pe.local_banks * p + (p if apart else 0)) % board.golden.rows
                    work[p] = writes(b.rng, rows) if write else reads(rows)
                cycles = await board.run(work)
                bound = n + (2 if write else RUN) + (0 if apart else k - 1)
                assert cycles <= bound, f"{k} ports, {'writes' if write else 'reads'}: {cycles} cycles for {n} rows each, expected {bound} at most"
            b.cover(f"{k}-ports")
    t = reads(order)
    t.write = np.arange(n) % 3 == 1  # reads and writes in turn
    cycles = await board.run({2: t})
    assert cycles <= n + RUN, f"{cycles} cycles for {n} rows, read and written"


@cocotb.test()
async def test_fair(dut):
    """All ports on one bank: an access a cycle in all, shared equally at every moment; the others' banks are free."""
    board = await start(dut)
    b, each, banks = board.b, amount(board.b, 300), board.pe.local_banks
    rows = np.arange(each) * banks % board.golden.rows
    for write in (False, True):
        cycles = await board.run({p: writes(b.rng, rows) if write else reads(rows) for p in range(PORTS)})
        assert cycles <= PORTS * each + RUN, f"{cycles} cycles for {PORTS * each} accesses of one bank"
        for k in range(PORTS, each):
            times = [int(a[k]) for a in board.accepted]
            assert max(times) - min(times) < PORTS, f"unfair: access {k} of the ports in cycles {times}"
    cycles = await board.run({0: reads(rows), 1: reads(rows), 2: reads(rows + 1), 3: writes(b.rng, rows + 2)})
    assert (np.diff(board.accepted[2]) == 1).all() and (np.diff(board.accepted[3]) == 1).all(), "a port alone in its bank waits"
    assert cycles <= 2 * each + RUN
    b.cover("one-bank")
