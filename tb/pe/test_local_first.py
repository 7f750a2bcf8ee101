"""Local memory with a port that goes first: order and answers as ever, that port hardly waits, and no other waits for ever."""
from __future__ import annotations

import cocotb
import numpy as np

from rtl.pe.local_memory import LATENCY, PATIENCE
from tb.lib.bench import Bench
from tb.pe.local_traffic import Board, random_traffic, reads, writes

PORTS, FIRST = 4, 1


async def start(dut) -> Board:
    board = Board(await Bench.start(dut), PORTS, FIRST, PATIENCE)
    await board.fill()
    return board


@cocotb.test()
async def test_random(dut):
    board = await start(dut)
    for rows in (board.golden.rows, 16, 5):
        for reading in (0.5, 0.1, 0.9):
            await board.run({p: random_traffic(board.b.rng, 300, rows, reading=reading) for p in range(PORTS)})
    board.b.stalls(0.5)
    await board.run({p: random_traffic(board.b.rng, 120, 40) for p in range(PORTS)}, fair=False)
    board.b.cover("stalls")


@cocotb.test()
async def test_first(dut):
    """Over all banks beside three others that do the same, and that come across it: not a cycle is lost."""
    board = await start(dut)
    n, rows = 900, board.golden.rows
    order = np.arange(n) % rows
    for others in ((order, order, order), (order * 3 % rows, (order * 5 + 1) % rows, order[::-1])):
        work = {p: writes(board.b.rng, x) for p, x in zip((0, 2, 3), others, strict=True)}
        await board.run({**work, FIRST: reads(order)})
        waited = int(board.accepted[FIRST][-1] - board.accepted[FIRST][0]) - (n - 1)
        assert waited == 0, f"the first port waited {waited} cycles"


@cocotb.test()
async def test_patience(dut):
    """All ports on one bank: the others get an access for every `PATIENCE` of the first one, in turn; then the bank is theirs."""
    board = await start(dut)
    banks, each = board.pe.local_banks, 480
    rows = np.arange(each) * banks % board.golden.rows
    cycles = await board.run({p: reads(rows) if p == FIRST else writes(board.b.rng, rows[: each // 4]) for p in range(PORTS)})
    assert cycles <= each + 3 * (each // 4) + LATENCY + 1, f"{cycles} cycles"
    taken = int(board.accepted[FIRST][-1])
    assert taken <= each + each // PATIENCE + 1, f"the first port took {taken} cycles for {each} rows"
    for p in (0, 2, 3):
        early = int((board.accepted[p] < taken).sum())
        assert early >= each // PATIENCE // 3 - 1, f"port {p} was let in {early} times"
    assert board.longest == board.most[0], f"passed over {board.longest} times at most, expected {board.most[0]}"
    board.b.cover("patience")
