"""Ranges of the vector that algorithms work on, and the folds they are made of."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from hccl.layout import Layout
from hccl.moves import UNIT, Move

Range = tuple[int, int]


def chunk_bounds(nbytes: int, ranks: int) -> list[int]:
    """The ``ranks + 1`` byte offsets between chunks."""
    units = -(-nbytes // UNIT)
    return [min(nbytes, -(-units * c // ranks) * UNIT) for c in range(ranks + 1)]


def chunks(layout: Layout, n: int) -> list[Range]:
    """The vector of one block in `n` chunks."""
    return list(pairwise(chunk_bounds(layout.size, n)))


def blocks(layout: Layout) -> list[Range]:
    return [(v, v + length) for v, length in layout.vector]


def fold(members: Sequence[int], dst: int, part: Range, *, raw: bool = False) -> Iterator[Move]:
    """`dst` reduces the contributions of `members` in their order, its own in its place."""
    if len(members) == 1:
        return
    at = members.index(dst)
    for k, m in enumerate(members):
        if m == dst:
            if k:
                yield Move(dst, dst, *part, "own")
        else:
            yield Move(m, dst, *part, "first" if not k and at else "reduce", raw)


def send(src: int, dst: int, parts: Iterable[Range], kind: str = "copy") -> Iterator[Move]:
    """What is side by side in one move."""
    start = end = 0
    for lo, hi in parts:
        if lo == hi:
            continue
        if start == end:
            start = lo
        elif -(-end // UNIT) * UNIT != lo:
            yield Move(src, dst, start, end, kind)
            start = lo
        end = hi
    if start != end:
        yield Move(src, dst, start, end, kind)
