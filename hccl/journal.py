"""The recent operations of every rank: what a timeout is explained with."""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass

DEPTH = 32


@dataclass(slots=True, kw_only=True)
class Entry:
    """One operation of a rank. `state`: running, done, or how it ended."""

    seq: int
    collective: str
    algorithm: str
    op: str
    dtype: str
    sizes: str
    state: str = "running"
    cycles: int | None = None

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.collective, self.op, self.dtype, self.sizes, f"by {self.algorithm}" if self.algorithm else "")))
        took = "" if self.cycles is None else f" in {self.cycles} cycles"
        return f"{self.seq}: {what}: {self.state}{took}"


class Journal:
    """The last DEPTH operations of each of `ranks` ranks, oldest first."""

    def __init__(self, ranks: int):
        self.entries: list[deque[Entry]] = [deque(maxlen=DEPTH) for _ in range(ranks)]

    def start(self, made: list[Entry]) -> None:
        for row, entry in zip(self.entries, made, strict=True):
            row.append(entry)

    def end(self, state: str, cycles: int | None = None) -> None:
        for row in self.entries:
            row[-1].state, row[-1].cycles = state, cycles

    def dump(self, most: int = 8) -> str:
        """The last `most` of every rank, newest last."""
        lines = []
        for rank, row in enumerate(self.entries):
            lines.append(f"  rank {rank}:")
            lines += [f"    {entry}" for entry in list(row)[-most:]]
        return "recent operations:\n" + "\n".join(lines)
