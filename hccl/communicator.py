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

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np

from golden.net.wire import bound_cycles
from hccl.algorithms.table import check_groups, choose, make
from hccl.buffers import from_bytes, pack, to_bytes, unpack
from hccl.calls import Call, agree, make_call, new_result, sizes_of
from hccl.collectives import Collectives
from hccl.devices.base import Device
from hccl.errors import CollectiveError, CollectiveTimeout, HcclError, MismatchError, UsageError, integer
from hccl.executor import Executor, Job, Proved
from hccl.journal import Entry, Journal
from hccl.layout import REDUCING
from hccl.lower import Lowered
from hccl.moves import Machine
from hccl.plan import Plan
from hccl.ranks import Group, Rank
from hccl.result import Result
from hccl.verbs import WorkCompletion
from spec.packet import FIRST_QP
from spec.params import SystemParams
from spec.wqe import Op

__all__ = ["Communicator", "Result", "make_plan", "plan_bound"]
log = logging.getLogger("hccl")
_told: set[tuple[str, str]] = set()  # reductions of the host that were warned of


@lru_cache(maxsize=256)
def make_plan(
    params: SystemParams, collective: str, ranks: int, count: int, dtype: str, op: str = "", in_place: bool = False, root: int = 0,
    splits: tuple[int, ...] = (), algorithm: str | None = None, groups: tuple[tuple[int, ...], ...] | None = None, fixed_order: bool = False,
) -> Proved:  # fmt: skip
    """The plan of a collective for a machine of `params`, proved."""
    node = params.node
    machine = Machine(
        channels=min(node.me.queues, max((node.nic.qps - FIRST_QP) // 2, 1)), mtu=node.nic.mtu, window=node.me.window, rq_depth=node.nic.rq_depth,
        sq_depth=node.nic.sq_depth, qps=node.nic.qps - FIRST_QP,
    )  # fmt: skip
    return Proved(make(
        collective, ranks=ranks, count=count, dtype=dtype, op=op, in_place=in_place, root=root, splits=splits, algorithm=algorithm, groups=groups,
        fixed_order=fixed_order, machine=machine,
    ))  # fmt: skip


def plan_bound(plan: Plan, params: SystemParams) -> int:
    """Cycles no run of the plan's messages can beat on a machine of `params`."""
    messages = [[(int(Op.SEND), n) for n in plan.messages(r)] for r in range(plan.ranks)]
    return bound_cycles(messages, params.node.nic.mtu, params.link)


class Communicator(Collectives):
    """Ranks 0 … nranks - 1 on the first nodes of `device`.

    Args:
        device: an open device; the communicator takes its queues, queue pairs and memory, from one opened before if need be: a device serves
            one communicator, and what is split from it, at a time.
        nranks: None: one rank per node.
        deadline: cycles (golden: steps) every operation may take; None: twenty times its bound and 400,000 more.

    Raises:
        UsageError: more ranks than nodes.
    """

    def __init__(self, device: Device, nranks: int | None = None, *, deadline: int | None = None):
        n = device.nodes if nranks is None else integer(f"a device of {device.nodes} nodes: nranks", nranks, 1, device.nodes)
        deadline = None if deadline is None else integer("deadline", deadline, 1)
        if device.user is not None:
            device.user._replace()
        device.user = self
        self._begin(device, Executor(device, n), tuple(range(n)), deadline)

    def _begin(self, device: Device, executor: Executor, nodes: tuple[int, ...], deadline: int | None) -> None:
        self.device, self.executor, self.nodes, self.deadline = device, executor, nodes, deadline
        self.nranks = len(nodes)
        self.seq = 0  # collectives run
        self.broken: str | None = None
        self._closed = False
        self._group: Group | None = None
        self.journal = Journal(self.nranks)

    @property
    def last(self) -> Lowered | None:
        """The collective run last, as the machine had it (of several stages, the first)."""
        return self.executor.last

    # -- ranks, groups, parts -------------------------------------------------------------------------------------------

    def rank(self, number: int) -> Rank:
        """Raises: UsageError: no such rank."""
        return Rank(self, integer("rank", number, 0, self.nranks - 1))

    def group(self, *, deadline: int | None = None, algorithm: str | None = None, fixed_order: bool = False) -> Group:
        """Context manager that collects the ranks' calls and runs them at its end."""
        return Group(self, None if deadline is None else integer("deadline", deadline, 1), algorithm=algorithm, fixed_order=fixed_order)

    def split(self, colors: Sequence[int | None], keys: Sequence[int] | None = None) -> dict[int, Communicator]:
        """One communicator per colour, its ranks in the order of `keys` (equal ones: of their ranks here); None: no communicator.

        They share the device with this one and with each other; each fails and is aborted for itself.

        Raises:
            UsageError: not one colour (and key) per rank.
        """
        for name, values in (("colors", colors), ("keys", keys)):
            if values is not None and (not isinstance(values, Sequence) or len(values) != self.nranks):
                raise UsageError(f"split: {name} = {values!r}; expected one per rank, {self.nranks}")
        self._usable()
        made = {}
        for color in dict.fromkeys(c for c in colors if c is not None):
            members = [r for r in range(self.nranks) if colors[r] == color]
            members.sort(key=lambda r: (keys[r] if keys is not None else r, r))
            made[color] = self._over(members)
        return made

    def shrink(self, exclude: Sequence[int]) -> Communicator:
        """A communicator of the ranks that are not excluded, in their order; this one may have been aborted.

        Raises:
            UsageError: a rank that is none, or no rank left.
        """
        gone = {integer("shrink: rank", r, 0, self.nranks - 1) for r in exclude}
        left = [r for r in range(self.nranks) if r not in gone]
        if not left:
            raise UsageError(f"shrink: all {self.nranks} ranks are excluded; expected at least one to stay")
        return self._over(left)

    def _over(self, members: Sequence[int]) -> Communicator:
        if self.executor.ended is not None:
            raise CollectiveError(f"the communicator {self.executor.ended}; expected a new one")
        part = object.__new__(Communicator)
        part._begin(self.device, self.executor, tuple(self.nodes[r] for r in members), self.deadline)
        return part

    # -- calls ----------------------------------------------------------------------------------------------------------

    def _collect(
        self, collective: str, sendbufs: Any, recvbufs: Any = None, *, deadline: int | None = None, algorithm: str | None = None,
        groups: Any = None, fixed_order: bool = False, per_rank: dict[str, Any] | None = None, **kw: Any,
    ) -> Result:  # fmt: skip
        """A call of all ranks at once."""
        if deadline is not None:
            deadline = integer("deadline", deadline, 1)
        for name, bufs in (("sendbufs", sendbufs), ("recvbufs", recvbufs), *(per_rank or {}).items()):
            if not isinstance(bufs, Sequence | np.ndarray) and (bufs is not None or name == "sendbufs"):
                what = "one array per rank" if name in ("sendbufs", "recvbufs") else "a list of sizes per rank"
                raise UsageError(f"{collective}: {name} is a {type(bufs).__name__}; expected {what}, in a list")
            if bufs is not None and len(bufs) != self.nranks:
                raise MismatchError(f"{collective}: {len(bufs)} {name}; expected one per rank, {self.nranks}")
        if groups is not None:
            groups = check_groups(groups, self.nranks)
        factor = kw.pop("factor", None)
        factors = factor if isinstance(factor, Sequence | np.ndarray) and np.ndim(factor) else [factor] * self.nranks
        if len(factors) != self.nranks:
            raise MismatchError(f"{collective}: {len(factors)} factors; expected one for all, or one per rank, {self.nranks}")
        names = {"send_splits": "splits"}
        calls = [
            make_call(
                r, self.nranks, collective, sendbufs[r], None if recvbufs is None else recvbufs[r], factor=factors[r], **kw,
                **{names.get(name, name): rows[r] for name, rows in (per_rank or {}).items() if rows is not None},
            )
            for r in range(self.nranks)
        ]
        agree(calls, self.seq)
        return self._run(calls, deadline, algorithm=algorithm, groups=groups, fixed_order=fixed_order)

    def _usable(self) -> None:
        if self.broken or self.executor.ended:
            why = self.executor.ended if not self.broken else self.broken if self._closed else f"was aborted: {self.broken}"
            raise CollectiveError(f"the communicator {why}; expected a new one")

    def _run(
        self, calls: list[Call], deadline: int | None, *, algorithm: str | None = None, groups: tuple[tuple[int, ...], ...] | None = None,
        fixed_order: bool = False,
    ) -> Result:  # fmt: skip
        """Carry out calls that agree."""
        self._usable()
        first = calls[0]
        collective, n = first.base, self.nranks
        if collective == "barrier":
            return self._barrier(deadline, algorithm)
        count, splits = sizes_of(calls, self.seq)
        giver = next((c for c in calls if c.send is not None), first)
        in_place = first.in_place
        name = choose(collective, algorithm, fixed_order)
        if name != "hierarchical":
            groups = None
        op = first.op if collective in REDUCING else ""
        made = make_plan(self.device.params, collective, n, count, giver.dtype, op, in_place, first.root, splits, name, groups, fixed_order)
        plan = made.plan
        outputs: list[Any] = [None] * n
        for r, c in enumerate(calls):
            if c.takes:
                size = sum(b.length for b in plan.layout.outputs[r]) // plan.itemsize
                outputs[r] = c.recv if c.recv is not None else new_result(c, giver, size)
        inputs = [
            pack(to_bytes(c.send), plan.layout.inputs[r], plan.buffer_bytes("input", r)) if c.send is not None else np.zeros(0, np.uint8)
            for r, c in enumerate(calls)
        ]
        result, data = self._carry_out(made, inputs, tuple(c.factor for c in calls), deadline, first.collective)
        for r, target in enumerate(outputs):
            if target is not None and target.size:
                target[...] = from_bytes(unpack(data[r], plan.layout.outputs[r]), target)
        return Result(**result, outputs=outputs)

    def _carry_out(
        self, made: Proved, inputs: list[Any], factors: tuple[float | int, ...], deadline: int | None, called: str
    ) -> tuple[dict[str, Any], list[Any]]:
        """Run a plan: fields of its Result, and the output buffers."""
        plan, seq = made.plan, self.seq
        self.seq += 1
        bound = plan_bound(plan, self.device.params)
        limit = deadline if deadline is not None else self.deadline
        size = f"splits {list(plan.splits)}" if plan.splits else f"count {plan.count}"
        root = f" root {plan.root}" if plan.root else ""
        fields: dict[str, Any] = {
            "collective": plan.collective, "op": plan.op, "dtype": plan.dtype, "count": plan.count, "ranks": plan.ranks, "nbytes": plan.nbytes,
            "seq": seq, "algorithm": plan.algorithm,
        }  # fmt: skip
        self.journal.start([
            Entry(seq=seq, collective=called, algorithm=plan.algorithm, op=plan.op, dtype=plan.dtype, sizes=size + root) for _ in range(plan.ranks)
        ])
        if not plan.nbytes:
            self.journal.end("done")
            return fields, [np.zeros(plan.buffer_bytes("output", r), np.uint8) for r in range(plan.ranks)]
        what = f"{called} {plan.op}".strip()
        job = Job(
            proved=made, nodes=self.nodes, title=f"collective {seq} ({what}, {plan.dtype}, {size}, {plan.ranks} ranks)",
            deadline=20 * bound + 400_000 if limit is None else limit, factors=factors if plan.op == "premul_sum" else (), abort=self._failed,
        )  # fmt: skip
        before = self.executor.counters(self.nodes)
        try:
            data = self.executor.run(job, inputs)
        except (CollectiveError, CollectiveTimeout) as e:
            text = str(e).splitlines()[0]
            self.broken = text + (self.broken or "").removeprefix(self._provisional)
            self.journal.end("timed out" if isinstance(e, CollectiveTimeout) else "failed")
            raise type(e)(text, f"{e.state}\n{self.journal.dump()}".strip()) from None
        except HcclError:
            self.journal.end("refused")
            raise
        self.journal.end("done", job.cycles)
        if job.host_ops:
            level, new = (logging.WARNING, True) if (plan.dtype, plan.op) not in _told else (logging.DEBUG, False)
            _told.add((plan.dtype, plan.op))
            log.log(level, "collective %d: %s of %s: %d reductions (%d bytes) by the host: near-memory compute does not have them%s", seq, plan.op,
                    plan.dtype, job.host_ops, job.host_bytes, "; said once" if new else "")  # fmt: skip
        after = self.executor.counters(self.nodes)
        rose = [{k: (v - before[r][k]) & 0xFFFF_FFFF for k, v in now.items()} for r, now in enumerate(after)]
        fields |= {
            "cycles": job.cycles, "bound_cycles": bound, "wqes": job.wqes, "counters": rose, "host_ops": job.host_ops, "host_bytes": job.host_bytes,
        }  # fmt: skip
        return fields, data

    def _barrier(self, deadline: int | None, algorithm: str | None) -> Result:
        """Every rank gets a byte of every other: what this barrier's number is, so that none is taken for one of an earlier barrier."""
        made = make_plan(self.device.params, "barrier", self.nranks, 1, "uint8", algorithm=choose("barrier", algorithm))
        stamp = np.full(1, self.seq % 251 + 1, np.uint8)
        fields, data = self._carry_out(made, [stamp] * self.nranks, (), deadline, "barrier")
        for r, row in enumerate(data):
            got = unpack(row, made.plan.layout.outputs[r])
            if (got != stamp).any():
                raise CollectiveError(f"collective {fields['seq']} (barrier): rank {r} has {got.tolist()}; expected {stamp[0]} of every rank")
        return Result(**fields, outputs=[None] * self.nranks)

    def make_plan(self, collective: str, ranks: int, count: int, dtype: str, **kw: Any) -> Proved:
        """A proved plan for this communicator's machine."""
        return make_plan(self.device.params, collective, ranks, count, dtype, **kw)

    # -- the end --------------------------------------------------------------------------------------------------------

    def _failed(self, why: str) -> list[list[WorkCompletion]]:
        self._provisional = why
        return self.abort(why)

    def abort(self, why: str = "abort was called") -> list[list[WorkCompletion]]:
        """Put every queue pair in error so that all that is outstanding is flushed; the communicator takes no more calls."""
        if self.broken:
            return [[] for _ in self.nodes]
        self.broken = why
        flushed, wrong = self.executor.flush(self.nodes)
        self.broken += wrong
        return flushed

    def close(self) -> None:
        """Release queue pairs and regions, if they are this one's; the device can take another communicator."""
        self.broken = self.broken if self._closed else "was closed"
        self._closed = True
        if self.device.user is not self:
            return
        self.device.user = None
        self.executor.ended = self.executor.ended or "was closed"
        self.executor.close()

    def _replace(self) -> None:
        """Another communicator takes the device."""
        why, gave = self.broken, "gave its device to one that was opened later"
        self.close()
        self.executor.ended = gave
        self.broken, self._closed = why or gave, not why

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()
