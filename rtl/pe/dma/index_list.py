"""Index list of a gather or scatter: words of the local memory in, products index * pitch out.

Members
    `start`    In: take `at`, `count`, `pitch` (signed) of a new list; only while `idle`
    `idle`     Out: no list at work, and no word of one on its way
    `stop`     In: forget the rest of the list (words asked for still come, and are dropped)
    `request`  Out stream {word}: a read of the local memory; `word_in` In stream (word_layout): its answer, in order
    `waits`    In: an earlier row may still write the word `request` asks for
    `item`     Out stream {product, error, word}: one per index; `error`: the word `word` of the list could not be read

Rules
    1. The list's first two words are read before its first row, and each later word after the rows of the second word before it were handed on, and before
       those of the word before it. So what a descriptor writes into its own list has one meaning, whatever the timing.

Latency: 3 cycles and the read from `start` to `item`. Interval 1; between two words of the list 4 cycles pass without an item (16 rows of two words or more hide them).

Assumptions
    A1. `at` is a multiple of 4, `count` is not 0, the list lies in the local memory; guarded by the front end.
    A2. `word_in` is asked for only when there is room: at most two words are on their way or held (queue of two).
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import word_layout

PER_WORD = 16


class DmaIndexList(Block):
    """See the module's contract. Args: `word_bits` of a word address of the local memory."""

    def __init__(self, word_bits: int):
        self.bits = word_bits
        super().__init__({
            "start": In(1), "at": In(32), "count": In(16), "pitch": In(32), "stop": In(1), "idle": Out(1), "waits": In(1),
            "request": Out(stream.Signature(data.StructLayout({"word": word_bits}))), "word_in": In(stream.Signature(word_layout())),
            "item": Out(stream.Signature(data.StructLayout({"product": 64, "error": 1, "word": word_bits}))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = words = SyncFIFO(width=word_layout().size, depth=2)
        active, full = Signal(), Signal(name="item_valid")
        pitch = Signal(signed(32), reset_less=True)
        to_ask, asked = Signal(13), Signal(2)  # words not asked for; asked for and not used up
        ask, here = Signal(self.bits, name="ask_word"), Signal(self.bits, name="word_at_work")
        place, left = Signal(4), Signal(16)
        item = Signal(self.item.payload.shape(), name="held_item", reset_less=True)

        send = wire(m, self.request.valid & self.request.ready, "send")
        head = Signal(word_layout(), name="head")
        ahead = wire(m, (asked == 2) | (to_ask == 0), "ahead")
        take = wire(m, active & words.r_rdy & ahead & (~full | self.item.ready), "take")
        end = wire(m, left == 1, "end")
        pop = wire(m, words.r_rdy & Mux(active, take & (end | (place == PER_WORD - 1)), 1), "pop")  # with no list: a word nobody wants
        index = wire(m, head.data.word_select(place, 32), "index")
        m.d.comb += [
            self.request.valid.eq(active & (to_ask != 0) & (asked != 2) & ~full & ~self.waits), self.request.payload.word.eq(ask),
            head.eq(words.r_data), words.r_en.eq(pop), words.w_data.eq(self.word_in.payload), words.w_en.eq(self.word_in.valid),
            self.word_in.ready.eq(words.w_rdy),
            self.idle.eq(~active & (asked == 0) & ~full), self.item.valid.eq(full), self.item.payload.eq(item),
        ]
        m.d.sync += asked.eq(asked + send - pop)
        with m.If(self.start):
            m.d.sync += [
                active.eq(1), pitch.eq(self.pitch), ask.eq(self.at[6:]), here.eq(self.at[6:]), place.eq(self.at[2:6]), left.eq(self.count),
                to_ask.eq(((self.at[2:6] + self.count - 1) >> 4) + 1),
            ]
        with m.Elif(self.stop):
            m.d.sync += active.eq(0)
        with m.Elif(take):
            m.d.sync += [place.eq(place + 1), left.eq(left - 1), here.eq(here + pop)]
            with m.If(end):
                m.d.sync += active.eq(0)
        with m.If(send):
            m.d.sync += [ask.eq(ask + 1), to_ask.eq(to_ask - 1)]
        with m.If(~full | self.item.ready):
            m.d.sync += full.eq(take & ~self.stop)
        with m.If(take):
            m.d.sync += [item.product.eq((index * pitch)[:64]), item.error.eq(head.error), item.word.eq(here)]
        return m
