"""The command processor with stand-ins for its units, which write down when they start and end.

The stand-ins read from `args`: cycles until done (bits 0 to 15), status (16 to 23), number of the instruction (24 to 47). Each takes a second
instruction while it works on the first, as real units do, and writes two records a instruction to `trace_<unit>`.
"""
from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block, shared
from rtl.common.layouts import layout
from rtl.pe.command_processor import CommandProcessor
from spec.fields import Record, field
from spec.isa import START, UNIT_DONE, UNITS
from spec.params import PeParams

TRACE = Record("TRACE", 136, [
    field("cycle", 32), field("number", 24), field("done", 1), field("_pad", 2), field("op", 5), field("a", 24), field("b", 24), field("d", 24),
])
WHO = Record("WHO", 48, [field("cycles", 16), field("status", 8), field("number", 24)])


class UnitModel(Block):
    def __init__(self) -> None:
        super().__init__({
            "start": In(stream.Signature(layout(START))), "done": Out(stream.Signature(layout(UNIT_DONE))),
            "trace": Out(stream.Signature(layout(TRACE))), "cycle": In(32),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.jobs = jobs = SyncFIFO(width=START.bits, depth=2)
        m.submodules.notes = notes = SyncFIFO(width=TRACE.bits, depth=4)
        job = Signal(layout(START))
        who, starting = Signal(layout(WHO)), Signal(layout(WHO))
        note = Signal(layout(TRACE))
        left, busy, ended = Signal(16), Signal(), Signal()
        begin = self.start.valid & self.start.ready
        m.d.comb += [
            job.eq(jobs.r_data), who.eq(job.args[:48]), starting.eq(self.start.payload.args[:48]),
            # one note a cycle: an end before a start
            ended.eq(busy & (left == 0) & self.done.ready & notes.w_rdy), self.start.ready.eq(jobs.w_rdy & notes.w_rdy & ~ended),
            jobs.w_data.eq(self.start.payload), jobs.w_en.eq(begin), jobs.r_en.eq(ended),
            self.done.valid.eq(busy & (left == 0) & notes.w_rdy), self.done.payload.status.eq(who.status), self.done.payload.info.eq(who.number),
            note.cycle.eq(self.cycle), note.done.eq(ended), notes.w_data.eq(note), notes.w_en.eq(begin | ended),
            self.trace.valid.eq(notes.r_rdy), self.trace.payload.eq(notes.r_data), notes.r_en.eq(self.trace.ready),
        ]
        with m.If(ended):
            m.d.comb += note.number.eq(who.number)
        with m.Else():
            m.d.comb += [note.number.eq(starting.number), note.op.eq(self.start.payload.op), note.a.eq(self.start.payload.a),
                         note.b.eq(self.start.payload.b), note.d.eq(self.start.payload.d)]
        with m.If(ended):
            m.d.sync += busy.eq(0)
        with m.Elif(busy & (left != 0)):
            m.d.sync += left.eq(left - 1)
        with m.Elif(~busy & jobs.r_rdy):
            m.d.sync += [busy.eq(1), left.eq(who.cycles)]
        return m


class CpHarness(Block):
    def __init__(self, pe: PeParams) -> None:
        self.pe = pe
        one = CommandProcessor(pe).signature.members
        kept = ("core0", "core1", "completion", "alone", "drop", "clear", "halt", "idle", "failed", "debug_addr", "debug_data")
        super().__init__({
            **{name: one[name] for name in kept}, **{f"trace_{u.name.lower()}": Out(stream.Signature(layout(TRACE))) for u in UNITS}, "cycle": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.cp = cp = CommandProcessor(self.pe)
        cycle = Signal(32)
        m.d.sync += cycle.eq(cycle + 1)
        for name in ("core0", "core1", "completion"):
            connect(m, getattr(cp, name), flipped(getattr(self, name)))
        m.d.comb += [
            self.cycle.eq(cycle), cp.clear.eq(self.clear), cp.alone.eq(self.alone), self.drop.eq(cp.drop), cp.halt.eq(self.halt), cp.debug_addr.eq(self.debug_addr),
            self.idle.eq(cp.idle), self.failed.eq(cp.failed), self.debug_data.eq(cp.debug_data),
        ]
        for u in UNITS:
            name = u.name.lower()
            model = UnitModel()
            m.submodules[name] = shared(model)
            connect(m, getattr(cp, f"start_{name}"), model.start)
            connect(m, model.done, getattr(cp, f"done_{name}"))
            connect(m, model.trace, flipped(getattr(self, f"trace_{name}")))
            m.d.comb += model.cycle.eq(cycle)
        return m
