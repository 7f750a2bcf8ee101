"""minimum and maximum of binary32 and int32, and the wrapping int32 sum.

Rules: binary32 as IEEE 754-2019 minimum/maximum: a NaN on either side gives the canonical NaN 0x7FC00000, and -0 is below +0, in
either operand order. int32 is two's complement; its sum is taken modulo 2^32. A bfloat16 or float16 is compared after widening.

Two forms: :func:`minmax`, combinational; and :class:`MinMax`, streams `operands` {a: 32, b: 32, op: 3 (:class:`MinMaxOp`)} in,
`result` 32 out. Latency 1 cycle, interval 1.

Assumptions:
1. The streams obey valid/ready; guarded by the stream checkers of the bench.
2. `op` is a :class:`MinMaxOp`; other codes give the int32 sum. Guarded by the requester (near-memory compute refuses them).
"""
from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.fp32_add import INF, QNAN
from rtl.numeric.pipeline import rigid, wire


class MinMaxOp(IntEnum):
    FMIN = 0
    FMAX = 1
    IMIN = 2
    IMAX = 3
    IADD = 4


def minmax(m: Module, a: Value, b: Value, *, maximum: Value, integer: Value, swap: Value | None = None, name: str = "mm") -> Value:
    """min or (with `maximum`) max of a and b, as binary32 or (with `integer`) int32.

    `swap`, if given, is ``a[:31] < b[:31]`` computed elsewhere. With equal signs the low 31 bits order the values: upwards for
    positive numbers and for all two's complement ones, downwards for negative binary32.
    """
    if swap is None:
        swap = wire(m, a[:31] < b[:31], f"{name}_swap")
    a_less = wire(m, Mux(a[31] ^ b[31], a[31], swap ^ (a[31] & ~integer)), f"{name}_a_less")
    nan = ~integer & ((a[:31] > INF) | (b[:31] > INF))
    return wire(m, Mux(nan, QNAN, Mux(a_less ^ maximum, a, b)), f"{name}_out")


class MinMax(Block):
    """All comparisons behind one stream; see the module's contract."""

    LATENCY = 1

    def __init__(self):
        super().__init__({
            "operands": In(stream.Signature(data.StructLayout({"a": 32, "b": 32, "op": 3}))),
            "result": Out(stream.Signature(32)),
        })

    def elaborate(self, platform):
        m = Module()
        (enable,) = rigid(m, self.operands, self.result, self.LATENCY)
        p = self.operands.payload
        out = Signal(32, reset_less=True)
        chosen = minmax(m, p.a, p.b, maximum=p.op[0], integer=p.op[1])
        with m.If(enable):
            m.d.sync += out.eq(Mux(p.op[2], (p.a + p.b)[:32], chosen))
        m.d.comb += self.result.payload.eq(out)
        return m
