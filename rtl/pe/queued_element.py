"""A processing element driven by jobs: registers, work-queue engine and element behind a control port and one AXI4 port.

        ctl ─AXI4-Lite─ registers ─┐
        express ───────────────────┴► work-queue engine ─core0, core1─► processing element
                                          │        ◄── completions ──       │ DMA engine
                                          └──────────► merge ◄──────────────┘
                                                         └── axi

Members
    `ctl`       In AXI4-Lite: registers of spec.work_queue (REGISTERS)
    `express`   In stream JOB; `ended` Out stream JOB_END
    `axi`       Out AXI4 manager: the DMA engine's transactions with id 0, the work-queue engine's in the upper half of the ids
    `halt`, `idle`, `failed`, `debug_addr`, `debug_data`  of the command processor
    `corrected`, `damaged`  Out(32), with ECC: of the local memory

Parameters: `pe`, `mem`. Latency: that of the parts, nothing is added; a doorbell by `ctl` shows 4 cycles after the later of AW and W (rtl.common.csr).

Assumptions: those of the parts (rtl.pe.work_queue, rtl.common.axi_merge, rtl.pe.processing_element).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4LiteSignature, AXI4Signature
from rtl.common.axi_merge import AxiMerge
from rtl.common.block import Block, shared
from rtl.common.csr import CsrBank
from rtl.pe.processing_element import ProcessingElement
from rtl.pe.work_queue import WorkQueue
from spec.params import MemParams, PeParams
from spec.work_queue import REGISTERS

_DEBUG = ("halt", "idle", "failed", "debug_addr", "debug_data")


class QueuedElement(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        element, queue = ProcessingElement(pe, mem).signature.members, WorkQueue(mem).signature.members
        ecc = ("corrected", "damaged") if pe.ecc else ()
        super().__init__({
            "ctl": In(AXI4LiteSignature()), "express": queue["express"], "ended": queue["ended"], "axi": Out(AXI4Signature.of(mem)),
            **{name: element[name] for name in (*_DEBUG, *ecc)},
        })

    def elaborate(self, platform):
        m = Module()
        element = ProcessingElement(self.pe, self.mem)
        m.submodules.element = shared(element)
        m.submodules.queue = queue = WorkQueue(self.mem)
        m.submodules.registers = csr = CsrBank(REGISTERS)
        m.submodules.merge = merge = AxiMerge(self.mem, 2)
        connect(m, flipped(self.ctl), csr.bus)
        connect(m, flipped(self.express), queue.express)
        connect(m, queue.ended, flipped(self.ended))
        for name in ("core0", "core1"):
            connect(m, getattr(queue, name), getattr(element, name))
        connect(m, element.completion, queue.completion)
        connect(m, element.axi, merge.m0)
        connect(m, queue.axi, merge.m1)
        connect(m, merge.axi, flipped(self.axi))
        rows = Signal(32)
        m.d.sync += rows.eq(rows + element.mac)
        m.d.comb += [
            queue.base.eq(Cat(csr.jq_base, csr.jq_base_high)), queue.size.eq(csr.jq_size), queue.tail.eq(csr.jq_tail), csr.jq_head.eq(queue.head),
            csr.jq_state.eq(queue.busy), csr.jq_errors.eq(queue.errors), csr.mac_rows.eq(rows), queue.mac.eq(element.mac),
            queue.failed.eq(element.failed), queue.cp_idle.eq(element.idle), element.clear.eq(queue.clear), element.halt.eq(self.halt),
            element.debug_addr.eq(self.debug_addr), self.idle.eq(element.idle), self.failed.eq(element.failed), self.debug_data.eq(element.debug_data),
        ]
        if self.pe.ecc:
            m.d.comb += [self.corrected.eq(element.corrected), self.damaged.eq(element.damaged)]
        return m
