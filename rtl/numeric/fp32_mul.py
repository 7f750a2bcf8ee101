"""binary32 multiplication (IEEE 754-2019): round to nearest, ties to even; subnormals full; canonical NaN 0x7FC00000.

Rules: rounded once from the exact product; overflow gives Inf; NaN in, or Inf * 0, gives the canonical NaN; the sign is the
exclusive or of the signs, also of zeros and infinities.

Two forms: :func:`product` and :func:`round_product` as combinational halves; :class:`Fp32Mul` with streams `operands` {a, b} in,
`result` (32 bits) out. Latency 2 cycles, interval 1.

Assumptions:
1. The streams obey valid/ready; guarded by the stream checkers of the bench.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.fp32_add import INF, OPERANDS, QNAN
from rtl.numeric.pipeline import rigid, wire

#: `product` = exact product of the significands; `exp` = sum of the biased exponents (a subnormal counts as 1).
PRODUCT = data.StructLayout({"product": 48, "exp": 9, "sign": 1, "nan": 1, "inf": 1})


def product(m: Module, a: Value, b: Value, name: str = "mul") -> dict[str, Value]:
    """First half: classify and multiply. Fields of :data:`PRODUCT`."""
    an, bn = wire(m, a[23:31].any(), f"{name}_a_normal"), wire(m, b[23:31].any(), f"{name}_b_normal")
    a_inf, b_inf = wire(m, a[:31] == INF, f"{name}_a_inf"), wire(m, b[:31] == INF, f"{name}_b_inf")
    return {
        "product": Cat(a[:23], an) * Cat(b[:23], bn),
        "exp": Cat(a[23] | ~an, a[24:31]) + Cat(b[23] | ~bn, b[24:31]),
        "sign": a[31] ^ b[31],
        "nan": (a[:31] > INF) | (b[:31] > INF) | (a_inf & ~b[:31].any()) | (b_inf & ~a[:31].any()),
        "inf": a_inf | b_inf,
    }


def round_product(m: Module, p, name: str = "mulr") -> Value:
    """Second half: normalise, shift into the subnormal range where needed, round, pack.

    Up to 31 leading zeros are shifted out: enough for one subnormal operand; with two the result rounds to zero anyway.
    """
    x = p["product"]
    count = []
    for k in (16, 8, 4, 2, 1):
        go = wire(m, ~x[48 - k:].any(), f"{name}_go{k}")
        x = wire(m, Mux(go, (x << k)[:48], x), f"{name}_x{k}")
        count.insert(0, go)
    room = Signal(signed(11), name=f"{name}_room")  # result exponent - 1
    m.d.comb += room.eq(p["exp"] - 127 - Cat(*count))
    under = wire(m, room < 0, f"{name}_under")
    deficit = wire(m, (-room)[:10], f"{name}_deficit")
    shift = wire(m, Mux(under, Mux(deficit[5:].any(), Const(31, 5), deficit[:5]), 0)[:5], f"{name}_shift")
    wide = wire(m, Cat(x[:22].any(), x[22:]), f"{name}_wide")  # 24 significand bits, guard, round, sticky
    moved = wire(m, wide >> shift, f"{name}_moved")
    sticky = (moved << shift) != wide
    exponent = wire(m, Mux(under | ~x[47], 0, room + 1)[:9], f"{name}_exponent")
    up = moved[2] & (moved[3] | moved[:2].any() | sticky)
    packed = wire(m, (Cat(moved[3:26], exponent[:8]) + up)[:31], f"{name}_packed")
    infinite = p["inf"] | (exponent >= 255)
    return wire(m, Mux(p["nan"], QNAN, Cat(Mux(infinite, INF, packed)[:31], p["sign"])), f"{name}_result")


class Fp32Mul(Block):
    """Pipelined binary32 multiplier; see the module's contract."""

    LATENCY = 2

    def __init__(self):
        super().__init__({"operands": In(stream.Signature(OPERANDS)), "result": Out(stream.Signature(32))})

    def elaborate(self, platform):
        m = Module()
        first, second = rigid(m, self.operands, self.result, self.LATENCY)
        held = Signal(PRODUCT, reset_less=True)
        fields = product(m, self.operands.payload.a, self.operands.payload.b)
        with m.If(first):
            m.d.sync += [held[key].eq(value) for key, value in fields.items()]
        out = Signal(32, reset_less=True)
        rounded = round_product(m, held)
        with m.If(second):
            m.d.sync += out.eq(rounded)
        m.d.comb += self.result.payload.eq(out)
        return m
