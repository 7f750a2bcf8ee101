"""From moves to a plan: places, slots, dependencies and the order of every queue, for any algorithm.

An algorithm is a list of `Move`s on ranges of the vector (`hccl.layout`), in an order in which they could be carried out one after another; that list
alone decides the order of reduction. `build` cuts the vector into tiles, gives each tile a channel (tile j of a range: channel j modulo the channels,
so what happens to a byte happens in one queue), and turns every move into send, recv, reduce and copy:

- what a rank holds of a tile lies in its input at first; a reduction goes to the output where the result belongs there, else to work memory;
- a message to be reduced lands in a slot of the channel, slot k modulo the slots for the k-th; any other lands where it stays;
- dependencies follow from who last wrote and who has read the bytes since, and from the depths of the queue pairs;
- the order of a queue is that of a run on a machine with a latency, where everything starts as soon as it can. It is one order for all ranks, so an
  operation whose predecessors in it are done can always be done: no deadlock. Receives are then moved forward, by less than half a window.

`hccl.proof` takes none of this on trust.
"""
from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hccl.errors import UsageError
from hccl.layout import Block
from hccl.moves import COPY_MAX, UNIT, Machine, Move, slice_bytes
from hccl.plan import ChunkOp, Kind, Plan, Ref
from hccl.queues import Operation, order

SLOT = 1 << 40  # more than a slot has bytes


@dataclass(slots=True)
class _Tile:
    index: int
    part: int  # of the vector, and the tile's number in it
    number: int
    channel: int
    lo: int
    hi: int


@dataclass(slots=True)
class _State:
    """What a rank holds of a tile: where, whose contributions; `pending`: its own is not among them though it reduces."""

    ref: Ref
    mask: int
    pending: bool = False


def build(head: Plan, moves: Sequence[Move], machine: Machine, *, whole: bool = False) -> Plan:
    """`head` with programs for `moves`.

    Args:
        whole: one slice a channel, and a slot for every message that a rank reduces at a time (algorithms in which many send to one).

    Raises:
        UsageError: a rank has more peers than queue pairs, or the window has no room for a slot.
    """
    return _Builder(head, moves, machine, whole).plan()


