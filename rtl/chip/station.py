"""A node with both ends of its link: what stands at each port of the switch.

    node ── link_tx ──► faults ──► up link ──► `up`        `down` ──► down link ──► link_rx ── node

Contract
    `up` and `down` are packet streams; `up.valid`, `up.payload` and `down.ready` depend on registers alone, so a simulator may move
    words between stations and the switch once a cycle. Faults (drop, duplicate, reorder, corrupt; probabilities of 65536 per frame)
    exist only with `faults`, stall gates inside the node only with `gates`; else those ports have no effect.

Parameters: `p` (SystemParams), `faults`, `gates`.
Members: `ctl` AXI4-Lite subordinate, `up` Out, `down` In, `event` Out(32), `stall`, `p_drop`, `p_dup`, `p_reorder`, `p_corrupt` In(16),
    `seed` In(32). The node's host port is tied off.
Latency: that of the link each way.

Assumptions
    A1. `seed` and the probabilities hold still while frames are under way (the rtl device sets them before it starts).
"""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.chip.node import Node
from rtl.common.axi4 import AXI4LiteSignature
from rtl.common.block import Block, shared
from rtl.common.layouts import packet_layout
from rtl.net.faults import Faults
from rtl.net.link import Link
from spec.params import SystemParams

FAULTS = ("p_drop", "p_dup", "p_reorder", "p_corrupt")


class Station(Block):
    def __init__(self, p: SystemParams, faults: bool = False, gates: bool = False):
        self.p, self.faults, self.gates = p, faults, gates
        super().__init__({
            "ctl": In(AXI4LiteSignature()), "event": Out(32),
            "up": Out(stream.Signature(packet_layout())), "down": In(stream.Signature(packet_layout())),
            "stall": In(16), "seed": In(32), **{f: In(16) for f in FAULTS},
        })

    def elaborate(self, platform):
        m = Module()
        node = Node(self.p.node, self.gates)
        m.submodules.node = shared(node)
        up, down = Link(self.p.link), Link(self.p.link)
        m.submodules.up, m.submodules.down = shared(up), shared(down)
        connect(m, flipped(self.ctl), node.ctl)
        m.d.comb += [self.event.eq(node.event), node.stall.eq(self.stall)]
        if self.faults:
            faults = Faults()
            m.submodules.faults = shared(faults)
            m.d.comb += [faults.seed.eq(self.seed), *(getattr(faults, f).eq(getattr(self, f)) for f in FAULTS)]
            connect(m, node.link_tx, faults.i)
            connect(m, faults.o, up.i)
        else:
            connect(m, node.link_tx, up.i)
        connect(m, up.o, flipped(self.up))
        connect(m, flipped(self.down), down.i)
        connect(m, down.o, node.link_rx)
        return m
