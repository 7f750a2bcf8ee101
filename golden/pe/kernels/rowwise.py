"""Kernels of rows on a processing element: softmax, LayerNorm, RMSNorm; any rows and columns of which some rows fit local memory.

X (rows, columns) and the result lie in memory at any byte, rows `stride` and `stride_out` bytes apart (0: packed). A block of rows comes in by DMA, a sequence of
instructions of the special function unit makes the result of it, and it leaves by DMA. The sequence, its roundings and what Inf and NaN give are those of
`golden.pe.sfu_rows`: every step's result is binary32, the last one's the kernel's format. Steps of two blocks alternate, so that what one waits for is hidden behind
the other.

| kernel | steps of all elements | steps of one value a row |
|---|---|---|
| Softmax | ROW_MAX, SUB, EXP, ROW_SUM, MUL | RECIPROCAL |
| LayerNorm | ROW_SUM, SUB, MUL, ROW_SUM, MUL, then MUL gamma, ADD beta | MUL 1/n, MUL 1/n, ADD epsilon, RSQRT |
| RmsNorm | MUL, ROW_SUM, MUL, then MUL gamma | MUL 1/n, ADD epsilon, RSQRT |

Bound, in cycles: every step of all elements takes max(ceil(columns / PeParams.lanes), words of its largest operand) a row, one step after the other::

    rows * sum over steps of max(ceil(columns / lanes), ceil(columns * size / 64))

or, if that is more, what the rows take on their way in and out (`rings.way`).
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from golden.pe import sfu, sfu_rows
from golden.pe.kernels.panels import F32, UNIT, Panel, apply, beats, check_format
from golden.pe.kernels.rings import (
    BYTES_LIMIT,
    LINE,
    NEAR,
    ROWS_LIMIT,
    Instruction,
    buffers,
    check_rows,
    joined,
    load,
    size_of,
    store,
    up,
    way,
)
from spec.assembly import instruction
from spec.convert import ConvertFormat
from spec.formats import FLOAT32
from spec.isa import SFU_ARGS
from spec.params import PeParams
from spec.sfu import SfuB, SfuOp

X, Y, W, D, COLUMN, GAMMA, BETA = range(7)  # circular buffers
LATENCY = 64  # cycles from the end of one step to the start of the next that takes its result, in the choice of blocks
COLUMNS_LIMIT = 1 << SFU_ARGS.widths["columns"]


class Step(NamedTuple):
    """One instruction: operation, circular buffers of its operands and result."""

    op: SfuOp
    a: int
    d: int
    b: int | None = None
    keep: bool = False
    low: int = 0


class Plan(NamedTuple):
    """Rows of a block, blocks that alternate, blocks that wait to be worked on (or to leave) beside them."""

    rows: int
    together: int
    ahead: int


def _bits(x: float) -> int:
    return int(np.asarray(np.float32(x)).view(np.uint32))


def reciprocal(n: int) -> int:
    """1 / n as the unit rounds it, the bits of a binary32."""
    return int(sfu.unary(SfuOp.RECIPROCAL, np.array(_bits(float(n)), np.uint32), "float32"))


@dataclass(frozen=True, kw_only=True)
class RowKernel(ABC):
    """Shape, formats (`format_out` None: as `format`) and places in memory.

    Raises (from `program`):
        ValueError: sizes, strides or formats that are none, or a row that does not fit local memory.
    """

    rows: int
    columns: int
    format: ConvertFormat
    x: int
    y: int
    format_out: ConvertFormat | None = None
    stride: int = 0
    stride_out: int = 0

    name = ""

    def __str__(self) -> str:
        return f"{self.name} of {self.rows} rows of {self.columns} elements in {self.format.name.lower()}"

    @property
    def out(self) -> ConvertFormat:
        return self.format if self.format_out is None else self.format_out

    @cached_property
    @abstractmethod
    def steps(self) -> list[Step]:
        """Instructions of the special function unit for a row, in order."""

    def vectors(self) -> list[tuple[int, int]]:
        """(circular buffer, address) of vectors that all rows share."""
        return []

    def _row_bytes(self) -> tuple[int, int]:
        return self.columns * self.format.slot_bits // 8, self.columns * self.out.slot_bits // 8

    def panels(self, plan: Plan) -> dict[int, Panel]:
        n, own = plan.rows, plan.together
        used = {x for s in self.steps for x in (s.a, s.d, s.b)}
        every = [
            Panel(X, self.format, n, self.columns, own + plan.ahead), Panel(Y, self.out, n, self.columns, own + plan.ahead), Panel(W, F32, n, self.columns, own + 1),
            Panel(D, F32, n, self.columns, own), Panel(COLUMN, F32, n, 1, own + 1, SfuB.COLUMN),
            *(Panel(cb, self.format, 1, self.columns, 1, SfuB.ROW) for cb in (GAMMA, BETA)),
        ]
        return {p.cb: p for p in every if p.cb in used}

    def _beats(self, pe: PeParams) -> list[int]:
        """Of each step of all elements, a row."""
        p = self.panels(Plan(1, 1, 0))
        return [beats(pe, s.op, p[s.a], p[s.d], None if s.b is None else p[s.b]) for s in self.steps if p[s.a].place != SfuB.COLUMN]

    def _strides(self) -> tuple[int, int]:
        return self.stride or self._row_bytes()[0], self.stride_out or self._row_bytes()[1]

    def _way(self, pe: PeParams, latency: int, rows: int) -> int:
        """Of `rows` rows in and out."""
        sides = [joined(rows, nbytes, stride, up(nbytes, LINE)) for nbytes, stride in zip(self._row_bytes(), self._strides(), strict=True)]
        return way(pe, latency, sides[:1], sides[1:])

    def bound(self, pe: PeParams, latency: int = 0) -> int:
        rows = self.plan(pe).rows
        whole, rest = divmod(self.rows, rows)
        return max(self.rows * sum(self._beats(pe)), whole * self._way(pe, latency, rows) + (self._way(pe, latency, rest) if rest else 0))

    def plan(self, pe: PeParams) -> Plan:
        """The plan with the fewest cycles of those that fit.

        Raises:
            ValueError: none does.
        """
        wide = self._beats(pe)
        narrow = len(self.steps) - len(wide)
        best: tuple[int, Plan] | None = None
        for n in sorted({min(self.rows, 1 << s) for s in range(12)}):
            blocks = -(-self.rows // n)
            for together, ahead in ((2, 2), (2, 0), (1, 1), (1, 0)):
                plan = Plan(n, together, ahead)
                rings = [p.ring for p in self.panels(plan).values()]
                if together > blocks or size_of(rings) > pe.local_bytes or any(r.room >= BYTES_LIMIT for r in rings) or n >= ROWS_LIMIT:
                    continue
                each = UNIT + (LATENCY if together == 1 else 0)
                work = sum(n * w + each for w in wide) + narrow * (n // pe.lanes + each)
                moved = self._way(pe, NEAR, n) + (0 if ahead else 2 * NEAR)
                cost = blocks * max(work, moved) + (moved if ahead else blocks * moved)
                if best is None or cost < best[0]:
                    best = cost, plan
        if best is None or self.columns >= COLUMNS_LIMIT:
            need = size_of([p.ring for p in self.panels(Plan(1, 1, 0)).values()])
            raise ValueError(f"{self}: buffers of {need} bytes for one row; expected at most the {pe.local_bytes} of local memory, and rows below {COLUMNS_LIMIT} elements")
        return best[1]

    def program(self, pe: PeParams) -> list[Instruction]:
        """Instructions of one core."""
        return list(self._instructions(pe))

    def _instructions(self, pe: PeParams) -> Iterator[Instruction]:
        for name in ("format", "out"):
            check_format(str(self), name, getattr(self, name))
        in_bytes, out_bytes = self._row_bytes()
        stride, stride_out = self._strides()
        check_rows(str(self), self.rows, self.columns, [("stride", stride, in_bytes), ("stride_out", stride_out, out_bytes)])
        plan = self.plan(pe)
        panels = self.panels(plan)
        x, y = panels[X], panels[Y]
        yield from buffers(pe, str(self), [p.ring for p in panels.values()])
        starts = range(0, self.rows, plan.rows)
        counts = [min(plan.rows, self.rows - s) for s in starts]

        def load_block(k: int) -> Instruction:
            return load(x.operand(counts[k]), self.x + starts[k] * stride, counts[k], in_bytes, stride, x.line)

        first = plan.together + plan.ahead
        yield load_block(0)
        for cb, address in self.vectors():
            yield load(panels[cb].operand(1), address, 1, in_bytes, in_bytes, in_bytes)
        yield from (load_block(k) for k in range(1, min(first, len(starts))))
        for k in range(0, len(starts), plan.together):
            here = range(k, min(k + plan.together, len(starts)))
            for s in self.steps:
                b = None if s.b is None else panels[s.b]
                for i in here:  # what a block does not free stands before those behind it
                    yield apply(s.op, panels[s.a], panels[s.d], counts[i], b=b, keep=s.keep, keep_b=s.b in (GAMMA, BETA), behind=i - k if s.keep else 0, low=s.low)
            yield from (load_block(i + first) for i in here if i + first < len(starts))
            yield from (store(y.operand(counts[i]), self.y + starts[i] * stride_out, counts[i], out_bytes, stride_out, y.line) for i in here)
        yield instruction("sync", tag=0xFFFF)


class Softmax(RowKernel):
    """exp(x - max) / sum of every row."""

    name = "softmax"

    @cached_property
    def steps(self) -> list[Step]:
        return [
            Step(SfuOp.ROW_MAX, X, COLUMN, keep=True), Step(SfuOp.SUB, X, W, COLUMN), Step(SfuOp.EXP, W, W), Step(SfuOp.ROW_SUM, W, COLUMN, keep=True),
            Step(SfuOp.RECIPROCAL, COLUMN, COLUMN), Step(SfuOp.MUL, W, Y, COLUMN),
        ]

    def direct(self, codes: NDArray[Any]) -> NDArray[Any]:
        """What the program must give."""
        return sfu_rows.softmax(codes, self.format.name.lower(), self.out.name.lower())


@dataclass(frozen=True, kw_only=True)
class _Norm(RowKernel):
    """`gamma`, `beta`: addresses of vectors of `columns` elements in `format`, or None."""

    epsilon: float = 1e-5
    gamma: int | None = None

    def vectors(self) -> list[tuple[int, int]]:
        return [] if self.gamma is None else [(GAMMA, self.gamma)]

    def _mean(self) -> Step:
        return Step(SfuOp.MUL, COLUMN, COLUMN, low=reciprocal(self.columns))

    def _root(self) -> list[Step]:
        if not 0 <= self.epsilon <= FLOAT32.max:
            raise ValueError(f"{self}: epsilon = {self.epsilon}; expected a number from 0 to the largest of float32")
        return [self._mean(), Step(SfuOp.ADD, COLUMN, COLUMN, low=_bits(self.epsilon)), Step(SfuOp.RSQRT, COLUMN, COLUMN)]

    def _scale(self, start: Step) -> list[Step]:
        """`start`, then the shared vectors; the last writes the result."""
        steps = [start, *(Step(SfuOp.MUL if cb == GAMMA else SfuOp.ADD, W, W, cb) for cb, _ in self.vectors())]
        return [*steps[:-1], steps[-1]._replace(d=Y)]


@dataclass(frozen=True, kw_only=True)
class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta of every row."""

    beta: int | None = None

    name = "LayerNorm"

    def vectors(self) -> list[tuple[int, int]]:
        return super().vectors() + ([] if self.beta is None else [(BETA, self.beta)])

    @cached_property
    def steps(self) -> list[Step]:
        return [
            Step(SfuOp.ROW_SUM, X, COLUMN, keep=True), self._mean(), Step(SfuOp.SUB, X, D, COLUMN), Step(SfuOp.MUL, D, W, D, keep=True), Step(SfuOp.ROW_SUM, W, COLUMN),
            *self._root(), *self._scale(Step(SfuOp.MUL, D, W, COLUMN)),
        ]

    def direct(self, codes: NDArray[Any], gamma: NDArray[Any] | None = None, beta: NDArray[Any] | None = None) -> NDArray[Any]:
        """What the program must give."""
        return sfu_rows.layer_norm(codes, self.format.name.lower(), epsilon=self.epsilon, gamma=gamma, beta=beta, format_out=self.out.name.lower())


@dataclass(frozen=True, kw_only=True)
class RmsNorm(_Norm):
    """x / sqrt(mean of squares + epsilon) * gamma of every row."""

    name = "RMSNorm"

    @cached_property
    def steps(self) -> list[Step]:
        return [Step(SfuOp.MUL, X, W, X, keep=True), Step(SfuOp.ROW_SUM, W, COLUMN), *self._root(), *self._scale(Step(SfuOp.MUL, X, W, COLUMN))]

    def direct(self, codes: NDArray[Any], gamma: NDArray[Any] | None = None) -> NDArray[Any]:
        """What the program must give."""
        return sfu_rows.rms_norm(codes, self.format.name.lower(), epsilon=self.epsilon, gamma=gamma, format_out=self.out.name.lower())


