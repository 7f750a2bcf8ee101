"""Results of an SFU instruction into local memory: packed into lines, MX encoded first where that is wanted.

Rules
    1. Element c of row r goes to bit c * slot of ``base + r * stride``; with `single` every beat is a row of one element, at ``base + r * stride``. A line is
       written once, its bytes that the row has; a 4-bit element without a neighbour has 0 above it.
    2. With `mx` the results are binary32 numbers, and encoded (:mod:`rtl.numeric.mx_encode`); after each line the scales of its blocks are written.
    3. `ended` in the cycle in which the job's last write is accepted.

Parameters: `pe`.
Members
    `job` In(JOB), stays while the job runs; `go` In(1) starts it; `results` In stream, of :mod:`rtl.pe.sfu`; `port` Out(LocalPort); `ended` Out(1)

Latency: a line's last beat to its write 2 cycles, with `mx` 8. Interval: a beat a cycle, or a line a cycle, whichever
takes longer; with `mx` 16 elements a cycle at most.

Assumptions
    A1. `go` comes after `ended` of the job before, or at the start; given by the unit.
    A2. A beat that is not its row's last has all lanes; guarded by the unit's counters.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.skid import SkidBuffer
from rtl.numeric.mx_encode import LANES as MX_LANES
from rtl.numeric.mx_encode import MxEncode
from rtl.numeric.pipeline import wire
from rtl.pe.local_port import ROW_BYTES, LocalPort
from rtl.pe.sfu import result_layout
from rtl.pe.sfu_in import ADDR, LINE, SLOTS, ScalePlace
from spec.params import PeParams
from spec.pe import Mx

JOB = data.StructLayout({
    "base": ADDR, "stride": 20, "rows": 16, "slot": 2, "single": 1, "mx": 2, "scales": ADDR, "element": 3, "rule": 2, "sat": 1,
})
WRITE = data.StructLayout({"addr": ADDR - 6, "data": LINE, "strb": ROW_BYTES})


class SfuPacker(Block):
    """Codes into lines: rules 1 and 3, and scales behind each line.

    Args: `lanes` elements a beat; `scaled`: beats are of blocks, with a scale each, of formats of up to 8 bits.
    Members: `job`, `go` as above; `beats` In stream; `write` Out stream WRITE; `ended` Out(1).
    """

    def __init__(self, lanes: int, scaled: bool):
        self.lanes, self.scaled = lanes, scaled
        shape = data.StructLayout({"codes": data.ArrayLayout(8 if scaled else 32, lanes), "scale": 8, "count": range(lanes + 1), "last": 1})
        super().__init__({"job": In(JOB), "go": In(1), "beats": In(stream.Signature(shape)), "write": Out(stream.Signature(WRITE)), "ended": Out(1)})

    def elaborate(self, platform):
        m = Module()
        j, lanes, beat = self.job, self.lanes, self.beats.payload
        sizes = [bits for bits in SLOTS if bits <= (8 if self.scaled else 32)]

        # Where the beat goes: the `pos`th of its line, or (`sub`) its lines one after the other.
        row, row_at, chunk = Signal(16), Signal(ADDR), Signal(13)
        pos, sub = Signal(exact_log2(LINE // SLOTS[0])), Signal(range(max(2, lanes * 32 // LINE)))
        placed, strobes, full, more = Signal(LINE), Signal(ROW_BYTES), Signal(), Signal()
        with m.Switch(j.slot):
            for code, bits in enumerate(sizes):
                with m.Case(code):
                    size = lanes * bits
                    codes = Cat(*(c[:bits] for c in beat.codes))
                    nbytes = wire(m, (beat.count * bits + 7) >> 3, f"nbytes{bits}")
                    mask = wire(m, Cat(*(nbytes > i for i in range(max(1, size // 8)))), f"mask{bits}")
                    if size < LINE:
                        shift = wire(m, Cat(Const(0, exact_log2(size)), pos)[:9], f"shift{bits}")
                        m.d.comb += [placed.eq(codes << shift), strobes.eq(mask << shift[3:]), full.eq(pos == LINE // size - 1)]
                    else:
                        m.d.comb += [
                            placed.eq(codes.word_select(sub, LINE)), strobes.eq(mask.word_select(sub, ROW_BYTES)), full.eq(1),
                            more.eq(nbytes > ((sub + 1) << 6)),
                        ]
        if not self.scaled:
            with m.If(j.single):
                byte = row_at[:6]
                widths = [max(1, bits // 8) for bits in SLOTS]
                mask = wire(m, Cat(*(Cat(*(Const(w > i) for w in widths)).bit_select(j.slot, 1) for i in range(4))), "mask_single")
                m.d.comb += [placed.eq(beat.codes[0] << (byte << 3)), strobes.eq(mask << byte), full.eq(1), more.eq(0)]

        line, held_strobes, begun = Signal(LINE, reset_less=True), Signal(ROW_BYTES, reset_less=True), Signal()
        total = wire(m, placed | Mux(begun, line, 0), "total")
        total_strobes = wire(m, strobes | Mux(begun, held_strobes, 0), "total_strobes")
        ready, kept = Signal(), Signal(data.StructLayout({"write": WRITE, "final": 1}), reset_less=True)
        final = wire(m, beat.last & ~more & (row + 1 == j.rows), "final")
        complete = wire(m, full | beat.last, "complete")

        scales_ready, scales_kept = Signal(), Signal(data.StructLayout({"write": WRITE, "final": 1}), reset_less=True)
        sent = wire(m, self.write.valid & self.write.ready, "sent")
        room = wire(m, Mux(sent, ~(ready & scales_ready), ~(ready | scales_ready)), "room")
        pushes = wire(m, self.beats.valid & complete & room, "pushes")
        m.d.comb += [self.beats.ready.eq(Mux(complete, room & ~more, 1)), self.write.valid.eq(ready | scales_ready)]
        m.d.comb += self.write.payload.eq(Mux(ready, kept.write, scales_kept.write))
        m.d.comb += self.ended.eq(sent & Mux(ready, kept.final & ~scales_ready, scales_kept.final))
        with m.If(sent):
            m.d.sync += [ready.eq(0), scales_ready.eq(ready & scales_ready)]
        with m.If(pushes):
            m.d.sync += [
                ready.eq(1), kept.write.addr.eq(Mux(j.single, row_at, row_at + (chunk << 6))[6:]), kept.write.data.eq(total), kept.write.strb.eq(total_strobes),
                kept.final.eq(final), begun.eq(0), pos.eq(0), chunk.eq(chunk + 1), sub.eq(Mux(more, sub + 1, 0)),
            ]
            with m.If(beat.last & ~more):
                m.d.sync += [row.eq(row + 1), row_at.eq(row_at + j.stride), chunk.eq(0)]
        with m.Elif(self.beats.valid & ~complete):
            m.d.sync += [line.eq(total), held_strobes.eq(total_strobes), begun.eq(1), pos.eq(pos + 1)]
        with m.If(self.go):
            m.d.sync += [row.eq(0), row_at.eq(j.base), chunk.eq(0)]
        if self.scaled:
            self._scales(m, pushes, begun, pos, final, scales_ready, scales_kept)
        return m

    def _scales(self, m, pushes, begun, pos, final, ready, kept):
        """A chunk's scales, from its blocks' beats."""
        j, beat = self.job, self.beats.payload
        place = ScalePlace("place")
        held, used = Signal(64, reset_less=True), Signal(8, reset_less=True)
        at = wire(m, Mux(j.mx == Mx.BLOCK_32, pos >> 1, pos)[:3], "block")
        word = wire(m, Mux(begun, held, 0) | (beat.scale << (at << 3)), "scales")  # the second beat of a block brings the same scale again
        bytes_ = wire(m, Mux(begun, used, 0) | (1 << at), "scales_used")
        with m.If(self.beats.valid):
            m.d.sync += [held.eq(word), used.eq(bytes_)]
        with m.If(pushes):
            m.d.sync += [
                ready.eq(1), kept.final.eq(final), kept.write.addr.eq(place.at[6:]), kept.write.data.eq(word << (place.at[3:6] << 6)),
                kept.write.strb.eq(bytes_ << (place.at[3:6] << 3)), place.chunk(j.rows),
            ]
            with m.If(beat.last):
                m.d.sync += place.next_row()
        with m.If(self.go):
            m.d.sync += place.begin(j.scales)


class SfuGather(Block):
    """Beats of `lanes` numbers as beats of 16: several joined, or one cut up.

    Members: `results` In stream, of :mod:`rtl.pe.sfu`; `row` Out stream {x: 16 x 32, count, last}. Latency 1 cycle where beats are joined, else 0.
    """

    def __init__(self, lanes: int):
        self.lanes = lanes
        shape = data.StructLayout({"x": data.ArrayLayout(32, MX_LANES), "count": 5, "last": 1})
        super().__init__({"results": In(stream.Signature(result_layout(lanes))), "row": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        lanes, beat, out = self.lanes, self.results.payload, self.row
        count = wire(m, sum(beat.keep), "count")
        if lanes >= MX_LANES:
            parts = lanes // MX_LANES
            part = Signal(range(max(2, parts)))
            left = wire(m, (count - (part << 4)).as_unsigned()[:7], "left")
            over = wire(m, (left <= MX_LANES), "over")
            m.d.comb += [
                out.valid.eq(self.results.valid), self.results.ready.eq(out.ready & over), out.payload.count.eq(Mux(over, left, MX_LANES)),
                out.payload.last.eq(beat.last & over), out.payload.x.eq(Cat(*beat.data).word_select(part, 32 * MX_LANES)),
            ]
            with m.If(out.valid & out.ready):
                m.d.sync += part.eq(Mux(over, 0, part + 1))
            return m
        parts = MX_LANES // lanes
        part, full = Signal(range(parts)), Signal()
        x = [Signal(32 * lanes, name=f"x{k}", reset_less=True) for k in range(parts)]
        total, last = Signal(5, reset_less=True), Signal(reset_less=True)
        m.d.comb += [
            out.valid.eq(full), out.payload.x.eq(Cat(*x)), out.payload.count.eq(total), out.payload.last.eq(last), self.results.ready.eq(~full | out.ready),
        ]
        with m.If(out.ready):
            m.d.sync += full.eq(0)
        with m.If(self.results.valid & self.results.ready):
            ends = wire(m, beat.last | (part == parts - 1), "ends")
            m.d.sync += [total.eq(part * lanes + count), last.eq(beat.last), full.eq(ends), part.eq(Mux(ends, 0, part + 1))]
            for k in range(parts):
                with m.If(part == k):
                    m.d.sync += x[k].eq(Cat(*beat.data))
        return m


class SfuOut(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams):
        self.pe = pe
        super().__init__({
            "job": In(JOB), "go": In(1), "results": In(stream.Signature(result_layout(pe.lanes))), "port": Out(LocalPort(pe)), "ended": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, j = self.pe.lanes, self.job
        m.submodules.skid = skid = SkidBuffer(result_layout(lanes))  # a beat of several lines leaves the rigid pipeline at once
        connect(m, flipped(self.results), skid.i)
        results = skid.o
        m.submodules.packer = packer = SfuPacker(lanes, False)
        m.submodules.gather = gather = SfuGather(lanes)
        m.submodules.encode = encode = MxEncode()
        m.submodules.blocks = blocks = SfuPacker(MX_LANES, True)
        mx = wire(m, j.mx != Mx.NONE, "mx")
        plain, beat = packer.beats, results.payload
        m.d.comb += [
            plain.valid.eq(results.valid & ~mx), plain.payload.codes.eq(beat.data), plain.payload.count.eq(sum(beat.keep)), plain.payload.last.eq(beat.last),
            gather.results.valid.eq(results.valid & mx), gather.results.payload.eq(beat), results.ready.eq(Mux(mx, gather.results.ready, plain.ready)),
        ]
        wide = wire(m, j.mx == Mx.BLOCK_32, "wide")
        numbers = encode.row.payload
        m.d.comb += [
            encode.row.valid.eq(gather.row.valid), gather.row.ready.eq(encode.row.ready),
            *(numbers[name].eq(gather.row.payload[name]) for name in ("x", "count", "last")), numbers.element.eq(j.element), numbers.rule.eq(j.rule),
            numbers.wide.eq(wide), numbers.sat.eq(j.sat), blocks.beats.valid.eq(encode.blocks.valid), encode.blocks.ready.eq(blocks.beats.ready),
            *(blocks.beats.payload[name].eq(encode.blocks.payload[name]) for name in ("codes", "scale", "count", "last")),
        ]
        request = self.port.request
        m.d.comb += [request.valid.eq(packer.write.valid | blocks.write.valid), request.payload.write.eq(1), self.port.response.ready.eq(1)]
        for part, chosen in ((packer, ~mx), (blocks, mx)):
            m.d.comb += [part.job.eq(j), part.go.eq(self.go & chosen), part.write.ready.eq(request.ready & chosen)]
            with m.If(chosen):
                m.d.comb += [request.payload[name].eq(part.write.payload[name]) for name in ("addr", "data", "strb")]
        m.d.comb += self.ended.eq(packer.ended | blocks.ended)
        return m

