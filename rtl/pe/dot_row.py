"""One row of the dot-product engine: a held operand, dotted with every streamed one; five pipeline stages.

| stage | work |
|---|---|
| 1 | exponent of each word's largest product, by group of slots; what Inf and NaN make of the row |
| 2 | exponent E of the largest product of all; the products |
| 3 | products into the window of least bit 2^(E - 48), magnitudes cut toward zero; sums of eight slots or more |
| 4 | the exact sum; sign and magnitude |
| 5 | to nearest even, into binary32; or int32 |

Exponents of products are biased so that 0 stands for no product: 4 * 127 with the two scales. Sums are modulo 2^64, which no sum of 128
products of at most 50 bits exceeds.

Members
    `load`      In(1): `held` becomes the operand that waits; `held` In OPERAND
    `take`      In(1): the waiting operand, or `held` if `load` comes with it, becomes the held one; zero if not `present` (In 1)
    `swap`      In(1): with `enable[0]`: stage 2 goes on with the newly held operand
    `row`       In OPERAND at stage 1, `row_late` In OPERAND at stage 2: the same a cycle later
    `enable`    In(5): a row enters the registers of stage k + 1
    `group_b`, `group_c`  In(5): the row at stage k + 1 has such slots (8- or 4-bit formats; 4-bit)
    `bad`       In(1) at stage 1: the result is NaN
    `integer`   In(1) at stage 5
    `value`     Out(32)

Assumptions
    A1. `take` comes before the row it belongs to enters stage 1, `swap` with that row (rtl.pe.dot_product; tb/pe/test_dot_product.py: test_tiles).
"""
from __future__ import annotations

from functools import reduce
from operator import add

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.fp32_add import INF, QNAN
from rtl.numeric.pipeline import wire
from rtl.pe.dot_decode import GROUPS, OPERAND, WORDS
from spec.pe import WINDOW

STAGES = 5
EXP = 10  # bits of a product's exponent
SUM = 64
TOP = WINDOW + 9  # bits of the magnitude of a sum: 128 products below 2^(WINDOW + 2)
SUBNORMAL = 4 * 127 + WINDOW - (TOP - 1) - 126  # E with which the top bit of a sum weighs 2^-126, the least normal number
LEAF = 8  # slots summed in stage 3


def largest(m: Module, values: list[Value], name: str) -> Value:
    """Maximum of unsigned values, as a tree."""
    level = 0
    while len(values) > 1:
        values = [wire(m, Mux(a > b, a, b), f"{name}_{level}_{i}") for i, (a, b) in enumerate(zip(values[::2], values[1::2], strict=True))]
        level += 1
    return values[0]


