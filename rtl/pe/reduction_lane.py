"""One lane of the reduction engine: a + b in binary32 or int32, or b as it is; two stages, a result every cycle.

Members: `enable` In 2 (an operand enters the registers of stage k), `a`, `b` In 32, `keep` In 1 (the result is `b`, bit for bit),
`integer` In 1, `out` Out 32. Latency 2, interval 1.
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.fp32_add import SUM, align_add, normalise
from rtl.numeric.pipeline import wire


class ReductionLane(Block):
    def __init__(self) -> None:
        super().__init__({"enable": In(2), "a": In(32), "b": In(32), "keep": In(1), "integer": In(1), "out": Out(32)})

    def elaborate(self, platform):
        m = Module()
        total, other, other_used = Signal(SUM, reset_less=True), Signal(32, reset_less=True), Signal(reset_less=True)
        plain = wire(m, self.keep | self.integer, "plain")
        fields = align_add(m, self.a, self.b)
        with m.If(self.enable[0]):
            m.d.sync += other_used.eq(plain)
            with m.If(plain):
                m.d.sync += other.eq(Mux(self.keep, self.b, (self.a + self.b)[:32]))
            with m.Else():
                m.d.sync += [total[key].eq(value) for key, value in fields.items()]
        out = Signal(32, reset_less=True)
        rounded = normalise(m, total)
        with m.If(self.enable[1]):
            m.d.sync += out.eq(Mux(other_used, other, rounded))
        m.d.comb += self.out.eq(out)
        return m
