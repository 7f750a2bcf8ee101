"""Communicator: collectives on the ranks of a device, in NCCL's words.

One controller holds all ranks. ``comm.all_reduce([x0, x1, …])`` takes one array per rank; or each rank calls for itself inside a
group, as in a program that was written for one process per rank::

    with comm.group() as group:
        for r in range(comm.nranks):
            comm.rank(r).all_reduce(x[r])
    result = group.results[0]

Calls are checked against each other before anything runs. Every operation has a deadline. An operation that fails aborts the
communicator: its queue pairs are put in error, so that everything outstanding is flushed, and later calls are refused.
"""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np

from golden.net.wire import bound_cycles
from hccl import lower as low
from hccl.algorithms import ring
from hccl.buffers import from_bytes, itemsize, to_bytes
from hccl.calls import Array, Call, agree, make_call
from hccl.devices.base import Device
from hccl.errors import (
    CollectiveError,
    CollectiveTimeout,
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    HcclError,
    MismatchError,
    UsageError,
    integer,
)
from hccl.plan import Plan
from hccl.proof import prove
from hccl.verbs import CompletionQueue, Context, MemoryRegion, QueuePair, WorkCompletion, WorkQueue, connect
from spec.packet import FIRST_QP
from spec.params import SystemParams
from spec.registers import QpState
from spec.wqe import CQE_BYTES, WQE_BYTES, Op, Status

COUNTERS = (
    "nic_tx_packets", "nic_rx_packets", "nic_rx_dropped", "nic_retransmits", "nic_duplicates", "nic_naks", "nmc_busy",
)  # fmt: skip


