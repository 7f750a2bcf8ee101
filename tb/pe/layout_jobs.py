"""Stimulus of the layout unit: the memory loaded and read back whole, jobs in between, everything compared with the golden model."""
from __future__ import annotations

import numpy as np

from golden.pe import layout_unit as golden
from spec.layout_unit import LU_DONE, LU_JOB, LayoutOp, LayoutStatus
from tb.lib.bench import Bench
from tb.pe.local_traffic import ROW, Traffic, reads, writes

SIZES = (1, 2, 4)


class Board:
    """`image`: what local memory holds, as the golden model has it."""

    def __init__(self, b: Bench, local_bytes: int):
        self.b = b
        self.image = np.zeros(local_bytes, np.uint8)
        self.addr_bits = (local_bytes // ROW - 1).bit_length()
        self.damaged: list[int] = []
        self.accesses = (0, 0)  # reads and writes of the unit in the last batch

    def rows(self, t: Traffic) -> np.ndarray:
        return t.rows(self.addr_bits, False)

    async def load(self, rows: np.ndarray | None = None) -> None:
        """New random bytes in the whole memory, or in some rows of it."""
        rows = np.arange(len(self.image) // ROW) if rows is None else rows
        t = writes(self.b.rng, rows)
        self.b.source("load__request").load(self.rows(t))
        self.image.reshape(-1, ROW)[rows] = t.data
        await self.b.run(60 * len(rows) + 200)

    async def look(self, rows: np.ndarray | None = None) -> None:
        """The whole memory, or some rows, against the image."""
        rows = np.arange(len(self.image) // ROW) if rows is None else rows
        n = len(rows)
        self.b.source("load__request").load(self.rows(reads(rows)))
        self.b.sink("load__response").expect(n)
        held = self.b.sink("load__response").backpressure
        self.b.sink("load__response").backpressure = 0.0
        await self.b.run(60 * n + 4000)
        self.b.sink("load__response").backpressure = held
        got = self.b.sink("load__response").array()
        assert [int(x) for x in rows[got[:, ROW] != 0]] == sorted(self.damaged), "rows with errors"
        want = self.image.reshape(-1, ROW)[rows]
        wrong = np.argwhere((got[:, :ROW] != want) & ~np.isin(rows, self.damaged)[:, None])
        if len(wrong):
            k, byte = (int(x) for x in wrong[0])
            at = int(rows[k]) * ROW + byte
            raise AssertionError(f"{len(wrong)} bytes differ, the first at {at:#x}: {got[k, byte]:#04x}, expected {want[k, byte]:#04x}")

    async def run(self, jobs: list[dict[str, int]], *, deadline: int = 0, disturb: Traffic | None = None) -> int:
        """The jobs in order: every status and tag; the image moves on. Returns the cycles. `disturb`: traffic of the other port meanwhile."""
        b = self.b
        assert not any(shares_bytes(j, len(self.image)) for j in jobs), "a job's tiles share bytes (assumption A1 of the unit)"
        tags = [int(x) for x in b.rng.integers(0, 1 << 16, len(jobs))]
        want = [(tag, golden.run(self.image, job, self.damaged)) for tag, job in zip(tags, jobs, strict=True)]
        words = b"".join(LU_JOB.to_bytes({**j, "tag": t}) for j, t in zip(jobs, tags, strict=True))
        b.source("job").load(np.frombuffer(words, np.uint8).reshape(-1, LU_JOB.nbytes))
        b.sink("done").expect(len(jobs))
        if disturb is not None:
            b.source("other__request").load(self.rows(disturb))
            b.sink("other__response").expect(int((~disturb.write).sum()))
        before = self._counts()
        cycles = await b.run(deadline or 2000 + 400 * len(jobs) + 40 * sum(bytes_of(j) for j in jobs) // 8)
        now = self._counts()
        self.accesses = (now[0] - before[0], now[1] - before[1])
        got = [(d["tag"], LayoutStatus(d["status"])) for d in map(LU_DONE.unpack, b.sink("done").words())]
        for k, (g, w) in enumerate(zip(got, want, strict=True)):
            assert g == w, f"job {k} {jobs[k]}: (tag, status) {g}, expected {w}"
        return cycles

    def _counts(self) -> tuple[int, int]:
        return int(self.b.pin("reads").value), int(self.b.pin("writes").value)


def bytes_of(job: dict[str, int]) -> int:
    return job["rows"] * job["columns"] * SIZES[job["size"] % 3] if job["rows"] < 4096 else 0


def shares_bytes(job: dict[str, int], memory_bytes: int) -> bool:
    """Whether some byte of the source is one of the destination, of a job that is not refused."""
    if golden.judge(job, memory_bytes) or not job["rows"] or not job["columns"]:
        return False
    e, tiles = SIZES[job["size"]], np.zeros((2, memory_bytes), bool)
    shapes = (job["rows"], job["columns"]), (job["columns"], job["rows"]) if job["op"] == LayoutOp.TRANSPOSE else (job["rows"], job["columns"])
    for tile, side, (rows, columns) in zip(tiles, ("source", "destination"), shapes, strict=True):
        for r in range(rows):
            at = job[side] + r * job[side + "_stride"]
            tile[at : at + columns * e] = True
    return bool(tiles.all(0).any())


def make(op: int, size: int, rows: int, columns: int, source: int, source_stride: int, destination: int, destination_stride: int) -> dict[str, int]:
    return dict(op=op, size=size, rows=rows, columns=columns, source=source, source_stride=source_stride,
                destination=destination, destination_stride=destination_stride)


def placed(rng: np.random.Generator, op: int, size: int, rows: int, columns: int, source: int, destination: int, *, pad: int = 3) -> dict[str, int]:
    """A job at these addresses, strides the rows' bytes and a few more."""
    e, out = SIZES[size], rows if op == LayoutOp.TRANSPOSE else columns
    step = e if op == LayoutOp.TRANSPOSE else 1
    extra = rng.integers(0, pad + 1, 2) * step
    return make(op, size, rows, columns, source, columns * e + int(extra[0]), destination, out * e + int(extra[1]))


def end_of(job: dict[str, int]) -> int:
    """First byte after the destination."""
    rows, columns = (job["columns"], job["rows"]) if job["op"] == LayoutOp.TRANSPOSE else (job["rows"], job["columns"])
    return job["destination"] + max(rows - 1, 0) * job["destination_stride"] + columns * SIZES[job["size"]]


def walk_counts(job: dict[str, int]) -> tuple[int, int, int]:
    """(reads, writes, bound in cycles) of the walk in the contract: accesses by block, a block read in while the one before is written out."""
    e, n = SIZES[job["size"]], ROW // SIZES[job["size"]]

    def rows_of(address: int, count: int) -> int:
        return (address + count - 1) // ROW - address // ROW + 1

    if job["op"] == LayoutOp.COPY:
        w = job["columns"] * e
        r = sum(rows_of(job["source"] + i * job["source_stride"], w) for i in range(job["rows"]))
        o = sum(rows_of(job["destination"] + i * job["destination_stride"], w) for i in range(job["rows"]))
        return r, o, max(r, o)

    def cuts(total: int, low: int) -> list[tuple[int, int]]:
        at, out = 0, []
        while at < total:
            step = min(total - at, n - (low // e if at == 0 else 0))
            out.append((at, step))
            at += step
        return out

    r, o = [], []
    for c, w in cuts(job["columns"], job["source"] % ROW):
        for y, h in cuts(job["rows"], job["destination"] % ROW):
            r.append(sum(rows_of(job["source"] + (y + i) * job["source_stride"] + c * e, w * e) for i in range(h)))
            o.append(sum(rows_of(job["destination"] + (c + i) * job["destination_stride"] + y * e, h * e) for i in range(w)))
    return sum(r), sum(o), sum(map(max, [*r, 0], [0, *o]))
