"""Drives the node of `node_rig`: registers by name, memory through the host port, work rings, completions; and the golden node beside it."""
from __future__ import annotations

import numpy as np
from cocotb.triggers import SimTimeoutError, with_timeout

from golden.chip.system import System
from spec.params import config
from spec.registers import Access, QpState, node_registers
from spec.wqe import CQE, CQE_BYTES, WQE, WQE_BYTES, Flag
from tb.common.pin_bus import Axil, axi_master
from tb.lib.bench import CYCLE, Bench, BenchError

#: Registers that a reset leaves as they are (spec/registers.py).
KEPT = ("mr_base", "mr_key", "mr_access", "qp_dest_qp", "qp_dest_node")
OKAY, SLVERR, DECERR = 0, 2, 3
RING, SLOTS, CQ = 0x100000, 64, 0x140000  # work ring of queue q at RING + q * RING_STEP; completion ring
RING_STEP = SLOTS * WQE_BYTES
DATA = 0x80000  # bytes from 0 that programs work on; region 0, of all rights
KEY = 0x5A000000
ALL = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ)


class NodeDriver:
    def __init__(self, b: Bench):
        self.b, self.p = b, b.config.node
        self.ctl, self.host = Axil(b, "ctl"), axi_master(b.dut, "host")
        self.table = {r.name: r for r in node_registers(self.p)}
        self.tails = [0] * self.p.me.queues
        self.seen = 0

    @classmethod
    async def start(cls, dut, *, loop: int = 1) -> NodeDriver:
        b = await Bench.start(dut)
        b.pin("loop").value = loop
        return cls(b)

    # -- registers and memory ---------------------------------------------------------------------------------------

    def address(self, name: str, index: int = 0) -> int:
        return self.table[name].offset + index * self.table[name].stride

    async def write(self, name: str, value: int, index: int = 0) -> None:
        resp = await self.ctl.write(self.address(name, index), value)
        assert resp == OKAY, f"write of {name}[{index}]: response {resp}"

    async def read(self, name: str, index: int = 0) -> int:
        value, resp = await self.ctl.read(self.address(name, index))
        assert resp == OKAY, f"read of {name}[{index}]: response {resp}"
        return value

    async def host_write(self, addr: int, data: bytes | np.ndarray) -> int:
        """The response."""
        return int((await self._answer(f"write of {addr:#x}", self.host.write(addr, bytes(data)))).resp)

    async def host_read(self, addr: int, n: int) -> tuple[bytes, int]:
        got = await self._answer(f"read of {addr:#x}", self.host.read(addr, n))
        return bytes(got.data), int(got.resp)

    async def _answer(self, what: str, access):
        try:
            return await with_timeout(access, 20000 * CYCLE, "ns")
        except SimTimeoutError:
            raise BenchError(f"{self.b.block}: {what} on the host port not answered within 20000 cycles") from None

    # -- work ------------------------------------------------------------------------------------------------------

    async def configure(self, *, cq_size: int = 256) -> None:
        self.cq_size = cq_size
        assert await self.host_write(CQ, bytes(max(64, cq_size * CQE_BYTES))) == OKAY  # whole words are read: no unknown bytes in them
        for q in range(self.p.me.queues):
            await self.write("wq_base", RING + q * RING_STEP, q)
            await self.write("wq_size", SLOTS, q)
        await self.write("cq_base", CQ)
        await self.write("cq_size", cq_size)

    async def region(self, index: int = 0, base: int = 0, size: int = DATA) -> None:
        for name, value in (("base", base), ("size", size), ("key", KEY | index), ("access", ALL)):
            await self.write(f"mr_{name}", value, index)

    async def open(self, qp: int, *, dest_qp: int, dest_node: int, sq_psn: int, rq_psn: int) -> None:
        await self.write("qp_state", QpState.RESET, qp)
        for name, value in (("dest_qp", dest_qp), ("dest_node", dest_node), ("sq_psn", sq_psn), ("rq_psn", rq_psn)):
            await self.write(f"qp_{name}", value, qp)
        for state in (QpState.INIT, QpState.RTR, QpState.RTS):
            await self.write("qp_state", state, qp)

    async def post(self, q: int, *wqes: dict) -> None:
        """WQEs into the ring, and the doorbell. Not named: keys KEY, SIGNALED, wr_id the position in the queue."""
        for w in wqes:
            w = {"lkey": KEY, "rkey": KEY, "flags": Flag.SIGNALED, "wr_id": self.tails[q], **w}
            assert await self.host_write(RING + q * RING_STEP + self.tails[q] % SLOTS * WQE_BYTES, WQE.to_bytes(w)) == OKAY
            self.tails[q] += 1
        await self.write("wq_tail", self.tails[q], q)

    async def completions(self, n: int, deadline: int = 20000) -> list[dict[str, int]]:
        """The next `n` CQEs, given back through cq_head."""
        for _ in range(deadline // 64):
            if await self.read("cq_tail") >= self.seen + n:
                break
            await self.b.wait_cycles(64)
        tail = await self.read("cq_tail")
        if tail != self.seen + n:
            queues = [(await self.read("wq_head", q), await self.read("wq_state", q)) for q in range(self.p.me.queues)]
            raise BenchError(f"{tail - self.seen} CQEs after {deadline} cycles, expected {n}; queues (head, state): {queues}")
        out = []
        for k in range(self.seen, tail):
            raw, resp = await self.host_read(CQ + k % self.cq_size * CQE_BYTES, CQE_BYTES)
            assert resp == OKAY
            out.append(CQE.from_bytes(raw))
            assert out[-1]["phase"] == ~(k // self.cq_size) & 1, f"CQE {k}: phase {out[-1]['phase']}"
        self.seen = tail
        await self.write("cq_head", tail)
        return out


class Twin(NodeDriver):
    """The same calls on the golden node too: afterwards memory and registers can be compared."""

    def __init__(self, b: Bench):
        super().__init__(b)
        self.golden = System(config("tiny").replace(nodes=1, node=self.p))
        self.written: set[str] = set()

    async def write(self, name: str, value: int, index: int = 0) -> None:
        await super().write(name, value, index)
        self.golden.write_reg(0, name, index, value)
        self.written.add(name)

    async def host_write(self, addr: int, data: bytes | np.ndarray) -> int:
        resp = await super().host_write(addr, data)
        if resp == OKAY:
            self.golden.mem_write(0, addr, np.frombuffer(bytes(data), np.uint8))
        return resp

    async def completions(self, n: int, deadline: int = 20000) -> list[dict[str, int]]:
        self.golden.run()
        return await super().completions(n, deadline)

    async def same(self, first: int, end: int) -> None:
        """Bytes [first, end) are as in the golden node, and every register but those of KEPT that nobody wrote."""
        got = np.frombuffer((await self.host_read(first, end - first))[0], np.uint8)
        want = self.golden.mem_read(0, first, end - first)
        differ = np.flatnonzero(got != want)
        assert not len(differ), f"{len(differ)} bytes differ from golden, first at {first + differ[0]:#x}: {got[differ[0]]:#x}, expected {want[differ[0]]:#x}"
        for r in self.table.values():
            for i in range(r.count) if r.name in self.written or r.name not in KEPT else ():
                value, golden = await self.read(r.name, i), self.golden.read_reg(0, r.name, i)
                assert value == golden, f"{r.name}[{i}]: {value:#x}, golden {golden:#x}"


