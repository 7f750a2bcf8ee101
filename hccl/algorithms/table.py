"""The algorithms of every collective, the choice between them, and the plan that comes of it.

``HCCL_ALGO`` (or the parameter) names one for all collectives, or by collective: ``HCCL_ALGO=all_reduce:tree,broadcast:ring``. Without it the choice is
`DEFAULT`'s: it does not depend on the count, so neither does the pattern of the reduction.
"""
from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Sequence

from hccl.algorithms import direct, halving, hierarchical, ring, ring_moves, tree
from hccl.dtypes import check_dtype, check_reduction, engine_of
from hccl.errors import UsageError, integer
from hccl.layout import COLLECTIVES, MATRIX, REDUCING, ROOTED, SPLIT
from hccl.moves import COPY_MAX, Machine, Move
from hccl.plan import ChunkOp, Plan, Ref
from hccl.schedule import build

Maker = Callable[[Plan], Iterable[Move]]
ALGORITHMS: dict[str, dict[str, Maker]] = {
    "all_reduce": {
        "ring": ring_moves.all_reduce, "direct": direct.all_reduce, "two_step": direct.two_step, "halving_doubling": halving.all_reduce,
        "tree": tree.all_reduce, "double_tree": tree.all_reduce, "hierarchical": hierarchical.all_reduce,
    },
    "reduce_scatter": {
        "ring": ring_moves.reduce_scatter, "direct": direct.reduce_scatter, "halving_doubling": halving.reduce_scatter,
        "hierarchical": hierarchical.reduce_scatter,
    },
    "all_gather": {
        "ring": ring_moves.all_gather, "direct": direct.all_gather, "halving_doubling": halving.all_gather,
        "hierarchical": hierarchical.all_gather,
    },
    "broadcast": {
        "tree": tree.broadcast, "ring": ring_moves.broadcast, "direct": direct.broadcast, "double_tree": tree.broadcast,
        "hierarchical": hierarchical.broadcast,
    },
    "reduce": {
        "tree": tree.reduce, "ring": ring_moves.reduce, "direct": direct.reduce, "double_tree": tree.reduce, "hierarchical": hierarchical.reduce,
    },
    "gather": {"direct": direct.gather, "tree": tree.gather},
    "scatter": {"direct": direct.scatter, "tree": tree.scatter},
    "all_to_all": {"direct": direct.all_to_all},
    "send_recv": {"direct": direct.all_to_all},
}  # fmt: skip
ALGORITHMS["barrier"] = {name: ALGORITHMS["all_gather"][name] for name in ("halving_doubling", "direct", "ring", "hierarchical")}
NAMES = tuple(dict.fromkeys(name for known in ALGORITHMS.values() for name in known))
DEFAULT = {c: next(iter(known)) for c, known in ALGORITHMS.items()}
FIXED = {"all_reduce": "two_step", "reduce": "tree"}  # default where bits must not depend on the count
BY_COUNT = {("all_reduce", "ring"), ("all_reduce", "double_tree"), ("all_reduce", "hierarchical"), ("reduce", "double_tree")}
WHOLE = ("direct", "two_step", "hierarchical")  # many ranks send to one at a time: a slot for each
ROUNDING = "; rounded to the element type at each op; an average divides the last sum"


def order_text(collective: str, algorithm: str) -> str:
    """The order of reduction, in words; empty where nothing is reduced."""
    if collective not in REDUCING:
        return ""
    if (collective, algorithm) == ("all_reduce", "ring"):
        return ring.ORDER
    texts: dict[str, str | dict[str, str]] = {
        "ring": ring_moves.ORDERS, "direct": direct.ORDER, "two_step": direct.ORDER, "halving_doubling": halving.ORDER, "tree": tree.ORDER,
        "double_tree": tree.ORDER_DOUBLE, "hierarchical": hierarchical.ORDERS,
    }  # fmt: skip
    text = texts[algorithm]
    return (text[collective] if isinstance(text, dict) else text) + ROUNDING


def choose(collective: str, algorithm: str | None = None, fixed_order: bool = False) -> str:
    """Name of the algorithm: `algorithm`, else what ``HCCL_ALGO`` says, else the default.

    Args:
        fixed_order: only one whose bits do not depend on the count.

    Raises:
        UsageError: no such algorithm, one that the collective does not have, or one whose order depends on the count.
    """
    who, name = "algorithm", algorithm
    if name is None:
        who, name = "HCCL_ALGO", _environment(collective)
    known = ALGORITHMS[collective]
    if name is None:
        return FIXED.get(collective, DEFAULT[collective]) if fixed_order else DEFAULT[collective]
    if name not in known:
        raise UsageError(f"{collective}: {who} {name!r} is not known; expected one of {', '.join(known)}")
    if fixed_order and (collective, name) in BY_COUNT:
        good = [a for a in known if (collective, a) not in BY_COUNT]
        raise UsageError(f"{collective}: the order of {name} depends on the count, fixed_order is asked for; expected one of {', '.join(good)}")
    return name


