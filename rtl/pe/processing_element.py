"""A processing element: command processor, units of the matrix, special functions and layout, DMA engine, local memory; two instruction ports, an AXI4 port.

Members
    `core0`, `core1`  In stream INSTRUCTION; `completion` Out stream COMPLETION
    `axi`             AXI4 manager, of the DMA engine
    `clear`, `halt`, `idle`, `failed`, `debug_addr`, `debug_data`  of the command processor
    `mac`             Out(1): a streamed row meets the held ones, `pe.rows` results of a chunk
    `corrected`, `damaged`  Out(32), with ECC: of the local memory

Local memory's ports: the matrix unit's six (its streamed operand goes first), the layout unit's two, the DMA engine's one, the special function unit's three.
"""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import Out, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.pe.command_processor import CommandProcessor
from rtl.pe.dma_unit import DmaUnit
from rtl.pe.layout_port import LayoutPort
from rtl.pe.local_memory import LocalMemory
from rtl.pe.matrix_unit import PORTS, STREAMED, MatrixUnit
from rtl.pe.sfu_unit import PORTS as SFU_PORTS
from rtl.pe.sfu_unit import SfuUnit
from spec.isa import UNITS, Unit
from spec.params import MemParams, PeParams

_CONTROL = ("core0", "core1", "completion", "clear", "halt", "idle", "failed", "debug_addr", "debug_data")


class ProcessingElement(Block):
    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        cp = CommandProcessor(pe).signature.members
        super().__init__({
            **{name: cp[name] for name in _CONTROL}, "axi": Out(AXI4Signature.of(mem)), "mac": Out(1), **({"corrected": Out(32), "damaged": Out(32)} if pe.ecc else {}),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.cp = cp = CommandProcessor(self.pe)
        m.submodules.matrix = matrix = MatrixUnit(self.pe)
        m.submodules.dma = dma = DmaUnit(self.pe, self.mem)
        m.submodules.layout = tiles = LayoutPort(self.pe)
        m.submodules.sfu = sfu = SfuUnit(self.pe)
        ports = [*(getattr(matrix, name) for name in PORTS), tiles.reader, tiles.writer, dma.local_port, *(getattr(sfu, name) for name in SFU_PORTS)]
        m.submodules.local = local = LocalMemory(self.pe, len(ports), first=STREAMED)
        for name in ("core0", "core1"):
            connect(m, flipped(getattr(self, name)), getattr(cp, name))
        connect(m, cp.completion, flipped(self.completion))
        m.d.comb += [
            cp.clear.eq(self.clear), cp.halt.eq(self.halt), cp.debug_addr.eq(self.debug_addr), self.idle.eq(cp.idle), self.failed.eq(cp.failed),
            self.debug_data.eq(cp.debug_data), self.mac.eq(matrix.mac),
        ]
        for name, unit in (("dma", dma), ("layout", tiles), ("sfu", sfu)):
            connect(m, getattr(cp, f"start_{name}"), unit.start)
            connect(m, unit.done, getattr(cp, f"done_{name}"))
        for name in ("dot", "reduce"):
            connect(m, getattr(cp, f"start_{name}"), getattr(matrix, f"start_{name}"))
            connect(m, getattr(matrix, f"done_{name}"), getattr(cp, f"done_{name}"))
        m.d.comb += [cp.alone[UNITS.index(Unit.DOT)].eq(matrix.alone_dot), cp.alone[UNITS.index(Unit.REDUCE)].eq(matrix.alone_reduce), matrix.drop.eq(cp.drop)]
        for k, port in enumerate(ports):
            connect(m, port, getattr(local, f"p{k}"))
        connect(m, dma.axi, flipped(self.axi))
        if self.pe.ecc:
            m.d.comb += [local.flip.eq(0), self.corrected.eq(local.corrected), self.damaged.eq(local.damaged)]
        return m
