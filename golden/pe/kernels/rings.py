"""What kernels share: circular buffers of equal blocks, and rows moved between them and memory.

A kernel's buffers are rings of blocks; an instruction that fills a block publishes all of it, the last that reads it frees all of it, whatever part
of it holds data. So an operand never goes over the end of its buffer.

What rows take on their way, in cycles, with memory `latency` cycles away (:func:`way`): the largest of

* the words of all rows, in and out: the DMA engine has one port of local memory, 64 bytes a cycle;
* the bursts of the rows in, and of the rows out, a burst of k beats in flight for latency + k + 2, `PeParams.dma_depth` of them at a time. A row is one burst a page of 4 KiB.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spec.assembly import instruction
from spec.dma import PAGE_BYTES
from spec.isa import DMA_ARGS, HEAD
from spec.params import PeParams

Instruction = dict[str, int]
Operand = tuple[int, int, int, int]

INSTRUCTION = 23  # cycles of the command processor, each
NEAR = 100  # cycles to memory that plans are made for
LINE = 64  # bytes of a row of local memory
BYTES_LIMIT = 1 << next(f.width for f in HEAD if f.name == "a_bytes")  # an operand has fewer
ROWS_LIMIT = 1 << DMA_ARGS.widths["rows"]


def up(x: int, to: int) -> int:
    """`x` up to a multiple of `to`."""
    return -(-x // to) * to


def lines(nbytes: int) -> int:
    """Rows of local memory that hold `nbytes` from the start of one."""
    return -(-nbytes // LINE)


def parts(n: int, part: int) -> list[tuple[int, int]]:
    """(count, size) of the parts of `n`, the last one smaller."""
    return [(k, size) for k, size in ((n // part, part), (1, n % part)) if k and size]


Move = tuple[int, int]  # rows, bytes of each


def _flight(pe: PeParams, latency: int, moves: Sequence[Move]) -> int:
    cycles = 0
    for rows, nbytes in moves:
        pages, rest = divmod(nbytes, PAGE_BYTES)
        cycles += rows * (pages * (latency + lines(PAGE_BYTES) + 2) + (latency + lines(rest) + 2 if rest else 0))
    return -(-cycles // pe.dma_depth)


def way(pe: PeParams, latency: int, reads: Sequence[Move], writes: Sequence[Move]) -> int:
    """What rows take on their way, as said above."""
    words = sum(rows * lines(nbytes) for rows, nbytes in (*reads, *writes))
    return max(words, _flight(pe, latency, reads), _flight(pe, latency, writes))


def odd(nbytes: int) -> int:
    """`nbytes` up to an odd multiple of 64: rows as far apart meet every bank, one after the other."""
    return LINE * (lines(nbytes) | 1)


@dataclass(frozen=True)
class Ring:
    """Circular buffer `cb` of `count` blocks of `room` bytes each."""

    cb: int
    room: int
    count: int

    def block(self, nbytes: int, offset: int = 0) -> Operand:
        """`nbytes` of the block; all of it is published, or freed."""
        return self.cb, offset, nbytes, self.room

    def peek(self, nbytes: int, offset: int = 0) -> Operand:
        """`nbytes` of the block, which stays as it is: read and not freed, or written and not published."""
        return self.cb, offset, nbytes, 0


def size_of(rings: Sequence[Ring]) -> int:
    return sum(r.room * r.count for r in rings)


def buffers(pe: PeParams, what: str, rings: Sequence[Ring]) -> Iterator[Instruction]:
    """Set the rings up, one behind the other.

    Raises:
        ValueError: they do not fit.
    """
    at = 0
    if size_of(rings) > pe.local_bytes or any(r.room >= BYTES_LIMIT for r in rings):
        raise ValueError(f"{what}: {size_of(rings)} bytes of buffers; expected at most the {pe.local_bytes} of local memory, in blocks below {BYTES_LIMIT}")
    for r in rings:
        yield instruction("buffer", cb=r.cb, base=at, size=r.room * r.count)
        at += r.room * r.count


def joined(rows: int, row_bytes: int, stride: int, local_stride: int) -> Move:
    """Rows that follow each other on both sides are one row."""
    one = rows == 1 or stride == local_stride == row_bytes and rows * row_bytes < BYTES_LIMIT
    return (1, rows * row_bytes) if one else (rows, row_bytes)


def _shape(rows: int, row_bytes: int, stride: int, local_stride: int) -> dict[str, Any]:
    n, nbytes = joined(rows, row_bytes, stride, local_stride)
    return dict(rows=n, planes=1, row_bytes=nbytes) | (dict(row_memory=stride, row_local=local_stride) if n > 1 else {})


def load(to: Operand, address: int, rows: int, row_bytes: int, stride: int, local_stride: int) -> Instruction:
    """Rows from memory."""
    return instruction("dma", d=to, address=address, **_shape(rows, row_bytes, stride, local_stride))


def store(what: Operand, address: int, rows: int, row_bytes: int, stride: int, local_stride: int) -> Instruction:
    """Rows to memory."""
    return instruction("dma", a=what, address=address, to_memory=1, **_shape(rows, row_bytes, stride, local_stride))


def check_rows(what: str, rows: int, columns: int, strides: Sequence[tuple[str, int, int]]) -> None:
    """Sizes of 1 or more, and for every (name, stride, bytes of a row) rows that do not overlap.

    Raises:
        ValueError: which is wrong, and what was expected.
    """
    if min(rows, columns) < 1:
        raise ValueError(f"{what}: sizes start at 1")
    for name, stride, nbytes in strides:
        if not nbytes <= stride < 1 << DMA_ARGS.widths["row_memory"] - 1:
            raise ValueError(f"{what}: {name} = {stride}; expected at least the {nbytes} bytes of a row, below 2^31")
