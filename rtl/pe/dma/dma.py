"""DMA engine of a processing element: descriptors in, bytes moved between memory and local memory, one completion each, in order.

Contract (records: spec/dma.py; tables: docs/blocks/dma.md)
    1. Rows are moved as if one after the other, in the order of the descriptors, each as memmove would: a source that touches what an earlier row, of this or
       of an earlier descriptor, is still writing waits for it. A row whose destination starts inside its own source, behind the first byte, is refused.
    2. Any byte address, any length. Only bytes of the rows are written (strobes). Whole words are read, never beyond those that a row touches.
    3. Bursts: INCR, id 0, whole words, one per row and 4 KiB page. `r` is never held back.
    4. One completion per descriptor, in order, when everything it wrote is visible: status, and the failing address. A descriptor that fails has moved
       every row before the one it stopped at; from a failed read on nothing is written; a failed write stops nothing.

Parameters: `pe.dma_depth`: bursts in flight to memory, reads and writes each; `pe.local_bytes`. Up to 4 * dma_depth descriptors are held.
Members: `descriptor` In stream DMA_DESCRIPTOR, `completion` Out stream DMA_COMPLETION, `axi` AXI4 manager, `local_port` LocalPort.
Latency: `descriptor` to `ar` 4 cycles: front end, mid end, legaliser, read side, one each. A word read to `w` or the local port 6. Interval: a descriptor a cycle
(those of one row of one word), a word a cycle, without a bubble between bursts, rows or descriptors (rtl.pe.dma.realign says where one is).

Assumptions
    A1. Memory answers every burst, in order: AXI4, one id.
    A2. The local memory keeps the rules of LocalPort.
    A3. Memory is not written by others where a descriptor reads it, nor read where it writes, before its completion: the command processor's duty.
"""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.pe.dma.back_end import DmaBackEnd
from rtl.pe.dma.front_end import DmaFrontEnd
from rtl.pe.dma.layouts import outcome_layout
from rtl.pe.dma.legaliser import DmaLegaliser
from rtl.pe.dma.mid_end import DmaMidEnd
from rtl.pe.dma.write_side import waiting
from rtl.pe.local_port import LocalPort
from spec.dma import DMA_COMPLETION, DMA_DESCRIPTOR
from spec.params import MemParams, PeParams


class Dma(Block):
    """See the module's contract.

    Raises:
        ValueError: the local memory needs more address bits than memory.
    """

    def __init__(self, pe: PeParams, mem: MemParams):
        if pe.local_bytes > 1 << mem.addr_width:
            raise ValueError(f"PeParams.local_bytes = {pe.local_bytes}: expected at most 2^addr_width = {1 << mem.addr_width}")
        self.pe, self.mem = pe, mem
        super().__init__({
            "descriptor": In(stream.Signature(layout(DMA_DESCRIPTOR))), "completion": Out(stream.Signature(layout(DMA_COMPLETION))),
            "axi": Out(AXI4Signature.of(mem)), "local_port": Out(LocalPort(pe)),
        })

    def elaborate(self, platform):
        m = Module()
        depth = self.pe.dma_depth
        descriptors, rows = 4 * depth, max(4, 2 * depth)
        m.submodules.front_end = front = DmaFrontEnd(self.pe, descriptors)
        m.submodules.mid_end = mid = DmaMidEnd(self.pe, self.mem, rows + waiting(depth) + 4)
        m.submodules.legaliser = legal = DmaLegaliser(self.mem, rows)
        m.submodules.back_end = back = DmaBackEnd(self.pe, self.mem)
        connect(m, flipped(self.descriptor), front.descriptor)
        connect(m, front.completion, flipped(self.completion))
        connect(m, front.job, mid.job)
        connect(m, mid.row, legal.row)
        connect(m, legal.read, back.read)
        connect(m, legal.write, back.write)
        connect(m, legal.move, back.move)
        connect(m, mid.request, back.index)
        connect(m, back.index_word, mid.word_in)
        connect(m, back.axi, flipped(self.axi))
        connect(m, back.local_port, flipped(self.local_port))
        m.d.comb += [mid.done_near.eq(back.done_near), mid.done_far.eq(back.done_far)]
        for name, source, sink in (("finished", back.finished, front.finished), ("stopped", mid.stopped, back.stopped)):
            m.submodules[name] = queue = SyncFIFO(width=outcome_layout().size, depth=descriptors)
            m.d.comb += [
                queue.w_data.eq(source.payload), queue.w_en.eq(source.valid), source.ready.eq(queue.w_rdy),
                sink.payload.eq(queue.r_data), sink.valid.eq(queue.r_rdy), queue.r_en.eq(sink.ready),
            ]
        return m
