"""Unit of the reduction engine: its commands for an instruction, bias from local memory, results into local memory.

Rules
    1. One instruction (spec.isa: REDUCE_ARGS) takes what a DOT instruction of the same `held`, `rows` and `chunks` gives: for each group of held rows the
       sums of all chunks, every row. Groups use the banks in turn, over instructions too, so one is written out while the next is summed.
    2. With `bias` the sums of a group start from its values, the same in every row. Value h of row r of the result goes to
       ``d + r * stride_d + h * size``, `size` 4 or 2 bytes: the sum itself, or narrowed (once, to nearest even); with `relu` what is below 0 becomes +0
       (a NaN stays). Only values below `held` are written.
    3. Done when the last row was taken by local memory. RANGE: a size of 0, `rows` beyond a bank, sizes that are not DOT's, `stride_d` or the address no multiple of the bytes of a
       group (of 64, if that is more), int32 sums to be narrowed: nothing is written; sums of sizes that are possible are taken all the same. FORMAT: the dot product said that formats did not fit. LOCAL: a damaged row of bias.

Members
    `start` In stream START, `done` Out stream UNIT_DONE; `odd` In(1), beside `start`: its sizes are DOT's, not the instruction's own: RANGE
    `fill` Out stream RE_FILL, `drain` Out stream RE_DRAIN, `bias` Out stream {values}; `memory` In stream of drained rows
    `port_bias`, `port_d`  Out(LocalPort)

Latency: `start` to `fill` 2 cycles. Interval: a row a cycle in; a row a cycle out (two, where a row has more than 64 bytes).

Assumptions
    A1. No other drains go to `memory`.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.convert import narrow_bfloat16, narrow_float16
from rtl.numeric.pipeline import wire
from rtl.pe.local_port import ROW_BYTES, LocalPort
from rtl.pe.reduction import drained_layout, row_layout
from spec.isa import REDUCE_ARGS, START, UNIT_DONE, OutFormat, UnitStatus
from spec.params import PeParams
from spec.pe import RE_DRAIN, RE_FILL, Drain, Fill

ADDR = 24
JOB = data.StructLayout({"d": ADDR, "a": ADDR, "refused": 1, **{f.name: f.width for f in REDUCE_ARGS.fields if f.name != "_rest"}})


class ReduceUnit(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams):
        self.pe = pe
        super().__init__({
            "start": In(stream.Signature(layout(START))), "done": Out(stream.Signature(layout(UNIT_DONE))), "odd": In(1),
            "fill": Out(stream.Signature(layout(RE_FILL))), "drain": Out(stream.Signature(layout(RE_DRAIN))),
            "bias": Out(stream.Signature(row_layout(pe.rows))), "memory": In(stream.Signature(drained_layout(pe.rows))),
            "port_bias": Out(LocalPort(pe)), "port_d": Out(LocalPort(pe)),
        })

    def elaborate(self, platform):
        m = Module()
        p = self.pe
        start = self.start.payload
        args = data.View(layout(REDUCE_ARGS), start.args)
        job = Signal(JOB)
        m.d.comb += [job.d.eq(start.d), job.a.eq(start.a), *(job[f.name].eq(args[f.name]) for f in REDUCE_ARGS.fields if f.name != "_rest")]

        narrow = wire(m, args.out != OutFormat.FLOAT32, "narrow")
        wide, half = min(4 * p.rows, ROW_BYTES) - 1, min(2 * p.rows, ROW_BYTES) - 1
        crooked = Mux(narrow, ((start.d | args.stride_d) & half) != 0, ((start.d | args.stride_d) & wide) != 0)
        bias_wide = min(4 * p.rows, ROW_BYTES) - 1
        status = Signal(UnitStatus)
        fits = wire(m, (args.held != 0) & (args.rows != 0) & (args.chunks != 0) & (args.rows <= p.depth), "fits")
        with m.If(self.odd | ~fits | crooked | args.integer & narrow | args.bias & ((start.a & bias_wide) != 0)):
            m.d.comb += status.eq(UnitStatus.RANGE)
        well = wire(m, status == UnitStatus.OK, "well")

        parts = {}
        for name in ("fill", "bias", "drain", "write"):
            m.submodules[f"jobs_{name}"] = parts[name] = SyncFIFO(width=JOB.size, depth=4)
        m.submodules.order = order = SyncFIFO(width=9, depth=4)
        room = wire(m, order.w_rdy & Cat(f.w_rdy for f in parts.values()).all(), "room")
        m.d.comb += [self.start.ready.eq(room), order.w_data.eq(Cat(Cat(status, Const(0, 8))[:8], args.bias)), order.w_en.eq(self.start.valid & room)]
        m.d.comb += job.refused.eq(~well)
        with m.If(~well):  # the sums are taken, from no bias, and go nowhere
            m.d.comb += job.bias.eq(0)
        for name, takes_part in (("fill", fits), ("drain", fits), ("bias", well & args.bias), ("write", well)):
            m.d.comb += [parts[name].w_data.eq(job), parts[name].w_en.eq(self.start.valid & room & takes_part)]

        self._fills(m, parts["fill"])
        bias_end, bias_bad = self._bias(m, parts["bias"])
        self._drains(m, parts["drain"])
        write_end, write_bad = self._writes(m, parts["write"])

        # In the order of instructions: a status known at once, or the ends of its parts.
        ends = []
        for name, ended, bad in (("bias", bias_end, bias_bad), ("write", write_end, write_bad)):
            m.submodules[f"ends_{name}"] = fifo = SyncFIFO(width=1, depth=4)
            m.d.comb += [fifo.w_data.eq(bad), fifo.w_en.eq(ended)]
            ends.append(fifo)
        refused, biased = wire(m, order.r_data[:8] != UnitStatus.OK, "refused"), order.r_data[8]
        damaged = wire(m, biased & ends[0].r_data, "damaged")
        m.d.comb += [
            self.done.valid.eq(order.r_rdy & (refused | ends[1].r_rdy & (~biased | ends[0].r_rdy))), order.r_en.eq(self.done.valid & self.done.ready),
            self.done.payload.status.eq(Mux(refused, order.r_data[:8], Mux(damaged, UnitStatus.LOCAL, Mux(ends[1].r_data, UnitStatus.FORMAT, UnitStatus.OK)))),
            ends[0].r_en.eq(order.r_en & ~refused & biased), ends[1].r_en.eq(order.r_en & ~refused),
        ]
        return m

    def _groups(self, m, fifo, name):
        """(job, first held row, values of the group, last group, statements for the next group)."""
        p = self.pe
        job = data.View(JOB, fifo.r_data)
        base = Signal(13, name=f"{name}_base")
        left = wire(m, (job.held - base)[:13], f"{name}_left")
        last = wire(m, left <= p.rows, f"{name}_last")
        return job, base, wire(m, Mux(last, left, p.rows)[:13], f"{name}_values"), last, base.eq(Mux(last, 0, base + p.rows))

    def _fills(self, m, fifo):
        p = self.pe
        job, _, _, last, following = self._groups(m, fifo, "fill")
        bank, chunk, loading = Signal(exact_log2(p.banks)), Signal(13), Signal(init=1)
        fill = self.fill.payload
        loads = wire(m, job.bias & loading & (chunk == 0), "loads")
        final = wire(m, ~loads & (chunk + 1 == job.chunks), "final")
        m.d.comb += [
            self.fill.valid.eq(fifo.r_rdy), fill.bank.eq(bank), fill.count.eq(job.rows), fill.op.eq(Mux(loads, Fill.LOAD, Fill.ACCUMULATE)),
            fill.first.eq(~job.bias & (chunk == 0)), fill.open.eq(Mux(job.bias, loads, chunk == 0)), fill.close.eq(final),
            fifo.r_en.eq(self.fill.ready & final & last),
        ]
        with m.If(fifo.r_rdy & self.fill.ready):
            m.d.sync += loading.eq(~loads)
            with m.If(~loads):
                m.d.sync += [chunk.eq(Mux(final, 0, chunk + 1)), loading.eq(final)]
            with m.If(final):
                m.d.sync += [bank.eq(bank + 1), following]

    def _bias(self, m, fifo):
        """A group's values are read once, and given once a row. Returns (a job is over, some row that it read was damaged)."""
        p = self.pe
        job, base, _, last, following = self._groups(m, fifo, "bias")
        per_row = ROW_BYTES // 4
        lines = max(1, p.rows // per_row)
        asked, got, sent = Signal(range(lines + 1)), Signal(range(lines + 1)), Signal(13)
        values = Signal(32 * max(p.rows, per_row), reset_less=True)
        damaged = Signal()
        request, response = self.port_bias.request, self.port_bias.response
        at = wire(m, (job.a + (base << 2) + (asked << 6))[:ADDR], "bias_at")
        m.d.comb += [
            request.valid.eq(fifo.r_rdy & (asked != lines)), request.payload.write.eq(0), request.payload.addr.eq(at[6:]),
            response.ready.eq(got != lines),
        ]
        with m.If(request.valid & request.ready):
            m.d.sync += asked.eq(asked + 1)
        with m.If(response.valid & response.ready):
            m.d.sync += [got.eq(got + 1), damaged.eq(damaged | response.payload.error)]
            for i in range(lines):
                with m.If(got == i):
                    m.d.sync += values[512 * i : 512 * i + 512].eq(response.payload.data)
        offset = (job.a[2:6] + base[:4])[:4] if p.rows < per_row else 0
        m.d.comb += [
            self.bias.valid.eq(fifo.r_rdy & (got == lines)),
            self.bias.payload.values.eq(values.bit_select(offset << 5, 32 * p.rows) if p.rows < per_row else values),
        ]
        with m.If(self.bias.valid & self.bias.ready):
            m.d.sync += sent.eq(sent + 1)
            with m.If(sent + 1 == job.rows):
                m.d.sync += [sent.eq(0), asked.eq(0), got.eq(0), following]
                m.d.comb += fifo.r_en.eq(last)
                with m.If(last):
                    m.d.sync += damaged.eq(0)
        return fifo.r_en, damaged

    def _drains(self, m, fifo):
        p = self.pe
        job, _, _, last, following = self._groups(m, fifo, "drain")
        bank = Signal(exact_log2(p.banks))
        drain = self.drain.payload
        m.d.comb += [
            self.drain.valid.eq(fifo.r_rdy), drain.bank.eq(bank), drain.count.eq(job.rows), drain.to.eq(Mux(job.refused, Drain.NOWHERE, Drain.MEMORY)), drain.integer.eq(job.integer),
            drain.free.eq(1), fifo.r_en.eq(self.drain.ready & last),
        ]
        with m.If(fifo.r_rdy & self.drain.ready):
            m.d.sync += [bank.eq(bank + 1), following]

    def _writes(self, m, fifo):
        """Rows into local memory. Returns (a job's last row was taken, some row of it was marked bad)."""
        p = self.pe
        job, base, count, last, following = self._groups(m, fifo, "write")
        row, part, at_row = Signal(13), Signal(range(max(2, 4 * p.rows // ROW_BYTES))), Signal(ADDR)
        narrow = wire(m, job.out != OutFormat.FLOAT32, "write_narrow")
        drained = self.memory.payload
        wide, thin = [], []
        for i in range(p.rows):
            value = drained.values.word_select(i, 32)
            positive = wire(m, Mux(job.relu & value[31] & (job.integer | (value[:31] <= 0x7F800000)), 0, value), f"positive_{i}")
            wide.append(positive)
            thin.append(Mux(job.out == OutFormat.BFLOAT16, narrow_bfloat16(m, positive, f"nb{i}"), narrow_float16(m, positive, f"nh{i}")))
        # Bytes of the row from its group's place on, and which of them count.
        places = max(8 * ROW_BYTES, 32 * p.rows)
        bits = wire(m, Mux(narrow, Cat(*thin), Cat(*wide))[:places], "row_bits")
        used = wire(m, Mux(narrow, count << 1, count << 2)[:14], "used")
        begin = wire(m, (Mux(row == 0, job.d, at_row) + Mux(narrow, base << 1, base << 2))[:ADDR], "begin")
        lines = max(1, 4 * p.rows // ROW_BYTES)
        more = wire(m, used > ((part + 1) << 6), "more") if lines > 1 else Const(0)
        request = self.port_d.request
        here = wire(m, bits.word_select(part, 512) if lines > 1 else bits, "here")
        valid_bytes = wire(m, (used - (part << 6))[:14], "valid_bytes")
        mask = Signal(ROW_BYTES)
        with m.Switch(Mux(valid_bytes > 64, 64, valid_bytes)):
            for k in range(2, 65, 2):
                with m.Case(k):
                    m.d.comb += mask.eq((1 << k) - 1)
        m.d.comb += [
            request.valid.eq(fifo.r_rdy & self.memory.valid), request.payload.write.eq(1), request.payload.addr.eq(begin[6:] + part),
            request.payload.data.eq((here << (begin[:6] << 3))[:512]), request.payload.strb.eq((mask << begin[:6])[:64]),
            self.memory.ready.eq(fifo.r_rdy & request.ready & ~more), self.port_d.response.ready.eq(1),
        ]
        bad = Signal()
        ended = Signal()
        with m.If(request.valid & request.ready):
            m.d.sync += part.eq(Mux(more, part + 1, 0))
            with m.If(~more):
                m.d.sync += [row.eq(row + 1), at_row.eq(Mux(row == 0, job.d, at_row) + job.stride_d), bad.eq(bad | drained.bad)]
                with m.If(row + 1 == job.rows):
                    m.d.sync += [row.eq(0), following]
                    m.d.comb += [ended.eq(last), fifo.r_en.eq(last)]
                    with m.If(last):
                        m.d.sync += bad.eq(0)
        return ended, bad | drained.bad
