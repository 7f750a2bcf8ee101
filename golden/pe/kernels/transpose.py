"""Transpose on a processing element: B[c, r] = A[r, c] for elements of 1, 2 or 4 bytes, any rows and columns; bits are moved, never changed.

A (rows, columns) and B (columns, rows) lie in memory at any byte, their rows `stride` and `stride_out` bytes apart. A tile of A comes in by DMA, the layout unit
transposes it, and it leaves by DMA, while the next one is on its way in. In local memory rows of both tiles start at odd multiples of 64 bytes, so that a
column meets every bank. A single row or column is only moved.

Bound, in cycles: what the rows take on their way (`rings.way`), A's in, one a row of A and tile of columns, and B's out, one a row of B and tile of rows.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from golden.pe.kernels.rings import (
    BYTES_LIMIT,
    LINE,
    NEAR,
    ROWS_LIMIT,
    Instruction,
    Move,
    Ring,
    buffers,
    check_rows,
    joined,
    lines,
    load,
    odd,
    parts,
    size_of,
    store,
    way,
)
from spec.assembly import instruction
from spec.isa import LAYOUT_ARGS
from spec.layout_unit import LayoutOp
from spec.params import PeParams

A, B = range(2)  # circular buffers
OVERHEAD = 64  # cycles that a tile costs beyond its words, in the choice of tiles


def direct(a: NDArray[np.integer]) -> NDArray[np.integer]:
    """What the program must give."""
    return np.ascontiguousarray(a.T)


@dataclass(frozen=True, kw_only=True)
class Transpose:
    """Shape, bytes of an element, and places in memory; without strides rows follow each other.

    Raises (from `program`):
        ValueError: sizes or strides that are none.
    """

    rows: int
    columns: int
    size: int
    a: int
    b: int
    stride: int = 0
    stride_out: int = 0

    def __str__(self) -> str:
        return f"transpose of {self.rows}x{self.columns} elements of {self.size} bytes"

    def strides(self) -> tuple[int, int]:
        return self.stride or self.columns * self.size, self.stride_out or self.rows * self.size

    def _rings(self, height: int, width: int) -> tuple[Ring, Ring]:
        if self.vector:
            return Ring(A, LINE * lines(height * width * self.size), 3), Ring(B, LINE, 0)
        return Ring(A, height * odd(width * self.size), 2), Ring(B, width * odd(height * self.size), 2)

    @property
    def vector(self) -> bool:
        return min(self.rows, self.columns) == 1

    def _moves(self, height: int, width: int) -> list[list[Move]]:
        """Rows in and rows out, by tiles of so many rows and columns."""
        sides = [[(n * self.rows, w * self.size) for n, w in parts(self.columns, width)], [(n * self.columns, h * self.size) for n, h in parts(self.rows, height)]]
        if self.vector:
            sides = [[joined(n, nbytes, stride, self.size) for n, nbytes in side] for side, stride in zip(sides, self.strides(), strict=True)]
        return sides

    def _way(self, pe: PeParams, latency: int, height: int, width: int) -> int:
        reads, writes = self._moves(height, width)
        return way(pe, latency, reads, writes)

    def tile(self, pe: PeParams) -> tuple[int, int]:
        """(rows, columns) of a tile of A: the fewest cycles, its own way in and out among them."""
        best: tuple[int, tuple[int, int]] | None = None
        most = min(ROWS_LIMIT, 1 << LAYOUT_ARGS.widths["rows"]) - 1
        options = [sorted({min(n, most, m << s) for s in range(16) for m in (1, 3)}, reverse=True) for n in (self.rows, self.columns)]
        for height in options[0]:
            for width in options[1]:
                rings = self._rings(height, width)
                if size_of(rings) > pe.local_bytes or any(r.room >= BYTES_LIMIT for r in rings):
                    continue
                tiles = -(-self.rows // height) * -(-self.columns // width)
                reads, writes = replace(self, rows=height, columns=width)._moves(height, width)
                cost = self._way(pe, NEAR, height, width) + OVERHEAD * tiles + way(pe, NEAR, reads, []) + way(pe, NEAR, [], writes)
                if best is None or cost < best[0]:
                    best = cost, (height, width)
        assert best is not None  # a tile of one element takes 256 bytes
        return best[1]

    def bound(self, pe: PeParams, latency: int = 0) -> int:
        return self._way(pe, latency, *self.tile(pe))

    def program(self, pe: PeParams) -> list[Instruction]:
        """Instructions of one core."""
        return list(self._instructions(pe))

    def _instructions(self, pe: PeParams) -> Iterator[Instruction]:
        stride, stride_out = self.strides()
        check_rows(str(self), self.rows, self.columns, [("stride", stride, self.columns * self.size), ("stride_out", stride_out, self.rows * self.size)])
        if self.size not in (1, 2, 4):
            raise ValueError(f"{self}: expected elements of 1, 2 or 4 bytes")
        height, width = self.tile(pe)
        a, b = self._rings(height, width)
        line_a, line_b = (self.size, self.size) if self.vector else (odd(width * self.size), odd(height * self.size))
        yield from buffers(pe, str(self), [r for r in (a, b) if r.count])
        tiles = [(r, c, min(height, self.rows - r), min(width, self.columns - c)) for r in range(0, self.rows, height) for c in range(0, self.columns, width)]

        def tile_in(k: int) -> Instruction:
            r, c, h, w = tiles[k]
            return load(a.block(a.room), self.a + r * stride + c * self.size, h, w * self.size, stride, line_a)

        yield from (tile_in(k) for k in range(min(2, len(tiles))))
        for k, (r, c, h, w) in enumerate(tiles):
            if not self.vector:
                yield instruction("layout", a=a.block(a.room), d=b.block(b.room), kind=LayoutOp.TRANSPOSE, size=self.size.bit_length() - 1, rows=h, columns=w,
                                  stride_a=line_a, stride_d=line_b)
            if k + 2 < len(tiles):
                yield tile_in(k + 2)
            yield store((a if self.vector else b).block((a if self.vector else b).room), self.b + c * stride_out + r * self.size, w, h * self.size, stride_out, line_b)
        yield instruction("sync", tag=0xFFFF)
