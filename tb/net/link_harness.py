"""A link with a clock: streams `entered` and `left` tell the cycle in which each beat was accepted and left."""
from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block
from rtl.common.layouts import packet_layout
from rtl.net.link import Link
from spec.params import LinkParams


class TimedLink(Block):
    """`entered`, `left` must always be ready."""

    def __init__(self, latency: int, rate: int, depth: int):
        self.link = LinkParams(latency=latency, rate=rate, depth=depth)
        beats, times = stream.Signature(packet_layout()), stream.Signature(32)
        super().__init__({"i": In(beats), "o": Out(beats), "entered": Out(times), "left": Out(times)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.link = link = Link(self.link)
        connect(m, flipped(self.i), link.i)
        connect(m, link.o, flipped(self.o))
        now = Signal(32)
        m.d.sync += now.eq(now + 1)
        m.d.comb += [
            self.entered.payload.eq(now), self.entered.valid.eq(link.i.valid & link.i.ready),
            self.left.payload.eq(now), self.left.valid.eq(link.o.valid & link.o.ready),
        ]
        return m
