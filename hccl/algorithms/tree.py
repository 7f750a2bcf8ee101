"""Trees: a binary tree for reductions and broadcasts, two of them for half the vector each, a binomial tree for gather and scatter.

A binary tree is a list of ranks: the parent of entry v > 0 is entry (v-1)//2. A rank reduces its own, then its first child's, then its second child's.
The tree of a rooted collective is root, root+1, …, of an all-reduce 0, 1, …; the second tree of a double tree is root, root-1, … or n-1, n-2, …: ranks
inside one tree are mostly leaves of the other.
"""
from __future__ import annotations

from collections.abc import Iterator

from hccl.algorithms.ranges import Range, blocks, chunk_bounds, send
from hccl.moves import Move
from hccl.plan import Plan

ORDER = "y[v] = (x[v] op y[2v+1]) op y[2v+2] over the list root, root+1, ... modulo n (all_reduce: root 0)"
ORDER_DOUBLE = (
    "first half of the 64-byte units: the tree of root, root+1, ... (all_reduce: 0, 1, ...); second half: of root, root-1, ... "
    "(all_reduce: n-1, n-2, ...); y[v] = (x[v] op y[2v+1]) op y[2v+2] over the list"
)


def _up(ranks: list[int], part: Range) -> Iterator[Move]:
    level = 1 << len(ranks).bit_length()
    while level > 1:
        for v in range(level - 1, min(2 * level - 1, len(ranks))):
            yield Move(ranks[v], ranks[(v - 1) // 2], *part, "reduce")
        level //= 2


def _down(ranks: list[int], part: Range) -> Iterator[Move]:
    for v in range(1, len(ranks)):
        yield Move(ranks[(v - 1) // 2], ranks[v], *part)


def _trees(head: Plan) -> list[tuple[list[int], Range]]:
    """Lists of ranks with the part of the vector each is for."""
    n, size = head.ranks, head.layout.size
    up = [(head.root + v) % n for v in range(n)]
    if head.algorithm != "double_tree":
        return [(up, (0, size))]
    down = up[::-1] if head.collective == "all_reduce" else [(head.root - v) % n for v in range(n)]
    middle = chunk_bounds(size, 2)[1]
    return [(up, (0, middle)), (down, (middle, size))]


def all_reduce(head: Plan) -> Iterator[Move]:
    yield from reduce(head)
    yield from broadcast(head)


def reduce(head: Plan) -> Iterator[Move]:
    for ranks, part in _trees(head):
        yield from _up(ranks, part)


def broadcast(head: Plan) -> Iterator[Move]:
    for ranks, part in _trees(head):
        yield from _down(ranks, part)


def _subtree(head: Plan, v: int, d: int) -> list[Range]:
    """Blocks of the entries v … v+d-1 of the list root, root+1, …, in the order of the vector."""
    parts = blocks(head.layout)
    return [parts[r] for r in sorted((head.root + u) % head.ranks for u in range(v, min(v + d, head.ranks)))]


def gather(head: Plan) -> Iterator[Move]:
    """Entry v, with d its lowest bit, collects the d blocks from v on and gives them to entry v - d."""
    n, d = head.ranks, 1
    while d < n:
        for v in range(d, n, 2 * d):
            yield from send((head.root + v) % n, (head.root + v - d) % n, _subtree(head, v, d))
        d *= 2


def scatter(head: Plan) -> Iterator[Move]:
    n = head.ranks
    d = 1 << max(n - 1, 0).bit_length()
    while d:
        for v in range(d, n, 2 * d):
            yield from send((head.root + v - d) % n, (head.root + v) % n, _subtree(head, v, d))
        d //= 2
