"""GEMM on a processing element: C = act(A · Wᵀ + bias), any M, N, K, every format, as a program of its instructions.

A (M, K) and W (N, K) lie in memory with K contiguous, as a linear layer's input and weight do; rows start at multiples of 64 bytes and are whole chunks of 64 bytes long
(what lies behind K in the last one does not count). MX scales lie beside: 8 bytes a row and chunk, rows of chunk 0 first (spec/isa.py: DOT_ARGS), as
`scale_rows` makes them. C (M, N) is float32, bfloat16 or float16 (int8: int32), rows `stride_c` bytes apart.

Blocks: W is held, `block_n` of its rows at a time, A is streamed in blocks of up to `block_m` rows; both of all K. For each block of W all of A streams by, `slots_a` blocks of it
in local memory; the last block of A pops W's parts one by one, so that the next block of W comes in behind them. C leaves by blocks of A's rows and W's columns.

The first product comes early: the first block of A has few rows, the first parts of W are small and grow, each loaded while those before are multiplied. The last result is out
soon: the last block of A has few rows, and its columns leave in spans, the last one narrow.

In local memory rows are `pitch` bytes apart: where their data is a multiple of 8 chunks a chunk more, so that they do not all begin in one bank; otherwise as in memory, and then a
block is moved in one piece.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from golden.pe.kernels.gemm_blocks import NoRoom, Sizes
from spec.assembly import instruction
from spec.isa import OutFormat
from spec.params import PeParams
from spec.pe import CHUNK_BYTES, DotFormat, Mx

A, W, BIAS, C = range(4)  # circular buffers
_AHEAD = 4  # blocks of A in local memory or on their way


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

    @property
    def size(self) -> int:
        """Bytes of a result."""
        return 4 if self.out == OutFormat.FLOAT32 else 2

    @property
    def bias_room(self) -> int:
        """Bytes of local memory for the bias."""
        return 0 if self.bias is None else -(-self.n * 4 // 64) * 64 + 64

    def sizes(self, pe: PeParams) -> Sizes:
        """What the choice of blocks depends on."""
        return Sizes(pe=pe, m=self.m, n=self.n, chunks=self.chunks, beside=8 * self.chunks if self.mx else 0, size=self.size, spare=self.bias_room)

    def slots(self, pe: PeParams) -> int:
        """Cycles of the engine with every row at once: a streamed row a cycle, groups and chunks filled up."""
        return -(-self.n // pe.rows) * self.chunks * self.m

    def bound(self, pe: PeParams, latency: int) -> int:
        """Cycles that no program can do without, behind a memory that answers `latency` cycles after an address or after a last word:

            latency + max(first + engine, words) + 1 + latency

        `latency`: nothing is there before the first read is answered, and nothing is over before the last write is.
        `engine`: for each group of held rows and each chunk a cycle a streamed row, but no less than the group's rows take to load (a row a cycle, beside the group before).
        `first`: words before the first product, a word a cycle: the first group's rows and a streamed row, of one chunk, with MX a line of scales each.
        `words`: all that goes over the DMA engine's port of local memory, a word a cycle: A, W and their scales once, and C, whole words a row.
        1: the word of the last sum, which goes when all others are gone.

        Not counted, though no program can do without: the latencies of units and command processor, and a word of memory that two rows of C share.
        """
        groups = [min(pe.rows, self.n - g) for g in range(0, self.n, pe.rows)]
        engine = self.chunks * sum(max(self.m, g) for g in groups)
        first = groups[0] + 1 + 2 * bool(self.mx)
        scales = -(-8 * self.chunks * (self.m + self.n) // 64) if self.mx else 0
        words = self.chunks * (self.m + self.n) + scales + self.m * -(-self.n * self.size // 64)
        return 2 * latency + max(first + engine, words) + 1

    def program(self, pe: PeParams) -> list[dict[str, int]]:
        """Instructions of one core."""
        shape = f"GEMM {self.m}x{self.n}x{self.k}"
        if min(self.m, self.n, self.k) < 1:
            raise ValueError(f"{shape}: sizes start at 1")
        if self.format_a is DotFormat.INT8 and self.out != OutFormat.FLOAT32:
            raise ValueError(f"GEMM of int8 with results in {self.out.name.lower()}: they are int32 only (out = FLOAT32)")
        if self.format_a.slot_bits == 4 and self.k % 2:
            raise ValueError(f"GEMM with K = {self.k}: rows of 4-bit elements hold an even number")
        try:
            return list(_Writer(self, pe).instructions())
        except NoRoom as e:
            raise ValueError(f"{shape}: {e}") from None


@dataclass
class Ring:
    """A circular buffer of slots of `slot` bytes, as its writer sees it: a block has a slot; or, where none that follows is larger (`shrinks`), a half of one, a
    quarter …. So no block goes over the end, and nothing is passed over."""

    slot: int

    def room(self, nbytes: int, shrinks: bool) -> int:
        """Bytes that a block of `nbytes` takes."""
        room = self.slot
        while shrinks and room % 128 == 0 and room // 2 >= nbytes:
            room //= 2
        return room


def spans(pieces: list[int]) -> list[list[int]]:
    """Pieces that leave together, at the end of a product: half of what is left each time, so that little is left to leave at last."""
    out: list[list[int]] = [[]]
    left = before = sum(pieces)
    for x in pieces:
        out[-1].append(x)
        left -= x
        if left and 2 * left <= before:
            out.append([])
            before = left
    return out


class _Writer:
    """Writes the instructions of a GEMM, block by block."""

    def __init__(self, gemm: Gemm, pe: PeParams):
        self.g, self.sizes = gemm, gemm.sizes(pe)
        self.blocks = b = self.sizes.blocks()
        self.tasks = self.sizes.tasks(b)
        self.a, self.c = Ring(self.sizes.room(b.block_m)), Ring(self.sizes.line(b.block_n) * b.block_m)
        self.bytes = {W: self.sizes.wide(b), A: b.slots_a * self.a.slot, C: b.slots_c * self.c.slot, BIAS: gemm.bias_room}
        self.base = dict(zip(self.bytes, accumulate([0, *self.bytes.values()]), strict=False))
        self.there: dict[int, int] = {}  # blocks of A in local memory: bytes
        rows = [t.rows for t in self.tasks]
        self.shrinks = next(i for i in range(len(rows)) if rows[i:] == sorted(rows[i:], reverse=True))  # from this task on
        self.loaded = 0  # blocks of A

    def instructions(self) -> Iterator[dict[str, int]]:
        g = self.g
        yield self._buffer(W)
        yield from self._load_part(0, 0)
        yield self._buffer(A)
        yield from self._load_blocks(1)
        yield self._buffer(C)
        if g.bias is not None:
            yield self._buffer(BIAS)
            yield instruction("dma", d=(BIAS, 0, 4 * g.n, g.bias_room), address=g.bias, rows=1, planes=1, row_bytes=4 * g.n)
        yield from self._load_part(0, 1)
        for i in range(len(self.tasks)):
            yield from self._task(i)
        yield instruction("sync", tag=0xFFFF)

    def _buffer(self, cb: int) -> dict[str, int]:
        return instruction("buffer", cb=cb, base=self.base[cb], size=self.bytes[cb])

    def _load(self, cb: int, room: int, first: int, rows: int) -> Iterator[dict[str, int]]:
        """Rows [first, first + rows) of an operand, then their scales; published together, `room` bytes."""
        g, pitch, beside = self.g, self.sizes.pitch, self.sizes.beside
        data = g.chunks * CHUNK_BYTES
        base, scales, total = (g.w, g.scale_w, g.n) if cb == W else (g.a, g.scale_a, g.m)
        whole = pitch == data  # one piece, in memory and in local memory
        yield instruction("dma", d=(cb, 0, rows * pitch, 0 if beside else room), address=base + first * data, rows=1 if whole else rows,
                          row_bytes=rows * data if whole else data, row_memory=data, row_local=pitch, planes=1)
        if beside:
            yield instruction("dma", d=(cb, rows * pitch, rows * beside, room), address=scales + 8 * first, rows=g.chunks, row_bytes=8 * rows,
                              row_memory=8 * total, row_local=8 * rows, planes=1)

    def _load_part(self, i: int, j: int) -> Iterator[dict[str, int]]:
        """Part `j` of the block of W of task `i`; nothing if it has fewer."""
        t = self.tasks[i]
        parts = self.sizes.parts(self.blocks, t.columns)
        if j < len(parts):
            yield from self._load(W, self.sizes.room(parts[j]), t.n0 + sum(parts[:j]), parts[j])

    def _load_blocks(self, most: int) -> Iterator[dict[str, int]]:
        """The next blocks of A, as long as there is room and fewer than `most` are there."""
        while self.loaded < len(self.tasks) and len(self.there) < most:
            t = self.tasks[self.loaded]
            room = self.a.room(self.sizes.room(t.rows), self.loaded >= self.shrinks)
            if sum(self.there.values()) + room > self.bytes[A]:
                return
            self.there[self.loaded] = room
            yield from self._load(A, room, t.m0, t.rows)
            self.loaded += 1

    def _task(self, i: int) -> Iterator[dict[str, int]]:
        g, t, final, size = self.g, self.tasks[i], i == len(self.tasks) - 1, self.g.size
        pieces = self.sizes.pieces(self.blocks, t, final)
        turns = t.last and not final  # the next block of W comes in behind this one
        j = p0 = 0
        for span in spans(pieces) if final else [pieces]:
            line, begin = self.sizes.line(sum(span)), p0
            room = self.c.room(line * t.rows, i >= self.shrinks)
            for k, columns in enumerate(span):
                if i == 0:
                    yield from self._load_part(0, j + 2)
                done = p0 + columns == t.columns
                pop_w = self.sizes.room(columns) if turns else self._wide(pieces) if final and done else 0
                yield self._dot(i, columns, used=0 if turns else self._wide(pieces[:j]), pop_w=pop_w, done=done)
                yield instruction(
                    "reduce", a=(BIAS, 4 * (t.n0 + p0), 4 * columns, 0) if g.bias is not None else None,
                    d=(C, (p0 - begin) * size, line * (t.rows - 1) + columns * size, room if k == len(span) - 1 else 0), held=columns, rows=t.rows,
                    chunks=g.chunks, stride_d=line, bias=int(g.bias is not None), integer=int(g.format_a is DotFormat.INT8), relu=int(g.relu), out=int(g.out))
                if turns and (i > 0 or done):  # parts of the first block come in their turn before
                    for part in range(j + 1) if i == 0 else [j]:
                        yield from self._load_part(i + 1, part)
                if done:
                    del self.there[i]
                    yield from self._load_blocks(_AHEAD)
                j, p0 = j + 1, p0 + columns
            yield instruction("dma", a=(C, 0, line * t.rows, room), address=g.c + t.m0 * g.stride_c + (t.n0 + begin) * size, to_memory=1, rows=t.rows, planes=1,
                              row_bytes=sum(span) * size, row_memory=g.stride_c, row_local=line)

    def _wide(self, pieces: list[int]) -> int:
        return sum(map(self.sizes.room, pieces))

    def _dot(self, i: int, held: int, *, used: int, pop_w: int, done: bool) -> dict[str, int]:
        """`held` rows of W, behind `used` bytes of it, with the block of A of task `i`, which nothing needs any more when `done`."""
        g, t, pitch, beside = self.g, self.tasks[i], self.sizes.pitch, self.sizes.beside
        mx = next(x for x in Mx if x.block == g.mx)
        return instruction(
            "dot", a=(W, used, held * (pitch + beside), pop_w), b=(A, 0, t.rows * (pitch + beside), self.there[i] if done else 0), format_a=g.format_w, format_b=g.format_a,
            mx_a=mx, mx_b=mx, held=held, rows=t.rows, chunks=g.chunks, tail=g.tail, stride_a=pitch, stride_b=pitch, scale_a=held * pitch if g.mx else 0,
            scale_b=t.rows * pitch if g.mx else 0)
