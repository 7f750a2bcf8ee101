"""Unit of the memory layout unit: instructions of the command processor (spec.isa: LAYOUT_ARGS) as jobs, ends as answers.

Status: the unit's (spec.layout_unit: LayoutStatus). The tile is read at operand `a` and written at operand `d`.

Members: `start` In stream START, `done` Out stream UNIT_DONE, `reader` and `writer` Out(LocalPort). Logic only: no latency of its own.
"""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.pe.layout_unit import LayoutUnit
from rtl.pe.local_port import LocalPort
from spec.isa import LAYOUT_ARGS, START, UNIT_DONE
from spec.params import PeParams


class LayoutPort(Block):
    def __init__(self, pe: PeParams):
        self.pe = pe
        super().__init__({
            "start": In(stream.Signature(layout(START))), "done": Out(stream.Signature(layout(UNIT_DONE))),
            "reader": Out(LocalPort(pe)), "writer": Out(LocalPort(pe)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = LayoutUnit(self.pe)
        start, job = self.start.payload, unit.job.payload
        args = data.View(layout(LAYOUT_ARGS), start.args)
        m.d.comb += [
            unit.job.valid.eq(self.start.valid), self.start.ready.eq(unit.job.ready),
            job.op.eq(args.kind), job.size.eq(args.size), job.rows.eq(args.rows), job.columns.eq(args.columns),
            job.source.eq(start.a), job.source_stride.eq(args.stride_a), job.destination.eq(start.d), job.destination_stride.eq(args.stride_d),
            self.done.valid.eq(unit.done.valid), unit.done.ready.eq(self.done.ready), self.done.payload.status.eq(unit.done.payload.status),
        ]
        connect(m, unit.reader, flipped(self.reader))
        connect(m, unit.writer, flipped(self.writer))
        return m
