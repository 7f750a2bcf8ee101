"""Fault injection as a function on a list of frames (contract: docs/blocks/link.md): no time but the release of a last held frame."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MASK = (1 << 64) - 1
MAX_BYTES = 128 * 64


def step(x: int) -> int:
    """One step of the 64-bit xorshift generator (13, 7, 17)."""
    x ^= x << 13 & MASK
    x ^= x >> 7
    return x ^ x << 17 & MASK


def seeded(seed: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & MASK


@dataclass(kw_only=True)
class Result:
    """Frames in the order they leave, and the four statistics."""

    frames: list[bytes]
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    corrupted: int = 0


def inject(
    frames: Sequence[bytes], seed: int, *, p_drop: int = 0, p_dup: int = 0, p_reorder: int = 0, p_corrupt: int = 0
) -> Result:
    """What leaves when `frames` come in one after the other; probabilities out of 65536, not all zero."""
    out = Result(frames=[])
    state = seeded(seed)
    held: list[bytes] = []
    for frame in frames:
        a = step(state)
        b = state = step(a)
        if a & 0xFFFF < p_drop or len(frame) > MAX_BYTES:
            out.dropped += 1
            continue
        if a >> 48 < p_corrupt:
            out.corrupted += 1
            at = (b & 0xFFFF) * len(frame) >> 16
            frame = frame[:at] + bytes([frame[at] ^ 1 << (b >> 16 & 7)]) + frame[at + 1 :]
        copies = [frame]
        if a >> 16 & 0xFFFF < p_dup:
            out.duplicated += 1
            copies = [frame, frame]
        if not held and a >> 32 & 0xFFFF < p_reorder:
            held = copies
            continue
        out.frames += copies
        if held:
            out.reordered += 1
            out.frames += held
            held = []
    out.frames += held  # goes out by itself after a while
    return out
