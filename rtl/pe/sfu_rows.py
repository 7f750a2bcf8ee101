"""Row operations of the special function unit: exact sum, minimum and maximum of a row that comes `lanes` elements a cycle.

The sum is exact and rounded once, so neither the order of elements nor the number of lanes matters. A binary32 is sig * 2^(q - 149) with q below
254; sig shifted by q mod 32 fills two digits of 32 bits, which are added to accumulators q div 32 and the one above, DIGITS of them, with room for
ROW_ELEMENTS elements. No carry runs between accumulators until the row's last beat has been added; it then passes through in three stages.

Pipeline (the stages of :mod:`rtl.pe.sfu_lane`; registers at the end of each):

| stage | work |
|---|---|
| 1 | per lane: digits of an element and their place; for minimum and maximum a key that orders as numbers do |
| 2, 3 | over lanes, in groups of 8, then over groups: sum of each digit, largest key, flags |
| 4 | accumulate; beats that are not the last of a row end here |
| 5 to 7 | carries through digits 0-2, 3-5, 6-8 |
| 8 | two's complement of a negative sum |
| 9 | highest digit that is not 0, with the one below it; or the number of the key |
| 10, 11 | held, as the lanes' results pass |
| 12, 13 | normalise; round once to the result's format, into `d` |

Rules: a NaN, or infinities of both signs, give NaN; a zero sum is +0, but -0 where all elements are -0. minimum and maximum: NaN propagates, -0
below +0.

Assumptions:
1. The beats of a row are not mixed with those of another row operation (elementwise beats may stand between them); given by the requester.
2. A row has at most ROW_ELEMENTS elements; given by the requester.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.numeric.pipeline import wire
from rtl.pe.sfu_round import HOW, INNER, NORMAL, drawn, normalise, round_pack
from spec.sfu import DIGITS, ROW_ELEMENTS, SfuOp

DIGIT = 32
WIDE = DIGIT + 1 + (2 * ROW_ELEMENTS - 1).bit_length()  # an accumulator: sign, digit, room for two digits of every element
GROUP = 8
LOWEST = -(1 << 31)
MINUS_ZERO = 1 << 31

#: What becomes of an element: its two digits, signed; the place of the lower one; its key; flags.
ELEMENT = data.StructLayout({
    "low": signed(DIGIT + 1), "high": signed(25), "place": 3, "key": signed(32), "nan": 1, "plus": 1, "minus": 1, "other": 1,
})
FLAGS = ("nan", "plus", "minus", "other")  # any NaN, +Inf, -Inf, element other than -0


class SfuElement(Block):
    """Stage 1 of one lane. Members: `enable`, `keep` (0: the element counts for nothing), `minimum` In; `x` In 32; `element` Out ELEMENT."""

    def __init__(self):
        super().__init__({"enable": In(1), "keep": In(1), "minimum": In(1), "x": In(32), "element": Out(ELEMENT)})

    def elaborate(self, platform):
        m = Module()
        x = self.x
        field = x[23:31]
        top = wire(m, field.all(), "top")
        nan = wire(m, top & x[:23].any(), "nan_in")
        counts = wire(m, self.keep & ~top, "counts")
        q = wire(m, Mux(field.any(), field - 1, 0)[:8], "q")
        sig = wire(m, Mux(counts, Cat(x[:23], field.any()), 0)[:24], "sig")
        wide = wire(m, (sig << q[:5])[:2 * DIGIT - 8], "wide")
        key = wire(m, Cat(x[:31] ^ x[31].replicate(31), x[31]) ^ self.minimum.replicate(32), "key_in")
        out = Signal(ELEMENT, reset_less=True)
        with m.If(self.enable):
            m.d.sync += [
                out.low.eq(Mux(x[31], -wide[:DIGIT], wide[:DIGIT])), out.high.eq(Mux(x[31], -wide[DIGIT:], wide[DIGIT:])), out.place.eq(q[5:]),
                out.key.eq(Mux(self.keep, key, Const(LOWEST, 32)).as_signed()), out.nan.eq(self.keep & nan),
                out.plus.eq(self.keep & top & ~nan & ~x[31]), out.minus.eq(self.keep & top & ~nan & x[31]), out.other.eq(self.keep & (x != MINUS_ZERO)),
            ]
        m.d.comb += self.element.eq(out)
        return m


class SfuRows(Block):
    """See the module's contract.

    Args: `lanes`. Members: `enable` In 14: of row operations, by stage (from 5 on: of last beats); `op` In 14 x 5; `first` In, of stage 4; `keep` In
    lanes, of stage 1; `x` In lanes x 32, binary32 after stage 0; `how` In 2 x HOW, of stages 12 and 13; `key`, `index` In 32, of stage 12;
    `d` Out 32.
    """

    def __init__(self, lanes: int):
        self.lanes = lanes
        super().__init__({
            "enable": In(14), "op": In(data.ArrayLayout(5, 14)), "first": In(1), "keep": In(lanes), "x": In(data.ArrayLayout(32, lanes)),
            "how": In(data.ArrayLayout(HOW, 2)), "key": In(32), "index": In(32), "d": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        on = [wire(m, self.enable[k], f"on{k}") for k in range(14)]
        sums = [wire(m, on[k] & (self.op[k] == SfuOp.ROW_SUM), f"sums{k}") for k in range(14)]
        picks = [wire(m, on[k] & (self.op[k] != SfuOp.ROW_SUM), f"picks{k}") for k in range(14)]

        elements = []
        for i in range(self.lanes):
            element = SfuElement()
            m.submodules[f"element{i}"] = shared(element)
            m.d.comb += [
                element.enable.eq(on[1]), element.keep.eq(self.keep[i]), element.minimum.eq(self.op[1] == SfuOp.ROW_MIN), element.x.eq(self.x[i]),
            ]
            elements.append(element.element)
        groups = [elements[i:i + GROUP] for i in range(0, len(elements), GROUP)]

        # stages 2 and 3
        digits2, keys2, flags2 = [], [], []
        for g, members in enumerate(groups):
            for d in range(DIGITS):
                terms = []
                if d < DIGITS - 1:
                    terms += [Mux(e.place == d, e.low, 0) for e in members]
                if d:
                    terms += [Mux(e.place == d - 1, e.high, 0) for e in members]
                digits2.append(self._held(m, sums[2], self._tree(m, terms, lambda a, b: a + b, f"g{g}d{d}"), signed(WIDE), f"digit2_{g}_{d}"))
            keys2.append(self._held(m, picks[2], self._tree(m, [e.key for e in members], _larger, f"g{g}key"), signed(32), f"key2_{g}"))
            flags2.append(self._held(m, on[2], Cat(*(Cat(*(e[f] for e in members)).any() for f in FLAGS)), len(FLAGS), f"flags2_{g}"))
        digits3 = [
            self._held(m, sums[3], self._tree(m, digits2[d::DIGITS], lambda a, b: a + b, f"d{d}"), signed(WIDE), f"digit3_{d}") for d in range(DIGITS)
        ]
        key3 = self._held(m, picks[3], self._tree(m, keys2, _larger, "key"), signed(32), "key3")
        flags3 = self._held(m, on[3], Cat(*(Cat(*(f[k] for f in flags2)).any() for k in range(len(FLAGS)))), len(FLAGS), "flags3")

        # stage 4
        digits, key, flags = [], Signal(signed(32), name="key4", reset_less=True), Signal(len(FLAGS), name="flags4", reset_less=True)
        for d, new in enumerate(digits3):
            kept = Signal(signed(WIDE), name=f"digit4_{d}", reset_less=True)
            with m.If(sums[4]):
                m.d.sync += kept.eq(new + Mux(self.first, 0, kept))
            digits.append(kept)
        with m.If(picks[4]):
            m.d.sync += key.eq(Mux(self.first | (key3 > key), key3, key))
        with m.If(on[4]):
            m.d.sync += flags.eq(flags3 | Mux(self.first, 0, flags))

        digits = self._carries(m, sums, digits)
        mag, exp, negative, sticky = self._highest(m, sums, digits)
        key9 = self._number(m, picks, key)
        for k in range(5, 10):
            flags = self._held(m, on[k], flags, len(FLAGS), f"flags{k}")

        # stages 10 to 13
        inner = Signal(INNER, name="inner10", reset_less=True)
        nan, plus, minus, other = flags
        with m.If(on[10]):
            with m.If(self.op[10] == SfuOp.ROW_SUM):
                m.d.sync += [
                    inner.mag.eq(mag), inner.exp.eq(exp), inner.sticky.eq(sticky), inner.negative.eq(Mux(plus | minus, minus, negative | ~other)),
                    inner.inf.eq(plus | minus), inner.nan.eq(nan | (plus & minus)),
                ]
            with m.Else():
                normal = key9[23:31].any()
                m.d.sync += [
                    inner.mag.eq(Cat(key9[:23], normal)), inner.exp.eq(Cat(key9[23] | ~normal, key9[24:31]) - 150), inner.sticky.eq(0),
                    inner.negative.eq(key9[31]), inner.inf.eq(key9[23:31].all()), inner.nan.eq(nan),
                ]
        inner11, result = Signal(INNER, reset_less=True), Signal(NORMAL, reset_less=True)
        with m.If(on[11]):
            m.d.sync += inner11.eq(inner)
        fields = normalise(m, inner11)
        random = drawn(m, on[12], self.how[0], self.key, self.index)
        with m.If(on[12]):
            m.d.sync += [result[name].eq(value) for name, value in fields.items()]
        m.d.comb += self.d.eq(self._held(m, on[13], round_pack(m, result, self.how[1], random), 32, "result"))
        return m

    def _held(self, m: Module, enable: Signal, value: Value, shape, name: str) -> Signal:
        s = Signal(shape, name=name, reset_less=True)
        with m.If(enable):
            m.d.sync += s.eq(value)
        return s

    def _tree(self, m: Module, terms: list, combine, name: str) -> Value:
        level = 0
        while len(terms) > 1:
            pairs = [combine(terms[i], terms[i + 1]) for i in range(0, len(terms) - 1, 2)]
            terms = [wire(m, p, f"{name}_{level}_{i}") for i, p in enumerate(pairs)] + terms[len(terms) & ~1:]
            level += 1
        return terms[0]

    def _carries(self, m: Module, sums: list[Signal], digits: list[Signal]) -> list[Signal]:
        """Stages 5 to 7: every digit but the top one in 0 to 2^32 - 1."""
        carry: Value = Const(0, 1)
        for stage in (5, 6, 7):
            part = range(3 * (stage - 5), 3 * (stage - 4))
            after = list(digits)
            for d in part:
                total = Signal(signed(WIDE), name=f"total{d}")
                m.d.comb += total.eq(digits[d] + carry)
                after[d] = total if d == DIGITS - 1 else wire(m, total[:DIGIT], f"low{d}")
                carry = total[DIGIT:].as_signed()
            digits = [self._held(m, sums[stage], v, v.shape(), f"digit{stage}_{d}") for d, v in enumerate(after)]
            carry = self._held(m, sums[stage], carry, signed(WIDE - DIGIT), f"carry{stage}")
        return digits

    def _highest(self, m: Module, sums: list[Signal], digits: list[Signal]) -> tuple[Signal, Signal, Signal, Signal]:
        """Stages 8 and 9: magnitude; 64 bits of it from its highest digit that is not 0, their exponent, sign, and whether there is more below."""
        negative = digits[-1][-1]
        zero_below: Value = Const(1, 1)
        flipped = []
        for d, digit in enumerate(digits):
            width = len(digit)
            inverse = wire(m, (~digit.as_unsigned() + zero_below)[:width], f"inverse{d}")
            flipped.append(self._held(m, sums[8], Mux(negative, inverse, digit.as_unsigned())[:DIGIT], DIGIT, f"digit8_{d}"))
            zero_below = wire(m, zero_below & ~digit.any(), f"zero_to{d}")
        sign8 = self._held(m, sums[8], negative, 1, "sign8")
        live = [wire(m, v.any(), f"live{d}") for d, v in enumerate(flipped)]
        mag, exp, sticky = Signal(64, name="highest"), Signal(signed(10), name="highest_exp"), Signal(name="below")
        for d, digit in enumerate(flipped):  # a later match, a higher digit, stands
            with m.If(live[d]):
                m.d.comb += [mag.eq(Cat(flipped[d - 1] if d else Const(0, DIGIT), digit)), exp.eq(DIGIT * (d - 1) - 149)]
                m.d.comb += sticky.eq(Cat(Const(0, 1), *live[:max(0, d - 1)]).any())
        return tuple(self._held(m, sums[9], v, v.shape(), f"{v.name}9") for v in (mag, exp, sign8, sticky))

    def _number(self, m: Module, picks: list[Signal], key: Signal) -> Signal:
        """The binary32 of the key, after stage 9."""
        for k in range(5, 9):
            key = self._held(m, picks[k], key, signed(32), f"key{k}")
        turned = wire(m, key.as_unsigned() ^ (self.op[9] == SfuOp.ROW_MIN).replicate(32), "turned")
        return self._held(m, picks[9], Cat(turned[:31] ^ turned[31].replicate(31), turned[31]), 32, "key9")


def _larger(a: Value, b: Value) -> Value:
    return Mux(a > b, a, b)
