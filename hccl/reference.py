"""Collectives by their definition: every result written out in the documented order, with no plan, message or queue in it.

An order is a nest of folds: a rank, or a tuple whose members are combined from the left. What `--check` and callers compare the output of a device with.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccl import arith
from hccl.algorithms.ranges import chunk_bounds
from hccl.buffers import pack, unpack
from hccl.plan import Plan

Bytes = NDArray[np.uint8]
Order = Any  # int | tuple[Order, ...]


def _heap(ranks: Sequence[int], v: int = 0) -> Order:
    return (ranks[v], *(_heap(ranks, k) for k in (2 * v + 1, 2 * v + 2) if k < len(ranks)))


def _butterfly(n: int) -> Order:
    p = 1 << n.bit_length() - 1
    y: list[Order] = [(i, i + p) if i + p < n else i for i in range(p)]
    while len(y) > 1:
        half = len(y) // 2
        y = [(y[i], y[i + half]) for i in range(half)]
    return y[0]


def _rotated(items: Sequence[Any], first: int) -> tuple[Any, ...]:
    return tuple(items[(first + k) % len(items)] for k in range(len(items)))


def orders(plan: Plan) -> list[tuple[int, int, Order]]:
    """(start, end, order) over the vector of a reducing collective."""
    n, ranks, name, groups = plan.ranks, range(plan.ranks), plan.algorithm, plan.groups
    group = {r: g for g, members in enumerate(groups) for r in members}
    size = plan.layout.size
    if plan.collective == "reduce_scatter":
        made = {
            "ring": lambda c: _rotated(ranks, c + 1), "hierarchical": lambda c: _rotated(groups, group[c]), "direct": lambda c: tuple(ranks),
            "halving_doubling": lambda c: _butterfly(n),
        }[name]  # fmt: skip
        return [(v, v + length, made(c)) for c, (v, length) in enumerate(plan.layout.vector)]
    if name == "double_tree":
        middle = chunk_bounds(size, 2)[1]
        down = _rotated(ranks[::-1], 0 if plan.collective == "all_reduce" else n - 1 - plan.root)
        return [(0, middle, _heap(_rotated(ranks, plan.root))), (middle, size, _heap(down))]
    if plan.collective == "all_reduce" and name in ("ring", "hierarchical"):
        items, parts = (ranks, n) if name == "ring" else (groups, min(map(len, groups)))
        ends = chunk_bounds(size, parts)
        return [(ends[c], ends[c + 1], _rotated(items, c)) for c in range(parts)]
    whole = {
        "ring": lambda: _rotated(ranks, plan.root + 1), "hierarchical": lambda: _rotated(groups, group[plan.root]), "direct": lambda: tuple(ranks),
        "two_step": lambda: tuple(ranks), "halving_doubling": lambda: _butterfly(n), "tree": lambda: _heap(_rotated(ranks, plan.root)),
    }[name]  # fmt: skip
    return [(0, size, whole())]


def _evaluate(plan: Plan, order: Order, inputs: Sequence[Bytes], part: slice, last: bool) -> Bytes:
    while isinstance(order, tuple) and len(order) == 1:
        order = order[0]
    if not isinstance(order, tuple):
        return inputs[order][part]
    terms = [_evaluate(plan, o, inputs, part, False) for o in order]
    acc = terms[0]
    for k, term in enumerate(terms[1:], 2):
        acc = arith.reduce(acc, term, plan.dtype, plan.op, plan.ranks if last and plan.op == "avg" and k == len(terms) else 1)
    return acc


def expected(plan: Plan, inputs: Sequence[Bytes], factors: Sequence[float | int] = ()) -> list[Bytes]:
    """Dense bytes of every rank's output, given those of every rank's input."""
    layout = plan.layout
    placed = [pack(x, layout.inputs[r], plan.buffer_bytes("input", r)) for r, x in enumerate(inputs)]
    vector = np.zeros(layout.size, np.uint8)
    if layout.reducing:
        if plan.op == "premul_sum":
            placed = [arith.premultiply(x, plan.dtype, f) for x, f in zip(placed, factors, strict=True)]
        for start, end, order in orders(plan) if plan.ranks > 1 else [(0, layout.size, 0)]:
            vector[start:end] = _evaluate(plan, order, placed, slice(start, end), True)
    else:
        for r, blocks in enumerate(layout.inputs):
            for b in blocks:
                vector[b.vector : b.vector + b.length] = placed[r][b.offset : b.offset + b.length]
    out = []
    for r, blocks in enumerate(layout.outputs):
        data = np.zeros(plan.buffer_bytes("output", r), np.uint8)
        for b in blocks:
            data[b.offset : b.offset + b.length] = vector[b.vector : b.vector + b.length]
        out.append(unpack(data, blocks))
    return out
