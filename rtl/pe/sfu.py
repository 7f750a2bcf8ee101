"""Special function unit: `lanes` elements a cycle through elementwise functions, arithmetic and row operations, any operation in any cycle.

Contract
    * A beat is `lanes` elements of operand a (and b), an operation (:class:`spec.sfu.SfuOp`), and formats of a, of b (`spec.sfu.NATIVE`) and of the
      result (any :class:`spec.convert.ConvertFormat` but FLOAT8_E8M0FNU; codes in the low bits of 32, the bits above them in a result 0). Elements
      whose bit of `keep` is 0 do not count; their results are 0.
    * Elementwise operations give a beat of results for every beat. b is the beat's own or, with `scalar`, binary32 `low` for every lane. CLAMP is
      min(max(a, b), `high`), `high` binary32. `first` is without effect; `last` passes through.
    * Row operations reduce a over the beats from `first` to `last` and give one beat for the row: the result in lane 0, the only bit of its `keep`.
    * Operands widen exactly to binary32; the result is rounded once to its format, to nearest, ties to even, or with `stochastic` by the random
      bits of (`seed`, `index` + lane; a row's: `index` of its last beat); overflow follows `sat`. Functions: docs/numbers.md and :mod:`spec.sfu`;
      bfloat16 and float16 results of operands of their own format are correctly rounded. Sum, difference, product and row sums are
      exact before that rounding. NaN results are canonical.
    * Results come in the order of beats and depend on the operands alone.

Parameters: `PeParams.lanes`.
Members: `beats` In stream of :func:`beat_layout`; `results` Out stream of :func:`result_layout`.
Latency: 14 cycles for every operation (rows: from the last beat). Interval: one beat a cycle, also between different operations and rows of one beat.

The pipeline is rigid: it moves as a whole in a cycle in which the last stage is empty or is being taken. Lanes: :mod:`rtl.pe.sfu_lane`; their
tables: :mod:`rtl.pe.sfu_tables`; row operations: :mod:`rtl.pe.sfu_rows`.

Assumptions:
1. `op` and formats are codes of their enumerations; given by the requester.
2. Beats of a row are not mixed with those of another row operation, the first one has `first`, the last one `last`, a row has at least one element
   and at most ROW_ELEMENTS; given by the requester.
3. Streams obey valid/ready; guarded by the stream checkers of the bench.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.numeric.pipeline import wire
from rtl.numeric.round import key_of
from rtl.pe.sfu_lane import LANE_CONFIG, STAGES, SfuLane
from rtl.pe.sfu_rows import SfuRows
from rtl.pe.sfu_tables import SfuTables
from spec.params import PeParams
from spec.sfu import CONTROL, SfuOp

ACCUMULATE = 4  # stage after which beats that do not end a row are gone
ROUND = STAGES - 2  # stage in which random bits are drawn


def beat_layout(lanes: int) -> data.StructLayout:
    return data.StructLayout({
        "a": data.ArrayLayout(32, lanes), "b": data.ArrayLayout(32, lanes), "low": 32, "high": 32, "seed": 32, "index": 32, "keep": lanes,
        **dict(CONTROL),
    })


def result_layout(lanes: int) -> data.StructLayout:
    return data.StructLayout({"data": data.ArrayLayout(32, lanes), "keep": lanes, "last": 1})


class Sfu(Block):
    """See the module's contract."""

    LATENCY = STAGES

    def __init__(self, pe: PeParams):
        self.lanes = pe.lanes
        super().__init__({"beats": In(stream.Signature(beat_layout(pe.lanes))), "results": Out(stream.Signature(result_layout(pe.lanes)))})

    def elaborate(self, platform):
        m = Module()
        lanes, beat = self.lanes, self.beats.payload

        # what travels along: valid, configuration, keep, first, last; index k is stage k's input
        valid = Signal(STAGES)
        move = wire(m, ~valid[-1] | self.results.ready, "move")
        m.d.comb += [self.beats.ready.eq(move), self.results.valid.eq(valid[-1])]
        config = [Signal(LANE_CONFIG, name=f"config{k}", reset_less=True) for k in range(STAGES + 1)]
        keep = [Signal(lanes, name=f"keep{k}", reset_less=True) for k in range(STAGES + 1)]
        last = [Signal(name=f"last{k}", reset_less=True) for k in range(STAGES + 1)]
        first = [Signal(name=f"first{k}", reset_less=True) for k in range(ACCUMULATE + 1)]
        high = [Signal(32, name=f"high{k}", reset_less=True) for k in range(3)]
        m.d.comb += [config[0][name].eq(beat[name]) for name in ("op", "format_a", "format_b", "scalar")]
        m.d.comb += [config[0].how[name].eq(beat[source]) for name, source in (("format", "format_out"), ("sat", "sat"), ("stochastic", "stochastic"))]
        key = [Signal(32, name=f"key{k}", reset_less=True) for k in range(ROUND)]  # of stages 1 to 12
        index = [Signal(32, name=f"index{k}", reset_less=True) for k in range(ROUND)]
        seed_key = key_of(m, beat.seed)
        m.d.comb += [keep[0].eq(beat.keep), last[0].eq(beat.last), first[0].eq(beat.first), high[0].eq(beat.high)]
        rows = [wire(m, config[k].op >= SfuOp.ROW_SUM, f"rows{k}") for k in range(STAGES + 1)]
        enable = []
        for k in range(STAGES):
            enters = valid[k - 1] if k else self.beats.valid
            if k == ACCUMULATE + 1:
                enters = wire(m, enters & (~rows[k] | last[k]), "stays")
            enable.append(wire(m, move & enters, f"enable{k}"))
            with m.If(move):
                m.d.sync += valid[k].eq(enters)
            with m.If(enable[k]):
                m.d.sync += [config[k + 1].eq(config[k]), keep[k + 1].eq(keep[k]), last[k + 1].eq(last[k])]
                if k < ACCUMULATE:
                    m.d.sync += first[k + 1].eq(first[k])
            if k < ROUND:
                draws = wire(m, enable[k] & config[k].how.stochastic, f"draws{k}")
                with m.If(draws):
                    m.d.sync += [key[k].eq(key[k - 1] if k else seed_key), index[k].eq(index[k - 1] if k else beat.index)]
            clamps = wire(m, enable[k] & (config[k].op == SfuOp.CLAMP), f"clamps{k}")
            if k < 2:
                with m.If(clamps):
                    m.d.sync += high[k + 1].eq(high[k])

        elementwise = wire(m, Cat(enable[0], *(enable[k] & ~rows[k] for k in range(1, STAGES))), "elementwise")
        m.submodules.rows = unit = SfuRows(lanes)
        m.d.comb += [
            unit.enable.eq(Cat(*(e & r for e, r in zip(enable, rows, strict=False)))), unit.first.eq(first[ACCUMULATE]), unit.keep.eq(keep[1]),
            unit.how[0].eq(config[ROUND].how), unit.how[1].eq(config[ROUND + 1].how), unit.key.eq(key[-1]), unit.index.eq(index[-1]),
            *(unit.op[k].eq(config[k].op) for k in range(STAGES)),
        ]
        m.submodules.tables = tables = SfuTables(lanes)
        out = self.results.payload
        row = wire(m, rows[STAGES], "row")
        m.d.comb += [out.keep.eq(Mux(row, 1, keep[STAGES])), out.last.eq(last[STAGES])]
        for i in range(lanes):
            lane = SfuLane()
            m.submodules[f"lane{i}"] = shared(lane)
            kept = wire(m, Cat(*(keep[k][i] for k in range(STAGES))), f"kept{i}")
            m.d.comb += [
                lane.enable.eq(elementwise & kept), lane.low.eq(beat.low), lane.high.eq(high[2]), lane.key.eq(key[-1]),
                lane.index.eq(index[-1] + i), lane.a.eq(beat.a[i]), lane.b.eq(beat.b[i]),
                *(lane.config[k].eq(config[k]) for k in range(STAGES)),
                unit.x[i].eq(lane.wide), tables.octave[i].eq(lane.octave), tables.rows[i].eq(lane.rows), tables.reads[i].eq(lane.reads),
                lane.place.eq(tables.place[i]), lane.coefficients.eq(tables.coefficients[i]),
                out.data[i].eq(Mux(row, unit.d if i == 0 else 0, Mux(keep[STAGES][i], lane.d, 0))),
            ]
        return m
