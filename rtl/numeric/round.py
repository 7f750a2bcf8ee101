"""Rounding of an exact number to any format of the table, floats and integers alike, in steps that fit between pipeline registers.

A number is sign, `sig` with its leading one at the top bit (0: zero) and the signed exponent `exp` of that bit. An integer format counts as a
float of 31 fraction bits in which all is subnormal, so that one shifter, one adder and one comparison serve every target:

* :func:`place`: aligns the significand to the target's last place, with `below` bits under it and (with 1 below) a sticky bit for the rest;
* :func:`pack`: rounds (to nearest even, or with random bits), adds the exponent, applies range, sign, NaN and flags.

The target is a :class:`Target`: constants for one format, or values selected at run time. :func:`random_bits` are those of `spec.convert`.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.utils import bits_for

from rtl.numeric.pipeline import wire
from spec.convert import MIX, RANDOM_BITS, SEED_XOR
from spec.formats import Format

FLAGS = data.StructLayout({"nan_lost": 1, "overflow": 1})  # spec.convert.ConvertFlag


@dataclass(frozen=True)
class Target:
    """What rounding needs to know of a format; ints, or Values of the same meaning.

    Attributes:
        frac: fraction bits; 31 for an integer. emin: exponent of the smallest normal number; 31 for an integer.
        largest: code of the largest number. beyond: what an overflow becomes in mode `ovf`. nan: what a NaN becomes.
        sign: the sign bit of a float. signless: `beyond` is a NaN. nanless: the format has no NaN.
        integer, negative: an integer format; one with negative numbers. mask: all bits of a code.
    """

    frac: int | Value
    emin: int | Value
    largest: int | Value
    beyond: int | Value
    nan: int | Value
    sign: int | Value
    signless: int | Value
    nanless: int | Value
    integer: int | Value
    negative: int | Value
    mask: int | Value


def target_of(f: Format) -> Target:
    """The constants of one format (not float8_e8m0fnu, whose codes are scales)."""
    if not f.is_float:
        return Target(
            frac=31, emin=31, largest=int(f.max), beyond=0, nan=0, sign=0, signless=0, nanless=1, integer=1, negative=int(f.signed), mask=f.mask)
    if not f.has_subnormals:
        raise ValueError(f"{f.name} is not a target of rounding")
    special = f.nan_code if f.inf_code is None else f.inf_code
    return Target(
        frac=f.frac_bits, emin=f.min_exponent, largest=f.max_code, beyond=f.max_code if special is None else special,
        nan=f.max_code if f.nan_code is None else f.nan_code, sign=f.sign_mask, signless=int(special is not None and special == f.nan_code),
        nanless=int(f.nan_code is None), integer=0, negative=0, mask=f.mask)


def one_of(m: Module, select: Sequence[Value], values: Sequence[int], name: str, width: int = 0) -> Value:
    """The one of `values` (not negative) whose `select` is 1; 0 if none is."""
    width = width or max(1, bits_for(max(values)))
    out: Value = Const(0, width)
    for v in sorted(set(values) - {0}):
        any_of = Cat(s for s, x in zip(select, values, strict=True) if x == v).any()
        out = out | Mux(any_of, Const(v, width), 0)
    return wire(m, out[:width], name)


def select_target(m: Module, select: Sequence[Value], formats: Sequence[Format], name: str = "target") -> Target:
    """The target whose `select` is 1."""
    each = [target_of(f) for f in formats]
    chosen = {}
    for field in fields(Target):
        values = [getattr(t, field.name) for t in each]
        if field.name == "emin":
            raw = one_of(m, select, [v & 0x1FF for v in values], f"{name}_emin", 9)
            chosen["emin"] = raw.as_signed()
        else:
            chosen[field.name] = one_of(m, select, values, f"{name}_{field.name}")
    return Target(**chosen)


def placed_layout(width: int, below: int) -> data.StructLayout:
    """What passes from :func:`place` to :func:`pack`. `lost`, with 1 bit below: a 1 was shifted out. With `RANDOM_BITS` below none is that matters:
    a float32 has 24 bits, and of an integer's 32 the target keeps 8 (bfloat16), or those above the lowest 24 make it overflow."""
    return data.StructLayout({"kept": width + below, "base": 8} | ({"lost": 1} if below == 1 else {}))


