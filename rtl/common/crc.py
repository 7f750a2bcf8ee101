"""Cyclic redundancy checks: one parameter object that computes a CRC in Python and builds its wide hardware update.

A CRC register is a vector over GF(2), and feeding bits to it is linear: after ``n`` bits ``state' = A^n * state ^ B * data``.
Both matrices are constants, so one step of any width is one parity of masked bits per state bit, with no chain of
single-bit steps: `width` parities of ``len(data) + width`` bits for :meth:`Crc.step`, all in one logic stage.

A message need not fill its last word. Pad the word with zero bytes after the message, step by the whole word, and then either

* :meth:`Crc.rewind` the register by the padding: zero bytes only multiply by ``A``, which is invertible, so a multiplication
  by ``A^-k`` undoes them; it is built in log stages, one constant matrix per bit of the count (a sender does this);
* or compare with :meth:`Crc.residue` of that much padding: a constant per count and no logic at all (a receiver does this).

Rules:
    Byte 0 of `data` is bits 7:0 and comes first. With `reflect` each byte is taken least significant bit first, the register
    shifts right, and the CRC is sent least significant byte first (Ethernet, iCRC); without it, most significant first.
    `state` is the bare register: it starts at `init`, and the CRC is ``state ^ xorout``.

Latency: combinational; the caller registers the result. Interval: 1.

Assumptions (each names the check that guards it):
    1. The polynomial has a constant term, so that A is invertible: `Crc` refuses others (test_refusals).
    2. `width` is at least 8 and `len(data)` a multiple of 8: refused otherwise (test_refusals).
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, reduce
from operator import xor

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike

Matrix = tuple[int, ...]  # column j: what state bit j becomes

_CHUNK = 64  # bits masked at a time: simulators work in machine words


def _apply(matrix: Matrix, vector: int) -> int:
    out = 0
    for j, column in enumerate(matrix):
        if vector >> j & 1:
            out ^= column
    return out


def _rows(columns: Matrix, width: int) -> list[int]:
    """Mask over the columns for each of `width` output bits."""
    return [sum((c >> i & 1) << j for j, c in enumerate(columns)) for i in range(width)]


def _parity(mask: int, value: Value) -> Value | None:
    """Parity of ``value & mask``; None where the mask is empty."""
    words = [
        value[at:at + _CHUNK] & (mask >> at & (1 << _CHUNK) - 1)
        for at in range(0, len(value), _CHUNK)
        if mask >> at & (1 << _CHUNK) - 1
    ]
    return reduce(xor, words).xor() if words else None


def _multiply(rows: list[int], value: Value) -> list[Value]:
    return [_parity(row, value) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Crc:
    """Parameters of a CRC, as in the catalogue of parametrised CRC algorithms.

    Args:
        width: register bits. polynomial: without its top term. init, xorout: register at the start, mask at the end.
        reflect: bytes and register run least significant bit first (refin and refout).
    """

    width: int
    polynomial: int
    init: int
    reflect: bool
    xorout: int

    def __post_init__(self) -> None:
        if self.width < 8:
            raise ValueError(f"Crc.width = {self.width}: expected 8 or more")
        for name in ("polynomial", "init", "xorout"):
            value = getattr(self, name)
            if not 0 <= value < 1 << self.width:
                raise ValueError(f"Crc.{name} = {value:#x} does not fit in {self.width} bits")
        if not self.polynomial & 1:
            raise ValueError(f"Crc.polynomial = {self.polynomial:#x}: expected a constant term (bit 0 set)")

    # -- Python -------------------------------------------------------------------------------------------------------

    def update(self, state: int, data: bytes) -> int:
        """The register after `data`."""
        table = _byte_table(self)
        for byte in data:
            if self.reflect:
                state = state >> 8 ^ table[(state ^ byte) & 0xFF]
            else:
                state = (state << 8 & (1 << self.width) - 1) ^ table[state >> self.width - 8 ^ byte]
        return state

    def compute(self, data: bytes) -> int:
        """The CRC of `data`."""
        return self.update(self.init, data) ^ self.xorout

    def to_wire(self, crc: int) -> bytes:
        """The CRC's bytes in the order in which they follow the message."""
        return crc.to_bytes(-(-self.width // 8), "little" if self.reflect else "big")

    def rewound(self, state: int, nbytes: int) -> int:
        """The register before `nbytes` zero bytes, given the register after them."""
        return _apply(self.advance(-8 * nbytes), state)

    def residue(self, padding: int = 0) -> int:
        """The register after any message, its CRC and `padding` zero bytes."""
        return self.update(self.init, self.to_wire(self.compute(b"")) + bytes(padding))

    def advance(self, nbits: int) -> Matrix:
        """A^nbits as columns; `nbits` may be negative."""
        return _power(self, nbits)

    # -- hardware -----------------------------------------------------------------------------------------------------

    def step(self, state: ValueLike, data: ValueLike) -> Value:
        """The register after all bytes of `data`; combinational. Both are read many times: pass signals."""
        state, data = Value.cast(state), Value.cast(data)
        if len(data) % 8 or not len(data):
            raise ValueError(f"Crc.step: data of {len(data)} bits, expected a positive multiple of 8")
        from_data = _multiply(_rows(_data_columns(self, len(data) // 8), self.width), data)
        from_state = _multiply(_rows(self.advance(len(data)), self.width), state)
        return _cat(_xor(d, s) for d, s in zip(from_data, from_state))

    def rewind(self, m: Module, state: ValueLike, count: ValueLike, *, unit: int = 1, always: int = 0) -> Value:
        """The register before ``unit * count + always`` zero bytes; combinational, one stage per bit of `count`.

        Every stage reads its input many times, so each is a signal of `m`.
        """
        count = Value.cast(count)
        stage = Signal(self.width, name="rewind")
        m.d.comb += stage.eq(self._matrix(self.advance(-8 * always), Value.cast(state)) if always else state)
        for bit in range(len(count)):
            before, stage = stage, Signal(self.width, name=f"rewind{unit << bit}")
            m.d.comb += stage.eq(Mux(count[bit], self._matrix(self.advance(-8 * unit << bit), before), before))
        return stage

    def _matrix(self, matrix: Matrix, state: Value) -> Value:
        return _cat(_multiply(_rows(matrix, self.width), state))


def _xor(a: Value | None, b: Value | None) -> Value | None:
    return a if b is None else b if a is None else a ^ b


def _cat(bits: Iterable[Value | None]) -> Value:
    return Cat(Const(0, 1) if bit is None else bit for bit in bits)


@cache
def _byte_table(crc: Crc) -> list[int]:
    return [_power_bits(crc, byte if crc.reflect else byte << crc.width - 8, 8) for byte in range(256)]


def _power_bits(crc: Crc, state: int, nbits: int) -> int:
    """`nbits` zero bits, one at a time."""
    top = 1 << crc.width - 1
    poly = int(f"{crc.polynomial:0{crc.width}b}"[::-1], 2) if crc.reflect else crc.polynomial
    for _ in range(nbits):
        if crc.reflect:
            state = state >> 1 ^ (poly if state & 1 else 0)
        else:
            state = (state << 1 & 2 * top - 1) ^ (poly if state & top else 0)
    return state


@cache
def _power(crc: Crc, nbits: int) -> Matrix:
    if nbits == 0:
        return tuple(1 << j for j in range(crc.width))
    if abs(nbits) == 1:
        one = tuple(_power_bits(crc, 1 << j, 1) for j in range(crc.width))
        return one if nbits > 0 else _inverse(one)
    half = _power(crc, nbits // 2 if nbits > 0 else -(-nbits // 2))
    square = tuple(_apply(half, column) for column in half)
    if nbits % 2 == 0:
        return square
    return tuple(_apply(_power(crc, 1 if nbits > 0 else -1), column) for column in square)


def _inverse(matrix: Matrix) -> Matrix:
    """Gauss-Jordan elimination on columns, carrying the identity along."""
    n = len(matrix)
    left, right = list(matrix), [1 << j for j in range(n)]
    for bit in range(n):
        pivot = next(j for j in range(bit, n) if left[j] >> bit & 1)
        left[bit], left[pivot] = left[pivot], left[bit]
        right[bit], right[pivot] = right[pivot], right[bit]
        for j in range(n):
            if j != bit and left[j] >> bit & 1:
                left[j] ^= left[bit]
                right[j] ^= right[bit]
    return tuple(right)


@cache
def _data_columns(crc: Crc, nbytes: int) -> Matrix:
    """Column per data bit, byte 0 first: what that bit alone leaves in the register after all `nbytes`."""
    table = _byte_table(crc)
    columns: list[int] = []
    for byte in reversed(range(nbytes)):
        after = bytes(nbytes - 1 - byte)
        columns = [crc.update(table[1 << bit], after) for bit in range(8)] + columns
    return tuple(columns)


# The RoCEv2 invariant CRC and the Ethernet FCS (IBA vol. 1 section 7.8.1; IEEE 802.3 section 3.2.9).
CRC32 = Crc(width=32, polynomial=0x04C11DB7, init=0xFFFFFFFF, reflect=True, xorout=0xFFFFFFFF)
