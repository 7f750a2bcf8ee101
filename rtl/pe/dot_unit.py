"""Unit of the dot-product engine: reads both operands of an instruction from local memory and gives them to the engine, a row a cycle.

Rules
    1. One instruction (spec.isa: DOT_ARGS): for each group of `pe.rows` held rows, for each chunk, the group is loaded and all rows are streamed. The last
       group has the rows that are left, the last chunk `tail` bytes: the rest is zero, whatever memory holds there.
    2. Scales of MX operands come from beside them, 8 bytes a row and chunk, in the order of rows within chunks.
    3. Done when everything was read. A wrong size ends in RANGE, an address that is no multiple of 64 in ALIGN, and nothing is read. Sizes that the engine could not
       have (0, or more rows than a bank) are refused by the reduction unit too; with others, rows of NaN are given out, marked bad, so that the reduction unit's
       half has what to take. A damaged row ends in LOCAL, and counts as NaN.
    4. The next instruction's reads follow the last one's without a gap.

Members
    `start` In stream START, `done` Out stream UNIT_DONE
    `held`, `row`  Out streams DOT_HELD, DOT_ROW, to the engine
    `port_a`, `port_b`, `port_sa`, `port_sb`  Out(LocalPort): held and streamed operands, and their scales

Latency: `start` to the first read 2 cycles. Interval: a row a cycle.

Assumptions
    A1. Operands do not go over the end of their circular buffer (command processor: STRADDLES).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import wire
from rtl.pe.local_port import LocalPort
from spec.isa import DOT_ARGS, START, UNIT_DONE, UnitStatus
from spec.params import PeParams
from spec.pe import DOT_HELD, DOT_ROW, Mx

ADDR = 24
HELD = 4  # instructions that this unit, and the reduction unit, have not answered
JOB = data.StructLayout({"address": ADDR, "scales": ADDR, "stride": 20, "held": 13, "rows": 13, "chunks": 13, "tail": 7, "format": 4, "mx": 2, "refused": 1})


class Walk:
    """Counters over groups, chunks and rows of a job, in the engine's order; `group` rows of the held operand at a time, `by` rows a step."""

    def __init__(self, m: Module, job, group: int, *, streams: bool, name: str, by=1):
        self.job, self.group, self.streams = job, group, streams
        self.base = Signal(13, name=f"{name}_base")  # first held row of the group
        self.chunk = Signal(13, name=f"{name}_chunk")
        self.row = Signal(13, name=f"{name}_row")
        left = wire(m, (job.held - self.base)[:13], f"{name}_left")
        self.last_group = wire(m, left <= group, f"{name}_last_group")
        self.in_group = wire(m, Mux(self.last_group, left, group)[:13], f"{name}_in_group")
        self.count = job.rows if streams else self.in_group
        self.by = by
        self.last_row = wire(m, self.row + by >= self.count, f"{name}_last_row")
        self.last_chunk = wire(m, self.chunk + 1 == job.chunks, f"{name}_last_chunk")
        self.end = wire(m, self.last_row & self.last_chunk & self.last_group, f"{name}_end")
        self.name = name

    def step(self):
        """Statements: to the next row."""
        return [
            self.row.eq(Mux(self.last_row, 0, self.row + self.by)),
            self.chunk.eq(Mux(self.last_row, Mux(self.last_chunk, 0, self.chunk + 1), self.chunk)),
            self.base.eq(Mux(self.last_row & self.last_chunk, Mux(self.last_group, 0, self.base + self.group), self.base)),
        ]


