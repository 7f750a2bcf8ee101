"""One lane of the special function unit: an element's operands in, its result out, every cycle, whatever the operation.

Pipeline (registers at the end of each stage; a stage loads only when `enable` of that stage is 1, what functions alone need only for functions):

| stage | work |
|---|---|
| 0 | widen a and b exactly to binary32, or take the scalar for b |
| 1 | take a (and b) apart, normalise; special values; align and add; minimum, maximum, ReLU |
| 2 | exponent of 2: significand times log2(e); else read the octave's segments; clamp's second compare |
| 3 | exponent of 2: cut to 34 bits below the point; row of the table and place t in its segment |
| 4 | read c4, c3 (the others in the stages after it) |
| 5 to 8 | p = c + (t * p >> 28), for c3, c2, c1, c0 |
| 9 | sigmoid, SiLU, GELU: U or 1 - U; softplus: U, cut where x is positive |
| 10 | times significand; log: n * ln 2; softplus: x in place |
| 11 | log, softplus: add; choose the internal result |
| 12 | normalise; random bits |
| 13 | round once to the result's format, into `d` |

Latency 14 cycles, interval 1. `config[k]` and `enable[k]` belong to stage k; `low` (the scalar b) to stage 0, `high` to stage 2, `key` and
`index` to stage 12. `wide` is a as
binary32 after stage 0, for the row operations.

Assumptions (guarded by the front end in :mod:`rtl.pe.sfu`):
1. Stages beyond 0 are enabled for elementwise operations alone.
2. The low half of a 32-bit element holds a 16-bit one; its high half is ignored.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.fp32_add import BELOW, align_add
from rtl.numeric.minmax import minmax
from rtl.numeric.pipeline import wire
from rtl.pe.sfu_operand import (
    HALF,
    INFINITE,
    NAN,
    NUMBER,
    ONE,
    OPERAND,
    ZERO,
    among,
    apart,
    in_place,
    signed_wire,
    special,
    widen,
)
from rtl.pe.sfu_round import HOW, INNER, NORMAL, drawn, normalise, round_pack
from rtl.pe.sfu_tables import COEFFICIENTS, MOST_BITS, OCTAVE, ROW, SEGMENTS
from spec.sfu import (
    COEFFICIENT_BITS,
    EXPONENT_BITS,
    FRACTION,
    FUNCTIONS,
    LN2,
    LN2_FRACTION,
    LOG2E,
    LOG2E_FRACTION,
    PLACE,
    POWER_FRACTION,
    REGIONS,
    SfuOp,
)

STAGES = 14
REST = 36  # bits of a sum beyond those of an operand's significand: what rounding, stochastic too, may look at
LANE_CONFIG = data.StructLayout({"op": 5, "format_a": 4, "format_b": 4, "how": HOW, "scalar": 1})


class SfuLane(Block):
    """See the module's contract.

    Members: `enable` In STAGES; `config` In STAGES x LANE_CONFIG; `a`, `b`, `low`, `high`, `key`, `index` In 32; `wide`, `d` Out 32;
    and a set of ports of the tables (:mod:`rtl.pe.sfu_tables`): `octave`, `rows`, `reads` Out, `place`, `coefficients` In.
    """

    def __init__(self):
        super().__init__({
            "enable": In(STAGES), "config": In(data.ArrayLayout(LANE_CONFIG, STAGES)),
            "a": In(32), "b": In(32), "low": In(32), "high": In(32), "key": In(32), "index": In(32), "wide": Out(32), "d": Out(32),
            "octave": Out(OCTAVE), "rows": Out(data.ArrayLayout(ROW, 4)), "reads": Out(5), "place": In(SEGMENTS), "coefficients": In(COEFFICIENTS),
        })

    def elaborate(self, platform):
        m = Module()
        on = [wire(m, self.enable[k], f"on{k}") for k in range(STAGES)]
        function = [wire(m, self.enable[k] & (self.config[k].op <= FUNCTIONS[-1]), f"function{k}") for k in range(STAGES)]
        self._stages_0_and_1(m, on)
        self._carry(m, on, function)
        row, t, scale, exact = self._locate(m, function)
        p, e = self._polynomial(m, function, row, t)
        self._finish(m, on, function, p, e, scale, exact)
        return m

    # -- operands ------------------------------------------------------------------------------------------------------------------------

    def _stages_0_and_1(self, m: Module, on: list[Signal]) -> None:
        c = self.config
        a, b = Signal(32, reset_less=True), Signal(32, reset_less=True)

        wide_a, wide_b = widen(m, self.a, c[0].format_a, "wide_a"), widen(m, self.b, c[0].format_b, "wide_b")
        with m.If(on[0]):
            m.d.sync += [a.eq(wide_a), b.eq(Mux(c[0].scalar, self.low, wide_b))]
        m.d.comb += self.wide.eq(a)

        op = c[1].op
        sig_a, exp_a = apart(m, a, "a")
        sig_b, exp_b = apart(m, b, "b")
        zero_a, zero_b = wire(m, ~a[:31].any(), "zero_a"), wire(m, ~b[:31].any(), "zero_b")
        top_a, top_b = wire(m, a[23:31].all(), "top_a"), wire(m, b[23:31].all(), "top_b")
        nan_a, nan_b = wire(m, top_a & a[:23].any(), "nan_a"), wire(m, top_b & b[:23].any(), "nan_b")
        inf_a, inf_b = wire(m, top_a & ~nan_a, "inf_a"), wire(m, top_b & ~nan_b, "inf_b")

        kind, sign = special(m, op, a[31], zero_a, inf_a, nan_a)

        # sum, difference, product
        addend = wire(m, Cat(b[:31], b[31] ^ (op == SfuOp.SUB)), "addend")
        swap = wire(m, a[:31] < b[:31], "swap")
        total = align_add(m, a, addend, swap, below=BELOW + REST)
        no_product = wire(m, nan_a | nan_b | (inf_a & zero_b) | (inf_b & zero_a), "no_product")
        product_kind = Mux(no_product, NAN, Mux(inf_a | inf_b, INFINITE, Mux(zero_a | zero_b, ZERO, NUMBER)))
        is_mul = wire(m, op == SfuOp.MUL, "is_mul")

        #: stages 1 to 10 keep operands; this is what stage 1 makes
        self.operand = [Signal(OPERAND, name=f"operand{k}", reset_less=True) for k in range(STAGES - 3)]
        self.y = [Signal(REST, name=f"y{k}", reset_less=True) for k in range(STAGES - 3)]  # other significand; rest of the sum
        self.picked = Signal(32, reset_less=True)
        self.source_negative = Signal(reset_less=True)  # sign of a, for the functions that have two sides
        is_sum = wire(m, among(op, SfuOp.ADD, SfuOp.SUB), "is_sum")
        sum_exp = signed_wire(m, total["exp"].as_unsigned() - 130, 9, "sum_exp")
        product_exp = signed_wire(m, exp_a + exp_b, 10, "product_exp")
        sum_kind = Mux(total["nan"], NAN, Mux(total["inf"], INFINITE, NUMBER))
        # minimum, maximum, clamp's maximum, ReLU
        chosen = minmax(m, a, b, maximum=op != SfuOp.MIN, integer=Const(0, 1), swap=swap, name="first")
        relu = wire(m, Mux(a[31] & ~nan_a, 0, a)[:32], "relu")
        made = self.operand[1]
        with m.If(on[1]):
            m.d.sync += [
                made.mag.eq(Mux(is_sum, total["sum"][REST:], sig_a)), made.exp.eq(Mux(is_sum, sum_exp, Mux(is_mul, product_exp, exp_a))),
                made.negative.eq(Mux(is_sum, total["sign"], Mux(is_mul, a[31] ^ b[31], sign))),
                made.kind.eq(Mux(is_sum, sum_kind, Mux(is_mul, product_kind, kind))), self.y[1].eq(Mux(is_sum, total["sum"][:REST], sig_b)),
                self.picked.eq(Mux(op == SfuOp.RELU, relu, Mux(op == SfuOp.COPY, a, chosen))), self.source_negative.eq(a[31]),
            ]

    def _carry(self, m: Module, on: list[Signal], function: list[Signal]) -> None:
        """Operands from stage 2 to 10; the second compare of clamp, and what was picked taken apart, in stage 2."""
        op = self.config[2].op
        clamped = minmax(m, self.picked, self.high, maximum=Const(0, 1), integer=Const(0, 1), name="second")
        x = wire(m, Mux(op == SfuOp.CLAMP, clamped, self.picked), "x")
        picked = wire(m, among(op, SfuOp.RELU, SfuOp.COPY, SfuOp.MIN, SfuOp.MAX, SfuOp.CLAMP), "is_picked")
        normal = wire(m, x[23:31].any(), "x_normal")
        top = wire(m, x[23:31].all(), "x_top")
        before, made = self.operand[1], self.operand[2]
        pick_kind = Mux(top, Mux(x[:23].any(), NAN, INFINITE), NUMBER)
        with m.If(on[2]):
            m.d.sync += [
                made.mag.eq(Mux(picked, Cat(x[:23], normal), before.mag)),
                made.exp.eq(Mux(picked, (Cat(x[23] | ~normal, x[24:31]) - 127).as_signed(), before.exp)),
                made.negative.eq(Mux(picked, x[31], before.negative)), made.kind.eq(Mux(picked, pick_kind, before.kind)),
            ]
        for k in range(3, STAGES - 3):
            with m.If(on[k]):
                m.d.sync += self.operand[k].eq(self.operand[k - 1])
        for k in range(2, STAGES - 3):
            carries = wire(m, on[k] & among(self.config[k].op, SfuOp.ADD, SfuOp.SUB, SfuOp.MUL), f"carries{k}")
            with m.If(carries):
                m.d.sync += self.y[k].eq(self.y[k - 1])
        self.negative = [Signal(name=f"source_negative{k}", reset_less=True) for k in range(STAGES)]
        self.negative[1] = self.source_negative
        for k in range(2, 9):
            with m.If(function[k]):
                m.d.sync += self.negative[k].eq(self.negative[k - 1])

    # -- range reduction -----------------------------------------------------------------------------------------------------------------

    def _locate(self, m: Module, function: list[Signal]) -> tuple[Signal, Signal, Signal, Signal]:
        """Stages 2 and 3: row, t, the exponent that the row's is added to, and whether the result is exact."""
        op2, op = self.config[2].op, self.config[3].op
        x = self.operand[1]
        base2 = wire(m, Mux(op2 == SfuOp.EXP2, 1 << LOG2E_FRACTION, LOG2E), "base2")
        far = wire(m, among(op2, SfuOp.SIGMOID, SfuOp.SILU, SfuOp.SOFTPLUS) & (x.exp >= 5), "far")
        powers = wire(m, function[2] & (far | among(op2, SfuOp.EXP, SfuOp.EXP2)), "powers")
        product = Signal(64, reset_less=True)
        with m.If(powers):
            m.d.sync += product.eq(x.mag[:24] * base2)
        power = Signal(reset_less=True)
        down = Signal(reset_less=True)  # the exponent of 2 is negative
        away = Signal(5, reset_less=True)  # octaves below the first
        fixed = wire(m, among(op2, SfuOp.RECIPROCAL, SfuOp.LOG), "fixed")
        first = Mux(op2 == SfuOp.TANH, REGIONS["tanh"].first, REGIONS["gelu"].first)  # sigmoid and softplus begin where gelu does
        octave = Mux(fixed, 1, Mux(op2 == SfuOp.RSQRT, x.exp[0] + 1, x.exp + 1 - first))
        place = signed_wire(m, octave, 11, "octave")
        below = wire(m, place <= 0, "below")
        m.d.comb += [
            self.octave.eq(Cat(Mux(below, 0, Mux(place > 15, 15, place))[:4], op2)), self.reads[0].eq(function[2]),
        ]
        with m.If(function[2]):
            m.d.sync += [power.eq(powers), down.eq(far | self.source_negative), away.eq(Mux(below, Mux(-place > 31, 31, -place), 0))]

        # exponent of 2
        x = self.operand[2]
        amount = signed_wire(m, LOG2E_FRACTION + 23 - POWER_FRACTION - x.exp, 11, "amount")
        shift = wire(m, Mux(amount < 0, 0, Mux(amount > 63, 63, amount))[:6], "shift")
        whole = wire(m, product >> shift, "whole")
        lost = wire(m, (whole << shift)[:64] != product, "lost")
        size = POWER_FRACTION + 11
        y = wire(m, Mux(down, (~whole[:size] + (~lost)), whole[:size])[:size], "y")
        far_out = wire(m, x.exp >= 8, "far_out")
        k = signed_wire(m, Mux(far_out, Mux(down, -512, 512), y[POWER_FRACTION:].as_signed()), 11, "k")
        integer = wire(m, ~y[:POWER_FRACTION].any() & ~lost, "integer")
        (power_base, _), = REGIONS["exp2"].octaves

        # the segment that the octave's base and bits lead to; below the first octave what is cut off sets the least bit of t
        place = self.place
        frac = x.mag[:23]
        segment = wire(m, (Cat(frac, Const(0, MOST_BITS)) << place.bits)[:23 + MOST_BITS], "segment")
        wide = wire(m, Cat(Const(0, PLACE - 24), x.mag[:24]), "near_wide")  # significand in t when the exponent is one below the first
        moved = wire(m, wide >> away, "near_moved")
        cut = wire(m, (moved << away)[:PLACE] != wide, "near_cut")
        table_row = wire(m, Mux(place.near, place.base, place.base + segment[23:])[:ROW], "table_row")
        table_t = wire(m, Mux(place.near, moved | cut, Cat(Const(0, PLACE - 23), segment[:23]))[:PLACE], "table_t")

        row, t = Signal(ROW, name="row3", reset_less=True), Signal(PLACE, name="t3", reset_less=True)
        scale = Signal(signed(11), name="scale3", reset_less=True)
        exact = Signal(name="exact3", reset_less=True)
        large = wire(m, x.exp >= 4, "large")
        root = wire(m, op == SfuOp.RSQRT, "root")
        own = signed_wire(m, Mux(op == SfuOp.RECIPROCAL, -x.exp, Mux(root, -(x.exp >> 1), Mux(
            op == SfuOp.TANH, Mux(large, 0, x.exp), Mux((op == SfuOp.GELU) & large, -256, 0)))), 11, "own_scale")
        even = wire(m, ~frac.any() & ((op == SfuOp.RECIPROCAL) | (root & ~x.exp[0])), "even")
        with m.If(function[3]):
            m.d.sync += [
                row.eq(Mux(power, power_base + y[PLACE:POWER_FRACTION], table_row)), t.eq(Mux(power, y[:PLACE], table_t)),
                scale.eq(Mux(power, k, own)), exact.eq(even | (integer & (op == SfuOp.EXP2))),
            ]
        return row, t, scale, exact

    # -- polynomial ----------------------------------------------------------------------------------------------------------------------

    def _polynomial(self, m: Module, function: list[Signal], row: Signal, t: Signal) -> tuple[Signal, Signal]:
        """Stages 4 to 8: P (unsigned) and the row's exponent, negated, plus 1."""
        rows = [row]
        for k in range(4, 7):
            rows.append(Signal(ROW, name=f"row{k}", reset_less=True))
            with m.If(function[k]):
                m.d.sync += rows[-1].eq(rows[-2])
        ts = [t]
        for k in range(4, 8):
            ts.append(Signal(PLACE, name=f"t{k}", reset_less=True))
            with m.If(function[k]):
                m.d.sync += ts[-1].eq(ts[-2])

        m.d.comb += [port.eq(r) for port, r in zip(self.rows, rows, strict=True)]
        m.d.comb += [self.reads[k].eq(function[3 + k]) for k in range(1, 5)]

        c = self.coefficients
        p = signed_wire(m, c.c4, COEFFICIENT_BITS[4], "c4")
        for k, (add, bits) in enumerate(zip((c.c3, c.c2, c.c1), COEFFICIENT_BITS[3:0:-1], strict=True)):
            p = self._step(m, function[5 + k], ts[1 + k], p, add, signed(bits), f"p{3 - k}")
        out = self._step(m, function[8], ts[4], p, c.c0, COEFFICIENT_BITS[0], "p0")
        e = Signal(EXPONENT_BITS, reset_less=True)
        with m.If(function[8]):
            m.d.sync += e.eq(c.e)
        return out, e

    def _step(self, m: Module, enable: Signal, t: Signal, p: Signal, c: Value, shape, name: str) -> Signal:
        """c + (t * p >> PLACE), registered."""
        part = signed_wire(m, (t * p) >> PLACE, len(p) + 1, f"{name}_part")
        out = Signal(shape, name=name, reset_less=True)
        with m.If(enable):
            m.d.sync += out.eq(c + part)
        return out

    # -- result --------------------------------------------------------------------------------------------------------------------------

    def _finish(self, m: Module, on: list[Signal], function: list[Signal], p: Signal, e: Signal, scale3: Signal, exact3: Signal) -> None:
        """Stages 9 to 13."""
        scale, exact = scale3, exact3
        for k in range(4, 9):
            next_scale, next_exact = Signal(signed(11), name=f"scale{k}", reset_less=True), Signal(name=f"exact{k}", reset_less=True)
            with m.If(function[k]):
                m.d.sync += [next_scale.eq(scale), next_exact.eq(exact)]
            scale, exact = next_scale, next_exact

        # stage 9
        op, x = self.config[9].op, self.operand[8]
        own = signed_wire(m, scale + 1 - e, 12, "own")
        cut = wire(m, Mux(-own > 63, 63, -own)[:6], "cut")
        whole = wire(m, p >> cut, "u_whole")
        rest = wire(m, ((1 << FRACTION) - whole - ((whole << cut)[:64] != p))[:FRACTION + 1], "rest")
        sided = wire(m, among(op, SfuOp.SIGMOID, SfuOp.SILU, SfuOp.GELU) & ~self.negative[8], "sided")
        adds = wire(m, (op == SfuOp.SOFTPLUS) & ~self.negative[8], "adds")
        flat = wire(m, (op == SfuOp.TANH) & (x.exp >= 4), "flat")
        weight = Signal(FRACTION + 2, reset_less=True)
        power = Signal(signed(12), reset_less=True)
        by_sig, certain, adds10 = Signal(reset_less=True), Signal(reset_less=True), Signal(reset_less=True)
        is_log = wire(m, op == SfuOp.LOG, "is_log")
        with m.If(function[9]):
            m.d.sync += [
                weight.eq(Mux(flat, (1 << FRACTION) - 1, Mux(sided, rest, Mux(adds, whole, Mux(is_log & (e == 0), p << 1, p))))),
                power.eq(Mux(sided | flat, 0, own) + Mux(among(op, SfuOp.SILU, SfuOp.GELU), x.exp, 0)),
                by_sig.eq(among(op, SfuOp.SILU, SfuOp.GELU) | ((op == SfuOp.TANH) & ~flat)), certain.eq(exact), adds10.eq(adds),
            ]

        # stage 10: times the significand, the other significand, or (log) d; log: n * ln 2
        op, x = self.config[10].op, self.operand[9]
        multiplies = wire(m, function[10] | (on[10] & (op == SfuOp.MUL)), "multiplies")
        frac = x.mag[:23]
        high = wire(m, frac[22], "high")
        d = wire(m, Mux(high, -frac, frac << 1)[:24], "d_magnitude")  # 2^23 - frac in 23 bits, frac is not 0
        is_log10 = wire(m, op == SfuOp.LOG, "is_log10")
        left = wire(m, Mux(is_log10, Mux(high, d[:23], d), Mux(by_sig | (op == SfuOp.MUL), x.mag[:24], 1 << 23))[:24], "left")
        right = wire(m, Mux(op == SfuOp.MUL, self.y[9][:24], weight)[:FRACTION + 2], "right")
        product = Signal(64, name="product10", reset_less=True)
        with m.If(multiplies):
            m.d.sync += product.eq(left * right)
        n = signed_wire(m, x.exp + high, 10, "n")
        logs = wire(m, function[10] & (is_log10 | adds10), "logs")
        own = in_place(m, x)
        multiple, high11, none = Signal(signed(64), reset_less=True), Signal(reset_less=True), Signal(reset_less=True)
        with m.If(logs):
            m.d.sync += [multiple.eq(Mux(adds10, own, n * LN2)), high11.eq(high & is_log10), none.eq((n == 0) & is_log10)]
        power11, certain11, adds11 = Signal(signed(12), reset_less=True), Signal(reset_less=True), Signal(reset_less=True)
        with m.If(function[10]):
            m.d.sync += [power11.eq(power), certain11.eq(certain), adds11.eq(adds10)]

        # stage 11
        op, x = self.config[11].op, self.operand[10]
        inner = Signal(INNER, reset_less=True)
        choice = Signal(INNER, name="choice")
        places = FRACTION + 24 - LN2_FRACTION  # of d * Q(d); softplus: of U, times 2^23
        part = wire(m, Mux(adds11 & (op == SfuOp.SOFTPLUS), product >> places - 1, product >> places), "log_part")
        total = signed_wire(m, multiple + Mux(high11, -part, part), 64, "log_total")
        size = wire(m, Mux(total < 0, -total, total)[:64], "log_size")
        odd = wire(m, x.kind != NUMBER, "odd")
        beyond = wire(m, (op == SfuOp.SOFTPLUS) & adds11 & (x.exp >= 9), "beyond")  # just above x
        is_total = wire(m, (op == SfuOp.SOFTPLUS) & adds11, "is_total")
        is_log11, is_mul11 = wire(m, op == SfuOp.LOG, "is_log11"), wire(m, op == SfuOp.MUL, "is_mul11")
        is_function = wire(m, op <= FUNCTIONS[-1], "is_function")
        is_sum11 = wire(m, among(op, SfuOp.ADD, SfuOp.SUB), "is_sum11")
        point = Mux((x.kind == ONE) | (x.kind == HALF), 1 << 63, 0)
        log_mag, log_exp = Mux(none, product, size), Mux(none, -(FRACTION + 24), -LN2_FRACTION)
        other_exp = Mux(is_mul11, x.exp - 46, Mux(is_function, power11 - FRACTION - 23, Mux(is_sum11, x.exp - 23 - REST, x.exp - 23)))
        other_mag = Mux(is_sum11, Cat(self.y[10], x.mag), x.mag)
        log_negative = Mux(none, high11 & product.any(), total < 0)
        m.d.comb += [
            choice.mag.eq(Mux(odd, point, Mux(is_log11, log_mag, Mux(is_total, Mux(beyond, x.mag, size), Mux(is_mul11 | is_function, product, other_mag))))),
            choice.exp.eq(Mux(odd, Mux(x.kind == HALF, -64, -63), Mux(is_log11, log_exp, Mux(is_total, Mux(beyond, x.exp - 23, -LN2_FRACTION), other_exp)))),
            choice.negative.eq(Mux(is_log11 & ~odd, log_negative, x.negative)),
            choice.sticky.eq(~odd & Mux(is_log11, product.any() | ~none, is_function & ~certain11)),
            choice.nan.eq(x.kind == NAN), choice.inf.eq(x.kind == INFINITE),
        ]
        with m.If(on[11]):
            m.d.sync += inner.eq(choice)

        # stages 12 and 13
        normal = Signal(NORMAL, reset_less=True)
        fields = normalise(m, inner)
        with m.If(on[12]):
            m.d.sync += [normal[key].eq(value) for key, value in fields.items()]
        random = drawn(m, on[12], self.config[12].how, self.key, self.index)
        d = Signal(32, name="result", reset_less=True)
        rounded = round_pack(m, normal, self.config[13].how, random)
        with m.If(on[13]):
            m.d.sync += d.eq(rounded)
        m.d.comb += self.d.eq(d)

