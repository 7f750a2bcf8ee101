"""Special function unit: operations, number formats of its operands, and the segments of its tables, shared by golden model, hardware and tests.

Every function is a polynomial of degree 4 on each segment of its reduced argument::

    P(t) = c0 + (t*(c1 + (t*(c2 + (t*(c3 + (t*c4 >> 28)) >> 28)) >> 28)) >> 28)        value = P * 2^(e - 38)

with t the place in the segment, an integer below 2^28, the coefficients and P integers in units of 2^-38, and e the row's exponent; `>>` rounds
toward minus infinity. c0 to c4 and e stand in `ROWS` (written by `python -m tests.golden.sfu_generate` into spec/sfu_table.py, see there).

Where the segments of a function lie is said by its :class:`Region`, by the bits of the (normalised) significand: octave `e` of the argument,
[2^e, 2^(e+1)), is cut into 2^bits equal segments, rows base, base + 1, ... Below octave `first` there is one segment, [0, 2^first), row `near`.
"""
from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from spec.convert import ConvertFormat
from spec.sfu_table import OCTAVES, TEXT

FRACTION = 38  # bits of P below the point
PLACE = 28  # bits of t
POWER_FRACTION = 34  # bits of an exponent of 2 below the point: 6 of the segment, 28 of t
LOG2E_FRACTION = 39
LOG2E = 0xB8AA3B295C  # log2(e) * 2^39, to nearest
LN2_FRACTION = 54
LN2 = 0x2C5C85FDF473DE  # ln(2) * 2^54, to nearest
ROW_ELEMENTS = 1 << 20  # longest row of a row operation
DIGITS = 9  # 32-bit digits of the exact sum of a row; the least bit of digit 0 weighs 2^-149


class SfuOp(IntEnum):
    """Operations. Up to SOFTPLUS functions, up to COPY of one operand, then elementwise of two or three, then row operations."""

    EXP = 0
    EXP2 = 1
    LOG = 2
    RECIPROCAL = 3
    RSQRT = 4
    TANH = 5
    SIGMOID = 6
    GELU = 7
    SILU = 8
    SOFTPLUS = 9
    RELU = 10
    COPY = 11
    ADD = 12
    SUB = 13
    MUL = 14
    MIN = 15
    MAX = 16
    CLAMP = 17
    ROW_SUM = 18
    ROW_MIN = 19
    ROW_MAX = 20


FUNCTIONS = tuple(op for op in SfuOp if op <= SfuOp.SOFTPLUS)
UNARY = tuple(op for op in SfuOp if op <= SfuOp.COPY)
BINARY = (SfuOp.ADD, SfuOp.SUB, SfuOp.MUL, SfuOp.MIN, SfuOp.MAX)
TAKES_B = (*BINARY, SfuOp.CLAMP)
ROW = (SfuOp.ROW_SUM, SfuOp.ROW_MIN, SfuOp.ROW_MAX)


class SfuB(IntEnum):
    """Where an instruction's second operand comes from."""

    ELEMENTS = 0  # rows as those of `a`
    ROW = 1  # one row, for all rows
    COLUMN = 2  # one element a row, for all columns
    SCALAR = 3  # `low`, a binary32


#: Formats of the pipeline's operands; its results have any format but float8_e8m0fnu.
NATIVE = (ConvertFormat.FLOAT32, ConvertFormat.BFLOAT16, ConvertFormat.FLOAT16)

#: What travels with a beat after its operands, from the least bit: see docs/blocks/sfu.md.
CONTROL = (
    ("op", 5), ("format_a", 4), ("format_b", 4), ("format_out", 4), ("scalar", 1), ("first", 1), ("last", 1), ("sat", 1), ("stochastic", 1),
)


@dataclass(frozen=True, kw_only=True)
class Region:
    """Segments of one function. `octaves`: (base row, bits) of octave `first`, `first` + 1, ...; `near`: row of [0, 2^first), -1 if there is none."""

    first: int
    near: int
    octaves: tuple[tuple[int, int], ...]


#: exp2: argument 1 + f for the fraction f of the exponent; reciprocal, log: the significand; rsqrt: the significand, octave 1 for odd exponents;
#: tanh, sigmoid, gelu, softplus: the magnitude. Values: 2^f; 1/m; 1/sqrt(m); ln(1+d)/d with d = m - 1 below 1.5 and m/2 - 1 from there;
#: tanh(a)/a; sigmoid(-a); Phi(-a), the normal distribution; ln(1 + e^-a).
REGIONS: dict[str, Region] = {name: Region(first=first, near=near, octaves=octaves) for name, first, near, octaves in OCTAVES}


#: Width in bits of c0 (unsigned), c1 to c4 (two's complement) and of the negated exponent plus 1, and their place in a row of `TEXT`.
COEFFICIENT_BITS = (39, 36, 32, 27, 22)
EXPONENT_BITS = 8
ROW_HEX = 41


def _row(text: str) -> tuple[int, ...]:
    value, out = int(text, 16), []
    for k, bits in enumerate(COEFFICIENT_BITS):
        c = value & (1 << bits) - 1
        out.append(c - (1 << bits) if k and c >> (bits - 1) else c)
        value >>= bits
    return (*out, 1 - value)


#: (c0, c1, c2, c3, c4, e) of every row.
ROWS: tuple[tuple[int, ...], ...] = tuple(_row(TEXT[at:at + ROW_HEX]) for at in range(0, len(TEXT), ROW_HEX))
