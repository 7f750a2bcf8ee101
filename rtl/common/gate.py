"""Stall gate: holds a stream back at random cycles, to show that results do not depend on timing.

Contract
    Words pass unchanged and in order. In a cycle without `enable` the gate is transparent (no latency). With it, a new word is
    let through only in cycles in which a 16-bit pseudo-random number is at least `p`; a word once shown stays until taken,
    so `o` keeps the stream rules. `p` = 0 never stalls; 65535 almost always.

Parameters: `shape` of the payload, `seed` of the generator (gates with different seeds stall independently).
Members: `i` In, `o` Out streams; `p` In(16).

Assumptions
    A1. `p` changes only while no word waits at `o` (the rtl device sets it before the engines start).
"""
from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block


class StallGate(Block):
    def __init__(self, shape: Any, seed: int):
        self.shape, self.seed = shape, seed
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)), "p": In(16)})

    def elaborate(self, platform):
        m = Module()
        lfsr = Signal(32, init=(self.seed * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF | 1)
        shown, pass_ = Signal(), Signal()
        with m.If(self.p != 0):
            m.d.sync += lfsr.eq((lfsr >> 1) ^ (lfsr[0].replicate(32) & 0xA3000000))
        m.d.comb += [
            pass_.eq(shown | (lfsr[:16] >= self.p)),
            self.o.valid.eq(self.i.valid & pass_),
            self.o.payload.eq(self.i.payload),
            self.i.ready.eq(self.o.ready & pass_),
        ]
        m.d.sync += shown.eq(self.o.valid & ~self.o.ready)
        return m
