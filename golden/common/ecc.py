"""SECDED code of 64-bit words (`spec.ecc`), vectorised: check bits by a table of each byte, errors by a table of the syndrome."""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spec.ecc import COLUMNS, DATA_BITS

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

_GOOD, _BAD = 255, 254  # entries of _WHERE that are no bit: no error; beyond repair


def _tables() -> tuple[Bytes, Bytes]:
    parity = np.zeros((8, 256), np.uint8)
    for byte in range(8):
        for value in range(1, 256):
            low = (value & -value).bit_length() - 1
            parity[byte, value] = parity[byte, value & (value - 1)] ^ COLUMNS[8 * byte + low]
    where = np.full(256, _BAD, np.uint8)
    where[0] = _GOOD
    for bit, column in enumerate(COLUMNS):
        where[column] = bit
    for bit in range(8):
        where[1 << bit] = DATA_BITS + bit
    return parity, where


_PARITY, _WHERE = _tables()


def encode(words: Words) -> Bytes:
    """Check bits of each word."""
    parts = np.ascontiguousarray(words, np.dtype("<u8")).view(np.uint8).reshape(*np.shape(words), 8)
    return np.bitwise_xor.reduce(_PARITY[np.arange(8), parts], axis=-1)


def decode(words: Words, checks: Bytes) -> tuple[Words, NDArray[np.bool_], NDArray[np.bool_]]:
    """(words with single errors corrected, a bit was wrong, beyond repair)."""
    where = _WHERE[encode(words) ^ checks]
    wrong = where < DATA_BITS
    flips = np.where(wrong, np.uint64(1) << np.where(wrong, where, 0).astype(np.uint64), np.uint64(0))
    return words ^ flips, where < _BAD, where == _BAD
