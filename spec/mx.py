"""Microscaling (MX) blocks: sizes, element formats and scale rules, with their codes at the hardware's ports.

A block is `block` consecutive elements of a row with one float8_e8m0fnu scale; the last block of a row may be short.
"""
from __future__ import annotations

from enum import IntEnum

BLOCKS = (16, 32)
#: Element formats; the place is the code.
ELEMENTS = ("float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn")
SCALE = "float8_e8m0fnu"
SCALE_NAN = 0xFF


class ScaleRule(IntEnum):
    """How the largest finite magnitude of a block becomes a power of two, before the largest exponent of the element format is subtracted.

    FLOOR: the power of two below or at it (OCP). CEIL: above or at it. RNE: the nearest; a tie (1.5 times a power of two) goes to the power whose
    own code in float8_e8m0fnu is even.
    """

    FLOOR = 0
    CEIL = 1
    RNE = 2
