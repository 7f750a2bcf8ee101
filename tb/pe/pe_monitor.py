"""A processing element with counters that say where the cycles of the streamed operand go.

Counters (modulo 2^32, cleared by `count_clear`); in each cycle exactly one of the first four counts:
    `used`      a streamed row goes to the dot-product engine: a slot of every multiplier is used (or padding)
    `engine`    a row is there and not taken: the held rows, the scales or a free accumulator bank are missing
    `late`      no row is there though an instruction reads: its first reads are on their way, or another port had their bank
    `idle`      no DOT instruction reads: none was started
    `first`, `last`  cycle of the first and of the last row used, from `count_clear`
"""
from __future__ import annotations

from amaranth.hdl import Signal
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.pe.processing_element import ProcessingElement
from spec.params import MemParams, PeParams

COUNTS = ("used", "engine", "late", "idle", "first", "last")


class MonitoredElement(ProcessingElement):
    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        Block.__init__(self, {**ProcessingElement(pe, mem).signature.members, "count_clear": In(1), **{f"count_{name}": Out(32) for name in COUNTS}})

    def elaborate(self, platform):
        m = super().elaborate(platform)
        request, response = m.submodules.matrix.port_b.request, m.submodules.matrix.port_b.response
        now = Signal(32)
        used = Signal()
        m.d.comb += used.eq(response.valid & response.ready)
        m.d.sync += now.eq(now + 1)
        seen = Signal()
        with m.If(used):
            m.d.sync += [self.count_used.eq(self.count_used + 1), self.count_last.eq(now), seen.eq(1)]
            with m.If(~seen):
                m.d.sync += self.count_first.eq(now)
        with m.Elif(response.valid):
            m.d.sync += self.count_engine.eq(self.count_engine + 1)
        with m.Elif(request.valid):
            m.d.sync += self.count_late.eq(self.count_late + 1)
        with m.Else():
            m.d.sync += self.count_idle.eq(self.count_idle + 1)
        with m.If(self.count_clear):
            m.d.sync += [now.eq(0), seen.eq(0), *(getattr(self, f"count_{name}").eq(0) for name in COUNTS)]
        return m
