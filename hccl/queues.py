"""Order of the queues: a run of all operations on a machine with latencies, which gives one order for all ranks.

An operation whose predecessors in that order are done can always be done, so queues that issue in it never wait for each other in a circle. Receives are
then moved forward in their queues, by less than half a window, so that they are posted before their messages come.
"""
from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hccl.plan import Kind

LATENCY, START, RATE = 350, 120, 64  # cycles of a message, of a job; bytes a cycle


@dataclass(slots=True)
class Operation:
    """One operation on its way into a plan; `mate` is a send's recv, `fields` those of `ChunkOp`."""

    rank: int
    channel: int
    kind: Kind
    fields: dict[str, object]
    deps: set[Operation] = field(default_factory=set)
    mate: Operation | None = None  # of a send: its recv
    order: int = 0  # as created
    place: int = 0  # in its queue
    index: int = -1
    after: int = 0  # everything it is ordered behind, a bit per place

    __hash__ = object.__hash__


def order(ops: Sequence[Operation], ranks: int, channels: int, window: int) -> dict[tuple[int, int], list[Operation]]:
    """Queues by (rank, channel), every operation with its `index`, dependencies that others imply left out."""
    queues: dict[tuple[int, int], list[Operation]] = {(r, c): [] for r in range(ranks) for c in range(channels)}
    for op in _run(ops):
        for x in (op, op.mate) if op.mate is not None else (op,):
            queue = queues[x.rank, x.channel]
            x.place = len(queue)
            queue.append(x)
    for key, queue in queues.items():
        for op in queue:  # leave out dependencies that others imply
            for d in op.deps:
                op.after |= d.after | 1 << d.place
            op.deps = {d for d in op.deps if not any(e is not d and e.after >> d.place & 1 for e in op.deps)}
        queues[key] = queue = _forward(queue, window)
        for i, op in enumerate(queue):
            op.index = i
    return queues


def _forward(queue: list[Operation], window: int) -> list[Operation]:
    """Receives moved forward, in their order and behind the places (not those moved to) of what they depend on: the queue waits for that there anyway."""
    reach = max(window // 2 - 1, 0)
    keys: list[tuple[int, int, int]] = []
    last: dict[object, int] = {}
    for i, op in enumerate(queue):
        if op.kind != "recv":
            keys.append((i, 0, i))
            continue
        peer = op.fields["peer"]
        at = max([i - 1 - reach, last.get(peer, -1), *(d.place for d in op.deps)])
        last[peer] = at
        keys.append((at, 1, i))
    return [queue[k[2]] for k in sorted(keys)]


def _run(ops: Sequence[Operation]) -> Iterator[Operation]:
    """Operations (a send stands for its recv too) as a machine with latencies would start them."""
    mates = {id(op.mate): op for op in ops if op.mate is not None}
    waits: dict[int, int] = {}
    unlocks: dict[int, list[Operation]] = {}
    for op in ops:
        one = mates.get(id(op), op)
        for d in op.deps:
            unlocks.setdefault(id(d), []).append(one)
        waits[id(one)] = waits.get(id(one), 0) + len(op.deps)
    ready = dict.fromkeys(waits, 0)
    heap: list[tuple[int, object, int, Operation]] = []

    def push(op: Operation) -> None:
        heapq.heappush(heap, (ready[id(op)], op.fields["slice"], op.order, op))

    for op in ops:
        if id(op) not in mates and not waits[id(op)]:
            push(op)
    free: dict[tuple[str, int], int] = {}
    done = 0
    while heap:
        start, _, _, op = heapq.heappop(heap)
        done += 1
        yield op
        unit = ("link" if op.mate is not None else "nmc", op.rank)
        start = max(start, free.get(unit, 0))
        free[unit] = start + int(op.fields["length"]) // RATE + 1  # type: ignore[call-overload]
        end = free[unit] + (LATENCY if op.mate is not None else START)
        for x in (op, op.mate) if op.mate is not None else (op,):
            for later in unlocks.get(id(x), ()):
                ready[id(later)] = max(ready[id(later)], end)
                waits[id(later)] -= 1
                if not waits[id(later)]:
                    push(later)
    assert done == len(ready), "moves that wait for each other"
