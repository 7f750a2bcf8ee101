"""Memory layout unit on a full-size local memory with ECC: large tiles at a row read and a row written a cycle, wrong bits, partial writes."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.layout_unit import LayoutOp
from tb.lib.bench import Bench
from tb.pe.layout_jobs import SIZES, Board, make, placed, walk_counts
from tb.pe.local_traffic import ROW

BYTES = 512 << 10
HALF = BYTES // 2
BANKS = 4


async def start(dut) -> Board:
    board = Board(await Bench.start(dut), BYTES)
    await board.load()
    return board


def flip(*bits: int) -> int:
    """Mask of a row, the same bits of every word."""
    return sum(1 << (72 * w + k) for w in range(8) for k in bits)


@cocotb.test()
async def test_large_transpose(dut):
    """At least 0.95 rows read and 0.95 rows written a cycle, over the whole job."""
    board = await start(dut)
    for size, (side, stride) in enumerate(((448, 7 * ROW), (320, 11 * ROW), (224, 15 * ROW))):
        job = make(LayoutOp.TRANSPOSE, size, side, side, 0, stride, HALF, stride)
        cycles = await board.run([job]) - 2
        rows = side * side * SIZES[size] // ROW
        dut._log.info("transpose of %d x %d, %d bytes: %d rows read and written in %d cycles, %.4f of a row a cycle",
                      side, side, SIZES[size], rows, cycles, rows / cycles)
        assert board.accesses == (rows, rows) and rows / cycles >= 0.95, f"{cycles} cycles for {rows} rows"
    await board.look()


@cocotb.test()
async def test_large_copy(dut):
    """A tile moved by any number of bytes: at least 0.99 rows read and written a cycle."""
    board = await start(dut)
    for low in (0, 1, 33):
        job = make(LayoutOp.COPY, 0, 3, 60000, low, 60000, HALF + 64, 60000)
        cycles = await board.run([job]) - 2
        reads, writes, bound = walk_counts(job)
        dut._log.info("copy at %d: %d rows read, %d written in %d cycles", low, reads, writes, cycles)
        assert board.accesses == (reads, writes) and bound / cycles >= 0.99, f"{cycles} cycles, walk {bound}"
    await board.look()


@cocotb.test()
async def test_one_bank(dut):
    """Strides of a multiple of all banks keep a block's reads in one bank and its writes in one: full rate where they differ, half where not."""
    board = await start(dut)
    n, blocks = 16, 12
    for source in range(BANKS):
        job = make(LayoutOp.TRANSPOSE, 2, blocks * n, n, source * ROW, BANKS * ROW, HALF, blocks * BANKS * ROW)
        cycles = await board.run([job]) - 2
        dut._log.info("%d blocks, source in bank %d: %d cycles", blocks, source, cycles)
        assert board.accesses == (blocks * n, blocks * n)
        assert cycles <= (blocks + 1 + blocks // BANKS) * n + 15 + blocks, f"{cycles} cycles"
    await board.look()


@cocotb.test()
async def test_wrong_bits(dut):
    """Single errors everywhere never show, in reads nor in partial writes; rows damaged beyond repair end a job in DAMAGED, their bits as stored."""
    board = await start(dut)
    b = board.b
    for bit in (5, 66):
        b.pin("flip").value = flip(bit)
        await board.load()
        b.pin("flip").value = 0
        jobs, at = [], HALF
        for _ in range(150):
            op, size = int(b.rng.integers(2)), int(b.rng.integers(3))
            step = SIZES[size]
            rows, columns = (int(x) for x in b.rng.integers(1, 40, 2))
            source, low = int(b.rng.integers(HALF // 2 // step)) * step, int(b.rng.integers(ROW // step)) * step
            jobs.append(placed(b.rng, op, size, rows, columns, source, at + low))
            at += 12 * ROW + (rows + 1) * (columns + 1) * (step + 1) // ROW * ROW
            if at > BYTES - (1 << 15):
                break
        await board.run(jobs)
        await board.look()
    board.damaged = [40, 41, 77, 300]
    b.pin("flip").value = flip(3, 9)
    await board.load(np.array(board.damaged))
    b.pin("flip").value = 0
    board.image.reshape(-1, ROW)[board.damaged] ^= np.tile(np.array([8, 2, 0, 0, 0, 0, 0, 0], np.uint8), 8)
    jobs = [placed(b.rng, k % 2, k % 3, 4 + k % 5, 30, 38 * ROW + 4 * k * 13, HALF + k * 4096) for k in range(60)]
    await board.run(jobs)
    await board.look()
    b.cover("damaged")
