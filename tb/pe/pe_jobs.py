"""Programs on the processing element and on the golden one: completions and all of memory compared."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Operand:
    """Codes (rows, K), scales (rows, blocks) or none, and where both lie."""

    codes: np.ndarray
    fmt: DotFormat
    scale: np.ndarray | None
    at: int
    scale_at: int


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

    def operand(self, fmt: DotFormat, rows: int, k: int, mx: int) -> Operand:
        """Random rows, with MX scales or without."""
        x = np.concatenate([codes(self.rng, fmt, rows) for _ in range(-(-k // fmt.lanes))], axis=1)[:, :k]
        scale = self.rng.integers(100, 150, (rows, -(-k // mx))).astype(np.uint8) if mx else None
        return Operand(x, fmt, scale, self.put(pack_rows(x, fmt)), self.put(scale_rows(scale, fmt, mx)) if scale is not None else 0)

    def gemm(self, m: int, n: int, k: int, fmt: DotFormat, *, bias: bool = False, relu: bool = False, out: OutFormat = OutFormat.FLOAT32, mx: int = 0,
             other: DotFormat | None = None) -> Gemm:
        """Random operands (`a`, `w`, `bias`: the last ones), W in the format `other` if that is given, and room for the result at any byte."""
        self.a, self.w = self.operand(fmt, m, k, mx), self.operand(other or fmt, n, k, mx)
        self.bias = fp32.as_bits(self.rng.standard_normal(n).astype(np.float32).view(np.uint32)) if bias else None
        at_bias = None if self.bias is None else self.put(self.bias, 4)
        stride = n * (4 if out == OutFormat.FLOAT32 else 2) + int(self.rng.integers(0, 50))
        return Gemm(m=m, n=n, k=k, format_a=self.a.fmt, format_w=self.w.fmt, a=self.a.at, w=self.w.at, c=self.room(stride * m, 1), stride_c=stride, bias=at_bias, out=out,
                    relu=relu, mx=mx, scale_a=self.a.scale_at, scale_w=self.w.scale_at)


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
