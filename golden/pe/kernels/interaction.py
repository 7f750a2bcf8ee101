"""Pairwise interaction on a processing element: of each sample's vectors v_0 ... v_(n-1) the row (v_0, then v_i . v_j for all i < j, row by row), as ranking models have it.

V (samples, vectors, K) lies in memory with rows of whole chunks of 64 bytes, one behind the other (what lies behind K in the last chunk does not count); X's rows are
`stride_x` bytes apart, of K + vectors * (vectors - 1) / 2 elements of V's format. Every dot product is a GEMM's: chunks in order, rounded once to the format. Of
tfloat32 the products are binary32 and lie apart, at `pairs`, in rows `stride_pairs` apart: the engine makes no tfloat32.

A few samples (`group`) make one product of all their rows with themselves; what is of two samples is not used. It costs the engine cycles that the command
processor needs for the two instructions anyway. Blocks of samples come in while the ones before them are worked on; the layout unit puts their rows together, which
leave whole.

Bound, in cycles: what the groups take the engine, or the command processor::

    ceil(samples / group) * max(2 * INSTRUCTION, rows * chunks * ceil(rows / PeParams.rows))      rows = group * vectors

or, if that is more, what V and the results take on their way (`rings.way`).
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert
from golden.pe.dot_product import dot_product
from golden.pe.kernels.rings import (
    BYTES_LIMIT,
    INSTRUCTION,
    LINE,
    ROWS_LIMIT,
    Instruction,
    Ring,
    buffers,
    check_rows,
    load,
    size_of,
    store,
    up,
    way,
)
from spec.assembly import instruction
from spec.isa import OutFormat
from spec.layout_unit import LayoutOp
from spec.params import PeParams
from spec.pe import CHUNK_BYTES, DotFormat

V, C, X = range(3)  # circular buffers
KINDS = {DotFormat.BFLOAT16: OutFormat.BFLOAT16, DotFormat.FLOAT16: OutFormat.FLOAT16, DotFormat.TFLOAT32: OutFormat.FLOAT32}


def direct(v: NDArray[np.integer], fmt: DotFormat) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the program must give: (v_0, dot products) of codes (samples, vectors, K)."""
    name = fmt.name.lower()
    first, second = np.triu_indices(v.shape[1], 1)
    pairs = np.array([dot_product(s, s, name, name)[first, second] for s in v]).reshape(len(v), len(first))
    return v[:, 0], pairs if fmt is DotFormat.TFLOAT32 else convert.narrow(pairs, name)


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """Sizes, format (bfloat16, float16 or tfloat32) and places in memory.

    Raises (from `program`):
        ValueError: another format, sizes or strides that are none, or a sample that does not fit local memory.
    """

    samples: int
    vectors: int
    k: int
    format: DotFormat
    v: int
    x: int
    stride_x: int
    pairs: int | None = None
    stride_pairs: int = 0

    def __str__(self) -> str:
        return f"interaction of {self.samples} samples of {self.vectors} vectors of {self.k}"

    @property
    def chunks(self) -> int:
        return -(-self.k // self.format.lanes)

    @property
    def size(self) -> int:
        return self.format.slot_bits // 8

    def _pairs(self) -> tuple[int, int]:
        """Where the products go, and the bytes from row to row."""
        return (self.x + self.k * self.size, self.stride_x) if self.pairs is None else (self.pairs, self.stride_pairs)

    def _cost(self, pe: PeParams, group: int) -> int:
        rows = group * self.vectors
        return max(2 * INSTRUCTION, rows * self.chunks * -(-rows // pe.rows))

    def _widths(self) -> tuple[int, int]:
        """Bytes of v_0 and of the products of a sample."""
        return self.k * self.size, self.vectors * (self.vectors - 1) // 2 * self.size

    def _rings(self, group: int, groups: int) -> list[Ring]:
        """Of V, the products, and rows of results: together, or products alone."""
        rows, (head, rest) = group * self.vectors * groups, self._widths()
        out = rest if self.pairs is not None else head + rest
        return [Ring(V, rows * self.chunks * CHUNK_BYTES, 2), Ring(C, rows * up(group * self.vectors * self.size, LINE), 2), Ring(X, group * groups * up(out, LINE), 2)]

    def blocks(self, pe: PeParams) -> tuple[int, int]:
        """(samples of a group, groups of a block).

        Raises:
            ValueError: not even one sample fits.
        """
        def fits(group: int, groups: int) -> bool:
            rings = self._rings(group, groups)
            return size_of(rings) <= pe.local_bytes and all(r.room < BYTES_LIMIT for r in rings) and groups < ROWS_LIMIT

        options = [g for g in range(1, 1 + min(8, self.samples)) if g * self.vectors <= pe.depth and fits(g, 1)]
        if not options:
            raise ValueError(f"{self}: expected at most {pe.depth} vectors, and twice the {sum(r.room for r in self._rings(1, 1))} bytes of a sample and its products in the "
                             f"{pe.local_bytes} bytes of local memory")
        group = min(options, key=lambda g: self._cost(pe, g) * -(-self.samples // g))
        most = -(-self.samples // group)
        return group, next(n for n in (min(most, 64 >> s) for s in range(7)) if fits(group, n))

    def bound(self, pe: PeParams, latency: int = 0) -> int:
        group, groups = self.blocks(pe)
        (head, rest), block = self._widths(), self.vectors * self.chunks * CHUNK_BYTES * group * groups
        out = [(self.samples, head), (self.samples, rest)] if self.pairs is not None else [(self.samples, head + rest)]
        whole = self.samples * self.vectors * self.chunks * CHUNK_BYTES
        return max(-(-self.samples // group) * self._cost(pe, group), way(pe, latency, [(whole // block, block), (1, whole % block)], out))

    def program(self, pe: PeParams) -> list[Instruction]:
        """Instructions of one core."""
        return list(self._instructions(pe))

    def _instructions(self, pe: PeParams) -> Iterator[Instruction]:
        if self.format not in KINDS:
            raise ValueError(f"{self}: {self.format.name.lower()}; expected {' or '.join(f.name.lower() for f in KINDS)}")
        if self.vectors < 2:
            raise ValueError(f"{self}: expected two vectors or more")
        if (self.format is DotFormat.TFLOAT32) != (self.pairs is not None):
            raise ValueError(f"{self}, {self.format.name.lower()}: expected `pairs` with tfloat32, and not without")
        head, rest = self._widths()
        check_rows(str(self), self.samples, self.k, [("stride_x", self.stride_x, head + (rest if self.pairs is None else 0)), ("stride_pairs", self._pairs()[1], rest)])
        group, groups = self.blocks(pe)
        v, c, x = self._rings(group, groups)
        yield from buffers(pe, str(self), [v, c, x])
        row = self.chunks * CHUNK_BYTES
        sample, line = self.vectors * row, c.room // (group * self.vectors * groups)
        tail = (self.k - (self.chunks - 1) * self.format.lanes) * self.size
        firsts = range(0, self.samples, group * groups)

        def block_in(first: int) -> Instruction:
            nbytes = min(group * groups, self.samples - first) * sample
            return load(v.block(nbytes), self.v + first * sample, 1, nbytes, nbytes, nbytes)

        yield block_in(0)
        for first in firsts:
            count = min(group * groups, self.samples - first)
            if first + group * groups < self.samples:
                yield block_in(first + group * groups)
            line_x = x.room // (group * groups)
            if self.pairs is None:
                yield instruction("layout", a=v.peek(count * sample), d=x.peek((count - 1) * line_x + head), kind=LayoutOp.COPY, size=self.size.bit_length() - 1, rows=count,
                                  columns=self.k, stride_a=sample, stride_d=line_x)
            else:
                yield store(v.peek((count - 1) * sample + head), self.x + first * self.stride_x, count, head, self.stride_x, sample)
            starts = range(0, count, group)
            for s in starts:
                rows = min(group, count - s) * self.vectors
                here, last = (s * sample, rows * row), s == starts[-1]
                yield instruction("dot", a=v.peek(here[1], here[0]), b=v.block(here[1], here[0]) if last else v.peek(here[1], here[0]), format_a=self.format,
                                  format_b=self.format, held=rows, rows=rows, chunks=self.chunks, tail=tail, stride_a=row, stride_b=row)
                to = (rows * line, s * self.vectors * line)
                yield instruction("reduce", d=c.block(*to) if last else c.peek(*to), held=rows, rows=rows, chunks=self.chunks, stride_d=line, out=KINDS[self.format])
            yield from self._rows(c, x, count, group, line)
            out_at, stride = self._pairs() if self.pairs is not None else (self.x, self.stride_x)
            nbytes = rest if self.pairs is not None else head + rest
            yield store(x.block((count - 1) * line_x + nbytes), out_at + first * stride, count, nbytes, stride, line_x)
        yield instruction("sync", tag=0xFFFF)

    def _rows(self, c: Ring, x: Ring, count: int, group: int, line: int) -> Iterator[Instruction]:
        """Products of a block to rows: of every place in a group, row i of all its samples in one go."""
        room, line_x = group * self.vectors * line, x.room // (c.room // (self.vectors * line))
        pieces = []
        for g in range(min(group, count)):
            n, to = -(-(count - g) // group), g * line_x + (0 if self.pairs is not None else self.k * self.size)
            for i in range(self.vectors - 1):
                columns = self.vectors - 1 - i
                at = (g * self.vectors + i) * line + (g * self.vectors + i + 1) * self.size
                pieces.append((((n - 1) * room + columns * self.size, at), ((n - 1) * group * line_x + columns * self.size, to), n, columns))
                to += columns * self.size
        for k, (source, target, n, columns) in enumerate(pieces):
            last = k == len(pieces) - 1
            yield instruction("layout", a=c.block(*source) if last else c.peek(*source), d=x.block(*target) if last else x.peek(*target), kind=LayoutOp.COPY,
                              size=self.size.bit_length() - 1, rows=n, columns=columns, stride_a=room, stride_d=group * line_x)