class _Builder:
    def __init__(self, head: Plan, moves: Sequence[Move], machine: Machine, whole: bool):
        self.head, self.moves, self.machine = head, moves, machine
        self.layout = head.layout
        self.ops: list[Operation] = []
        self.channels = self._channels()
        self._cut(whole)
        self.slot_bytes = 0
        room = (machine.window - 2) // 3
        if room < 1:
            raise UsageError(f"{head.collective}: window = {machine.window}; expected room for one slot")
        self.slots = max(head.ranks - 1, 2) if whole else min(machine.slots, room, machine.rq_depth)
        self.slot_count = dict.fromkeys(((r, c) for r in range(head.ranks) for c in range(self.channels)), 0)
        self.work = [0] * head.ranks  # bytes used
        self.writer: dict[tuple[object, ...], Operation] = {}
        self.readers: dict[tuple[object, ...], list[Operation]] = {}
        self.flights: dict[tuple[int, int, int], tuple[list[Operation], list[Operation]]] = {}  # sends, recvs by channel, src, dst
        self.full = (1 << head.ranks) - 1
        self.home = [dict(self._within(blocks)) for blocks in self.layout.outputs]
        self.own = [{t: Ref("input", at) for t, at in self._within(blocks)} for blocks in self.layout.inputs]
        self.state = [{t: _State(ref, 1 << r) for t, ref in held.items()} for r, held in enumerate(self.own)]
        # Ranks whose inputs lie where results belong, and may still be asked for.
        raw, factors = any(m.raw for m in moves), head.op == "premul_sum"
        self.shared = [alias is not None or factors for alias in self.layout.alias]
        self.late = [raw and shared for shared in self.shared]

    # -- tiles ----------------------------------------------------------------------------------------------------------

    def _channels(self) -> int:
        peers: list[set[tuple[int, int]]] = [set() for _ in range(self.head.ranks)]
        for m in self.moves:
            if m.src != m.dst:
                peers[m.src].add((0, m.dst))
                peers[m.dst].add((1, m.src))
        most = max((len(p) for p in peers), default=0)
        if most > self.machine.qps:
            rank = max(range(self.head.ranks), key=lambda r: len(peers[r]))
            raise UsageError(
                f"{self.head.collective} by {self.head.algorithm} on {self.head.ranks} ranks needs {most} queue pairs on rank {rank}; "
                f"expected at most {self.machine.qps} (NicParams.qps without those of management), or another algorithm"
            )
        return max(min(self.machine.channels, self.machine.qps // most if most else 1), 1)

    def _cut(self, whole: bool) -> None:
        """Parts: between neighbouring ends of moves and blocks; each cut into tiles."""
        ends = sorted({x for m in self.moves for x in (m.lo, m.hi)} | {x for v, n in self.layout.vector for x in (v, v + n)})
        parts = [
            cut for v, n in self.layout.vector if n for cut in pairwise(ends[bisect_left(ends, v) : bisect_right(ends, v + n)])
        ]
        longest = max((b - a for a, b in parts), default=0)
        mtu = self.machine.mtu
        size = -(-max(-(-longest // self.channels), 1) // mtu) * mtu if whole else slice_bytes(longest, self.channels, mtu)
        size = self.machine.slice_size or min(size, COPY_MAX)
        self.channels = max(1, min(self.channels, -(-longest // size)))
        self.tiles: list[_Tile] = []
        for part, (a, b) in enumerate(parts):
            for j, lo in enumerate(range(a, b, size)):
                self.tiles.append(_Tile(len(self.tiles), part, j, j % self.channels, lo, min(lo + size, b)))
        self.starts = [t.lo for t in self.tiles]
        self.size = size

    def _span(self, lo: int, hi: int) -> list[_Tile]:
        return self.tiles[bisect_left(self.starts, lo) : bisect_left(self.starts, hi)]

    def _within(self, blocks: Iterable[Block]) -> Iterable[tuple[int, int]]:
        for b in blocks:
            for t in self._span(b.vector, b.vector + b.length):
                yield t.index, b.offset + t.lo - b.vector

    # -- operations -----------------------------------------------------------------------------------------------------

    def _key(self, rank: int, ref: Ref) -> tuple[object, ...]:
        alias = self.layout.alias[rank]
        if ref.buffer == "input" and alias is not None:
            return (rank, "output", ref.offset + alias)
        return (rank, ref.buffer, ref.offset)

    def _op(self, rank: int, run: list[_Tile], kind: Kind, reads: Sequence[Ref] = (), writes: Ref | None = None, **fields: object) -> Operation:
        """A new operation on the tiles of `run`, which lie side by side at every place it touches."""
        first = run[0]
        op = Operation(rank, first.channel, kind, {"length": run[-1].hi - first.lo, "chunk": first.part, "slice": first.number, **fields})
        op.order = len(self.ops)
        self.ops.append(op)
        steps = [t.lo - first.lo for t in run]
        for ref in reads:
            for d in steps:
                key = self._key(rank, Ref(ref.buffer, ref.offset + d))
                if key in self.writer:
                    op.deps.add(self.writer[key])
                self.readers.setdefault(key, []).append(op)
        if writes is not None:
            for d in steps:
                key = self._key(rank, Ref(writes.buffer, writes.offset + d))
                readers = [r for r in self.readers.pop(key, ()) if r is not op]
                op.deps.update(readers)
                if key in self.writer:
                    op.deps.add(self.writer[key])
                self.writer[key] = op
        op.deps.discard(op)
        return op

    def _allocate(self, rank: int, run: list[_Tile]) -> Ref:
        at = self.work[rank]
        self.work[rank] += -(-(run[-1].hi - run[0].lo) // UNIT) * UNIT
        return Ref("work", at)

    def _runs(self, m: Move) -> Iterable[list[_Tile]]:
        """Tiles of a move, those side by side everywhere and in one channel joined up to a slice."""
        run: list[_Tile] = []
        for t in self._span(m.lo, m.hi):
            if run and not self._joins(m, run, t):
                yield run
                run = []
            run.append(t)
        if run:
            yield run

    def _joins(self, m: Move, run: list[_Tile], t: _Tile) -> bool:
        last = run[-1]
        if t.channel != last.channel or t.lo != last.hi or t.hi - run[0].lo > self.size:
            return False
        for r in {m.src, m.dst}:
            at, to = self.home[r].get(last.index), self.home[r].get(t.index)
            if (at is None) != (to is None) or (at is not None and to is not None and to - at != t.lo - last.lo):
                return False
            own, next_ = self.own[r].get(last.index), self.own[r].get(t.index)
            if (own is None) != (next_ is None) or (own is not None and next_ is not None and next_.offset - own.offset != t.lo - last.lo):
                return False
            x, y = self.state[r].get(last.index), self.state[r].get(t.index)
            if (x is None) != (y is None):
                return False
            if x is not None and y is not None and (x.ref.buffer, x.mask, x.pending, y.ref.offset - x.ref.offset) != (
                y.ref.buffer, y.mask, y.pending, t.lo - last.lo
            ):
                return False
        return True

    def _set(self, rank: int, run: list[_Tile], ref: Ref, mask: int, pending: bool = False) -> None:
        for t in run:
            self.state[rank][t.index] = _State(Ref(ref.buffer, ref.offset + t.lo - run[0].lo), mask, pending)

    def _target(self, rank: int, run: list[_Tile], held: _State | None, pending: bool) -> Ref:
        """Where a result goes: home, unless that would destroy an input still needed; else where it lies already, else new work memory."""
        t = run[0].index
        home = self.home[rank].get(t)
        if home is not None and not self.late[rank] and not (pending and self.shared[rank]):
            return Ref("output", home)
        if held is not None and held.ref.buffer == "work":
            return held.ref
        return self._allocate(rank, run)

    def _transfer(self, run: list[_Tile], src: int, dst: int, a: Ref, d: Ref, slot: int | None = None) -> None:
        sends, recvs = self.flights.setdefault((run[0].channel, src, dst), ([], []))
        send = self._op(src, run, "send", (a,), None, a=a, peer=dst)
        recv = self._op(dst, run, "recv", (), d, d=d, peer=src, slot=slot)
        if len(sends) >= self.machine.sq_depth:
            send.deps.add(sends[-self.machine.sq_depth])
        if len(recvs) >= self.machine.rq_depth:
            recv.deps.add(recvs[-self.machine.rq_depth])
        sends.append(send)
        recvs.append(recv)
        send.mate = recv

    def _carry_out(self, m: Move) -> None:
        for run in list(self._runs(m)):
            t = run[0]
            held = self.state[m.dst].get(t.index)
            if m.kind == "own":
                assert held is not None
                d = self._target(m.dst, run, held, False)
                self._reduce(m.dst, run, held.ref, self.own[m.dst][t.index], d, held.mask | 1 << m.dst)
                continue
            what = self.state[m.src].get(t.index) if not m.raw else _State(self.own[m.src][t.index], 1 << m.src)
            if what is None:
                raise AssertionError(f"{m}: rank {m.src} holds nothing of it")
            if m.kind in ("copy", "first"):
                pending = m.kind == "first"
                d = self._target(m.dst, run, None if pending else held, pending)
                if m.src == m.dst:
                    if what.ref != d:
                        self._op(m.dst, run, "copy", (what.ref,), d, a=what.ref, d=d)
                else:
                    self._transfer(run, m.src, m.dst, what.ref, d)
                self._set(m.dst, run, d, what.mask, pending)
                continue
            assert held is not None
            k = self.slot_count[m.dst, t.channel]
            self.slot_count[m.dst, t.channel] = k + 1
            slot = k % self.slots
            at = Ref("slot", (t.channel * self.slots + slot) * SLOT)
            self.slot_bytes = max(self.slot_bytes, -(-(run[-1].hi - t.lo) // UNIT) * UNIT)
            self._transfer(run, m.src, m.dst, what.ref, at, slot)
            d = self._target(m.dst, run, held, held.pending)
            self._reduce(m.dst, run, at, held.ref, d, held.mask | what.mask, held.pending, slot)

    def _reduce(self, rank: int, run: list[_Tile], a: Ref, b: Ref, d: Ref, mask: int, pending: bool = False, slot: int | None = None) -> None:
        last = self.head.op == "avg" and mask == self.full
        self._op(rank, run, "reduce", (a, b), d, a=a, b=b, d=d, scale=last, slot=slot)
        self._set(rank, run, d, mask, pending)

    def _premultiply(self) -> None:
        """Every input times its rank's factor: into work memory, or home where nothing else needs the place."""
        for r in range(self.head.ranks):
            for t in self.tiles:
                held = self.state[r].get(t.index)
                if held is None:
                    continue
                home = self.home[r].get(t.index)
                d = Ref("output", home) if home is not None else self._allocate(r, [t])
                self._op(r, [t], "scale", (held.ref,), d, a=held.ref, d=d)
                self._set(r, [t], d, held.mask)
            self.own[r] = {t: s.ref for t, s in self.state[r].items()}

    def _deliver(self) -> None:
        """What a rank holds and has not at home yet (its own blocks, mostly)."""
        for r in range(self.head.ranks):
            for t, at in self.home[r].items():
                held = self.state[r].get(t)
                d = Ref("output", at)
                if held is not None and self._key(r, held.ref) != self._key(r, d):
                    run = [self.tiles[t]]
                    self._op(r, run, "copy", (held.ref,), d, a=held.ref, d=d)
                    self._set(r, run, d, held.mask)

    # -- order ----------------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        if self.head.op == "premul_sum":
            self._premultiply()
        for m in self.moves:
            self._carry_out(m)
        self._deliver()
        queues = order(self.ops, self.head.ranks, self.channels, self.machine.window)
        slots = min(self.slots, max(self.slot_count.values()))
        programs = tuple(
            tuple(tuple(self._chunk_op(op, slots) for op in queues[r, c]) for c in range(self.channels)) for r in range(self.head.ranks)
        )
        return dataclasses.replace(
            self.head, channels=self.channels, slots=slots, slot_bytes=self.slot_bytes, work_bytes=max(self.work, default=0), window=self.machine.window, rq_depth=self.machine.rq_depth, sq_depth=self.machine.sq_depth,
            programs=programs,
        )  # fmt: skip

    def _chunk_op(self, op: Operation, slots: int) -> ChunkOp:
        def real(ref: object) -> object:
            if not isinstance(ref, Ref) or ref.buffer not in ("slot", "work"):
                return ref
            if ref.buffer == "work":
                return Ref("scratch", ref.offset + self.channels * slots * self.slot_bytes)
            channel, slot = divmod(ref.offset // SLOT, self.slots)
            return Ref("scratch", (channel * slots + slot) * self.slot_bytes)

        fields = {k: real(v) for k, v in op.fields.items()}
        return ChunkOp(kind=op.kind, deps=tuple(sorted(d.index for d in op.deps)), **fields)  # type: ignore[arg-type]