@lru_cache(maxsize=64)
def make_plan(params: SystemParams, ranks: int, count: int, dtype: str, op: str, in_place: bool) -> Plan:
    """Ring all-reduce for a machine of `params`, proved."""
    node = params.node
    plan = ring.all_reduce(
        ranks=ranks, count=count, dtype=dtype, op=op, in_place=in_place,
        channels=min(node.me.queues, max((node.nic.qps - FIRST_QP) // 2, 1)), mtu=node.nic.mtu, window=node.me.window,
        rq_depth=node.nic.rq_depth, sq_depth=node.nic.sq_depth,
    )  # fmt: skip
    prove(plan)
    return plan


def plan_bound(plan: Plan, params: SystemParams) -> int:
    """Cycles no run of the plan's messages can beat on a machine of `params`."""
    messages = [[(int(Op.SEND), n) for n in plan.messages(r)] for r in range(plan.ranks)]
    return bound_cycles(messages, params.node.nic.mtu, params.link)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of one collective.

    `cycles` is None on a device without time, and so are the figures made of it. `algbw` is bytes of one rank's vector a cycle;
    `busbw` is ``algbw * 2 * (n - 1) / n``, as nccl-tests count it. `wqes` counts work-queue elements of all ranks by opcode,
    `counters` what each node's counters rose by.
    """

    collective: str
    op: str
    dtype: str
    count: int
    ranks: int
    nbytes: int
    seq: int
    outputs: list[Array]
    cycles: int | None = None
    bound_cycles: int = 0
    wqes: dict[str, int] = field(default_factory=dict)
    counters: list[dict[str, int]] = field(default_factory=list)

    @property
    def algbw(self) -> float | None:
        return self.nbytes / self.cycles if self.cycles else None

    @property
    def busbw(self) -> float | None:
        return None if self.algbw is None else self.algbw * 2 * (self.ranks - 1) / self.ranks

    @property
    def percent_of_bound(self) -> float | None:
        """100 when the run took exactly `bound_cycles`; None where nothing was sent."""
        return 100 * self.bound_cycles / self.cycles if self.cycles and self.bound_cycles else None


class Rank:
    """One rank's own calls, inside a group."""

    def __init__(self, comm: Communicator, rank: int):
        self.comm, self.number = comm, rank

    @property
    def nranks(self) -> int:
        return self.comm.nranks

    def all_reduce(
        self, sendbuf: Array, recvbuf: Array | None = None, *, dtype: str | None = None, op: str = "sum", in_place: bool = False
    ) -> None:
        """Enqueue this rank's part; it runs when the group ends.

        Raises:
            UsageError: outside a group, or an argument that cannot work.
        """
        group = self.comm._group
        if group is None:
            raise UsageError(
                f"rank {self.number}: all_reduce outside a group would wait for the other ranks for ever; "
                "expected `with comm.group():` around the calls of all ranks, or comm.all_reduce with one array per rank"
            )
        group.calls[self.number].append(make_call(self.number, sendbuf, recvbuf, dtype, op, in_place))


class Group:
    """Calls of ranks, collected; `results` holds one Result per collective after the block."""

    def __init__(self, comm: Communicator, deadline: int | None):
        self.comm, self.deadline = comm, deadline
        self.calls: list[list[Call]] = [[] for _ in range(comm.nranks)]
        self.results: list[Result] = []

    def __enter__(self) -> Self:
        if self.comm._group is not None:
            raise UsageError("a group is already open; expected group ends before the next starts")
        self.comm._group = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.comm._group = None
        if kind is not None:
            return
        most = max(len(c) for c in self.calls)
        rounds = [[c[i] if i < len(c) else None for c in self.calls] for i in range(most)]
        for i, calls in enumerate(rounds):  # nothing runs unless all of it agrees
            agree(calls, self.comm.seq + i)
        for calls in rounds:
            self.results.append(self.comm._run([c for c in calls if c is not None], self.deadline))


class Communicator:
    """Ranks 0 … nranks - 1 on the first nodes of `device`.

    Args:
        device: an open device; the communicator takes its queues, queue pairs and memory, from one opened before if need be: a device serves
            one communicator at a time.
        nranks: None: one rank per node.
        deadline: cycles (golden: steps) every operation may take; None: twenty times its bound and 400,000 more.

    Raises:
        UsageError: more ranks than nodes.
    """

    def __init__(self, device: Device, nranks: int | None = None, *, deadline: int | None = None):
        self.device = device
        self.nranks = device.nodes if nranks is None else integer(f"a device of {device.nodes} nodes: nranks", nranks, 1, device.nodes)
        self.deadline = None if deadline is None else integer("deadline", deadline, 1)
        nranks = self.nranks
        self.seq = 0  # collectives run
        self.broken: str | None = None
        self._closed = False
        self.last: low.Lowered | None = None  # the collective run last, as the machine had it
        if device.user is not None:
            device.user._replace()
        device.user = self
        self._group: Group | None = None
        self._flushed: list[list[WorkCompletion]] = []  # what an abort completed
        self.contexts = [Context(device, r) for r in range(nranks)]
        self.pds = [c.alloc_pd() for c in self.contexts]
        self.wqs: list[list[WorkQueue]] = [[] for _ in range(nranks)]
        self.cqs: list[CompletionQueue] = []
        self._sizes: tuple[list[int], int] = ([], 0)
        self._qps: list[dict[tuple[int, int, int], QueuePair]] = [{} for _ in range(nranks)]
        self._mrs: list[dict[str, MemoryRegion]] = [{} for _ in range(nranks)]
        self._events = device.read_regs([(r, "event", 0) for r in range(nranks)])

    # -- calls ----------------------------------------------------------------------------------------------------------

    def rank(self, number: int) -> Rank:
        """Raises: UsageError: no such rank."""
        return Rank(self, integer("rank", number, 0, self.nranks - 1))

    def group(self, *, deadline: int | None = None) -> Group:
        """Context manager that collects the ranks' calls and runs them at its end."""
        return Group(self, None if deadline is None else integer("deadline", deadline, 1))

    def all_reduce(
        self, sendbufs: Sequence[Array], recvbufs: Sequence[Array] | None = None, *, dtype: str | None = None, op: str = "sum",
        in_place: bool = False, deadline: int | None = None,
    ) -> Result:  # fmt: skip
        """Every rank gets the reduction of all `sendbufs` elementwise; one array per rank.

        Args:
            recvbufs: where results go (any strides); None: new arrays in `Result.outputs`.
            dtype: element type; needed where the array cannot say it (bfloat16 as uint16).
            op: sum, min, max or avg.
            in_place: results replace the sendbufs.

        Raises:
            UsageError: an argument that cannot work. MismatchError: ranks differ. CollectiveError, CollectiveTimeout: it failed.
        """
        if deadline is not None:
            deadline = integer("deadline", deadline, 1)
        for name, bufs in (("sendbufs", sendbufs), ("recvbufs", recvbufs)):
            if not isinstance(bufs, Sequence | np.ndarray) and (bufs is not None or name == "sendbufs"):
                raise UsageError(f"all_reduce: {name} is a {type(bufs).__name__}; expected one array per rank, in a list")
            if bufs is not None and len(bufs) != self.nranks:
                raise MismatchError(f"all_reduce: {len(bufs)} {name}; expected one per rank, {self.nranks}")
        calls = [
            make_call(r, sendbufs[r], None if recvbufs is None else recvbufs[r], dtype, op, in_place) for r in range(self.nranks)
        ]
        agree(calls, self.seq)
        return self._run(calls, deadline)

    # -- execution ------------------------------------------------------------------------------------------------------

    def _run(self, calls: list[Call], deadline: int | None) -> Result:
        if self.broken:
            raise CollectiveError(f"the communicator {self.broken if self._closed else f'was aborted: {self.broken}'}; expected a new one")
        first = calls[0]
        seq, self.seq = self.seq, self.seq + 1
        nbytes = first.send.size * itemsize(first.dtype)
        base: dict[str, Any] = {
            "collective": first.collective, "op": first.op, "dtype": first.dtype, "count": first.send.size,
            "ranks": self.nranks, "nbytes": nbytes, "seq": seq,
        }  # fmt: skip
        targets = [c.recv if c.recv is not None else np.empty_like(c.send, order="C") for c in calls]
        if not first.send.size:
            return Result(**base, outputs=targets)
        plan = make_plan(self.device.params, self.nranks, first.send.size, first.dtype, first.op, first.in_place)
        lowered = self.last = self._load(plan)
        for c in calls:
            self.device.mem_write(c.rank, lowered.map.input.base, to_bytes(c.send))
        before = self._counters()
        bound = plan_bound(plan, self.device.params)
        limit = deadline if deadline is not None else self.deadline
        cycles = self._execute(lowered, seq, 20 * bound + 400_000 if limit is None else limit)
        rose = [{k: (v - before[r][k]) & 0xFFFF_FFFF for k, v in now.items()} for r, now in enumerate(self._counters())]
        for r, target in enumerate(targets):
            data = self.device.mem_read(r, lowered.map.output.base, plan.nbytes)
            target[...] = from_bytes(data, target)
        return Result(**base, outputs=targets, cycles=cycles, bound_cycles=bound, wqes=dict(lowered.counts), counters=rose)

    def _counters(self) -> list[dict[str, int]]:
        reads = [(r, name, 0) for r in range(self.nranks) for name in COUNTERS]
        values = iter(self.device.read_regs(reads))
        return [{name: next(values) for name in COUNTERS} for _ in range(self.nranks)]

    def _load(self, plan: Plan) -> low.Lowered:
        """Memory map, rings, regions and queue pairs for `plan`; stages its WQEs."""
        lowered = self.last if self.last is not None and self.last.plan is plan else self._prepare(plan)
        for r in range(self.nranks):
            for q, queue in enumerate(lowered.queues[r]):
                self.wqs[r][q].stage(queue.words())
        return lowered

    def _prepare(self, plan: Plan) -> low.Lowered:
        node = self.device.params.node
        # Keys are not known before the regions are; their places do not depend on the keys.
        draft = low.lower(plan, node, {"input": 0, "output": 0, "scratch": 0}, least=self._sizes[0])
        where = draft.map
        sizes = ([r.size for r in where.rings], where.completions.size)
        if sizes != self._sizes:
            for r, c in enumerate(self.contexts):
                self.wqs[r] = [c.create_wq(q, ring.base, ring.size // WQE_BYTES) for q, ring in enumerate(where.rings)]
            done = where.completions
            self.cqs = [c.create_cq(done.base, done.size // CQE_BYTES) for c in self.contexts]
            self._sizes = sizes
            for r, qps in enumerate(self._qps):
                for (channel, _, _), qp in qps.items():
                    qp.wq = self.wqs[r][channel]
        keys = self._register(where)
        self._connect(plan)
        lowered = low.lower(plan, node, keys, least=self._sizes[0])
        if lowered.map != where:
            raise HcclError(f"memory map changed with the keys: {lowered.map}; expected {where}")
        return lowered

    def _register(self, where: low.MemoryMap) -> dict[str, int]:
        """Memory regions of the buffers, each exactly its bytes; keys by name. Those that are right already stay."""
        keys: dict[str, int] = {}
        for r, pd in enumerate(self.pds):
            regions = {x.name: x for x in (where.input, where.output, where.scratch) if x.size}
            old = self._mrs[r]
            wanted = {name: (x.base, x.size, x.access) for name, x in regions.items()}
            if {name: (m.addr, m.length, m.access) for name, m in old.items()} != wanted:
                for mr in old.values():
                    pd.dereg_mr(mr)
                self._mrs[r] = {name: pd.reg_mr(x.base, x.size, x.access) for name, x in regions.items()}
            got = {"input": 0, "output": 0, "scratch": 0} | {name: mr.lkey for name, mr in self._mrs[r].items()}
            if r and got != keys:
                raise HcclError(f"rank {r}: region keys {got}; expected those of rank 0, {keys}")
            keys = got
        return keys

    def _connect(self, plan: Plan) -> None:
        """Queue pairs of `plan` that are not there yet; those there stay as they are."""
        ends = [low.endpoints(plan, r) for r in range(self.nranks)]
        known = [{k: qp.qpn for k, qp in qps.items()} for qps in self._qps]
        if all(known[r].get(k) == e.qpn for r in range(self.nranks) for k, e in ends[r].items()):
            return
        for r in range(self.nranks):
            self._qps[r] = {k: self.pds[r].create_qp(e.qpn, self.wqs[r][e.channel]) for k, e in ends[r].items()}
        connect([
            (qp, self._qps[peer][channel, low.RECV_DIR, r])
            for r in range(self.nranks)
            for (channel, direction, peer), qp in self._qps[r].items()
            if direction == low.SEND_DIR
        ])  # fmt: skip

    def _execute(self, lowered: low.Lowered, seq: int, deadline: int) -> int | None:
        queues = [(r, q, queue) for r in range(self.nranks) for q, queue in enumerate(lowered.queues[r])]
        # Receives of all ranks first: no message can arrive before one is posted for it.
        early = [self.wqs[r][q].doorbell(queue.early) for r, q, queue in queues if queue.early]
        rest = [self.wqs[r][q].doorbell() for r, q, _ in queues]
        for r, _, _ in queues:
            self._events[r] = self._events[r] + 1 & 0xFFFF_FFFF
        want = self._want()
        self.device.write_regs(early + rest)  # nothing between this and `run`: devices may time from here
        failure: DeviceTimeout | DeviceFault | None = None
        cycles = None
        try:
            cycles = self.device.run(want, deadline, [(r, q) for r, q, _ in queues])
        except (DeviceTimeout, DeviceFault) as e:
            failure = e
        done = [cq.poll() for cq in self.cqs]
        if failure is not None or any(c.status != Status.SUCCESS for row in done for c in row):
            raise self._fail(lowered, seq, done, failure, deadline)
        for r, row in enumerate(done):
            if len(row) != len(lowered.queues[r]):
                raise CollectiveError(f"collective {seq}: rank {r}: {len(row)} completions; expected {len(lowered.queues[r])}")
        return cycles

    def _want(self) -> list[int]:
        """Values of every node's event register when all that was posted is done; nodes without a rank stay as they are."""
        others = [(n, "event", 0) for n in range(self.nranks, self.device.nodes)]
        return self._events + (self.device.read_regs(others) if others else [])

    def _fail(
        self, lowered: low.Lowered, seq: int, done: list[list[WorkCompletion]], failure: DeviceTimeout | DeviceFault | None,
        deadline: int,
    ) -> CollectiveError | CollectiveTimeout:  # fmt: skip
        """Abort, and the error that says why: what ended first in an error of its own, or who is behind."""
        plan = lowered.plan
        head = f"collective {seq} ({plan.collective} {plan.op}, {plan.dtype}, count {plan.count}, {plan.ranks} ranks)"
        state = "" if failure is None else failure.state
        late = isinstance(failure, DeviceTimeout)
        behind = f"{head} not done within {deadline} {'cycles' if self.device.timed else 'steps'}; not done: {self._behind(lowered)}"
        provisional = behind if late else f"{head} failed"
        self.abort(provisional)
        # Completions come in order: an error may have waited behind a receive that nobody would ever meet.
        before, after = ([(r, c) for r, row in enumerate(rows) for c in row if c.status != Status.SUCCESS] for rows in (done, self._flushed))
        cause = [e for e in before if e[1].status != Status.WR_FLUSH_ERR] or [e for e in after if e[1].status != Status.WR_FLUSH_ERR]
        if not cause and not late:  # queue pairs that were in error before: what met them was flushed
            first = failure.queues if isinstance(failure, DeviceFault) else [(r, c.queue) for r, c in before]
            cause = [next(e for e in (*before, *after) if (e[0], e[1].queue) == at) for at in dict.fromkeys(first)]
        if not cause:
            cause = before[:1]
        if not cause:
            message = f"{behind}; {failure.args[0].splitlines()[0] if failure else ''}"
        else:
            lines = "; ".join(self._ended(lowered, r, c) for r, c in cause)
            flushed = sum(c.status == Status.WR_FLUSH_ERR for _, c in (*before, *after) if c not in [x for _, x in cause])
            message = f"{head} failed: {lines}; {flushed} more flushed" + (f"; seen when the deadline of {deadline} passed" if late else "")
        self.broken = message + (self.broken or "").removeprefix(provisional)
        return CollectiveError(message, state) if cause else CollectiveTimeout(message, state)

    @staticmethod
    def _ended(lowered: low.Lowered, rank: int, c: WorkCompletion) -> str:
        """One completion in error: rank, channel, operation, addresses, status."""
        ops = lowered.plan.programs[rank][c.queue]
        if c.wr_id >= len(ops):
            return f"rank {rank} channel {c.queue}: wait ended in {c.status_name} (info {c.info:#x})"
        op = ops[c.wr_id]
        places = ", ".join(
            f"{name} {ref} at {lowered.map.region(ref.buffer).base + ref.offset:#x}"
            for name, ref in (("a", op.a), ("b", op.b), ("d", op.d)) if ref is not None
        )
        return f"rank {rank} channel {c.queue}: {op}, {places}, ended in {c.status_name} (info {c.info:#x})"

    def _behind(self, lowered: low.Lowered) -> str:
        """Ranks whose queues have not all raised their event."""
        got = self.device.read_regs([(r, "event", 0) for r in range(self.nranks)])
        short = [(want - g) & 0xFFFF_FFFF for want, g in zip(self._events, got, strict=True)]
        return ", ".join(f"rank {r} ({n} of {len(lowered.queues[r])} queues)" for r, n in enumerate(short) if n) or "none"

    def abort(self, why: str = "abort was called") -> None:
        """Put every queue pair in error so that all that is outstanding is flushed; the communicator takes no more calls."""
        if self.broken:
            return
        self.broken = why
        try:
            for qps in self._qps:
                for qp in qps.values():
                    qp.modify(QpState.ERR)
            self.device.run(self._want(), 100_000)
        except HcclError as e:
            self.broken += f" (and the flush did not end: {str(e).splitlines()[0]})"
        with suppress(DeviceError):  # a machine that has ended says nothing
            self._flushed = [cq.poll() for cq in self.cqs]

    def close(self) -> None:
        """Release queue pairs and regions; the device can take another communicator."""
        self.broken = self.broken if self._closed else "was closed"
        self._closed = True
        if self.device.user is not self:
            return
        self.device.user = None
        try:
            for r in range(self.nranks):
                for qp in self._qps[r].values():
                    qp.modify(QpState.RESET)
                for mr in self._mrs[r].values():
                    self.pds[r].dereg_mr(mr)
                self._qps[r], self._mrs[r] = {}, {}
        except DeviceError:
            pass  # a machine that has ended holds nothing

    def _replace(self) -> None:
        """Another communicator takes the device."""
        why = self.broken
        self.close()
        self.broken, self._closed = why or "gave its device to one that was opened later", not why

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()
