"""Legaliser of the DMA engine: rows of bytes become bursts of words, for the read side and for the write side, and a plan for the realigner between them.

Members
    `row`    In stream (row_layout)
    `read`   Out stream (read_layout): the bursts of the source; a row of FILL has none
    `write`  Out stream (write_layout): the bursts of the destination
    `move`   Out stream (move_layout): one per row

Rules
    1. A burst is the words that a row touches in one 4 KiB page: 1 to 64 of them, so never more than AXI allows, and never across 4 KiB. In local memory too.
    2. The three streams run on their own, each in the order of the rows; up to `depth` rows are held for `write` and for `move`.
    3. A `none` row goes to `write` alone.

Latency: `row` to `read` 1 cycle, to `move` 2, to `write` 3. Interval: a burst a cycle on each side, a row of one burst a cycle.

Assumptions
    A1. A row that is not `none` has 1 byte or more and lies in its memories; guarded by front end and mid end (tb/pe/test_dma.py: test_jobs).
"""
from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import BURST, BYTES, WORDS_BITS, move_layout, read_layout, row_layout, word_bits, write_layout
from spec.params import MemParams


def burst_beats(m: Module, word, left, name: str):
    """Words of the next burst: to the end of the row or of the page, whichever is first (1 to 64)."""
    room = wire(m, (Const(BURST, 7) - word[:6])[:7], f"{name}_room")
    return wire(m, Mux(left < room, left[:7], room), f"{name}_beats")


class DmaLegaliser(Block):
    """See the module's contract. Args: `mem` sizes, `depth` rows."""

    def __init__(self, mem: MemParams, depth: int):
        self.mem, self.depth = mem, depth
        super().__init__({
            "row": In(stream.Signature(row_layout(mem))), "read": Out(stream.Signature(read_layout(mem))),
            "write": Out(stream.Signature(write_layout(mem))), "move": Out(stream.Signature(move_layout(mem))),
        })

    def elaborate(self, platform):
        m = Module()
        wb = word_bits(self.mem)
        target = data.StructLayout({"none": 1, "near": 1, "last": 1, "word": wb, "beats": WORDS_BITS})
        m.submodules.moves = moves = SyncFIFOBuffered(width=move_layout(self.mem).size, depth=self.depth)
        m.submodules.targets = targets = SyncFIFOBuffered(width=target.size, depth=self.depth)
        row = self.row.payload
        a, b, n = row.src[:6], row.dst[:6], row.bytes
        reads = wire(m, ((a + n + (BYTES - 1)) >> 6)[:WORDS_BITS], "reads")
        writes = wire(m, ((b + n + (BYTES - 1)) >> 6)[:WORDS_BITS], "writes")

        # Reads: one row at a time.
        active, near = Signal(name="read_active"), Signal(name="read_near")
        word, left = Signal(wb, name="read_word"), Signal(WORDS_BITS, name="read_left")
        beats = burst_beats(m, word, left, "read")
        taken = wire(m, active & self.read.ready, "read_taken")
        free = wire(m, ~active | taken & (left == beats), "read_free")
        accept = wire(m, self.row.valid & self.row.ready, "accept")
        reading = wire(m, accept & ~row.none & ~row.fill, "reading")
        m.d.comb += [
            self.row.ready.eq(free & moves.w_rdy & targets.w_rdy),
            self.read.valid.eq(active), self.read.payload.near.eq(near), self.read.payload.word.eq(word), self.read.payload.beats.eq(beats),
        ]
        with m.If(free):
            m.d.sync += active.eq(reading)
        with m.If(reading):
            m.d.sync += [near.eq(row.src_local), word.eq(row.src[6:]), left.eq(reads)]
        with m.Elif(taken):
            m.d.sync += [word.eq(word + beats), left.eq(left - beats)]

        # The plan of the realigner.
        move = Signal(move_layout(self.mem), name="new_move")
        m.d.comb += [
            move.first.eq(row.first), move.fill.eq(row.fill), move.near.eq(row.src_local), move.pattern.eq(row.pattern), move.word.eq(row.src[6:]),
            move.head.eq(b), move.tail.eq((b + n)[:6]), move.writes.eq(writes),
            move.late.eq(~row.fill & (a > b)), move.turn.eq(Mux(row.fill, -b, a - b)), move.reads.eq(Mux(row.fill, (n + (BYTES - 1)) >> 6, reads)),
            moves.w_data.eq(move), moves.w_en.eq(accept & ~row.none),
            self.move.payload.eq(moves.r_data), self.move.valid.eq(moves.r_rdy), moves.r_en.eq(self.move.ready),
        ]

        # Writes.
        new, head = Signal(target, name="new_target"), Signal(target, name="target")
        m.d.comb += [
            new.none.eq(row.none), new.near.eq(row.dst_local), new.last.eq(row.last), new.word.eq(row.dst[6:]), new.beats.eq(writes),
            targets.w_data.eq(new), targets.w_en.eq(accept), head.eq(targets.r_data),
        ]
        current, busy = Signal(target, name="current", reset_less=True), Signal(name="write_active")
        write_beats = burst_beats(m, current.word, current.beats, "write")
        final = wire(m, current.none | (current.beats == write_beats), "write_final")
        moved = wire(m, busy & self.write.ready, "write_taken")
        w = self.write.payload
        m.d.comb += [
            targets.r_en.eq(~busy | moved & final), self.write.valid.eq(busy),
            w.none.eq(current.none), w.near.eq(current.near), w.row_last.eq(final), w.last.eq(final & current.last),
            w.word.eq(current.word), w.beats.eq(write_beats),
        ]
        with m.If(targets.r_en):
            m.d.sync += busy.eq(targets.r_rdy)
        with m.If(targets.r_en & targets.r_rdy):
            m.d.sync += current.eq(head)
        with m.Elif(moved):
            m.d.sync += [current.word.eq(current.word + write_beats), current.beats.eq(current.beats - write_beats)]
        return m
