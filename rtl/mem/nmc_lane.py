"""One arithmetic lane of near-memory compute: two elements in, one result out, every cycle.

Two kinds, so that 16 + 16 lanes serve every type at 64 bytes a cycle: a *full* lane works on a 32-bit word (binary32, int32, raw
copy) or on the 16-bit element in its low half; a *half* lane knows the 16-bit types only and takes the high halves.

Pipeline (registers at the end of each stage; a stage loads only when `enable` of that stage is 1, so an idle lane holds still):

| stage | work |
|---|---|
| 0 | widen a 16-bit element exactly to binary32 |
| 1 | order, align, add; or min/max, int32 sum, copy |
| 2 | normalise, round to binary32 |
| 3 | with `scale_en`: multiply significands |
| 4 | with `scale_en`: normalise, round to binary32 |
| 5 | round once to the 16-bit type, into `d` |

Latency 6 cycles, interval 1. `config[k]` and `enable[k]` belong to stage k; `scale` to stage 3.

Assumptions (guarded by the front end of :mod:`rtl.mem.nmc`, shown by its bench):
1. `rop` is a ReduceOp, `copy` comes with dtype INT32, and INT32 never with `scale_en`.
2. A half lane is never enabled for a 32-bit type.
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.convert import narrow_bfloat16, narrow_float16, widen_bfloat16, widen_float16
from rtl.numeric.fp32_add import SUM, align_add, normalise
from rtl.numeric.fp32_mul import PRODUCT, product, round_product
from rtl.numeric.minmax import minmax
from rtl.numeric.pipeline import wire
from spec.wqe import DType, ReduceOp

STAGES = 6
LANE_CONFIG = data.StructLayout({"copy": 1, "rop": 2, "dtype": 2, "scale_en": 1})


class NmcLane(Block):
    """See the module's contract.

    Args: `full`: 1 for a 32-bit lane, 0 for a 16-bit one.
    Members: `enable` In STAGES; `config` In STAGES x LANE_CONFIG; `scale` In 32; `a`, `b` In and `d` Out, 32 or 16 bits.
    """

    def __init__(self, full: int):
        self.full = bool(full)
        width = 32 if full else 16
        super().__init__({
            "enable": In(STAGES),
            "config": In(data.ArrayLayout(LANE_CONFIG, STAGES)),
            "scale": In(32),
            "a": In(width),
            "b": In(width),
            "d": Out(width),
        })

    def elaborate(self, platform):
        m = Module()
        c, full = self.config, self.full

        def widen(x, name):
            brain = widen_bfloat16(m, x, canonical=False, name=f"{name}_bf")
            half = widen_float16(m, x, canonical=False, name=f"{name}_h")
            narrow = Mux(c[0].dtype == DType.FLOAT16, half, brain)
            if not full:
                return narrow
            return Mux((c[0].dtype == DType.BFLOAT16) | (c[0].dtype == DType.FLOAT16), narrow, x)

        a = Signal(32, reset_less=True)
        b = Signal(32, reset_less=True)
        wide_a, wide_b = wire(m, widen(self.a, "wa"), "wide_a"), wire(m, widen(self.b, "wb"), "wide_b")
        with m.If(self.enable[0]):
            m.d.sync += [a.eq(wide_a), b.eq(wide_b)]

        # stage 1
        integer = wire(m, (c[1].dtype == DType.INT32) if full else (c[1].dtype == 4), "integer")
        adding = wire(m, ~c[1].copy & (c[1].rop == ReduceOp.SUM), "adding")
        swap = wire(m, a[:31] < b[:31], "swap")
        other_value = minmax(m, a, b, maximum=c[1].rop == ReduceOp.MAX, integer=integer, swap=swap)
        if full:
            other_value = wire(m, Mux(c[1].copy, a, Mux(adding, (a + b)[:32], other_value)), "other_value")
        total = Signal(SUM, reset_less=True)
        other = Signal(32, reset_less=True)
        other_used = Signal(reset_less=True)
        fields = align_add(m, a, b, swap)
        with m.If(self.enable[1]):
            m.d.sync += other_used.eq(~adding | integer)
            with m.If(adding & ~integer):
                m.d.sync += [total[key].eq(value) for key, value in fields.items()]
            with m.Else():
                m.d.sync += other.eq(other_value)

        # stage 2
        reduced = Signal(32, reset_less=True)
        rounded_sum = normalise(m, total)
        with m.If(self.enable[2]):
            m.d.sync += reduced.eq(Mux(other_used, other, rounded_sum))

        # stages 3 and 4
        plain = Signal(32, reset_less=True)
        times = Signal(PRODUCT, reset_less=True)
        result = Signal(32, reset_less=True)
        fields = product(m, reduced, self.scale)
        with m.If(self.enable[3]):
            with m.If(c[3].scale_en):
                m.d.sync += [times[key].eq(value) for key, value in fields.items()]
            with m.Else():
                m.d.sync += plain.eq(reduced)
        rounded_product = round_product(m, times)
        with m.If(self.enable[4]):
            m.d.sync += result.eq(Mux(c[4].scale_en, rounded_product, plain))

        # stage 5
        d = Signal.like(self.d, reset_less=True)
        brain, half = narrow_bfloat16(m, result), narrow_float16(m, result)
        with m.If(self.enable[5]):
            with m.If(c[5].dtype == DType.BFLOAT16):
                m.d.sync += d.eq(brain)
            with m.Elif(c[5].dtype == DType.FLOAT16):
                m.d.sync += d.eq(half)
            if full:
                with m.Else():
                    m.d.sync += d.eq(result)
        m.d.comb += self.d.eq(d)
        return m
