"""Reduction engine: accumulator banks between the dot-product engine, the neighbours, the SFU and memory; a row a cycle each way.

Rules
    1. Numbers: docs/numbers.md, "Accumulation". Every row is added in the order it comes.
    2. `fill` commands run one after the other, and so do `drain` commands; the two meet at the banks only. ACCUMULATE takes `count` rows of `sums`, adding
       each to its accumulator row (`first`: replacing it); LOAD takes them from `bias`, bits as they are.
    3. A bank is *free* or *closed*, and free after reset. A fill waits while its bank is closed; one with `close` closes it once its rows are in the bank.
       A drain waits until its bank is closed; with `free` it frees the bank when its last row is read. So one bank is filled while another is
       drained, and no row is drained before it is whole.
    4. A drain sends its rows to `memory`, `sfu` or `neighbour`, or nowhere. With `merge` each is added to a row of `partial`: partial + row.
       `low` and `high` are the row's minimum and maximum, `bad` says that a row marked so went into the bank since a fill with `open`, `last` marks the last.
    5. `count` 0 does nothing but open, close and free. Rows wrap modulo the depth, banks modulo their number.
    6. A row that would be added to an accumulator row still on its way into the bank waits for it.

Members
    `fill` In stream RE_FILL, `drain` In stream RE_DRAIN
    `sums` In stream {values, tag, integer, bad} of the dot-product engine, `bias` and `partial` In stream {values: rows x 32}
    `memory`, `sfu`, `neighbour`  Out stream {values, low: 32, high: 32, bad: 1, last: 1}
    `closed`  Out(banks): state of the banks

Parameters: `pe.rows`, `pe.banks`, `pe.depth`. Interval 1 row, from command to command too. Latency: row to bank 4 cycles; bank to output 3 cycles
and one for every two levels of the tree of minima. An accumulator row can be added to again 4 cycles later.

Assumptions
    A1. The streams obey valid/ready; guarded by the stream checkers of the bench.
    A2. Every `drain` has a fill that closes its bank, every fill of a closed bank a drain that frees it: the command processor's duty. `closed` shows what
        waits (tb/pe/test_reduction.py: test_waits).
"""
from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block, shared
from rtl.common.layouts import layout
from rtl.numeric.minmax import minmax
from rtl.numeric.pipeline import wire
from rtl.pe.dot_product import result_layout
from rtl.pe.reduction_lane import ReductionLane
from spec.params import PeParams
from spec.pe import RE_DRAIN, RE_FILL, Drain, Fill

ROW_LATENCY = 4  # issue of a row to the first cycle in which the bank gives the sum


def row_layout(rows: int) -> data.StructLayout:
    return data.StructLayout({"values": 32 * rows})


def drained_layout(rows: int) -> data.StructLayout:
    return data.StructLayout({"values": 32 * rows, "low": 32, "high": 32, "bad": 1, "last": 1})


