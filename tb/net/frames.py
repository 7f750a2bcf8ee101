"""Frames to beats and back, with the checks every packet stream must pass."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BEAT = 73  # bytes of a packed beat: 64 data, 8 keep, 1 with first (bit 0) and last (bit 1)


def beats(frames: Sequence[bytes]) -> np.ndarray:
    """(n, 73) rows; invalid bytes are filled with 0xEE so that a wrong keep shows."""
    counts = [-(-len(f) // 64) for f in frames]
    rows = np.full((sum(counts), BEAT), 0xEE, np.uint8)
    at = 0
    for frame, n in zip(frames, counts, strict=True):
        body = np.full(n * 64, 0xEE, np.uint8)
        body[: len(frame)] = np.frombuffer(frame, np.uint8)
        rows[at : at + n, :64] = body.reshape(n, 64)
        rows[at : at + n, 64:72] = 0xFF
        tail = len(frame) - 64 * (n - 1)
        rows[at + n - 1, 64:72] = np.frombuffer(((1 << tail) - 1).to_bytes(8, "little"), np.uint8)
        rows[at : at + n, 72] = 0
        rows[at, 72] |= 1
        rows[at + n - 1, 72] |= 2
        at += n
    return rows


def unpack(rows: np.ndarray) -> list[bytes]:
    """Frames of beats; fails on a stream that breaks first, last or keep."""
    out: list[bytes] = []
    frame = bytearray()
    inside = False
    for k, row in enumerate(rows):
        first, last = bool(row[72] & 1), bool(row[72] & 2)
        keep = int.from_bytes(row[64:72].tobytes(), "little")
        assert first != inside, f"beat {k}: first {first} inside {inside}"
        assert keep and not keep & (keep + 1), f"beat {k}: keep {keep:#x} is not contiguous from byte 0"
        assert last or keep == (1 << 64) - 1, f"beat {k}: invalid bytes before the last beat"
        frame += row[: keep.bit_length()].tobytes()
        inside = not last
        if last:
            out.append(bytes(frame))
            frame = bytearray()
    assert not inside, "a frame without its end"
    return out


def random_frames(rng: np.random.Generator, lengths: Sequence[int]) -> list[bytes]:
    return [rng.integers(0, 256, int(n), dtype=np.uint8).tobytes() for n in lengths]
