"""One bank of local memory: one access a cycle, a row of 64 bytes read, or written by byte strobes.

The array is the memory `mem` of this module (`<path of LocalMemory>.bank<b>.mem`), one row a word. Without ECC byte i stands in bits
8i+7..8i; with it word w, bytes 8w to 8w+7, in bits 72w+63..72w and its check bits (`spec.ecc`) in the eight above. Contents are unknown until
written.

Rules
    1. `en` with `write` 0: `r_data`, `error` and the counts show row `row` in the next cycle.
    2. `en` with `write`: the bytes of `strb` are written. With ECC a word is written whole, or, when only some of its bytes are (`partial`), read,
       corrected and written in the next cycle, in which the bank takes nothing else: `row`, `data`, `strb` and `flip` stay as they are.
    3. A damaged word (two bits wrong) of which a part is to be written stays as it is, so that its reads still tell.
    4. `corrected`, `damaged`: words of the row read in the cycle before, also for a partial write, with one bit and with two bits wrong.
    5. A read does not write the corrected word back.

Parameters: `rows`, `ecc`. Members: see below; `flip` (XORed into the code bits of the words that are written), `corrected` and `damaged` with ECC
only.

Assumptions
    A1. `partial` says whether `strb` has a word with some but not all bytes; 0 without ECC or for a read (rtl/pe/local_memory.py makes it from the
        same request).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.block import Block, shared
from rtl.common.secded import SecdedDecode, SecdedEncode
from rtl.common.uninitialised import UninitialisedMemory
from rtl.numeric.pipeline import wire
from rtl.pe.local_port import ROW_BYTES
from spec.ecc import CODE_BITS

WORDS = ROW_BYTES // 8
CODE_ROW = WORDS * CODE_BITS


class LocalBank(Block):
    def __init__(self, rows: int, ecc: bool):
        self.rows, self.ecc = rows, ecc
        super().__init__({
            "en": In(1), "write": In(1), "row": In(ceil_log2(rows)), "strb": In(ROW_BYTES), "data": In(8 * ROW_BYTES),
            "r_data": Out(8 * ROW_BYTES), "error": Out(1),
            **({"partial": In(1), "flip": In(CODE_ROW), "corrected": Out(4), "damaged": Out(4)} if ecc else {}),
        })

    def elaborate(self, platform):
        m = Module()
        width = CODE_ROW if self.ecc else 8 * ROW_BYTES
        m.submodules.mem = mem = UninitialisedMemory(shape=unsigned(width), depth=self.rows)
        w, r = mem.write_port(granularity=CODE_BITS if self.ecc else 8), mem.read_port()
        m.d.comb += [w.addr.eq(self.row), r.addr.eq(self.row)]
        if self.ecc:
            self._words(m, w, r)
        else:
            m.d.comb += [
                w.en.eq(Mux(self.en & self.write, self.strb, 0)), w.data.eq(self.data),
                r.en.eq(self.en & ~self.write), self.r_data.eq(r.data), self.error.eq(0),
            ]
        return m

    def _words(self, m, w, r):
        """The bank's words behind encoders and decoders."""
        late, shown = Signal(), Signal()  # the second cycle of a partial write; a row was read in the cycle before
        reads = wire(m, self.en & (~self.write | self.partial), "reads")
        writes = wire(m, self.en & self.write & ~self.partial | late, "writes")
        m.d.sync += [late.eq(self.en & self.partial), shown.eq(reads)]
        m.d.comb += r.en.eq(reads)
        singles, doubles, enables = [], [], []
        for k in range(WORDS):
            decode, encode = SecdedDecode(), SecdedEncode()
            m.submodules[f"decode{k}"], m.submodules[f"encode{k}"] = shared(decode), shared(encode)
            code = r.data.word_select(k, CODE_BITS)
            strb, given = self.strb.word_select(k, 8), self.data.word_select(k, 64)
            merged = Cat(Mux(strb[i] | ~late, given.word_select(i, 8), decode.fixed.word_select(i, 8)) for i in range(8))
            m.d.comb += [
                decode.bits.eq(code[:64]), decode.check.eq(code[64:]), self.r_data.word_select(k, 64).eq(decode.fixed),
                encode.bits.eq(merged),
                w.data.word_select(k, CODE_BITS).eq(Cat(encode.bits, encode.check) ^ self.flip.word_select(k, CODE_BITS)),
            ]
            enables.append(writes & strb.any() & ~(late & decode.double & ~strb.all()))
            singles.append(decode.single)
            doubles.append(decode.double)
        single, double = wire(m, Cat(*singles), "single"), wire(m, Cat(*doubles), "double")
        m.d.comb += [
            w.en.eq(Cat(*enables)), self.error.eq(double.any()),
            self.corrected.eq(Mux(shown, sum(single[k] for k in range(WORDS)), 0)),
            self.damaged.eq(Mux(shown, sum(double[k] for k in range(WORDS)), 0)),
        ]
