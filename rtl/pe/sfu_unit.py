"""Unit of the special function unit: reads the operands of an instruction from local memory in any format, writes its results in any format.

Rules
    1. One instruction (spec.isa: SFU_ARGS, docs/blocks/sfu.md) after the other: the next one's reads come after the last one's writes, so it sees them.
    2. Operands are widened to binary32 (:mod:`rtl.pe.sfu_decode`); the pipeline (:mod:`rtl.pe.sfu`) rounds its results once, to the format of `d`, or for
       MX results to binary32, which are then encoded (:mod:`rtl.pe.sfu_out`).
    3. FORMAT, RANGE, ALIGN (the first that holds): nothing is read or written. LOCAL: a row read was damaged; results were written.

Parameters: `pe`.
Members
    `start` In stream START, `done` Out stream UNIT_DONE
    `port_a`, `port_b`, `port_d`  Out(LocalPort): operands (a's MX scales too), results (with their scales)

Latency: `start` to `done` of an instruction of one element 31 cycles, besides conflicts on ports; that is what each instruction takes beyond its interval
(test_latency, test_full_rate). Interval, a row: the most of its beats of `lanes` elements; its lines of a (with MX: twice), of b, of d (with MX: twice); with MX results,
its beats of 16.

Assumptions
    A1. Operands do not go over the end of their circular buffer (command processor: STRADDLES).
    A2. `d` shares memory with an operand only where docs/blocks/sfu.md allows it; otherwise results mean nothing, but nothing hangs.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import wire
from rtl.pe.local_port import LocalPort
from rtl.pe.sfu import Sfu
from rtl.pe.sfu_decode import SfuDecode
from rtl.pe.sfu_in import SLOTS, SfuReader
from rtl.pe.sfu_operand import among
from rtl.pe.sfu_out import SfuOut
from spec.convert import ConvertFormat
from spec.isa import SFU_ARGS, START, UNIT_DONE, UnitStatus
from spec.mx import ELEMENTS, ScaleRule
from spec.params import PeParams
from spec.pe import Mx
from spec.sfu import ROW, TAKES_B, SfuB, SfuOp

PORTS = ("port_a", "port_b", "port_d")
_ELEMENTS = [ConvertFormat[name.upper()] for name in ELEMENTS]


def slot_of(m: Module, fmt: Value, name: str) -> Signal:
    """Code of the bits that an element of a format stands in."""
    slot = Signal(range(len(SLOTS)), name=name)
    with m.Switch(fmt):
        for f in ConvertFormat:
            with m.Case(int(f)):
                m.d.comb += slot.eq(SLOTS.index(f.slot_bits))
    return slot


def crooked(value: Value, slot: Value) -> Value:
    """Whether it is no multiple of an element's bytes."""
    return Mux(slot == SLOTS.index(32), value[:2].any(), (slot == SLOTS.index(16)) & value[0])


