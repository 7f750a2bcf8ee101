"""A plan in stages, where some of its arithmetic is the host's.

The device runs a stage to its end; then the host carries out the stage's reductions in memory (`hccl.arith`), and the next stage starts. An operation's
stage is the number of host reductions on the longest way to it, over dependencies and messages. A plan without host reductions is one stage.
"""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hccl.plan import ChunkOp, Plan

Key = tuple[int, int, int]  # rank, channel, operation


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What the device runs, as a plan with part of the operations, and what the host does then."""

    plan: Plan
    host: tuple[tuple[int, ChunkOp], ...] = ()


def _levels(plan: Plan) -> dict[Key, int]:
    mates: dict[Key, Key] = {}
    flights: dict[tuple[int, int, int], tuple[list[Key], list[Key]]] = {}
    ops: dict[Key, ChunkOp] = {}
    for r, program in enumerate(plan.programs):
        for c, queue in enumerate(program):
            for i, op in enumerate(queue):
                ops[r, c, i] = op
                if op.kind in ("send", "recv"):
                    src, dst = (r, op.peer or 0) if op.kind == "send" else (op.peer or 0, r)
                    flights.setdefault((c, src, dst), ([], []))[op.kind == "recv"].append((r, c, i))
    for sends, recvs in flights.values():
        for s, t in zip(sends, recvs, strict=True):
            mates[s], mates[t] = t, s
    level = dict.fromkeys(ops, 0)
    moved = True
    while moved:
        moved = False
        for key, op in ops.items():
            r, c, _ = key
            new = max((level[r, c, d] + plan.on_host(plan.programs[r][c][d]) for d in op.deps), default=0)
            new = max(new, level[mates[key]] if key in mates else 0)
            if new > level[key]:
                level[key], moved = new, True
    return level


def staged(plan: Plan) -> tuple[Plan, tuple[Stage, ...]]:
    """The plan with its queues in the order of stages (what has to be proved), and the stages."""
    if not plan.host_ops:
        return plan, (Stage(plan=plan),)
    level = _levels(plan)
    most = max(level.values())
    parts: list[list[list[tuple[ChunkOp, ...]]]] = [[] for _ in range(most + 1)]  # [stage][rank][channel]
    host: list[list[tuple[int, ChunkOp]]] = [[] for _ in range(most + 1)]
    whole = []
    for r, program in enumerate(plan.programs):
        rows = []
        for row in parts:
            row.append([])
        for c, queue in enumerate(program):
            order = sorted(range(len(queue)), key=lambda i: (level[r, c, i], plan.on_host(queue[i]), i))
            place = {i: p for p, i in enumerate(order)}
            rows.append(tuple(dataclasses.replace(queue[i], deps=tuple(sorted(place[d] for d in queue[i].deps))) for i in order))
            for n, row in enumerate(parts):
                mine = [i for i in order if level[r, c, i] == n and not plan.on_host(queue[i])]
                at = {i: p for p, i in enumerate(mine)}
                row[r].append(tuple(dataclasses.replace(queue[i], deps=tuple(sorted(at[d] for d in queue[i].deps if d in at))) for i in mine))
                host[n] += [(r, queue[i]) for i in order if level[r, c, i] == n and plan.on_host(queue[i])]
        whole.append(tuple(rows))
    stages = [
        Stage(plan=dataclasses.replace(plan, programs=tuple(tuple(p) for p in programs)), host=tuple(jobs))
        for programs, jobs in zip(parts, host, strict=True)
    ]
    return dataclasses.replace(plan, programs=tuple(whole)), tuple(stages)
