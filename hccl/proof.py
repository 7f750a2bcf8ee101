"""Proof of a plan, before anything runs.

`prove(plan)` raises `PlanError`, naming rank, channel and operation, unless all of this holds:

1. every operation is well formed, inside its buffers, its slot and the declared depths, and depends on earlier ones only;
2. the i-th send of a pair of ranks on a channel meets a recv of the same length, chunk and slice, and none is left over;
3. the plan runs to its end with the declared window and queue depths, whatever the timing (abstract execution: an
   operation can only ever *enable* others, so if one order of execution ends, all do);
4. no byte is read while it may be written or written while it may be read or written, under the happens-before relation
   of dependencies, queue order, window and messages, so the result does not depend on timing;
5. no receive or send queue can hold more than its depth;
6. the contribution of every rank enters every element exactly once (averages are scaled once, at the end), every output
   byte is written, and all ranks evaluate the same expression, so they hold the same bits.

What it takes from the hardware: a queue issues in order and retires in order in a window; a queue pair delivers messages in
order, each once; near-memory jobs of one queue finish in order; a retransmitted message is not executed again, so its source
may change once the peer has received it.
"""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from golden.mem.memory import OPERAND_ALIGN
from hccl.dataflow import At, Memory, Values
from hccl.errors import PlanError
from hccl.plan import BUFFERS, DTYPES, KINDS, OPS, ChunkOp, Plan, Ref

