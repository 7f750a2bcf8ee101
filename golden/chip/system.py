"""Functional system: nodes on a network that loses nothing and takes no time, behind the same registers as the RTL.

`run` lets every queue, near-memory engine and queue pair of every node act until none can. The order is a fixed
one, or a random one drawn from `seed`: the result of a program without races does not depend on it, and its memory,
CQEs and error codes are the hardware's.

When nothing can act and work is left, time decides in hardware, and `run` does as the timers would, shortest first:
messages without a RECV end in RNR_RETRY_EXC_ERR, then messages without a receiver in RETRY_EXC_ERR, then, where
`wait_timeout` is not 0, WAITs in WAIT_TIMEOUT. What is left after that would hang: :class:`SystemStalled`, with a
line for every queue and queue pair that waits. ``run(expire=False)`` raises it as soon as nothing can act, and
changes nothing: more work may be posted after it. ``run(watch=...)`` raises :class:`SystemFaulted` there when a queue
watched is in error: an error shows before any timer makes others of it.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from golden.chip.capture import Capture
from golden.chip.node import Node
from golden.nic.qp import Nic
from spec.params import SystemParams
from spec.wqe import Status

Bytes = NDArray[np.uint8]
Actor = Callable[[], bool]


class SystemStalled(RuntimeError):
    """Work is left and nothing can act; the text says what each queue and queue pair waits for."""


class SystemFaulted(RuntimeError):
    """A queue that was watched is in error with work left: `queues` the (node, queue); the text as of SystemStalled."""

    def __init__(self, state: str, queues: list[tuple[int, int]]):
        self.queues = queues
        super().__init__(f"a watched queue is in error{state}")


class System:
    """`params.nodes` nodes; node i has number i until its `node` register is written.

    Args:
        seed: draws the order in which actors act; None: a fixed order.
        capture: sees every message.
    """

    def __init__(self, params: SystemParams, *, seed: int | None = None, capture: Capture | None = None):
        self.params = params
        self.seed = seed
        self.nodes = [Node(params.node, i, self._find) for i in range(params.nodes)]
        for port, n in enumerate(self.nodes):
            n.nic.capture, n.nic.port = capture, port
        self.steps = 0
        self.last_stall = ""  # report of the last time nothing could act with work left
        self._random = random.Random(seed) if seed is not None else None

    def _find(self, number: int) -> Nic | None:
        if number < len(self.nodes) and self.nodes[number].nic.node == number:
            return self.nodes[number].nic
        return next((n.nic for n in self.nodes if n.nic.node == number), None)

    # -- the driver's side ------------------------------------------------------------------------------------------

    def write_reg(self, node: int, name: str, index: int, value: int) -> None:
        """Write register `name`, copy `index`, of a node (see `golden.chip.node`)."""
        self.nodes[node].write_reg(name, index, value)

    def read_reg(self, node: int, name: str, index: int = 0) -> int:
        return self.nodes[node].read_reg(name, index)

    def mem_write(self, node: int, addr: int, values: Bytes) -> None:
        """Raises golden.mem.memory.AccessError beyond the memory; TypeError for anything but bytes."""
        values = np.asarray(values)
        if values.dtype != np.uint8 or values.ndim != 1:
            raise TypeError(f"mem_write takes a row of uint8, not {values.dtype} of shape {values.shape}")
        self.nodes[node].memory.write(addr, values)

    def mem_read(self, node: int, addr: int, n: int) -> Bytes:
        return self.nodes[node].memory.read(addr, n)

    def messages(self) -> list[list[tuple[int, int]]]:
        """(op, length) of every message each node has sent: what `golden.net.wire.bound_cycles` takes."""
        return [list(n.nic.messages) for n in self.nodes]

    # -- execution --------------------------------------------------------------------------------------------------

    def run(
        self, deadline_steps: int | None = None, *, expire: bool = True, watch: Sequence[tuple[int, int]] = ()
    ) -> int:
        """Execute until nothing is left; the number of steps taken (WQEs started, messages moved, completions written).

        Args:
            watch: (node, queue) whose errors end the run where only a timer could go on.

        Raises:
            SystemStalled: work is left that nothing will end, or `deadline_steps` were not enough.
            SystemFaulted: nothing can act, work is left, and a queue of `watch` is in error.
        """
        limit = None if deadline_steps is None else self.steps + deadline_steps
        start = self.steps
        while True:
            self._settle(limit)
            if not self.busy():
                return self.steps - start
            self.last_stall = self.report()
            failed = [(n, q) for n, q in watch if self.nodes[n].engine.queues[q].error]
            if failed:
                raise SystemFaulted(self.last_stall, failed)
            if not expire or not self._expire():
                raise SystemStalled(f"nothing can act and work is left{self.last_stall}")

    def busy(self) -> bool:
        """Work is left: a WQE that is posted and not done."""
        return any(q.works or q.pending for n in self.nodes for q in n.engine.queues)

    def report(self) -> str:
        """What every queue and queue pair with work left waits for, a line each."""
        return "".join(f"\n  node {i} {line}" for i, n in enumerate(self.nodes) for line in n.report())

    def _expire(self) -> bool:
        for status in (Status.RNR_RETRY_EXC_ERR, Status.RETRY_EXC_ERR):
            if sum(n.nic.expire(status) for n in self.nodes):
                return True
        return sum(n.engine.expire_waits() for n in self.nodes) > 0

    def _actors(self) -> Iterator[Actor]:
        for n in self.nodes:
            e, nic = n.engine, n.nic
            for q in e.queues:
                if q.works or q.pending:
                    yield partial(e.step_queue, q)
            if e.nmc_queue:
                yield e.step_nmc
            for qp in list(nic.active.values()):
                yield partial(nic.step_qp, qp)

    def _settle(self, limit: int | None) -> None:
        rng = self._random
        while True:
            actors = list(self._actors())
            moved = False
            if rng is not None:
                rng.shuffle(actors)
                for act in actors:
                    if rng.random() < 0.7:
                        moved |= self._act(act, rng.randint(1, 4), limit)
            if not moved:
                for act in actors:
                    moved |= self._act(act, 64 if rng is None else 1, limit)
            if not moved:
                return

    def _act(self, act: Actor, times: int, limit: int | None) -> bool:
        for i in range(times):
            if not act():
                return i > 0
            self.steps += 1
            if limit is not None and self.steps > limit:
                raise SystemStalled(f"not done after the deadline of {limit} steps in all{self.report()}")
        return True
