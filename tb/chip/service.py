"""A simulated system as a service: registers by name, memory in bulk, run until events, with a deadline and a state dump.

Time stands still between calls. Register writes are kept until the next call that needs them and then played at once on all nodes, so
that doorbells of different nodes ring in the same cycles.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np

from rtl.chip.station import FAULTS
from spec.params import SystemParams
from spec.registers import address, node_registers
from tb.chip.executor import Executor

KINDS = {"drop": "p_drop", "dup": "p_dup", "reorder": "p_reorder", "corrupt": "p_corrupt"}
REGISTER_DEADLINE = 200_000  # cycles for one batch of register accesses
SETTLE = 2000  # cycles from the first error of a queue to the end of the run: its completion is written, its NAK has reached the peer


class SimTimeout(RuntimeError):
    """A run whose events did not come within its deadline; the message holds events, queues and counters of every node."""


class SimFault(RuntimeError):
    """A run that a work queue's error ended: `queues` the (node, work queue) that were first; the message as of SimTimeout."""

    def __init__(self, state: str, queues: list[tuple[int, int]]):
        self.queues = queues
        super().__init__(state)


class SimFailure(RuntimeError):
    """The system refused a call."""


def _writable(what: str, name: str | None) -> Path | None:
    """The file, tried before anything is compiled."""
    if not name:
        return None
    path = Path(name).resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as e:
        raise ValueError(f"{what}: {path}: {e.strerror or e}") from None
    return path


