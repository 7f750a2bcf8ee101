"""Local memory with a record of what was accepted when, and, with ECC, a flip mask beside every request of port 0."""
from __future__ import annotations

import dataclasses

from amaranth.hdl import Cat, Module
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block
from rtl.pe.local_bank import CODE_ROW
from rtl.pe.local_memory import LocalMemory
from rtl.pe.local_port import LocalPort
from spec.params import PeParams


class LocalHarness(Block):
    """`p0` … as they are (with ECC the payload of `p0__request` has the request and then the mask); `log` gives, for every cycle in which some port
    asks, the ports that were accepted and then the ports that asked. The log does not wait: its sink must not stall."""

    def __init__(self, pe: PeParams, ports: int, ecc: int, first: int | None = None):
        self.pe, self.ports, self.first = dataclasses.replace(pe, ecc=bool(ecc)), ports, first
        port = LocalPort(self.pe)
        flipped_request = data.StructLayout({"request": port.request_layout, "flip": CODE_ROW}) if ecc else port.request_layout
        super().__init__({
            "p0__request": In(stream.Signature(flipped_request)), "p0__response": Out(stream.Signature(port.response_layout)),
            **{f"p{p}": In(port) for p in range(1, ports)},
            "log": Out(stream.Signature(2 * ports)),
            **({"corrected": Out(32), "damaged": Out(32)} if ecc else {}),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = LocalMemory(self.pe, self.ports, first=self.first)
        asks, answers = self.p0__request, self.p0__response
        m.d.comb += [
            memory.p0.request.valid.eq(asks.valid), asks.ready.eq(memory.p0.request.ready),
            answers.valid.eq(memory.p0.response.valid), answers.payload.eq(memory.p0.response.payload), memory.p0.response.ready.eq(answers.ready),
        ]
        if self.pe.ecc:
            m.d.comb += [
                memory.p0.request.payload.eq(asks.payload.request), memory.flip.eq(asks.payload.flip),
                self.corrected.eq(memory.corrected), self.damaged.eq(memory.damaged),
            ]
        else:
            m.d.comb += memory.p0.request.payload.eq(asks.payload)
        ports = [memory.p0]
        for p in range(1, self.ports):
            connect(m, flipped(getattr(self, f"p{p}")), getattr(memory, f"p{p}"))
            ports.append(getattr(memory, f"p{p}"))
        valid, accepted = Cat(p.request.valid for p in ports), Cat(p.request.valid & p.request.ready for p in ports)
        m.d.comb += [self.log.valid.eq(valid.any()), self.log.payload.eq(Cat(accepted, valid))]
        return m
