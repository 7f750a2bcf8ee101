"""The work-queue engine before a command processor whose units are stand-ins (tb/pe/cp_harness.py); completions are seen as they pass."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import Out, connect, flipped

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.pe.work_queue import WorkQueue
from spec.isa import COMPLETION, UNITS
from spec.params import MemParams, PeParams
from tb.pe.cp_harness import CpHarness

_QUEUE = ("base", "size", "tail", "head", "errors", "busy", "express", "ended", "axi")


class WorkQueueHarness(Block):
    def __init__(self, pe: PeParams, mem: MemParams) -> None:
        self.pe, self.mem = pe, mem
        members = WorkQueue(mem).signature.members
        super().__init__({**{name: members[name] for name in _QUEUE}, "seen": Out(stream.Signature(layout(COMPLETION)))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = WorkQueue(self.mem)
        m.submodules.cp = cp = CpHarness(self.pe)
        for name in _QUEUE:
            port = getattr(self, name)
            if name in ("express", "ended", "axi"):
                connect(m, flipped(port), getattr(queue, name))
            elif name in ("base", "size", "tail"):
                m.d.comb += getattr(queue, name).eq(port)
            else:
                m.d.comb += port.eq(getattr(queue, name))
        for name in ("core0", "core1"):
            connect(m, getattr(queue, name), getattr(cp, name))
        m.d.comb += [
            queue.mac.eq(0), cp.clear.eq(queue.clear), cp.halt.eq(0), cp.debug_addr.eq(0), queue.failed.eq(cp.failed), queue.cp_idle.eq(cp.idle),
            self.seen.payload.eq(cp.completion.payload), self.seen.valid.eq(cp.completion.valid), queue.completion.payload.eq(cp.completion.payload),
            queue.completion.valid.eq(cp.completion.valid & self.seen.ready), cp.completion.ready.eq(self.seen.ready),
            *(getattr(cp, f"trace_{u.name.lower()}").ready.eq(1) for u in UNITS),
        ]
        return m
