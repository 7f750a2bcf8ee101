"""The unit of the special function unit on a local memory, with a port of the memory (the first one) for the test, and with ECC its `flip`."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import In, connect, flipped

from rtl.common.block import Block
from rtl.pe.local_bank import CODE_ROW
from rtl.pe.local_memory import LocalMemory
from rtl.pe.local_port import LocalPort
from rtl.pe.sfu_unit import PORTS, SfuUnit
from spec.params import PeParams


class SfuUnitHarness(Block):
    def __init__(self, pe: PeParams) -> None:
        self.pe = pe
        unit = SfuUnit(pe).signature.members
        super().__init__({"start": unit["start"], "done": unit["done"], "host": In(LocalPort(pe)), **({"flip": In(CODE_ROW)} if pe.ecc else {})})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = SfuUnit(self.pe)
        m.submodules.memory = memory = LocalMemory(self.pe, len(PORTS) + 1)
        connect(m, flipped(self.start), unit.start)
        connect(m, unit.done, flipped(self.done))
        for k, name in enumerate(PORTS):
            connect(m, getattr(unit, name), getattr(memory, f"p{k + 1}"))
        connect(m, flipped(self.host), memory.p0)
        if self.pe.ecc:
            m.d.comb += memory.flip.eq(self.flip)
        return m
