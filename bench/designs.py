"""Two designs to measure emission and builds with: many equal parts, as in the engines of a processing element.

* :class:`MacArray`: rows x lanes multiply-accumulate units (8 x 8 bits into 32), output-stationary; `a` moves along the rows, `b` down.
* :class:`Rows`: rows of 32 lanes of bfloat16 arithmetic on binary32 units (widen, add, multiply, add, narrow), each row fed by the one above.

Both wrap their parts in `shared`, which only the project's own emission makes use of. Latency: a cycle per unit passed in MacArray,
5 per row in Rows. Assumptions: none; the inputs are plain ports.
"""
from __future__ import annotations

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block, shared
from rtl.numeric.convert import narrow_bfloat16, widen_bfloat16
from rtl.numeric.fp32_add import SUM, align_add, normalise
from rtl.numeric.fp32_mul import PRODUCT, product, round_product
from rtl.numeric.pipeline import wire

LANES = 32


class Mac(Block):
    """acc += a * b while `enable`; `clear` starts a new sum; operands pass on after a cycle."""

    def __init__(self, width: int):
        self.width = width
        super().__init__({
            "enable": In(1), "clear": In(1), "a": In(signed(width)), "b": In(signed(width)),
            "a_next": Out(signed(width)), "b_next": Out(signed(width)), "acc": Out(signed(32)),
        })

    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable):
            m.d.sync += [self.acc.eq(self.a * self.b), self.a_next.eq(self.a), self.b_next.eq(self.b)]
            with m.If(~self.clear):
                m.d.sync += self.acc.eq(self.acc + self.a * self.b)
        return m


class MacArray(Block):
    """`row` selects the row whose sums stand at `sums`."""

    def __init__(self, rows: int, lanes: int, width: int = 8):
        self.rows, self.lanes, self.width = rows, lanes, width
        super().__init__({
            "enable": In(1), "clear": In(1), "row": In(range(rows)), "a": In(data.ArrayLayout(signed(width), rows)),
            "b": In(data.ArrayLayout(signed(width), lanes)), "sums": Out(data.ArrayLayout(signed(32), lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        sums = Signal(data.ArrayLayout(self.sums.shape(), self.rows))
        down = [self.b[k] for k in range(self.lanes)]
        for i in range(self.rows):
            along = self.a[i]
            for k in range(self.lanes):
                mac = Mac(self.width)
                m.submodules[f"mac{i}_{k}"] = shared(mac)
                m.d.comb += [
                    mac.enable.eq(self.enable), mac.clear.eq(self.clear), mac.a.eq(along), mac.b.eq(down[k]), sums[i][k].eq(mac.acc),
                ]
                along, down[k] = mac.a_next, mac.b_next
        m.d.sync += self.sums.as_value().eq(sums[self.row].as_value())
        return m


class Lane(Block):
    """d = bfloat16((a + b) * scale + a), each operation rounded to binary32; 5 cycles, a stage moves while its `enable` is 1."""

    def __init__(self):
        super().__init__({"enable": In(5), "a": In(16), "b": In(16), "scale": In(16), "d": Out(16)})

    def elaborate(self, platform):
        m = Module()
        a = [wire(m, widen_bfloat16(m, self.a, name="wa"), "a0")]
        for k in range(3):
            a.append(Signal(32, reset_less=True, name=f"a{k + 1}"))
            with m.If(self.enable[k]):
                m.d.sync += a[k + 1].eq(a[k])
        total, times = Signal(SUM, reset_less=True), Signal(PRODUCT, reset_less=True)
        scaled, total2 = Signal(32, reset_less=True), Signal(SUM, reset_less=True)
        steps = [
            (total, align_add(m, a[0], widen_bfloat16(m, self.b, name="wb"), name="add")),
            (times, product(m, normalise(m, total, name="norm"), widen_bfloat16(m, self.scale, name="ws"))),
            (scaled, round_product(m, times)),
            (total2, align_add(m, scaled, a[3], name="add2")),
        ]
        for k, (register, value) in enumerate(steps):
            with m.If(self.enable[k]):
                m.d.sync += [register[f].eq(v) for f, v in value.items()] if isinstance(value, dict) else register.eq(value)
        last = narrow_bfloat16(m, normalise(m, total2, name="norm2"))
        with m.If(self.enable[4]):
            m.d.sync += self.d.eq(last)
        return m


class Row(Block):
    """32 lanes side by side."""

    def __init__(self, lanes: int):
        self.lanes = lanes
        word = data.ArrayLayout(16, lanes)
        super().__init__({"enable": In(5), "a": In(word), "b": In(word), "scale": In(16), "d": Out(word)})

    def elaborate(self, platform):
        m = Module()
        for k in range(self.lanes):
            lane = Lane()
            m.submodules[f"lane{k}"] = shared(lane)
            m.d.comb += [
                lane.enable.eq(self.enable), lane.a.eq(self.a[k]), lane.b.eq(self.b[k]), lane.scale.eq(self.scale), self.d[k].eq(lane.d),
            ]
        return m


class Rows(Block):
    """`rows` rows; row i takes the result of row i - 1 as its second operand."""

    def __init__(self, rows: int, lanes: int = LANES):
        self.rows, self.lanes = rows, lanes
        word = data.ArrayLayout(16, lanes)
        super().__init__({"enable": In(5), "a": In(word), "b": In(word), "scale": In(16), "d": Out(word)})

    def elaborate(self, platform):
        m = Module()
        above = self.b
        for i in range(self.rows):
            row = Row(self.lanes)
            m.submodules[f"row{i}"] = shared(row)
            m.d.comb += [row.enable.eq(self.enable), row.scale.eq(self.scale), row.a.eq(self.a), row.b.eq(above)]
            above = row.d
        m.d.comb += self.d.eq(above)
        return m