class SfuUnit(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams):
        self.pe = pe
        super().__init__({
            "start": In(stream.Signature(layout(START))), "done": Out(stream.Signature(layout(UNIT_DONE))), **{name: Out(LocalPort(pe)) for name in PORTS},
        })

    def elaborate(self, platform):
        m = Module()
        lanes = self.pe.lanes
        job = Signal(layout(START), reset_less=True)
        args = data.View(layout(SFU_ARGS), job.args)
        rows_op = wire(m, among(job.op, *ROW), "rows_op")
        takes_b = wire(m, among(job.op, *TAKES_B), "takes_b")
        reads_b = wire(m, takes_b & (args.source_b != SfuB.SCALAR), "reads_b")
        column = wire(m, args.source_b == SfuB.COLUMN, "column")
        mx_a, mx_d = wire(m, args.mx_a != Mx.NONE, "mx_a"), wire(m, args.mx_d != Mx.NONE, "mx_d")
        slots = {which: slot_of(m, args[f"format_{which}"], f"slot_{which}") for which in "abd"}
        status = self._status(m, job, args, slots, rows_op, reads_b, column, mx_a, mx_d)

        # One instruction at a time.
        state = Signal(2)  # 0: waits; 1: status; 2: at work; 3: answers
        answer = Signal(UnitStatus)
        go = wire(m, (state == 1) & (status == UnitStatus.OK), "go")
        m.submodules.reader_a = a = SfuReader(self.pe, True)
        m.submodules.reader_b = b = SfuReader(self.pe, False)
        m.submodules.decode = decode = SfuDecode(lanes)
        m.submodules.sfu = sfu = Sfu(self.pe)
        m.submodules.out = out = SfuOut(self.pe)
        m.d.comb += [self.start.ready.eq(state == 0), self.done.valid.eq(state == 3), self.done.payload.status.eq(answer)]
        with m.Switch(state):
            with m.Case(0):
                with m.If(self.start.valid):
                    m.d.sync += [job.eq(self.start.payload), state.eq(1)]
            with m.Case(1):
                m.d.sync += [answer.eq(status), state.eq(Mux(go, 2, 3))]
            with m.Case(2):
                with m.If(out.ended):
                    m.d.sync += [answer.eq(Mux(a.damaged | b.damaged & reads_b, UnitStatus.LOCAL, UnitStatus.OK)), state.eq(3)]
            with m.Case(3):
                with m.If(self.done.ready):
                    m.d.sync += state.eq(0)

        m.d.comb += [
            a.go.eq(go), a.job.base.eq(job.a), a.job.stride.eq(args.stride_a), a.job.rows.eq(args.rows),
            a.job.columns.eq(args.columns), a.job.slot.eq(slots["a"]), a.job.mx.eq(args.mx_a), a.job.scales.eq(job.a + args.scale_a),
            b.go.eq(go & reads_b), b.job.base.eq(job.b), b.job.stride.eq(Mux(args.source_b == SfuB.ROW, 0, args.stride_b)), b.job.rows.eq(args.rows),
            b.job.columns.eq(args.columns), b.job.slot.eq(slots["b"]), b.job.column.eq(column),
            out.go.eq(go), out.job.base.eq(job.d), out.job.stride.eq(args.stride_d), out.job.rows.eq(args.rows), out.job.slot.eq(slots["d"]),
            out.job.single.eq(rows_op), out.job.mx.eq(args.mx_d), out.job.scales.eq(job.d + args.scale_d), out.job.rule.eq(args.rule), out.job.sat.eq(args.sat),
        ]
        for k, fmt in enumerate(_ELEMENTS):
            with m.If(args.format_a == fmt):
                m.d.comb += decode.element.eq(k)
            with m.If(args.format_d == fmt):
                m.d.comb += out.job.element.eq(k)
        m.d.comb += [decode.mx.eq(mx_a), decode.format_a.eq(args.format_a), decode.format_b.eq(args.format_b)]

        # Beats in row-major order, from both operands.
        running, row, left, index = Signal(), Signal(16), Signal(16), Signal(32)
        last = wire(m, left <= lanes, "last")
        raw = decode.raw
        b_there = wire(m, ~reads_b | b.beat.valid, "b_there")
        m.d.comb += [
            raw.valid.eq(running & a.beat.valid & b_there), a.beat.ready.eq(raw.valid & raw.ready), b.beat.ready.eq(raw.valid & raw.ready & reads_b),
            a.end_row.eq(last), b.end_row.eq(last), raw.payload.a.eq(a.beat.payload.x), raw.payload.b.eq(b.beat.payload.x),
            raw.payload.scale.eq(a.beat.payload.scale), raw.payload.side.first.eq(left == args.columns), raw.payload.side.last.eq(last),
            raw.payload.side.index.eq(index), raw.payload.side.keep.eq(Cat(*(left > i for i in range(lanes)))),
        ]
        with m.If(go):
            m.d.sync += [running.eq(1), row.eq(0), left.eq(args.columns), index.eq(0)]
        with m.Elif(raw.valid & raw.ready):
            m.d.sync += [left.eq(Mux(last, args.columns, left - lanes)), index.eq(index + Mux(rows_op, last, Mux(last, left, lanes)))]
            with m.If(last):
                m.d.sync += [row.eq(row + 1), running.eq(row + 1 != args.rows)]

        # Through the pipeline.
        beat, made = sfu.beats.payload, decode.out.payload
        m.d.comb += [
            sfu.beats.valid.eq(decode.out.valid), decode.out.ready.eq(sfu.beats.ready), beat.a.eq(made.a), beat.b.eq(made.b), beat.low.eq(args.low),
            beat.high.eq(args.high), beat.seed.eq(args.seed), beat.op.eq(job.op), beat.format_a.eq(ConvertFormat.FLOAT32),
            beat.format_b.eq(ConvertFormat.FLOAT32), beat.format_out.eq(Mux(mx_d, ConvertFormat.FLOAT32, args.format_d)),
            beat.scalar.eq(args.source_b == SfuB.SCALAR),
            beat.sat.eq(args.sat & ~mx_d), beat.stochastic.eq(args.stochastic),
            *(beat[name].eq(made.side[name]) for name in ("keep", "first", "last", "index")),
        ]
        connect(m, sfu.results, out.results)
        for part, port in ((a, self.port_a), (b, self.port_b), (out, self.port_d)):
            connect(m, part.port, flipped(port))
        return m

    def _status(self, m, job, args, slots, rows_op, reads_b, column, mx_a, mx_d) -> Signal:
        """Rule 3, of what is in `job`."""
        known = {which: wire(m, args[f"format_{which}"] < len(ConvertFormat), f"known_{which}") for which in "abd"}
        unfit = []
        for which in "ad":
            element = among(args[f"format_{which}"], *_ELEMENTS)
            unfit.append((args[f"mx_{which}"] != Mx.NONE) & ((args[f"mx_{which}"] > max(Mx)) | ~element))
        no_mx = mx_d & (rows_op | args.stochastic | (args.rule > max(ScaleRule)))
        formats = (
            (job.op >= len(SfuOp)) | ~known["a"] | ~known["d"] | (args.format_d == ConvertFormat.FLOAT8_E8M0FNU) | (reads_b & ~known["b"])
            | unfit[0] | unfit[1] | no_mx)

        def uneven(value: Value, single: Value, which: str) -> Value:
            return Mux(single, crooked(value, slots[which]), value[:6].any())

        sizes = (
            (args.rows == 0) | (args.columns == 0) | args.stride_a[:6].any() | uneven(args.stride_d, rows_op, "d")
            | (reads_b & (args.source_b != SfuB.ROW) & uneven(args.stride_b, column, "b")) | (mx_a & args.scale_a[:6].any()) | (mx_d & args.scale_d[:6].any()))
        places = job.a[:6].any() | uneven(job.d, rows_op, "d") | (reads_b & uneven(job.b, column, "b"))
        status = Signal(UnitStatus, name="status")
        with m.If(formats):
            m.d.comb += status.eq(UnitStatus.FORMAT)
        with m.Elif(sizes):
            m.d.comb += status.eq(UnitStatus.RANGE)
        with m.Elif(places):
            m.d.comb += status.eq(UnitStatus.ALIGN)
        return status
