"""Embedding tables on a processing element: rows gathered by an index list, and bags of them summed, or averaged.

A table lies in memory with rows `stride` bytes apart, the index list (unsigned 32-bit) at a multiple of 4; nothing checks indices but the end of memory. Both come by
DMA: lists of indices into local memory, the rows that they name behind them.

Gather moves rows as they are: row i of the result is the table's row index[i].

EmbeddingBag sums: bag b has the lookups from offsets[b] to offsets[b + 1], which the program's writer knows, as the core that runs it would; bags may differ in length
and be empty, whose result is +0 in every column. The rows of a bag are transposed in local memory, so that a column of it is a row of the special function unit. The order:

1. the sum of up to `piece` lookups, in every column, is exact and rounded once; of a longer bag, every `piece` lookups to binary32, and added in order;
2. with `mean` the sum, in binary32, is multiplied by RECIPROCAL of the bag's length;
3. the last of these steps rounds to the result's format. NaN, infinities and zeros as in `golden.pe.sfu_rows`.

Bounds, in cycles: what a row of the table a lookup, the list and the rows of the result take on their way (`rings.way`); of EmbeddingBag, if that is more, what the sums of
pieces of n lookups take the special function unit::

    sum over pieces of columns * max(ceil(n / PeParams.lanes), ceil(n * size / 64))
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from golden.pe import sfu, sfu_rows
from golden.pe.kernels.panels import F32, Panel, check_format
from golden.pe.kernels.rings import (
    BYTES_LIMIT,
    LINE,
    ROWS_LIMIT,
    Instruction,
    Ring,
    buffers,
    check_rows,
    lines,
    load,
    odd,
    size_of,
    store,
    up,
    way,
)
from golden.pe.kernels.rowwise import reciprocal
from spec.assembly import instruction
from spec.convert import ConvertFormat
from spec.dma import INDEX_BYTES, DmaOp
from spec.layout_unit import LayoutOp
from spec.params import PeParams
from spec.sfu import SfuB, SfuOp

INDEX, ROWS, TURNED, PART, OUT = range(5)  # circular buffers
LIST = 256  # indices that Gather loads at a time


def gather(to: tuple[int, int, int, int], index: tuple[int, int, int, int], table: int, rows: int, row_bytes: int, stride: int, line: int) -> Instruction:
    """`rows` rows of the table to local memory, `line` bytes apart."""
    return instruction("dma", d=to, b=index, kind=DmaOp.GATHER, address=table, rows=rows, planes=1, row_bytes=row_bytes, row_memory=stride, row_local=line)


def _check(what: str, lookups: int, columns: int, index: int, strides: Sequence[tuple[str, int, int]]) -> None:
    check_rows(what, 1, columns, strides)
    if lookups < 0 or index % INDEX_BYTES:
        raise ValueError(f"{what}, indices at {index:#x}: expected lookups from 0 on, and indices at a multiple of {INDEX_BYTES}")


@dataclass(frozen=True, kw_only=True)
class Gather:
    """`lookups` rows of `row_bytes` bytes; places in memory; strides 0: packed.

    Raises (from `program`):
        ValueError: sizes or strides that are none, or a row that does not fit local memory.
    """

    lookups: int
    row_bytes: int
    table: int
    index: int
    y: int
    stride: int = 0
    stride_out: int = 0

    def __str__(self) -> str:
        return f"gather of {self.lookups} rows of {self.row_bytes} bytes"

    def bound(self, pe: PeParams, latency: int = 0) -> int:
        return way(pe, latency, [(self.lookups, self.row_bytes), (1, INDEX_BYTES * self.lookups)], [(self.lookups, self.row_bytes)])

    def program(self, pe: PeParams) -> list[Instruction]:
        """Instructions of one core."""
        return list(self._instructions(pe))

    def direct(self, table: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
        """What the program must give."""
        return table[index]

    def _instructions(self, pe: PeParams) -> Iterator[Instruction]:
        stride, stride_out = self.stride or self.row_bytes, self.stride_out or self.row_bytes
        _check(str(self), self.lookups, self.row_bytes, self.index, [("stride", stride, self.row_bytes), ("stride_out", stride_out, self.row_bytes)])
        line = up(self.row_bytes, LINE)
        each, lists = self._each(pe), max(1, LIST // self._each(pe))  # rows of a block, blocks of a list
        index, rows = self._rings(each)
        yield from buffers(pe, str(self), [index, rows])
        starts = range(0, self.lookups, each)

        def indices(k: int) -> Iterator[Instruction]:
            """The list that block k begins, if there is one."""
            if k < len(starts):
                nbytes = INDEX_BYTES * min(each * lists, self.lookups - starts[k])
                yield load(index.block(nbytes), self.index + INDEX_BYTES * starts[k], 1, nbytes, 0, 0)

        def leave(k: int) -> Iterator[Instruction]:
            if 0 <= k < len(starts):
                n = min(each, self.lookups - starts[k])
                yield store(rows.block((n - 1) * line + self.row_bytes), self.y + starts[k] * stride_out, n, self.row_bytes, stride_out, line)

        yield from indices(0)
        for k, s in enumerate(starts):
            n, at = min(each, self.lookups - s), k % lists
            if at == 0:
                yield from indices(k + lists)
            part = INDEX_BYTES * n, INDEX_BYTES * each * at
            last = at == lists - 1 or k == len(starts) - 1
            yield gather(rows.block((n - 1) * line + self.row_bytes), index.block(*part) if last else index.peek(*part), self.table, n, self.row_bytes, stride, line)
            yield from leave(k - 2)
        yield from (*leave(len(starts) - 2), *leave(len(starts) - 1))
        yield instruction("sync", tag=0xFFFF)

    def _each(self, pe: PeParams) -> int:
        """Rows of a block: as many as the DMA engine has in flight, so that rows in and rows out, in turn, both go at full rate."""
        return next((n for n in (pe.dma_depth >> s for s in range(7)) if n and size_of(self._rings(n)) <= pe.local_bytes), 1)

    def _rings(self, each: int) -> tuple[Ring, Ring]:
        return Ring(INDEX, up(INDEX_BYTES * max(each, LIST), LINE), 2), Ring(ROWS, up(self.row_bytes, LINE) * each, 8 if each > 1 else 3)


class Piece(NamedTuple):
    """Lookups [start, start + n) of a bag."""

    bag: int
    start: int
    n: int
    first: bool
    last: bool


@dataclass(frozen=True, kw_only=True)
class EmbeddingBag:
    """Bags of rows of `columns` elements; formats (`format_out` None: as `format`), places in memory, strides (0: packed).

    Raises (from `program`):
        ValueError: sizes, strides, offsets or formats that are none, or a piece that does not fit local memory.
    """

    offsets: tuple[int, ...]
    columns: int
    format: ConvertFormat
    table: int
    index: int
    y: int
    format_out: ConvertFormat | None = None
    mean: bool = False
    stride: int = 0
    stride_out: int = 0
    piece: int = 128

    def __str__(self) -> str:
        return f"embedding bag, {len(self.offsets) - 1} bags of {self.lookups} rows of {self.columns} elements in {self.format.name.lower()}"

    @property
    def lookups(self) -> int:
        return self.offsets[-1] - self.offsets[0]

    @property
    def out(self) -> ConvertFormat:
        return self.format if self.format_out is None else self.format_out

    def pieces(self) -> list[Piece]:
        return [Piece(b, s, min(self.piece, end - s), s == start, s + self.piece >= end)
                for b, (start, end) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)) for s in range(start, end, self.piece)]

    def bound(self, pe: PeParams, latency: int = 0) -> int:
        size = self.format.slot_bits // 8
        moved = way(pe, latency, [(self.lookups, self.columns * size), (1, INDEX_BYTES * self.lookups)], [(len(self.offsets) - 1, self.columns * self.out.slot_bits // 8)])
        return max(moved, sum(self.columns * max(-(-p.n // pe.lanes), lines(p.n * size)) for p in self.pieces()))

    def direct(self, table: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
        """What the program must give. `index`: of all lookups from offset 0."""
        name, out, f32 = self.format.name.lower(), self.out.name.lower(), F32.name.lower()
        result = np.zeros((len(self.offsets) - 1, self.columns), table.dtype if name == out else np.dtype(f"u{self.out.slot_bits // 8}"))
        total: NDArray[Any] = np.zeros(0)
        for p in self.pieces():
            target = out if p.last and not self.mean else f32
            part = sfu_rows.row(SfuOp.ROW_SUM, table[index[p.start : p.start + p.n]].T, name, target if p.first else f32)
            total = part if p.first else sfu.binary(SfuOp.ADD, total, part, f32, f32, target)
            if p.last:
                n = np.array(reciprocal(self.offsets[p.bag + 1] - self.offsets[p.bag]), np.uint32)
                result[p.bag] = sfu.binary(SfuOp.MUL, total, n, f32, f32, out) if self.mean else total
        return result

    def _rings(self, block: int, width: int, turned: int) -> list[Ring]:
        size, long = self.format.slot_bits // 8, max((p.n for p in self.pieces()), default=1)
        return [Ring(INDEX, up(INDEX_BYTES * block, LINE), 2), Ring(ROWS, odd(width * size) * block, 2), Ring(TURNED, width * odd(long * size), turned),
                Ring(PART, up(width * F32.slot_bits // 8, LINE), 3), Ring(OUT, up(width * self.out.slot_bits // 8, LINE) * min(block, len(self.offsets)), 2)]

    def blocks(self, pe: PeParams) -> tuple[int, int, int]:
        """(lookups of a block at most, columns at a time, transposed pieces at a time).

        Raises:
            ValueError: not even one piece fits.
        """
        long = max((p.n for p in self.pieces()), default=1)
        for width in sorted({self.columns, *(min(self.columns, 16 << s) for s in range(12))}, reverse=True):
            for block in sorted({max(long, 1 << s) for s in range(10)}, reverse=True):
                for turned in (4, 2):
                    rings = self._rings(block, width, turned)
                    if size_of(rings) <= pe.local_bytes and all(r.room < BYTES_LIMIT for r in rings) and block < ROWS_LIMIT:
                        return block, width, turned
        need = size_of(self._rings(long, min(self.columns, 16), 2))
        raise ValueError(f"{self}: buffers of {need} bytes for a piece of {long} lookups; expected at most the {pe.local_bytes} of local memory: a smaller `piece`")

    def program(self, pe: PeParams) -> list[Instruction]:
        """Instructions of one core."""
        return list(self._instructions(pe))

    def _instructions(self, pe: PeParams) -> Iterator[Instruction]:
        for name in ("format", "out"):
            check_format(str(self), name, getattr(self, name))
        if self.piece < 1 or len(self.offsets) < 2 or self.offsets[0] < 0 or any(a > b for a, b in zip(self.offsets, self.offsets[1:], strict=False)):
            raise ValueError(f"{self}: piece = {self.piece}, offsets that end in {self.offsets[-3:]}; expected a piece of 1 or more, and offsets from 0 on that never fall")
        strides = [("stride", self.stride or self.columns * self.format.slot_bits // 8, self.columns * self.format.slot_bits // 8),
                   ("stride_out", self.stride_out or self.columns * self.out.slot_bits // 8, self.columns * self.out.slot_bits // 8)]
        _check(str(self), self.lookups, self.columns, self.index, strides)
        block, width, turned = self.blocks(pe)
        groups = self._groups(block)
        rings = self._rings(block, width, turned)
        yield from buffers(pe, str(self), rings)
        for c in range(0, self.columns, width):
            yield from _Columns(self, rings, c, min(width, self.columns - c)).instructions(groups)
        yield from self._empty(strides[1][1])
        yield instruction("sync", tag=0xFFFF)

    def _groups(self, block: int) -> list[list[Piece]]:
        """Pieces that come in together."""
        out: list[list[Piece]] = []
        room = 0
        for p in self.pieces():
            if p.n > room:
                out.append([])
                room = block
            out[-1].append(p)
            room -= p.n
        return out

    def _empty(self, stride: int) -> Iterator[Instruction]:
        """Zeros for runs of empty bags."""
        nbytes = self.columns * self.out.slot_bits // 8
        empty = [a == b for a, b in zip(self.offsets, self.offsets[1:], strict=False)]
        for none, run in groupby(range(len(empty)), empty.__getitem__):
            bags = list(run)
            for s in range(0, len(bags) if none else 0, ROWS_LIMIT - 1):
                yield instruction("dma", kind=DmaOp.FILL, to_memory=1, address=self.y + bags[s] * stride, rows=min(len(bags) - s, ROWS_LIMIT - 1), planes=1,
                                  row_bytes=nbytes, row_memory=stride)


class _Columns:
    """The program for columns [first, first + width) of all bags."""

    def __init__(self, bag: EmbeddingBag, rings: list[Ring], first: int, width: int):
        self.bag, self.first, self.width = bag, first, width
        self.index, self.rows, self.turned, part, self.out = rings
        self.size, self.size_out = bag.format.slot_bits // 8, bag.out.slot_bits // 8
        self.line, self.line_out = odd(width * self.size), up(width * self.size_out, LINE)
        self.part = Panel(PART, F32, 1, part.room // 4, part.count)

    def instructions(self, groups: list[list[Piece]]) -> Iterator[Instruction]:
        yield from (self._indices(g) for g in groups[:2])
        yield from (self._rows_in(g) for g in groups[:1])
        for k, group in enumerate(groups):
            yield from (self._rows_in(g) for g in groups[k + 1 : k + 2])
            yield from (self._indices(g) for g in groups[k + 2 : k + 3])
            yield from self._sums(group)
            yield from self._leave([p.bag for p in group if p.last])

    def _indices(self, group: list[Piece]) -> Instruction:
        nbytes = INDEX_BYTES * sum(p.n for p in group)
        return load(self.index.block(nbytes), self.bag.index + INDEX_BYTES * group[0].start, 1, nbytes, 0, 0)

    def _rows_in(self, group: list[Piece]) -> Instruction:
        n = sum(p.n for p in group)
        return gather(self.rows.block((n - 1) * self.line + self.width * self.size), self.index.block(INDEX_BYTES * n), self.bag.table + self.first * self.size, n,
                      self.width * self.size, self.bag.stride or self.bag.columns * self.size, self.line)

    def _sums(self, group: list[Piece]) -> Iterator[Instruction]:
        bag, at, done = self.bag, 0, 0
        ends = [p for p in group if p.last]
        for p in group:
            line = odd(p.n * self.size)
            tile = self.width, (self.width - 1) * line + p.n * self.size
            rows = ((p.n - 1) * self.line + self.width * self.size, at * self.line)
            yield instruction("layout", a=self.rows.block(*rows) if p is group[-1] else self.rows.peek(*rows), d=self.turned.block(tile[1]), kind=LayoutOp.TRANSPOSE,
                              size=self.size.bit_length() - 1, rows=p.n, columns=self.width, stride_a=self.line, stride_d=line)
            at += p.n
            to = (self.width * self.size_out, done * self.line_out)
            final = self.out.block(*to) if p.last and p is ends[-1] else self.out.peek(*to)
            part = self.part.operand(1, columns=self.width)
            direct = p.first and p.last and not bag.mean
            yield instruction("sfu.row_sum", a=self.turned.block(tile[1]), d=final if direct else part, format_a=bag.format, format_d=bag.out if direct else F32,
                              rows=self.width, columns=p.n, stride_a=line, stride_d=self.size_out if direct else 4)
            one: dict[str, Any] = dict(rows=1, columns=self.width, format_a=F32, format_d=bag.out if p.last and not bag.mean else F32)
            if not p.first:
                second = (PART, self.part.ring.room, self.width * 4, self.part.ring.room)
                yield instruction("sfu.add", a=part, b=second, d=final if p.last and not bag.mean else part, source_b=SfuB.ELEMENTS, format_b=F32, **one)
            if p.last and bag.mean:
                low = reciprocal(bag.offsets[p.bag + 1] - bag.offsets[p.bag])
                yield instruction("sfu.mul", a=part, d=final, source_b=SfuB.SCALAR, low=low, **one | dict(format_d=bag.out))
            done += p.last

    def _leave(self, bags: list[int]) -> Iterator[Instruction]:
        """Sums of a group, by runs of bags that follow each other."""
        stride = self.bag.stride_out or self.bag.columns * self.size_out
        runs = [list(run) for _, run in groupby(range(len(bags)), lambda k: bags[k] - k)]
        for run in runs:
            piece = ((len(run) - 1) * self.line_out + self.width * self.size_out, run[0] * self.line_out)
            yield store(self.out.block(*piece) if run is runs[-1] else self.out.peek(*piece), self.bag.y + bags[run[0]] * stride + self.first * self.size_out, len(run),
                        self.width * self.size_out, stride, self.line_out)
