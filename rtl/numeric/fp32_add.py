"""binary32 addition (IEEE 754-2019): round to nearest, ties to even; subnormals full; canonical NaN 0x7FC00000.

Rules: the sum is rounded once from the exact value; overflow gives Inf; NaN in, or Inf - Inf, gives the canonical NaN;
an exact zero sum is +0, except -0 + -0 = -0.

Two forms:

* :func:`align_add` and :func:`normalise`: the two halves as combinational functions, for use between the registers of a pipeline
  (near-memory lanes do). ``normalise(m, align_add(m, a, b))`` is the whole adder.
* :class:`Fp32Add`: streams `operands` {a, b} in, `result` (32 bits) out. Latency 2 cycles, interval 1.

Members of Fp32Add: `operands` In stream {a: 32, b: 32}, `result` Out stream 32.

Assumptions:
1. The streams obey valid/ready (payload holds while valid and not ready); guarded by the stream checkers of the bench.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.common.block import Block
from rtl.numeric.pipeline import rigid, wire

QNAN = 0x7FC0_0000
INF = 0x7F80_0000
BELOW = 3  # guard, round and sticky

#: What passes from the first half to the second: 24 significand bits, a carry above and guard, round and sticky bits below;
#: the larger operand's exponent (a subnormal counts as 1); the result's sign; and what the result is if not a number or infinite.
SUM = data.StructLayout({"sum": 28, "exp": 8, "sign": 1, "nan": 1, "inf": 1})
OPERANDS = data.StructLayout({"a": 32, "b": 32})


def align_add(m: Module, a: Value, b: Value, swap: Value | None = None, name: str = "add", below: int = BELOW) -> dict[str, Value]:
    """First half: order by magnitude, align with sticky, add or subtract. Fields of :data:`SUM`.

    `swap`, if given, is ``a[:31] < b[:31]`` computed elsewhere. `below`: bits of the sum below the larger operand's significand, the last one sticky.
    """
    if swap is None:
        swap = wire(m, a[:31] < b[:31], f"{name}_swap")
    big = wire(m, Mux(swap, b, a), f"{name}_big")
    small = wire(m, Mux(swap, a, b), f"{name}_small")
    big_normal = wire(m, big[23:31].any(), f"{name}_big_normal")
    small_normal = wire(m, small[23:31].any(), f"{name}_small_normal")
    subtract = wire(m, big[31] ^ small[31], f"{name}_subtract")
    distance = wire(m, (Cat(big[23:31]) - small[23:31] - (big_normal & ~small_normal))[:8], f"{name}_distance")
    bits = bits_for(24 + below)
    shift = wire(m, Mux(distance[bits:].any(), Const((1 << bits) - 1, bits), distance[:bits]), f"{name}_shift")
    wide = wire(m, Cat(Const(0, below), small[:23], small_normal), f"{name}_wide")
    moved = wire(m, wide >> shift, f"{name}_moved")
    sticky = wire(m, (moved << shift) != wide, f"{name}_sticky")
    x = wire(m, Cat(Const(0, below), big[:23], big_normal), f"{name}_x")
    y = wire(m, moved | sticky, f"{name}_y")
    total = wire(m, Mux(subtract, x - y, x + y)[: 25 + below], f"{name}_total")
    return {
        "sum": total,
        "exp": Cat(big[23] | ~big_normal, big[24:31]),
        "sign": big[31] & ~(subtract & (total == 0)),
        "nan": (big[:31] > INF) | (subtract & (small[:31] == INF)),
        "inf": big[:31] == INF,
    }


def normalise(m: Module, s, name: str = "norm") -> Value:
    """Second half: shift the leading one to its place (no further than the smallest exponent allows), round, pack.

    `s` has the fields of :data:`SUM` (a dict or a view of the layout).
    """
    x, room = s["sum"], s["exp"]
    for k in (16, 8, 4, 2, 1):
        go = wire(m, ~x[28 - k:].any() & (room >= k), f"{name}_go{k}")
        x = wire(m, Mux(go, (x << k)[:28], x), f"{name}_x{k}")
        room = wire(m, Mux(go, room - k, room)[:8], f"{name}_room{k}")
    exponent = wire(m, Mux(x[27], room + 1, 0)[:8], f"{name}_exponent")
    up = x[3] & (x[4] | x[:3].any())
    packed = wire(m, (Cat(x[4:27], exponent) + up)[:31], f"{name}_packed")
    infinite = s["inf"] | (exponent == 255)
    return wire(m, Mux(s["nan"], QNAN, Cat(Mux(infinite, INF, packed)[:31], s["sign"])), f"{name}_result")


class Fp32Add(Block):
    """Pipelined binary32 adder; see the module's contract."""

    LATENCY = 2

    def __init__(self):
        super().__init__({"operands": In(stream.Signature(OPERANDS)), "result": Out(stream.Signature(32))})

    def elaborate(self, platform):
        m = Module()
        first, second = rigid(m, self.operands, self.result, self.LATENCY)
        held = Signal(SUM, reset_less=True)
        fields = align_add(m, self.operands.payload.a, self.operands.payload.b)
        with m.If(first):
            m.d.sync += [held[key].eq(value) for key, value in fields.items()]
        out = Signal(32, reset_less=True)
        total = normalise(m, held)
        with m.If(second):
            m.d.sync += out.eq(total)
        m.d.comb += self.result.payload.eq(out)
        return m
