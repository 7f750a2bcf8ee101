"""Pairs of DOT and REDUCE instructions: the n-th of each are the halves of one product, and go to their units together.

Rules
    1. A half waits until the other is there. Then both are given out in one cycle, REDUCE with the sizes (`held`, `rows`, `chunks`) of DOT: those are the sums that come. Where
       its own differ, `odd` says so, and its unit takes the sums and drops them.
    2. A half is *alone* while the other is not there and its unit has answered everything given to it before. With `drop` a half that is alone ends in ALONE, and goes to no unit.

Members
    `start_dot`, `start_reduce`  In streams START; `done_dot`, `done_reduce` Out streams UNIT_DONE: of the command processor
    `dot`, `reduce`              Out streams START; `dot_done`, `reduce_done` In streams UNIT_DONE: of the units
    `odd`                        Out(1): beside `reduce`
    `alone_dot`, `alone_reduce`  Out(1); `drop` In(1)

Latency: none, logic only. Assumption
    A1. The units answer in order, once for each instruction (rtl.pe.dot_unit, rtl.pe.reduce_unit).
"""
from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import wire
from spec.isa import DOT_ARGS, REDUCE_ARGS, START, UNIT_DONE, UnitStatus

SHARED = ("held", "rows", "chunks")


class ProductPairs(Block):
    """See the module's contract. Args: `most` instructions that a unit has not answered yet."""

    def __init__(self, most: int):
        self.most = most
        start, done = stream.Signature(layout(START)), stream.Signature(layout(UNIT_DONE))
        super().__init__({
            "start_dot": In(start), "start_reduce": In(start), "done_dot": Out(done), "done_reduce": Out(done),
            "dot": Out(start), "reduce": Out(start), "dot_done": In(done), "reduce_done": In(done),
            "odd": Out(1), "alone_dot": Out(1), "alone_reduce": Out(1), "drop": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        both = wire(m, self.start_dot.valid & self.start_reduce.valid, "both")
        pair = wire(m, both & self.dot.ready & self.reduce.ready, "pair")
        dot_args, reduce_args = Signal(layout(DOT_ARGS)), Signal(layout(REDUCE_ARGS))
        m.d.comb += [
            dot_args.eq(self.start_dot.payload.args), reduce_args.eq(self.start_reduce.payload.args), *(reduce_args[name].eq(dot_args[name]) for name in SHARED),
            self.odd.eq(reduce(or_, (data.View(layout(REDUCE_ARGS), self.start_reduce.payload.args)[name] != dot_args[name] for name in SHARED))),
            self.dot.payload.eq(self.start_dot.payload), self.reduce.payload.eq(self.start_reduce.payload), self.reduce.payload.args.eq(reduce_args),
            self.dot.valid.eq(both & self.reduce.ready), self.reduce.valid.eq(both & self.dot.ready),
        ]
        for name, start, done, answer, other, alone in (
            ("dot", self.start_dot, self.done_dot, self.dot_done, self.start_reduce, self.alone_dot),
            ("reduce", self.start_reduce, self.done_reduce, self.reduce_done, self.start_dot, self.alone_reduce),
        ):
            open_ = Signal(range(self.most + 1), name=f"{name}_open")  # given to the unit and not answered
            answered = wire(m, answer.valid & answer.ready, f"{name}_answered")
            with m.If(pair != answered):
                m.d.sync += open_.eq(Mux(pair, open_ + 1, open_ - 1))
            dropped = wire(m, alone & self.drop, f"{name}_dropped")
            m.d.comb += [
                alone.eq(start.valid & ~other.valid & (open_ == 0)), start.ready.eq(pair | dropped & done.ready), answer.ready.eq(done.ready),
                done.valid.eq(answer.valid | dropped), done.payload.eq(answer.payload),
            ]
            with m.If(dropped):
                m.d.comb += [done.payload.status.eq(UnitStatus.ALONE), done.payload.info.eq(0)]
        return m
