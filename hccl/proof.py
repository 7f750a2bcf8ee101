"""Proof of a plan, before anything runs.

`prove(plan)` raises `PlanError`, naming rank, channel and operation, unless all of this holds:

1. every operation is well formed, inside its buffers, its slot and the declared depths, and depends on earlier ones only;
2. the i-th send of a pair of ranks on a channel meets a recv of the same length, chunk and slice, and none is left over;
3. the plan runs to its end with the declared window and queue depths, whatever the timing (abstract execution: an
   operation can only ever *enable* others, so if one order of execution ends, all do);
4. no byte is read while it may be written or written while it may be read or written, under the happens-before relation
   of dependencies, queue order, window and messages, so the result does not depend on timing;
5. no receive or send queue can hold more than its depth;
6. every output byte is written and holds what the collective says (`hccl.layout`): in a reduction the contribution of every rank exactly once
   (an average's last sum divided, a premultiplied sum's inputs multiplied, once), by the same expression on all ranks that hold it, so they hold the
   same bits; else the byte of the input it belongs to.

What it takes from the hardware: a queue issues in order and retires in order in a window; a queue pair delivers messages in
order, each once; near-memory jobs of one queue finish in order; a retransmitted message is not executed again, so its source
may change once the peer has received it.
"""
from __future__ import annotations

from dataclasses import dataclass

from golden.mem.memory import OPERAND_ALIGN
from hccl.dataflow import Piece, Values
from hccl.dtypes import DTYPES, check_reduction
from hccl.errors import PlanError, UsageError
from hccl.execution import Channel, NodeMemory
from hccl.layout import COLLECTIVES, MATRIX, REDUCING, ROOTED, SPLIT, Block
from hccl.plan import BUFFERS, KINDS, ChunkOp, Plan, Ref

