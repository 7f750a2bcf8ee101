"""What the proof keeps about data: expressions over the ranks' inputs, and memory as pieces of bytes with one history."""
from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

At = tuple[int, int, int, int]  # an access: channel, chain, position in the chain, operation


class Values:
    """Expressions over the inputs, each stored once: id -> ranks it holds (a bit mask), scaled, text."""

    def __init__(self, ranks: int):
        self.mask = [1 << r for r in range(ranks)]
        self.scaled = [False] * ranks
        self.children: list[tuple[int, int] | None] = [None] * ranks
        self.ids: dict[tuple[int, int, bool], int] = {}

    def combine(self, a: int, b: int, scale: bool) -> int:
        """Raises: ValueError: a rank would count twice, or an operand is already scaled."""
        both = self.mask[a] & self.mask[b]
        if both:
            raise ValueError(f"the contribution of rank {(both & -both).bit_length() - 1} is counted twice")
        if self.scaled[a] or self.scaled[b]:
            raise ValueError("an operand is already scaled")
        key = (min(a, b), max(a, b), scale)
        if key not in self.ids:
            self.ids[key] = len(self.mask)
            self.mask.append(self.mask[a] | self.mask[b])
            self.scaled.append(scale)
            self.children.append((a, b))
        return self.ids[key]

    def text(self, v: int) -> str:
        kids = self.children[v]
        if kids is None:
            return f"x{v}"
        # Left operands nest as deep as there are ranks; unroll them.
        terms = []
        while kids is not None:
            a, b = kids
            terms.append(self.text(b))
            v, kids = a, self.children[a]
        head = f"x{v}"
        for t in reversed(terms):
            head = f"({head} op {t})"
        return head


@dataclass(slots=True)
class Piece:
    """Bytes with one history: value and where it comes from, who wrote it and who has read it since."""

    start: int
    end: int
    value: int | None = None
    delta: int = 0  # position in the buffer minus position in the vector
    writer: At | None = None
    readers: list[At] = field(default_factory=list)


class Memory:
    """Pieces of one buffer in order."""

    def __init__(self, size: int, value: int | None):
        self.pieces = [Piece(0, size, value)] if size else []
        self.starts = [0] if size else []

    def _cut(self, at: int) -> None:
        i = bisect_right(self.starts, at) - 1
        if i < 0 or self.starts[i] == at or at >= self.pieces[i].end:
            return
        p = self.pieces[i]
        self.pieces.insert(i + 1, Piece(at, p.end, p.value, p.delta, p.writer, list(p.readers)))
        self.starts.insert(i + 1, at)
        p.end = at

    def range(self, start: int, end: int) -> list[Piece]:
        self._cut(start)
        self._cut(end)
        return self.pieces[bisect_left(self.starts, start) : bisect_left(self.starts, end)]
