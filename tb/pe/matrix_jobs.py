"""Stimulus of the matrix unit's bench: products in local memory, run on the golden units for what must be there afterwards."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from golden.pe import matrix_unit as golden
from spec.isa import DOT_ARGS, REDUCE_ARGS, START, UNIT_DONE, OutFormat, UnitStatus
from spec.params import PeParams
from spec.pe import DotFormat, Mx
from tb.lib.bench import Bench
from tb.pe.dot_jobs import Operand, codes, scales
from tb.pe.reduction_jobs import floats

STARTS = ("start_dot", "start_reduce")


@dataclass
class Work:
    """Local memory before and after, and the instructions between."""

    pe: PeParams
    image: np.ndarray
    dots: list[dict[str, int]] = field(default_factory=list)
    reduces: list[dict[str, int]] = field(default_factory=list)
    done_dot: list[int] = field(default_factory=list)
    done_reduce: list[int] = field(default_factory=list)
    cycles: int = 0  # streamed rows
    at: int = 0

    def __post_init__(self) -> None:
        self.before = self.image
        self.after = self.image.copy()

    def place(self, nbytes: int, align: int = 64) -> int:
        """Room in local memory."""
        at = -(-self.at // align) * align
        self.at = at + nbytes
        if self.at > len(self.image):
            raise MemoryError(f"{nbytes} bytes do not fit")
        return at

    def both(self, at: int, data: np.ndarray) -> None:
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.before[at : at + len(flat)] = flat
        self.after[at : at + len(flat)] = flat

    def operand(self, rng: np.random.Generator, fmt: DotFormat, rows: int, chunks: int, mx: int, extra: int) -> tuple[int, int, int]:
        """(address, stride, offset of the scales) of random rows; what lies between them, and in the tail, stays as it was."""
        stride = 64 * (chunks + extra)
        at = self.place(stride * rows)
        for c in range(chunks):
            image = Operand(codes(rng, fmt, rows), fmt).image()[:, :64]
            for r in range(rows):
                self.both(at + r * stride + 64 * c, image[r])
        if mx == Mx.NONE:
            return at, stride, 64 * int(rng.integers(0, 4))
        where = self.place(8 * rows * chunks)
        blocks = fmt.lanes // Mx(mx).block
        for c in range(chunks):
            s = scales(rng, rows, fmt.lanes, mx)
            assert s is not None
            for r in range(rows):
                self.both(where + 8 * (c * rows + r), s[r, :blocks])
        return at, stride, where - at

    def product(self, rng: np.random.Generator, fmt: DotFormat, *, held: int, rows: int, chunks: int, tail: int = 64, mx: int = Mx.NONE, bias: bool = False,
                relu: bool = False, out: int = OutFormat.FLOAT32, extra: int = 0, other: DotFormat | None = None) -> None:
        """One DOT and one REDUCE instruction; `other`: the format that the streamed operand says it has."""
        a, stride_a, scale_a = self.operand(rng, fmt, held, chunks, mx, extra)
        b, stride_b, scale_b = self.operand(rng, fmt, rows, chunks, mx, int(rng.integers(0, 2)) if extra else 0)
        size = 4 if out == OutFormat.FLOAT32 else 2
        group = size * self.pe.rows
        stride_d = -(-held * size // group) * group + group * extra
        d = self.place(stride_d * rows, max(64, group))
        at_bias = 0
        if bias:
            at_bias = self.place(4 * held + 64 * 4, 64)
            self.both(at_bias, floats(rng, 1, held)[0])
        dot = dict(format_a=int(fmt), format_b=int(fmt if other is None else other), mx_a=int(mx), mx_b=int(mx), held=held, rows=rows, chunks=chunks, tail=tail,
                   stride_a=stride_a, stride_b=stride_b, scale_a=scale_a, scale_b=scale_b)
        reduce = dict(held=held, rows=rows, chunks=chunks, stride_d=stride_d, bias=int(bias), integer=int(fmt is DotFormat.INT8), relu=int(relu), out=int(out))
        self.give(dot, a, b, reduce, at_bias, d)

    def give(self, dot: dict[str, int], a: int, b: int, reduce: dict[str, int], bias: int, d: int) -> None:
        self.dots.append(dict(op=0, args=DOT_ARGS.pack(dot), a=a, b=b, d=0))
        self.reduces.append(dict(op=0, args=REDUCE_ARGS.pack(reduce), a=bias, b=0, d=d))
        first = golden.dot_status(self.pe, dot, a, b)
        self.done_dot.append(int(first))
        pending = None
        if golden.fits(self.pe, dot):
            pending = golden.dot(self.after, dot, a, b) if first == UnitStatus.OK else golden.refused(dot)
        status = golden.reduce_status(self.pe, reduce, bias, d, pending)
        if pending is not None:
            if status == UnitStatus.OK:
                status = golden.reduce(self.after, pending, reduce, bias, d)
            self.cycles += -(-dot["held"] // self.pe.rows) * dot["chunks"] * dot["rows"]
        self.done_reduce.append(int(status))


def host_words(pe: PeParams, image: np.ndarray | None) -> np.ndarray:
    """Requests of the test's port: write the image, or read all rows."""
    rows = pe.local_bytes // 64
    bits = (rows - 1).bit_length()
    out = []
    for r in range(rows):
        word = (image is not None) | r << 1
        if image is not None:
            word |= int.from_bytes(image[64 * r : 64 * r + 64].tobytes(), "little") << (1 + bits) | ((1 << 64) - 1) << (1 + bits + 512)
        out.append(word.to_bytes(-(-(1 + bits + 576) // 8), "little"))
    return np.frombuffer(b"".join(out), np.uint8).reshape(rows, -1)


def quiet(b: Bench, starts: tuple[str, ...]) -> None:
    for name in starts:
        b.source(name).load(np.zeros((0, START.nbytes + 1), np.uint8))


async def host(b: Bench, pe: PeParams, image: np.ndarray | None, starts: tuple[str, ...] = STARTS) -> np.ndarray:
    """Write all of local memory, or read it."""
    stalls = {n: (s.idle) for n, s in b._sources.items()}, {n: k.backpressure for n, k in b._sinks.items()}
    b.stalls(0)
    quiet(b, starts)
    b.source("host__request").load(host_words(pe, image))
    b.sink("host__response").expect(0 if image is not None else pe.local_bytes // 64)
    await b.run(20 * pe.local_bytes // 64 + 2000)
    for n, s in b._sources.items():
        s.idle = stalls[0][n]
    for n, k in b._sinks.items():
        k.backpressure = stalls[1][n]
    return b.sink("host__response").array()[:, :64].reshape(-1)


def load(b: Bench, name: str, jobs: list[dict[str, int]]) -> None:
    """Instructions for the stream `name`, none of the test's port."""
    nbytes = -(-START.bits // 8)
    b.source(name).load(np.frombuffer(b"".join(START.pack(j).to_bytes(nbytes, "little") for j in jobs), np.uint8).reshape(len(jobs), nbytes))
    host_port = b.source("host__request")
    host_port.load(np.zeros((0, -(-host_port.port.width // 8)), np.uint8))


async def run(b: Bench, w: Work) -> int:
    """Fill memory, carry out, compare all of memory and every status; cycles of the carrying out."""
    await host(b, w.pe, w.before)
    for name, jobs in (("start_dot", w.dots), ("start_reduce", w.reduces)):
        load(b, name, jobs)
    b.sink("done_dot").expect(len(w.dots))
    b.sink("done_reduce").expect(len(w.reduces))
    cycles = await b.run(60 * w.cycles + 8000, settle=60)
    for name, want in (("done_dot", w.done_dot), ("done_reduce", w.done_reduce)):
        got = [UNIT_DONE.unpack(x)["status"] for x in b.sink(name).words()]
        assert got == want, f"{name}: {got}, expected {want}"
    got_image = await host(b, w.pe, None)
    wrong = np.flatnonzero(got_image != w.after)
    if len(wrong):
        at = int(wrong[0]) & ~3
        jobs = [(REDUCE_ARGS.unpack(j["args"]), hex(j["d"])) for j in w.reduces]
        raise AssertionError(f"{len(wrong)} bytes differ, the first at {at:#x}: {got_image[at:at + 4].tobytes()[::-1].hex()}, expected "
                             f"{w.after[at:at + 4].tobytes()[::-1].hex()} (before {w.before[at:at + 4].tobytes()[::-1].hex()}); {jobs}")
    return cycles
