"""GEMM on a processing element: C = act(A · Wᵀ + bias), any M, N, K, every format, as a program of its instructions.

A (M, K) and W (N, K) lie in memory with K contiguous, as a linear layer's input and weight do; rows start at multiples of 64 bytes and are whole chunks of 64 bytes long
(what lies behind K in the last one does not count). MX scales lie beside: 8 bytes a row and chunk, rows of chunk 0 first (spec/isa.py: DOT_ARGS), as
`scale_rows` makes them. C (M, N) is float32, bfloat16 or float16 (int8: int32), rows `stride_c` bytes apart.

Blocks: W is held, `block_n` of its rows at a time, A is streamed in blocks of `block_m` rows; both of all K. For each block of W all of A streams by, double-buffered;
the last block of A pops W's parts one by one, so that the next block of W comes in behind them. C leaves by blocks.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec.assembly import instruction
from spec.isa import OutFormat
from spec.params import PeParams
from spec.pe import CHUNK_BYTES, DotFormat, Mx

A, W, BIAS, C = range(4)  # circular buffers


def row_bytes(fmt: DotFormat, k: int) -> int:
    """Bytes of a row of K elements, in whole chunks."""
    return -(-k // fmt.lanes) * CHUNK_BYTES


def pack_rows(codes: NDArray[np.integer], fmt: DotFormat) -> NDArray[np.uint8]:
    """(rows, row_bytes) of (rows, K) codes; what is behind K is zero."""
    rows, k = codes.shape
    padded = np.zeros((rows, -(-k // fmt.lanes) * fmt.lanes), np.uint32)
    padded[:, :k] = codes
    if fmt.slot_bits == 4:
        return (padded[:, ::2] | padded[:, 1::2] << 4).astype(np.uint8)
    return np.ascontiguousarray(padded.astype(f"<u{fmt.slot_bits // 8}")).view(np.uint8).reshape(rows, -1)


def scale_rows(scale: NDArray[np.integer], fmt: DotFormat, block: int) -> NDArray[np.uint8]:
    """(chunks, rows, 8) of MX scales (rows, ceil(K / block)); 1 where there is no block."""
    rows, blocks = scale.shape
    each = fmt.lanes // block
    chunks = -(-blocks // each)
    out = np.full((rows, chunks * each), 127, np.uint8)
    out[:, :blocks] = scale
    return np.concatenate([out.reshape(rows, chunks, each), np.full((rows, chunks, 8 - each), 127, np.uint8)], axis=2).transpose(1, 0, 2).copy()


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """Shape, formats and places in memory. `mx`: 0, or 16 or 32, the block of both operands' scales at `scale_a`, `scale_w`.

    Raises (from `program`):
        ValueError: what does not fit local memory, or is no multiple of what it must be.
    """

    m: int
    n: int
    k: int
    format_a: DotFormat
    format_w: DotFormat
    a: int
    w: int
    c: int
    stride_c: int
    bias: int | None = None
    out: OutFormat = OutFormat.FLOAT32
    relu: bool = False
    mx: int = 0
    scale_a: int = 0
    scale_w: int = 0

    @property
    def chunks(self) -> int:
        return row_bytes(self.format_a, self.k) // CHUNK_BYTES

    @property
    def tail(self) -> int:
        """Bytes of the last chunk that count."""
        bits = (self.k - (self.chunks - 1) * self.format_a.lanes) * self.format_a.slot_bits
        return bits // 8 if bits % 8 == 0 else bits // 8 + 1

    def bound(self, pe: PeParams) -> int:
        """Cycles of the engine alone: a streamed row a cycle, groups and chunks filled up."""
        return -(-self.n // pe.rows) * self.chunks * self.m

    def blocks(self, pe: PeParams) -> tuple[int, int]:
        """(block_m, block_n) for local memory: two blocks of A, one of W, four of C; W in parts of up to 32 rows."""
        line = self.chunks * (CHUNK_BYTES + (8 if self.mx else 0))
        size = 4 if self.out == OutFormat.FLOAT32 else 2
        best: tuple[int, int] | None = None
        room = pe.local_bytes - 4 * 1024 - (-(-self.n // 16) * 64 + 64 if self.bias is not None else 0)
        m_most, n_most = min(pe.depth, max(self.m, 1)), -(-self.n // pe.rows) * pe.rows
        for block_n in sorted({min(n_most, pe.rows << s) for s in range(12)}, reverse=True):
            part = min(block_n, max(32, pe.rows))
            for block_m in sorted({min(m_most, 1 << s) for s in range(13)}, reverse=True):
                if block_n * line + 2 * block_m * line + 4 * block_m * part * size + 256 <= room:
                    traffic = -(-self.n // block_n) * self.m + self.n  # rows moved in
                    key = (traffic, -block_m)
                    if best is None or key < (-(-self.n // best[1]) * self.m + self.n, -best[0]):
                        best = block_m, block_n
        if best is None:
            raise ValueError(f"GEMM {self.m}x{self.n}x{self.k}: rows of {line} bytes; two of A and {pe.rows} of W do not fit in {pe.local_bytes} bytes of local memory")
        return best

    def program(self, pe: PeParams) -> list[dict[str, int]]:
        """Instructions of one core."""
        return list(self._instructions(pe))

    def _instructions(self, pe: PeParams) -> Iterator[dict[str, int]]:
        if min(self.m, self.n, self.k) < 1:
            raise ValueError(f"GEMM {self.m}x{self.n}x{self.k}: sizes start at 1")
        size = 4 if self.out == OutFormat.FLOAT32 else 2
        if self.format_a is DotFormat.INT8 and self.out != OutFormat.FLOAT32:
            raise ValueError(f"GEMM of int8 with results in {self.out.name.lower()}: they are int32 only (out = FLOAT32)")
        if self.format_a.slot_bits == 4 and self.k % 2:
            raise ValueError(f"GEMM with K = {self.k}: rows of 4-bit elements hold an even number")
        block_m, block_n = self.blocks(pe)
        part = min(block_n, max(32, pe.rows))
        parts = -(-block_n // part)
        data = self.chunks * CHUNK_BYTES
        mx = next(x for x in Mx if x.block == self.mx)
        beside = self.chunks * 8 if self.mx else 0

        def room(rows: int) -> int:
            """Bytes of a block of an operand, its scales behind it, in whole rows of local memory."""
            return -(-rows * (data + beside) // 64) * 64

        part_room, a_room = room(part), room(block_m)
        line_c = -(-part * size // 64) * 64
        c_room = line_c * block_m
        bias_room = -(-self.n * 4 // 64) * 64 + 64
        at = 0
        for cb, nbytes in ((W, part_room * parts), (A, 2 * a_room), (C, 4 * c_room), (BIAS, bias_room if self.bias is not None else 0)):
            yield instruction("buffer", cb=cb, base=at, size=nbytes)
            at += nbytes
        if at > pe.local_bytes:
            raise ValueError(f"GEMM {self.m}x{self.n}x{self.k}: {at} bytes of buffers; local memory has {pe.local_bytes}")

        def load(cb: int, block: int, first: int, rows: int, total: int, base: int, scales: int) -> Iterator[dict[str, int]]:
            """Rows [first, first + rows) of an operand, then their scales; published together, `block` bytes."""
            near: dict[str, Any] = dict(rows=rows, row_bytes=data, row_memory=data, row_local=data, planes=1)
            if not self.mx:
                yield instruction("dma", d=(cb, 0, rows * data, block), address=base + first * data, **near)
                return
            yield instruction("dma", d=(cb, 0, rows * data, 0), address=base + first * data, **near)
            yield instruction("dma", d=(cb, rows * data, rows * beside, block), address=scales + 8 * first, rows=self.chunks, row_bytes=8 * rows,
                              row_memory=8 * total, row_local=8 * rows, planes=1)

        if self.bias is not None:
            yield instruction("dma", d=(BIAS, 0, 4 * self.n, bias_room), address=self.bias, rows=1, planes=1, row_bytes=4 * self.n)

        def load_part(n0: int) -> Iterator[dict[str, int]]:
            yield from load(W, part_room, n0, min(part, self.n - n0), self.n, self.w, self.scale_w)

        def load_block(m0: int) -> Iterator[dict[str, int]]:
            yield from load(A, a_room, m0, min(block_m, self.m - m0), self.m, self.a, self.scale_a)

        blocks = [(n0, m0) for n0 in range(0, self.n, block_n) for m0 in range(0, self.m, block_m)]
        yield from load_part(0)
        yield from load_block(0)
        for n0 in range(part, min(block_n, self.n), part):
            yield from load_part(n0)
        if len(blocks) > 1:
            yield from load_block(blocks[1][1])
        for i, (n0, m0) in enumerate(blocks):
            rows = min(block_m, self.m - m0)
            last_m = m0 + block_m >= self.m
            here = list(range(n0, min(n0 + block_n, self.n), part))
            for j, p0 in enumerate(here):
                held = min(part, self.n - p0)
                pop_w = part_room if last_m else 0
                used = 0 if last_m else j * part_room
                yield instruction(
                    "dot", a=(W, used, held * (data + beside), pop_w), b=(A, 0, rows * (data + beside), a_room if p0 == here[-1] else 0),
                    format_a=self.format_w, format_b=self.format_a, mx_a=mx, mx_b=mx, held=held, rows=rows, chunks=self.chunks, tail=self.tail, stride_a=data,
                    stride_b=data, scale_a=held * data if self.mx else 0, scale_b=rows * data if self.mx else 0)
                yield instruction(
                    "reduce", a=(BIAS, 4 * p0, 4 * held, 0) if self.bias is not None else None, d=(C, 0, line_c * rows, c_room), held=held, rows=rows,
                    chunks=self.chunks, stride_d=line_c, bias=int(self.bias is not None), integer=int(self.format_a is DotFormat.INT8), relu=int(self.relu),
                    out=int(self.out))
                if last_m and n0 + block_n < self.n and n0 + block_n + j * part < self.n:
                    yield from load_part(n0 + block_n + j * part)
                yield instruction("dma", a=(C, 0, line_c * rows, c_room), address=self.c + m0 * self.stride_c + p0 * size, to_memory=1, rows=rows, planes=1,
                                  row_bytes=held * size, row_memory=self.stride_c, row_local=line_c)
            if i + 2 < len(blocks):
                yield from load_block(blocks[i + 2][1])
        yield instruction("sync", tag=0xFFFF)
