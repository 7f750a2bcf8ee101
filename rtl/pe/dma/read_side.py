"""Read side of the DMA engine: bursts in, AXI4 reads and reads of the local memory out, words in order in two buffers.

Members
    `burst`        In stream (read_layout)
    `ar`, `r`      AXI4 read channels: INCR, id 0
    `request`      Out stream {word}: a read of the local memory; `response` In stream (word_layout): its answers, in order
    `far`, `near`  Out streams (word_layout): words of memory and of local memory, each in the order of the bursts

Rules
    1. A burst is asked for when its buffer has room for all of it, and for memory while fewer than `dma_depth` are in flight (address taken, last word not
       come): `r` and `response` are always taken. Bursts are asked for in order, a burst a cycle; a word of the local memory a cycle.

Latency: `burst` to `ar` 1 cycle; a word to `far` or `near` 2. A slot is used again the cycle after the last word came.
Buffers: 512 words of memory (bursts of 4 KiB run at a word a cycle up to a latency of 448 cycles), 256 of local memory
(stores run that far ahead of a load under way: loads and stores of 1 KiB in turn fill the port up to a latency of 400).

Assumptions
    A1. Memory answers in order (one id is used): AXI4; rtl.mem.sram does.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import read_layout, word_layout
from spec.params import MemParams

FAR_WORDS = 512
NEAR_WORDS = 256


class DmaReadSide(Block):
    """See the module's contract. Args: `mem` sizes, `depth` bursts in flight, `near_bits` of a word address of the local memory."""

    def __init__(self, mem: MemParams, depth: int, near_bits: int):
        self.mem, self.depth = mem, depth
        axi = AXI4Signature.of(mem)
        super().__init__({
            "burst": In(stream.Signature(read_layout(mem))),
            "ar": Out(stream.Signature(axi.addr_layout)), "r": In(stream.Signature(axi.r_layout)),
            "request": Out(stream.Signature(data.StructLayout({"word": near_bits}))), "response": In(stream.Signature(word_layout())),
            "far": Out(stream.Signature(word_layout())), "near": Out(stream.Signature(word_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        size = word_layout().size
        m.submodules.far_words = far = SyncFIFOBuffered(width=size, depth=FAR_WORDS)
        m.submodules.near_words = near = SyncFIFOBuffered(width=size, depth=NEAR_WORDS)
        cur, active = Signal(read_layout(self.mem), name="cur", reset_less=True), Signal()
        flying = Signal(range(self.depth + 1))
        far_held, near_held = Signal(range(FAR_WORDS + 1)), Signal(range(NEAR_WORDS + 1))  # asked for and not yet taken away
        ask_far, ask_near = wire(m, self.ar.valid & self.ar.ready, "ask_far"), wire(m, self.request.valid & self.request.ready, "ask_near")
        landed = wire(m, self.r.valid & self.r.payload.last, "landed")
        done = wire(m, ask_far | ask_near & (cur.beats == 1), "done")
        ar = self.ar.payload
        m.d.comb += [
            self.burst.ready.eq(~active | done),
            self.ar.valid.eq(active & ~cur.near & (flying != self.depth) & (far_held + cur.beats <= FAR_WORDS)),
            ar.addr.eq(Cat(Const(0, 6), cur.word)), ar.len.eq(cur.beats - 1), ar.size.eq(6), ar.burst.eq(Burst.INCR),
            self.request.valid.eq(active & cur.near & (near_held != NEAR_WORDS)), self.request.payload.word.eq(cur.word),
            far.w_data.eq(Cat(self.r.payload.data, self.r.payload.resp[1])), far.w_en.eq(self.r.valid), self.r.ready.eq(1),
            near.w_data.eq(self.response.payload), near.w_en.eq(self.response.valid), self.response.ready.eq(1),
        ]
        for out, buffer in ((self.far, far), (self.near, near)):
            m.d.comb += [out.payload.eq(buffer.r_data), out.valid.eq(buffer.r_rdy), buffer.r_en.eq(out.ready)]
        with m.If(self.burst.ready):
            m.d.sync += active.eq(self.burst.valid)
        with m.If(self.burst.ready & self.burst.valid):
            m.d.sync += cur.eq(self.burst.payload)
        with m.Elif(ask_near):
            m.d.sync += [cur.word.eq(cur.word + 1), cur.beats.eq(cur.beats - 1)]
        with m.If(ask_far != landed):
            m.d.sync += flying.eq(Mux(ask_far, flying + 1, flying - 1))
        gone_far, gone_near = wire(m, far.r_rdy & far.r_en, "gone_far"), wire(m, near.r_rdy & near.r_en, "gone_near")
        with m.If(ask_far | gone_far):
            m.d.sync += far_held.eq(far_held + Mux(ask_far, cur.beats, 0) - gone_far)
        with m.If(ask_near != gone_near):
            m.d.sync += near_held.eq(Mux(ask_near, near_held + 1, near_held - 1))
        return m
