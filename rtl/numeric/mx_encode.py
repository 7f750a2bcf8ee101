"""MX encode: rows of binary32 numbers, 16 a beat, to element codes and scales, at one beat a cycle.

Rules: docs/numbers.md, section MX. The scale of a block comes from its largest finite magnitude by `rule`; every element is its number over the
scale, rounded once to nearest even; overflow and Inf follow `sat`; a NaN becomes the element format's NaN, or, where that has none, makes the
scale 0xFF and the block's elements 0.

Streams: `row` In {x: 16 x 32, count: 5, last: 1, element: 3, rule: 2, wide: 1, sat: 1}: `count` numbers from lane 0 on (1 to 16; fewer than 16
only with `last`), `last` on the last beat of a row. `wide`: blocks of 32, two beats; without it blocks of 16. `blocks` Out {codes: 16 x 8,
scale: 8, count: 5, last: 1, element: 3, wide: 1}: one beat for each beat in, both beats of a block with its scale; lanes from `count` on are 0.
Codes of 6 and 4 bits are in the low bits of their byte.

| stage | work |
|---|---|
| F | largest finite magnitude and NaN of the beat; lanes: unpack, normalise |
| G | the same of the block: the first beat of a block of 32 waits here for the second, unless it is the row's last |
| S | scale |
| 3 | lanes: align |
| 4 | lanes: round |

Latency 5 cycles, interval 1; the first beat of a block of 32 takes as much longer as the second comes later than the next cycle.

Assumptions:
1. The streams obey valid/ready; guarded by the stream checkers of the bench.
2. `element`, `rule`, `wide` and `sat` are the same in all beats of a row, and known codes; each beat of a row but the last holds 16. Guarded by the
   requester; the bench's rows do.
3. Every row ends in `last`; until then the first beat of a block of 32 may wait for more. Guarded by the requester; shown by the bench
   (test_short_rows).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.numeric.fp32_add import INF
from rtl.numeric.mx_lane import FORMATS, MxEncodeLane
from rtl.numeric.pipeline import wire
from rtl.numeric.round import one_of
from spec.mx import SCALE_NAN, ScaleRule

LANES = 16
_SHAPE = {"count": 5, "last": 1, "element": 3, "wide": 1}
ROW = data.StructLayout({"x": data.ArrayLayout(32, LANES), "count": 5, "last": 1, "element": 3, "rule": 2, "wide": 1, "sat": 1})
BLOCKS = data.StructLayout({"codes": data.ArrayLayout(8, LANES), "scale": 8, **_SHAPE})
_BEAT = data.StructLayout({**_SHAPE, "rule": 2, "sat": 1})  # what travels with the numbers


def power_of(m: Module, amax: Value, rule: Value, name: str = "power") -> Value:
    """Biased exponent, plus 32, of the power of two that `rule` makes of a finite magnitude (31 bits; not 0)."""
    sig, count = wire(m, Cat(amax[:23], amax[23:31].any()), f"{name}_sig"), []
    for k in (16, 8, 4, 2, 1):
        go = wire(m, ~sig[24 - k:].any(), f"{name}_go{k}")
        sig = wire(m, Mux(go, (sig << k)[:24], sig), f"{name}_sig{k}")
        count.insert(0, go)
    exponent = wire(m, (Cat(amax[23] | ~amax[23:31].any(), amax[24:31]) + 32 - Cat(*count))[:9], f"{name}_exponent")
    nearest = sig[22] & (sig[:22].any() | exponent[0])
    up = wire(m, Mux(rule == ScaleRule.CEIL, sig[:23].any(), (rule == ScaleRule.RNE) & nearest), f"{name}_up")
    return wire(m, (exponent + up)[:9], name)


class MxEncode(Block):
    """See the module's contract."""

    LATENCY = 5

    def __init__(self):
        super().__init__({"row": In(stream.Signature(ROW)), "blocks": Out(stream.Signature(BLOCKS))})

    def elaborate(self, platform):
        m = Module()
        row, out = self.row.payload, self.blocks
        lanes = [MxEncodeLane() for _ in range(LANES)]
        for i, lane in enumerate(lanes):
            m.submodules[f"lane{i}"] = shared(lane)

        # Valid bits: F, G, then the rigid rest. G is held while it is the first half of a block and F is empty.
        f_valid, g_valid, valid = Signal(), Signal(), Signal(3)
        waits = Signal(reset_less=True)  # G: the first half of a block of 32
        move = wire(m, ~valid[2] | out.ready, "move")
        g_go = wire(m, move & (~waits | f_valid), "g_go")  # G's beat, if any, moves on
        f_go = wire(m, ~g_valid | g_go, "f_go")
        take = wire(m, ~f_valid | f_go, "take")
        m.d.comb += [self.row.ready.eq(take), out.valid.eq(valid[2])]
        load_f, load_g = wire(m, take & self.row.valid, "load_f"), wire(m, f_go & f_valid, "load_g")
        load_s = wire(m, g_go & g_valid, "load_s")
        enable = [load_s, wire(m, move & valid[0], "enable_place"), wire(m, move & valid[1], "enable_round")]
        with m.If(take):
            m.d.sync += f_valid.eq(self.row.valid)
        with m.If(f_go):
            m.d.sync += g_valid.eq(f_valid)
        with m.If(move):
            m.d.sync += valid.eq(Cat(load_s, valid[:2]))

        # F: amax and NaN of the beat
        present = [wire(m, row.count > i, f"present{i}") for i in range(LANES)]
        sizes: list[Value] = []
        nans: list[Value] = []
        for i in range(LANES):
            magnitude = row.x[i][:31]
            sizes.append(wire(m, Mux(present[i] & (magnitude < INF), magnitude, 0)[:31], f"size{i}"))
            nans.append(present[i] & (magnitude > INF))
        while len(sizes) > 1:
            n = len(sizes)
            sizes = [wire(m, Mux(a > b, a, b), f"size{n}_{k}") for k, (a, b) in enumerate(zip(sizes[::2], sizes[1::2], strict=True))]
        f_beat, f_amax, f_nan = Signal(_BEAT, reset_less=True), Signal(31, reset_less=True), Signal(reset_less=True)
        f_x = Signal(data.ArrayLayout(32, LANES), reset_less=True)
        gated = [wire(m, Mux(present[i], row.x[i], 0), f"gated{i}") for i in range(LANES)]
        any_nan = wire(m, Cat(*nans).any(), "any_nan")
        with m.If(load_f):
            m.d.sync += [f_beat[k].eq(row[k]) for k in _BEAT.members] + [f_amax.eq(sizes[0]), f_nan.eq(any_nan)]
            m.d.sync += [f_x[i].eq(x) for i, x in enumerate(gated)]

        # G: amax and NaN of the block
        second = wire(m, g_valid & waits, "second")  # F's beat is the second half of the block whose first is in G
        g_beat, g_amax, g_nan = Signal(_BEAT, reset_less=True), Signal(31, reset_less=True), Signal(reset_less=True)
        g_x = Signal(data.ArrayLayout(32, LANES), reset_less=True)
        both = wire(m, Mux(second & (g_amax > f_amax), g_amax, f_amax), "both")
        both_nan = wire(m, f_nan | (second & g_nan), "both_nan")
        with m.If(load_g):
            m.d.sync += [g_beat.eq(f_beat), g_x.eq(f_x), g_amax.eq(both), g_nan.eq(both_nan), waits.eq(f_beat.wide & ~f_beat.last & ~second)]

        # S: the scale, while the lanes unpack
        s_beat, s_scale, s_zero = Signal(_BEAT, reset_less=True), Signal(8, reset_less=True), Signal(reset_less=True)
        whole = wire(m, Mux(waits, both, g_amax), "whole")
        whole_nan = wire(m, Mux(waits, both_nan, g_nan), "whole_nan")
        is_element = [wire(m, g_beat.element == i, f"is_{f.name}") for i, f in enumerate(FORMATS)]
        largest = one_of(m, is_element, [f.max_exponent + 32 for f in FORMATS], "largest")
        nanless = one_of(m, is_element, [int(f.nan_code is None) for f in FORMATS], "nanless")
        power = power_of(m, whole, g_beat.rule)
        scale = wire(m, Mux((power > largest) & whole.any(), power - largest, 0)[:8], "scale")
        with m.If(load_s):
            m.d.sync += [s_beat.eq(g_beat), s_scale.eq(scale), s_zero.eq(whole_nan & nanless)]

        # 3 and 4: lanes align, round
        p_beat, p_scale, p_zero = Signal(_BEAT, reset_less=True), Signal(8, reset_less=True), Signal(reset_less=True)
        r_beat, r_scale = Signal(_BEAT, reset_less=True), Signal(8, reset_less=True)
        with m.If(enable[1]):
            m.d.sync += [p_beat.eq(s_beat), p_scale.eq(s_scale), p_zero.eq(s_zero)]
        with m.If(enable[2]):
            m.d.sync += [r_beat.eq(p_beat), r_scale.eq(Mux(p_zero, Const(SCALE_NAN, 8), p_scale))]
        for i, lane in enumerate(lanes):
            m.d.comb += [
                lane.enable.eq(Cat(*enable)), lane.x.eq(g_x[i]), lane.scale.eq(s_scale), lane.element.eq(s_beat.element),
                lane.config.element.eq(p_beat.element), lane.config.sat.eq(p_beat.sat), lane.config.zero.eq(p_zero),
                out.payload.codes[i].eq(lane.code),
            ]
        m.d.comb += [out.payload.scale.eq(r_scale)] + [out.payload[k].eq(r_beat[k]) for k in _SHAPE]
        return m
