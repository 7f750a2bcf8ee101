"""bfloat16 and float16 <-> binary32: exact widening, narrowing with one rounding (to nearest, ties to even).

Rules: subnormals are full in and out; a NaN becomes the canonical NaN of the target (0x7FC00000, 0x7FC0, 0x7E00); Inf stays Inf;
a value that rounds beyond the largest finite one becomes Inf; signs of zero are kept.

Two forms: the functions below, combinational; and :class:`Convert`, streams `operands` {op: 2 (:class:`ConvertOp`), bits: 32; a
16-bit input in the low half} in, `result` 32 out (a 16-bit result in the low half, the high half 0). Latency 1 cycle, interval 1.

Assumptions:
1. The streams obey valid/ready; guarded by the stream checkers of the bench.
"""
from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.fp32_add import INF, QNAN
from rtl.numeric.pipeline import rigid, wire


class ConvertOp(IntEnum):
    WIDEN_BFLOAT16 = 0
    WIDEN_FLOAT16 = 1
    NARROW_BFLOAT16 = 2
    NARROW_FLOAT16 = 3


def widen_bfloat16(m: Module, h: Value, *, canonical: bool = True, name: str = "wb") -> Value:
    """binary32 of a bfloat16. With `canonical` false a NaN keeps its payload (for use in front of arithmetic)."""
    bits = Cat(Const(0, 16), h[:16])
    return wire(m, Mux(h[:15] > 0x7F80, QNAN, bits), f"{name}_out") if canonical else bits


def widen_float16(m: Module, h: Value, *, canonical: bool = True, name: str = "wh") -> Value:
    """binary32 of a float16. With `canonical` false a NaN keeps its payload."""
    top = wire(m, h[10:15].all(), f"{name}_top")
    normal = wire(m, h[10:15].any(), f"{name}_normal")
    x, count = h[:10], []
    for k in (8, 4, 2, 1):  # leading one of a subnormal to bit 9, then above it
        go = wire(m, ~x[10 - k:].any(), f"{name}_go{k}")
        x = wire(m, Mux(go, (x << k)[:10], x), f"{name}_x{k}")
        count.insert(0, go)
    tiny = wire(m, Mux(x[9], Cat(Const(0, 14), x[:9], (112 - Cat(*count))[:8]), 0)[:31], f"{name}_tiny")
    exponent = Cat(h[10:15] + 112, Const(0, 8))[:8] | Mux(top, 0xFF, 0)
    finite = wire(m, Mux(normal, Cat(Const(0, 13), h[:10], exponent[:8]), tiny)[:31], f"{name}_mag")
    bits = Cat(finite, h[15])
    return wire(m, Mux(h[:15] > 0x7C00, QNAN, bits), f"{name}_out") if canonical else wire(m, bits, f"{name}_out")


def narrow_bfloat16(m: Module, f: Value, name: str = "nb") -> Value:
    """bfloat16 of a binary32, rounded once."""
    up = f[15] & (f[16] | f[:15].any())
    rounded = wire(m, (f[16:31] + up)[:15], f"{name}_rounded")
    return wire(m, Mux(f[:31] > INF, 0x7FC0, Cat(rounded, f[31])), f"{name}_out")


def narrow_float16(m: Module, f: Value, name: str = "nh") -> Value:
    """float16 of a binary32, rounded once."""
    exponent = f[23:31]
    small = wire(m, exponent < 113, f"{name}_small")  # below the smallest normal float16
    deficit = wire(m, (113 - exponent)[:8], f"{name}_deficit")
    shift = wire(m, Mux(small, Mux(deficit[4:].any(), Const(15, 4), deficit[:4]), 0)[:4], f"{name}_shift")
    # 11 result bits, guard, and everything below; a shift beyond 12 leaves less than half of the smallest subnormal
    wide = wire(m, Cat(Const(0, 12), f[:23], exponent.any()) >> shift, f"{name}_wide")
    up = wide[24] & (wide[25] | wide[:24].any())
    base = Mux(small, 0, exponent - 113)[:5]
    packed = wire(m, (Cat(Const(0, 10), base) + wide[25:36] + up)[:15], f"{name}_packed")
    finite = Mux(exponent > 142, 0x7C00, packed)[:15]
    return wire(m, Mux(f[:31] > INF, 0x7E00, Cat(finite, f[31])), f"{name}_out")


class Convert(Block):
    """All four conversions behind one stream; see the module's contract."""

    LATENCY = 1

    def __init__(self):
        super().__init__({
            "operands": In(stream.Signature(data.StructLayout({"bits": 32, "op": 2}))),
            "result": Out(stream.Signature(32)),
        })

    def elaborate(self, platform):
        m = Module()
        (enable,) = rigid(m, self.operands, self.result, self.LATENCY)
        bits = self.operands.payload.bits
        out = Signal(32, reset_less=True)
        choices = Array([widen_bfloat16(m, bits), widen_float16(m, bits), narrow_bfloat16(m, bits), narrow_float16(m, bits)])
        with m.If(enable):
            m.d.sync += out.eq(choices[self.operands.payload.op])
        m.d.comb += self.result.payload.eq(out)
        return m
