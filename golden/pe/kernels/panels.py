"""Panels: values of a block of rows in a ring, the special function unit's instructions on them, and the cycles that those take at best.

A panel's rows start at multiples of 64 bytes (ELEMENTS); or it is one row for all rows (ROW), or one value a row, packed (COLUMN): what row operations give.
An operation takes as many cycles a row as its elements need lanes, or the words of its largest operand need of a port.
"""
from __future__ import annotations

from dataclasses import dataclass

from golden.pe.kernels.rings import LINE, Instruction, Operand, Ring, lines, up
from spec.assembly import instruction
from spec.convert import ConvertFormat
from spec.params import PeParams
from spec.sfu import ROW as ROW_OPS
from spec.sfu import TAKES_B, SfuB, SfuOp

F32 = ConvertFormat.FLOAT32
UNIT = 31  # cycles of an instruction of the unit beyond those of its rows
FORMATS = tuple(f for f in ConvertFormat if f.slot_bits >= 8 and f is not ConvertFormat.FLOAT8_E8M0FNU)


@dataclass(frozen=True)
class Panel:
    """`columns` values a row of format `fmt`; `place` as said above. The ring's blocks hold `rows` rows."""

    cb: int
    fmt: ConvertFormat
    rows: int
    columns: int
    count: int
    place: SfuB = SfuB.ELEMENTS

    @property
    def size(self) -> int:
        return self.fmt.slot_bits // 8

    @property
    def row_bytes(self) -> int:
        return self.columns * self.size

    @property
    def line(self) -> int:
        """Bytes from row to row."""
        return {SfuB.ELEMENTS: up(self.row_bytes, LINE), SfuB.COLUMN: self.size}.get(self.place, 0)

    @property
    def ring(self) -> Ring:
        return Ring(self.cb, up(self.extent(self.rows, self.columns), LINE), self.count)

    def extent(self, rows: int, columns: int) -> int:
        """Bytes from the start to the end of `rows` rows of `columns` values."""
        wide = 1 if self.place == SfuB.COLUMN else columns
        return (0 if self.place == SfuB.ROW else (rows - 1) * self.line) + wide * self.size

    def operand(self, rows: int, *, columns: int = 0, keep: bool = False, behind: int = 0) -> Operand:
        """The oldest block, or the one `behind` blocks behind it, as far as `rows` and `columns` (0: all) go."""
        return self.cb, behind * self.ring.room, self.extent(rows, columns or self.columns), 0 if keep else self.ring.room


def check_format(what: str, name: str, fmt: ConvertFormat) -> None:
    if fmt not in FORMATS:
        raise ValueError(f"{what}: {name} = {fmt!r}; expected one of {', '.join(f.name.lower() for f in FORMATS)}")


def apply(op: SfuOp, a: Panel, d: Panel, rows: int, *, columns: int = 0, b: Panel | None = None, keep: bool = False, keep_b: bool = False,
          behind: int = 0, low: int = 0, high: int = 0, sat: bool = False) -> Instruction:
    """`op` of `a` and `b` (without: of `low`) to a block of `d`, as far as `rows` and `columns` (0: all) go. The blocks read are freed, but for those to keep;
    `a` to keep may stand behind others."""
    columns = columns or a.columns
    if a.place == SfuB.COLUMN:  # as one row of its values
        args = dict(rows=1, columns=rows)
    else:
        args = dict(rows=rows, columns=columns, stride_a=a.line, stride_d=d.line)
    operand = None
    if b is not None:
        operand = b.operand(rows, columns=columns, keep=keep_b or b is a, behind=behind if b is a else 0)
        args |= dict(source_b=b.place, format_b=b.fmt, stride_b=b.line)
    elif op in TAKES_B:
        args |= dict(source_b=SfuB.SCALAR, low=low)
    return instruction(f"sfu.{op.name.lower()}", a=a.operand(rows, columns=columns, keep=keep, behind=behind), b=operand, d=d.operand(rows, columns=columns), format_a=a.fmt,
                       format_d=d.fmt, high=high, sat=int(sat), **args)


def beats(pe: PeParams, op: SfuOp, a: Panel, d: Panel, b: Panel | None = None) -> int:
    """Cycles a row of `a`'s elements, at best."""
    words = [lines(p.columns * p.size) for p in (a, *([] if op in ROW_OPS else [d]), *([b] if b is not None and b.place != SfuB.COLUMN else []))]
    return max(-(-a.columns // pe.lanes), *words)
