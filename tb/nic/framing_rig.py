"""Tops of the framing benches: the deframer with its drops as a stream, and framer and deframer back to back."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block, shared
from rtl.common.layouts import layout, packet_layout
from rtl.nic.deframer import Deframer
from rtl.nic.framer import Framer
from spec.interfaces import RX_META, TX_META
from spec.params import NicParams


class DeframerRig(Block):
    """The deframer; `drops` gives the reason of each dropped frame (its sink must always be ready)."""

    def __init__(self, nic: NicParams) -> None:
        self.nic = nic
        super().__init__({
            "node": In(16),
            "link": In(stream.Signature(packet_layout(64))),
            "meta": Out(stream.Signature(layout(RX_META))),
            "data": Out(stream.Signature(packet_layout(64))),
            "drops": Out(stream.Signature(4)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        deframer = Deframer(self.nic)
        m.submodules.deframer = shared(deframer)
        connect(m, flipped(self.link), deframer.link)
        connect(m, deframer.meta, flipped(self.meta))
        connect(m, deframer.data, flipped(self.data))
        m.d.comb += [
            deframer.node.eq(self.node),
            self.drops.valid.eq(deframer.dropped),
            self.drops.payload.eq(deframer.reason),
        ]
        return m


class FramingLoop(Block):
    """A framer whose link ends in a deframer of the same node, with the smallest buffer for its MTU."""

    def __init__(self, mtu: int, rx_buffer_flits: int) -> None:
        self.nic = NicParams(mtu=mtu, rx_buffer_flits=rx_buffer_flits)
        super().__init__({
            "node": In(16),
            "tx_meta": In(stream.Signature(layout(TX_META))),
            "tx_data": In(stream.Signature(packet_layout(64))),
            "meta": Out(stream.Signature(layout(RX_META))),
            "data": Out(stream.Signature(packet_layout(64))),
            "dropped": Out(16),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        framer, deframer = Framer(), Deframer(self.nic)
        m.submodules.framer, m.submodules.deframer = shared(framer), shared(deframer)
        connect(m, flipped(self.tx_meta), framer.meta)
        connect(m, flipped(self.tx_data), framer.data)
        connect(m, framer.link, deframer.link)
        connect(m, deframer.meta, flipped(self.meta))
        connect(m, deframer.data, flipped(self.data))
        m.d.comb += [framer.node.eq(self.node), deframer.node.eq(self.node)]
        with m.If(deframer.dropped):
            m.d.sync += self.dropped.eq(self.dropped + 1)
        return m
