"""The NIC: transport, framer and deframer. Requests in, completions out, packets on a 64-byte link, payload in memory.

`Nic(nic, mem)` members
    `request`  In stream NIC_REQUEST;  `done` Out stream DONE
    `axi`      Out(AXI4Signature): manager port
    `link_tx`  Out stream of packet beats;  `link_rx` In stream of packet beats
    `node`     In(16): this node's number
    `qp_state`, `qp_dest_qp`, `qp_dest_node`, `qp_sq_psn`, `qp_rq_psn`, `mr_base`, `mr_size`, `mr_key`, `mr_access`  In(IndexedRegisterSignature)
    `nic_tx_packets`, `nic_rx_packets`, `nic_rx_dropped`, `nic_retransmits`, `nic_duplicates`, `nic_naks`  Out(32): spec.registers

Rules and figures: rtl.nic.transport and its parts. Atomics and selective repeat are not in this form: requests for atomics complete with
LOC_QP_OP_ERR, packets of them are answered with NAK invalid request.
"""
from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block, shared
from rtl.common.layouts import packet_layout
from rtl.nic.deframer import Deframer
from rtl.nic.framer import Framer
from rtl.nic.transport import COUNTERS, REGISTERS, Transport, node_members
from spec.params import MemParams, NicParams


class Nic(Block):
    def __init__(self, nic: NicParams, mem: MemParams):
        self.nic, self.mem = nic, mem
        super().__init__({
            **node_members(mem),
            "link_tx": Out(stream.Signature(packet_layout())), "link_rx": In(stream.Signature(packet_layout())),
            "node": In(16), "nic_rx_dropped": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        transport, framer, deframer = Transport(self.nic, self.mem), Framer(), Deframer(self.nic)
        m.submodules.transport, m.submodules.framer, m.submodules.deframer = shared(transport), shared(framer), shared(deframer)
        for name in REGISTERS:
            connect(m, flipped(getattr(self, name)), getattr(transport, name))
        for name in COUNTERS:
            m.d.comb += getattr(self, name).eq(getattr(transport, name))
        connect(m, flipped(self.request), transport.request)
        connect(m, transport.done, flipped(self.done))
        connect(m, transport.axi, flipped(self.axi))
        connect(m, transport.tx_meta, framer.meta)
        connect(m, transport.tx_data, framer.data)
        connect(m, framer.link, flipped(self.link_tx))
        connect(m, flipped(self.link_rx), deframer.link)
        connect(m, deframer.meta, transport.rx_meta)
        connect(m, deframer.data, transport.rx_data)
        m.d.comb += [framer.node.eq(self.node), deframer.node.eq(self.node)]
        bad_frames = Signal(32)
        with m.If(deframer.dropped):
            m.d.sync += bad_frames.eq(bad_frames + 1)
        m.d.comb += self.nic_rx_dropped.eq(bad_frames + transport.dropped)
        return m
