"""Elements of any format to binary32, for the special function unit: `lanes` elements of two operands a cycle.

Rules: docs/numbers.md. a: under MX scales (:mod:`rtl.numeric.mx_lane`), or converted; b: converted (:mod:`rtl.numeric.convert_any`, to nearest even).

Parameters: `lanes`.
Members
    `raw` In stream {a, b: lanes x 32, scale: lanes x 8, side}; `out` Out stream {a, b: lanes x 32, side}; `side` passes along
    `mx`, `element` In: a has scales, and the place of its format in `spec.mx.ELEMENTS`; `format_a`, `format_b` In(4), ConvertFormat

Latency 6 cycles, interval 1.

Assumptions
    A1. `mx`, `element` and formats change only while nothing is inside; given by the unit, which carries out one instruction at a time.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.numeric.convert_any import Converter
from rtl.numeric.mx_lane import DECODE_STAGES, MxDecodeLane
from rtl.numeric.pipeline import rigid, wire
from spec.convert import ConvertFormat


def side_layout(lanes: int) -> data.StructLayout:
    """What goes with a beat: see :mod:`rtl.pe.sfu`."""
    return data.StructLayout({"keep": lanes, "first": 1, "last": 1, "index": 32})


class SfuDecode(Block):
    """See the module's contract."""

    LATENCY = DECODE_STAGES + Converter.LATENCY

    def __init__(self, lanes: int):
        self.lanes = lanes
        words, side = data.ArrayLayout(32, lanes), side_layout(lanes)
        self.out_layout = data.StructLayout({"a": words, "b": words, "side": side})
        super().__init__({
            "raw": In(stream.Signature(data.StructLayout({"a": words, "b": words, "scale": data.ArrayLayout(8, lanes), "side": side}))),
            "out": Out(stream.Signature(self.out_layout)), "mx": In(1), "element": In(3), "format_a": In(4), "format_b": In(4),
        })

    def elaborate(self, platform):
        m = Module()
        lanes, raw = self.lanes, self.raw.payload
        between = stream.Signature(self.out_layout).create(path=("between",))
        scaling = rigid(m, self.raw, between, DECODE_STAGES)
        converting = rigid(m, between, self.out, Converter.LATENCY)

        held, scales = raw, Signal(data.ArrayLayout(8, lanes), reset_less=True)
        with m.If(scaling[0]):
            m.d.sync += scales.eq(raw.scale)
        for k, enable in enumerate(scaling):
            after = Signal(self.out_layout, name=f"held{k}", reset_less=True)
            with m.If(enable):
                m.d.sync += [after[name].eq(held[name]) for name in ("a", "b", "side")]
            held = after
        side = held.side
        for k, enable in enumerate(converting):
            after = Signal(side_layout(lanes), name=f"side{k}", reset_less=True)
            with m.If(enable):
                m.d.sync += after.eq(side)
            side = after
        m.d.comb += self.out.payload.side.eq(side)

        for i in range(lanes):
            m.submodules[f"mx{i}"] = shared(scaled := MxDecodeLane())
            m.d.comb += [
                scaled.enable.eq(Cat(*scaling) & self.mx.replicate(DECODE_STAGES)), scaled.code.eq(raw.a[i]), scaled.element.eq(self.element),
                scaled.scale.eq(scales[i]),
            ]
            bits_a = wire(m, Mux(self.mx, scaled.x, held.a[i]), f"bits_a{i}")
            sources = (("a", bits_a, Mux(self.mx, ConvertFormat.FLOAT32, self.format_a)), ("b", held.b[i], self.format_b))
            for which, bits, source in sources:  # all move as `side` does
                m.submodules[f"{which}{i}"] = shared(converter := Converter())
                operands = converter.operands.payload
                m.d.comb += [
                    converter.operands.valid.eq(between.valid), converter.result.ready.eq(self.out.ready), operands.bits.eq(bits),
                    operands.source.eq(source), operands.target.eq(ConvertFormat.FLOAT32), operands.sat.eq(0), operands.stochastic.eq(0),
                    self.out.payload[which][i].eq(converter.result.payload.bits),
                ]
        return m
