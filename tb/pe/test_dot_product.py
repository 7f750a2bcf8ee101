"""Dot-product engine against the golden model: every format and pair, MX, all pairs of codes, tiles, refusals, stalls, full rate, latency."""
from __future__ import annotations

from itertools import product

import cocotb
import numpy as np

from rtl.pe.dot_product import LATENCY
from spec.params import config
from spec.pe import DOT_ROW, Mx
from spec.pe import DotFormat as F
from tb.lib.bench import Bench
from tb.pe.dot_jobs import NAN, SCALED, Operand, Tile, codes, random_tile, rows_of, run, scales, split, stimulus

ROWS = config("tiny").node.pe.rows
EIGHT = [f for f in F if f.slot_bits == 8 and f is not F.INT8]


def amount(b: Bench, n: int) -> int:
    """Fewer vectors on the four-state simulator."""
    return n if b.sim == "verilator" else max(2, n // 40)


def cover(b: Bench, values: np.ndarray) -> None:
    magnitude = values & 0x7FFFFFFF
    for name, hit in (("nan", values == NAN), ("inf", values == 0x7F800000), ("minus-inf", values == 0xFF800000), ("zero", values == 0),
                      ("minus-zero", values == 0x80000000), ("subnormal", (magnitude > 0) & (magnitude < 0x800000)), ("overflow", magnitude == 0x7F800000)):
        if hit.any():
            b.cover(name)


def one(fmt: F, held: list[int], streamed: list[int], **kw) -> Tile:
    """A tile of one row: the given elements, zeros behind them."""
    a, b = np.zeros((1, fmt.lanes), np.uint32), np.zeros((1, fmt.lanes), np.uint32)
    a[0, : len(held)], b[0, : len(streamed)] = held, streamed
    return Tile(Operand(a, fmt, **kw), Operand(b, fmt, **kw))


@cocotb.test()
async def test_directed(dut):
    b = await Bench.start(dut)
    bf, hf, e4, e5, f4, i8, tf = F.BFLOAT16, F.FLOAT16, F.FLOAT8_E4M3FN, F.FLOAT8_E5M2, F.FLOAT4_E2M1FN, F.INT8, F.TFLOAT32
    cases = [
        (one(bf, [0x3F80], [0x3F80]), 0x3F800000), (one(bf, [0x3F80, 0x3F80], [0x3F80, 0xBF80]), 0), (one(bf, [0x8000], [0x3F80]), 0),
        (one(bf, [0x7F7F], [0x7F7F]), 0x7F800000), (one(bf, [0xFF7F], [0x7F7F]), 0xFF800000), (one(bf, [0x7F80], [0]), NAN), (one(bf, [0], [0xFF80]), NAN),
        (one(bf, [0x7F80, 0x7F80], [0x3F80, 0xBF80]), NAN), (one(bf, [0x7F80, 0x3F80], [0xBF80, 0x3F80]), 0xFF800000), (one(bf, [0x7F81], [0x3F80]), NAN),
        (one(bf, [1], [0x3F80]), 0x00010000), (one(bf, [0x0001], [0x3F00]), 0x00008000), (one(bf, [0x0080], [0x0080]), 0),
        (one(bf, [0x8001], [0x0001]), 0x80000000),  # below half of the least subnormal: zero, its sign kept
        (one(bf, [0x1A80], [0x1A00]), 1), (one(bf, [0x1A00], [0x1A00]), 0), (one(bf, [0x1A40], [0x1A00]), 1),
        (one(bf, [0x1A00, 0x1000], [0x1A00, 0x1000]), 1),  # half of the least subnormal and 2^-190: no tie
        (one(bf, [0x3F80] + [0x3F80], [0x4B80, 0x3F80]), 0x4B800000), (one(bf, [0x3F80] * 3, [0x4B80, 0x3F80, 0x3380]), 0x4B800001),  # 2^24 + 1 (+ 2^-24)
        (one(e4, [0x7E] + [0x38] * 63, [0x38] + [0x08] * 63), 0x43E07E00),  # 448 + 63 * 2^-6
        (one(e4, [0x7F], [0]), NAN), (one(e4, [1], [1]), 0x36800000), (one(e5, [0x7B] * 64, [0x7B] * 64), 0x52440000),
        (one(f4, [7] * 128, [7] * 128), 0x45900000), (one(f4, [0xF] * 128, [7] * 128), 0xC5900000), (one(f4, [1], [1]), 0x3E800000),
        (one(i8, [0x80] * 64, [0x80] * 64), 64 << 14), (one(i8, [0x80] * 64, [0x7F] * 64), -(64 * 128 * 127) & 0xFFFFFFFF), (one(i8, [0xFF], [1]), 0xFFFFFFFF),
        (one(hf, [0x7BFF], [0x7BFF]), 0x4F7FC004), (one(hf, [1], [1]), 0x27800000),
        (one(tf, [0x1FC00], [0x1FC01]), 0x3F802000), (one(tf, [0x00001], [0x1FC00]), 0x00002000), (one(tf, [0x3FC00], [0x3FC00]), 0x7F800000),
    ]
    got, _ = await run(b, [t for t, _ in cases], ROWS)
    for (tile, want), value in zip(cases, got[:, 0], strict=True):
        assert value == want, f"{F(tile.held.format).name} {tile.held.codes[0, :4]} {tile.streamed.codes[0, :4]}: {value:#010x}, expected {want:#010x}"


@cocotb.test()
async def test_random(dut):
    b = await Bench.start(dut)
    for f in F:
        for _ in range(amount(b, 8)):
            got, _ = await run(b, [random_tile(b.rng, f, f, ROWS, amount(b, 150)) for _ in range(4)], ROWS)
            if f is not F.INT8:
                cover(b, got)


@cocotb.test()
async def test_mixed(dut):
    b = await Bench.start(dut)
    mixes = [p for p in product(F, F) if p[0] is not p[1] and p[0].slot_bits == p[1].slot_bits and F.INT8 not in p]
    assert len(mixes) == 2 + 4 * 3
    await run(b, [random_tile(b.rng, p, q, ROWS, amount(b, 200)) for p, q in mixes], ROWS)


@cocotb.test()
async def test_mx(dut):
    b = await Bench.start(dut)
    kinds = [(Mx.BLOCK_16, Mx.BLOCK_16), (Mx.BLOCK_32, Mx.BLOCK_32), (Mx.BLOCK_16, Mx.BLOCK_32), (Mx.NONE, Mx.BLOCK_32), (Mx.BLOCK_16, Mx.NONE)]
    for f in SCALED:
        got, _ = await run(b, [random_tile(b.rng, f, f, ROWS, amount(b, 200), *k) for k in kinds], ROWS)
        cover(b, got)
    await run(b, [random_tile(b.rng, p, q, ROWS, 30, Mx.BLOCK_32, Mx.BLOCK_32) for p, q in product(EIGHT, EIGHT)], ROWS)
    for mx in (Mx.BLOCK_16, Mx.BLOCK_32):  # 0xFF in each block in turn, of zeros too
        for f in SCALED:
            n = f.lanes // mx.block
            tile = Tile(Operand(np.zeros((1, f.lanes), np.uint32), f, mx, np.full((1, n), 127, np.uint8)),
                        Operand(codes(b.rng, f, n) & f.format.magnitude_mask >> 2, f, mx, np.where(np.eye(n), 255, 3).astype(np.uint8)))
            got, _ = await run(b, [tile], ROWS)
            assert (got[:, 0] == NAN).all()


@cocotb.test()
async def test_all_pairs(dut):
    """Every code with every other, one product a dot product, in every lane."""
    b = await Bench.start(dut)
    for p, q in [*product(EIGHT[:2], EIGHT[:2]), *((f, f) for f in (F.FLOAT6_E3M2FN, F.FLOAT6_E2M3FN, F.FLOAT4_E2M1FN, F.INT8)),
                 (F.FLOAT6_E3M2FN, F.FLOAT6_E2M3FN)]:
        na, nb, lanes = 1 << p.format.bits, 1 << q.format.bits, p.lanes
        tiles = []
        for at in range(0, na, ROWS):
            a, c = np.zeros((ROWS, lanes), np.uint32), np.zeros((nb, lanes), np.uint32)
            lane = at // ROWS % lanes
            a[:, lane], c[:, lane] = np.arange(at, at + ROWS), np.arange(nb)
            tiles.append(Tile(Operand(a, p), Operand(c, q)))
        got, _ = await run(b, tiles, ROWS)
        assert got.size == na * nb
        if p is F.INT8:
            s = np.arange(256).astype(np.uint8).view(np.int8).astype(np.int64)
            want = (s[:, None] * s[None] & 0xFFFFFFFF).reshape(na // ROWS, ROWS, nb).transpose(0, 2, 1).reshape(-1, ROWS)
            assert (got == want).all()
    f = F.FLOAT4_E2M1FN
    for lane in range(f.lanes):  # and each lane of the narrowest format
        a, c = np.zeros((1, f.lanes), np.uint32), np.zeros((2, f.lanes), np.uint32)
        a[0, lane], c[0, lane], c[1, (lane + 1) % f.lanes] = 5, 3, 3
        got, _ = await run(b, [Tile(Operand(a, f), Operand(c, f))], ROWS)
        assert list(got[:, 0]) == [0x40900000, 0], f"lane {lane}"


@cocotb.test()
async def test_tiles(dut):
    b = await Bench.start(dut)
    formats = list(F)
    tiles = []
    for k in range(amount(b, 160)):
        f = formats[int(b.rng.integers(len(formats)))]
        t = random_tile(b.rng, f, f, ROWS, int(b.rng.choice([1, 1, 2, 3, 5, 9])))
        order = [int(x) for x in b.rng.permutation(ROWS)]
        if k % 3 == 0:
            order = order[: int(b.rng.integers(1, ROWS + 1))]
            b.cover("missing rows") if len(order) < ROWS else None
        t.order = order
        tiles.append(t)
    await run(b, tiles, ROWS)
    t = random_tile(b.rng, F.BFLOAT16, F.BFLOAT16, ROWS + 3, 4)  # rows that the engine does not have
    b.cover("row beyond")
    await run(b, [t], ROWS)
    for _ in range(3):  # a second run goes on with the tile in use
        again = random_tile(b.rng, F.BFLOAT16, F.BFLOAT16, 1, 7).streamed
        await keep(b, Tile(t.held, again))
    b.cover("tile kept")


async def keep(b: Bench, t: Tile) -> None:
    """Rows without `first`, nothing loaded."""
    b.source("row").load(rows_of(DOT_ROW, t.streamed.image(), format=t.streamed.format, mx=t.streamed.mx))
    b.sink("result").expect(len(t.streamed.codes))
    await b.run(1000)
    assert (split(b.sink("result").array(), ROWS)[0] == t.expected(ROWS)).all()


@cocotb.test()
async def test_pairs_that_do_not_fit(dut):
    b = await Bench.start(dut)
    rng = b.rng

    def operand(fmt: int, n: int, mx: int = 0) -> Operand:
        known = F(fmt) if fmt in list(F) else F.INT8
        return Operand(codes(rng, known, n), fmt, mx, scales(rng, n, known.lanes, mx) if mx in (1, 2) else None)

    bad = [Tile(operand(p, ROWS), operand(q, 3), bad=True) for p, q in product(range(16), range(16))
           if max(p, q) > F.INT8 or F(p).slot_bits != F(q).slot_bits or (p == F.INT8) != (q == F.INT8)]
    bad += [Tile(operand(f, ROWS, mx), operand(f, 3, my), bad=True) for f in F for mx, my in ((3, 0), (0, 3), (1, 1), (0, 2), (2, 0))
            if 3 in (mx, my) or f not in SCALED]
    good = [random_tile(rng, f, f, ROWS, 2) for f in F]
    for k, t in enumerate(bad):
        t.streamed.format = int(t.streamed.format)
        await run(b, [t, good[k % len(good)]], ROWS) if b.sim == "verilator" or k % 17 == 0 else None
    mixed = random_tile(rng, F.BFLOAT16, F.BFLOAT16, ROWS, 3)  # held rows of two kinds
    held, row = stimulus([mixed])
    other = Operand(codes(rng, F.INT8, ROWS), F.INT8)
    odd, _ = stimulus([Tile(other, mixed.streamed)])
    held[1] = odd[1]
    b.source("held").load(held)
    b.source("row").load(row)
    b.sink("result").expect(3)
    await b.run(1000)
    values, _, _, marks = split(b.sink("result").array(), ROWS)
    assert (values == NAN).all() and marks.all()
    await run(b, good, ROWS)


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall in (0.1, 0.5, 0.9) if b.sim == "verilator" else (0.5,):
        b.stalls(stall)
        await run(b, [random_tile(b.rng, f, f, ROWS, int(b.rng.integers(1, amount(b, 60) + 1))) for f in F], ROWS)
    b.stalls(0.6)
    b.sink("result").backpressure = 0.0
    await run(b, [random_tile(b.rng, f, f, ROWS, 3) for f in F], ROWS)
    b.stalls(0)
    b.sink("result").backpressure = 0.7
    await run(b, [random_tile(b.rng, f, f, ROWS, amount(b, 40)) for f in F], ROWS)
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    """A row a cycle: tiles of ROWS + 1 rows and more, the format changing with each, MX among them."""
    b = await Bench.start(dut)
    tiles = [random_tile(b.rng, f, f, ROWS, n, mx, mx) for n in (ROWS, 16, 33) for f in F for mx in ((0, 1, 2) if f in SCALED else (0,))]
    n = sum(len(t.streamed.codes) for t in tiles)
    _, cycles = await run(b, tiles, ROWS)
    extra = cycles - n
    dut._log.info("%d rows in %d cycles, %.4f of the bound", n, cycles, n / cycles)
    assert extra <= ROWS + 1 + LATENCY + 6, f"{cycles} cycles for {n} rows"


@cocotb.test()
async def test_latency(dut):
    """One row after its tile: a cycle from the last beat to the row, 6 from the row to its result."""
    b = await Bench.start(dut)
    few = [await run(b, [random_tile(b.rng, F.BFLOAT16, F.BFLOAT16, ROWS, n)], ROWS) for n in (1, 33)]
    assert few[1][1] - few[0][1] == 32
    dut._log.info("one tile of one row: %d cycles", few[0][1])
    assert few[0][1] <= ROWS + 1 + LATENCY + 4, few[0][1]
