"""Dot-product engine: each streamed row dotted with every held row; one result row a cycle, in every format.

Rules
    1. Numbers: docs/numbers.md, "Dot product", one chunk. The order of lanes and the number of rows never matter.
    2. `held` loads a tile, a row of 64 bytes a beat, in any order of `row`; the beat with `last` completes it. Rows not loaded count as zero, as
       do rows beyond `rows`. Two tiles are held: one in use, one that waits. While one waits, `held` is not ready.
    3. `row` streams rows. A row with `first` takes the tile that waits (and is not accepted before there is one); rows without use the tile in
       use. One result row for each, in order, with its `tag`.
    4. Formats of the two operands may differ where their elements stand in equally many bits, 8-bit floats with 6-bit ones too; int8 goes with
       int8. Scales belong to 8-, 6- and 4-bit floats; either operand may have none (`mx` 0: scale 1). What does not fit, an unknown
       format or `mx`, a held tile of mixed formats among them, gives NaN in the whole result row, and `bad`.
    5. Format and `mx` may change with every tile, without a bubble.

Members
    `held`    In stream DOT_HELD; `row` In stream DOT_ROW
    `result`  Out stream {values: rows x 32, tag: 16, integer: 1 (int32, not binary32), bad: 1}

Parameters: `pe.rows`. Latency 6 cycles, row to result. The row that takes a tile may follow the tile's last beat by one cycle.
Interval 1, also over a change of tile and format: a tile of n rows loads in n cycles while the tile before is in use.

Assumptions
    A1. The streams obey valid/ready; guarded by the stream checkers of the bench.
    A2. Scales of blocks that lie wholly beyond K are not 0xFF (they are scales like others: 0xFF is NaN); nothing checks it.
"""
from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.common.layouts import layout
from rtl.numeric.pipeline import rigid, wire
from rtl.pe.dot_decode import OPERAND, DotDecode, slot_class
from rtl.pe.dot_row import STAGES, DotRow
from spec.params import PeParams
from spec.pe import DOT_HELD, DOT_ROW, DotFormat, Mx

LATENCY = STAGES + 1


def result_layout(rows: int) -> data.StructLayout:
    return data.StructLayout({"values": 32 * rows, "tag": 16, "integer": 1, "bad": 1})


def kind(m: Module, chunk, name: str) -> tuple[Value, Value]:
    """What the two operands must share, {bits of a slot, int8}; and whether the chunk's format and scales do not fit each other."""
    slots = slot_class(m, chunk.format, f"{name}_slots")
    integer = wire(m, chunk.format == DotFormat.INT8, f"{name}_integer")
    unknown = (chunk.format > max(DotFormat)) | (chunk.mx > max(Mx)) | (chunk.mx != Mx.NONE) & (~slots[1] | integer)
    return wire(m, Cat(slots, integer), f"{name}_kind"), wire(m, unknown, f"{name}_unknown")


