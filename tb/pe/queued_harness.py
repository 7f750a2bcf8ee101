"""The queued element with its control port on plain pins, for cocotbext-axi."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import connect, flipped

from rtl.common.axi4 import AXI4LiteSignature
from rtl.common.block import Block
from rtl.pe.queued_element import QueuedElement
from spec.params import MemParams, PeParams
from tb.common.pin_bus import connect_pins, members


class QueuedHarness(Block):
    """Pins `ctl_aw…`, and the element's other ports; nothing is halted, `debug_addr` is 0."""

    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        inner = QueuedElement(pe, mem).signature.members
        super().__init__({**members("ctl", AXI4LiteSignature()), **{name: inner[name] for name in ("express", "ended", "axi", "idle", "failed")}})

    def elaborate(self, platform):
        m = Module()
        m.submodules.element = element = QueuedElement(self.pe, self.mem)
        connect_pins(m, self, "ctl", element.ctl)
        connect(m, flipped(self.express), element.express)
        connect(m, element.ended, flipped(self.ended))
        connect(m, element.axi, flipped(self.axi))
        m.d.comb += [element.halt.eq(0), element.debug_addr.eq(0), self.idle.eq(element.idle), self.failed.eq(element.failed)]
        return m
