"""Matrix unit: dot-product and reduction engines with the units that give them their operands and take their results.

Members
    `start_dot`, `start_reduce` In streams START; `done_dot`, `done_reduce` Out streams UNIT_DONE
    `mac`  Out(1): a streamed row meets the held ones
    `port_a`, `port_b`, `port_sa`, `port_sb`, `port_bias`, `port_d`  Out(LocalPort)
    `alone_dot`, `alone_reduce` Out(1): an instruction waits for its other half, and nothing before it is at work; with `drop` In(1) such a one ends in ALONE

A DOT and a REDUCE instruction belong together, the n-th of each, and either may have been given first; both have the same sizes, otherwise REDUCE ends in RANGE.
The parts: :mod:`rtl.pe.product_pairs`, :mod:`rtl.pe.dot_unit`, :mod:`rtl.pe.dot_product`, :mod:`rtl.pe.reduction`, :mod:`rtl.pe.reduce_unit`.
"""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.pe.dot_product import DotProduct
from rtl.pe.dot_unit import HELD, DotUnit
from rtl.pe.local_port import LocalPort
from rtl.pe.product_pairs import ProductPairs
from rtl.pe.reduce_unit import ReduceUnit
from rtl.pe.reduction import Reduction
from spec.isa import START, UNIT_DONE
from spec.params import PeParams

PORTS = ("port_a", "port_b", "port_sa", "port_sb", "port_bias", "port_d")
STREAMED = PORTS.index("port_b")  # takes a row every cycle: local memory serves it first


class MatrixUnit(Block):
    def __init__(self, pe: PeParams):
        self.pe = pe
        start, done = In(stream.Signature(layout(START))), Out(stream.Signature(layout(UNIT_DONE)))
        super().__init__({
            "start_dot": start, "start_reduce": start, "done_dot": done, "done_reduce": done, **{name: Out(LocalPort(pe)) for name in PORTS},
            "mac": Out(1), "alone_dot": Out(1), "alone_reduce": Out(1), "drop": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.dot = dot = DotUnit(self.pe)
        m.submodules.engine = engine = DotProduct(self.pe)
        m.submodules.banks = banks = Reduction(self.pe)
        m.submodules.reduce = reduce = ReduceUnit(self.pe)
        m.submodules.pairs = pairs = ProductPairs(2 * HELD)
        for name in ("start_dot", "start_reduce"):
            connect(m, flipped(getattr(self, name)), getattr(pairs, name))
        for name in ("done_dot", "done_reduce"):
            connect(m, getattr(pairs, name), flipped(getattr(self, name)))
        m.d.comb += [self.alone_dot.eq(pairs.alone_dot), self.alone_reduce.eq(pairs.alone_reduce), pairs.drop.eq(self.drop), reduce.odd.eq(pairs.odd)]
        for a, b in ((pairs.dot, dot.start), (pairs.reduce, reduce.start), (dot.done, pairs.dot_done), (reduce.done, pairs.reduce_done),
                     (dot.held, engine.held), (dot.row, engine.row), (engine.result, banks.sums), (reduce.fill, banks.fill),
                     (reduce.drain, banks.drain), (reduce.bias, banks.bias), (banks.memory, reduce.memory)):
            connect(m, a, b)
        m.d.comb += [banks.sfu.ready.eq(1), banks.neighbour.ready.eq(1), self.mac.eq(engine.row.valid & engine.row.ready)]
        for unit, names in ((dot, PORTS[:4]), (reduce, PORTS[4:])):
            for name in names:
                connect(m, getattr(unit, name), flipped(getattr(self, name)))
        return m
