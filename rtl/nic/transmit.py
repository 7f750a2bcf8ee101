"""Outlet of the NIC's packets: holds a packet until its payload is whole, drops it when memory failed, lets ACKs go first.

Members
    `packet`  In stream {meta, qp, epoch}, `result` In stream {error, addr}, `flit` In stream: from the requester and the read path
    `ack`     In stream TX_META: ACKs and NAKs of the responder
    `meta`    Out stream TX_META, `data` Out stream of packet beats: to the framer
    `read_error`, `response_error`  Out stream {qp, epoch, psn, addr}: the packet, a READ response or another, was dropped: its payload could not be read
    `spare`   Out(1)  there is room for two packets
    `sent`    Out(1)  one pulse per packet given to the framer

Rules
    1. A packet's meta appears only when all of its payload is in the buffer, so the link never waits for memory inside a packet.
    2. An ACK goes before every packet not yet given out; at most two packets are given out ahead of the framer.

Latency: last flit in the buffer to `meta` 2 cycles. Interval: 1 packet a cycle, 1 flit a cycle.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import layout, packet_layout
from rtl.nic.read_path import flit_layout, result_layout
from rtl.nic.requester import packet_entry, read_error_layout
from spec.interfaces import TX_META
from spec.params import NicParams

WAITING = 8  # packets whose payload is not whole yet


class Transmit(Block):
    def __init__(self, nic: NicParams):
        self.nic = nic
        super().__init__({
            "packet": In(stream.Signature(packet_entry(nic))),
            "result": In(stream.Signature(result_layout())),
            "flit": In(stream.Signature(flit_layout())),
            "ack": In(stream.Signature(layout(TX_META))),
            "meta": Out(stream.Signature(layout(TX_META))),
            "data": Out(stream.Signature(packet_layout())),
            "read_error": Out(stream.Signature(read_error_layout(nic))),
            "response_error": Out(stream.Signature(read_error_layout(nic))),
            "sent": Out(1), "spare": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.waiting = waiting = SyncFIFO(width=packet_entry(self.nic).size, depth=WAITING)
        m.submodules.metas = metas = SyncFIFO(width=TX_META.bits, depth=2)
        m.submodules.orders = orders = SyncFIFO(width=1, depth=4)  # per payload in the buffer: drop it
        m.submodules.errors = errors = SyncFIFO(width=read_error_layout(self.nic).size + 1, depth=2)
        head, gone = Signal(packet_entry(self.nic)), Signal(read_error_layout(self.nic))
        m.d.comb += [
            waiting.w_data.eq(self.packet.payload), waiting.w_en.eq(self.packet.valid), self.packet.ready.eq(waiting.w_rdy),
            head.eq(waiting.r_data),
            self.meta.payload.eq(metas.r_data), self.meta.valid.eq(metas.r_rdy), metas.r_en.eq(self.meta.ready),
            gone.qp.eq(head.qp), gone.epoch.eq(head.epoch), gone.psn.eq(head.meta.psn), gone.addr.eq(self.result.payload.addr),
            errors.w_data.eq(Cat(gone, head.response)), self.spare.eq(waiting.w_level <= WAITING - 2),
            self.read_error.payload.eq(errors.r_data[:-1]), self.read_error.valid.eq(errors.r_rdy & ~errors.r_data[-1]),
            self.response_error.payload.eq(errors.r_data[:-1]), self.response_error.valid.eq(errors.r_rdy & errors.r_data[-1]),
            errors.r_en.eq(Mux(errors.r_data[-1], self.response_error.ready, self.read_error.ready)),
            self.sent.eq(metas.w_en), metas.w_data.eq(head.meta),
        ]
        empty = head.meta.length == 0
        with m.If(self.ack.valid):
            m.d.comb += metas.w_data.eq(self.ack.payload)
            with m.If(metas.w_rdy):
                m.d.comb += [metas.w_en.eq(1), self.ack.ready.eq(1)]
        with m.Elif(waiting.r_rdy & empty):
            with m.If(metas.w_rdy):
                m.d.comb += [metas.w_en.eq(1), waiting.r_en.eq(1)]
        with m.Elif(waiting.r_rdy & self.result.valid & orders.w_rdy):
            with m.If(self.result.payload.error):
                with m.If(errors.w_rdy):
                    m.d.comb += [errors.w_en.eq(1), orders.w_en.eq(1), orders.w_data.eq(1), waiting.r_en.eq(1), self.result.ready.eq(1)]
            with m.Elif(metas.w_rdy):
                m.d.comb += [metas.w_en.eq(1), orders.w_en.eq(1), waiting.r_en.eq(1), self.result.ready.eq(1)]

        out, flit = self.data.payload, self.flit.payload
        first = Signal(init=1)
        drop, move = Signal(), Signal()
        m.d.comb += [
            drop.eq(orders.r_data), self.data.valid.eq(orders.r_rdy & ~drop & self.flit.valid),
            self.flit.ready.eq(orders.r_rdy & (drop | self.data.ready)), move.eq(self.flit.valid & self.flit.ready),
            orders.r_en.eq(move & flit.last),
            out.data.eq(flit.data), out.first.eq(first), out.last.eq(flit.last),
            out.keep.eq(~0),
        ]
        with m.If(flit.last & (flit.count != 0)):
            m.d.comb += out.keep.eq((1 << flit.count) - 1)
        with m.If(move):
            m.d.sync += first.eq(flit.last)
        return m
