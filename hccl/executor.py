"""Runs plans on the nodes of a device: rings, queue pairs, regions, doorbells, completions, and the reductions that are the host's.

One executor has the device; communicators over any of its nodes use it one after another. What a plan needs and is there already stays.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccl import arith
from hccl import lower as low
from hccl.devices.base import Device
from hccl.dtypes import engine_of
from hccl.errors import CollectiveError, CollectiveTimeout, DeviceError, DeviceFault, DeviceTimeout, HcclError
from hccl.plan import ChunkOp, Plan
from hccl.proof import prove
from hccl.stages import staged
from hccl.verbs import CompletionQueue, Context, MemoryRegion, QueuePair, WorkCompletion, WorkQueue, connect
from spec.registers import QpState
from spec.wqe import CQE_BYTES, WQE_BYTES, Status

Bytes = NDArray[np.uint8]
COUNTERS = (
    "nic_tx_packets", "nic_rx_packets", "nic_rx_dropped", "nic_retransmits", "nic_duplicates", "nic_naks", "nmc_busy",
)  # fmt: skip


class Proved:
    """A proved plan with its stages, proved too where their order is another."""

    def __init__(self, plan: Plan):
        prove(plan)
        self.plan = plan
        order, self.stages = staged(plan)
        if order is not plan:
            prove(order)


@dataclass(kw_only=True)
class Job:
    """One collective on its way: what is run where, and what came of it."""

    proved: Proved
    nodes: tuple[int, ...]  # node of each rank
    title: str  # for messages
    deadline: int
    factors: tuple[float | int, ...] = ()
    abort: Callable[[str], list[list[WorkCompletion]]]
    cycles: int | None = None
    wqes: dict[str, int] = field(default_factory=dict)
    host_ops: int = 0
    host_bytes: int = 0

    @property
    def plan(self) -> Plan:
        return self.proved.plan


class Executor:
    """Nodes 0 … nodes - 1 of `device`."""

    def __init__(self, device: Device, nodes: int):
        self.device = device
        self.contexts = [Context(device, n) for n in range(nodes)]
        self.pds = [c.alloc_pd() for c in self.contexts]
        self.wqs: list[list[WorkQueue]] = [[] for _ in range(nodes)]
        self.cqs: list[CompletionQueue | None] = [None] * nodes
        self.mrs: list[dict[str, MemoryRegion]] = [{} for _ in range(nodes)]
        self.qps: list[dict[tuple[int, int, int], QueuePair]] = [{} for _ in range(nodes)]  # by channel, direction, peer node
        self.events = device.read_regs([(n, "event", 0) for n in range(nodes)])
        self.last: low.Lowered | None = None  # first stage of the collective run last, as the machine had it
        self._sizes: list[tuple[tuple[int, ...], tuple[int, int]]] = [((), (0, 0))] * nodes  # of rings; place and size of the completion ring
        self._loaded: tuple[Any, ...] = ()
        self._failed: set[int] = set()  # nodes whose queue pairs are in error
        self.ended: str | None = None  # why it takes no more

    # -- one collective -------------------------------------------------------------------------------------------------

    def run(self, job: Job, inputs: Sequence[Bytes]) -> list[Bytes]:
        """Output buffers of all ranks, given their input buffers, laid out as `hccl.layout` says.

        Raises:
            CollectiveError, CollectiveTimeout: it failed, and its nodes are aborted.
        """
        stages = self.load(job)
        where = stages[0].map
        for r, data in enumerate(inputs):
            if data.size:
                self.device.mem_write(job.nodes[r], where.places[r]["input"].base, data)
        for n, (stage, lowered) in enumerate(zip(job.proved.stages, stages, strict=True)):
            if n:
                self._stage(job, lowered)
            took = self._execute(job, lowered)
            for name, count in lowered.counts.items():
                job.wqes[name] = job.wqes.get(name, 0) + count
            if took is not None:
                job.cycles = took + (job.cycles or 0)
            for rank, op in stage.host:
                self._compute(job, where, rank, op)
        out = []
        for r, node in enumerate(job.nodes):
            place = where.places[r]["output"]
            out.append(self.device.mem_read(node, place.base, place.size) if place.size else np.zeros(0, np.uint8))
        return out

    def _compute(self, job: Job, where: low.MemoryMap, rank: int, op: ChunkOp) -> None:
        """A reduction that is the host's."""
        node, plan = job.nodes[rank], job.plan
        assert op.a is not None and op.d is not None
        a = self.device.mem_read(node, where.address(rank, op.a), op.length)
        if op.kind == "scale":
            result = arith.premultiply(a, plan.dtype, job.factors[rank])
        else:
            assert op.b is not None
            b = self.device.mem_read(node, where.address(rank, op.b), op.length)
            result = arith.reduce(a, b, plan.dtype, plan.op, plan.ranks if op.scale else 1)
        self.device.mem_write(node, where.address(rank, op.d), result)
        job.host_ops += 1
        job.host_bytes += op.length

    def counters(self, nodes: Sequence[int]) -> list[dict[str, int]]:
        values = iter(self.device.read_regs([(n, name, 0) for n in nodes for name in COUNTERS]))
        return [{name: next(values) for name in COUNTERS} for _ in nodes]

    # -- rings, regions, queue pairs ------------------------------------------------------------------------------------

    def load(self, job: Job) -> list[low.Lowered]:
        """Memory map, rings, regions and queue pairs for a job; WQEs of its first stage are in the rings."""
        key = (job.proved, job.nodes, job.factors)
        if not self._loaded or self._loaded[0] != key:
            self._loaded = (key, self._prepare(job))
        stages: list[low.Lowered] = self._loaded[1]
        self.last = stages[0]
        self._stage(job, stages[0])
        return stages

    def _stage(self, job: Job, lowered: low.Lowered) -> None:
        for r, node in enumerate(job.nodes):
            for q, queue in enumerate(lowered.queues[r]):
                self.wqs[node][q].stage(queue.words())

    def _prepare(self, job: Job) -> list[low.Lowered]:
        params = self.device.params.node
        plan, nodes = job.plan, job.nodes
        factors = [arith.scale_bits(f) for f in job.factors] if engine_of(plan.dtype, plan.op, True) is not None else []
        least = [max(sizes) for sizes in zip_longest(*(self._sizes[n][0] for n in nodes), fillvalue=0)]
        none = {"input": 0, "output": 0, "scratch": 0}
        # Places first: rings have room for the longest stage, and keys are not known before the regions are.
        for stage in job.proved.stages:
            draft = low.lower(stage.plan, params, none, least=least, factors=factors, whole=plan)
            least = [r.size for r in draft.map.rings]
        where = low.lower(job.proved.stages[0].plan, params, none, least=least, factors=factors, whole=plan).map
        self._rings(nodes, where)
        keys = [self._register(node, where.places[r]) for r, node in enumerate(nodes)]
        self._connect(plan, nodes)
        made = [low.lower(s.plan, params, keys, least=least, factors=factors, whole=plan) for s in job.proved.stages]
        for lowered in made:
            if lowered.map != where:
                raise HcclError(f"memory map changed with the stage: {lowered.map}; expected {where}")
        return made

    def _rings(self, nodes: Sequence[int], where: low.MemoryMap) -> None:
        sizes = (tuple(r.size for r in where.rings), (where.completions.base, where.completions.size))
        for n in nodes:
            if self._sizes[n] == sizes:
                continue
            c = self.contexts[n]
            self.wqs[n] = [c.create_wq(q, ring.base, ring.size // WQE_BYTES) for q, ring in enumerate(where.rings)]
            self.cqs[n] = c.create_cq(where.completions.base, where.completions.size // CQE_BYTES)
            self._sizes[n] = sizes
            for (channel, _, _), qp in self.qps[n].items() if n not in self._failed else ():  # those that failed are made anew
                qp.wq = self.wqs[n][channel]

    def _register(self, node: int, places: dict[str, low.Region]) -> dict[str, int]:
        """Memory regions of the buffers, each exactly its bytes; keys by name. Those that are right already stay."""
        regions = {name: x for name, x in places.items() if x.size}
        same = (places["input"].base, places["input"].size) == (places["output"].base, places["output"].size)
        if same:
            regions.pop("input", None)
        old, pd = self.mrs[node], self.pds[node]
        wanted = {name: (x.base, x.size, x.access) for name, x in regions.items()}
        if {name: (m.addr, m.length, m.access) for name, m in old.items()} != wanted:
            for mr in old.values():
                pd.dereg_mr(mr)
            self.mrs[node] = {name: pd.reg_mr(x.base, x.size, x.access) for name, x in regions.items()}
        keys = {"input": 0, "output": 0, "scratch": 0} | {name: mr.lkey for name, mr in self.mrs[node].items()}
        return keys | ({"input": keys["output"]} if same else {})

    def _connect(self, plan: Plan, nodes: Sequence[int]) -> None:
        """Queue pairs of `plan` that are not there yet; those there stay as they are."""
        ends = [
            {(c, direction, nodes[peer]): e for (c, direction, peer), e in low.endpoints(plan, r).items()} for r in range(plan.ranks)
        ]
        known = [{k: qp.qpn for k, qp in self.qps[n].items()} for n in nodes]
        if not self._failed.intersection(nodes) and all(known[r].get(k) == e.qpn for r in range(plan.ranks) for k, e in ends[r].items()):
            return
        self._failed.difference_update(nodes)
        for r, n in enumerate(nodes):
            for qp in self.qps[n].values():  # one that stays connected would take what is late for its own
                if qp.qpn not in {e.qpn for e in ends[r].values()}:
                    qp.modify(QpState.RESET)
            self.qps[n] = {k: self.pds[n].create_qp(e.qpn, self.wqs[n][e.channel]) for k, e in ends[r].items()}
        connect([
            (qp, self.qps[peer][channel, low.RECV_DIR, n])
            for n in nodes
            for (channel, direction, peer), qp in self.qps[n].items()
            if direction == low.SEND_DIR
        ])  # fmt: skip

    # -- execution ------------------------------------------------------------------------------------------------------

    def _execute(self, job: Job, lowered: low.Lowered) -> int | None:
        queues = [(n, q, queue) for r, n in enumerate(job.nodes) for q, queue in enumerate(lowered.queues[r])]
        # Receives of all ranks first: no message can arrive before one is posted for it.
        early = [self.wqs[n][q].doorbell(queue.early) for n, q, queue in queues if queue.early]
        rest = [self.wqs[n][q].doorbell() for n, q, _ in queues]
        for n, _, _ in queues:
            self.events[n] = self.events[n] + 1 & 0xFFFF_FFFF
        want = self._want()
        self.device.write_regs(early + rest)  # nothing between this and `run`: devices may time from here
        failure: DeviceTimeout | DeviceFault | None = None
        cycles = None
        try:
            cycles = self.device.run(want, max(job.deadline - (job.cycles or 0), 1), [(n, q) for n, q, _ in queues])
        except (DeviceTimeout, DeviceFault) as e:
            failure = e
        done = self.poll(job.nodes)
        if failure is not None or any(c.status != Status.SUCCESS for row in done for c in row):
            raise self._fail(job, lowered, done, failure)
        for r, row in enumerate(done):
            if len(row) != len(lowered.queues[r]):
                raise CollectiveError(f"{job.title}: rank {r}: {len(row)} completions; expected {len(lowered.queues[r])}")
        return cycles

    def poll(self, nodes: Sequence[int]) -> list[list[WorkCompletion]]:
        return [[] if (cq := self.cqs[n]) is None else cq.poll() for n in nodes]

    def _want(self) -> list[int]:
        """Values of every node's event register when all that was posted is done; nodes without a context stay as they are."""
        others = [(n, "event", 0) for n in range(len(self.events), self.device.nodes)]
        return self.events + (self.device.read_regs(others) if others else [])

    def _fail(
        self, job: Job, lowered: low.Lowered, done: list[list[WorkCompletion]], failure: DeviceTimeout | DeviceFault | None,
    ) -> CollectiveError | CollectiveTimeout:  # fmt: skip
        """Abort, and the error that says why: what ended first in an error of its own, or who is behind."""
        head = job.title
        state = "" if failure is None else failure.state
        late = isinstance(failure, DeviceTimeout)
        unit = "cycles" if self.device.timed else "steps"
        behind = f"{head} not done within {job.deadline} {unit}; not done: {self._behind(job, lowered)}"
        flushed_rows = job.abort(behind if late else f"{head} failed")
        # Completions come in order: an error may have waited behind a receive that nobody would ever meet.
        before, after = ([(r, c) for r, row in enumerate(rows) for c in row if c.status != Status.SUCCESS] for rows in (done, flushed_rows))
        cause = [e for e in before if e[1].status != Status.WR_FLUSH_ERR] or [e for e in after if e[1].status != Status.WR_FLUSH_ERR]
        if not cause and not late:  # queue pairs that were in error before: what met them was flushed
            rank = {n: r for r, n in enumerate(job.nodes)}
            first = [(rank[n], q) for n, q in failure.queues] if isinstance(failure, DeviceFault) else [(r, c.queue) for r, c in before]
            cause = [next(e for e in (*before, *after) if (e[0], e[1].queue) == at) for at in dict.fromkeys(first)]
        if not cause:
            cause = before[:1]
        if not cause:
            return CollectiveTimeout(f"{behind}; {failure.args[0].splitlines()[0] if failure else ''}", state)
        lines = "; ".join(self._ended(lowered, r, c) for r, c in cause)
        flushed = sum(c.status == Status.WR_FLUSH_ERR for _, c in (*before, *after) if c not in [x for _, x in cause])
        seen = f"; seen when the deadline of {job.deadline} passed" if late else ""
        return CollectiveError(f"{head} failed: {lines}; {flushed} more flushed{seen}", state)

    @staticmethod
    def _ended(lowered: low.Lowered, rank: int, c: WorkCompletion) -> str:
        """One completion in error: rank, channel, operation, addresses, status."""
        ops = lowered.plan.programs[rank][c.queue]
        if c.wr_id >= len(ops):
            return f"rank {rank} channel {c.queue}: wait ended in {c.status_name} (info {c.info:#x})"
        op = ops[c.wr_id]
        places = ", ".join(
            f"{name} {ref} at {lowered.map.address(rank, ref):#x}" for name, ref in (("a", op.a), ("b", op.b), ("d", op.d)) if ref is not None
        )
        return f"rank {rank} channel {c.queue}: {op}, {places}, ended in {c.status_name} (info {c.info:#x})"

    def _behind(self, job: Job, lowered: low.Lowered) -> str:
        """Ranks whose queues have not all raised their event."""
        got = self.device.read_regs([(n, "event", 0) for n in job.nodes])
        short = [(self.events[n] - g) & 0xFFFF_FFFF for n, g in zip(job.nodes, got, strict=True)]
        return ", ".join(f"rank {r} ({n} of {len(lowered.queues[r])} queues)" for r, n in enumerate(short) if n) or "none"

    def flush(self, nodes: Sequence[int]) -> tuple[list[list[WorkCompletion]], str]:
        """Put the queue pairs of `nodes` in error so that all that is outstanding ends: the completions, and what went wrong with it.

        What they had is made anew for the next plan.
        """
        wrong = ""
        try:
            for n in nodes:
                for qp in self.qps[n].values():
                    qp.modify(QpState.ERR)
            self.device.run(self._want(), 100_000)
        except HcclError as e:
            wrong = f" (and the flush did not end: {str(e).splitlines()[0]})"
        flushed: list[list[WorkCompletion]] = [[] for _ in nodes]
        with suppress(DeviceError):  # a machine that has ended says nothing
            flushed = self.poll(nodes)
            for n, value in zip(nodes, self.device.read_regs([(n, "event", 0) for n in nodes]), strict=True):
                self.events[n] = value
        for n in nodes:
            self._sizes[n] = ((), (0, 0))
        self._failed.update(nodes)
        self._loaded = ()
        return flushed, wrong

    def close(self) -> None:
        """Release queue pairs and regions."""
        with suppress(DeviceError):  # a machine that has ended holds nothing
            for n, pd in enumerate(self.pds):
                for qp in self.qps[n].values():
                    qp.modify(QpState.RESET)
                for mr in self.mrs[n].values():
                    pd.dereg_mr(mr)
                self.qps[n], self.mrs[n] = {}, {}
