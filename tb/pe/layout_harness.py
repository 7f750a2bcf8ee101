"""Memory layout unit on a local memory, with a port to load and look at it, one that disturbs, and stalls between unit and memory."""
from __future__ import annotations

import dataclasses

from amaranth.hdl import Const, Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block
from rtl.common.gate import StallGate
from rtl.common.layouts import layout
from rtl.pe.layout_unit import LayoutUnit
from rtl.pe.local_bank import CODE_ROW
from rtl.pe.local_memory import LocalMemory
from rtl.pe.local_port import LocalPort
from spec.layout_unit import LU_DONE, LU_JOB
from spec.params import PeParams


class LayoutHarness(Block):
    """`load` and `other`: ports of the memory. `stall`: probability, of 65536, of a cycle without the reader's requests, its answers, the
    writer's requests. With `ecc` 1 `flip` is the memory's. `reads`, `writes`: accesses of the unit since reset."""

    def __init__(self, pe: PeParams, local_bytes: int, banks: int, ecc: int):
        self.pe = dataclasses.replace(pe, local_bytes=local_bytes, local_banks=banks, ecc=bool(ecc))
        super().__init__({
            "job": In(stream.Signature(layout(LU_JOB))), "done": Out(stream.Signature(layout(LU_DONE))),
            "load": In(LocalPort(self.pe)), "other": In(LocalPort(self.pe)), "stall": In(16), "reads": Out(32), "writes": Out(32),
            **({"flip": In(CODE_ROW)} if ecc else {}),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = LocalMemory(self.pe, 4)
        m.submodules.unit = unit = LayoutUnit(self.pe)
        connect(m, flipped(self.job), unit.job)
        connect(m, unit.done, flipped(self.done))
        connect(m, flipped(self.load), memory.p0)
        connect(m, flipped(self.other), memory.p1)
        port = LocalPort(self.pe)
        for k, (name, source, to, shape) in enumerate((
            ("asks", unit.reader.request, memory.p2.request, port.request_layout),
            ("answers", memory.p2.response, unit.reader.response, port.response_layout),
            ("rows", unit.writer.request, memory.p3.request, port.request_layout),
        )):
            m.submodules[name] = gate = StallGate(shape, k + 1)
            m.d.comb += [
                gate.p.eq(self.stall), gate.i.valid.eq(source.valid), gate.i.payload.eq(source.payload), source.ready.eq(gate.i.ready),
                to.valid.eq(gate.o.valid), to.payload.eq(gate.o.payload), gate.o.ready.eq(to.ready),
            ]
        m.d.comb += [unit.writer.response.valid.eq(Const(0)), memory.p3.response.ready.eq(1)]
        if self.pe.ecc:
            m.d.comb += memory.flip.eq(self.flip)
        for count, p in ((self.reads, unit.reader), (self.writes, unit.writer)):
            m.d.sync += count.eq(count + (p.request.valid & p.request.ready))
        return m
