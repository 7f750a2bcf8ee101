"""Skid buffer: cuts the ready path of a stream and keeps full rate.

Contract
    `i` In, `o` Out: streams of `shape`. Words leave in order, none lost or repeated. `i.ready` and `o.valid`/`o.payload` are
    registers or depend on registers alone. Latency 1 cycle, initiation interval 1, holds up to two words.
"""
from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Shape, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block


class SkidBuffer(Block):
    """Args: `shape` of the payload (an int, Shape or layout)."""

    def __init__(self, shape: Any):
        self.shape = shape
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self.shape).width
        full = Signal()
        held = Signal(width, reset_less=True)
        out = Signal(width, reset_less=True)
        m.d.comb += [self.i.ready.eq(~full), self.o.payload.eq(out)]
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [self.o.valid.eq(self.i.valid | full), full.eq(0)]
            with m.If(full):
                m.d.sync += out.eq(held)
            with m.Elif(self.i.valid):
                m.d.sync += out.eq(self.i.payload)
        with m.Elif(self.i.valid & ~full):
            m.d.sync += [full.eq(1), held.eq(self.i.payload)]
        return m
