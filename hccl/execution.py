"""Abstract execution of a plan: every operation once, in some order, with what is known to have ended before each (see `hccl.proof`)."""
from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hccl.dataflow import At, Memory, Values
from hccl.errors import PlanError
from hccl.plan import ChunkOp, Plan, Ref

Clock = NDArray[np.int64]
Datum = tuple[int, int, int, int]  # relative start, end, value, where the start is in the input it comes from


class NodeMemory:
    """Buffers of one rank: input and output share bytes where the plan is in place."""

    def __init__(self, plan: Plan, rank: int):
        have, want = (plan.buffer_bytes(name, rank) for name in ("input", "output"))
        alias = plan.layout.alias[rank]
        scratch = (Memory(plan.scratch_bytes, None), 0)
        if alias is None:
            self.buffers = {"input": (Memory(have, rank), 0), "output": (Memory(want, None), 0), "scratch": scratch}
            return
        base = min(0, alias)
        both = Memory(max(want, alias + have) - base, None)
        for p in both.range(alias - base, alias - base + have):
            p.value, p.delta = rank, alias - base
        self.buffers = {"input": (both, alias - base), "output": (both, -base), "scratch": scratch}

    def find(self, buffer: str) -> tuple[Memory, int]:
        """Memory of a buffer, and where the buffer begins in it."""
        return self.buffers[buffer]


class Channel:
    """Executes one channel in some order and keeps, for every event, what is known to have ended before it.

    A *chain* is a set of ends that come in order: the sends (source read, and acknowledged), recvs per peer, and the
    near-memory jobs of a rank. A clock is a vector: per chain, how many ends of it happened before.
    """

    def __init__(self, plan: Plan, channel: int, memory: list[NodeMemory], values: Values):
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
        if op.kind in ("reduce", "copy", "scale"):
            chain = self.chains["nmc", rank, -1]
            at = (self.channel, chain, self.count[chain] + 1, i)
            assert op.a is not None and op.d is not None
            result = self._read(rank, i, op.a, op.length, clock, at)
            if op.kind == "scale":
                result = self._premultiply(rank, i, result)
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
        memory, shift = self.memory[rank].find(ref.buffer)
        base = ref.offset + shift
        for p in memory.range(base, base + length):
            if p.value is None:
                self.fail(rank, i, f"reads {ref.buffer}+{p.start - shift} … {p.end - shift}, which nothing has written", "data")
            if p.writer is not None and not self._ordered(p.writer, clock):
                self._hazard(rank, i, "reads", f"{ref.buffer}+{p.start - shift}", p.writer, "write")
            p.readers = [r for r in p.readers if r[1] != at[1] or r[0] != at[0]] + [at]
            out.append((p.start - base, p.end - base, p.value, p.start - p.delta))
        return out

    def _write(
        self, rank: int, i: int, ref: Ref, length: int, data: list[Datum], clock: Clock, at: At
    ) -> None:
        memory, shift = self.memory[rank].find(ref.buffer)
        base = ref.offset + shift
        for start, end, value, vector in data:
            for p in memory.range(base + start, base + end):
                place = f"{ref.buffer}+{p.start - shift}"
                if p.writer is not None and not self._ordered(p.writer, clock):
                    self._hazard(rank, i, "writes", place, p.writer, "write")
                for r in p.readers:
                    if r[:3] != at[:3] and not self._ordered(r, clock):
                        self._hazard(rank, i, "writes", place, r, "read")
                p.value, p.writer, p.readers = value, at, []
                p.delta = base + start - vector

    def _premultiply(self, rank: int, i: int, data: list[Datum]) -> list[Datum]:
        try:
            return [(s, e, self.values.premultiply(v), at) for s, e, v, at in data]
        except ValueError as err:
            self.fail(rank, i, str(err), "an input, once")

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
