"""Bursts on stream ports of an AXI4 subordinate: what a manager sends, and the check of what it gets, against a mirror of the bytes."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tb.lib.bench import Bench

BYTES = 64
FIXED, INCR, WRAP = 0, 1, 2
OKAY, SLVERR, DECERR = 0, 2, 3


@dataclass
class Burst:
    """A burst as the manager sends it; `data`, `strb` per beat (beats, 64) for writes."""

    addr: int
    beats: int
    size: int = 6
    burst: int = INCR
    id: int = 0
    data: np.ndarray | None = None
    strb: np.ndarray | None = None

    def addresses(self) -> list[int]:
        """Byte address of every beat (AXI A3.4.1)."""
        n = 1 << self.size
        first = self.addr
        aligned = first // n * n
        return [first if self.burst == FIXED or k == 0 else aligned + k * n for k in range(self.beats)]


@dataclass
class Port:
    """Work of one stream port in one run, and what it must answer."""

    writes: list[Burst] = field(default_factory=list)
    reads: list[Burst] = field(default_factory=list)


def load(b: Bench, name: str, work: Port) -> None:
    width = b.config.node.mem.addr_width

    def ax(x: Burst) -> int:
        return x.addr | (x.beats - 1) << width | x.size << width + 8 | x.burst << width + 11 | x.id << width + 13

    rows = []
    for x in work.writes:
        row = np.zeros((x.beats, 73), np.uint8)
        row[:, :64] = x.data
        row[:, 64:72] = np.packbits(x.strb, axis=1, bitorder="little")
        row[-1, 72] = 1
        rows.append(row)
    b.source(f"{name}__aw").load([ax(x) for x in work.writes])
    b.source(f"{name}__w").load(np.concatenate(rows) if rows else [])
    b.source(f"{name}__ar").load([ax(x) for x in work.reads])
    b.sink(f"{name}__b").expect(len(work.writes))
    b.sink(f"{name}__r").expect(sum(x.beats for x in work.reads))


def check(b: Bench, name: str, work: Port, mirror: np.ndarray) -> None:
    """B and R words of the run: ids, order, last, data (of reads that no write of the run overlaps)."""
    assert b.sink(f"{name}__b").words() == [OKAY | x.id << 2 for x in work.writes]
    rows, at = b.sink(f"{name}__r").array(), 0
    for x in work.reads:
        for k, addr in enumerate(x.addresses()):
            word = addr // BYTES * BYTES
            low = addr % BYTES
            high = (addr // (1 << x.size) + 1) * (1 << x.size) - word
            note = int(rows[at, 64])
            assert note == (k == x.beats - 1) << 2 | x.id << 3 & 0xFF, f"{name}: beat {k} of {x}: {note:#x}"
            assert (rows[at, low:high] == mirror[word + low : word + high]).all(), f"{name}: data of beat {k} of {x}"
            at += 1


def apply(mirror: np.ndarray, x: Burst) -> None:
    for k, addr in enumerate(x.addresses()):
        word = addr // BYTES * BYTES
        lanes = x.strb[k].astype(bool)
        mirror[word : word + BYTES][lanes] = x.data[k][lanes]


def linear(rng: np.random.Generator, addr: int, beats: int, most: int, *, write: bool) -> list[Burst]:
    """Full-width sequential bursts that cover `beats` words from `addr`."""
    out = []
    while beats:
        n = min(beats, int(rng.integers(1, most + 1)), (4096 - addr % 4096) // BYTES)
        x = Burst(addr, n, id=int(rng.integers(16)))
        if write:
            x.data, x.strb = rng.integers(0, 256, (n, 64), dtype=np.uint8), np.ones((n, 64), np.uint8)
        out.append(x)
        addr, beats = addr + n * BYTES, beats - n
    return out
