"""Drives the message engine of `me_rig`: registers, rings in memory, doorbells, and the log of a run."""
from __future__ import annotations

import numpy as np

from spec.fields import Record, field
from spec.interfaces import NIC_REQUEST, NMC_REQUEST
from spec.wqe import WQE, WQE_BYTES, Compare, Op
from tb.lib.bench import Bench, BenchError
from tb.nic.me_check import Check, Log
from tb.nic.me_rig import SIZES

# Words of SET and WAIT, 64 bytes apart, from 0 to RING; ring of queue q at (q + 1) * RING; completion ring.
FLAGS, RING, CQ = 0x0, 0x10000, 0x80000
_LOGS = {
    "nic": [field("now", 32), field("request", NIC_REQUEST.bits)], "nmc": [field("now", 32), field("request", NMC_REQUEST.bits)],
    "nic_done": [field("now", 32), field("tag", 16)], "nmc_done": [field("now", 32), field("tag", 16)],
    "aw": [field("now", 32), field("addr", 32), field("id", 4)], "w": [field("now", 32), field("strb", 64), field("data", 256)],
    "b": [field("now", 32), field("id", 4), field("resp", 2)],
    "ar": [field("now", 32), field("addr", 32), field("len", 8), field("id", 4)], "r": [field("now", 32), field("id", 4), field("last", 1)],
}


def set_word(k: int, value: int, **more) -> dict:
    """SET of word k."""
    return dict(opcode=Op.SET, addr_d=FLAGS + 64 * k + 4 * (k % 16), imm=value, **more)


def wait_word(k: int, cmp: Compare, value: int, **more) -> dict:
    """WAIT on word k."""
    return dict(opcode=Op.WAIT, addr_a=FLAGS + 64 * k + 4 * (k % 16), cmp=cmp, imm=value, **more)


def pack(w: dict) -> bytes:
    reserved = w.get("_reserved", 0)
    word = WQE.pack({k: v for k, v in w.items() if not k.startswith("_")}) | reserved << WQE.offsets["_reserved"]
    return word.to_bytes(WQE_BYTES, "little")