def place(m: Module, sig: Value, exp: Value, t: Target, below: int, name: str = "place", lost: bool = False) -> dict[str, Value]:
    """Fields of :func:`placed_layout`: `kept` has the result's last place at bit `below`; `base` counts exponents above the subnormals'.
    `below` is 1 or `RANDOM_BITS`; `lost`: that field with `RANDOM_BITS` too; `exp` must not exceed `t.emin` by more than 255."""
    width = len(sig)
    under = wire(m, exp < t.emin, f"{name}_under")
    distance = Signal(signed(12), name=f"{name}_distance")
    m.d.comb += distance.eq(exp - t.emin)
    amount = Signal(signed(12), name=f"{name}_amount")  # at least 0: no target keeps more bits than a source has places
    m.d.comb += amount.eq(width - 1 - t.frac - Mux(under, distance, 0))
    bits = bits_for(width + below)
    shift = wire(m, Mux(amount[bits:11].any(), Const((1 << bits) - 1, bits), amount[:bits]), f"{name}_shift")
    wide = wire(m, Cat(Const(0, below), sig), f"{name}_wide")
    kept = wire(m, wide >> shift, f"{name}_kept")
    fields: dict[str, Value] = {"kept": kept, "base": Mux(under | ~sig[-1], 0, distance[:8])}
    if below == 1 or lost:
        fields["lost"] = (kept << shift)[: width + below] != wide
    return fields


def pack(
    m: Module, p, t: Target, *, sign: Value, nan: Value, inf: Value, sat: Value, below: int, fractions: Sequence[int],
    random: Value | None = None, stochastic: Value | None = None, name: str = "pack",
) -> tuple[Value, dict[str, Value]]:
    """(code, fields of :data:`FLAGS`) of what :func:`place` gave, in `p`.

    Args:
        fractions: every value that `t.frac` can have.
        random, stochastic: `below` random bits, and whether to use them; without them to nearest even.
    """
    kept = p["kept"]
    up = wire(m, kept[below - 1] & (kept[below] | (p["lost"] if below == 1 else kept[: below - 1].any())), f"{name}_nearest")
    if random is not None and stochastic is not None:
        carry = wire(m, kept[:below] + random, f"{name}_sum")
        up = wire(m, Mux(stochastic, carry[below], up), f"{name}_up")
    shifted: Value = Const(0, 1)
    for k in sorted({k for k in fractions if k < 31}):
        moved = Cat(Const(0, k), p["base"])
        shifted = moved if isinstance(t.frac, int) else shifted | Mux(t.frac == k, moved, 0)
    code = wire(m, kept[below:] + up + shifted, f"{name}_code")
    # A negative integer may be one larger, or must be 0.
    limit = wire(m, Mux(t.integer & sign, Mux(t.negative, t.largest + 1, 0), t.largest), f"{name}_limit")
    beyond = wire(m, ~nan & (inf | (code > limit) | (t.integer & p["base"].any())), f"{name}_beyond")
    held = Value.cast(sat) | t.integer
    magnitude = wire(m, Mux(beyond, Mux(held, limit, t.beyond), code)[:32], f"{name}_magnitude")
    signed_float = magnitude | Mux(sign & ~(beyond & t.signless & ~held), t.sign, 0)
    signed_integer = Mux(sign, -magnitude, magnitude)[:32] & t.mask
    number = wire(m, Mux(t.integer, signed_integer, signed_float)[:32], f"{name}_number")
    out = wire(m, Mux(nan, t.nan, number)[:32], f"{name}_out")
    kept_inf = inf & ~held & (~Value.cast(t.nanless) & ~Value.cast(t.signless))
    return out, {"nan_lost": nan & t.nanless, "overflow": beyond & ~kept_inf}


def mix(m: Module, x: Value, name: str = "mix") -> Value:
    """`spec.convert.mix` of 32 bits."""
    for i, (shift, multiplier) in enumerate(MIX):
        x = wire(m, x ^ x[shift:], f"{name}_fold{i}")
        if multiplier is not None:
            x = wire(m, (x * Const(multiplier, 32))[:32], f"{name}_times{i}")
    return x


def key_of(m: Module, seed: Value, name: str = "key") -> Value:
    """First half of the random bits: of the seed alone."""
    return mix(m, wire(m, seed ^ Const(SEED_XOR, 32), f"{name}_seed"), name)


def random_bits(m: Module, key: Value, index: Value, name: str = "random") -> Value:
    """Second half: `RANDOM_BITS` bits of an element."""
    return mix(m, wire(m, key ^ index, f"{name}_index"), name)[32 - RANDOM_BITS:]
