"""A bench's AXI4 memory in the place of the local memory: a LocalPort on one side, accesses of one beat on the other.

Reads are answered in order. A read waits while a write before it may not be in memory yet, a write while a read before it may not have seen it; each
direction keeps an interval of the rows on their way for that, which starts anew when there is none.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.local_port import ROW_BYTES, LocalPort
from spec.params import MemParams, PeParams


class LocalAxi(Block):
    """`port`: LocalPort, seen from the memory; `axi`: AXI4 manager. Adds no cycle to a read request, one to a write's address and two to its word."""

    def __init__(self, pe: PeParams, mem: MemParams):
        self.port_signature = LocalPort(pe)
        super().__init__({"port": In(self.port_signature), "axi": Out(AXI4Signature.of(mem))})

    def elaborate(self, platform):
        m = Module()
        axi, ask = self.axi, self.port.request.payload
        bits = self.port_signature.addr_bits

        def guard(name: str, add, done):
            """Whether the row asked for lies among those on their way."""
            count, low, high = Signal(16, name=f"{name}_count"), Signal(bits, name=f"{name}_low"), Signal(bits, name=f"{name}_high")
            some = wire(m, count != 0, f"{name}_some")
            m.d.sync += count.eq(count + add - done)
            with m.If(add):
                m.d.sync += [
                    low.eq(Mux(some & (low < ask.addr), low, ask.addr)), high.eq(Mux(some & (high > ask.addr), high, ask.addr)),
                ]
            return wire(m, some & (ask.addr >= low) & (ask.addr <= high), f"{name}_waits")

        taken = wire(m, self.port.request.valid & self.port.request.ready, "taken")
        reads_wait = guard("writes", wire(m, taken & ask.write, "add_write"), wire(m, axi.b.valid & axi.b.ready, "done_write"))
        writes_wait = guard("reads", wire(m, taken & ~ask.write, "add_read"), wire(m, axi.r.valid & axi.r.ready, "done_read"))
        staged, data, strb = Signal(), Signal(8 * ROW_BYTES, reset_less=True), Signal(ROW_BYTES, reset_less=True)
        aw_free, w_free = wire(m, ~axi.aw.valid | axi.aw.ready, "aw_free"), wire(m, ~axi.w.valid | axi.w.ready, "w_free")
        m.d.comb += [
            axi.ar.valid.eq(self.port.request.valid & ~ask.write & ~reads_wait), axi.ar.payload.addr.eq(Cat(Const(0, 6), ask.addr)),
            axi.ar.payload.size.eq(6), axi.ar.payload.burst.eq(Burst.INCR),
            self.port.request.ready.eq(Mux(ask.write, aw_free & (~staged | w_free) & ~writes_wait, axi.ar.ready & ~reads_wait)),
            self.port.response.valid.eq(axi.r.valid), axi.r.ready.eq(self.port.response.ready),
            self.port.response.payload.data.eq(axi.r.payload.data), self.port.response.payload.error.eq(axi.r.payload.resp[1]),
            axi.b.ready.eq(1),
        ]
        with m.If(axi.aw.ready):
            m.d.sync += axi.aw.valid.eq(0)
        with m.If(w_free):
            m.d.sync += axi.w.valid.eq(staged)
        with m.If(w_free & staged):
            m.d.sync += [axi.w.payload.data.eq(data), axi.w.payload.strb.eq(strb), axi.w.payload.last.eq(1)]
        with m.If(taken & ask.write):
            m.d.sync += [
                axi.aw.valid.eq(1), axi.aw.payload.addr.eq(Cat(Const(0, 6), ask.addr)), axi.aw.payload.size.eq(6),
                axi.aw.payload.burst.eq(Burst.INCR), staged.eq(1), data.eq(ask.data), strb.eq(ask.strb),
            ]
        with m.Elif(w_free):
            m.d.sync += staged.eq(0)
        return m
