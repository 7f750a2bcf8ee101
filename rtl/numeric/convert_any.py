"""Conversion between any two formats of `spec.convert.ConvertFormat`: one element a cycle, one rounding, flags for what was lost.

Rules: docs/numbers.md, sections Conversion, Integers and Stochastic rounding. Widening is exact; every other conversion rounds once from the exact
value, to nearest even or, with `stochastic`, with the random bits of (`seed`, `index`); subnormals are full in and out; a NaN becomes the target's
canonical NaN, or the largest number, or (integers) 0, the last two with `nan_lost`; overflow to a float follows `sat`, to an integer it saturates.

Streams: `operands` In {bits: 32, seed: 32, index: 32, source: 4, target: 4, sat: 1, stochastic: 1}; the code in the low bits, the rest ignored.
`result` Out {bits: 32, flags: {nan_lost, overflow}}; unused high bits are 0 (integers: not sign-extended). Latency 4 cycles, interval 1:

| stage | work | random bits |
|---|---|---|
| 0 | unpack the source format: sign, significand, exponent, NaN, Inf | mix of the seed |
| 1 | leading one to the top | mix with the index |
| 2 | align to the target's last place | |
| 3 | round, add the exponent, range, sign, NaN, flags | |

Assumptions:
1. The streams obey valid/ready; guarded by the stream checkers of the bench.
2. `source` is a ConvertFormat, `target` one but FLOAT8_E8M0FNU. Other codes give a result without meaning, never a stall; shown by the bench
   (test_unknown_codes).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import rigid, wire
from rtl.numeric.round import FLAGS, key_of, pack, place, placed_layout, random_bits, select_target, target_of
from spec.convert import RANDOM_BITS, ConvertFormat
from spec.formats import Format, format_of

OPERANDS = data.StructLayout({"bits": 32, "seed": 32, "index": 32, "source": 4, "target": 4, "sat": 1, "stochastic": 1})
RESULT = data.StructLayout({"bits": 32, "flags": FLAGS})
SOURCES = [(c, format_of(c.name.lower())) for c in ConvertFormat]
TARGETS = [(c, f) for c, f in SOURCES if f.has_subnormals]
WIDTH = 32  # of a significand: int32 needs all of it


def exact_layout(width: int) -> data.StructLayout:
    """A number: ±sig * 2^(exp - width + 1), or NaN, or Inf."""
    return data.StructLayout({"sig": width, "exp": signed(10), "sign": 1, "nan": 1, "inf": 1})


def unpack(m: Module, code: Value, f: Format, width: int = WIDTH, name: str = "unpack") -> dict[str, Value]:
    """Fields of :func:`exact_layout` of a code of `f`; the leading one of a subnormal or an integer not yet at the top."""
    if not f.is_float:
        sign = code[f.bits - 1] if f.signed else Const(0, 1)
        magnitude = wire(m, Mux(sign, -code[: f.bits], code[: f.bits])[: f.bits], f"{name}_magnitude")
        sig = Cat(Const(0, width - f.bits), magnitude)
        return {"sig": sig, "exp": Const(f.bits - 1, signed(10)), "sign": sign, "nan": Const(0, 1), "inf": Const(0, 1)}
    field = code[f.frac_bits : f.frac_bits + f.exp_bits]
    frac = code[: f.frac_bits]
    magnitude = code[: f.bits - f.signed]
    normal = wire(m, field.any(), f"{name}_normal") if f.has_subnormals else Const(1, 1)
    exp = Signal(signed(10), name=f"{name}_exp")
    m.d.comb += exp.eq((Cat(field[0] | ~normal, field[1:]) if f.has_subnormals else field) - f.bias)
    nan: Value = Const(0, 1)
    if f.nan == "ieee":
        nan = magnitude > f.exp_mask << f.frac_bits
    elif f.nan == "all_ones":
        nan = magnitude.all()
    return {
        "sig": Cat(Const(0, width - 1 - f.frac_bits), frac, normal), "exp": exp, "sign": code[f.bits - 1] if f.signed else Const(0, 1),
        "nan": nan, "inf": Const(0, 1) if f.inf_code is None else magnitude == f.inf_code,
    }


def normalise(m: Module, sig: Value, exp: Value, name: str = "norm") -> tuple[Value, Value]:
    """(sig, exp) with the leading one at the top, if there is one."""
    width, count = len(sig), []
    for k in (16, 8, 4, 2, 1):
        if k < width:
            go = wire(m, ~sig[width - k:].any(), f"{name}_go{k}")
            sig = wire(m, Mux(go, (sig << k)[:width], sig), f"{name}_sig{k}")
            count.insert(0, go)
    out = Signal(signed(10), name=f"{name}_exp")
    m.d.comb += out.eq(exp - Cat(*count))
    return sig, out


class Converter(Block):
    """See the module's contract."""

    LATENCY = 4

    def __init__(self):
        super().__init__({"operands": In(stream.Signature(OPERANDS)), "result": Out(stream.Signature(RESULT))})

    def elaborate(self, platform):
        m = Module()
        enable = rigid(m, self.operands, self.result, self.LATENCY)
        request = self.operands.payload
        carried = data.StructLayout({"target": 4, "sat": 1, "stochastic": 1})
        config = [Signal(carried, name=f"config{k}", reset_less=True) for k in range(3)]

        # stage 0: the exact number, not normalised
        raw = Signal(exact_layout(WIDTH), reset_less=True)
        key, index = Signal(32, reset_less=True), Signal(32, reset_less=True)
        chosen: dict[str, Value] = {}
        for code, f in SOURCES:
            here = wire(m, request.source == code, f"from_{f.name}")
            for field, value in unpack(m, request.bits, f, name=f.name).items():
                gated = Mux(here, value.as_unsigned(), 0)
                chosen[field] = chosen[field] | gated if field in chosen else gated
        made = {field: wire(m, value, f"raw_{field}") for field, value in chosen.items()}
        seed_key = key_of(m, request.seed)
        with m.If(enable[0]):
            m.d.sync += [raw[field].eq(value) for field, value in made.items()]
            m.d.sync += [config[0][field].eq(request[field]) for field in ("target", "sat", "stochastic")]
            with m.If(request.stochastic):
                m.d.sync += [key.eq(seed_key), index.eq(request.index)]

        # stage 1: the leading one to the top
        number = Signal(exact_layout(WIDTH), reset_less=True)
        random = Signal(RANDOM_BITS, reset_less=True)
        sig, exp = normalise(m, raw.sig, raw.exp)
        drawn = random_bits(m, key, index)
        with m.If(enable[1]):
            m.d.sync += [number.sig.eq(sig), number.exp.eq(exp), number.sign.eq(raw.sign), number.nan.eq(raw.nan), number.inf.eq(raw.inf)]
            m.d.sync += config[1].eq(config[0])
            with m.If(config[0].stochastic):
                m.d.sync += random.eq(drawn)

        # stage 2: to the target's last place
        formats = [f for _, f in TARGETS]
        placed = Signal(placed_layout(WIDTH, RANDOM_BITS), reset_less=True)
        random2 = Signal(RANDOM_BITS, reset_less=True)
        kind = Signal(data.StructLayout({"sign": 1, "nan": 1, "inf": 1}), reset_less=True)
        to = select_target(m, [wire(m, config[1].target == code, f"place_{f.name}") for code, f in TARGETS], formats, "place_target")
        fields = place(m, number.sig, number.exp, to, RANDOM_BITS)
        with m.If(enable[2]):
            m.d.sync += [placed[field].eq(value) for field, value in fields.items()]
            m.d.sync += [kind.sign.eq(number.sign), kind.nan.eq(number.nan), kind.inf.eq(number.inf), config[2].eq(config[1])]
            with m.If(config[1].stochastic):
                m.d.sync += random2.eq(random)

        # stage 3: round and pack
        out = Signal(RESULT, reset_less=True)
        to = select_target(m, [wire(m, config[2].target == code, f"pack_{f.name}") for code, f in TARGETS], formats, "pack_target")
        bits, flags = pack(
            m, placed, to, sign=kind.sign, nan=kind.nan, inf=kind.inf, sat=config[2].sat, below=RANDOM_BITS,
            fractions=[int(target_of(f).frac) for f in formats], random=random2, stochastic=config[2].stochastic)
        with m.If(enable[3]):
            m.d.sync += [out.bits.eq(bits), out.flags.nan_lost.eq(flags["nan_lost"]), out.flags.overflow.eq(flags["overflow"])]
        m.d.comb += self.result.payload.eq(out)
        return m
