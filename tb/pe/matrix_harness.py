"""The matrix unit on a local memory, with a port of the memory for the test."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import In, connect, flipped

from rtl.common.block import Block
from rtl.pe.local_memory import LocalMemory
from rtl.pe.local_port import LocalPort
from rtl.pe.matrix_unit import PORTS, STREAMED, MatrixUnit
from spec.params import PeParams


class MatrixHarness(Block):
    def __init__(self, pe: PeParams) -> None:
        self.pe = pe
        unit = MatrixUnit(pe).signature.members
        super().__init__({**{name: unit[name] for name in ("start_dot", "start_reduce", "done_dot", "done_reduce", "alone_dot", "alone_reduce", "drop")}, "host": In(LocalPort(pe))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = MatrixUnit(self.pe)
        m.submodules.memory = memory = LocalMemory(self.pe, len(PORTS) + 1, first=STREAMED)
        for name in ("start_dot", "start_reduce"):
            connect(m, flipped(getattr(self, name)), getattr(unit, name))
        m.d.comb += [self.alone_dot.eq(unit.alone_dot), self.alone_reduce.eq(unit.alone_reduce), unit.drop.eq(self.drop)]
        for name in ("done_dot", "done_reduce"):
            connect(m, getattr(unit, name), flipped(getattr(self, name)))
        for k, name in enumerate(PORTS):
            connect(m, getattr(unit, name), getattr(memory, f"p{k}"))
        connect(m, flipped(self.host), getattr(memory, f"p{len(PORTS)}"))
        return m
