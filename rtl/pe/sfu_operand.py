"""Operands of a lane of the special function unit: taken apart, and what a function gives for those that are no ordinary numbers.

Combinational functions for use between the registers of :mod:`rtl.pe.sfu_lane`.

Assumptions:
1. Significand and exponent of infinities and NaN are not used, those of zeros by softplus alone; guarded by the kind that goes with them.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from rtl.numeric.convert import widen_bfloat16, widen_float16
from rtl.numeric.pipeline import wire
from spec.convert import ConvertFormat
from spec.sfu import LN2_FRACTION, SfuOp

KIND = 3
NUMBER, ZERO, ONE, HALF, INFINITE, NAN = range(6)
_ODD = (SfuOp.RECIPROCAL, SfuOp.TANH, SfuOp.GELU, SfuOp.SILU)  # results with the operand's sign

#: An operand, or what stands for the result, between stages 1 and 10: (-1)^negative * mag * 2^(exp - 23), or the special value `kind`.
OPERAND = data.StructLayout({"mag": 28, "exp": signed(10), "negative": 1, "kind": KIND})


def among(op: Value, *ops: SfuOp) -> Value:
    return Cat(*(op == o for o in ops)).any()


def signed_wire(m: Module, value: Value, bits: int, name: str) -> Signal:
    s = Signal(signed(bits), name=name)
    m.d.comb += s.eq(value)
    return s


def widen(m: Module, x: Value, fmt: Value, name: str) -> Signal:
    """binary32 of an operand of one of `spec.sfu.NATIVE`."""
    brain = widen_bfloat16(m, x, canonical=False, name=f"{name}_bf")
    half = widen_float16(m, x, canonical=False, name=f"{name}_h")
    return wire(m, Mux(fmt == ConvertFormat.FLOAT16, half, Mux(fmt == ConvertFormat.BFLOAT16, brain, x))[:32], name)


def in_place(m: Module, x) -> Signal:
    """Magnitude of an operand below 2^9 in units of 2^-54, cut."""
    up = signed_wire(m, x.exp + LN2_FRACTION - 23, 11, "up")
    return wire(m, Mux(up < 0, x.mag[:24] >> Mux(up < -31, 31, -up)[:5], x.mag[:24] << Mux(up > 39, 39, up)[:6])[:63], "own_in_place")


def special(m: Module, op: Value, minus: Value, zero: Value, inf: Value, nan: Value) -> tuple[Signal, Signal]:
    """Kind and sign of function `op` of an operand with sign `minus` that may be zero, infinite or NaN."""
    inverse = wire(m, among(op, SfuOp.RECIPROCAL, SfuOp.RSQRT), "inverse")
    is_log, is_sigmoid = wire(m, op == SfuOp.LOG, "is_log1"), wire(m, op == SfuOp.SIGMOID, "is_sigmoid")
    of_zero = Mux(among(op, SfuOp.EXP, SfuOp.EXP2), ONE, Mux(is_sigmoid, HALF, Mux(is_log | inverse, INFINITE, Mux(op == SfuOp.SOFTPLUS, NUMBER, ZERO))))
    of_inf = Mux(minus, ZERO, Mux(is_sigmoid, ONE, INFINITE))
    of_inf = Mux(is_log, INFINITE, Mux(inverse, ZERO, Mux(op == SfuOp.TANH, ONE, of_inf)))
    negative_only = wire(m, minus & (is_log | (op == SfuOp.RSQRT)), "negative_only")
    kind = wire(m, Mux(nan, NAN, Mux(zero, of_zero, Mux(negative_only, NAN, Mux(inf, of_inf, NUMBER))))[:KIND], "kind")
    sign = wire(m, (zero & is_log) | (minus & (among(op, *_ODD) | (zero & inverse))), "sign")
    return kind, sign


def apart(m: Module, x: Value, name: str) -> tuple[Signal, Signal]:
    """Significand with its leading one at bit 23 (0 for zero), and exponent."""
    normal = wire(m, x[23:31].any(), f"{name}_normal")
    s, count = wire(m, Cat(x[:23], normal), f"{name}_s"), []
    for k in (16, 8, 4, 2, 1):
        go = wire(m, ~s[24 - k:].any(), f"{name}_go{k}")
        s = wire(m, Mux(go, (s << k)[:24], s), f"{name}_s{k}")
        count.insert(0, go)
    return s, signed_wire(m, Cat(x[23] | ~normal, x[24:31]) - 127 - Cat(*count), 10, f"{name}_exp")
