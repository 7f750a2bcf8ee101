"""What the proof keeps about data: expressions over the ranks' inputs, and memory as pieces of bytes with one history."""
from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

At = tuple[int, int, int, int]  # an access: channel, chain, position in the chain, operation


class Values:
    """Expressions over the inputs, each stored once: id -> ranks it holds (a bit mask), scaled, premultiplied, text."""

    def __init__(self, ranks: int):
        self.mask = [1 << r for r in range(ranks)]
        self.scaled = [False] * ranks
        self.premultiplied = [False] * ranks
        self.children: list[tuple[int, int] | None] = [None] * ranks
        self.names = [f"x{r}" for r in range(ranks)]
        self.ids: dict[tuple[int, int, bool], int] = {}

    def _new(self, key: tuple[int, int, bool], mask: int, premultiplied: bool, name: str = "", children: tuple[int, int] | None = None) -> int:
        if key not in self.ids:
            self.ids[key] = len(self.mask)
            self.mask.append(mask)
            self.scaled.append(key[2])
            self.premultiplied.append(premultiplied)
            self.children.append(children)
            self.names.append(name)
        return self.ids[key]

    def premultiply(self, a: int) -> int:
        """Raises: ValueError: not an input as it came."""
        if self.children[a] is not None or self.premultiplied[a]:
            raise ValueError(f"a factor on {self.text(a)}")
        return self._new((a, -1, False), self.mask[a], True, f"f{a}·x{a}")

    def combine(self, a: int, b: int, scale: bool) -> int:
        """Raises: ValueError: a rank would count twice, an operand is already scaled, or only one is premultiplied."""
        both = self.mask[a] & self.mask[b]
        if both:
            raise ValueError(f"the contribution of rank {(both & -both).bit_length() - 1} is counted twice")
        if self.scaled[a] or self.scaled[b]:
            raise ValueError("an operand is already scaled")
        if self.premultiplied[a] != self.premultiplied[b]:
            raise ValueError("one operand lacks its factor")
        return self._new((min(a, b), max(a, b), scale), self.mask[a] | self.mask[b], self.premultiplied[a], children=(a, b))

    def text(self, v: int) -> str:
        kids = self.children[v]
        if kids is None:
            return self.names[v]
        # Left operands nest as deep as there are ranks; unroll them.
        terms = []
        while kids is not None:
            a, b = kids
            terms.append(self.text(b))
            v, kids = a, self.children[a]
        head = self.names[v]
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