def _environment(collective: str) -> str | None:
    """What ``HCCL_ALGO`` says of a collective; a name alone holds for those that have it."""
    found = None
    for item in filter(None, (x.strip() for x in os.environ.get("HCCL_ALGO", "").split(","))):
        who, _, name = item.rpartition(":")
        if who and who not in COLLECTIVES or name not in NAMES or (who and name not in ALGORITHMS[who]):
            raise UsageError(f"HCCL_ALGO: {item!r} is not known; expected an algorithm ({', '.join(NAMES)}) or collective:algorithm, with commas between")
        if who == collective or (not who and found is None and name in ALGORITHMS[collective]):
            found = name
    return found


def check_groups(groups: Sequence[Sequence[int]] | None, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Groups of a hierarchical algorithm; None: neighbours, about as many groups as ranks in each.

    Raises:
        UsageError: not every rank is in exactly one.
    """
    if groups is None:
        size = max(math.isqrt(ranks - 1) + 1, 1) if ranks > 1 else 1
        return tuple(tuple(range(r, min(r + size, ranks))) for r in range(0, ranks, size))
    made = tuple(tuple(integer("a rank of a group", r, 0, ranks - 1) for r in g) for g in groups)
    if sorted(r for g in made for r in g) != list(range(ranks)) or not all(made):
        raise UsageError(f"groups {[list(g) for g in made]}; expected each of the ranks 0 to {ranks - 1} in exactly one, none empty")
    return made


def make(
    collective: str, *, ranks: int, count: int, dtype: str = "float32", op: str = "", in_place: bool = False, root: int = 0,
    splits: Sequence[int] = (), algorithm: str | None = None, groups: Sequence[Sequence[int]] | None = None, fixed_order: bool = False,
    machine: Machine | None = None,
) -> Plan:  # fmt: skip
    """The plan of a collective, not proved yet.

    Raises:
        UsageError: an argument out of range, an unknown dtype, op, algorithm, or groups that are none.
    """
    if collective not in COLLECTIVES:
        raise UsageError(f"collective {collective!r} is not known; expected one of {', '.join(COLLECTIVES)}")
    machine = machine or Machine()
    integer(f"{collective}: ranks", ranks, 1)
    integer(f"{collective}: count", count, 0)
    if collective in REDUCING:
        check_reduction(collective, dtype, op)
    else:
        check_dtype(collective, dtype)
    integer(f"{collective}: root", root, 0, ranks - 1 if collective in ROOTED else 0)
    want = (ranks**2 if collective in MATRIX else ranks) if collective in SPLIT else 0
    if splits and len(splits) != want:
        raise UsageError(f"{collective}: {len(splits)} splits; expected {want}")
    splits = tuple(integer(f"{collective}: split {i}", s, 0) for i, s in enumerate(splits))
    name = choose(collective, algorithm, fixed_order)
    pipeline = op != "premul_sum" and engine_of(dtype, op, op == "avg") is not None and machine.rq_depth >= 2 * ring.SLOTS
    if collective == "all_reduce" and name == "ring" and (pipeline or ranks == 1 and op != "premul_sum"):
        return ring.all_reduce(
            ranks=ranks, count=count, dtype=dtype, op=op, in_place=in_place, channels=machine.channels, mtu=machine.mtu, window=machine.window,
            rq_depth=machine.rq_depth, sq_depth=machine.sq_depth, slice_size=machine.slice_size,
        )  # fmt: skip
    head = Plan(
        collective=collective, algorithm=name, op=op if collective in REDUCING else "", dtype=dtype, count=count, ranks=ranks, in_place=in_place,
        root=root, splits=splits, groups=check_groups(groups, ranks) if name == "hierarchical" else (), order=order_text(collective, name),
        window=machine.window, rq_depth=machine.rq_depth, sq_depth=machine.sq_depth,
    )  # fmt: skip
    if ranks == 1 and op != "premul_sum":
        return alone(head)
    moves = [m for m in ALGORITHMS[collective][name](head) if m.lo < m.hi]
    return build(head, moves, machine, whole=name in WHOLE)


def alone(head: Plan) -> Plan:
    """One rank: its input is its output, every bit of it."""
    copies: list[ChunkOp] = []
    for a, d in zip(head.layout.inputs[0], head.layout.outputs[0], strict=True):
        copies += [
            ChunkOp(kind="copy", length=min(COPY_MAX, a.length - at), a=Ref("input", a.offset + at), d=Ref("output", d.offset + at))
            for at in range(0, 0 if head.in_place else a.length, COPY_MAX)
        ]
    return dataclasses.replace(head, programs=((tuple(copies),),))
