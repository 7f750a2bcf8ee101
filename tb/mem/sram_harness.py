"""The memory with its last port on pins for cocotbext-axi."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import In, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.mem.sram import Sram
from spec.params import MemParams
from tb.common.pin_bus import connect_pins, members


class SramHarness(Block):
    """`s0` .. `s<ports-2>` as they are; the last port as pins `pin_aw…`."""

    def __init__(self, mem: MemParams, ports: int):
        self.mem, self.ports = mem, ports
        axi = AXI4Signature.of(mem)
        super().__init__({**{f"s{p}": In(axi) for p in range(ports - 1)}, **members("pin", axi)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.sram = sram = Sram(self.mem, self.ports)
        for p in range(self.ports - 1):
            connect(m, flipped(getattr(self, f"s{p}")), getattr(sram, f"s{p}"))
        connect_pins(m, self, "pin", getattr(sram, f"s{self.ports - 1}"))
        return m
