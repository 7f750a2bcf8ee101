"""A node with its control and host ports on pins for cocotbext-axi, its link looped back to itself or on the bench's streams.

Pins `ctl_aw…` and `host_aw…` (tb/common/pin_bus.py). While `loop` is 1 every beat of the node's link_tx enters its link_rx; else `link_tx` and
`link_rx` are the node's own. `events` is the node's `event`, `pulses` counts event_pulse.
"""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect

from rtl.chip.node import Node
from rtl.common.axi4 import AXI4LiteSignature, AXI4Signature
from rtl.common.block import Block
from rtl.common.layouts import packet_layout
from rtl.common.skid import SkidBuffer
from spec.params import NodeParams
from tb.common.pin_bus import connect_pins, members


class NodeRig(Block):
    def __init__(self, p: NodeParams):
        self.p = p
        beats = stream.Signature(packet_layout())
        super().__init__({
            **members("ctl", AXI4LiteSignature()), **members("host", AXI4Signature.of(p.mem)),
            "link_tx": Out(beats), "link_rx": In(beats), "loop": In(1), "events": Out(32), "pulses": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.node = node = Node(self.p)
        m.submodules.back = back = SkidBuffer(packet_layout())
        connect_pins(m, self, "ctl", node.ctl)
        connect_pins(m, self, "host", node.host)
        connect(m, back.o, node.link_rx)
        tx = node.link_tx
        m.d.comb += [self.link_tx.payload.eq(tx.payload), self.events.eq(node.event)]
        with m.If(self.loop):
            m.d.comb += [back.i.payload.eq(tx.payload), back.i.valid.eq(tx.valid), tx.ready.eq(back.i.ready)]
        with m.Else():
            m.d.comb += [
                self.link_tx.valid.eq(tx.valid), tx.ready.eq(self.link_tx.ready),
                back.i.payload.eq(self.link_rx.payload), back.i.valid.eq(self.link_rx.valid), self.link_rx.ready.eq(back.i.ready),
            ]
        m.d.sync += self.pulses.eq(self.pulses + node.event_pulse)
        return m
