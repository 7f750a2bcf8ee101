"""One operand of an SFU instruction: rows of local memory, read line by line, as beats of `lanes` elements.

Rules
    1. Element c of row r stands at bit c * slot of ``base + r * stride``. With `column` a row is one element at ``base + r * stride``, given in every lane.
    2. A beat is the next `lanes` elements of a row; a row's last one (`end_row`) may have fewer, the other lanes then mean nothing. Elements are codes in the
       low bits of 32; bits above them mean nothing.
    3. With `mx` each line is read after the row of memory that has its scales (spec.isa: SFU_ARGS); a beat has the scale of each lane's element.

Parameters: `pe`; `scaled`: whether there may be scales.
Members
    `job` In(JOB), stays while the job runs; `go` In(1) starts it
    `port` Out(LocalPort); `beat` Out stream; `end_row` In(1): the beat shown is its row's last; `damaged` Out(1): some row read so far for the job was damaged

Latency: `go` to the first request 1 cycle, answer to beat 1 cycle. Interval: a line a cycle, or a beat a cycle, whichever takes longer.

Assumptions
    A1. `go` comes when the last job's beats were all taken; given by the unit, whose bench runs jobs back to back.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.local_port import ROW_BYTES, LocalPort
from spec.params import PeParams
from spec.pe import Mx

ADDR = 24
LINE = 8 * ROW_BYTES
SLOTS = (4, 8, 16, 32)  # bits an element stands in; the place is the code
JOB = data.StructLayout({
    "base": ADDR, "stride": 20, "rows": 16, "columns": 16, "slot": 2, "column": 1, "mx": 2, "scales": ADDR,
})


def lines_of(m: Module, columns, slot, name: str = "lines") -> Signal:
    """Lines of a row of `columns` elements."""
    lines = Signal(13, name=name)
    with m.Switch(slot):
        for code, bits in enumerate(SLOTS):
            with m.Case(code):
                per = LINE // bits
                m.d.comb += lines.eq((columns + (per - 1)) >> exact_log2(per))
    return lines


class ScalePlace:
    """Address of the scales of the chunk at hand: 8 bytes on from row to row, 8 * rows from chunk to chunk."""

    def __init__(self, name: str, bits: int = ADDR):
        self.row, self.at = Signal(bits, name=f"{name}_row"), Signal(bits, name=f"{name}_at")

    def begin(self, address):
        return [self.row.eq(address), self.at.eq(address)]

    def chunk(self, rows):
        return self.at.eq(self.at + (rows << 3))

    def next_row(self):
        return [self.row.eq(self.row + 8), self.at.eq(self.row + 8)]


class SfuReader(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams, scaled: bool):
        self.pe, self.scaled = pe, scaled
        self.beat_layout = data.StructLayout({"x": data.ArrayLayout(32, pe.lanes), "scale": data.ArrayLayout(8, pe.lanes if scaled else 0)})
        super().__init__({
            "job": In(JOB), "go": In(1), "port": Out(LocalPort(pe)), "beat": Out(stream.Signature(self.beat_layout)), "end_row": In(1), "damaged": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        j, lanes = self.job, self.pe.lanes
        of_row = lines_of(m, j.columns, j.slot)
        lines = wire(m, Mux(j.column, 1, of_row), "lines_read")
        mx = wire(m, (j.mx != Mx.NONE) & self.scaled, "mx")

        # Requests.
        active, row, line, row_at = Signal(), Signal(16), Signal(13), Signal(ADDR)
        place, scale_turn = ScalePlace("scale"), Signal()
        request = self.port.request
        last_line = wire(m, line + 1 == lines, "last_line")
        m.d.comb += [
            request.valid.eq(active), request.payload.write.eq(0),
            request.payload.addr.eq(Mux(scale_turn, place.at, row_at + (line << 6))[6:ADDR]),
        ]
        with m.If(self.go):
            m.d.sync += [active.eq(1), row.eq(0), line.eq(0), row_at.eq(j.base), *place.begin(j.scales), scale_turn.eq(mx)]
        with m.Elif(request.valid & request.ready):
            m.d.sync += scale_turn.eq(mx & ~scale_turn)
            with m.If(~scale_turn):
                m.d.sync += [line.eq(line + 1), place.chunk(j.rows)]
                with m.If(last_line):
                    m.d.sync += [line.eq(0), row.eq(row + 1), row_at.eq(row_at + j.stride), *place.next_row(), active.eq(row + 1 != j.rows)]

        # Answers: scales beforehand, lines into what a beat is made of.
        response, beat = self.port.response, self.beat
        most = max(1, lanes * SLOTS[-1] // LINE)  # lines of a beat
        held = [Signal(LINE, name=f"held{k}", reset_less=True) for k in range(most)]
        fill, full, got = Signal(range(max(2, most))), Signal(), Signal(13)
        pos = Signal(exact_log2(LINE // SLOTS[0]))  # beat of the line
        last_pos, last_fill = Signal.like(pos), Signal.like(fill)
        with m.Switch(j.slot):
            for code, bits in enumerate(SLOTS):
                with m.Case(code):
                    m.d.comb += [last_pos.eq(max(1, LINE // (lanes * bits)) - 1), last_fill.eq(max(1, lanes * bits // LINE) - 1)]
        took = wire(m, beat.valid & beat.ready, "took")
        pop = wire(m, took & (self.end_row | (~j.column & (pos == last_pos))), "pop")
        free = wire(m, ~full | pop, "free")
        scale_next, next_valid, scales = Signal(64, reset_less=True), Signal(), Signal(64, reset_less=True)
        expects_scale = Signal()
        taken = wire(m, response.valid & response.ready, "taken")
        whole = wire(m, (fill == last_fill) | (got + 1 == lines), "whole")
        m.d.comb += [beat.valid.eq(full), response.ready.eq(Mux(expects_scale, ~next_valid, free))]
        damaged = Signal()
        m.d.comb += self.damaged.eq(damaged)
        with m.If(took):
            m.d.sync += pos.eq(Mux(pop | j.column, 0, pos + 1))
        with m.If(pop):
            m.d.sync += full.eq(0)
        answer = ScalePlace("answer", 6)
        with m.If(self.go):
            m.d.sync += [fill.eq(0), full.eq(0), got.eq(0), pos.eq(0), next_valid.eq(0), expects_scale.eq(mx), damaged.eq(0), *answer.begin(j.scales)]
        with m.Elif(taken):
            m.d.sync += [damaged.eq(damaged | response.payload.error), expects_scale.eq(mx & ~expects_scale)]
            with m.If(expects_scale):
                m.d.sync += [scale_next.eq(response.payload.data.word_select(answer.at[3:6], 64)), next_valid.eq(1)]
            with m.Else():
                for k, line_k in enumerate(held):
                    with m.If(fill == k):
                        m.d.sync += line_k.eq(response.payload.data)
                m.d.sync += [full.eq(whole), fill.eq(Mux(whole, 0, fill + 1)), got.eq(got + 1), scales.eq(scale_next), next_valid.eq(0), answer.chunk(j.rows)]
                with m.If(got + 1 == lines):
                    m.d.sync += [got.eq(0), *answer.next_row()]

        # A beat of elements.
        offset = Signal(6)  # byte of a column's element
        with m.If(self.go):
            m.d.sync += offset.eq(j.base)
        with m.Elif(pop):
            m.d.sync += offset.eq(offset + j.stride)
        single = wire(m, (held[0] >> (offset << 3))[:32], "single")
        with m.Switch(j.slot):
            for code, bits in enumerate(SLOTS):
                with m.Case(code):
                    size = lanes * bits
                    word = held[0].word_select(pos[: exact_log2(LINE // size)], size) if size < LINE else Cat(*held[: size // LINE])
                    m.d.comb += [beat.payload.x[i].eq(Mux(j.column, single[:bits], word[i * bits : (i + 1) * bits])) for i in range(lanes)]
        if self.scaled:
            for group in range(0, lanes, 16):
                block = wire(m, ((Cat(Const(0, exact_log2(lanes)), pos) + group) >> 4)[:3], f"block{group}")
                scale = wire(m, scales.word_select(Mux(j.mx == Mx.BLOCK_32, block >> 1, block), 8), f"scale{group}")
                m.d.comb += [beat.payload.scale[i].eq(scale) for i in range(group, min(lanes, group + 16))]
        return m