class DotRow(Block):
    def __init__(self) -> None:
        super().__init__({
            "load": In(1), "held": In(OPERAND), "take": In(1), "present": In(1), "swap": In(1),
            "row": In(OPERAND), "row_late": In(OPERAND), "enable": In(STAGES), "group_b": In(STAGES), "group_c": In(STAGES),
            "bad": In(1), "integer": In(1), "value": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        waiting, held, late = (Signal(OPERAND, name=n, reset_less=True) for n in ("waiting", "held_now", "held_late"))
        with m.If(self.load):
            m.d.sync += waiting.eq(self.held)
        with m.If(self.take):
            m.d.sync += held.eq(Mux(self.present, Mux(self.load, self.held.as_value(), waiting.as_value()), 0))
        with m.If(self.enable[0] & self.swap):
            m.d.sync += late.eq(held)
        present = {"a": [Const(1, 1)] * STAGES, "b": list(self.group_b), "c": list(self.group_c)}

        # Stage 1.
        a, b = held, self.row
        peaks: dict[str, list[Signal]] = {}
        for g, (slots, _, exp_bits, bias) in GROUPS.items():
            peaks[g] = []
            for w in range(WORDS):
                sums = []
                for k in range(slots):
                    i = w * slots + k
                    both = a[f"live_{g}"][i] & b[f"live_{g}"][i]
                    exps = a[f"exp_{g}"].word_select(i, exp_bits) + b[f"exp_{g}"].word_select(i, exp_bits)
                    sums.append(wire(m, Mux(both, exps, 0), f"sum_{g}{i}"))
                peak = largest(m, sums, f"peak_{g}{w}")
                based = peak + 2 * (127 - bias) + a.base.word_select(w, 8) + b.base.word_select(w, 8)
                kept = Signal(EXP, name=f"peak_{g}{w}", reset_less=True)
                with m.If(self.enable[0] & present[g][0]):
                    m.d.sync += kept.eq(Mux(peak == 0, 0, based))
                peaks[g].append(kept)
        both_signs = [wire(m, Cat(x.neg_a, x.neg_b), f"signs_{i}") for i, x in enumerate((a, b))]
        infs = [wire(m, Cat(x.inf_a, x.inf_b), f"infs_{i}") for i, x in enumerate((a, b))]
        lives = [wire(m, Cat(x.live_a, x.live_b), f"lives_{i}") for i, x in enumerate((a, b))]
        zeros = [wire(m, ~(live | inf), f"zeros_{i}") for i, (live, inf) in enumerate(zip(lives, infs, strict=True))]
        infinite = wire(m, infs[0] & ~zeros[1] | infs[1] & ~zeros[0], "infinite")
        minus = wire(m, both_signs[0] ^ both_signs[1], "minus")
        special = [Signal(3, name=f"special_{k}", reset_less=True) for k in range(1, STAGES)]  # NaN, +Inf, -Inf
        with m.If(self.enable[0]):
            m.d.sync += special[0].eq(Cat(
                self.bad | a.nan | b.nan | (infs[0] & zeros[1] | infs[1] & zeros[0]).any(), (infinite & ~minus).any(), (infinite & minus).any()))

        # Stage 2.
        a, b = late, self.row_late
        top = Signal(EXP, reset_less=True)
        found = {g: largest(m, list(p), f"found_{g}") for g, p in peaks.items()}
        found = [wire(m, Mux(present[g][1], f, 0), f"best_{g}") for g, f in found.items()]
        with m.If(self.enable[1]):
            m.d.sync += [top.eq(largest(m, [found[0], wire(m, Mux(found[1] > found[2], found[1], found[2]), "best_bc")], "top")), special[1].eq(special[0])]
        products: dict[str, list[tuple[Signal, Signal, Signal]]] = {}
        for g, (slots, sig_bits, exp_bits, bias) in GROUPS.items():
            products[g] = []
            for w in range(WORDS):
                based = wire(m, a.base.word_select(w, 8) + b.base.word_select(w, 8) + 2 * (127 - bias), f"base_{g}{w}")
                for k in range(slots):
                    i = w * slots + k
                    product = Signal(2 * sig_bits, name=f"product_{g}{i}", reset_less=True)
                    exp = Signal(EXP, name=f"exp_{g}{i}", reset_less=True)
                    neg = Signal(name=f"neg_{g}{i}", reset_less=True)
                    with m.If(self.enable[1] & present[g][1]):
                        m.d.sync += [
                            product.eq(a[f"sig_{g}"].word_select(i, sig_bits) * b[f"sig_{g}"].word_select(i, sig_bits)),
                            exp.eq(a[f"exp_{g}"].word_select(i, exp_bits) + b[f"exp_{g}"].word_select(i, exp_bits) + based),
                            neg.eq(a[f"neg_{g}"][i] ^ b[f"neg_{g}"][i]),
                        ]
                    products[g].append((product, exp, neg))

        # Stage 3.
        parts: dict[str, list[Signal]] = {}
        top_late = Signal(EXP, reset_less=True)
        with m.If(self.enable[2]):
            m.d.sync += [top_late.eq(top), special[2].eq(special[1])]
        for g, (_, sig_bits, _, _) in GROUPS.items():
            parts[g] = []
            for at in range(0, len(products[g]), LEAF):
                terms = []
                for i in range(at, at + LEAF):
                    product, exp, neg = products[g][i]
                    away = wire(m, (top - exp)[:EXP], f"away_{g}{i}")
                    window = wire(m, Cat(Const(0, WINDOW - 2 * (sig_bits - 1)), product, Const(0, 14))[:SUM], f"window_{g}{i}")
                    placed = wire(m, Mux(away[6:].any(), 0, window >> away[:6])[:SUM], f"placed_{g}{i}")
                    terms.append(wire(m, Mux(neg, -placed, placed)[:SUM], f"term_{g}{i}"))
                part = Signal(SUM, name=f"part_{g}{at}", reset_less=True)
                with m.If(self.enable[2] & present[g][2]):
                    m.d.sync += part.eq(reduce(lambda x, y: (x + y)[:SUM], terms))
                parts[g].append(part)

        # Stage 4.
        sums = []
        for g, p in parts.items():
            all_of = wire(m, reduce(lambda x, y: (x + y)[:SUM], p), f"all_{g}")
            sums.append(wire(m, Mux(present[g][3], all_of, 0)[:SUM], f"sum_{g}"))
        total = wire(m, reduce(add, sums)[:SUM], "total")
        sign, magnitude, exponent = Signal(reset_less=True), Signal(TOP, reset_less=True), Signal(EXP, reset_less=True)
        with m.If(self.enable[3]):
            m.d.sync += [
                sign.eq(total[-1]), magnitude.eq(Mux(total[-1], -total, total)), exponent.eq(top_late), special[3].eq(special[2]),
            ]

        # Stage 5.
        value = Signal(32, reset_less=True)
        rounded = round_sum(m, sign, magnitude, exponent)
        whole = wire(m, magnitude[WINDOW - 14 :], "whole")
        nan, plus_inf, minus_inf = special[3]
        number = Mux(nan | plus_inf & minus_inf, QNAN, Mux(plus_inf | minus_inf, Cat(Const(INF, 31), minus_inf), rounded))
        with m.If(self.enable[4]):
            m.d.sync += value.eq(Mux(self.integer & ~nan, Mux(sign, -whole, whole), number))
        m.d.comb += self.value.eq(value)
        return m


def round_sum(m: Module, sign: Value, magnitude: Value, exponent: Value, name: str = "round") -> Value:
    """binary32 of ``±magnitude * 2^(exponent - 508 - WINDOW)``, TOP bits, to nearest even; 0 is +0."""
    room = wire(m, (exponent - SUBNORMAL).as_signed(), f"{name}_room")
    below = wire(m, room < 0, f"{name}_below")
    far = wire(m, (-room)[:EXP], f"{name}_far")
    distance = wire(m, Mux(far[6:].any(), 63, far[:6])[:6], f"{name}_distance")
    moved = wire(m, magnitude >> distance, f"{name}_moved")
    lost = wire(m, below & ((moved << distance) != magnitude), f"{name}_lost")
    x, left = magnitude, wire(m, Mux(below, 0, room)[:EXP], f"{name}_left")
    for k in (32, 16, 8, 4, 2, 1):
        go = wire(m, ~x[TOP - k :].any() & (left >= k), f"{name}_go{k}")
        x = wire(m, Mux(go, (x << k)[:TOP], x), f"{name}_x{k}")
        left = wire(m, Mux(go, left - k, left)[:EXP], f"{name}_left{k}")
    x = wire(m, Mux(below, moved, x), f"{name}_x")
    field = wire(m, Mux(x[TOP - 1], left + 1, 0)[:EXP], f"{name}_field")
    guard = TOP - 25
    up = x[guard] & (x[guard + 1] | x[:guard].any() | lost)
    packed = wire(m, Cat(x[guard + 1 : TOP - 1], field) + up, f"{name}_packed")
    return wire(m, Cat(Mux(packed >= INF, INF, packed)[:31], sign), f"{name}_out")