class Reduction(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams):
        self.pe = pe
        out = Out(stream.Signature(drained_layout(pe.rows)))
        super().__init__({
            "fill": In(stream.Signature(layout(RE_FILL))), "drain": In(stream.Signature(layout(RE_DRAIN))),
            "sums": In(stream.Signature(result_layout(pe.rows))),
            "bias": In(stream.Signature(row_layout(pe.rows))), "partial": In(stream.Signature(row_layout(pe.rows))),
            "memory": out, "sfu": out, "neighbour": out, "closed": Out(pe.banks),
        })

    def elaborate(self, platform):
        m = Module()
        p = self.pe
        width, addr_bits, bank_bits = 32 * p.rows, exact_log2(p.depth), exact_log2(p.banks)
        reads, writes = [], []
        for k in range(p.banks):
            m.submodules[f"bank{k}"] = bank = Memory(shape=width, depth=p.depth, init=[])
            writes.append(bank.write_port())
            reads.append(bank.read_port())
        closed, bad = Signal(p.banks), Signal(p.banks)
        freed, closes = Signal(p.banks), Signal(p.banks)
        m.d.comb += self.closed.eq(closed)
        m.d.sync += closed.eq((closed | closes) & ~freed)

        fill_reads = self._fill(m, addr_bits, bank_bits, width, reads, writes, closed, closes, bad)
        self._drain(m, addr_bits, bank_bits, width, reads, closed, freed, bad, fill_reads)
        return m

    def _fill(self, m, addr_bits, bank_bits, width, reads, writes, closed, closes, bad):
        """Commands, rows in, addition, write. Returns (bank, address, enable) of the read."""
        p = self.pe
        job, busy = Signal(layout(RE_FILL), reset_less=True), Signal()
        bank, addr, left = job.bank[:bank_bits], job.base[:addr_bits], job.count
        token = data.StructLayout({"valid": 1, "write": 1, "close": 1, "open": 1, "bad": 1, "bank": bank_bits, "addr": addr_bits})
        flight = [Signal(token, name=f"flight_{k}") for k in range(3)]
        values, keep, integer = Signal(width, reset_less=True), Signal(reset_less=True), Signal(reset_less=True)

        # One token a row, and one for a command without rows.
        loads, empty = wire(m, job.op == Fill.LOAD, "loads"), wire(m, left == 0, "fill_empty")
        closing = Cat(f.valid & f.close & (f.bank == bank) for f in flight).any()
        waits = wire(m, closed.bit_select(bank, 1) | closing, "fill_waits")
        replaces = wire(m, loads | job.first, "replaces")
        same = Cat(f.valid & f.write & (f.bank == bank) & (f.addr == addr) for f in flight)
        clash = wire(m, ~replaces & ~empty & same.any(), "clash")
        ready = wire(m, busy & ~waits & ~clash, "fill_ready")
        there = Mux(empty, 1, Mux(loads, self.bias.valid, self.sums.valid))
        issue = wire(m, ready & there, "issue")
        end = wire(m, left <= 1, "fill_end")
        m.d.comb += [
            self.sums.ready.eq(ready & ~loads & ~empty), self.bias.ready.eq(ready & loads & ~empty), self.fill.ready.eq(~busy | issue & end),
        ]
        with m.If(self.fill.ready):
            m.d.sync += [busy.eq(self.fill.valid), job.eq(self.fill.payload)]
        with m.Elif(issue):
            m.d.sync += [left.eq(left - 1), addr.eq(addr + 1), job.open.eq(0)]

        # Read and row; stage 1; stage 2; write.
        m.d.sync += [
            flight[0].valid.eq(issue), flight[0].write.eq(~empty), flight[0].close.eq(job.close & end), flight[0].open.eq(job.open),
            flight[0].bad.eq(~loads & ~empty & self.sums.payload.bad), flight[0].bank.eq(bank), flight[0].addr.eq(addr),
            flight[1].eq(flight[0]), flight[2].eq(flight[1]),
        ]
        with m.If(issue):
            m.d.sync += [
                values.eq(Mux(loads, self.bias.payload.values, self.sums.payload.values)), keep.eq(replaces),
                integer.eq(~loads & self.sums.payload.integer),
            ]
        held = wire(m, Array(r.data for r in reads)[flight[0].bank], "accumulators")
        result = Signal(width)
        for i in range(p.rows):
            lane = ReductionLane()
            m.submodules[f"fill_lane{i}"] = shared(lane)
            m.d.comb += [
                lane.enable.eq(Cat(flight[0].valid & flight[0].write, flight[1].valid & flight[1].write)),
                lane.a.eq(held.word_select(i, 32)), lane.b.eq(values.word_select(i, 32)), lane.keep.eq(keep), lane.integer.eq(integer),
                result.word_select(i, 32).eq(lane.out),
            ]
        done = flight[2]
        for k, w in enumerate(writes):
            mine = wire(m, done.valid & (done.bank == k), f"mine_{k}")
            m.d.comb += [w.en.eq(mine & done.write), w.addr.eq(done.addr), w.data.eq(result), closes[k].eq(mine & done.close)]
            with m.If(mine):
                m.d.sync += bad[k].eq(done.bad | bad[k] & ~done.open)
        return bank, addr, issue

    def _drain(self, m, addr_bits, bank_bits, width, reads, closed, freed, bad, fill_reads):
        """Commands, read, addition, minima and maxima, out."""
        p = self.pe
        job, busy = Signal(layout(RE_DRAIN), reset_less=True), Signal()
        bank, addr, left = job.bank[:bank_bits], job.base[:addr_bits], job.count
        own_closed = wire(m, closed.bit_select(bank, 1), "drain_closed")
        empty, end = wire(m, left == 0, "drain_empty"), wire(m, left <= 1, "drain_end")
        levels = exact_log2(p.rows)
        stages = 3 + (levels + 1) // 2  # read, two of the lane, then two levels a stage
        token = data.StructLayout({"valid": 1, "last": 1, "bad": 1, "to": 2, "keep": 1, "integer": 1, "bank": bank_bits})
        flight = [Signal(token, name=f"drained_{k}") for k in range(stages)]
        out = flight[-1]
        outlets = {Drain.MEMORY: self.memory, Drain.SFU: self.sfu, Drain.NEIGHBOUR: self.neighbour}
        taken = wire(m, Cat(out.to == Drain.NOWHERE, *((out.to == to) & port.ready for to, port in outlets.items())).any(), "taken")
        move = wire(m, ~out.valid | taken, "drain_move")

        can = wire(m, busy & own_closed & move, "drain_can")
        go = wire(m, can & (empty | ~job.merge | self.partial.valid), "drain_go")
        issue = wire(m, go & ~empty, "drain_issue")
        m.d.comb += [self.drain.ready.eq(~busy | go & end), self.partial.ready.eq(can & ~empty & job.merge)]
        for k in range(p.banks):
            m.d.comb += freed[k].eq(go & end & job.free & (bank == k))
        with m.If(self.drain.ready):
            m.d.sync += [busy.eq(self.drain.valid), job.eq(self.drain.payload)]
        with m.Elif(go):
            m.d.sync += [left.eq(left - 1), addr.eq(addr + 1)]

        fill_bank, fill_addr, fill_issue = fill_reads
        for k, r in enumerate(reads):  # a bank that is closed is not filled
            draining = wire(m, closed[k], f"draining_{k}")
            mine = issue & (bank == k)
            m.d.comb += [
                r.addr.eq(Mux(draining, addr, fill_addr)),
                r.en.eq(Mux(draining, mine, fill_issue & (fill_bank == k))),
            ]

        partial = Signal(width, reset_less=True)
        with m.If(move):
            m.d.sync += [
                flight[0].valid.eq(issue), flight[0].last.eq(end), flight[0].to.eq(job.to), flight[0].keep.eq(~job.merge),
                flight[0].integer.eq(job.integer), flight[0].bad.eq(bad.bit_select(bank, 1)), flight[0].bank.eq(bank),
                *(late.eq(early) for early, late in zip(flight, flight[1:], strict=False)),
            ]
        with m.If(issue & job.merge):
            m.d.sync += partial.eq(self.partial.payload.values)
        enables = [move & f.valid for f in flight]

        # What the bank gave last is overwritten when it is freed and filled at once: it is kept while the pipeline stands still.
        fresh, stood = Signal(), Signal(width, reset_less=True)
        given = Array(r.data for r in reads)[flight[0].bank]
        read = wire(m, Mux(fresh, given, stood), "read")
        m.d.sync += fresh.eq(issue)
        with m.If(fresh):
            m.d.sync += stood.eq(given)

        level = []
        for i in range(p.rows):
            lane = ReductionLane()
            m.submodules[f"drain_lane{i}"] = shared(lane)
            m.d.comb += [
                lane.enable.eq(Cat(enables[0], enables[1])), lane.a.eq(partial.word_select(i, 32)), lane.b.eq(read.word_select(i, 32)),
                lane.keep.eq(flight[0].keep), lane.integer.eq(flight[0].integer),
            ]
            level.append(lane.out)

        values = wire(m, Cat(*level), "reduced")
        lows = highs = level
        if levels == 0:
            lows, highs = ([self._pick(m, level[0], level[0], high, flight[2].integer, "only")] for high in (0, 1))
        for stage in range(3, stages):
            integer = flight[stage - 1].integer
            for half in range(2):
                if len(lows) > 1:
                    lows, highs = ([self._pick(m, a, b, high, integer, f"pick_{stage}_{half}_{i}") for i, (a, b) in
                                    enumerate(zip(some[::2], some[1::2], strict=True))] for high, some in ((0, lows), (1, highs)))
            kept = Signal(width, name=f"values_{stage}", reset_less=True)
            tops = [Signal(32, name=f"extreme_{stage}_{i}", reset_less=True) for i in range(2 * len(lows))]
            with m.If(enables[stage - 1]):
                m.d.sync += [kept.eq(values), *(s.eq(v) for s, v in zip(tops, [*lows, *highs], strict=True))]
            values, lows, highs = kept, tops[: len(lows)], tops[len(lows) :]
        for to, port in outlets.items():
            m.d.comb += [
                port.valid.eq(out.valid & (out.to == to)), port.payload.values.eq(values), port.payload.low.eq(lows[0]),
                port.payload.high.eq(highs[0]), port.payload.bad.eq(out.bad), port.payload.last.eq(out.last),
            ]

    @staticmethod
    def _pick(m, a, b, high, integer, name):
        return minmax(m, a, b, maximum=high, integer=integer, name=f"{name}_{'high' if high else 'low'}")
