"""Memory layout unit: its jobs and how they end.

A tile is `rows` x `columns` elements of 1, 2 or 4 bytes in local memory; element (r, c) of the source stands at byte
`source` + r * `source_stride` + c * size.

| op | writes source element (r, c) to |
|---|---|
| COPY | `destination` + r * `destination_stride` + c * size |
| TRANSPOSE | `destination` + c * `destination_stride` + r * size |

A slice is a COPY whose source is a part of a larger tile, a concatenation one COPY a part, each to its place in the larger tile.
"""
from __future__ import annotations

from enum import IntEnum

from spec.fields import Record, field


class LayoutOp(IntEnum):
    COPY = 0
    TRANSPOSE = 1


class LayoutStatus(IntEnum):
    """How a job ended. Where several apply the lowest is given; all but DAMAGED are found before anything is read or written."""

    OK = 0
    OP = 1  # no such op, or no such size of element
    ALIGN = 2  # TRANSPOSE: an address or a stride that is no multiple of the element's size
    STRIDE = 3  # more than one row is written, and the next begins before the last has ended
    RANGE = 4  # a byte of a tile is beyond local memory
    DAMAGED = 5  # a row with bytes of the source had an error (ECC); the tile was written all the same, with the bits as stored


LU_JOB = Record("LU_JOB", 192, [
    field("op", 2, "LayoutOp"), field("size", 2, "of an element: 0 one byte, 1 two, 2 four"), field("_pad", 12), field("tag", 16),
    field("rows", 16, "of the source"), field("columns", 16, "elements of a source row"),
    field("source", 32, "byte of local memory"), field("source_stride", 32, "bytes from row to row"),
    field("destination", 32), field("destination_stride", 32),
])

LU_DONE = Record("LU_DONE", 24, [field("tag", 16), field("status", 4, "LayoutStatus"), field("_pad", 4)])
