"""Elements of one operand row, as the rows of the dot-product engine take them: significand, exponent, sign, and what is not a number.

The 64 bytes are 16 words of 32 bits; a word has eight *slots*: its one tfloat32, two 16-bit, four 8-bit or eight 4-bit elements, in order.
Slots 0 and 1 (group A) hold every format, 2 and 3 (group B) 8 and 4 bits, 4 to 7 (group C) 4 bits. What a format does not use is zero.

:data:`OPERAND`, vectors over slots (A: 2 * word + slot; B: 2 * word + slot - 2; C: 4 * word + slot - 4):

| field | per slot | meaning |
|---|---|---|
| `sig_a`, `sig_b`, `sig_c` | 11, 8, 2 | significand, its unit bit on top; 0 for zero, Inf, NaN. int8: magnitude as a fraction of 128 |
| `exp_a`, `exp_b`, `exp_c` | 8, 5, 2 | exponent biased by 127, 15, 1; a subnormal counts as its format's smallest exponent |
| `neg`, `live` | 1 | sign; a number other than zero. A, then B, then C |
| `inf` | 1 | A, then B (4-bit elements have none) |
| `base` | 8 a word | code of the word's MX scale; 127 without |
| `nan` | 1 in all | some element is NaN, or some scale 0xFF |

Combinational. Bits of a container above its element are ignored. `scaled` chooses the scales (8- and 4-bit formats: a block is whole words).

Assumptions
    A1. `format` is a DotFormat (tb/pe/test_dot_product.py: test_pairs_that_do_not_fit gives every other code: the result is NaN).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.numeric.pipeline import wire
from spec.formats import Format
from spec.pe import CHUNK_BYTES, DotFormat, Mx

WORDS = CHUNK_BYTES // 4
GROUPS = {"a": (2, 11, 8, 127), "b": (2, 8, 5, 15), "c": (4, 2, 2, 1)}  # slots of a word, bits of sig, of exp, bias

_PER_WORD = {
    **{f"{what}_{g}": slots * (sig if what == "sig" else exp) for g, (slots, sig, exp, _) in GROUPS.items() for what in ("sig", "exp")},
    "neg_a": 2, "neg_b": 2, "neg_c": 4, "live_a": 2, "live_b": 2, "live_c": 4, "inf_a": 2, "inf_b": 2, "base": 8,
}
WORD = data.StructLayout({**_PER_WORD, "nan": 1})
OPERAND = data.StructLayout({**{name: WORDS * width for name, width in _PER_WORD.items()}, "nan": 1})


def slot_class(m: Module, fmt: Value, name: str) -> Value:
    """Bits of a slot, as a code: 0 32 bits, 1 16 bits, 2 8 bits, 3 4 bits."""
    return wire(m, Mux(fmt == DotFormat.TFLOAT32, 0, Mux((fmt == DotFormat.BFLOAT16) | (fmt == DotFormat.FLOAT16), 1,
                                                          Mux(fmt == DotFormat.FLOAT4_E2M1FN, 3, 2)))[:2], name)


def _element(m: Module, code: Value, f: Format, sig_bits: int, bias: int, name: str) -> dict[str, Value]:
    """One float element: fields of a slot whose exponents are biased by `bias`."""
    frac, field = code[: f.frac_bits], code[f.frac_bits : f.bits - 1]
    normal = wire(m, field.any(), f"{name}_normal")
    top = wire(m, field.all(), f"{name}_top")
    inf, nan = Const(0, 1), Const(0, 1)
    if f.nan == "ieee":
        inf, nan = top & ~frac.any(), top & frac.any()
    elif f.nan == "all_ones":
        nan = code[: f.bits - 1].all()
    number = wire(m, ~(inf | nan), f"{name}_number")
    sig = wire(m, Mux(number, Cat(Const(0, sig_bits - 1 - f.frac_bits), frac, normal), 0)[:sig_bits], f"{name}_sig")
    return {"sig": sig, "exp": Mux(normal, field, 1) + (bias - f.bias), "neg": code[f.bits - 1], "inf": inf, "nan": nan}


def _int8(m: Module, code: Value, sig_bits: int, bias: int, name: str) -> dict[str, Value]:
    magnitude = wire(m, Mux(code[7], -code, code)[:8], f"{name}_magnitude")
    return {"sig": Cat(Const(0, sig_bits - 8), magnitude), "exp": Const(bias, 8), "neg": code[7], "inf": Const(0, 1), "nan": Const(0, 1)}


class DotDecodeWord(Block):
    """One word. Members: `bits` In 32, `scale` In 8, `scaled` In 1, `format` In 4, `out` Out WORD."""

    def __init__(self) -> None:
        super().__init__({"bits": In(32), "scale": In(8), "scaled": In(1), "format": In(4), "out": Out(WORD)})

    def elaborate(self, platform):
        m = Module()
        out: dict[str, list[Value]] = {name: [] for name in ("sig", "exp", "neg", "live", "inf")}
        nans: list[Value] = []
        for g, (slots, sig_bits, exp_bits, bias) in GROUPS.items():
            fields: dict[str, list[Value]] = {name: [] for name in out}
            for k in range(slots):
                slot = k + {"a": 0, "b": 2, "c": 4}[g]
                chosen = {name: Const(0, 1) for name in ("sig", "exp", "neg", "inf", "nan")}
                for fmt in DotFormat:
                    if fmt.slot_bits * (slot + 1) > 32:
                        continue
                    name = f"{fmt.name.lower()}_{slot}"
                    code = self.bits[fmt.slot_bits * slot :][: fmt.slot_bits]
                    e = _int8(m, code, sig_bits, bias, name) if fmt is DotFormat.INT8 else _element(m, code, fmt.format, sig_bits, bias, name)
                    is_it = wire(m, self.format == fmt, f"{name}_chosen")
                    chosen = {n: wire(m, Mux(is_it, e[n], chosen[n]), f"{name}_{n}_upto") for n in chosen}
                nans.append(chosen["nan"])
                fields["sig"].append(Cat(chosen["sig"], Const(0, sig_bits))[:sig_bits])
                fields["exp"].append(Cat(chosen["exp"], Const(0, exp_bits))[:exp_bits])
                fields["neg"].append(chosen["neg"])
                fields["live"].append(chosen["sig"].any())
                fields["inf"].append(chosen["inf"])
            for name, values in fields.items():
                if (name, g) != ("inf", "c"):
                    m.d.comb += self.out[f"{name}_{g}"].eq(Cat(*values))
        m.d.comb += [
            self.out.base.eq(Mux(self.scaled, self.scale, 127)),
            self.out.nan.eq(Cat(*nans).any() | self.scaled & self.scale.all()),
        ]
        return m


class DotDecode(Block):
    """A row. Members: `data` In 512, `scale` In 64, `format` In 4, `mx` In 2; `out` Out OPERAND."""

    def __init__(self) -> None:
        super().__init__({"data": In(8 * CHUNK_BYTES), "scale": In(64), "format": In(4), "mx": In(2), "out": Out(OPERAND)})

    def elaborate(self, platform):
        m = Module()
        nans: list[Value] = []
        four = wire(m, self.format == DotFormat.FLOAT4_E2M1FN, "four")
        wide_block = wire(m, self.mx == Mx.BLOCK_32, "wide_block")
        for w in range(WORDS):
            word = DotDecodeWord()
            m.submodules[f"word{w}"] = shared(word)
            # A block of 16 is 2 words of 4-bit elements, 4 of 8-bit ones; a block of 32 twice that.
            few, some, many = (self.scale.word_select(w >> k, 8) for k in (1, 2, 3))
            m.d.comb += [
                word.bits.eq(self.data.word_select(w, 32)), word.format.eq(self.format), word.scaled.eq(self.mx != Mx.NONE),
                word.scale.eq(Mux(four, Mux(wide_block, some, few), Mux(wide_block, many, some))),
                *(self.out[name].word_select(w, width).eq(word.out[name]) for name, width in _PER_WORD.items()),
            ]
            nans.append(word.out.nan)
        m.d.comb += self.out.nan.eq(Cat(*nans).any())
        return m
