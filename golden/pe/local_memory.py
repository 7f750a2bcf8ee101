"""Local memory of the processing element as bytes, with the check bits of every 64-bit word where `pe.ecc` asks for them.

One access after the other, in the order in which the memory accepted them. Rows are 64 bytes. With ECC the counts of words with one and with two
wrong bits go up each time their row is read, by a read or by a write that gives some word only part of its bytes.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golden.common import ecc
from golden.numeric.arguments import integer, typed
from spec.params import PeParams

Bytes = NDArray[np.uint8]

ROW, WORDS = 64, 8


class LocalMemory:
    """`data` (rows, 64) and `checks` (rows, 8), uint8; all zero, which is a code word, at reset."""

    def __init__(self, pe: PeParams):
        self.pe = pe
        self.rows = pe.local_bytes // ROW
        self.data: Bytes = np.zeros((self.rows, ROW), np.uint8)
        self.checks: Bytes = np.zeros((self.rows, WORDS), np.uint8)
        self.corrected = 0
        self.damaged = 0

    def _row(self, row: int) -> int:
        return integer(row, "row of local memory", 0, self.rows - 1)

    def _decode(self, row: int) -> tuple[Bytes, NDArray[np.bool_]]:
        """The row with single errors corrected, and which words are beyond repair; counted."""
        fixed, single, double = ecc.decode(self.data[row].view("<u8"), self.checks[row])
        self.corrected = (self.corrected + int(single.sum())) % (1 << 32)
        self.damaged = (self.damaged + int(double.sum())) % (1 << 32)
        return fixed.view(np.uint8), double

    def read(self, row: int) -> tuple[Bytes, bool]:
        """(64 bytes, damaged beyond repair)."""
        row = self._row(row)
        if not self.pe.ecc:
            return self.data[row].copy(), False
        data, double = self._decode(row)
        return data, bool(double.any())

    def write(self, row: int, data: Bytes, strobes: NDArray[np.bool_], flip: Bytes | None = None) -> None:
        """The bytes of `strobes` (64 bool). `flip`: (8, 9) uint8, XORed into data and check bits of the words written."""
        row = self._row(row)
        data, strobes = typed(data, "data", (ROW,)), typed(strobes, "strobes", (ROW,), "bool")
        flip = None if flip is None else typed(flip, "flip", (WORDS, 9))
        if not self.pe.ecc:
            if flip is not None:
                raise ValueError("flip: only a memory with ECC has it")
            self.data[row][strobes] = data[strobes]
            return
        some, whole = strobes.reshape(WORDS, 8).any(axis=1), strobes.reshape(WORDS, 8).all(axis=1)
        merged, written = np.array(data, np.uint8), some
        if (some & ~whole).any():
            old, double = self._decode(row)
            merged = np.where(strobes, data, old)
            written = some & ~(double & ~whole)
        code = np.concatenate([merged.reshape(WORDS, 8), ecc.encode(merged.view("<u8"))[:, None]], axis=1)
        if flip is not None:
            code = code ^ flip
        self.data[row].reshape(WORDS, 8)[written] = code[written, :8]
        self.checks[row][written] = code[written, 8]

    def load(self, address: int, values: Bytes) -> None:
        """Bytes from outside, with good check bits for every word of the rows they touch."""
        values = typed(values, "values", None)
        if integer(address, "address") < 0 or address + len(values) > self.data.size:
            raise ValueError(f"{len(values)} bytes at {address:#x}; local memory has {self.data.size}")
        self.data.reshape(-1)[address : address + len(values)] = values
        first, end = address // ROW, -(-(address + len(values)) // ROW)
        self.checks[first:end] = ecc.encode(self.data[first:end].view("<u8"))

    def bank(self, bank: int) -> Bytes:
        """Rows of a bank as the hardware's array holds them: (rows, 64) bytes, or with ECC (rows, 72), each word followed by its check bits."""
        bank = integer(bank, "bank", 0, self.pe.local_banks - 1)
        data, checks = self.data[bank :: self.pe.local_banks], self.checks[bank :: self.pe.local_banks]
        if not self.pe.ecc:
            return data.copy()
        return np.concatenate([data.reshape(-1, WORDS, 8), checks[:, :, None]], axis=2).reshape(len(data), 72)
