"""The one rounding of the special function unit: from M * 2^E with M below 2^64 to binary32, bfloat16 or float16, to nearest, ties to even.

Two combinational halves, for use between the registers of a pipeline: :func:`normalise` and :func:`round_pack`. Subnormal results are full; a
magnitude that rounds beyond the largest finite number is infinity; M = 0 is a zero of the given sign.

Assumptions:
1. The exponent of the leading one is within -1024 … 1023; guarded by the widths of the lane's exponents (its extremes are ±512 plus a binary32's).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from rtl.numeric.pipeline import wire
from spec.formats import BFLOAT16, FLOAT16, FLOAT32, Format
from spec.sfu import SfuFormat

EXP = 12  # bits of an exponent, two's complement

#: Before normalisation: (-1)^negative * (mag + less than 1 where `sticky`) * 2^exp; `inf` and `nan` override.
INNER = data.StructLayout({"mag": 64, "exp": signed(EXP), "negative": 1, "sticky": 1, "inf": 1, "nan": 1})
#: After it: the leading one at bit 63 (or mag 0), `exp` its exponent.
NORMAL = INNER


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


def round_pack(m: Module, r, fmt: Value, name: str = "pack") -> Value:
    """Code of format `fmt` (:class:`SfuFormat`), in the low bits of 32."""
    brain = wire(m, fmt == SfuFormat.BFLOAT16, f"{name}_brain")
    half = wire(m, fmt == SfuFormat.FLOAT16, f"{name}_half")

    def pick(of) -> Value:
        return Mux(half, of(FLOAT16), Mux(brain, of(BFLOAT16), of(FLOAT32)))

    def above(f: Format) -> Value:
        return (r["exp"] - f.min_exponent).as_signed()

    # exponent above the smallest one of a normal number; below it bits are lost: the least bit kept stays where it is
    over = Signal(signed(EXP), name=f"{name}_over")
    m.d.comb += over.eq(Mux(half, above(FLOAT16), above(FLOAT32)))
    under = wire(m, over < 0, f"{name}_under")
    least = wire(m, pick(lambda f: Const(62 - f.frac_bits, 6)), f"{name}_least")  # guard bit of a normal result
    deficit = wire(m, Mux(under, -over, 0)[:EXP], f"{name}_deficit")
    place = wire(m, (least + deficit)[:EXP + 1], f"{name}_place")
    beyond = wire(m, place > 63, f"{name}_beyond")
    moved = wire(m, Mux(beyond, 0, r["mag"] >> Mux(beyond, 0, place[:6])[:6])[:26], f"{name}_moved")
    lost = wire(m, (moved << place[:6])[:64] != r["mag"], f"{name}_lost")
    up = wire(m, moved[0] & (moved[1] | lost | r["sticky"]), f"{name}_up")
    number = wire(m, moved[1:], f"{name}_number")
    high = wire(m, Mux(under, 0, over)[:EXP - 1], f"{name}_high")
    base = wire(m, pick(lambda f: Cat(Const(0, f.frac_bits), high))[:23 + EXP - 1], f"{name}_base")
    code = wire(m, base + number + up, f"{name}_code")
    inf = wire(m, pick(lambda f: Const(f.inf_code, 31)), f"{name}_inf")
    zero = ~r["mag"][63]
    limited = wire(m, Mux(r["inf"] | (~zero & (code >= inf)), inf, Mux(zero, 0, code[:31]))[:31], f"{name}_limited")
    sign = wire(m, Mux(half | brain, Cat(Const(0, 15), r["negative"]), Cat(Const(0, 31), r["negative"]))[:32], f"{name}_sign")
    nan = pick(lambda f: Const(f.nan_code, 31))
    return wire(m, Mux(r["nan"], nan, limited | sign)[:32], f"{name}_result")