class OperandReader(Block):
    """One operand: requests, and words for the engine out of the answers.

    Members: `job` In stream JOB; `port`, `scales` Out(LocalPort); `out` Out stream DOT_HELD or DOT_ROW; `ended` Out(1): the last answer of a job was passed
    on; `damaged` Out(1), with it: some row of the job was damaged.
    """

    def __init__(self, pe: PeParams, streams: bool):
        self.pe, self.streams = pe, streams
        super().__init__({
            "job": In(stream.Signature(JOB)), "port": Out(LocalPort(pe)), "scales": Out(LocalPort(pe)),
            "out": Out(stream.Signature(layout(DOT_ROW if streams else DOT_HELD))), "ended": Out(1), "damaged": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        p = self.pe
        # Three walks over the same job: requests of rows, requests of scales, answers.
        m.submodules.asks = asks = SyncFIFO(width=JOB.size, depth=2)
        m.submodules.lines = lines = SyncFIFO(width=JOB.size, depth=2)
        m.submodules.answers = answers = SyncFIFO(width=JOB.size, depth=4)
        jobs = (asks, lines, answers)
        m.d.comb += self.job.ready.eq(asks.w_rdy & lines.w_rdy & answers.w_rdy)
        for fifo in jobs:
            m.d.comb += [fifo.w_data.eq(self.job.payload), fifo.w_en.eq(self.job.valid & self.job.ready)]
        with m.If((self.job.payload.mx == Mx.NONE) | self.job.payload.refused):
            m.d.comb += lines.w_en.eq(0)
        with m.If(self.job.payload.refused):  # nothing is read, and the rows say that they are bad
            m.d.comb += asks.w_en.eq(0)
        ask, line, answer = (data.View(JOB, fifo.r_data) for fifo in jobs)

        # Rows: the address of a row moves by the stride, a chunk's by 64, a group's by its rows.
        walk = Walk(m, ask, p.rows, streams=self.streams, name="ask")
        group_at, row_at, moved = Signal(ADDR), Signal(ADDR), Signal()
        request = self.port.request.payload
        first_of_group = wire(m, Mux(moved, group_at, ask.address), "first_of_group")
        at = wire(m, Mux(walk.row == 0, first_of_group + (walk.chunk << 6), row_at)[:ADDR], "at")
        m.d.comb += [
            self.port.request.valid.eq(asks.r_rdy), request.write.eq(0), request.addr.eq(at[6:]),
            asks.r_en.eq(self.port.request.ready & walk.end),
        ]
        with m.If(asks.r_rdy & self.port.request.ready):
            m.d.sync += [*walk.step(), row_at.eq(at + ask.stride)]
            with m.If(walk.last_row & walk.last_chunk):
                if self.streams:
                    m.d.sync += [group_at.eq(ask.address), moved.eq(~walk.last_group)]
                else:  # the chunk in `at` is the last one: back to the first chunk of the next row
                    m.d.sync += [group_at.eq(at + ask.stride - (walk.chunk << 6)), moved.eq(~walk.last_group)]

        # Scales: eight rows a line; a line is asked for once for each chunk it has rows of. A line a step: so these run ahead of the rows, and a lost cycle does not matter.
        in_line = Signal(4)
        lwalk = Walk(m, line, p.rows, streams=self.streams, name="line", by=in_line)
        all_rows = line.rows if self.streams else line.held
        before = Signal(20)  # scales of the chunks before
        index = wire(m, (before + (0 if self.streams else lwalk.base) + lwalk.row)[:20], "index")
        line_request = self.scales.request
        m.d.comb += [
            in_line.eq(8 - index[:3]), line_request.valid.eq(lines.r_rdy), line_request.payload.write.eq(0),
            line_request.payload.addr.eq((line.scales + (index << 3))[6:ADDR]),
        ]
        with m.If(lines.r_rdy & line_request.ready):
            m.d.sync += lwalk.step()
            m.d.comb += lines.r_en.eq(lwalk.end)
            with m.If(lwalk.last_row):
                m.d.sync += before.eq(Mux(lwalk.last_chunk, 0, before + all_rows))

        # Answers.
        awalk = Walk(m, answer, p.rows, streams=self.streams, name="answer")
        rows_of = answer.rows if self.streams else answer.held
        passed = Signal(20)
        place = wire(m, (passed + (0 if self.streams else awalk.base) + awalk.row)[:3], "place")
        scaled = wire(m, (answer.mx != Mx.NONE) & ~answer.refused, "scaled")
        line_end = wire(m, awalk.last_row | (place == 7), "line_end")
        row, scale_line = self.port.response, self.scales.response
        go = wire(m, answers.r_rdy & (answer.refused | row.valid & (~scaled | scale_line.valid)), "go")
        step = wire(m, go & self.out.ready, "step")
        bad = wire(m, answer.refused | row.payload.error | scaled & scale_line.payload.error, "bad")
        keep = Signal(64)
        with m.Switch(Mux(awalk.last_chunk, answer.tail, 64)):
            for n in range(64):
                with m.Case(n):
                    m.d.comb += keep.eq((1 << n) - 1)
            with m.Default():
                m.d.comb += keep.eq(~0)
        out = self.out.payload
        m.d.comb += [
            self.out.valid.eq(go), row.ready.eq(step & ~answer.refused), scale_line.ready.eq(step & scaled & line_end), answers.r_en.eq(step & awalk.end),
            out.data.eq(Cat(Mux(keep[i], row.payload.data.word_select(i, 8), 0) for i in range(64))),
            out.scale.eq(scale_line.payload.data.word_select(place, 64)), out.format.eq(answer.format), out.mx.eq(answer.mx),
        ]
        with m.If(bad):  # an unknown format: NaN in what comes of it
            m.d.comb += out.format.eq(~0)
        if self.streams:
            m.d.comb += [out.first.eq(awalk.row == 0), out.tag.eq(awalk.row)]
        else:
            m.d.comb += [out.row.eq(awalk.row), out.last.eq(awalk.last_row)]
        damaged = Signal()
        m.d.comb += [self.ended.eq(step & awalk.end), self.damaged.eq(damaged | bad)]
        with m.If(step):
            m.d.sync += [*awalk.step(), damaged.eq(~awalk.end & (damaged | bad))]
            with m.If(awalk.last_row):
                m.d.sync += passed.eq(Mux(awalk.last_chunk, 0, passed + rows_of))
        return m


class DotUnit(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams):
        self.pe = pe
        port = Out(LocalPort(pe))
        super().__init__({
            "start": In(stream.Signature(layout(START))), "done": Out(stream.Signature(layout(UNIT_DONE))),
            "held": Out(stream.Signature(layout(DOT_HELD))), "row": Out(stream.Signature(layout(DOT_ROW))),
            "port_a": port, "port_b": port, "port_sa": port, "port_sb": port,
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.held_reader = held = OperandReader(self.pe, False)
        m.submodules.row_reader = rows = OperandReader(self.pe, True)
        start = self.start.payload
        args = data.View(layout(DOT_ARGS), start.args)

        # In the order of instructions: a status known at once, or the ends of both readers.
        m.submodules.order = order = SyncFIFO(width=9, depth=HELD)
        ends = []
        for name, reader in (("held", held), ("row", rows)):
            m.submodules[f"ends_{name}"] = fifo = SyncFIFO(width=1, depth=4)
            m.d.comb += [fifo.w_data.eq(reader.damaged), fifo.w_en.eq(reader.ended)]
            ends.append(fifo)
        status = Signal(UnitStatus)
        fits = wire(m, (args.held != 0) & (args.rows != 0) & (args.chunks != 0) & (args.rows <= self.pe.depth), "fits")
        sizes = (~fits | (args.tail == 0) | (args.tail > 64)
                 | args.stride_a[:6].any() | args.stride_b[:6].any() | args.scale_a[:6].any() | args.scale_b[:6].any())
        with m.If(sizes):
            m.d.comb += status.eq(UnitStatus.RANGE)
        with m.Elif(start.a[:6].any() | start.b[:6].any()):
            m.d.comb += status.eq(UnitStatus.ALIGN)
        well = wire(m, status == UnitStatus.OK, "well")
        room = wire(m, order.w_rdy & held.job.ready & rows.job.ready, "room")
        m.d.comb += [
            self.start.ready.eq(room), order.w_data.eq(Cat(Cat(status, Const(0, 8))[:8], fits)), order.w_en.eq(self.start.valid & room),
            held.job.valid.eq(self.start.valid & room & fits), rows.job.valid.eq(self.start.valid & room & fits),
        ]
        for reader, at, which in ((held, start.a, "a"), (rows, start.b, "b")):
            job = reader.job.payload
            m.d.comb += [
                job.address.eq(at), job.scales.eq(at + args[f"scale_{which}"]), job.stride.eq(args[f"stride_{which}"]),
                job.format.eq(args[f"format_{which}"]), job.mx.eq(args[f"mx_{which}"]), job.refused.eq(~well),
                *(job[name].eq(args[name]) for name in ("held", "rows", "chunks", "tail")),
            ]
        both = wire(m, ends[0].r_rdy & ends[1].r_rdy, "both")
        early, took_part = order.r_data[:8], order.r_data[8]
        refused = wire(m, early != UnitStatus.OK, "refused")
        m.d.comb += [
            self.done.valid.eq(order.r_rdy & (~took_part | both)), order.r_en.eq(self.done.valid & self.done.ready),
            self.done.payload.status.eq(Mux(refused, early, Mux(ends[0].r_data | ends[1].r_data, UnitStatus.LOCAL, UnitStatus.OK))),
        ]
        for fifo in ends:
            m.d.comb += fifo.r_en.eq(order.r_en & took_part)
        for reader, port, scales in ((held, self.port_a, self.port_sa), (rows, self.port_b, self.port_sb)):
            for inner, outer in ((reader.port, port), (reader.scales, scales)):
                m.d.comb += [
                    outer.request.valid.eq(inner.request.valid), outer.request.payload.eq(inner.request.payload), inner.request.ready.eq(outer.request.ready),
                    inner.response.valid.eq(outer.response.valid), inner.response.payload.eq(outer.response.payload), outer.response.ready.eq(inner.response.ready),
                ]
        for reader, out in ((held, self.held), (rows, self.row)):
            m.d.comb += [out.valid.eq(reader.out.valid), out.payload.eq(reader.out.payload), reader.out.ready.eq(out.ready)]
        return m
