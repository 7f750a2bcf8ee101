"""Recursive halving and doubling, for any rank count.

Let p be the largest power of two up to n. Ranks p … n-1 first give all they have to rank r - p, and get their result from it at the end. Between
the first p, partners at distance d = p/2, p/4, …, 1 exchange halves of what they still have to reduce; gathering doubles from d = 1 up. All chunks
are reduced in the same pattern, and an op is commutative bit for bit, so bits do not depend on the count.
"""
from __future__ import annotations

from collections.abc import Iterator

from hccl.algorithms.ranges import Range, blocks, chunks, send
from hccl.moves import Move
from hccl.plan import Plan

ORDER = (
    "p = largest power of two up to n; y[i] = x[i] op x[i+p] (x[i] where there is no rank i+p), i < p; "
    "then for d = p/2, p/4, ..., 1: y[i] = y[i] op y[i xor d]"
)


def _power(n: int) -> int:
    return 1 << n.bit_length() - 1


def _owned(parts: list[Range], owners: range, p: int) -> list[Range]:
    """Parts of owners: part i and part i + p are rank i's."""
    return [parts[j] for base in range(0, len(parts), p) for i in owners if (j := base + i) < len(parts)]


def _halve(parts: list[Range], n: int) -> Iterator[Move]:
    p = _power(n)
    for r in range(p, n):
        yield from send(r, r - p, parts, "reduce")
    d = p // 2
    while d:
        for i in range(p):
            theirs = (i ^ d) // d * d
            yield from send(i, i ^ d, _owned(parts, range(theirs, theirs + d), p), "reduce")
        d //= 2


def _double(parts: list[Range], p: int) -> Iterator[Move]:
    d = 1
    while d < p:
        for i in range(p):
            mine = i // d * d
            yield from send(i, i ^ d, _owned(parts, range(mine, mine + d), p))
        d *= 2


def all_reduce(head: Plan) -> Iterator[Move]:
    p = _power(head.ranks)
    parts = chunks(head.layout, p)
    yield from _halve(parts, head.ranks)
    yield from _double(parts, p)
    for r in range(p, head.ranks):
        yield Move(r - p, r, 0, head.layout.size)


def reduce_scatter(head: Plan) -> Iterator[Move]:
    parts, p = blocks(head.layout), _power(head.ranks)
    yield from _halve(parts, head.ranks)
    for r in range(p, head.ranks):
        yield Move(r - p, r, *parts[r])


def all_gather(head: Plan) -> Iterator[Move]:
    parts, p = blocks(head.layout), _power(head.ranks)
    for r in range(p, head.ranks):
        yield Move(r, r - p, *parts[r])
    yield from _double(parts, p)
    for r in range(p, head.ranks):
        yield from send(r - p, r, parts[:r])
        yield from send(r - p, r, parts[r + 1 :])
