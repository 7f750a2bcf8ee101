"""SECDED encoder and decoder of a 64-bit word; the code is `spec.ecc`. Combinational.

`SecdedEncode`: `bits` In 64, `check` Out 8.
`SecdedDecode`: `bits` In 64, `check` In 8; `fixed` Out 64, `single` Out 1 (one bit was wrong, of the data or of the check bits; `fixed` is right),
`double` Out 1 (beyond repair: `fixed` is `bits`).

Assumptions
    A1. No more than two bits are wrong; three or more may be taken for one (tests/golden/test_ecc.py says how often).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from spec.ecc import CHECK_BITS, COLUMNS, DATA_BITS, MASKS


class SecdedEncode(Block):
    def __init__(self) -> None:
        super().__init__({"bits": In(DATA_BITS), "check": Out(CHECK_BITS)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.check.eq(Cat((self.bits & mask).xor() for mask in MASKS))
        return m


class SecdedDecode(Block):
    def __init__(self) -> None:
        super().__init__({
            "bits": In(DATA_BITS), "check": In(CHECK_BITS), "fixed": Out(DATA_BITS), "single": Out(1), "double": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        syndrome = wire(m, self.check ^ Cat((self.bits & mask).xor() for mask in MASKS), "syndrome")
        flips = wire(m, Cat(syndrome == column for column in COLUMNS), "flips")
        of_check = wire(m, Cat(syndrome == 1 << i for i in range(CHECK_BITS)).any(), "of_check")
        one = wire(m, flips.any() | of_check, "one")
        m.d.comb += [self.fixed.eq(self.bits ^ flips), self.single.eq(one), self.double.eq(syndrome.any() & ~one)]
        return m