MAX_LENGTH = 1 << 31  # bytes of a message (IBA)
_NEEDS = {"send": ("peer", "a"), "recv": ("peer", "d"), "reduce": ("a", "b", "d"), "copy": ("a", "d"), "scale": ("a", "d")}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was proved: operations, messages, the deepest receive and send queue, and the order of reduction by vector range
    (nothing for collectives that only move)."""

    operations: int
    messages: int
    rq_depth: int
    sq_depth: int
    expressions: tuple[tuple[int, int, str], ...]  # (first byte, end, expression)


def prove(plan: Plan) -> Report:
    """Raises: PlanError: the first violation found."""
    _check_head(plan)
    for rank, program in enumerate(plan.programs):
        for channel, ops in enumerate(program):
            for index, op in enumerate(ops):
                _check_op(plan, rank, channel, index, op)
    messages = _check_messages(plan)
    values = Values(plan.ranks)
    memory = [NodeMemory(plan, rank) for rank in range(plan.ranks)]
    rq = sq = 0
    for channel in range(plan.channels):
        run = Channel(plan, channel, memory, values)
        run.execute()
        rq, sq = max(rq, run.max_rq), max(sq, run.max_sq)
    expressions = _check_outputs(plan, memory, values)
    return Report(
        operations=sum(len(ops) for p in plan.programs for ops in p), messages=messages, rq_depth=rq, sq_depth=sq,
        expressions=expressions,
    )  # fmt: skip


# -- 1: form and bounds ---------------------------------------------------------------------------------------------


def _check_head(plan: Plan) -> None:
    for name, known in (("collective", COLLECTIVES), ("dtype", tuple(DTYPES))):
        if getattr(plan, name) not in known:
            raise PlanError(f"{name} is {getattr(plan, name)!r}", f"one of {', '.join(known)}")
    if plan.collective in REDUCING:
        try:
            check_reduction(plan.collective, plan.dtype, plan.op)
        except UsageError as e:
            raise PlanError(str(e), "a reduction of this type") from None
    elif plan.op:
        raise PlanError(f"op {plan.op!r} in {plan.collective}", "none: nothing is reduced")
    for name, low in (("ranks", 1), ("count", 0), ("channels", 1), ("slots", 0), ("slot_bytes", 0), ("work_bytes", 0), ("window", 1),
                      ("rq_depth", 1), ("sq_depth", 1)):  # fmt: skip
        if getattr(plan, name) < low:
            raise PlanError(f"{name} is {getattr(plan, name)}", f"at least {low}")
    if not 0 <= plan.root < (plan.ranks if plan.collective in ROOTED else 1):
        raise PlanError(f"root is {plan.root}", f"a rank below {plan.ranks}" if plan.collective in ROOTED else f"0: {plan.collective} has none")
    want = (plan.ranks**2 if plan.collective in MATRIX else plan.ranks) if plan.collective in SPLIT else 0
    if plan.splits and (len(plan.splits) != want or min(plan.splits) < 0):
        raise PlanError(f"splits are {plan.splits}", f"{want} sizes, none negative" if want else f"none: {plan.collective} has no blocks")
    plan.layout  # noqa: B018 (raises)
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
        size = plan.buffer_bytes(ref.buffer, rank)
        if ref.offset < 0 or ref.offset + op.length > size:
            fail(f"{name} = {ref} … +{ref.offset + op.length} is out of bounds", f"within {size} bytes")
        if ref.offset % plan.itemsize:
            fail(f"{name} = {ref}", f"an offset that is a multiple of {plan.itemsize}")
        if ref.buffer == "scratch" and ref.offset < plan.channels * plan.slots * plan.slot_bytes:
            if op.slot is None or not 0 <= op.slot < plan.slots:
                fail(f"slot {op.slot}", f"a slot below {plan.slots}")
            start = plan.slot_offset(channel, op.slot or 0)
            if not start <= ref.offset <= ref.offset + op.length <= start + plan.slot_bytes:
                fail(f"{name} = {ref} lies outside slot {op.slot}", f"within {start} … {start + plan.slot_bytes}")
    if op.d is not None and op.d.buffer == "input" and not (plan.in_place and plan.collective == "all_reduce"):
        fail(f"d = {op.d} writes the input", "the output or scratch")
    if op.kind in ("reduce", "copy", "scale"):
        assert op.d is not None
        for ref in (*op.reads(), op.d):
            if ref.offset % OPERAND_ALIGN:
                fail(f"operand {ref}", f"an offset that is a multiple of {OPERAND_ALIGN}, as near-memory compute needs")
        for ref in op.reads():
            (where, at), (there, to) = (_real(plan, rank, r) for r in (ref, op.d))
            if where == there and at != to and abs(at - to) < op.length:
                fail(f"d = {op.d} overlaps {ref} in part", "the same place, or none of it")
    if op.kind == "scale" and plan.op != "premul_sum":
        fail("premultiplied", "a factor in a premul_sum only")
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


def _real(plan: Plan, rank: int, ref: Ref) -> tuple[str, int]:
    alias = plan.layout.alias[rank]
    return ("output", ref.offset + alias) if ref.buffer == "input" and alias is not None else (ref.buffer, ref.offset)


# -- 6: outputs -----------------------------------------------------------------------------------------------------


def _check_outputs(plan: Plan, memory: list[NodeMemory], values: Values) -> tuple[tuple[int, int, str], ...]:
    """Every output; the expressions by vector range."""
    whole = _Whole(plan, values)
    seen: list[tuple[int, int, int]] = []
    for rank, blocks in enumerate(plan.layout.outputs):
        data, shift = memory[rank].find("output")
        runs: list[tuple[int, int, int]] = []
        for block in blocks:
            for p in data.range(block.offset + shift, block.offset + shift + block.length):
                at = block.vector + p.start - shift - block.offset
                whole.check(rank, block, p, at, shift)
                if runs and runs[-1][1:] == (at, p.value):
                    runs[-1] = (runs[-1][0], at + p.end - p.start, runs[-1][2])
                else:
                    runs.append((at, at + p.end - p.start, p.value or 0))
        if rank and plan.collective == "all_reduce" and runs != seen:
            here, there = next((x, y) for x, y in zip(runs, seen, strict=False) if x != y)
            raise PlanError(
                f"output byte {here[0]} is {values.text(here[2])}, on rank 0 {values.text(there[2])}",
                "the same expression on all ranks", rank=rank,
            )  # fmt: skip
        if not rank or plan.collective != "all_reduce":
            seen += runs
    return tuple((s, e, values.text(v)) for s, e, v in sorted(seen)) if plan.layout.reducing else ()


class _Whole:
    """What an output byte must be."""

    def __init__(self, plan: Plan, values: Values):
        self.plan, self.values = plan, values
        self.full = (1 << plan.ranks) - 1
        self.scaled, self.premultiplied = plan.op == "avg" and plan.ranks > 1, plan.op == "premul_sum"
        self.source = {
            (b.vector, b.length): (r, b.offset) for r, blocks in enumerate(plan.layout.inputs) for b in blocks if b.length
        }  # whose input holds a block of the vector, and where

    def check(self, rank: int, block: Block, p: Piece, at: int, shift: int) -> None:
        where = f"output bytes {p.start - shift} … {p.end - shift}"
        if p.value is None:
            raise PlanError(f"{where} are never written", "the result", rank=rank)
        by = {} if p.writer is None else {"channel": p.writer[0], "index": p.writer[3]}
        if not self.plan.layout.reducing:
            source, offset = self.source[block.vector, block.length]
            want = offset + at - block.vector
            if (p.value, p.start - p.delta) != (source, want):
                raise PlanError(f"{where} hold {self.values.text(p.value)} from byte {p.start - p.delta}", f"x{source} from byte {want}",
                                rank=rank, **by)  # fmt: skip
            return
        if p.start - p.delta != at:
            raise PlanError(f"{where} hold vector byte {p.start - p.delta}", "the same bytes of the vector", rank=rank, **by)
        mask = self.values.mask[p.value]
        lacking = [r for r in range(self.plan.ranks) if not mask >> r & 1]
        if mask != self.full:
            raise PlanError(f"{where} lack the contribution of rank(s) {', '.join(map(str, lacking))}",
                            "every rank once", rank=rank, **by)  # fmt: skip
        if self.values.scaled[p.value] != self.scaled:
            raise PlanError(f"{where} are {'' if self.values.scaled[p.value] else 'not '}scaled",
                            f"{'a' if self.scaled else 'no'} scale on the last op", rank=rank, **by)  # fmt: skip
        if self.values.premultiplied[p.value] != self.premultiplied:
            raise PlanError(f"{where} are sums of inputs without their factors", "every input times its rank's factor", rank=rank, **by)
