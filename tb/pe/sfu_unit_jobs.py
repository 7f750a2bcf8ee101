"""Stimulus of the special function unit's bench: instructions on local memory, run on the golden unit for what must be there afterwards."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from golden.pe import sfu_unit
from spec.convert import ConvertFormat as F
from spec.isa import SFU_ARGS, START, UNIT_DONE, UnitStatus
from spec.params import PeParams
from spec.pe import Mx
from spec.sfu import ROW, SfuB, SfuOp
from tb.lib.bench import Bench
from tb.pe.matrix_jobs import host
from tb.pe.sfu_beats import operands

SCALED = (F.FLOAT8_E4M3FN, F.FLOAT8_E5M2, F.FLOAT6_E3M2FN, F.FLOAT6_E2M3FN, F.FLOAT4_E2M1FN)
RESULTS = tuple(f for f in F if f is not F.FLOAT8_E8M0FNU)
LINE = 64
ZERO = {f.name: 0 for f in SFU_ARGS.fields if not f.name.startswith("_")}
OVERHEAD = 40  # cycles of an instruction beyond its bound


def row_bytes(columns: int, fmt: F) -> int:
    return -(-columns * fmt.slot_bits // 8)


def lines(columns: int, fmt: F) -> int:
    return -(-row_bytes(columns, fmt) // LINE)


def bound(pe: PeParams, op: int, args: dict[str, int]) -> int:
    """Cycles of the most used of the unit's parts: lanes, ports, MX encoder."""
    columns = args["columns"]
    parts = [-(-columns // pe.lanes), lines(columns, F(args["format_a"])) * (2 if args["mx_a"] else 1)]
    if op in ROW:
        parts.append(1)
    else:
        parts.append(lines(columns, F(args["format_d"])) * (2 if args["mx_d"] else 1))
    if args["mx_d"]:
        parts.append(-(-columns // 16))
    if sfu_unit.reads_b(op, args):
        parts.append(1 if args["source_b"] == SfuB.COLUMN else lines(columns, F(args["format_b"])))
    return args["rows"] * max(parts)


@dataclass
class Work:
    """Local memory before and after, and the instructions between."""

    pe: PeParams
    rng: np.random.Generator
    jobs: list[dict[str, int]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    cycles: int = 0
    at: int = 0

    def __post_init__(self) -> None:
        self.before = self.rng.integers(0, 256, self.pe.local_bytes, dtype=np.uint8)
        self.after = self.before.copy()

    def room(self, nbytes: int, align: int = LINE) -> int:
        at = -(-self.at // align) * align
        self.at = at + nbytes
        if self.at > len(self.before):
            raise MemoryError(f"{nbytes} bytes do not fit")
        return at

    def put(self, at: int, data: np.ndarray) -> None:
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.before[at : at + len(flat)] = flat
        self.after[at : at + len(flat)] = flat

    def fill(self, at: int, nbytes: int, fmt: F) -> None:
        """Elements of an operand: any bits; of binary32 numbers, ones of a kind that functions bend at."""
        if fmt is F.FLOAT32:
            self.put(at, operands(self.rng, -(-nbytes // 4)).view(np.uint8)[:nbytes])
        elif fmt in (F.BFLOAT16, F.TFLOAT32):
            numbers = operands(self.rng, -(-nbytes // 2)) >> np.uint32(16 if fmt is F.BFLOAT16 else 13)
            self.put(at, numbers.astype(np.uint16 if fmt is F.BFLOAT16 else np.uint32).view(np.uint8)[:nbytes])

    def operand(self, rows: int, columns: int, fmt: F, extra: int) -> tuple[int, int]:
        """(address, stride)."""
        stride = LINE * (lines(columns, fmt) + extra)
        at = self.room(stride * rows)
        self.fill(at, stride * rows, fmt)
        return at, stride

    def column(self, rows: int, fmt: F, extra: int) -> tuple[int, int]:
        """One element a row: (address, stride), multiples of the element's bytes."""
        size = row_bytes(1, fmt)
        stride = size * (1 + extra)
        at = self.room(stride * rows, size)
        self.fill(at, stride * rows, fmt)
        return at, stride

    def scales(self, rows: int, columns: int, fmt: F, at: int) -> int:
        """Distance of the scales of an operand at `at`; most of them near 1."""
        nbytes = 8 * rows * lines(columns, fmt)
        where = self.room(nbytes)
        any_, near = self.rng.integers(0, 256, nbytes), self.rng.integers(100, 150, nbytes)
        self.put(where, np.where(self.rng.integers(0, 20, nbytes) == 0, any_, near).astype(np.uint8))
        return where - at

    def add(self, op: SfuOp, fa: F, fd: F, *, rows: int, columns: int, fb: F = F.FLOAT32, source_b: SfuB = SfuB.ELEMENTS,
            mx_a: Mx = Mx.NONE, mx_d: Mx = Mx.NONE, extra: int = 0, **args: int) -> None:
        """One instruction with operands and results of its own."""
        a, stride_a = self.operand(rows, columns, fa, extra)
        f = dict(format_a=int(fa), format_b=int(fb), format_d=int(fd), rows=rows, columns=columns, stride_a=stride_a,
                 mx_a=int(mx_a), mx_d=int(mx_d), source_b=int(source_b))
        if mx_a:
            f["scale_a"] = self.scales(rows, columns, fa, a)
        b = 0
        if sfu_unit.reads_b(op, f):
            if source_b == SfuB.COLUMN:
                b, f["stride_b"] = self.column(rows, fb, extra)
            else:
                b, f["stride_b"] = self.operand(1 if source_b == SfuB.ROW else rows, columns, fb, extra)
        d, f["stride_d"] = self.column(rows, fd, extra) if op in ROW else self.operand(rows, columns, fd, extra)
        if mx_d:
            f["scale_d"] = self.scales(rows, columns, fd, d)
        self.give(op, f | args, a, b, d)

    def give(self, op: int, args: dict[str, int], a: int, b: int, d: int) -> None:
        args = ZERO | args
        self.jobs.append(dict(op=int(op), args=SFU_ARGS.pack(args), a=a, b=b, d=d))
        status = sfu_unit.run(self.after, op, args, a, b, d)
        self.done.append(int(status))
        self.cycles += (bound(self.pe, op, args) if status == UnitStatus.OK else 0) + OVERHEAD


async def run(b: Bench, w: Work, traffic: int = 0) -> int:
    """Fill memory, carry out, compare all of memory and every status; cycles of the carrying out. `traffic`: reads of the host's port meanwhile."""
    await host(b, w.pe, w.before, ("start",))
    rows = np.frombuffer(b"".join(START.pack(j).to_bytes(-(-START.bits // 8), "little") for j in w.jobs), np.uint8).reshape(len(w.jobs), -1)
    b.source("start").load(rows)
    reads = b.rng.integers(0, w.pe.local_bytes // LINE, traffic)
    b.source("host__request").load([int(r) << 1 for r in reads])
    b.sink("host__response").expect(traffic)
    b.sink("done").expect(len(w.jobs))
    cycles = await b.run(60 * (w.cycles + traffic) + 8000, settle=40)
    got = [UNIT_DONE.unpack(x)["status"] for x in b.sink("done").words()]
    assert got == w.done, f"status {got}, expected {w.done}"
    image = await host(b, w.pe, None, ("start",))
    wrong = np.flatnonzero(image != w.after)
    if len(wrong):
        first = int(wrong[0])
        at = first & ~3
        seen, want, before = (x[at : at + 4].tobytes()[::-1].hex() for x in (image, w.after, w.before))
        near = [(SfuOp(j["op"]).name, {k: v for k, v in SFU_ARGS.unpack(j["args"]).items() if v}, hex(j["a"]), hex(j["b"]), hex(j["d"])) for j in w.jobs
                if j["op"] in list(SfuOp) and j["d"] <= at]
        job = max(near, key=lambda x: int(x[4], 16)) if near else ""
        raise AssertionError(f"{len(wrong)} bytes differ, the first at {first:#x}: {seen}, expected {want} (before {before}); {job}")
    return cycles
