"""Plan to work-queue elements: memory map, queue pairs, and per rank and queue the WQEs in order.

Channel c is work queue c. A WQE waits through `wqe_sync` for the one operation it depends on that is not already known to be
done. Known are: what an earlier WQE of the queue waited for (WQEs issue in order), and every WQE at least a window back (they
retire in order). A further dependency becomes a NOOP in front, which holds the queue the same way. The last WQE of each queue is
a NOOP with SYNC | SIGNALED | EVENT: one event per queue says that all of it is done.

Queue pairs: one per channel, peer and direction, numbered from 0 in the order of (channel, direction, peer), sends first.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from hccl.arith import ROP, scale_bits
from hccl.dtypes import engine_of
from hccl.errors import PlanError, UsageError
from hccl.plan import ChunkOp, Plan, Ref
from spec.packet import FIRST_QP
from spec.params import NodeParams
from spec.registers import Access
from spec.wqe import CQE_BYTES, WQE, WQE_BYTES, Flag, Op, ReduceOp

ALIGN = 4096  # buffers begin at page boundaries: no burst of one crosses into another
DONE_WR_ID = 0xFFFF_FFFF  # of the last NOOP of a queue
NOOP_WR_ID = 0xFFFF_FFFE  # of a NOOP that only waits
SEND_DIR, RECV_DIR = 0, 1


@dataclass(frozen=True, kw_only=True)
class Region:
    """A part of node memory; `access` (Access bits) as its memory region grants."""

    name: str
    base: int
    size: int
    access: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryMap:
    """Where everything lies: the same on every node. `input`, `output` and `scratch` have room for the largest of any rank; in place the bytes that
    input and output share are in `output`. `places` are each rank's own buffers, exactly their bytes."""

    input: Region
    output: Region
    scratch: Region
    rings: tuple[Region, ...]  # one work ring per queue used
    completions: Region
    end: int
    places: tuple[dict[str, Region], ...]

    def address(self, rank: int, ref: Ref) -> int:
        return self.places[rank][ref.buffer].base + ref.offset

    def table(self) -> list[Region]:
        same = self.input is self.output
        return [*([] if same else [self.input]), self.output, self.scratch, *self.rings, self.completions]


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def memory_map(plan: Plan, node: NodeParams, wqes: list[int]) -> MemoryMap:
    """Where everything lies; `wqes`: most WQEs any rank has in each queue. Rings of those sizes rounded up give the same map.

    The completion ring holds a CQE for every WQE, so flushing after an error never fills it.

    Raises:
        UsageError: it does not fit in node memory.
    """
    at = 0

    def place(name: str, size: int, access: int = 0) -> Region:
        nonlocal at
        region = Region(name=name, base=at, size=size, access=access)
        at = -(-(at + size) // ALIGN) * ALIGN
        return region

    sizes = [_power_of_two(n) for n in wqes]
    rings = tuple(place(f"work ring {q}", n * WQE_BYTES) for q, n in enumerate(sizes))
    completions = place("completion ring", _power_of_two(sum(sizes)) * CQE_BYTES)
    ranks, alias = range(plan.ranks), plan.layout.alias
    have, want = ([plan.buffer_bytes(name, r) for r in ranks] for name in ("input", "output"))
    shift = [min(0, alias[r] or 0) for r in ranks]  # of the output's beginning in what it shares with the input
    output = place("output", max(max(want[r], (alias[r] or 0) + have[r] if alias[r] is not None else 0) - shift[r] for r in ranks), Access.LOCAL_WRITE)
    apart = [have[r] for r in ranks if alias[r] is None]
    source = place("input", max(apart)) if apart else output
    scratch = place("scratch", plan.scratch_bytes, Access.LOCAL_WRITE)
    if at > node.mem.size_bytes:
        parts = ", ".join(f"{r.name} {r.size}" for r in dict.fromkeys((source, output, scratch)))
        raise UsageError(
            f"{plan.collective} of {plan.nbytes} bytes needs {at} bytes of memory on every node ({parts}, rings); "
            f"expected at most MemParams.size_bytes = {node.mem.size_bytes}"
        )
    places = []
    for r in ranks:
        begin = source.base if alias[r] is None else output.base + (alias[r] or 0) - shift[r]
        places.append({
            "input": Region(name="input", base=begin, size=have[r]),
            "output": Region(name="output", base=output.base - shift[r], size=want[r], access=Access.LOCAL_WRITE), "scratch": scratch,
        })  # fmt: skip
    return MemoryMap(input=source, output=output, scratch=scratch, rings=rings, completions=completions, end=at, places=tuple(places))


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One queue pair a rank needs: its number, and the peer rank it is connected to."""

    qpn: int
    channel: int
    direction: int  # SEND_DIR or RECV_DIR
    peer: int


def endpoints(plan: Plan, rank: int) -> dict[tuple[int, int, int], Endpoint]:
    """Queue pairs of `rank` by (channel, direction, peer)."""
    keys = sorted({
        (c, SEND_DIR if o.kind == "send" else RECV_DIR, o.peer)
        for c, ops in enumerate(plan.programs[rank]) for o in ops if o.peer is not None
    })  # fmt: skip
    return {k: Endpoint(qpn=i, channel=k[0], direction=k[1], peer=k[2]) for i, k in enumerate(keys, FIRST_QP)}


@dataclass(frozen=True, kw_only=True)
class Queue:
    """WQEs of one rank and channel: the fields of each, the operation each comes from (None: a NOOP), and how many at the
    front are receives that wait for nothing: they may be posted before any rank sends."""

    wqes: tuple[dict[str, int], ...]
    ops: tuple[int | None, ...]
    early: int

    def words(self) -> bytes:
        return b"".join(WQE.to_bytes(w) for w in self.wqes)


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A plan made ready for the machine: ``queues[rank][channel]``."""

    plan: Plan
    map: MemoryMap
    queues: tuple[tuple[Queue, ...], ...]
    counts: dict[str, int] = field(default_factory=dict)  # WQEs of all ranks by opcode


def order(ops: tuple[ChunkOp, ...], window: int) -> list[tuple[int | None, int]]:
    """(operation or None for a NOOP, `wqe_sync`) of every WQE of a queue, the last NOOP left out."""
    out: list[tuple[int | None, int]] = []
    at: list[int] = []  # WQE of each operation
    known: set[int] = set()
    for i, op in enumerate(ops):
        waits: list[int] = []
        for d in sorted(set(op.deps) - known, reverse=True):
            # An operation that waited for `e` when it issued has `e` done by the time it is done itself.
            if not any(d in ops[e].deps for e in waits):
                waits.append(d)
        for n, d in enumerate(reversed(waits)):
            last = n == len(waits) - 1
            distance = len(out) - at[d]
            if distance >= min(window, 256):
                if distance < window:
                    raise PlanError(f"op {i} waits for a WQE {distance} places back", "at most 255 (wqe_sync is 8 bits)")
                distance = 0  # retired before this one can issue
            if not last:
                if distance:
                    out.append((None, distance))
            else:
                at.append(len(out))
                out.append((i, distance))
        if not waits:
            at.append(len(out))
            out.append((i, 0))
        known |= set(op.deps)
    return out


def lower(
    plan: Plan, node: NodeParams, keys: Mapping[str, int] | Sequence[Mapping[str, int]], *, least: Sequence[int] = (), factors: Sequence[int] = (),
    whole: Plan | None = None,
) -> Lowered:  # fmt: skip
    """WQEs of every rank.

    Args:
        keys: lkey of "input", "output" and "scratch", per rank or equal on all.
        least: bytes every work ring has at least (rings already made stay where they are when they are large enough).
        whole: the plan that this is a stage of, whose queue pairs are connected.
        factors: binary32 pattern of each rank's factor, for a premul_sum.

    Raises:
        UsageError: more channels, queue pairs or memory than the node has. PlanError: a dependency that cannot be expressed.
    """
    if plan.channels > node.me.queues:
        raise UsageError(f"plan has {plan.channels} channels; expected at most MeParams.queues = {node.me.queues}")
    if plan.window != node.me.window:  # what the proof took for retired and for outstanding depends on it
        raise UsageError(f"plan was proved for a window of {plan.window}; expected MeParams.window = {node.me.window}")
    for name, limit in (("rq_depth", node.nic.rq_depth), ("sq_depth", node.nic.sq_depth)):
        if getattr(plan, name) > limit:
            raise UsageError(f"plan needs {name} {getattr(plan, name)}; expected at most NicParams.{name} = {limit}")
    orders = [[order(ops, plan.window) for ops in program] for program in plan.programs]
    wqes = [max(len(orders[r][c]) + 1 for r in range(plan.ranks)) for c in range(plan.channels)]
    rings = max(len(wqes), len(least))
    have = [least[q] // WQE_BYTES if q < len(least) else 0 for q in range(rings)]
    where = memory_map(plan, node, [max(n, h) for n, h in zip_longest(wqes, have, fillvalue=0)])
    counts: dict[str, int] = {}
    queues = []
    rows = [keys] * plan.ranks if isinstance(keys, Mapping) else keys
    for rank in range(plan.ranks):
        ends = endpoints(whole or plan, rank)
        if len(ends) > node.nic.qps - FIRST_QP:
            raise UsageError(f"plan needs {len(ends)} queue pairs on rank {rank}; expected at most {node.nic.qps - FIRST_QP}")
        row = []
        for channel, ops in enumerate(plan.programs[rank]):
            factor = factors[rank] if factors else 0
            q = _queue(plan, rank, ops, orders[rank][channel], where, rows[rank], {k: e for k, e in ends.items() if k[0] == channel}, factor)
            for w in q.wqes:
                name = Op(w["opcode"]).name
                counts[name] = counts.get(name, 0) + 1
            row.append(q)
        queues.append(tuple(row))
    return Lowered(plan=plan, map=where, queues=tuple(queues), counts=counts)


def _queue(
    plan: Plan, rank: int, ops: tuple[ChunkOp, ...], places: list[tuple[int | None, int]], where: MemoryMap,
    keys: Mapping[str, int], ends: Mapping[tuple[int, int, int], Endpoint], factor: int,
) -> Queue:  # fmt: skip
    qpns = {(e.direction, e.peer): e.qpn for e in ends.values()}

    def addr(ref: Ref | None) -> int:
        assert ref is not None
        return where.address(rank, ref)

    def key(ref: Ref | None) -> int:
        assert ref is not None
        return keys[ref.buffer]

    wqes: list[dict[str, int]] = []
    early = 0
    for i, sync in places:
        if i is None:
            wqes.append({"opcode": Op.NOOP, "wqe_sync": sync, "wr_id": NOOP_WR_ID})
            continue
        op = ops[i]
        w: dict[str, int] = {"wqe_sync": sync, "wr_id": i, "length": op.length}
        if op.kind == "send":
            w |= {"opcode": Op.SEND, "addr_a": addr(op.a), "lkey": key(op.a)}
            w["qpn"] = qpns[SEND_DIR, op.peer or 0]
        elif op.kind == "recv":
            w |= {"opcode": Op.RECV, "addr_d": addr(op.d), "lkey": key(op.d)}
            w["qpn"] = qpns[RECV_DIR, op.peer or 0]
            if early == len(wqes) and not sync:
                early += 1
        elif op.kind == "copy":
            w |= {"opcode": Op.COPY, "addr_a": addr(op.a), "addr_d": addr(op.d)}
        else:
            engine = engine_of(plan.dtype, plan.op, op.scale or op.kind == "scale")
            if engine is None:
                raise PlanError(f"op {i}, {op}, of {plan.dtype} {plan.op}", "what near-memory compute can do: the rest is the host's (hccl.stages)")
            w |= {"opcode": Op.REDUCE, "addr_a": addr(op.a), "addr_d": addr(op.d), "dtype": engine}
            if op.kind == "scale":  # the larger of a number and itself, times the factor
                w |= {"addr_b": addr(op.a), "rop": ReduceOp.MAX, "flags": int(Flag.SCALE), "scale": factor}
            else:
                w |= {"addr_b": addr(op.b), "rop": ROP[plan.op]}
            if op.scale:
                w |= {"flags": int(Flag.SCALE), "scale": scale_bits(1 / plan.ranks)}
        wqes.append(w)
    wqes.append({"opcode": Op.NOOP, "flags": int(Flag.SYNC | Flag.SIGNALED | Flag.EVENT), "wr_id": DONE_WR_ID})
    return Queue(wqes=tuple(wqes), ops=(*(i for i, _ in places), None), early=early)
