"""ECC of the local memory: every single bit, every pair of bits of a word, random flips, partial writes by read-modify-write and their cycle."""
from __future__ import annotations

import itertools

import cocotb
import numpy as np

from spec.ecc import CODE_BITS
from tb.pe.local_traffic import ROW, Board, joined, random_traffic, reads, traffic, writes
from tb.pe.test_local_memory import PORTS, RUN, amount, start

WORDS = ROW // 8


def flips(bits: list[list[tuple[int, ...]]]) -> np.ndarray:
    """Masks (n, 8, 9) from the bits to flip, by row and word."""
    out = np.zeros((len(bits), WORDS, CODE_BITS), np.uint8)
    for row, words in enumerate(bits):
        for word, some in enumerate(words):
            out[row, word, list(some)] = 1
    return np.packbits(out, axis=2, bitorder="little")


async def show(board: Board, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows written with `masks` and read again, by another port: (what was written, answers)."""
    rng, at = board.b.rng, 0
    given, got = [], []
    while at < len(masks):
        part = masks[at : at + board.golden.rows]
        t = writes(rng, np.arange(len(part)), flip=part)
        await board.run({0: t})
        await board.run({1: reads(np.arange(len(part)))})
        given.append(t.data)
        got.append(board.b.sink("p1__response").array())
        at += len(part)
    return np.concatenate(given), np.concatenate(got)


@cocotb.test()
async def test_ecc_every_single_bit(dut):
    """Each of the 576 bits of a row alone, and a bit of every word at once: data right, no error, each counted."""
    board = await start(dut)
    one = [[(bit,) if w == word else () for w in range(WORDS)] for word in range(WORDS) for bit in range(CODE_BITS)]
    all_words = [[((bit + 7 * w) % CODE_BITS,) for w in range(WORDS)] for bit in range(CODE_BITS)]
    given, got = await show(board, flips(one + all_words))
    assert (got[:, :ROW] == given).all() and not got[:, ROW].any()
    assert int(board.b.pin("corrected").value) == len(one) + WORDS * len(all_words) and int(board.b.pin("damaged").value) == 0
    # Not written back: another read of the same rows counts them again.
    before = board.golden.corrected
    await board.run({2: reads(np.arange(10))})
    assert int(board.b.pin("corrected").value) > before
    board.b.cover("single")


@cocotb.test()
async def test_ecc_every_pair(dut):
    """All 2,556 pairs of bits of a word, word by word in turn: error, data as stored, counted once each."""
    board = await start(dut)
    pairs = list(itertools.combinations(range(CODE_BITS), 2))
    masks = flips([[pair if w == k % WORDS else () for w in range(WORDS)] for k, pair in enumerate(pairs)])
    given, got = await show(board, masks)
    assert len(got) == len(pairs) == 2556 and got[:, ROW].all()
    assert (got[:, :ROW].reshape(-1, WORDS, 8) == given.reshape(-1, WORDS, 8) ^ masks[:, :, :8]).all()
    assert int(board.b.pin("damaged").value) == len(pairs) and int(board.b.pin("corrected").value) == 0
    board.b.cover("double")


@cocotb.test()
async def test_ecc_random(dut):
    """None, one or two flips a word in writes of any strobes by port 0, with traffic of all ports on the same rows; with and without stalls."""
    board = await start(dut)
    b = board.b
    for stall in (0.0, 0.3):
        b.stalls(stall)
        for rate in (0.02, 0.3):
            n = amount(b, 400)
            count = np.where(b.rng.random((n, WORDS)) < rate, b.rng.integers(1, 3, (n, WORDS)), 0)
            work = {p: random_traffic(b.rng, n, 24) for p in range(PORTS)}
            work[0].flip = flips([[tuple(b.rng.choice(CODE_BITS, k, replace=False)) for k in row] for row in count])
            await board.run(work, fair=stall == 0)
    assert board.golden.corrected and board.golden.damaged
    b.cover("flips")


@cocotb.test()
async def test_ecc_partial_write(dut):
    """A byte of a word with a single error: corrected and written back. With a double error: the word stays damaged, unless it is written whole."""
    board = await start(dut)
    b, n = board.b, WORDS
    mask = flips([[(13,) if w == k else (5, 70) if w == (k + 1) % WORDS else () for w in range(WORDS)] for k in range(n)])
    first = writes(b.rng, np.arange(n), flip=mask)
    k = np.arange(n)
    strb = np.zeros((n, ROW), bool)
    strb[k, 8 * k + 3] = True  # a byte of the word with one wrong bit
    strb[k, 8 * ((k + 1) % WORDS) + 6] = True  # and of the damaged one
    part = writes(b.rng, np.arange(n), strb)
    whole = writes(b.rng, np.arange(n), np.arange(ROW)[None] // 8 == ((k + 1) % WORDS)[:, None])
    await board.run({0: joined(first, part)})
    await board.run({3: reads(np.arange(n))})
    got = b.sink("p3__response").array()
    assert got[:, ROW].all(), "the damaged words stay"
    assert board.golden.corrected == n and board.golden.damaged == 2 * n, "read by the write, then by the read; the single error is gone"
    await board.run({0: joined(whole, reads(np.arange(n)))})
    assert not b.sink("p0__response").array()[:, ROW].any() and board.golden.damaged == 2 * n
    b.cover("partial")


@cocotb.test()
async def test_ecc_extra_cycle(dut):
    """Partial writes take their bank for two cycles: half the rate in one bank, full rate over the banks; whole words cost nothing."""
    board = await start(dut)
    b, n, banks = board.b, amount(board.b, 400), board.pe.local_banks
    byte, word = np.zeros((n, ROW), bool), np.zeros((n, ROW), bool)
    byte[:, 9], word[:, 16:24] = True, True
    one_bank = np.arange(n) * banks % board.golden.rows
    for strb, each in ((byte, 2), (word, 1)):
        cycles = await board.run({1: writes(b.rng, one_bank, strb)})
        assert each * n - 1 <= cycles <= each * n + 2, f"{cycles} cycles for {n} writes"
        cycles = await board.run({2: writes(b.rng, np.arange(n) % board.golden.rows, strb)})
        assert cycles <= n + 2, f"{cycles} cycles for {n} writes over all banks"
    data = b.rng.integers(0, 256, (n, ROW), dtype=np.uint8)
    half = traffic(np.arange(n) % 2 == 0, np.arange(n) // 2 * banks % board.golden.rows, data, byte)
    cycles = await board.run({0: half})  # a partial write, then a read of the same row
    assert cycles <= n // 2 * 3 + RUN, f"{cycles} cycles"
    cycles = await board.run({p: writes(b.rng, one_bank, byte) for p in range(PORTS)})
    assert cycles <= 2 * PORTS * n + 2
    b.cover("extra-cycle")


@cocotb.test()
async def test_ecc_reset(dut):
    """The counts are 0 after reset; what is stored stays."""
    board = await start(dut)
    await board.run({0: writes(board.b.rng, [3], flip=flips([[(1,)] * WORDS])), 1: reads([3] * 4)})
    await board.run({1: reads([3])})
    assert int(board.b.pin("corrected").value) >= WORDS
    await board.b.reset()
    assert int(board.b.pin("corrected").value) == 0
    board.golden.corrected = 0
    await board.run({1: reads([3])})
