"""Hierarchical: inside groups, then between them. Groups are lists of ranks of any sizes; rank m of a group is its m-th.

all_reduce cuts the vector into as many chunks as the smallest group has ranks; rank k of every group reduces chunk k of its group, those ranks form a
ring, and each hands the result to its group. In the others a group is represented for block b by its rank number (place of b in its own group) modulo
its size, and for a whole vector by its first rank (the root's group: by the root).
"""
from __future__ import annotations

from collections.abc import Iterator

from hccl.algorithms.ranges import blocks, chunks, fold
from hccl.moves import Move
from hccl.plan import Plan

ORDERS = {
    "all_reduce": "K = size of the smallest group, m groups, chunk k of K (as of a ring): P[g] = ((x[g0] op x[g1]) op ...) over the ranks of group g; "
    "then ((P[k] op P[k+1]) op ...) op P[k+m-1], groups modulo m",
    "reduce_scatter": "P[g] = ((x[g0] op x[g1]) op ...) over the ranks of group g; block of a rank of group h: ((P[h] op P[h+1]) op ...), groups modulo m",
    "reduce": "P[g] = ((x[g0] op x[g1]) op ...) over the ranks of group g; ((P[h] op P[h+1]) op ...), h the root's group, groups modulo m",
}


def _place(head: Plan) -> dict[int, tuple[int, int]]:
    """Group and place in it, by rank."""
    return {r: (g, i) for g, ranks in enumerate(head.groups) for i, r in enumerate(ranks)}


def _others(head: Plan, g: int) -> list[int]:
    m = len(head.groups)
    return [(g + k) % m for k in range(1, m)]


def all_reduce(head: Plan) -> Iterator[Move]:
    groups = head.groups
    m, parts = len(groups), chunks(head.layout, min(map(len, groups)))
    for group in groups:
        for k, part in enumerate(parts):
            yield from fold(group, group[k], part)
    for t in range(2 * (m - 1)):
        for k, part in enumerate(parts):
            g = (k + t) % m
            yield Move(groups[g][k], groups[(g + 1) % m][k], *part, "reduce" if t < m - 1 else "copy")
    for group in groups:
        for k, part in enumerate(parts):
            for r in group:
                if r != group[k]:
                    yield Move(group[k], r, *part)


def _deputy(group: tuple[int, ...], place: int) -> int:
    return group[place % len(group)]


def reduce_scatter(head: Plan) -> Iterator[Move]:
    place = _place(head)
    for b, part in enumerate(blocks(head.layout)):
        for group in head.groups:
            yield from fold(group, _deputy(group, place[b][1]), part)
    for b, part in enumerate(blocks(head.layout)):
        for g in _others(head, place[b][0]):
            yield Move(_deputy(head.groups[g], place[b][1]), b, *part, "reduce")


def all_gather(head: Plan) -> Iterator[Move]:
    place = _place(head)
    for b, part in enumerate(blocks(head.layout)):
        for g in _others(head, place[b][0]):
            yield Move(b, _deputy(head.groups[g], place[b][1]), *part)
    for b, part in enumerate(blocks(head.layout)):
        for group in head.groups:
            source = b if b in group else _deputy(group, place[b][1])
            for r in group:
                if r != source:
                    yield Move(source, r, *part)


def broadcast(head: Plan) -> Iterator[Move]:
    home = _place(head)[head.root][0]
    whole = (0, head.layout.size)
    for g in _others(head, home):
        yield Move(head.root, head.groups[g][0], *whole)
    for g, group in enumerate(head.groups):
        source = head.root if g == home else group[0]
        for r in group:
            if r != source:
                yield Move(source, r, *whole)


def reduce(head: Plan) -> Iterator[Move]:
    home = _place(head)[head.root][0]
    whole = (0, head.layout.size)
    for g, group in enumerate(head.groups):
        yield from fold(group, head.root if g == home else group[0], whole)
    for g in _others(head, home):
        yield Move(head.groups[g][0], head.root, *whole, "reduce")
