"""Byte counts of beats."""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value


def keep_count(m: Module, keep: Value, name: str = "valid_bytes") -> Signal:
    """Number of ones in `keep`, whose ones are contiguous from bit 0 (a power of two wide): a binary search, log2 stages."""
    width = len(keep)
    count = Signal(range(width + 1), name=name)
    rest, bits = keep[: width - 1], []
    half = width // 2
    while half:
        stage = Signal(half - 1, name=f"{name}_{half}") if half > 1 else None
        top = rest[half - 1]
        bits.append((half, top))
        if stage is not None:
            m.d.comb += stage.eq(Mux(top, rest[half:], rest[: half - 1]))
            rest = stage
        half //= 2
    with m.If(keep[width - 1]):
        m.d.comb += count.eq(width)
    with m.Else():
        for half, top in bits:
            m.d.comb += count[half.bit_length() - 1].eq(top)
    return count
