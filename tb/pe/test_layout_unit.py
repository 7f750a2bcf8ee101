"""Memory layout unit against the golden model: small shapes, every offset, random tiles, chains, refusals, stalls, cycles; guard bytes."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.pe import layout_unit as golden
from spec.layout_unit import LayoutOp
from tb.lib.bench import Bench
from tb.pe.layout_jobs import SIZES, Board, end_of, make, placed, walk_counts
from tb.pe.local_traffic import ROW, random_traffic

BYTES = 64 << 10
HALF = BYTES // 2
OVERHEAD = 15  # cycles of a job beyond its walk, at most


async def start(dut) -> Board:
    board = Board(await Bench.start(dut), BYTES)
    await board.load()
    return board


class Batch:
    """Jobs whose destinations lie one behind the other in the upper half, so that nothing hides a wrong byte; run and compared when it is full."""

    def __init__(self, board: Board):
        self.board, self.jobs, self.cursor = board, [], HALF

    async def add(self, op: int, size: int, rows: int, columns: int, source: int, low: int) -> None:
        """`low`: place of the destination in its row of memory."""
        rng = self.board.b.rng
        at = -(-self.cursor // ROW) * ROW + low
        job = placed(rng, op, size, rows, columns, source, at)
        if end_of(job) > BYTES or len(self.jobs) == 2000:
            await self.flush()
            job["destination"] = HALF + low
        self.jobs.append(job)
        self.cursor = end_of(job) + int(rng.integers(0, 70))

    async def flush(self) -> None:
        await self.board.run(self.jobs)
        counts = [walk_counts(j)[:2] for j in self.jobs if j["rows"] and j["columns"]]
        assert self.board.accesses == (sum(c[0] for c in counts), sum(c[1] for c in counts)), "rows read and written"
        await self.board.look()
        await self.board.load(np.arange(HALF // ROW, BYTES // ROW))
        self.jobs, self.cursor = [], HALF


@cocotb.test()
async def test_small_shapes(dut):
    """Every shape of up to 6 x 6, and those about a block's edge, of every size and op, somewhere."""
    board = await start(dut)
    b, batch = board.b, Batch(board)
    for op in LayoutOp:
        for size, e in enumerate(SIZES):
            n = ROW // e
            shapes = [(r, c) for r in range(7) for c in range(7)] + [(r, c) for r in (1, n - 1, n, n + 1) for c in (1, n - 1, n, n + 1)]
            for rows, columns in shapes:
                step = e if op == LayoutOp.TRANSPOSE else 1
                source, low = (int(x) * step for x in (b.rng.integers(HALF // 2 // step), b.rng.integers(ROW // step)))
                await batch.add(op, size, rows, columns, source, low)
                b.cover("empty" if not rows or not columns else "full")
    await batch.flush()


@cocotb.test()
async def test_offsets(dut):
    """Every place of the source in its row of memory with every place of the destination."""
    board = await start(dut)
    b, batch = board.b, Batch(board)
    for op, size in ((LayoutOp.COPY, 0), (LayoutOp.TRANSPOSE, 0), (LayoutOp.TRANSPOSE, 1), (LayoutOp.TRANSPOSE, 2)):
        step = SIZES[size]
        for low in range(0, ROW, step):
            for at in range(0, ROW, step):
                rows, columns = int(b.rng.integers(1, 4)), int(b.rng.integers(1, 4))
                if op == LayoutOp.COPY:
                    columns = int(b.rng.choice([1, 3, 64, 65, 70, 130]))
                await batch.add(op, size, rows, columns, int(b.rng.integers(200)) * ROW + at, low)
        await batch.flush()
        b.cover(f"{op.name.lower()}-{step}")


def random_job(rng: np.random.Generator, *, most: int = HALF, low: int = 0, high: int = HALF) -> dict[str, int]:
    """A tile of up to `most` bytes from [0, HALF) to [HALF, BYTES), strides at random, often multiples of 64."""
    while True:
        op, size = int(rng.integers(2)), int(rng.integers(3))
        e = SIZES[size]
        step = e if op == LayoutOp.TRANSPOSE else 1
        rows, columns = (int(x) for x in np.exp(rng.uniform(0, np.log(most / e), 2) * rng.uniform(0.2, 1)))
        if rows * columns * e > most:
            continue
        out_rows, out_columns = (columns, rows) if op == LayoutOp.TRANSPOSE else (rows, columns)
        strides = [c * e + step * int(rng.integers(0, 40)) for c in (columns, out_columns)]
        if rng.random() < 0.5:
            strides = [-(-s // ROW) * ROW for s in strides]
        room = [HALF - (r - 1) * s - c * e for r, s, c in zip((rows, out_rows), strides, (columns, out_columns), strict=True)]
        if min(room) < 0:
            continue
        source, destination = (int(rng.integers(0, r + 1)) // step * step for r in room)
        return make(op, size, rows, columns, source, strides[0], HALF + destination, strides[1])


@cocotb.test()
async def test_random(dut):
    board = await start(dut)
    b = board.b
    for _ in range(24):
        jobs = [random_job(b.rng, most=4096) for _ in range(12)] + [random_job(b.rng)]
        await board.run(jobs)
        counts = [walk_counts(j)[:2] for j in jobs]
        assert board.accesses == (sum(c[0] for c in counts), sum(c[1] for c in counts)), "rows read and written"
        await board.look()


@cocotb.test()
async def test_slow_writes(dut):
    """Two rows written for every row read, for longer than the lanes have room; and two read for every one written."""
    board = await start(dut)
    for op, rows, columns, source, source_stride, to, destination_stride in (
        (LayoutOp.COPY, 480, 40, 0, ROW, 40, ROW), (LayoutOp.COPY, 480, 40, 40, ROW, 0, ROW),
        (LayoutOp.TRANSPOSE, 440, 64, 0, ROW, 0, 473), (LayoutOp.TRANSPOSE, 64, 440, 0, 473, 0, ROW),
    ):
        job = make(op, 0, rows, columns, source, source_stride, HALF + to, destination_stride)
        await board.run([job])
        reads, writes, _ = walk_counts(job)
        assert board.accesses == (reads, writes)
        board.b.cover("slow-writes" if 5 * writes > 8 * reads else "slow-reads" if 5 * reads > 8 * writes else "even")
        await board.look()


@cocotb.test()
async def test_chain(dut):
    """A job sees what the one before wrote: to and fro between two places; transposed twice a tile is itself."""
    board = await start(dut)
    b = board.b
    for size, (rows, columns) in enumerate(((70, 67), (35, 33), (17, 31))):
        e, jobs = SIZES[size], []
        places, tile = [(64, columns * e + 4), (HALF + 4 * e, rows * e), (HALF // 2, columns * e)], board.image[64:].copy()
        jobs.append(make(LayoutOp.TRANSPOSE, size, rows, columns, *places[0], *places[1]))
        jobs.append(make(LayoutOp.TRANSPOSE, size, columns, rows, *places[1], *places[2]))
        for k in range(6):  # one row, moved on and on
            jobs.append(make(LayoutOp.COPY, 0, 1, 77, HALF // 2 + 200 * k, 0, HALF // 2 + 200 * k + 200, 0))
        for stall in (0.0, 0.7):
            b.pin("stall").value = int(stall * 65536)
            await board.run(jobs[:2], deadline=100_000)
            for r in range(rows):
                at = HALF // 2 + r * columns * e
                assert (board.image[at : at + columns * e] == tile[r * (columns * e + 4) :][: columns * e]).all()
            await board.run(jobs[2:], deadline=100_000)
            b.pin("stall").value = 0
            await board.look()


@cocotb.test()
async def test_slices(dut):
    """Parts cut out of tiles, and set below or beside each other."""
    board = await start(dut)
    b = board.b
    for size, e in enumerate(SIZES):
        for _ in range(12):
            jobs, parts, at = [], [], HALF
            rows, columns = int(b.rng.integers(2, 30)), int(b.rng.integers(2, 100))
            axis = int(b.rng.integers(2))
            for _ in range(int(b.rng.integers(1, 5))):  # parts of one height, or of one width
                part_rows, part_columns = (rows, int(b.rng.integers(1, 60))) if axis else (int(b.rng.integers(1, 20)), columns)
                r, c = int(b.rng.integers(8)), int(b.rng.integers(8))
                stride = (c + part_columns) * e + int(b.rng.integers(9))
                part = slice(r, r + part_rows), slice(c, c + part_columns)
                jobs.append(golden.cut(int(b.rng.integers(200)), stride, size, *part, at, part_columns * e))
                parts.append((at, part_columns * e, part_rows, part_columns))
                at += part_rows * part_columns * e + int(b.rng.integers(5))
            width = sum(p[3] for p in parts) if axis else columns
            jobs += golden.join(parts, size, axis, HALF - 20000 + int(b.rng.integers(64)), width * e)
            if at < BYTES:
                await board.run(jobs)
                b.cover(f"axis-{axis}")
        await board.look()


REFUSED = [
    dict(op=2), dict(op=3), dict(size=3), dict(op=2, rows=0), dict(size=3, columns=0),
    dict(source=1), dict(source_stride=130), dict(destination=HALF + 2), dict(destination_stride=65), dict(size=1, destination=HALF + 1),
    dict(destination_stride=16), dict(destination_stride=0), dict(op=0, destination_stride=24), dict(destination_stride=20, columns=2, rows=6),
    dict(source=BYTES - 4), dict(source=BYTES), dict(destination=BYTES - 6 * 64 - 16), dict(destination=0xFFFFFFFC), dict(source=0xFFFFFFFC),
    dict(source_stride=0xFFFFFFFC), dict(source_stride=0x4000, source=3 * 0x1000), dict(op=0, rows=65535, columns=65535, destination_stride=0x40000),
    dict(op=0, rows=65535, source_stride=0x10001, destination_stride=0x10001), dict(rows=65535, columns=1), dict(source=2, destination=BYTES),
    dict(op=0, rows=17, source_stride=1 << 28), dict(op=0, rows=17, destination_stride=1 << 28),  # 16 strides are 2^32
]
ALLOWED = [
    dict(rows=0), dict(columns=0), dict(rows=0, columns=0, source=0xFFFFFFFF, source_stride=3),
    dict(columns=0, destination=BYTES, destination_stride=1),
    dict(), dict(source=BYTES - 4 * 128 - 28), dict(destination=BYTES - 6 * 64 - 20), dict(columns=1, destination_stride=0),
    dict(rows=1, source_stride=0xFFFFFFFC), dict(op=0, rows=1, destination_stride=0), dict(source_stride=0),
    dict(op=0, size=2, source=3, source_stride=129, destination=HALF + 5),
]


@cocotb.test()
async def test_refused(dut):
    """What is refused writes and reads nothing; what just fits is done; both in one queue."""
    board = await start(dut)
    base = dict(op=1, size=2, rows=5, columns=7, source=0, source_stride=128, destination=HALF, destination_stride=64)
    for changes in REFUSED:
        await board.run([{**base, **changes}])
        assert golden.judge({**base, **changes}, BYTES) and board.accesses == (0, 0), changes
    for changes in ALLOWED:
        job = {**base, **changes}
        cycles = await board.run([job])
        assert not golden.judge(job, BYTES)
        if not job["rows"] or not job["columns"]:
            assert board.accesses == (0, 0) and cycles == 3 + 2, f"{changes}: {cycles} cycles"
            board.b.cover("empty-job")
    jobs = [{**base, **c} for pair in zip(REFUSED, ALLOWED * 3, strict=False) for c in pair]
    await board.run(jobs)
    await board.look()


@cocotb.test()
async def test_stalls(dut):
    """Stalls between unit and memory, of jobs and ends, and another port on the same banks."""
    board = await start(dut)
    b = board.b
    for stall in (0.2, 0.6, 0.9):
        b.stalls(stall)
        for most in (64, 4096):
            b.pin("stall").value = int(stall * 65536)
            await board.run([random_job(b.rng, most=most) for _ in range(30)], deadline=1_000_000)
            b.pin("stall").value = 0
            await board.look()
    b.stalls(0)
    for _ in range(6):
        jobs = [random_job(b.rng, most=2048) for _ in range(6)]
        other = random_traffic(b.rng, 600, HALF // ROW, reading=0.6)  # of the half that is only read; its writes have no strobes
        other.strb[:] = False
        await board.run(jobs, disturb=other)
        got = b.sink("other__response").array()
        assert (got[:, :ROW] == board.image.reshape(-1, ROW)[other.addr[~other.write]]).all()
    await board.look()
    b.cover("stalls")


@cocotb.test()
async def test_few_rows(dut):
    """A few jobs in a memory of which little was ever written, with and without stalls: for four-state simulation."""
    board = Board(await Bench.start(dut), BYTES)
    b, first = board.b, HALF // ROW
    rows = np.concatenate([np.arange(24), np.arange(first, first + 60)])
    await board.load(rows)
    at, jobs = HALF, []
    for op, size, shape in ((0, 0, (3, 67)), (1, 2, (17, 3)), (1, 1, (5, 4)), (1, 0, (3, 6)), (0, 1, (2, 33)), (1, 2, (2, 17))):
        step = SIZES[size] if op else 1
        jobs.append(placed(b.rng, op, size, *shape, int(b.rng.integers(ROW // step)) * step, at + int(b.rng.integers(ROW // step)) * step))
        at = -(-end_of(jobs[-1]) // ROW) * ROW
    assert at <= HALF + 60 * ROW and all(j["rows"] * j["source_stride"] < 20 * ROW for j in jobs)
    for stall in (0.0, 0.3):
        b.pin("stall").value = int(stall * 65536)
        await board.run(jobs[:3] if stall else jobs)
    b.pin("stall").value = 0
    await board.look(rows)


@cocotb.test()
async def test_cycles(dut):
    """A job's cycles: its walk, at most 15, and one a block where walks fall into rotation. Strides as the contract advises."""
    board = await start(dut)
    worst = 0
    for op in LayoutOp:
        for size, e in enumerate(SIZES):
            n = ROW // e
            for rows, columns in ((1, 1), (3, 5), (n, n), (2 * n, n), (n, 2 * n), (n - 1, n + 1), (2 * n, 3 * n)):
                stride = ROW * 5 if op == LayoutOp.TRANSPOSE else -(-columns * e // ROW) * ROW
                turn = 4 * ROW  # of all banks
                job = make(op, size, rows, columns, 0, stride, -(-rows * stride // turn) * turn + 2 * ROW, stride)
                if end_of(job) > BYTES:
                    continue
                bound = walk_counts(job)[2] + (-(-rows // n) * -(-columns // n) if op == LayoutOp.TRANSPOSE else 0)
                cycles = await board.run([job]) - 2
                worst = max(worst, cycles - bound)
                assert max(walk_counts(job)[:2]) <= cycles <= bound + OVERHEAD, f"{job}: {cycles} cycles, walk {bound}"
    for low in (0, 1, 17, 63):  # one long row, and rows of any stride: a row read and a row written every cycle
        job = make(LayoutOp.COPY, 0, 1, 400 * ROW, low, 0, HALF + 2 * ROW + 5, 0)
        cycles = await board.run([job]) - 2
        reads, writes, bound = walk_counts(job)
        dut._log.info("copy at %d: %d rows read, %d written in %d cycles", low, reads, writes, cycles)
        worst = max(worst, cycles - bound)
        assert cycles <= bound + OVERHEAD, f"{cycles} cycles for {reads} rows read and {writes} written"
    dut._log.info("at most %d cycles beyond the walk", worst)
    await board.look()
