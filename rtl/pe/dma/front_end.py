"""Front end of the DMA engine: checks descriptors that need no address to be refused, and gives one completion each, in order.

Members
    `descriptor`  In stream DMA_DESCRIPTOR
    `job`         Out stream DMA_DESCRIPTOR: those that have rows to move
    `finished`    In stream {status, addr}: one per job, in their order
    `completion`  Out stream DMA_COMPLETION

Rules
    1. First that applies: KIND (GATHER or SCATTER with planes or repeats above 1), EMPTY_ROW, EMPTY_COUNT, ALIGN and RANGE_INDEX (index list; `addr` is
       its address). Such a descriptor ends here, and its completion waits for those before it.
    2. Up to `depth` descriptors are held between `descriptor` and `completion`.

Latency: `descriptor` to `job` 1 cycle; `finished` to `completion` 1 cycle (`descriptor` to `completion` 2 where it ends here). Interval 1.

Assumptions
    A1. `finished` is never held back for long: at most `depth` are on their way (queue of that depth, which is never full).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import outcome_layout
from spec.dma import DMA_COMPLETION, DMA_DESCRIPTOR, DmaOp, DmaStatus
from spec.params import PeParams


class DmaFrontEnd(Block):
    """See the module's contract. Args: `depth` descriptors."""

    def __init__(self, pe: PeParams, depth: int):
        self.pe, self.depth = pe, depth
        super().__init__({
            "descriptor": In(stream.Signature(layout(DMA_DESCRIPTOR))), "job": Out(stream.Signature(layout(DMA_DESCRIPTOR))),
            "finished": In(stream.Signature(outcome_layout())), "completion": Out(stream.Signature(layout(DMA_COMPLETION))),
        })

    def elaborate(self, platform):
        m = Module()
        d = self.descriptor.payload
        entry = data.StructLayout({"tag": 16, "status": 8, "addr": 32, "runs": 1})
        m.submodules.order = order = SyncFIFO(width=entry.size, depth=self.depth)

        # Check.
        indexed = wire(m, (d.op == DmaOp.GATHER) | (d.op == DmaOp.SCATTER), "indexed")
        end = wire(m, d.index + (d.rows << 2), "index_end")
        new = Signal(entry, name="new_entry")
        m.d.comb += new.tag.eq(d.tag)
        with m.If(indexed & (d.planes[1:].any() | d.repeats[1:].any())):
            m.d.comb += new.status.eq(DmaStatus.KIND)
        with m.Elif(d.row_bytes == 0):
            m.d.comb += new.status.eq(DmaStatus.EMPTY_ROW)
        with m.Elif((d.rows == 0) | (d.planes == 0) | (d.repeats == 0)):
            m.d.comb += new.status.eq(DmaStatus.EMPTY_COUNT)
        with m.Elif(indexed & d.index[:2].any()):
            m.d.comb += [new.status.eq(DmaStatus.ALIGN), new.addr.eq(d.index)]
        with m.Elif(indexed & (end > self.pe.local_bytes)):
            m.d.comb += [new.status.eq(DmaStatus.RANGE_INDEX), new.addr.eq(d.index)]
        with m.Else():
            m.d.comb += new.runs.eq(1)

        # To the mid end, and in order.
        job, valid = Signal(layout(DMA_DESCRIPTOR), reset_less=True), Signal(name="job_valid")
        free = wire(m, ~valid | self.job.ready, "free")
        accept = wire(m, self.descriptor.valid & self.descriptor.ready, "accept")
        m.d.comb += [
            self.descriptor.ready.eq(order.w_rdy & free), order.w_en.eq(accept), order.w_data.eq(new),
            self.job.valid.eq(valid), self.job.payload.eq(job),
        ]
        with m.If(free):
            m.d.sync += valid.eq(accept & new.runs)
        with m.If(accept & new.runs):
            m.d.sync += job.eq(d)

        # Completions.
        head = Signal(entry, name="head")
        out, shown = Signal(layout(DMA_COMPLETION), reset_less=True), Signal(name="shown")
        room = wire(m, ~shown | self.completion.ready, "room")
        take = wire(m, order.r_rdy & room & (self.finished.valid | ~head.runs), "take")
        m.d.comb += [
            head.eq(order.r_data), order.r_en.eq(take), self.finished.ready.eq(take & head.runs),
            self.completion.valid.eq(shown), self.completion.payload.eq(out),
        ]
        with m.If(room):
            m.d.sync += shown.eq(take)
        with m.If(take):
            m.d.sync += [
                out.tag.eq(head.tag), out.status.eq(Mux(head.runs, self.finished.payload.status, head.status)),
                out.addr.eq(Mux(head.runs, self.finished.payload.addr, Cat(head.addr, Const(0, 32)))),
            ]
        return m
