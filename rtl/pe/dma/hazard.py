"""Interlock of the DMA engine: nothing is read where an earlier row is still being written.

Per memory it keeps the number of rows on their way to it and an interval that holds all their bytes. The interval grows with every row, and starts anew
when none is on its way: it may hold bytes that no row writes, which costs time, never correctness.

Members
    `row_near`, `row_start`, `row_end`  In: the destination of a row handed on with `issue`
    `done_near`, `done_far`             In: a row is written (its last response has come)
    `src_near`, `src_start`, `src_end`  In: bytes about to be read; `src_waits` Out: not yet
    `list_start`                        In: a word of the local memory about to be read; `list_waits` Out

Outputs depend on registers and on the addresses asked for; once 0 they stay 0 until the next `issue`.

Assumptions
    A1. `start` < `end`, both inside the memory (the mid end has checked them).
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import BYTES


class DmaHazard(Block):
    """See the module's contract. Args: `addr_width`; `rows` that may be on their way."""

    def __init__(self, addr_width: int, rows: int):
        self.width, self.rows = addr_width, rows
        start, end = In(addr_width), In(addr_width + 1)
        super().__init__({
            "issue": In(1), "row_near": In(1), "row_start": start, "row_end": end, "done_near": In(1), "done_far": In(1),
            "src_near": In(1), "src_start": start, "src_end": end, "src_waits": Out(1), "list_start": start, "list_waits": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        waits = []
        for name, mine, done in (("far", ~self.row_near, self.done_far), ("near", self.row_near, self.done_near)):
            count, low, high = Signal(range(self.rows + 1), name=f"{name}_count"), Signal(self.width, name=f"{name}_low"), Signal(
                self.width + 1, name=f"{name}_high")
            some = wire(m, count.any(), f"{name}_some")
            add = wire(m, self.issue & mine, f"{name}_add")
            with m.If(add != done):
                m.d.sync += count.eq(Mux(add, count + 1, count - 1))
            with m.If(add):
                with m.If(~some | (self.row_start < low)):
                    m.d.sync += low.eq(self.row_start)
                with m.If(~some | (self.row_end > high)):
                    m.d.sync += high.eq(self.row_end)
            waits.append(wire(m, some & (self.src_start < high) & (self.src_end > low), f"{name}_waits"))
        m.d.comb += [
            self.src_waits.eq(Mux(self.src_near, waits[1], waits[0])),
            self.list_waits.eq(some & (self.list_start < high) & (self.list_start + BYTES > low)),  # of the local memory, the last above
        ]
        return m
