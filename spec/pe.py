"""Compute engines of a processing element: formats of the dot product, and the records on their streams."""
from __future__ import annotations

from enum import IntEnum

from spec.fields import Record, field
from spec.formats import Format, format_of

CHUNK_BYTES = 64  # of one operand row: a chunk of K, in every configuration
WINDOW = 48  # bits of the dot product's window below the largest product's exponent


class DotFormat(IntEnum):
    """Element formats of the dot-product engine; names are those of `spec.formats`."""

    TFLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    FLOAT8_E4M3FN = 3
    FLOAT8_E5M2 = 4
    FLOAT6_E3M2FN = 5
    FLOAT6_E2M3FN = 6
    FLOAT4_E2M1FN = 7
    INT8 = 8

    @property
    def format(self) -> Format:
        return format_of(self.name.lower())

    @property
    def slot_bits(self) -> int:
        """Bits an element stands in: 4 for 4-bit formats, else its container (8 for 6-bit elements)."""
        return 4 if self.format.bits == 4 else self.format.container_bits

    @property
    def lanes(self) -> int:
        """Elements of a chunk."""
        return 8 * CHUNK_BYTES // self.slot_bits

    @property
    def scaled(self) -> bool:
        """Whether it may have MX scales: floats of up to 8 bits."""
        return self.slot_bits <= 8 and self.format.is_float


class Mx(IntEnum):
    """Block scales of an operand."""

    NONE = 0
    BLOCK_16 = 1
    BLOCK_32 = 2

    @property
    def block(self) -> int:
        """Elements of a block; 0 without."""
        return (0, 16, 32)[self]


# One chunk of one row. Element k stands at bit k * slot_bits of `data`; scale i, of elements [i * block, (i + 1) * block), at byte i of `scale`.
_CHUNK = (field("data", 8 * CHUNK_BYTES), field("scale", 64, "float8_e8m0fnu, with `mx`"), field("format", 4, "DotFormat"), field("mx", 2, "Mx"))

# A row of the held operand.
DOT_HELD = Record("DOT_HELD", 600, [*_CHUNK, field("row", 8), field("last", 1, "of its tile: rows not given are zero"), field("_pad", 9)])

# A row of the streamed operand.
DOT_ROW = Record("DOT_ROW", 600, [*_CHUNK, field("first", 1, "of its tile: the held rows loaded last are taken"), field("_pad", 1), field("tag", 16)])


class Fill(IntEnum):
    """What comes into an accumulator bank."""

    ACCUMULATE = 0  # results of the dot-product engine, added
    LOAD = 1  # rows of the bias stream, as they are


class Drain(IntEnum):
    """Where rows of an accumulator bank go."""

    MEMORY = 0
    SFU = 1
    NEIGHBOUR = 2
    NOWHERE = 3


_ROWS = (field("bank", 4, "modulo the number of banks"), field("base", 12, "first row; rows wrap at the bank's end"), field("count", 13, "rows"))

# Into a bank of the reduction engine.
RE_FILL = Record("RE_FILL", 40, [
    *_ROWS, field("op", 1, "Fill"), field("first", 1, "the rows replace what the bank holds"),
    field("open", 1, "a new sum: `bad` is forgotten"), field("close", 1, "the bank may be drained when this is done"), field("_pad", 7),
])

# Out of a bank of the reduction engine.
RE_DRAIN = Record("RE_DRAIN", 40, [
    *_ROWS, field("to", 2, "Drain"), field("merge", 1, "add each row to one of the neighbour's"), field("integer", 1, "int32, not binary32"),
    field("free", 1, "the bank is free after this"), field("_pad", 6),
])
