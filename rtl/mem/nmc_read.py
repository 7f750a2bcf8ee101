"""Read side of one operand of near-memory compute: jobs in, AXI4 bursts out, beats in order.

Members: `job` In stream {addr, beats}; `ar` Out, `r` In: AXI4 read channels; `data` Out stream {data, error}, one item a beat.

Rules: INCR bursts of up to 64 beats of 64 bytes, never across 4 KiB, id 0. An address is issued only when the buffer has room for
the whole burst, so `r` is always taken. Bursts of later jobs are issued while earlier ones are still being read: with `depth`
beats of buffer the read runs at a beat a cycle up to a latency of depth - 64 cycles. `error`: memory answered SLVERR or DECERR.

Latency: 1 cycle from job to address, 2 from `r` to `data`. Interval: one beat a cycle, one burst a cycle.

Assumptions:
1. Job addresses are 64-byte aligned and `beats` is not 0; guarded by the front end (ALIGN_ERR, length 0), shown by the bench.
2. `r` answers in order (one id); guarded by AXI4.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from spec.params import MemParams

BURST = 64  # beats; 64 of 64 bytes are one 4 KiB page
BEATS_BITS = 27  # beats of a job: a 32-bit length in bytes


def burst_beats(m: Module, addr, left, name: str):
    """Beats of the next burst: to the end of the job or of the 4 KiB page, whichever is first (1 to 64)."""
    room = wire(m, Const(BURST, 7) - addr[6:12], f"{name}_room")[:7]
    return wire(m, Mux(left < room, left[:7], room), f"{name}_beats")


class NmcReader(Block):
    """See the module's contract. Args: `mem` sizes of the port; `depth` beats of buffer (a power of two, at least 128)."""

    def __init__(self, mem: MemParams, depth: int):
        self.depth = depth
        axi = AXI4Signature.of(mem)
        self.word = 8 * mem.data_bytes
        self.size = axi.size
        super().__init__({
            "job": In(stream.Signature(data.StructLayout({"addr": mem.addr_width, "beats": BEATS_BITS}))),
            "ar": Out(stream.Signature(axi.addr_layout)),
            "r": In(stream.Signature(axi.r_layout)),
            "data": Out(stream.Signature(data.StructLayout({"data": self.word, "error": 1}))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.buffer = buffer = SyncFIFOBuffered(width=self.word + 1, depth=self.depth)
        addr = Signal(len(self.job.payload.addr))
        left = Signal(BEATS_BITS)
        active = Signal()
        reserved = Signal(range(self.depth + 1))  # beats asked for and not yet taken from the buffer
        n = burst_beats(m, addr, left, "burst")
        issue = wire(m, self.ar.valid & self.ar.ready, "issue")
        final = wire(m, n == left, "final")
        take = wire(m, self.data.valid & self.data.ready, "take")
        m.d.comb += [
            self.ar.valid.eq(active & (reserved + n <= self.depth)),
            self.ar.payload.addr.eq(addr),
            self.ar.payload.len.eq(n - 1),
            self.ar.payload.size.eq(self.size),
            self.ar.payload.burst.eq(Burst.INCR),
            self.job.ready.eq(~active | (issue & final)),
            buffer.w_data.eq(Cat(self.r.payload.data, self.r.payload.resp[1])),
            buffer.w_en.eq(self.r.valid),
            self.r.ready.eq(1),
            self.data.valid.eq(buffer.r_rdy),
            self.data.payload.eq(buffer.r_data),
            buffer.r_en.eq(self.data.ready),
        ]
        m.d.sync += reserved.eq(reserved + Mux(issue, n, 0) - take)
        with m.If(self.job.ready):
            m.d.sync += active.eq(self.job.valid)
            with m.If(self.job.valid):
                m.d.sync += [addr.eq(self.job.payload.addr), left.eq(self.job.payload.beats)]
        with m.Elif(issue):
            m.d.sync += [addr.eq(addr + Cat(Const(0, 6), n)), left.eq(left - n)]
        return m
