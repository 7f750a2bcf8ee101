"""Rings and chains, as moves: every rank sends to the next.

reduce_scatter: block c starts at rank c+1 and ends at rank c. all_gather: block c goes from rank c once round. broadcast and reduce are a chain that
begins and ends at the root. An all-reduce that premultiplies is chunked as `hccl.algorithms.ring`, without its pipeline.
"""
from __future__ import annotations

from collections.abc import Iterator

from hccl.algorithms.ranges import Range, blocks, chunks
from hccl.moves import Move
from hccl.plan import Plan

ORDERS = {
    "reduce_scatter": "block c = ((x[c+1] op x[c+2]) op ...) op x[c], ranks modulo n",
    "reduce": "((x[root+1] op x[root+2]) op ...) op x[root], ranks modulo n",
}


def _reduce(parts: list[Range], n: int, first: int) -> Iterator[Move]:
    """Part c starts at rank c + first."""
    for t in range(n - 1):
        for c, part in enumerate(parts):
            yield Move((c + first + t) % n, (c + first + t + 1) % n, *part, "reduce")


def _gather(parts: list[Range], n: int, first: int) -> Iterator[Move]:
    for t in range(n - 1):
        for c, part in enumerate(parts):
            yield Move((c + first + t) % n, (c + first + t + 1) % n, *part)


def all_reduce(head: Plan) -> Iterator[Move]:
    parts = chunks(head.layout, head.ranks)
    yield from _reduce(parts, head.ranks, 0)
    yield from _gather(parts, head.ranks, head.ranks - 1)


def reduce_scatter(head: Plan) -> Iterator[Move]:
    return _reduce(blocks(head.layout), head.ranks, 1)


def all_gather(head: Plan) -> Iterator[Move]:
    return _gather(blocks(head.layout), head.ranks, 0)


def broadcast(head: Plan) -> Iterator[Move]:
    for t in range(head.ranks - 1):
        yield Move((head.root + t) % head.ranks, (head.root + t + 1) % head.ranks, 0, head.layout.size)


def reduce(head: Plan) -> Iterator[Move]:
    for t in range(1, head.ranks):
        yield Move((head.root + t) % head.ranks, (head.root + t + 1) % head.ranks, 0, head.layout.size, "reduce")
