"""The message engine's AXI4 port: reads of the queues, writes of CQEs and SET words.

Rules
    1. Reads: one queue's wanted read a cycle, round robin, with the queue's number as id: the answers of one queue stay in order.
       `r` is always ready (a queue asks only for what it has room for).
    2. Writes are single beats with strobes, at an address that is a multiple of the data width. CQEs have id 0 and SET words
       id 1, each answered in order; the two take turns. `b` is always ready.
    3. At most SETS words are on the way; then `set` waits. CQEs are bounded by the CQE writer.

Parameters: `me`, `mem`. Members: axi; per queue read_want (bits), read_addr, read_len; read_take (bits), beat_* and `beat_data`
(one answer for all, `beat_queue` says whose); `cqe`, `set` streams and their answers `cqe_*`, `set_*`.
Latency: read_want to ar.valid 1 cycle; r to beat 0; cqe or set to aw.valid and w.valid 1; b to answer 0. Interval: 1.

Assumptions
    A1. Memory answers reads of one id, and writes of one id, in order (AXI4).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block
from rtl.nic.cqe_writer import place_layout
from rtl.nic.wqe_decode import turn
from spec.params import MemParams, MeParams
from spec.wqe import CQE

SETS = 16
WORDS = 4  # words whose address memory may have taken already
CQE_ID, SET_ID = 0, 1


def set_layout(me: MeParams, mem: MemParams) -> data.StructLayout:
    return data.StructLayout({"addr": mem.addr_width, "word": 32, "place": place_layout(me)})


class MeMemory(Block):
    """Raises ValueError when the queues do not fit in the port's ids."""

    def __init__(self, me: MeParams, mem: MemParams):
        if me.queues > 1 << mem.id_width:
            raise ValueError(
                f"MeParams.queues = {me.queues} needs as many read ids, MemParams.id_width = {mem.id_width} has "
                f"{1 << mem.id_width}"
            )
        self.me, self.mem = me, mem
        n, width = me.queues, mem.addr_width
        super().__init__({
            "axi": Out(AXI4Signature.of(mem)),
            "read_want": In(n), "read_take": Out(n),
            "read_addr": In(data.ArrayLayout(width, n)), "read_len": In(data.ArrayLayout(8, n)),
            "beat_valid": Out(1), "beat_queue": Out(range(n)), "beat_last": Out(1), "beat_error": Out(1),
            "beat_data": Out(8 * mem.data_bytes),
            "cqe": In(stream.Signature(data.StructLayout({"addr": width, "data": CQE.bits}))),
            "cqe_valid": Out(1), "cqe_error": Out(1),
            "set": In(stream.Signature(set_layout(me, mem))),
            "set_valid": Out(1), "set_error": Out(1), "set_place": Out(place_layout(me)),
        })

    def elaborate(self, platform):
        m = Module()
        axi, bytes_ = self.axi, self.mem.data_bytes
        size, low = exact_log2(bytes_), exact_log2(bytes_)

        # Reads.
        ar, free = axi.ar, Signal()
        m.d.comb += free.eq(~ar.valid | ar.ready)
        queue = turn(m, "read", self.read_want, advance=free & self.read_want.any())
        with m.If(free):
            m.d.sync += ar.valid.eq(self.read_want.any())
            with m.If(self.read_want.any()):
                m.d.comb += self.read_take.bit_select(queue, 1).eq(1)
                m.d.sync += [
                    ar.payload.addr.eq(self.read_addr[queue]), ar.payload.len.eq(self.read_len[queue]),
                    ar.payload.id.eq(queue), ar.payload.size.eq(size), ar.payload.burst.eq(Burst.INCR),
                ]
        r = axi.r
        m.d.comb += [
            r.ready.eq(1),
            self.beat_valid.eq(r.valid), self.beat_queue.eq(r.payload.id), self.beat_last.eq(r.payload.last),
            self.beat_error.eq(r.payload.resp[1]), self.beat_data.eq(r.payload.data),
        ]

        # Writes. Data waits in a fifo: memory may take an address before it takes the data, and the next address with them.
        m.submodules.sets = sets = SyncFIFO(width=len(self.set_place.as_value()), depth=SETS)
        word = data.StructLayout({"data": CQE.bits, "at": low, "is_set": 1})
        m.submodules.words = words = SyncFIFO(width=word.size, depth=WORDS)
        put, get = Signal(word), data.View(word, words.r_data)
        can, take, pick_set, last_set = Signal(), Signal(), Signal(), Signal()
        addr = Signal(self.mem.addr_width)
        m.d.comb += [
            can.eq((~axi.aw.valid | axi.aw.ready) & words.w_rdy),
            pick_set.eq(self.set.valid & sets.w_rdy & ~(self.cqe.valid & last_set)),
            take.eq(can & (pick_set | self.cqe.valid)),
            self.set.ready.eq(can & pick_set),
            self.cqe.ready.eq(can & ~pick_set),
            sets.w_en.eq(can & pick_set), sets.w_data.eq(self.set.payload.place),
            addr.eq(Mux(pick_set, self.set.payload.addr, self.cqe.payload.addr)),
            put.data.eq(Mux(pick_set, self.set.payload.word.replicate(CQE.bits // 32), self.cqe.payload.data)),
            put.at.eq(addr), put.is_set.eq(pick_set),
            words.w_data.eq(put), words.w_en.eq(take),
        ]
        with m.If(axi.aw.ready):
            m.d.sync += axi.aw.valid.eq(0)
        with m.If(take):
            m.d.sync += [
                last_set.eq(pick_set),
                axi.aw.valid.eq(1), axi.aw.payload.len.eq(0),
                axi.aw.payload.addr.eq(Cat(Const(0, low), addr[low:])),
                axi.aw.payload.size.eq(size), axi.aw.payload.burst.eq(Burst.INCR),
                axi.aw.payload.id.eq(Mux(pick_set, SET_ID, CQE_ID)),
            ]
        m.d.comb += [
            axi.w.valid.eq(words.r_rdy), words.r_en.eq(axi.w.ready),
            axi.w.payload.last.eq(1), axi.w.payload.data.eq(get.data.replicate(bytes_ // CQE.nbytes)),
        ]
        for i in range(bytes_ // 4):
            m.d.comb += axi.w.payload.strb[4 * i : 4 * i + 4].eq(
                Mux(get.is_set, get.at[2:] == i, get.at[5:] == i // (CQE.nbytes // 4)).replicate(4)
            )
        b, is_set = axi.b, Signal()
        m.d.comb += [
            b.ready.eq(1),
            is_set.eq(b.payload.id == SET_ID),
            self.cqe_valid.eq(b.valid & ~is_set), self.cqe_error.eq(b.payload.resp[1]),
            self.set_valid.eq(b.valid & is_set), self.set_error.eq(b.payload.resp[1]),
            sets.r_en.eq(self.set_valid), self.set_place.eq(sets.r_data),
        ]
        return m
