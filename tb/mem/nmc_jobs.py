"""Jobs of the near-memory bench: requests, their golden result, and a runner that compares memory and completions."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from golden.mem import nmc
from spec.interfaces import DONE, NMC_REQUEST
from spec.wqe import DTYPE_BYTES, DType, ReduceOp, Status
from tb.lib.bench import Bench
from tb.numeric import vectors

GUARD = 128  # bytes around every destination that must not change


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request. `bad`: the status it must end in, with `info`."""

    length: int
    a: int
    b: int
    d: int
    dtype: int = DType.FLOAT32
    rop: int = ReduceOp.SUM
    scale: int | None = None
    copy: bool = False
    bad: int = Status.SUCCESS
    info: int = 0

    def request(self, tag: int) -> int:
        return NMC_REQUEST.pack(
            tag=tag, copy=int(self.copy), rop=self.rop, dtype=self.dtype, scale_en=int(self.scale is not None),
            length=self.length, addr_a=self.a, addr_b=self.b, addr_d=self.d, scale=self.scale or 0,
        )

    def done(self, tag: int) -> dict[str, int]:
        return {"tag": tag, "status": self.bad, "byte_len": self.length if self.bad == Status.SUCCESS else 0, "imm": 0, "qpn": 0,
                "info": self.info}

    @property
    def beats(self) -> int:
        return -(-self.length // 64)

    def result(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.copy:
            return nmc.copy(a)
        return nmc.reduce(a, b, DType(self.dtype), ReduceOp(self.rop), self.scale)


def operand(rng: np.random.Generator, dtype: int, nbytes: int) -> np.ndarray:
    """Bytes of an operand, weighted to the extremes of the type."""
    n = -(-nbytes // 4) + 1
    bits = vectors.floats(rng, n)
    if dtype in (DType.BFLOAT16, DType.FLOAT16):
        half = rng.integers(0, 1 << 16, 2 * n, dtype=np.uint16)
        top = 0x7F80 if dtype == DType.BFLOAT16 else 0x7C00
        corner = rng.choice(np.array([0, 1, 2, top - 1, top, top + 1, 0x7FFF, 0x3F80, 0x3C00, 0x0400, 0x03FF], np.uint16), 2 * n)
        close = (half & np.uint16(0x83FF)) | np.uint16(0x3C00)
        kind = rng.integers(0, 4, 2 * n)
        return np.choose(kind, [half, corner | (half & np.uint16(0x8000)), close, half]).astype(np.uint16).view(np.uint8)[:nbytes]
    return bits.view(np.uint8)[:nbytes]


def mirror(b: Bench, data: np.ndarray) -> None:
    """The same image in both memories (operands are read through two ports of what is one memory in a node)."""
    for name in ("axi_a", "axi_b"):
        b.memory(name).write(0, data)


def expect(image: np.ndarray, jobs: list[Job]) -> np.ndarray:
    """Memory after `jobs` (each reads the image as loaded: the bench's jobs do not depend on each other)."""
    out = image.copy()
    for j in jobs:
        if j.bad == Status.SUCCESS:
            out[j.d:j.d + j.length] = j.result(image[j.a:j.a + j.length], image[j.b:j.b + j.length])
    return out


def statuses(b: Bench, jobs: list[Job]) -> None:
    got = [DONE.unpack(w) for w in b.sink("done").words()]
    want = [j.done(i) for i, j in enumerate(jobs)]
    for g, w, j in zip(got, want, jobs, strict=True):
        assert g == w, f"{j}: DONE {g}, expected {w}"


async def run(b: Bench, jobs: list[Job], image: np.ndarray, *, check: bool = True) -> int:
    """Run `jobs` on `image`; all of memory (so every guard byte) and every DONE must be as expected. Returns cycles."""
    mirror(b, image)
    b.source("request").load([j.request(i) for i, j in enumerate(jobs)])
    b.sink("done").expect(len(jobs))
    beats = sum(j.beats for j in jobs)
    cycles = await b.run(deadline=60 * beats + 2000 * len(jobs) + 2000)
    if check:
        statuses(b, jobs)
        want = expect(image, jobs)
        got = b.memory("axi_a").read(0, len(image))
        bad = np.flatnonzero(got != want)
        if len(bad):
            at = int(bad[0])
            owner = next((j for j in jobs if j.d <= at < j.d + j.length), None)
            raise AssertionError(f"{len(bad)} bytes differ, first at {at:#x}: {got[at]:#04x}, expected {want[at]:#04x}; {owner}")
        written = sum(j.beats for j in jobs if j.bad == Status.SUCCESS)
        assert b.memory("axi_a").writes == written, (b.memory("axi_a").writes, written)
        assert b.memory("axi_a").reads == written, (b.memory("axi_a").reads, written)
        reads_b = sum(j.beats for j in jobs if j.bad == Status.SUCCESS and not j.copy)
        assert b.memory("axi_b").reads == reads_b, (b.memory("axi_b").reads, reads_b)
    return cycles


class Layout:
    """Hands out disjoint places for the operands of jobs, with guard bytes, and fills them."""

    def __init__(self, rng: np.random.Generator, size: int):
        self.rng, self.at, self.size = rng, 0, size
        self.image = rng.integers(0, 256, size, dtype=np.uint8)

    def place(self, nbytes: int, *, page_offset: int | None = None) -> int:
        """64-byte aligned address of `nbytes` free bytes; with `page_offset`, that far into a 4 KiB page."""
        self.at += GUARD + -(self.at + GUARD) % 64
        if page_offset is not None:
            self.at += (page_offset - self.at) % 4096
        addr, self.at = self.at, self.at + nbytes
        if self.at + GUARD > self.size:
            raise ValueError(f"the jobs of one run need more than {self.size} bytes")
        return addr

    def job(self, length: int, *, same: str = "", page_offset: int | None = None, **kw) -> Job:
        """A job with fresh operands. `same`: "da" D is A, "db" D is B, "ab" A is B, "abd" all three."""
        dtype = kw.get("dtype", DType.FLOAT32)
        a = self.place(length, page_offset=page_offset)
        b = a if same in ("ab", "abd") else self.place(length)
        d = a if same in ("da", "abd") else b if same == "db" else self.place(length)
        x, y = operand(self.rng, dtype, length), operand(self.rng, dtype, length)
        if dtype == DType.FLOAT32 and length >= 4 and not kw.get("copy"):
            p, q = vectors.pairs(self.rng, length // 4)
            x, y = p.view(np.uint8), q.view(np.uint8)
        self.image[a:a + length] = x
        if b != a:
            self.image[b:b + length] = y
        return Job(length=length, a=a, b=b, d=d, **kw)


def elements(dtype: int, n: int) -> int:
    return n * DTYPE_BYTES[DType(dtype)]


def refused(job: Job, status: int, info: int, **change: int) -> Job:
    return replace(job, bad=status, info=info, **change)
