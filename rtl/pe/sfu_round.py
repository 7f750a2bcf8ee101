"""The one rounding of the special function unit: from M * 2^E with M below 2^64 to any format, to nearest, ties to even, or with random bits.

Two combinational halves, for use between the registers of a pipeline: :func:`normalise` and :func:`round_pack`. Subnormal results are full; a
magnitude that rounds beyond the largest number follows `sat`; M = 0 is a zero of the given sign. Formats and rounding are those of :mod:`rtl.numeric.round`.

Assumptions:
1. The exponent of the leading one is within -1024 … 1023; guarded by the widths of the lane's exponents (its extremes are ±512 plus a binary32's).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from rtl.numeric.convert_any import TARGETS
from rtl.numeric.pipeline import wire
from rtl.numeric.round import pack, place, random_bits, select_target, target_of
from spec.convert import RANDOM_BITS

EXP = 12  # bits of an exponent, two's complement
HUGE = 129  # exponents from here on are beyond every format

#: What rounding is told, and with the random bits all it needs beside the number.
HOW = data.StructLayout({"format": 4, "sat": 1, "stochastic": 1})

#: Before normalisation: (-1)^negative * (mag + less than 1 where `sticky`) * 2^exp; `inf` and `nan` override.
INNER = data.StructLayout({"mag": 64, "exp": signed(EXP), "negative": 1, "sticky": 1, "inf": 1, "nan": 1})
#: After it: the leading one at bit 63 (or mag 0), `exp` its exponent.
NORMAL = INNER


def drawn(m: Module, enable: Value, how, key: Value, index: Value) -> Signal:
    """Random bits of a result, in a register that loads with that of :func:`normalise`."""
    random = Signal(RANDOM_BITS, name="random", reset_less=True)
    bits = random_bits(m, key, index)
    draws = wire(m, enable & how.stochastic, "draws")
    with m.If(draws):
        m.d.sync += random.eq(bits)
    return random


def normalise(m: Module, r, name: str = "norm") -> dict[str, Value]:
    """Shift the leading one to bit 63. Fields of :data:`NORMAL`."""
    x, count = r["mag"], []
    for k in (32, 16, 8, 4, 2, 1):
        go = wire(m, ~x[64 - k:].any(), f"{name}_go{k}")
        x = wire(m, Mux(go, (x << k)[:64], x), f"{name}_x{k}")
        count.insert(0, go)
    exp = Signal(signed(EXP), name=f"{name}_exp")
    m.d.comb += exp.eq(r["exp"] + 63 - Cat(*count))
    return {"mag": x, "exp": exp, **{key: r[key] for key in ("negative", "sticky", "inf", "nan")}}


def round_pack(m: Module, r, how, random: Value, name: str = "pack") -> Value:
    """Code of `how.format` (:class:`spec.convert.ConvertFormat`), in the low bits of 32; `random`: bits for stochastic rounding."""
    formats = [f for _, f in TARGETS]
    to = select_target(m, [wire(m, how.format == code, f"{name}_{f.name}") for code, f in TARGETS], formats, f"{name}_target")
    exp = Signal(signed(EXP), name=f"{name}_exp")
    m.d.comb += exp.eq(Mux(r["exp"] > HUGE, HUGE, r["exp"]))
    placed = place(m, r["mag"], exp, to, RANDOM_BITS, f"{name}_place", lost=True)
    low = (placed["lost"] | r["sticky"]) & ~how.stochastic  # what lies below the random bits counts to nearest alone
    kept = wire(m, Cat(placed["kept"][0] | low, placed["kept"][1:]), f"{name}_kept")
    code, _ = pack(
        m, {"kept": kept, "base": placed["base"]}, to, sign=r["negative"], nan=r["nan"], inf=r["inf"], sat=how.sat, below=RANDOM_BITS,
        fractions=[int(target_of(f).frac) for f in formats], random=random, stochastic=how.stochastic, name=name)
    return code
