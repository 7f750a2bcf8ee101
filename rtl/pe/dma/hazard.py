"""Interlock of the DMA engine: nothing is read where an earlier row is still being written.

Each descriptor with rows on their way has a slot of the memory it writes: how many rows they are, and an interval that holds all their bytes. When all `SLOTS` of
a memory are in use the next descriptor shares the newest. An interval may hold bytes that no row writes, which costs time, never correctness.

Members
    `issue`, `first`                    In: a row is handed on; it is its descriptor's first
    `row_near`, `row_start`, `row_end`  In: its destination
    `done_near`, `done_far`             In: a row is written (its last response has come), in the order of the rows of that memory
    `src_near`, `src_start`, `src_end`  In: bytes about to be read; `src_waits` Out: not yet
    `list_start`                        In: a word of the local memory about to be read; `list_waits` Out: not yet

Outputs depend on registers and on the addresses asked for; once 0 they stay 0 until the next `issue`.

Assumptions
    A1. `start` < `end`, both inside the memory (the mid end has checked them).
    A2. At most `rows` are on their way: the queues behind the mid end hold no more.
"""
from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import BYTES

SLOTS = 8  # of each memory; a power of two


class DmaHazard(Block):
    """See the module's contract. Args: `addr_width`; `rows` that may be on their way."""

    def __init__(self, addr_width: int, rows: int):
        self.width, self.rows = addr_width, rows
        start, end = In(addr_width), In(addr_width + 1)
        super().__init__({
            "issue": In(1), "first": In(1), "row_near": In(1), "row_start": start, "row_end": end, "done_near": In(1), "done_far": In(1),
            "src_near": In(1), "src_start": start, "src_end": end, "src_waits": Out(1), "list_start": start, "list_waits": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        far, _ = self.ring(m, "far", wire(m, self.issue & ~self.row_near, "issue_far"), self.done_far)
        near, words = self.ring(m, "near", wire(m, self.issue & self.row_near, "issue_near"), self.done_near)
        m.d.comb += [self.src_waits.eq(Mux(self.src_near, near, far)), self.list_waits.eq(words)]
        return m

    def ring(self, m: Module, name: str, issue, done):
        """Slots of one memory. Returns whether the source, and the list's word, touch one of them."""
        oldest, newest = Signal(range(SLOTS), name=f"{name}_oldest"), Signal(range(SLOTS), init=SLOTS - 1, name=f"{name}_newest")
        used = Signal(range(SLOTS + 1), name=f"{name}_used")
        counts = [Signal(range(self.rows + 1), name=f"{name}_count_{k}") for k in range(SLOTS)]
        opens = wire(m, issue & ((used == 0) | self.first & (used != SLOTS)), f"{name}_opens")
        target = wire(m, (newest + opens)[:len(newest)], f"{name}_target")
        last = wire(m, Array(counts)[oldest] == 1, f"{name}_last")
        empties = wire(m, done & last & ~(issue & (target == oldest)), f"{name}_empties")
        with m.If(opens):
            m.d.sync += newest.eq(target)
        with m.If(empties):
            m.d.sync += oldest.eq(oldest + 1)
        with m.If(opens != empties):
            m.d.sync += used.eq(Mux(opens, used + 1, used - 1))

        source, words = [], []
        list_end = wire(m, self.list_start + BYTES, f"{name}_list_end")
        for k, count in enumerate(counts):
            low, high = Signal(self.width, name=f"{name}_low_{k}"), Signal(self.width + 1, name=f"{name}_high_{k}")
            add, sub = wire(m, issue & (target == k), f"{name}_add_{k}"), wire(m, done & (oldest == k), f"{name}_sub_{k}")
            with m.If(add != sub):
                m.d.sync += count.eq(Mux(add, count + 1, count - 1))
            with m.If(add):
                with m.If(opens | (self.row_start < low)):
                    m.d.sync += low.eq(self.row_start)
                with m.If(opens | (self.row_end > high)):
                    m.d.sync += high.eq(self.row_end)
            some = wire(m, count.any(), f"{name}_some_{k}")
            source.append(some & (self.src_start < high) & (self.src_end > low))
            words.append(some & (self.list_start < high) & (list_end > low))
        return wire(m, Cat(*source).any(), f"{name}_waits"), wire(m, Cat(*words).any(), f"{name}_list_waits")