class SimService:
    """A running system.

    Args:
        params: sizes.
        seed: of stalls and faults.
        stalls: probability of a stall per cycle on every internal stream (0: the hardware without stall gates).
        faults: probability per frame by kind: drop, dup, reorder, corrupt.
        waves: file for an FST trace of everything.
        pcap: file for a capture (pcapng) of every node's link at the switch, a clock cycle a nanosecond.
        sim: verilator (whole systems run on no other).

    Raises:
        ValueError: a probability, a kind or a simulator that is not known. MissingTool, BuildError: no compiler, or no model.
    """

    def __init__(
        self, params: SystemParams, *, seed: int = 0, stalls: float = 0.0, faults: dict[str, float] | None = None,
        waves: str | None = None, pcap: str | None = None, sim: str = "verilator",
    ):
        if not isinstance(faults or {}, dict):
            raise ValueError(f"faults = {faults!r}; expected a probability by kind ({', '.join(KINDS)})")
        if not isinstance(seed, int):
            raise ValueError(f"seed = {seed!r}; expected an integer")
        faults = {k: v for k, v in (faults or {}).items() if v}
        for kind, p in (*faults.items(), ("stalls", stalls)):
            if kind != "stalls" and kind not in KINDS:
                raise ValueError(f"unknown fault {kind!r}; known: {', '.join(KINDS)}")
            if not isinstance(p, int | float) or not 0 <= p < 1:
                raise ValueError(f"probability of {kind} = {p!r}; expected 0 <= p < 1")
        if sim != "verilator":
            raise ValueError(f"whole systems run on verilator; got simulator {sim!r}")
        self.params = params
        self._pending: list[tuple[int, int, int, int]] = []
        pins = {"stall": int(stalls * 65536), "seed": seed & 0xFFFFFFFF, **dict.fromkeys(FAULTS, 0)}
        pins.update({KINDS[k]: max(1, int(v * 65536)) for k, v in faults.items()})
        trace, capture = (_writable(what, name) for what, name in (("waves", waves), ("pcap", pcap)))
        self._system: Executor | None = Executor(params, faults=bool(faults), gates=stalls > 0, pins=pins, trace=trace, capture=capture)

    @property
    def _running(self) -> Executor:
        if self._system is None:
            raise SimFailure("the simulated system is closed")
        return self._system

    @property
    def cycles(self) -> int:
        """Clock cycles since power-up."""
        return self._running.cycles

    def write_regs(self, writes: list[tuple[int, str, int, int]]) -> None:
        """(node, register, index, value) each; played before whatever comes next."""
        for node, name, index, value in writes:
            self._node(node)
            self._pending.append((node, 1, address(self.params.node, name, index), value & 0xFFFFFFFF))

    def read_regs(self, reads: list[tuple[int, str, int]]) -> list[int]:
        wanted = [(self._node(node), 0, address(self.params.node, name, index), 0) for node, name, index in reads]
        return self._play(wanted)

    def _play(self, reads: list[tuple[int, int, int, int]]) -> list[int]:
        pending, self._pending = self._pending, []
        if not pending and not reads:
            return []
        cycles, done = self._running.run(pending + reads, None, REGISTER_DEADLINE)
        if cycles < 0:
            raise SimFailure(f"register accesses not answered within {REGISTER_DEADLINE} cycles")
        self._check(done)
        return [c.value for c in done[len(pending) :]]

    def _check(self, done) -> None:
        for c in done:
            if c.resp:
                raise SimFailure(f"node {c.node}: {'write to' if c.write else 'read of'} register {c.addr:#x} answered {c.resp}")

    def mem_write(self, node: int, addr: int, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data, dtype=np.uint8)
        self._range(node, addr, len(data))
        self._play([])
        if len(data):
            self._running.mem_write(node, addr, data)

    def mem_read(self, node: int, addr: int, n: int) -> np.ndarray:
        self._range(node, addr, n)
        self._play([])
        return self._running.mem_read(node, addr, n) if n else np.zeros(0, np.uint8)

    def run(self, events: list[int], deadline: int, watch: list[tuple[int, int]] | None = None) -> int:
        """Play the register writes waiting, then run until every node's `event` register has reached ``events[node]``.

        Returns cycles from the first register write to that point.

        Args:
            watch: the (node, work queue) whose errors end the run, SETTLE cycles after the first; None: no error does.

        Raises:
            SimTimeout: not within `deadline` cycles. SimFault: a queue of `watch` went into error before.
        """
        if len(events) != self.params.nodes:
            raise ValueError(f"{len(events)} event counts for {self.params.nodes} nodes")
        pending, self._pending = self._pending, []
        system, start = self._running, self.cycles
        system.watch(watch or [], SETTLE)
        cycles, done = system.run(pending, events, deadline)
        took = self.cycles - start
        if cycles == -2:
            queues = system.failed()
            raise SimFault(self._state(events, took), queues)
        if cycles < 0:
            raise SimTimeout(self._state(events, took))
        self._check(done)
        return cycles

    def _state(self, events: list[int], cycles: int) -> str:
        """What every node has done: events, completion ring, queues, counters."""
        p = self.params
        names = [
            (r.name, q) for r in node_registers(p.node) for q in range(r.count)
            if r.name in ("event", "cq_tail", "cq_head", "wq_tail", "wq_head", "wq_state") or r.name.startswith(("nic_", "nmc_"))
        ]
        values = self.read_regs([(i, n, q) for i in range(p.nodes) for n, q in names])
        lines = [f"after {cycles} cycles:"]
        for i in range(p.nodes):
            at = dict(zip(names, values[i * len(names) : (i + 1) * len(names)]))
            lines.append(
                f"  node {i}: events {at['event', 0]} of {events[i]}, CQEs {at['cq_tail', 0]} written, {at['cq_head', 0]} consumed"
            )
            for q in range(p.node.me.queues):
                if at["wq_tail", q]:
                    lines.append(f"    queue {q}: {at['wq_head', q]} of {at['wq_tail', q]} WQEs done, state {at['wq_state', q]:04b}")
            counters = ", ".join(f"{n} {v}" for (n, _), v in at.items() if n.startswith(("nic_", "nmc_")) and v)
            if counters:
                lines.append(f"    {counters}")
        return "\n".join(lines)

    def _node(self, node: int) -> int:
        if not 0 <= node < self.params.nodes:
            raise IndexError(f"node {node} of {self.params.nodes}")
        return node

    def _range(self, node: int, addr: int, n: int) -> None:
        self._node(node)
        if addr < 0 or n < 0 or addr + n > self.params.node.mem.size_bytes:
            raise ValueError(f"node {node}: {addr:#x}+{n} outside its memory of {self.params.node.mem.size_bytes} bytes")

    def close(self) -> None:
        """End the simulation; a trace is whole after this. Calling it again does nothing."""
        if self._system is not None:
            self._system.close()
            self._system = None

    def __enter__(self) -> SimService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
