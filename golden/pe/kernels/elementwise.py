"""Elementwise operations on a processing element: activations, conversions, arithmetic with elements, a row, a column or a number; any rows and columns.

Y = op(X), op(X, B) or, for CLAMP, min(max(X, B), high), one instruction of the special function unit a tile, rounded once to the result's format. X and Y
(rows, columns) lie in memory at any byte, rows `stride` and `stride_out` bytes apart (0: packed). B is as large as X (ELEMENTS, packed rows `stride_b` apart), one
row (ROW), one element a row (COLUMN, packed), or the binary32 `low` (SCALAR). Where everything is packed, rows do not matter and are taken as one.

Bound, in cycles: what the unit takes, the words of B and Y as those of X::

    rows * max(ceil(columns / PeParams.lanes), ceil(columns * size / 64))

or, if that is more, what the rows of all tiles take on their way in and out (`rings.way`).
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.pe import sfu
from golden.pe.kernels.panels import F32, UNIT, Panel, apply, beats, check_format
from golden.pe.kernels.rings import (
    BYTES_LIMIT,
    INSTRUCTION,
    NEAR,
    ROWS_LIMIT,
    Instruction,
    Move,
    buffers,
    check_rows,
    joined,
    load,
    parts,
    size_of,
    store,
    way,
)
from golden.pe.sfu import Rounding
from spec.assembly import instruction
from spec.convert import ConvertFormat
from spec.isa import SFU_ARGS
from spec.params import PeParams
from spec.sfu import TAKES_B, UNARY, SfuB, SfuOp

X, B, Y = range(3)  # circular buffers
BLOCKS = 3  # of each
COLUMNS_LIMIT = 1 << SFU_ARGS.widths["columns"]


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """Operation, shape, formats (None: as `format`) and places in memory. `sat`: overflow and infinities become the largest number.

    Raises (from `program`):
        ValueError: an operation of another kind, or sizes, strides or formats that are none.
    """

    op: SfuOp
    rows: int
    columns: int
    format: ConvertFormat
    x: int
    y: int
    format_out: ConvertFormat | None = None
    stride: int = 0
    stride_out: int = 0
    b: int = 0
    source_b: SfuB = SfuB.SCALAR
    format_b: ConvertFormat | None = None
    stride_b: int = 0
    low: int = 0
    high: int = 0
    sat: bool = False

    def __str__(self) -> str:
        return f"{self.op.name} of {self.rows}x{self.columns} elements in {self.format.name.lower()}"

    @property
    def takes_b(self) -> bool:
        return self.op in TAKES_B and self.source_b != SfuB.SCALAR

    def _formats(self) -> tuple[ConvertFormat, ConvertFormat, ConvertFormat]:
        """Of X, B, Y."""
        b, y = (self.format if f is None else f for f in (self.format_b, self.format_out))
        return self.format, b, y

    def _strides(self) -> tuple[int, int, int]:
        x, b, y = (f.slot_bits // 8 for f in self._formats())
        return self.stride or self.columns * x, self.stride_b or self.columns * b, self.stride_out or self.columns * y

    def shape(self) -> tuple[int, int]:
        """(rows, columns) as they are taken."""
        packed = all(s == self.columns * f.slot_bits // 8 for s, f in zip(self._strides(), self._formats(), strict=True))
        return (1, self.rows * self.columns) if packed and (not self.takes_b or self.source_b == SfuB.ELEMENTS) else (self.rows, self.columns)

    def panels(self, rows: int, columns: int) -> tuple[Panel, Panel | None, Panel]:
        x, b, y = self._formats()
        other = Panel(B, b, rows, 1 if self.source_b == SfuB.COLUMN else columns, BLOCKS, self.source_b) if self.takes_b else None
        return Panel(X, x, rows, columns, BLOCKS), other, Panel(Y, y, rows, columns, BLOCKS)

    def _rings(self, rows: int, columns: int) -> list[Any]:
        return [p.ring for p in self.panels(rows, columns) if p is not None]

    def _cost(self, pe: PeParams, latency: int, height: int, width: int) -> tuple[int, int]:
        """Cycles of a tile: of the unit, of its way in and out."""
        x, b, y = self.panels(height, width)
        reads: list[Move] = []
        writes: list[Move] = []
        for p, stride, moves in zip((x, b, y), self._strides(), (reads, reads, writes), strict=True):
            if p is not None:
                moves.append(joined(height, p.row_bytes, stride, p.line) if p.place == SfuB.ELEMENTS else (1, (width if p.place == SfuB.ROW else height) * p.size))
        return height * beats(pe, self.op, x, y, b), way(pe, latency, reads, writes)

    def bound(self, pe: PeParams, latency: int = 0) -> int:
        (rows, columns), (height, width) = self.shape(), self.tile(pe)
        costs = [(n * m, self._cost(pe, latency, h, w)) for n, h in parts(rows, height) for m, w in parts(columns, width)]
        return max(sum(n * c[k] for n, c in costs) for k in range(2))

    def tile(self, pe: PeParams) -> tuple[int, int]:
        """(rows, columns) of a tile: the fewest cycles, its own way in and out among them."""
        rows, columns = self.shape()
        best: tuple[int, tuple[int, int]] | None = None
        widths = [w for w in sorted({min(columns, 64 << s) for s in range(11)}) if w < COLUMNS_LIMIT]
        for height in sorted({min(rows, 1 << s) for s in range(13)}):
            for width in widths:
                rings = self._rings(height, width)
                if size_of(rings) > pe.local_bytes or any(r.room >= BYTES_LIMIT for r in rings) or height >= ROWS_LIMIT:
                    continue
                unit, moved = self._cost(pe, NEAR, height, width)
                cost = -(-rows // height) * -(-columns // width) * (max(unit + UNIT, moved) + 3 * INSTRUCTION) + unit + moved
                if best is None or cost < best[0]:
                    best = cost, (height, width)
        assert best is not None  # 64 elements take 2304 bytes
        return best[1]

    def direct(self, x: NDArray[Any], b: NDArray[Any] | None = None) -> NDArray[Any]:
        """What the program must give. `b`: of a shape that broadcasts to x's."""
        fx, fb, fy = (f.name.lower() for f in self._formats())
        how = Rounding("sat" if self.sat else "ovf")
        if self.op in UNARY:
            return sfu.unary(self.op, x, fx, fy, how)
        if b is None:
            b, fb = np.array(self.low, np.uint32), F32.name.lower()
        if self.op == SfuOp.CLAMP:
            return sfu.clamp(x, b, np.array(self.high, np.uint32), fx, fb, fy, how)
        return sfu.binary(self.op, x, b, fx, fb, fy, how)

    def program(self, pe: PeParams) -> list[Instruction]:
        """Instructions of one core."""
        return list(self._instructions(pe))

    def _check(self) -> None:
        if self.op not in (*UNARY, *TAKES_B):
            raise ValueError(f"{self}: expected one of {', '.join(o.name for o in (*UNARY, *TAKES_B))}")
        strides = []
        for name, end, fmt, stride in zip(("x", "b", "y"), ("", "_b", "_out"), self._formats(), self._strides(), strict=True):
            if name != "b" or self.takes_b:
                check_format(str(self), f"format{end}", fmt)
                if name != "b" or self.source_b == SfuB.ELEMENTS:
                    strides.append((f"stride{end}", stride, self.columns * fmt.slot_bits // 8))
        check_rows(str(self), self.rows, self.columns, strides)

    def _instructions(self, pe: PeParams) -> Iterator[Instruction]:
        self._check()
        rows, columns = self.shape()
        height, width = self.tile(pe)
        (stride, stride_b, stride_out), panels = self._strides(), self.panels(height, width)
        yield from buffers(pe, str(self), self._rings(height, width))
        tiles = [(r, c, min(height, rows - r), min(width, columns - c)) for r in range(0, rows, height) for c in range(0, columns, width)]

        def place(p: Panel, base: int, row_stride: int, r: int, c: int, h: int, w: int) -> tuple[Any, ...]:
            """Operand, address and shape of a tile's rows."""
            operand = p.operand(h, columns=w)
            if p.place == SfuB.ELEMENTS:
                return operand, base + r * row_stride + c * p.size, h, w * p.size, row_stride, p.line
            n, at = (w, c) if p.place == SfuB.ROW else (h, r)
            return operand, base + at * p.size, 1, n * p.size, 0, 0

        def tile_in(k: int) -> Iterator[Instruction]:
            for p, base, row_stride in zip(panels[:2], (self.x, self.b), (stride, stride_b), strict=True):
                if p is not None:
                    yield load(*place(p, base, row_stride, *tiles[k]))

        for k in range(min(BLOCKS, len(tiles))):
            yield from tile_in(k)
        x, b, y = panels
        for k, at in enumerate(tiles):
            yield apply(self.op, x, y, at[2], columns=at[3], b=b, low=self.low, high=self.high, sat=self.sat)
            if k + BLOCKS < len(tiles):
                yield from tile_in(k + BLOCKS)
            yield store(*place(y, self.y, stride_out, *at))
        yield instruction("sync", tag=0xFFFF)
