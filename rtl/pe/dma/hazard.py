"""Interlock of the DMA engine: nothing is read where an earlier row is still being written.

Each descriptor with rows on their way has a slot: how many they are, to which memory, and an interval that holds all their bytes. When all `SLOTS` are in use the
next descriptor of the same memory shares the newest. An interval may hold bytes that no row writes, which costs time, never correctness.

Members
    `issue`, `first`                    In: a row is handed on; it is its descriptor's first
    `row_near`, `row_start`, `row_end`  In: its destination; `row_waits` Out: there is no slot for it yet
    `done`                              In: a row is written (its last response has come), in the order of the rows
    `src_near`, `src_start`, `src_end`  In: bytes about to be read; `src_waits` Out: not yet
    `list_start`                        In: a word of the local memory about to be read; `list_waits` Out: not yet

Outputs depend on registers and on the addresses asked for; once 0 they stay 0 until the next `issue`.

Assumptions
    A1. `start` < `end`, both inside the memory (the mid end has checked them).
    A2. No row is handed on while `row_waits`, and at most `rows` are on their way: the queues behind the mid end hold no more.
"""
from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import BYTES

SLOTS = 8  # a power of two


class DmaHazard(Block):
    """See the module's contract. Args: `addr_width`; `rows` that may be on their way."""

    def __init__(self, addr_width: int, rows: int):
        self.width, self.rows = addr_width, rows
        start, end = In(addr_width), In(addr_width + 1)
        super().__init__({
            "issue": In(1), "first": In(1), "row_near": In(1), "row_start": start, "row_end": end, "row_waits": Out(1), "done": In(1),
            "src_near": In(1), "src_start": start, "src_end": end, "src_waits": Out(1), "list_start": start, "list_waits": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        oldest, newest, used = Signal(range(SLOTS)), Signal(range(SLOTS), init=SLOTS - 1), Signal(range(SLOTS + 1))
        nears = Signal(SLOTS)
        counts = [Signal(range(self.rows + 1), name=f"count_{k}") for k in range(SLOTS)]
        none, full = wire(m, used == 0, "none"), wire(m, used == SLOTS, "full")
        other = wire(m, nears.bit_select(newest, 1) != self.row_near, "other")
        opens = wire(m, self.issue & (none | ~full & (self.first | other)), "opens")
        target = wire(m, (newest + opens)[:len(newest)], "target")
        last = wire(m, Array(counts)[oldest] == 1, "last")
        empties = wire(m, self.done & last & ~(self.issue & (target == oldest)), "empties")
        m.d.comb += self.row_waits.eq(full & other)
        with m.If(opens):
            m.d.sync += newest.eq(target)
        with m.If(empties):
            m.d.sync += oldest.eq(oldest + 1)
        with m.If(opens != empties):
            m.d.sync += used.eq(Mux(opens, used + 1, used - 1))

        source, words = [], []
        list_end = wire(m, self.list_start + BYTES, "list_end")
        for k, count in enumerate(counts):
            low, high = Signal(self.width, name=f"low_{k}"), Signal(self.width + 1, name=f"high_{k}")
            add, sub = wire(m, self.issue & (target == k), f"add_{k}"), wire(m, self.done & (oldest == k), f"sub_{k}")
            with m.If(add != sub):
                m.d.sync += count.eq(Mux(add, count + 1, count - 1))
            with m.If(add):
                m.d.sync += nears[k].eq(self.row_near)
                with m.If(opens | (self.row_start < low)):
                    m.d.sync += low.eq(self.row_start)
                with m.If(opens | (self.row_end > high)):
                    m.d.sync += high.eq(self.row_end)
            some = wire(m, count.any(), f"some_{k}")
            source.append(some & (nears[k] == self.src_near) & (self.src_start < high) & (self.src_end > low))
            words.append(some & nears[k] & (self.list_start < high) & (list_end > low))
        m.d.comb += [self.src_waits.eq(Cat(*source).any()), self.list_waits.eq(Cat(*words).any())]
        return m