MAX_LENGTH = 1 << 31  # bytes of a message (IBA)
Clock = NDArray[np.int64]
Datum = tuple[int, int, int, int]  # relative start, end, value, vector offset of the start
COLLECTIVES = ("all_reduce",)
_NEEDS = {"send": ("peer", "a"), "recv": ("peer", "d"), "reduce": ("a", "b", "d"), "copy": ("a", "d")}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was proved: operations, messages, the deepest receive and send queue, and the order of reduction by vector range."""

    operations: int
    messages: int
    rq_depth: int
    sq_depth: int
    expressions: tuple[tuple[int, int, str], ...]  # (first byte, end, expression), equal on all ranks


def prove(plan: Plan) -> Report:
    """Raises: PlanError: the first violation found."""
    _check_head(plan)
    for rank, program in enumerate(plan.programs):
        for channel, ops in enumerate(program):
            for index, op in enumerate(ops):
                _check_op(plan, rank, channel, index, op)
    messages = _check_messages(plan)
    values = Values(plan.ranks)
    memory = [_node_memory(plan, rank, values) for rank in range(plan.ranks)]
    rq = sq = 0
    for channel in range(plan.channels):
        run = _Channel(plan, channel, memory, values)
        run.execute()
        rq, sq = max(rq, run.max_rq), max(sq, run.max_sq)
    expressions = _check_outputs(plan, memory, values)
    return Report(
        operations=sum(len(ops) for p in plan.programs for ops in p), messages=messages, rq_depth=rq, sq_depth=sq,
        expressions=expressions,
    )  # fmt: skip


# -- 1: form and bounds ---------------------------------------------------------------------------------------------


def _check_head(plan: Plan) -> None:
    for name, known in (("collective", COLLECTIVES), ("op", OPS), ("dtype", tuple(DTYPES))):
        if getattr(plan, name) not in known:
            raise PlanError(f"{name} is {getattr(plan, name)!r}", f"one of {', '.join(known)}")
    if plan.op == "avg" and plan.dtype == "int32":
        raise PlanError("an average of int32", "a float dtype: near-memory compute has no integer scale")
    for name, low in (("ranks", 1), ("count", 0), ("channels", 1), ("slots", 0), ("slot_bytes", 0), ("window", 1),
                      ("rq_depth", 1), ("sq_depth", 1)):  # fmt: skip
        if getattr(plan, name) < low:
            raise PlanError(f"{name} is {getattr(plan, name)}", f"at least {low}")
    if len(plan.programs) != plan.ranks:
        raise PlanError(f"programs for {len(plan.programs)} ranks", f"{plan.ranks}")
    for rank, program in enumerate(plan.programs):
        if len(program) != plan.channels:
            raise PlanError(f"{len(program)} channels", f"{plan.channels}", rank=rank)


def _check_op(plan: Plan, rank: int, channel: int, index: int, op: ChunkOp) -> None:
    def fail(what: str, expected: str) -> None:
        raise PlanError(f"{op}: {what}", expected, rank=rank, channel=channel, index=index)

    if op.kind not in KINDS:
        fail(f"unknown kind {op.kind!r}", f"one of {', '.join(KINDS)}")
    needs = _NEEDS[op.kind]
    for name in ("peer", "a", "b", "d"):
        if (getattr(op, name) is None) == (name in needs):
            fail(f"{name} is {getattr(op, name)}", f"exactly {', '.join(needs)}")
    if not 1 <= op.length <= MAX_LENGTH or op.length % plan.itemsize:
        fail(f"length {op.length}", f"a multiple of {plan.itemsize} from 1 to {MAX_LENGTH} (empty slices are left out)")
    if op.peer is not None and (not 0 <= op.peer < plan.ranks or op.peer == rank):
        fail(f"peer {op.peer}", f"another rank of {plan.ranks}")
    for name in ("a", "b", "d"):
        ref: Ref | None = getattr(op, name)
        if ref is None:
            continue
        if ref.buffer not in BUFFERS:
            fail(f"{name} is in buffer {ref.buffer!r}", f"one of {', '.join(BUFFERS)}")
        size = plan.buffer_bytes(ref.buffer)
        if ref.offset < 0 or ref.offset + op.length > size:
            fail(f"{name} = {ref} … +{ref.offset + op.length} is out of bounds", f"within {size} bytes")
        if ref.offset % plan.itemsize:
            fail(f"{name} = {ref}", f"an offset that is a multiple of {plan.itemsize}")
        if ref.buffer == "scratch":
            if op.slot is None or not 0 <= op.slot < plan.slots:
                fail(f"slot {op.slot}", f"a slot below {plan.slots}")
            start = plan.slot_offset(channel, op.slot or 0)
            if not start <= ref.offset <= ref.offset + op.length <= start + plan.slot_bytes:
                fail(f"{name} = {ref} lies outside slot {op.slot}", f"within {start} … {start + plan.slot_bytes}")
    if op.d is not None and op.d.buffer == "input" and not plan.in_place:
        fail(f"d = {op.d} writes the input", "the output or scratch: the plan is out of place")
    if op.kind in ("reduce", "copy"):
        assert op.d is not None
        for ref in (*op.reads(), op.d):
            if ref.offset % OPERAND_ALIGN:
                fail(f"operand {ref}", f"an offset that is a multiple of {OPERAND_ALIGN}, as near-memory compute needs")
        for ref in op.reads():
            same = _real(plan, ref.buffer) == _real(plan, op.d.buffer)
            if same and ref.offset != op.d.offset and abs(ref.offset - op.d.offset) < op.length:
                fail(f"d = {op.d} overlaps {ref} in part", "the same place, or none of it")
    if op.scale and (op.kind != "reduce" or plan.op != "avg"):
        fail("scaled", "a scale on the reduces of an average only")
    for dep in op.deps:
        if not 0 <= dep < index:
            fail(f"depends on op {dep}", f"an earlier op of the channel, below {index}")


# -- 2: messages ----------------------------------------------------------------------------------------------------


def _check_messages(plan: Plan) -> int:
    total = 0
    for channel in range(plan.channels):
        sends: dict[tuple[int, int], list[tuple[int, ChunkOp]]] = {}
        recvs: dict[tuple[int, int], list[tuple[int, ChunkOp]]] = {}
        for rank in range(plan.ranks):
            for index, op in enumerate(plan.programs[rank][channel]):
                if op.kind == "send":
                    sends.setdefault((rank, op.peer or 0), []).append((index, op))
                elif op.kind == "recv":
                    recvs.setdefault((op.peer or 0, rank), []).append((index, op))
        for src, dst in sorted(sends.keys() | recvs.keys()):
            out, inn = sends.get((src, dst), []), recvs.get((src, dst), [])
            for (i, s), (j, r) in zip(out, inn, strict=False):
                if (s.length, s.chunk, s.slice) != (r.length, r.chunk, r.slice):
                    raise PlanError(
                        f"{r} meets op {i} of rank {src}, {s}",
                        f"a recv of chunk {s.chunk} slice {s.slice}, {s.length} bytes",
                        rank=dst, channel=channel, index=j,
                    )  # fmt: skip
            if len(out) > len(inn):
                i, s = out[len(inn)]
                raise PlanError(f"{s} has no recv: rank {dst} posts {len(inn)} of {len(out)}", f"a recv on rank {dst}",
                                rank=src, channel=channel, index=i)  # fmt: skip
            if len(inn) > len(out):
                j, r = inn[len(out)]
                raise PlanError(f"{r} has no send: rank {src} sends {len(out)} of {len(inn)}", f"a send on rank {src}",
                                rank=dst, channel=channel, index=j)  # fmt: skip
            total += len(out)
    return total


def _real(plan: Plan, buffer: str) -> str:
    return "output" if buffer == "input" and plan.in_place else buffer


def _node_memory(plan: Plan, rank: int, values: Values) -> dict[str, Memory]:
    data = Memory(plan.nbytes, rank)
    return {
        "input": data,
        "output": data if plan.in_place else Memory(plan.nbytes, None),
        "scratch": Memory(plan.scratch_bytes, None),
    }


# -- 3, 4, 5: abstract execution of one channel on all ranks ----------------------------------------------------------


class _Channel:
    """Executes one channel in some order and keeps, for every event, what is known to have ended before it.

    A *chain* is a set of ends that come in order: the sends (source read, and acknowledged), recvs per peer, and the
    near-memory jobs of a rank. A clock is a vector: per chain, how many ends of it happened before.
    """

    def __init__(self, plan: Plan, channel: int, memory: list[dict[str, Memory]], values: Values):
        self.plan, self.channel, self.memory, self.values = plan, channel, memory, values
        self.ops = [p[channel] for p in plan.programs]
        self.chains: dict[tuple[str, int, int], int] = {}
        for rank, ops in enumerate(self.ops):
            for op in ops:
                for kind in ("read", "send") if op.kind == "send" else (op.kind if op.kind == "recv" else "nmc",):
                    self.chains.setdefault((kind, rank, -1 if op.peer is None else op.peer), len(self.chains))
        n = len(self.chains)
        self.zero = np.zeros(n, dtype=np.int64)
        self.count = [0] * n  # ends assigned so far
        self.last_end: list[Clock] = [self.zero] * n
        self.next = [0] * plan.ranks
        self.retired = [0] * plan.ranks
        self.issue_clock = [self.zero] * plan.ranks
        self.retire_clock = [self.zero] * plan.ranks
        self.end: list[list[Clock | None]] = [[None] * len(o) for o in self.ops]
        # Messages and receives posted, not yet matched: (index, clock, values)
        self.sent: dict[tuple[int, int], deque[tuple[int, Clock, list[Datum]]]] = {}
        self.posted: dict[tuple[int, int], deque[tuple[int, Clock]]] = {}
        self.max_rq = self.max_sq = 0
        self.issued = dict.fromkeys(self.chains.values(), 0)

    def fail(self, rank: int, index: int, what: str, expected: str) -> NoReturn:
        raise PlanError(f"{self.ops[rank][index]}: {what}", expected, rank=rank, channel=self.channel, index=index)

    def execute(self) -> None:
        work = deque(range(self.plan.ranks))
        queued = [True] * self.plan.ranks
        while work:
            rank = work.popleft()
            queued[rank] = False
            for other in self._advance(rank):
                if not queued[other]:
                    queued[other] = True
                    work.append(other)
        for rank, ops in enumerate(self.ops):
            if self.next[rank] < len(ops) or self.retired[rank] < len(ops):
                self._deadlock()

    def _deadlock(self) -> None:
        lines = []
        first: tuple[int, int] | None = None
        for rank, ops in enumerate(self.ops):
            i = self.next[rank]
            if i < len(ops):
                first = first or (rank, i)
                why = [f"op {d} ({ops[d]})" for d in ops[i].deps if self.end[rank][d] is None]
                why = why or [f"room in the window of {self.plan.window}, held by op {self.retired[rank]}"]
                lines.append(f"rank {rank} op {i} ({ops[i]}) waits for {why[0]}")
            elif self.retired[rank] < len(ops):
                i = self.retired[rank]
                first = first or (rank, i)
                lines.append(f"rank {rank} op {i} ({ops[i]}) never ends")
        assert first is not None
        raise PlanError("deadlock: " + "; ".join(lines), "a plan that runs to its end", rank=first[0],
                        channel=self.channel, index=first[1])  # fmt: skip

    def _advance(self, rank: int) -> set[int]:
        """Issue what can issue on `rank`; returns the ranks for which something ended."""
        touched: set[int] = set()
        ops = self.ops[rank]
        while True:
            self._retire(rank)
            i = self.next[rank]
            if i >= len(ops) or i - self.retired[rank] >= self.plan.window:
                return touched
            op = ops[i]
            if any(self.end[rank][d] is None for d in op.deps):
                return touched
            clock = self.issue_clock[rank]
            for d in op.deps:
                clock = np.maximum(clock, self._end(rank, d))
            if i >= self.plan.window:
                self._retire_to(rank, i - self.plan.window)
                clock = np.maximum(clock, self.retire_clock[rank])
            self.issue_clock[rank] = clock
            self.next[rank] += 1
            touched |= self._issue(rank, i, op, clock)

    def _retire(self, rank: int) -> None:
        ends = self.end[rank]
        while self.retired[rank] < len(ends) and ends[self.retired[rank]] is not None:
            self.retired[rank] += 1

    def _end(self, rank: int, index: int) -> Clock:
        clock = self.end[rank][index]
        assert clock is not None
        return clock

    def _retire_to(self, rank: int, index: int) -> None:
        self.retire_clock[rank] = np.maximum(self.retire_clock[rank], self._end(rank, index))

    def _finish(self, chain: int, clock: Clock) -> Clock:
        """Clock of the next end of `chain`, which includes itself and the ends before it."""
        self.count[chain] += 1
        clock = np.maximum(clock, self.last_end[chain])
        clock[chain] = self.count[chain]
        self.last_end[chain] = clock
        return clock

    def _outstanding(self, chain: int, clock: Clock) -> int:
        self.issued[chain] += 1
        return self.issued[chain] - int(clock[chain])

    def _issue(self, rank: int, i: int, op: ChunkOp, clock: Clock) -> set[int]:
        if op.kind in ("reduce", "copy"):
            chain = self.chains["nmc", rank, -1]
            at = (self.channel, chain, self.count[chain] + 1, i)
            assert op.a is not None and op.d is not None
            result = self._read(rank, i, op.a, op.length, clock, at)
            if op.b is not None:
                result = self._combine(rank, i, op, result, self._read(rank, i, op.b, op.length, clock, at))
            self._write(rank, i, op.d, op.length, result, clock, at)
            self.end[rank][i] = self._finish(chain, clock)
            return {rank}
        peer = op.peer
        assert peer is not None
        if op.kind == "send":
            chain = self.chains["send", rank, peer]
            depth = self._outstanding(chain, clock)
            self.max_sq = max(self.max_sq, depth)
            if depth > self.plan.sq_depth:
                self.fail(rank, i, f"{depth} sends may be outstanding", f"at most {self.plan.sq_depth}")
            assert op.a is not None
            read = self.chains["read", rank, peer]
            data = self._read(rank, i, op.a, op.length, clock, (self.channel, read, self.issued[chain], i))
            self.sent.setdefault((rank, peer), deque()).append((i, clock, data))
            return self._match(rank, peer)
        chain = self.chains["recv", rank, peer]
        depth = self._outstanding(chain, clock)
        self.max_rq = max(self.max_rq, depth)
        if depth > self.plan.rq_depth:
            self.fail(rank, i, f"{depth} receives may be posted", f"at most {self.plan.rq_depth}")
        self.posted.setdefault((peer, rank), deque()).append((i, clock))
        return self._match(peer, rank)

    def _match(self, src: int, dst: int) -> set[int]:
        sent, posted = self.sent.get((src, dst)), self.posted.get((src, dst))
        if not sent or not posted:
            return set()
        i, sclock, data = sent.popleft()
        j, rclock = posted.popleft()
        start = np.maximum(sclock, rclock)
        recv = self.chains["recv", dst, src]
        op = self.ops[dst][j]
        assert op.d is not None
        self._write(dst, j, op.d, op.length, data, start, (self.channel, recv, self.count[recv] + 1, j))
        was_read = self._finish(self.chains["read", src, dst], start)
        self.end[dst][j] = self._finish(recv, was_read)
        self.end[src][i] = self._finish(self.chains["send", src, dst], was_read)
        return {src, dst}

    def _ordered(self, before: At, clock: Clock) -> bool:
        channel, chain, position, _ = before
        return channel == self.channel and int(clock[chain]) >= position

    def _hazard(self, rank: int, i: int, what: str, place: str, other: At, was: str) -> None:
        channel, _, _, j = other
        self.fail(rank, i, f"hazard: {what} {place} while op {j} of channel {channel} may still {was} it",
                  f"a dependency that orders it after op {j} ({self.plan.programs[rank][channel][j].kind})")  # fmt: skip

    def _read(self, rank: int, i: int, ref: Ref, length: int, clock: Clock, at: At) -> list[Datum]:
        out = []
        for p in self.memory[rank][ref.buffer].range(ref.offset, ref.offset + length):
            if p.value is None:
                self.fail(rank, i, f"reads {ref.buffer}+{p.start} … {p.end}, which nothing has written", "data")
            if p.writer is not None and not self._ordered(p.writer, clock):
                self._hazard(rank, i, "reads", f"{ref.buffer}+{p.start}", p.writer, "write")
            p.readers = [r for r in p.readers if r[1] != at[1] or r[0] != at[0]] + [at]
            out.append((p.start - ref.offset, p.end - ref.offset, p.value, p.start - p.delta))
        return out

    def _write(
        self, rank: int, i: int, ref: Ref, length: int, data: list[Datum], clock: Clock, at: At
    ) -> None:
        memory = self.memory[rank][ref.buffer]
        for start, end, value, vector in data:
            for p in memory.range(ref.offset + start, ref.offset + end):
                place = f"{ref.buffer}+{p.start}"
                if p.writer is not None and not self._ordered(p.writer, clock):
                    self._hazard(rank, i, "writes", place, p.writer, "write")
                for r in p.readers:
                    if r[:3] != at[:3] and not self._ordered(r, clock):
                        self._hazard(rank, i, "writes", place, r, "read")
                p.value, p.writer, p.readers = value, at, []
                p.delta = ref.offset + start - vector

    def _combine(self, rank: int, i: int, op: ChunkOp, a: list[Datum], b: list[Datum]) -> list[Datum]:
        cuts = sorted({c for s, e, *_ in a + b for c in (s, e)})
        out = []
        ia = ib = 0
        for s, e in pairwise(cuts):
            while a[ia][1] <= s:
                ia += 1
            while b[ib][1] <= s:
                ib += 1
            va, vb = a[ia][3] + s - a[ia][0], b[ib][3] + s - b[ib][0]
            if va != vb:
                self.fail(rank, i, f"adds vector byte {va} to byte {vb}", "the same elements in both operands")
            try:
                out.append((s, e, self.values.combine(a[ia][2], b[ib][2], op.scale), va))
            except ValueError as err:
                self.fail(rank, i, str(err), "each contribution once, the scale last")
        return out


# -- 6: outputs -----------------------------------------------------------------------------------------------------


def _check_outputs(plan: Plan, memory: list[dict[str, Memory]], values: Values) -> tuple[tuple[int, int, str], ...]:
    full = (1 << plan.ranks) - 1
    scaled = plan.op == "avg" and plan.ranks > 1
    seen: list[tuple[int, int, int]] = []
    for rank in range(plan.ranks):
        runs: list[tuple[int, int, int]] = []
        for p in memory[rank]["output"].pieces:
            where = f"output bytes {p.start} … {p.end}"
            if p.value is None:
                raise PlanError(f"{where} are never written", "the result", rank=rank)
            by = {} if p.writer is None else {"channel": p.writer[0], "index": p.writer[3]}
            if p.delta:
                raise PlanError(f"{where} hold vector byte {p.start - p.delta}", "the same bytes of the vector",
                                rank=rank, **by)  # fmt: skip
            lacking = [r for r in range(plan.ranks) if not values.mask[p.value] >> r & 1]
            if values.mask[p.value] != full:
                raise PlanError(f"{where} lack the contribution of rank(s) {', '.join(map(str, lacking))}",
                                "every rank once", rank=rank, **by)  # fmt: skip
            if values.scaled[p.value] != scaled:
                raise PlanError(f"{where} are {'' if values.scaled[p.value] else 'not '}scaled",
                                f"{'a' if scaled else 'no'} scale on the last op", rank=rank, **by)  # fmt: skip
            if runs and runs[-1][2] == p.value:
                runs[-1] = (runs[-1][0], p.end, p.value)
            else:
                runs.append((p.start, p.end, p.value))
        if rank == 0:
            seen = runs
        elif runs != seen:
            here, there = next((x, y) for x, y in zip(runs, seen, strict=False) if x != y)
            raise PlanError(
                f"output byte {here[0]} is {values.text(here[2])}, on rank 0 {values.text(there[2])}",
                "the same expression on all ranks", rank=rank,
            )  # fmt: skip
    return tuple((s, e, values.text(v)) for s, e, v in seen)
