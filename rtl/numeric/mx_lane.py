"""One lane of MX encode and one of MX decode: a binary32 number to an element under a scale, and back.

The arithmetic of :mod:`rtl.numeric.mx_encode` and :mod:`rtl.numeric.mx_decode`. `enable[k]` loads the registers at the end of stage k, so an idle
lane holds still.

:class:`MxEncodeLane`, latency 3, interval 1. Stage 0: unpack, leading one to the top. Stage 1 (`scale`, `element`): subtract the scale from the
exponent, align to the element's last place. Stage 2 (`config`): round to nearest even, range, sign, NaN; `zero` makes the code 0.

:class:`MxDecodeLane`, latency 2, interval 1. Stage 0: unpack every element format, take one. Stage 1 (`scale`): leading one to the top, add the
scale, pack as binary32. No rounding is needed: an element has at most 4 significant bits, and the least bit of any element under any scale is
2^-143, above binary32's 2^-149; from 2^128 on it is Inf.

Assumptions:
1. `element` is the place of a format in `spec.mx.ELEMENTS`; guarded by the requester of the blocks around it. Other codes decode to 0 or NaN
   (test_unknown_elements of the decoder's bench).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.convert_any import exact_layout, normalise, unpack
from rtl.numeric.fp32_add import INF, QNAN
from rtl.numeric.pipeline import wire
from rtl.numeric.round import pack, place, placed_layout, select_target
from spec.formats import FLOAT32, format_of
from spec.mx import ELEMENTS, SCALE_NAN

FORMATS = [format_of(n) for n in ELEMENTS]
FLOAT_WIDTH = 24  # significand of binary32
ELEMENT_WIDTH = 1 + max(f.frac_bits for f in FORMATS)
ENCODE_STAGES, DECODE_STAGES = 3, 2
LANE_CONFIG = data.StructLayout({"element": 3, "sat": 1, "zero": 1})
_KIND = data.StructLayout({"sign": 1, "nan": 1, "inf": 1})


class MxEncodeLane(Block):
    """See the module's contract.

    Members: `enable` In 3; `x` In 32, a binary32 number; `scale` In 8, `element` In 3 for stage 1; `config` In LANE_CONFIG for stage 2; `code` Out 8.
    """

    def __init__(self):
        super().__init__({
            "enable": In(ENCODE_STAGES), "x": In(32), "scale": In(8), "element": In(3), "config": In(LANE_CONFIG), "code": Out(8),
        })

    def elaborate(self, platform):
        m = Module()
        # stage 0
        number = Signal(exact_layout(FLOAT_WIDTH), reset_less=True)
        raw = unpack(m, self.x, FLOAT32, FLOAT_WIDTH)
        sig, exp = normalise(m, wire(m, raw["sig"], "raw_sig"), raw["exp"])
        with m.If(self.enable[0]):
            m.d.sync += [number.sig.eq(sig), number.exp.eq(exp), number.sign.eq(raw["sign"]), number.nan.eq(raw["nan"]), number.inf.eq(raw["inf"])]

        # stage 1
        placed = Signal(placed_layout(FLOAT_WIDTH, 1), reset_less=True)
        kind = Signal(_KIND, reset_less=True)
        scaled = Signal(signed(11))
        m.d.comb += scaled.eq(number.exp - self.scale + 127)
        to = select_target(m, [wire(m, self.element == i, f"place_{f.name}") for i, f in enumerate(FORMATS)], FORMATS, "place_target")
        fields = place(m, number.sig, scaled, to, 1)
        with m.If(self.enable[1]):
            m.d.sync += [placed[field].eq(value) for field, value in fields.items()]
            m.d.sync += [kind.sign.eq(number.sign), kind.nan.eq(number.nan), kind.inf.eq(number.inf)]

        # stage 2
        code = Signal(8, reset_less=True)
        to = select_target(m, [wire(m, self.config.element == i, f"pack_{f.name}") for i, f in enumerate(FORMATS)], FORMATS, "pack_target")
        bits, _ = pack(
            m, placed, to, sign=kind.sign, nan=kind.nan, inf=kind.inf, sat=self.config.sat, below=1, fractions=[f.frac_bits for f in FORMATS])
        with m.If(self.enable[2]):
            m.d.sync += code.eq(Mux(self.config.zero, 0, bits[:8]))
        m.d.comb += self.code.eq(code)
        return m


class MxDecodeLane(Block):
    """See the module's contract.

    Members: `enable` In 2; `code` In 8; `element` In 3; `scale` In 8 for stage 1; `x` Out 32.
    """

    def __init__(self):
        super().__init__({"enable": In(DECODE_STAGES), "code": In(8), "element": In(3), "scale": In(8), "x": Out(32)})

    def elaborate(self, platform):
        m = Module()
        # stage 0
        number = Signal(exact_layout(ELEMENT_WIDTH), reset_less=True)
        chosen: dict[str, Value] = {}
        for i, f in enumerate(FORMATS):
            here = wire(m, self.element == i, f"is_{f.name}")
            for field, value in unpack(m, self.code, f, ELEMENT_WIDTH, f.name).items():
                gated = Mux(here, value.as_unsigned(), 0)
                chosen[field] = chosen[field] | gated if field in chosen else gated
        made = {field: wire(m, value, f"raw_{field}") for field, value in chosen.items()}
        with m.If(self.enable[0]):
            m.d.sync += [number[field].eq(value) for field, value in made.items()]

        # stage 1
        sig, exp = normalise(m, number.sig, number.exp)
        biased = Signal(signed(11))
        m.d.comb += biased.eq(exp + self.scale)  # 127 of the scale and of binary32 cancel
        tiny = wire(m, biased < 1, "tiny")
        shift = wire(m, Mux(tiny, 1 - biased, 0)[:5], "shift")
        frac = wire(m, Cat(Const(0, FLOAT_WIDTH - ELEMENT_WIDTH), sig) >> shift, "frac")
        magnitude = wire(m, Cat(frac[: FLOAT_WIDTH - 1], Mux(tiny | ~sig[-1], 0, biased[:8])), "magnitude")
        infinite = wire(m, number.inf | (sig[-1] & (biased > 254)), "infinite")
        nan = wire(m, number.nan | (self.scale == SCALE_NAN), "nan")
        x = Signal(32, reset_less=True)
        with m.If(self.enable[1]):
            m.d.sync += x.eq(Mux(nan, QNAN, Cat(Mux(infinite, INF, magnitude)[:31], number.sign)))
        m.d.comb += self.x.eq(x)
        return m
