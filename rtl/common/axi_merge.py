"""Several AXI4 managers on one port.

Rules
    1. Addresses of reads, and of writes, are taken in turn (round robin over the managers that have one); an address that is shown stays until it is taken.
    2. The data of a write goes out after the address it belongs to has been chosen, whole bursts in the order of the addresses.
    3. Manager k's transactions have id ``k << shift | own id``, ``shift = id_width - ceil(log2(n))``: own ids lie below ``1 << shift``. Answers go back by
       the id, the own id in them. So each manager sees the order that memory keeps for its ids.

Parameters: `mem` (every port's), `n` managers. Members: `m0` … AXI4 subordinate ports, `axi` AXI4 manager.
Latency: none, in both directions. Interval: a beat a cycle and channel; no cycle is lost from one manager to another.

Assumptions
    A1. Own ids lie below ``1 << shift`` (what is above is not sent: the bench of each manager's user compares its answers).
    A2. A manager does not hold back an address until its data is taken (AXI4: valid waits for no ready).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.arbiter import round_robin
from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from spec.params import MemParams

WRITES = 16  # addresses whose data is still to come


class AxiMerge(Block):
    """Raises ValueError: fewer than two managers, or no id bit left for them."""

    def __init__(self, mem: MemParams, n: int):
        if n < 2 or ceil_log2(n) >= mem.id_width:
            raise ValueError(f"AxiMerge of {n} managers with ids of {mem.id_width} bits: expected at least 2, and more id bits than their number takes")
        self.mem, self.n = mem, n
        self.shift = mem.id_width - ceil_log2(n)
        axi = AXI4Signature.of(mem)
        super().__init__({**{f"m{k}": In(axi) for k in range(n)}, "axi": Out(axi)})

    def elaborate(self, platform):
        m = Module()
        ports = [getattr(self, f"m{k}") for k in range(self.n)]
        m.submodules.owners = owners = SyncFIFO(width=ceil_log2(self.n), depth=WRITES)
        early = Signal()  # the owner of the address shown is in the queue already
        for name in ("ar", "aw"):
            out = getattr(self.axi, name)
            asks = wire(m, Cat(getattr(p, name).valid for p in ports), f"{name}_asks")
            shown, kept = Signal(self.n, name=f"{name}_shown"), Signal(self.n, name=f"{name}_kept")
            fresh = round_robin(m, asks, self.n, advance=out.valid & (kept == 0), name=name)
            m.d.comb += shown.eq(Mux(kept != 0, kept, fresh))
            room = owners.w_rdy | early if name == "aw" else 1
            m.d.comb += out.valid.eq((shown != 0) & room)
            m.d.sync += kept.eq(Mux(out.valid & ~out.ready, shown, 0))
            for k, p in enumerate(ports):
                port = getattr(p, name)
                m.d.comb += port.ready.eq(out.ready & out.valid & shown[k])
                with m.If(shown[k]):
                    m.d.comb += [out.payload.eq(port.payload), out.payload.id.eq(Cat(port.payload.id[: self.shift], Const(k, ceil_log2(self.n))))]
            if name == "aw":
                m.d.sync += early.eq(out.valid & ~out.ready)
                m.d.comb += owners.w_en.eq(out.valid & ~early)
                for k in range(self.n):
                    with m.If(shown[k]):
                        m.d.comb += owners.w_data.eq(k)
        w = self.axi.w
        for k, p in enumerate(ports):
            with m.If(owners.r_rdy & (owners.r_data == k)):
                m.d.comb += [w.payload.eq(p.w.payload), w.valid.eq(p.w.valid), p.w.ready.eq(w.ready)]
        m.d.comb += owners.r_en.eq(w.valid & w.ready & w.payload.last)
        for name in ("r", "b"):
            back = getattr(self.axi, name)
            whose = back.payload.id[self.shift :]
            for k, p in enumerate(ports):
                port = getattr(p, name)
                m.d.comb += [port.payload.eq(back.payload), port.payload.id.eq(back.payload.id[: self.shift]), port.valid.eq(back.valid & (whose == k))]
                with m.If(whose == k):
                    m.d.comb += back.ready.eq(port.ready)
        return m
