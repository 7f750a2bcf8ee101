"""The DMA engine with a bench memory as its local memory (`near`), and the same with its AXI port on pins for an outside memory model."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.pe.dma.dma import Dma
from spec.dma import DMA_COMPLETION, DMA_DESCRIPTOR
from spec.params import MemParams, PeParams
from tb.common.pin_bus import connect_pins, manager_members
from tb.pe.local_axi import LocalAxi

STREAMS = {"descriptor": In(stream.Signature(layout(DMA_DESCRIPTOR))), "completion": Out(stream.Signature(layout(DMA_COMPLETION)))}


def _join(m: Module, top: Block, pe: PeParams, mem: MemParams) -> Dma:
    m.submodules.dma = dma = Dma(pe, mem)
    m.submodules.adaptor = adaptor = LocalAxi(pe, mem)
    connect(m, flipped(top.descriptor), dma.descriptor)
    connect(m, dma.completion, flipped(top.completion))
    connect(m, dma.local_port, adaptor.port)
    connect(m, adaptor.axi, flipped(top.near))
    return dma


class DmaRig(Block):
    """`descriptor`, `completion`, `axi` as the engine's; `near`: AXI4 manager towards what stands for the local memory."""

    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        super().__init__({**STREAMS, "axi": Out(AXI4Signature.of(mem)), "near": Out(AXI4Signature.of(mem))})

    def elaborate(self, platform):
        m = Module()
        connect(m, _join(m, self, self.pe, self.mem).axi, flipped(self.axi))
        return m


class DmaPins(Block):
    """As DmaRig, with `axi` on pins `pin_aw…`."""

    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        super().__init__({**STREAMS, "near": Out(AXI4Signature.of(mem)), **manager_members("pin", AXI4Signature.of(mem))})

    def elaborate(self, platform):
        m = Module()
        connect_pins(m, self, "pin", _join(m, self, self.pe, self.mem).axi, manager=True)
        return m


def one_in_flight(pe: PeParams, mem: MemParams) -> DmaRig:
    """The smallest engine: one burst of each kind in flight."""
    return DmaRig(pe.replace(dma_depth=1), mem)
