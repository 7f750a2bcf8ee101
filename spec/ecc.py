"""SECDED code of a 64-bit memory word: 8 check bits, Hsiao's construction. One bit in error is corrected, two are detected.

Check bit i is the parity of the data bits whose column has bit i: column k of the parity-check matrix belongs to data bit k, column
64 + i (the unit vector 1 << i) to check bit i. Data columns: the 56 bytes of weight 3 in ascending order, then 0x1F and its seven
rotations to the left. All columns are distinct and of odd weight, so a double error gives an even, nonzero syndrome and is never taken for
a single one; every check bit covers 26 data bits. The word of zeros has check bits 0.
"""
from __future__ import annotations

DATA_BITS, CHECK_BITS = 64, 8
CODE_BITS = DATA_BITS + CHECK_BITS
COLUMNS = (
    *(k for k in range(256) if k.bit_count() == 3),
    *((0x1F << k | 0x1F >> (8 - k)) & 0xFF for k in range(8)),
)
MASKS = tuple(sum(1 << k for k, column in enumerate(COLUMNS) if column >> i & 1) for i in range(CHECK_BITS))  # data bits of each check bit
