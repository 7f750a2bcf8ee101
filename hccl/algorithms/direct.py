"""Direct: every contribution goes straight to whoever needs it. Reductions add in rank order, so bits do not depend on the count.

all_reduce in one step sends every vector to every rank, which all reduce it alike; in two steps rank c reduces chunk c and sends it to all.
"""
from __future__ import annotations

from collections.abc import Iterator

from hccl.algorithms.ranges import Range, blocks, chunks, fold
from hccl.moves import Move
from hccl.plan import Plan

ORDER = "((x[0] op x[1]) op ...) op x[n-1]"


def _scatter(parts: list[Range], n: int) -> Iterator[Move]:
    for dst, part in enumerate(parts):
        yield from fold(range(n), dst, part)


def _gather(parts: list[Range], n: int) -> Iterator[Move]:
    for t in range(1, n):
        for c, part in enumerate(parts):
            yield Move(c, (c + t) % n, *part)


def all_reduce(head: Plan) -> Iterator[Move]:
    for dst in range(head.ranks):
        yield from fold(range(head.ranks), dst, (0, head.layout.size), raw=True)


def two_step(head: Plan) -> Iterator[Move]:
    parts = chunks(head.layout, head.ranks)
    yield from _scatter(parts, head.ranks)
    yield from _gather(parts, head.ranks)


def reduce_scatter(head: Plan) -> Iterator[Move]:
    return _scatter(blocks(head.layout), head.ranks)


def all_gather(head: Plan) -> Iterator[Move]:
    return _gather(blocks(head.layout), head.ranks)


def broadcast(head: Plan) -> Iterator[Move]:
    for t in range(1, head.ranks):
        yield Move(head.root, (head.root + t) % head.ranks, 0, head.layout.size)


def reduce(head: Plan) -> Iterator[Move]:
    return fold(range(head.ranks), head.root, (0, head.layout.size))


def gather(head: Plan) -> Iterator[Move]:
    for r, part in enumerate(blocks(head.layout)):
        if r != head.root:
            yield Move(r, head.root, *part)


def scatter(head: Plan) -> Iterator[Move]:
    parts = blocks(head.layout)
    for t in range(1, head.ranks):
        r = (head.root + t) % head.ranks
        yield Move(head.root, r, *parts[r])


def all_to_all(head: Plan) -> Iterator[Move]:
    """In step t rank r sends to rank r + t. In place, everything that leaves is set aside first."""
    n, parts = head.ranks, blocks(head.layout)
    if head.in_place:
        for i, part in enumerate(parts):
            if i % n != i // n:
                yield Move(i // n, i // n, *part)
    for t in range(1, n):
        for r in range(n):
            yield Move(r, (r + t) % n, *parts[r * n + (r + t) % n])
