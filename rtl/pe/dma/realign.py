"""Byte realigner of the DMA engine: words as read in, words to be written with their strobes out.

Members
    `move`          In stream (move_layout): one per row, in order
    `far`, `near`   In streams (word_layout): words read from memory and from local memory
    `beat`          Out stream (beat_layout)

Rules
    1. Every word read is turned by the distance of source and destination in their words. A word written is the end of the turned word before and the start of
       this one, so it needs one word read a cycle and one register of carry.
    2. Strobes: only bytes of the row; from the first failed read of a descriptor on, none. Bytes read before it are written.
    3. Words of FILL are made here, from the first byte of the pattern at the row's start.

Latency: word to `beat` 2 cycles. Interval: a row takes as many cycles as it has words to read or to write, whichever is more, and the next follows at once, with
one exception: a row whose first word read completes no word to be written (`late`) takes one cycle more, unless the row before ends in a word that needs no read
(rows of one stride and alignment always do, or need no such word themselves).

Assumptions
    A1. As many words come as the moves say, each side in order; guarded by the read side (tb/pe/test_dma.py: test_jobs compares all of memory).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import BYTES, beat_layout, move_layout, word_bits, word_layout
from spec.params import MemParams

ALL = (1 << BYTES) - 1
ALL_BITS = (1 << 8 * BYTES) - 1


class DmaRealigner(Block):
    """See the module's contract."""

    def __init__(self, mem: MemParams):
        self.mem = mem
        super().__init__({
            "move": In(stream.Signature(move_layout(mem))),
            "far": In(stream.Signature(word_layout())), "near": In(stream.Signature(word_layout())),
            "beat": Out(stream.Signature(beat_layout(mem))),
        })

    def elaborate(self, platform):
        m = Module()
        move_on = Signal(name="move_on")
        step = data.StructLayout({"emit": 1, "flush": 1, "load": 1, "split": 6, "strb": BYTES, "bad": 1, "bad_word": word_bits(self.mem)})
        held, valid = Signal(step, name="held_step", reset_less=True), Signal(name="step_valid")
        turned = Signal(8 * BYTES, reset_less=True)

        # Row at work (`cur`), row behind it (`next_`). A step reads a word, writes one, or both; a flush only writes, and may read the first word of a late row.
        cur, active, begun = Signal(move_layout(self.mem), name="cur", reset_less=True), Signal(), Signal()
        wrote = Signal(name="wrote")  # the row's first word is written
        next_ = self.move.payload
        flush = wire(m, active & (cur.reads == 0), "flush")
        turn, near, fill = (wire(m, Mux(flush, next_[k], cur[k]), f"pick_{k}") for k in ("turn", "near", "fill"))
        pattern = cur.pattern
        have = wire(m, fill | Mux(near, self.near.valid, self.far.valid), "have")
        join = wire(m, flush & self.move.valid & next_.late & have, "join")
        go = wire(m, move_on & active & (flush | have), "go")
        load = wire(m, go & (~flush | join), "load")
        emit = wire(m, flush | ~cur.late | begun, "emit")
        final = wire(m, (cur.reads <= 1) & (cur.writes == emit), "final")
        fresh = wire(m, join | ~begun, "fresh")  # the word read is its row's first
        m.d.comb += [
            self.move.ready.eq(~active | go & final),
            self.near.ready.eq(load & ~fill & near), self.far.ready.eq(load & ~fill & ~near),
        ]
        with m.If(self.move.ready):
            m.d.sync += [active.eq(self.move.valid), begun.eq(go & join), wrote.eq(0)]
        with m.Elif(go):
            m.d.sync += [begun.eq(1), wrote.eq(wrote | emit)]
        with m.If(self.move.ready & self.move.valid):
            m.d.sync += [cur.eq(next_), cur.reads.eq(next_.reads - (go & join)), cur.word.eq(next_.word + (go & join))]
        with m.Elif(go):
            m.d.sync += [cur.reads.eq(cur.reads - ~flush), cur.writes.eq(cur.writes - emit), cur.word.eq(cur.word + 1)]

        # Errors of the descriptor: the one of the row written (`failed`), and from the word read on (`worse`).
        failed, fail_word = Signal(), Signal(word_bits(self.mem), reset_less=True)
        first = wire(m, fresh & Mux(join, next_.first, cur.first), "first")
        before = wire(m, failed & ~first, "before")
        error = wire(m, load & ~fill & Mux(near, self.near.payload.error, self.far.payload.error), "error")
        read_word = wire(m, Mux(join, next_.word, cur.word), "read_word")
        with m.If(load):
            m.d.sync += failed.eq(before | error)
        with m.If(error & ~before):
            m.d.sync += fail_word.eq(read_word)

        new = Signal(step, name="new_step")
        split = wire(m, (-cur.turn)[:6], "split")  # lanes below: of the word before
        low = wire(m, ~((ALL << split)[:BYTES]), "low_lanes")
        ends = wire(m, Mux((cur.writes == 1) & (cur.tail != 0), ~((ALL << cur.tail)[:BYTES]), ALL), "end_lanes")
        begins = wire(m, Mux(wrote, ALL, (ALL << cur.head)[:BYTES]), "begin_lanes")
        dead = wire(m, Mux(flush, failed, before), "dead")
        m.d.comb += [
            new.emit.eq(emit), new.flush.eq(flush), new.load.eq(load), new.split.eq(split),
            new.strb.eq(Mux(dead, 0, begins & ends & Mux(error & ~flush, low, ALL))),
            new.bad.eq(dead | error & ~flush), new.bad_word.eq(Mux(dead, fail_word, cur.word)),
        ]
        source = wire(m, Mux(fill, pattern.replicate(16), Mux(near, self.near.payload.data, self.far.payload.data)), "source")
        rotated = wire(m, (Cat(source, source) >> Cat(Const(0, 3), turn))[:8 * BYTES], "rotated")
        with m.If(move_on):
            m.d.sync += valid.eq(go)
        with m.If(go):
            m.d.sync += held.eq(new)
        with m.If(load):
            m.d.sync += turned.eq(rotated)

        # Merge with the word before.
        carry = Signal(8 * BYTES, reset_less=True)
        old = wire(m, Mux(held.flush, ALL_BITS, ~((ALL_BITS << Cat(Const(0, 3), held.split))[:8 * BYTES])), "old_bits")
        merged = wire(m, (carry & old) | (turned & ~old), "merged")
        out, shown = Signal(beat_layout(self.mem), name="out", reset_less=True), Signal(name="shown")
        room = wire(m, ~shown | self.beat.ready, "room")
        gives = wire(m, valid & held.emit & room, "gives")
        m.d.comb += [move_on.eq(~valid | room | ~held.emit), self.beat.valid.eq(shown), self.beat.payload.eq(out)]
        with m.If(valid & move_on & held.load):
            m.d.sync += carry.eq(turned)
        with m.If(room):
            m.d.sync += shown.eq(gives)
        with m.If(gives):
            m.d.sync += [out.data.eq(merged), out.strb.eq(held.strb), out.bad.eq(held.bad), out.bad_word.eq(held.bad_word)]
        return m
