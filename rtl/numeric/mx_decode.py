"""MX decode: element codes and scales, 16 elements a beat, to binary32 numbers, at one beat a cycle.

Rules: docs/numbers.md, section MX. A number is element times scale: exact, or Inf from 2^128 on; scale 0xFF makes every number of the beat NaN.

Streams: `blocks` In {codes: 16 x 8, scale: 8, count: 5, last: 1, element: 3, wide: 1}, as `MxEncode` gives them: every beat with its block's
scale, codes in the low bits of their bytes (the rest is ignored; so is `wide`). `row` Out {x: 16 x 32, count: 5, last: 1}; lanes from `count` on
are +0. Latency 2 cycles, interval 1.

Assumptions:
1. The streams obey valid/ready; guarded by the stream checkers of the bench.
2. `element` is the place of a format in `spec.mx.ELEMENTS`; others give zeros or NaN, never a stall. Guarded by the requester; shown by the bench
   (test_unknown_elements).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.numeric.mx_encode import BLOCKS, LANES
from rtl.numeric.mx_lane import DECODE_STAGES, MxDecodeLane
from rtl.numeric.pipeline import rigid, wire

NUMBERS = data.StructLayout({"x": data.ArrayLayout(32, LANES), "count": 5, "last": 1})
_BEAT = data.StructLayout({"count": 5, "last": 1})


class MxDecode(Block):
    """See the module's contract."""

    LATENCY = DECODE_STAGES

    def __init__(self):
        super().__init__({"blocks": In(stream.Signature(BLOCKS)), "row": Out(stream.Signature(NUMBERS))})

    def elaborate(self, platform):
        m = Module()
        first, second = rigid(m, self.blocks, self.row, self.LATENCY)
        request = self.blocks.payload
        beat = [Signal(_BEAT, name=f"beat{k}", reset_less=True) for k in range(2)]
        scale = Signal(8, reset_less=True)
        with m.If(first):
            m.d.sync += [beat[0].count.eq(request.count), beat[0].last.eq(request.last), scale.eq(request.scale)]
        with m.If(second):
            m.d.sync += beat[1].eq(beat[0])
        for i in range(LANES):
            m.submodules[f"lane{i}"] = shared(lane := MxDecodeLane())
            present = wire(m, beat[1].count > i, f"present{i}")
            m.d.comb += [
                lane.enable.eq(Cat(first, second)), lane.code.eq(request.codes[i]), lane.element.eq(request.element), lane.scale.eq(scale),
                self.row.payload.x[i].eq(Mux(present, lane.x, 0)),
            ]
        m.d.comb += [self.row.payload.count.eq(beat[1].count), self.row.payload.last.eq(beat[1].last)]
        return m