class DotProduct(Block):
    """See the module's contract."""

    LATENCY = LATENCY

    def __init__(self, pe: PeParams):
        self.pe = pe
        super().__init__({
            "held": In(stream.Signature(layout(DOT_HELD))),
            "row": In(stream.Signature(layout(DOT_ROW))),
            "result": Out(stream.Signature(result_layout(pe.rows))),
        })

    def elaborate(self, platform):
        m = Module()
        n = self.pe.rows

        # Held rows: decoded, then to their row.
        load = self.held.payload
        m.submodules.held_decode = held_decode = shared(DotDecode())
        decoded = held_decode._block
        load_kind, load_unknown = kind(m, load, "load")
        beat, beat_row, beat_valid = Signal(OPERAND, reset_less=True), Signal(8, reset_less=True), Signal()
        beat_kind, beat_unknown = Signal(3, reset_less=True), Signal(reset_less=True)
        full, present, begun = Signal(), Signal(n), Signal()  # the tile that waits
        hits = wire(m, Cat(beat_row == i for i in range(n)), "hits")
        wait_kind, wait_bad = Signal(3), Signal()
        take = Signal()
        m.d.comb += [
            decoded.data.eq(load.data), decoded.scale.eq(load.scale), decoded.format.eq(load.format), decoded.mx.eq(load.mx),
            self.held.ready.eq(~full | take),
        ]
        accept = wire(m, self.held.valid & self.held.ready, "accept")
        m.d.sync += beat_valid.eq(accept)
        with m.If(accept):
            m.d.sync += [beat.eq(decoded.out), beat_row.eq(load.row), beat_kind.eq(load_kind), beat_unknown.eq(load_unknown)]
        # What waits, the beat that is on its way to its row included.
        all_present = wire(m, present | Mux(beat_valid, hits, 0), "all_present")
        all_kind = wire(m, Mux(beat_valid, beat_kind, wait_kind), "all_kind")
        all_bad = wire(m, Mux(beat_valid, beat_unknown | begun & (wait_bad | (beat_kind != wait_kind)), wait_bad), "all_bad")
        m.d.sync += [present.eq(Mux(take, 0, all_present)), begun.eq(~take & (begun | beat_valid)), wait_kind.eq(all_kind), wait_bad.eq(all_bad)]
        with m.If(accept & load.last):
            m.d.sync += full.eq(1)
        with m.Elif(take):
            m.d.sync += full.eq(0)

        # Streamed rows: decoded into the registers in front of the rows.
        row = self.row.payload
        m.submodules.row_decode = row_decode = shared(DotDecode())
        streamed = row_decode._block
        row_kind, row_unknown = kind(m, row, "row")
        source = SimpleNamespace(valid=Signal(name="go"), ready=Signal(name="go_ready"))
        can = wire(m, ~row.first | full, "can")
        m.d.comb += [
            streamed.data.eq(row.data), streamed.scale.eq(row.scale), streamed.format.eq(row.format), streamed.mx.eq(row.mx),
            source.valid.eq(self.row.valid & can), self.row.ready.eq(source.ready & can),
            take.eq(self.row.valid & self.row.ready & row.first),
        ]
        enable = rigid(m, source, self.result, LATENCY)
        used_kind, used_bad = Signal(3), Signal(init=1)
        with m.If(take):
            m.d.sync += [used_kind.eq(all_kind), used_bad.eq(all_bad)]
        now_kind, now_bad = Mux(row.first, all_kind, used_kind), Mux(row.first, all_bad, used_bad)
        operand, late = Signal(OPERAND, reset_less=True), Signal(OPERAND, reset_less=True)
        side = data.StructLayout({"tag": 16, "integer": 1, "bad": 1, "group_b": 1, "group_c": 1})
        sides = [Signal(side, name=f"side_{k}", reset_less=True) for k in range(LATENCY)]
        swap = Signal(reset_less=True)
        with m.If(enable[0]):
            m.d.sync += [
                operand.eq(streamed.out), swap.eq(row.first), sides[0].tag.eq(row.tag), sides[0].integer.eq(row_kind[2]),
                sides[0].bad.eq(row_unknown | now_bad | (row_kind != now_kind)),
                sides[0].group_b.eq(row_kind[1]), sides[0].group_c.eq(row_kind[:2] == 3),
            ]
        with m.If(enable[1]):
            m.d.sync += late.eq(operand)
        for k in range(1, LATENCY):
            with m.If(enable[k]):
                m.d.sync += sides[k].eq(sides[k - 1])

        group_b, group_c = Cat(s.group_b for s in sides[:STAGES]), Cat(s.group_c for s in sides[:STAGES])
        for i in range(n):
            one = DotRow()
            m.submodules[f"row{i}"] = shared(one)
            m.d.comb += [
                one.held.eq(beat), one.load.eq(beat_valid & hits[i]), one.take.eq(take), one.present.eq(all_present[i]), one.swap.eq(swap),
                one.row.eq(operand), one.row_late.eq(late), one.enable.eq(Cat(*enable[1:])), one.group_b.eq(group_b), one.group_c.eq(group_c),
                one.bad.eq(sides[0].bad), one.integer.eq(sides[STAGES - 1].integer & ~sides[STAGES - 1].bad),
                self.result.payload.values.word_select(i, 32).eq(one.value),
            ]
        last = sides[-1]
        m.d.comb += [
            self.result.payload.tag.eq(last.tag), self.result.payload.bad.eq(last.bad), self.result.payload.integer.eq(last.integer & ~last.bad),
        ]
        return m
