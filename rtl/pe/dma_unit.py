"""Unit of the DMA engine: instructions of the command processor (spec.isa: DMA_ARGS) as descriptors, completions as answers.

Status 0 also for a descriptor that had nothing to move; otherwise the engine's (spec.dma: DmaStatus), `info` the low 32 bits of the failing address.
Memory's side is at `address`, local memory's at operand `a` (to memory) or `d`, an index list at `b`. FILL writes local memory, or memory with `to_memory`.

Members: `start` In stream START, `done` Out stream UNIT_DONE, `axi` AXI4 manager, `local_port` Out(LocalPort). Logic only: no latency of its own.
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.pe.dma.dma import Dma
from rtl.pe.local_port import LocalPort
from spec.dma import DmaOp, DmaStatus
from spec.isa import DMA_ARGS, SIGNED_ARGS, START, UNIT_DONE
from spec.params import MemParams, PeParams


class DmaUnit(Block):
    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        super().__init__({
            "start": In(stream.Signature(layout(START))), "done": Out(stream.Signature(layout(UNIT_DONE))),
            "axi": Out(AXI4Signature.of(mem)), "local_port": Out(LocalPort(pe)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.dma = dma = Dma(self.pe, self.mem)
        start, d, end = self.start.payload, dma.descriptor.payload, dma.completion.payload
        args = data.View(layout(DMA_ARGS), start.args)
        out = args.to_memory
        signed = {}
        for name in SIGNED_ARGS:
            wide = Signal(32, name=name)
            m.d.comb += wide.eq(args[name].as_signed())
            signed[name] = wide
        m.d.comb += [
            dma.descriptor.valid.eq(self.start.valid), self.start.ready.eq(dma.descriptor.ready),
            d.op.eq(args.kind), d.src_local.eq(out & (args.kind != DmaOp.FILL)), d.dst_local.eq(~out), d.row_bytes.eq(args.row_bytes),
            d.src.eq(Mux(out, start.a, args.address)), d.dst.eq(Mux(out, args.address, start.d)), d.rows.eq(args.rows), d.planes.eq(args.planes),
            d.repeats.eq(1), d.index.eq(start.b), d.fill.eq(args.fill),
            d.row_src.eq(Mux(out, signed["row_local"], signed["row_memory"])), d.row_dst.eq(Mux(out, signed["row_memory"], signed["row_local"])),
            d.plane_src.eq(Mux(out, signed["plane_local"], signed["plane_memory"])),
            d.plane_dst.eq(Mux(out, signed["plane_memory"], signed["plane_local"])),
            self.done.valid.eq(dma.completion.valid), dma.completion.ready.eq(self.done.ready),
            self.done.payload.status.eq(Mux(end.status >= DmaStatus.KIND, end.status, 0)), self.done.payload.info.eq(end.addr),
        ]
        connect(m, dma.axi, flipped(self.axi))
        connect(m, dma.local_port, flipped(self.local_port))
        return m
