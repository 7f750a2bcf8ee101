"""The DMA engine of a processing element: descriptor and completion records.

A descriptor moves `rows` rows of `row_bytes` bytes, `planes` times, and all of that `repeats` times. The innermost loop is over rows; strides are
bytes, signed, from the start of one row (plane, repetition) to the start of the next. Addresses are computed modulo 2^64.
"""
from __future__ import annotations

from enum import IntEnum

from spec.fields import Record, field

ROW_BYTES = 64  # a row of the local memory, a beat of the bus
PAGE_BYTES = 4096  # no burst crosses one
INDEX_BYTES = 4


class DmaOp(IntEnum):
    COPY = 0
    FILL = 1  # source: the four bytes of `fill`, over and over, from the first at every row's start
    GATHER = 2  # source of row r: src + index[r] * row_src
    SCATTER = 3  # destination of row r: dst + index[r] * row_dst


class DmaStatus(IntEnum):
    """How a descriptor ended. Statuses from KIND on are errors."""

    OK = 0
    EMPTY_ROW = 1  # row_bytes 0: nothing to move
    EMPTY_COUNT = 2  # rows, planes or repeats 0: nothing to move
    KIND = 3  # GATHER or SCATTER with planes or repeats above 1
    ALIGN = 4  # index list not at a multiple of 4
    RANGE_INDEX = 5  # index list beyond the local memory
    RANGE_SOURCE = 6  # a row beyond its memory
    RANGE_DESTINATION = 7
    OVERLAP = 8  # a row's destination starts inside its own source, behind its first byte
    READ_ERROR = 9  # memory answered a read with an error
    WRITE_ERROR = 10
    INDEX_ERROR = 11  # the local memory answered an index read with an error


DMA_DESCRIPTOR = Record("DMA_DESCRIPTOR", 512, [
    field("tag", 16, "comes back with the completion"),
    field("op", 2, "DmaOp"),
    field("src_local", 1, "source in local memory, not in memory"),
    field("dst_local", 1, "destination in local memory, not in memory"),
    field("_pad", 12),
    field("row_bytes", 32),
    field("src", 64),
    field("dst", 64),
    field("rows", 16),
    field("planes", 16),
    field("repeats", 16),
    field("_pad2", 16),
    field("row_src", 32, "signed stride; GATHER: what an index is multiplied by"),
    field("row_dst", 32, "signed stride; SCATTER: what an index is multiplied by"),
    field("plane_src", 32, "signed stride"),
    field("plane_dst", 32, "signed stride"),
    field("repeat_src", 32, "signed stride"),
    field("repeat_dst", 32, "signed stride"),
    field("index", 32, "local address of the index list: unsigned 32-bit words"),
    field("fill", 32, "pattern of FILL"),
])

DMA_COMPLETION = Record("DMA_COMPLETION", 96, [
    field("tag", 16),
    field("status", 8, "DmaStatus"),
    field("_pad", 8),
    field("addr", 64, "failing address; 0 for OK, EMPTY_ROW, EMPTY_COUNT and KIND"),
])
