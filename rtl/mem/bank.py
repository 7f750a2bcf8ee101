"""One bank of node memory: a row of `data_bytes` read and one written a cycle, byte strobes.

Parameters: `rows`, `data_bytes`. Members: `w_en` In(data_bytes), `w_row`, `w_data` In; `r_en`, `r_row` In, `r_data` Out.
The array is the memory `mem` of this module (`<path of Sram>.bank<b>.mem`), one row a word, byte i in bits 8i+7..8i: a simulation
top may load or dump it by that path. Contents are unknown until written.

Latency: `r_data` shows row `r_row` one cycle after `r_en`, and holds until the next `r_en`. A row read while it is written
gives the old contents.
"""
from __future__ import annotations

from amaranth.hdl import Module, unsigned
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.block import Block
from rtl.common.uninitialised import UninitialisedMemory


class SramBank(Block):
    def __init__(self, rows: int, data_bytes: int = 64):
        self.rows, self.data_bytes = rows, data_bytes
        super().__init__({
            "w_en": In(data_bytes), "w_row": In(ceil_log2(rows)), "w_data": In(8 * data_bytes),
            "r_en": In(1), "r_row": In(ceil_log2(rows)), "r_data": Out(8 * data_bytes),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.mem = mem = UninitialisedMemory(shape=unsigned(8 * self.data_bytes), depth=self.rows)
        w, r = mem.write_port(granularity=8), mem.read_port()
        m.d.comb += [
            w.en.eq(self.w_en), w.addr.eq(self.w_row), w.data.eq(self.w_data),
            r.en.eq(self.r_en), r.addr.eq(self.r_row), self.r_data.eq(r.data),
        ]
        return m
