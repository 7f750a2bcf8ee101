"""What converters share: codes of source and target formats, the two mode bits, the flags, and the random bits of stochastic rounding.

The random bits are counter-based: `random_bits(seed, index)` depends on the seed and the element's index alone, so a result repeats whatever
the stalls, the order or the number of lanes. `mix` is a 32-bit bijection with low bias (two multiplications by odd constants between shifts)::

    random_bits(seed, index) = mix(index xor mix(seed xor SEED_XOR)) >> 8        24 bits
"""
from __future__ import annotations

from enum import IntEnum, IntFlag

from spec.formats import Format, format_of

RANDOM_BITS = 24
SEED_XOR = 0x9E3779B9
#: Steps of `mix`: x ^= x >> shift, then x *= multiplier modulo 2^32 (the last step has none).
MIX = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))


class ConvertFormat(IntEnum):
    """Code of a format at a converter's ports. Every one is a source; all but FLOAT8_E8M0FNU are targets. Names in lower case are those of
    `spec.formats`."""

    FLOAT32 = 0
    TFLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3
    FLOAT8_E4M3FN = 4
    FLOAT8_E5M2 = 5
    FLOAT6_E3M2FN = 6
    FLOAT6_E2M3FN = 7
    FLOAT4_E2M1FN = 8
    FLOAT8_E8M0FNU = 9
    INT8 = 10
    UINT8 = 11
    INT16 = 12
    INT32 = 13

    @property
    def format(self) -> Format:
        return format_of(self.name.lower())

    @property
    def slot_bits(self) -> int:
        """Bits an element stands in, in memory: 4 for 4-bit formats, else its container (8 for 6-bit elements, 32 for tfloat32)."""
        return 4 if self.format.bits == 4 else self.format.container_bits


class ConvertFlag(IntFlag):
    """What a conversion lost beyond rounding.

    NAN_LOST: a NaN, and the target has none. OVERFLOW: a finite number that rounds to beyond the target's range, or an infinity that did not
    stay one.
    """

    NAN_LOST = 1
    OVERFLOW = 2


def mix(x: int) -> int:
    """32 bits to 32 bits, one to one."""
    for shift, multiplier in MIX:
        x ^= x >> shift
        if multiplier is not None:
            x = x * multiplier & 0xFFFFFFFF
    return x


def random_bits(seed: int, index: int) -> int:
    """`RANDOM_BITS` bits for element `index` (modulo 2^32) under `seed`.

    Raises:
        ValueError: a seed that is not of 32 bits.
    """
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"seed {seed}: expected 0 <= seed < 2^32")
    return mix(index & 0xFFFFFFFF ^ mix(seed ^ SEED_XOR)) >> (32 - RANDOM_BITS)
