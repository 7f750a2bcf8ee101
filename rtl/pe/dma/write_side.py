"""Write side of the DMA engine: bursts and words in, AXI4 writes and writes of the local memory out, and the end of every row and descriptor.

Members
    `burst`         In stream (write_layout); `beat` In stream (beat_layout): their words, in order
    `aw`, `w`, `b`  AXI4 write channels: INCR, id 0
    `request`       Out stream {word, data, strb}: a write of the local memory
    `stopped`       In stream {status, addr}: one per `none` burst
    `finished`      Out stream {status, addr}: one per descriptor, in order, when all its responses have come
    `done_near`, `done_far`  Out: the last burst of a row is written, in local memory or in memory

Rules
    1. A burst is opened when its first word is there, and for memory while fewer than `dma_depth` are in flight (address taken, no response yet).
    2. A write of the local memory is done when it is taken, one of memory when its response has come.
    3. `finished`: READ_ERROR with the first word that failed; else WRITE_ERROR with the first word of the first burst that failed; else what
       `stopped` says, or OK.

Latency: `beat` to `aw` 1 cycle, to `w` or to `request` 2 (so a memory that takes a word after its address only is not slowed); `b`, or a write taken, to `finished` 2. A slot is used again the cycle after the
response. Interval: a word a cycle, over bursts, rows and memories.

Assumptions
    A1. Memory answers every burst, in order (one id is used): AXI4.
    A2. `finished` is not held back: one per descriptor in flight (queue of as many).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import BYTES, beat_layout, outcome_layout, word_bits, write_layout
from spec.dma import DmaStatus
from spec.params import MemParams


def waiting(depth: int) -> int:
    """Bursts that may wait for their turn to end: all in flight to memory, and as many behind them."""
    return 2 * depth


class DmaWriteSide(Block):
    """See the module's contract. Args: `mem` sizes, `depth` bursts in flight, `near_bits` of a word address of the local memory."""

    def __init__(self, mem: MemParams, depth: int, near_bits: int):
        self.mem, self.depth = mem, depth
        axi = AXI4Signature.of(mem)
        super().__init__({
            "burst": In(stream.Signature(write_layout(mem))), "beat": In(stream.Signature(beat_layout(mem))),
            "aw": Out(stream.Signature(axi.addr_layout)), "w": Out(stream.Signature(axi.w_layout)), "b": In(stream.Signature(axi.b_layout)),
            "request": Out(stream.Signature(data.StructLayout({"word": near_bits, "data": 8 * BYTES, "strb": BYTES}))),
            "stopped": In(stream.Signature(outcome_layout())), "finished": Out(stream.Signature(outcome_layout())),
            "done_near": Out(1), "done_far": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        wb, entries = word_bits(self.mem), waiting(self.depth)
        note = data.StructLayout({"none": 1, "near": 1, "row_last": 1, "last": 1, "bad": 1, "word": wb})
        m.submodules.order = order = SyncFIFO(width=note.size, depth=entries)
        burst, beat = self.burst.payload, self.beat.payload

        # A word, or the end of a descriptor that stopped: first beside the address that it may open, then into the register of the write channel.
        packet = data.StructLayout({"note": note, "final": 1, "opens": 1, "word": wb})
        staged_full, full = Signal(), Signal()
        staged, held = (Signal(packet, name=k, reset_less=True) for k in ("staged", "held"))
        staged_values, values = (Signal(8 * BYTES, name=f"{k}_values", reset_less=True) for k in ("staged", "held"))
        staged_strb, strb = (Signal(BYTES, name=f"{k}_strb", reset_less=True) for k in ("staged", "held"))
        opening, opened_at, opened_len = Signal(name="opening"), Signal(wb, reset_less=True), Signal(8, reset_less=True)  # address not taken yet
        count, turns = Signal(6), Signal(range(entries + 1))  # words of the burst done; bursts and ends on their way to `order` and in it
        flying = Signal(range(self.depth + 1))
        first, final = wire(m, count == 0, "first"), wire(m, burst.none | (count == burst.beats - 1), "final")
        opens = wire(m, first & ~burst.none & ~burst.near, "opens")
        open_now = wire(m, self.aw.valid & self.aw.ready, "open_now")
        to_order = held.note
        gone = wire(m, full & Mux(to_order.none, 1, Mux(to_order.near, self.request.ready, self.w.ready)), "gone")
        advance = wire(m, staged_full & (~full | gone) & (~staged.opens | ~opening | self.aw.valid), "advance")
        put = wire(m, self.burst.valid & (burst.none | self.beat.valid) & (~staged_full | advance) & (~opens | ~opening | open_now)
                   & (~final | (turns != entries)), "put")
        new = Signal(packet, name="new_packet")
        m.d.comb += [
            self.beat.ready.eq(put & ~burst.none), self.burst.ready.eq(put & final),
            self.aw.valid.eq(opening & (flying != self.depth)),
            self.aw.payload.addr.eq(Cat(Const(0, 6), opened_at)), self.aw.payload.len.eq(opened_len), self.aw.payload.size.eq(6),
            self.aw.payload.burst.eq(Burst.INCR),
            self.w.valid.eq(full & ~to_order.none & ~to_order.near),
            self.w.payload.data.eq(values), self.w.payload.strb.eq(strb), self.w.payload.last.eq(held.final),
            self.request.valid.eq(full & ~to_order.none & to_order.near),
            self.request.payload.word.eq(held.word), self.request.payload.data.eq(values), self.request.payload.strb.eq(strb),
            new.final.eq(final), new.opens.eq(opens), new.word.eq(burst.word + count),
            new.note.none.eq(burst.none), new.note.near.eq(burst.near), new.note.row_last.eq(burst.row_last & ~burst.none), new.note.last.eq(burst.last),
            new.note.bad.eq(beat.bad & ~burst.none), new.note.word.eq(Mux(beat.bad, beat.bad_word, burst.word)),
        ]
        with m.If(put):
            m.d.sync += [staged_full.eq(1), staged.eq(new), count.eq(Mux(final, 0, count + 1))]
        with m.Elif(advance):
            m.d.sync += staged_full.eq(0)
        with m.If(put & ~burst.none):
            m.d.sync += [staged_values.eq(beat.data), staged_strb.eq(beat.strb)]
        with m.If(advance):
            m.d.sync += [full.eq(1), held.eq(staged), values.eq(staged_values), strb.eq(staged_strb)]
        with m.Elif(gone):
            m.d.sync += full.eq(0)
        with m.If(put & opens):
            m.d.sync += [opening.eq(1), opened_at.eq(burst.word), opened_len.eq(burst.beats - 1)]
        with m.Elif(open_now):
            m.d.sync += opening.eq(0)
        landed = wire(m, self.b.valid & self.b.ready, "landed")
        with m.If(open_now != landed):
            m.d.sync += flying.eq(Mux(open_now, flying + 1, flying - 1))

        # Ends, in order.
        head = Signal(note, name="head")
        pop = wire(m, order.r_rdy & (head.none | head.near | self.b.valid), "pop")
        m.d.comb += [
            order.w_en.eq(gone & held.final), order.w_data.eq(to_order), head.eq(order.r_data), order.r_en.eq(pop),
            self.b.ready.eq(order.r_rdy & ~head.none & ~head.near),
            self.done_near.eq(pop & head.row_last & head.near), self.done_far.eq(pop & head.row_last & ~head.near),
        ]
        with m.If((put & final) != pop):
            m.d.sync += turns.eq(Mux(pop, turns - 1, turns + 1))
        read_bad, write_bad = Signal(), Signal()
        read_word, write_word = Signal(wb, reset_less=True), Signal(wb, reset_less=True)
        refused = wire(m, ~head.none & ~head.near & self.b.payload.resp[1], "refused")
        worse = wire(m, read_bad | head.bad, "worse")
        status, addr = Signal(8), Signal(64)
        with m.If(worse):
            m.d.comb += [status.eq(DmaStatus.READ_ERROR), addr.eq(Cat(Const(0, 6), Mux(read_bad, read_word, head.word)))]
        with m.Elif(write_bad | refused):
            m.d.comb += [status.eq(DmaStatus.WRITE_ERROR), addr.eq(Cat(Const(0, 6), Mux(write_bad, write_word, head.word)))]
        with m.Elif(head.none):
            m.d.comb += [status.eq(self.stopped.payload.status), addr.eq(self.stopped.payload.addr)]
        ended = wire(m, pop & head.last, "ended")
        m.d.comb += self.stopped.ready.eq(ended & head.none)
        out, shown = Signal(outcome_layout(), name="out", reset_less=True), Signal(name="shown")
        m.d.comb += [self.finished.valid.eq(shown), self.finished.payload.eq(out)]
        m.d.sync += shown.eq(ended)
        with m.If(ended):
            m.d.sync += [out.status.eq(status), out.addr.eq(addr), read_bad.eq(0), write_bad.eq(0)]
        with m.Elif(pop):
            m.d.sync += [read_bad.eq(worse), write_bad.eq(write_bad | refused)]
        with m.If(pop & head.bad & ~read_bad):
            m.d.sync += read_word.eq(head.word)
        with m.If(pop & refused & ~write_bad):
            m.d.sync += write_word.eq(head.word)
        return m