class MeDriver:
    """Create with :meth:`start`, then `configure`, `post`, `run`, `check`."""

    def __init__(self, bench: Bench):
        self.b = bench
        self.me = SIZES.get(bench.block, bench.config.node.me)
        self.memory = bench.memory("axi")
        self.size = [0] * self.me.queues
        self.program: dict[int, list[dict]] = {q: [] for q in range(self.me.queues)}
        self.posted = [0] * self.me.queues
        self.log = Log()
        self.doorbells: dict[int, list[tuple[int, int]]] = {q: [] for q in range(self.me.queues)}  # (cycle, tail)
        self._registers: list[tuple[str, int, int]] = []
        self.words: list[int] = []  # words given to SETs by a test's programs
        for name in ("cq_head", "nic_hold", "nmc_hold"):
            self.pin(name, 0)
        self.pin("wait_timeout", 1 << 20)
        self.memory.error(0, 0)
        self.memory.write(FLAGS, np.zeros(RING, np.uint8))
        self.timing()

    @classmethod
    async def start(cls, dut) -> MeDriver:
        return cls(await Bench.start(dut))

    def pin(self, name: str, value: int | None = None) -> int:
        if value is not None:
            self.b.pin(name).value = value
            return value
        return int(self.b.pin(name).value)

    async def again(self) -> None:
        """Hardware reset; forget programs and logs."""
        await self.b.reset()
        self.__init__(self.b)

    async def reset_queue(self, q: int) -> None:
        """wq_reset, and forget the queue's program and the log of all queues."""
        await self.write("wq_reset", q, 1)
        self.program[q], self.posted[q], self.log = [], 0, Log()

    def timing(self, *, latency: int = 4, delay: int = 15, stall: float = 0.0) -> None:
        """Memory latency, mask of the units' random delay, probability of stalls everywhere."""
        self.memory.latency, self.memory.stall = latency, stall
        for unit in ("nic", "nmc"):
            self.pin(f"{unit}_delay", delay)
            self.pin(f"{unit}_stall", int(256 * stall))

    def configure(self, *, size: int = 1024, cq_size: int = 4096, base: dict[int, int] | None = None) -> None:
        """Rings; written to the registers at the start of the next run."""
        self.cq_size = cq_size
        self.pin("cq_base", CQ), self.pin("cq_size", cq_size)
        self.base = [(base or {}).get(q, (q + 1) * RING) for q in range(self.me.queues)]
        for q in range(self.me.queues):
            self.size[q] = size
            self._registers += [("wq_base", q, self.base[q]), ("wq_size", q, size)]

    def post(self, q: int, wqes: list[dict]) -> None:
        """Write WQEs to the ring behind those posted before; no doorbell yet."""
        for w in wqes:
            at = self.base[q] + len(self.program[q]) % self.size[q] * WQE_BYTES
            self.memory.write(at, np.frombuffer(pack(w), np.uint8))
            self.program[q].append(w)

    @property
    def reads(self) -> int:
        """Beats read since `begin`."""
        return self.pin("axi__reads") - self.read_beats

    @property
    def writes(self) -> int:
        """Beats written since `begin`."""
        return self.pin("axi__writes") - self.write_beats

    async def write(self, name: str, q: int, value: int) -> None:
        for key, v in (("index", q), ("wdata", value), ("write", 1)):
            self.pin(f"{name}__{key}", v)
        await self.b.wait_cycles(1)
        self.pin(f"{name}__write", 0)

    async def read(self, name: str, q: int) -> int:
        self.pin(f"{name}__index", q)
        await self.b.wait_cycles(2)
        return self.pin(f"{name}__rdata")

    async def doorbell(self, q: int, tail: int | None = None) -> None:
        """Tell the engine of the posted WQEs, or of the first `tail`."""
        self.posted[q] = len(self.program[q]) if tail is None else tail
        await self.write("wq_tail", q, self.posted[q])
        await self.b.wait_cycles(1)
        self.doorbells[q].append((self.pin("rung"), self.posted[q]))

    async def begin(self) -> None:
        """Load memory and write the registers."""
        for name in _LOGS:
            self.b.sink(f"log_{name}").expect(0, exact=False)
        await self.b.begin()
        self.read_beats, self.write_beats = self.pin("axi__reads"), self.pin("axi__writes")
        for name, q, value in self._registers:
            await self.write(name, q, value)
        self._registers.clear()

    async def retired(self, deadline: int = 40000, heads: list[int] | None = None) -> None:
        """Wait until everything posted is retired (or `heads`), and every CQE written.

        Raises: BenchError after `deadline` cycles, with the state of the queues.
        """
        heads = heads or list(self.posted)
        for q, head in enumerate(heads):
            while await self.read("wq_head", q) != head:
                if deadline <= 0:
                    state = [(await self.read("wq_head", k), h, await self.read("wq_state", k)) for k, h in enumerate(heads)]
                    raise BenchError(f"queues (head, expected, state): {state}\n{self.b.state()}")
                await self.b.wait_cycles(16)
                deadline -= 18
        quiet, before = 0, -1
        while quiet < 4:
            await self.b.wait_cycles(16 + self.memory.latency)
            now = (self.pin("cq_tail"), self.pin("axi__writes"))
            quiet, before = (quiet + 1, now) if now == before else (0, now)

    async def end(self) -> None:
        """Collect memory, and the logs behind those of earlier runs."""
        await self.b.finish(1000)
        for name, fields in _LOGS.items():
            record = Record(name, sum(f.width for f in fields), fields)
            events = [record.unpack(w) for w in self.b.sink(f"log_{name}").words()]
            if len(events) >= self.b.ports[f"log_{name}"].depth:
                raise BenchError(f"log {name} is full")
            if "request" in record.widths:
                inner = NIC_REQUEST if name == "nic" else NMC_REQUEST
                events = [e | {"request": inner.unpack(e["request"])} for e in events]
            getattr(self.log, name).extend(events)

    async def run(self, deadline: int = 40000) -> None:
        """One run: load, doorbell for all that is posted, wait for the end."""
        await self.begin()
        for q in range(self.me.queues):
            if self.posted[q] != len(self.program[q]):
                await self.doorbell(q)
        await self.retired(deadline)
        await self.end()

    def check(self, **more) -> Check:
        """Judge everything since the last reset; returns the check with what it saw."""
        c = Check(self.program, self.log, window=self.me.window, cq_size=self.cq_size, cq_base=CQ, **more)
        c.run()
        if self.pin("cq_tail") != c.first_cqe + len(c.cqes):
            raise BenchError(f"cq_tail {self.pin('cq_tail')}, {len(c.cqes)} CQEs were written")
        self._reads()
        return c

    def _reads(self) -> None:
        """No read of a WQE past the tail, none twice, none outside the ring; in flight or unstarted never more than `prefetch`."""
        at = dict.fromkeys(self.program, 0)
        for ar in self.log.ar:
            q, n = ar["id"], ar["len"] + 1
            if ar["addr"] < RING:
                continue
            tail = max((t for now, t in self.doorbells[q] if now < ar["now"]), default=0)
            first = self.base[q] + at[q] % self.size[q] * WQE_BYTES
            if ar["addr"] != first or at[q] + n > tail or at[q] % self.size[q] + n > self.size[q] or n > self.me.prefetch:
                raise BenchError(f"queue {q} reads {n} WQEs at {ar['addr']:#x}; next is {first:#x}, position {at[q]} of {tail}")
            at[q] += n
        if at != self.posted_map():
            raise BenchError(f"WQEs read {at}, posted {self.posted_map()}")

    def posted_map(self) -> dict[int, int]:
        return dict(enumerate(self.posted))
