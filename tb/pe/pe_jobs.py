"""Programs on the processing element and on the golden one: completions and all of memory compared."""
from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from golden.numeric import fp32
from golden.pe.kernels.gemm import Gemm, pack_rows, scale_rows
from golden.pe.processing_element import ProcessingElement
from spec.isa import COMPLETION, INSTRUCTION, CpStatus, OutFormat
from spec.params import PeParams
from spec.pe import DotFormat
from tb.lib.bench import Bench
from tb.pe.cp_programs import packed
from tb.pe.dot_jobs import codes

Program = list[dict[str, int]]


class Image:
    """Memory with what is put into it; the rest is noise."""

    def __init__(self, rng: np.random.Generator, nbytes: int, noise: int = 1 << 20):
        self.rng = rng
        self.bytes = np.zeros(nbytes, np.uint8)
        self.bytes[:noise] = rng.integers(0, 256, min(noise, nbytes), dtype=np.uint8)
        self.at = 64

    def room(self, nbytes: int, align: int = 64) -> int:
        at = -(-self.at // align) * align
        self.at = at + nbytes
        if self.at > len(self.bytes):
            raise MemoryError(f"{self.at} bytes; memory has {len(self.bytes)}")
        return at

    def put(self, values: np.ndarray, align: int = 64) -> int:
        flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        at = self.room(len(flat), align)
        self.bytes[at : at + len(flat)] = flat
        return at

    def gemm(self, m: int, n: int, k: int, fmt: DotFormat, *, bias: bool = False, relu: bool = False, out: OutFormat = OutFormat.FLOAT32, mx: int = 0) -> Gemm:
        """Random operands, and room for the result."""
        rng = self.rng
        a, w = (np.concatenate([codes(rng, fmt, rows) for _ in range(-(-k // fmt.lanes))], axis=1)[:, :k] for rows in (m, n))
        kw: dict[str, Any] = {}
        at_a, at_w = self.put(pack_rows(a, fmt)), self.put(pack_rows(w, fmt))
        if mx:
            places = [self.put(scale_rows(rng.integers(100, 150, (rows, -(-k // mx))).astype(np.uint8), fmt, mx)) for rows in (m, n)]
            kw |= dict(mx=mx, scale_a=places[0], scale_w=places[1])
        if bias:
            kw["bias"] = self.put(fp32.as_bits(rng.standard_normal(n).astype(np.float32).view(np.uint32)), 4)
        stride = n * (4 if out == OutFormat.FLOAT32 else 2) + int(rng.integers(0, 3)) * 4
        return Gemm(m=m, n=n, k=k, format_a=fmt, format_w=fmt, a=at_a, w=at_w, c=self.room(stride * m, 4), stride_c=stride, out=out, relu=relu, **kw)


async def run(b: Bench, pe: PeParams, memory: np.ndarray, programs: list[Program], *, deadline: int = 0, bound: int = 0, exact: bool = True) -> tuple[int, list[dict[str, int]]]:
    """Run a program on each core; (cycles, completions). With `exact`, completions and all of memory equal the golden element's."""
    programs = (programs + [[]])[:2]
    b.memory("axi").write(0, memory)
    for core, p in enumerate(programs):
        b.source(f"core{core}").load(packed(p) if p else np.zeros((0, INSTRUCTION.nbytes), np.uint8))
    total = sum(map(len, programs))
    b.sink("completion").expect(total)
    cycles = await b.run(deadline or 60 * bound + 2000 * total + 3 * pe.deadline, settle=64)
    got = [COMPLETION.unpack(w) for w in b.sink("completion").words()]
    if exact:
        want_memory = memory.copy()
        want = ProcessingElement(pe, want_memory).run(*programs)
        counts = [Counter((c["core"], c["unit"], c["tag"], c["status"]) for c in got), Counter((c.core, c.unit, c.tag, int(c.status)) for c in want)]
        assert counts[0] == counts[1], f"completions: {counts[0] - counts[1]} instead of {counts[1] - counts[0]}"
        image = b.memory("axi").image
        wrong = np.flatnonzero(image != want_memory)
        assert not len(wrong), f"{len(wrong)} bytes of memory differ, the first at {int(wrong[0]):#x}: {image[wrong[0]]:#x}, expected {want_memory[wrong[0]]:#x}"
        assert all(c["status"] == CpStatus.OK for c in got), [c for c in got if c["status"] != CpStatus.OK][:4]
    return cycles, got
