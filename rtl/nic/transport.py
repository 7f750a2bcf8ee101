"""The NIC's transport: requests, queue pairs, memory access and completions, between the node and the framer's packet streams.

`Transport(nic, mem)` members
    `request` In stream NIC_REQUEST, `done` Out stream DONE
    `axi`     Out(AXI4Signature): reads of payload to send, writes of payload received
    `tx_meta` Out stream TX_META, `tx_data` Out stream of packet beats;  `rx_meta` In stream RX_META, `rx_data` In stream of packet beats
    `qp_*`, `mr_*`  In(IndexedRegisterSignature): spec.registers
    `nic_tx_packets`, `nic_rx_packets`, `nic_retransmits`, `nic_duplicates`, `nic_naks`, `dropped` Out(32): counters, modulo 2^32;
        `dropped` counts packets refused here, the deframer's come on top

Rules: those of the parts: post (checks), requester (send side), responder (receive side), read_path, write_path, transmit, regions,
queue_pair. Completions of a QP's send queue come in the order of its requests, and so do those of its receive queue; between the two
queues, and between QPs, there is no order.

Latency: request to first `tx_meta` 16 cycles + memory latency + ceil(first packet / 64), when idle; a packet of no payload 10.
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.common.csr import IndexedRegisterSignature
from rtl.common.layouts import layout, packet_layout
from rtl.nic import headers
from rtl.nic.post import Post
from rtl.nic.queue_pair import QpRegisters, ack_layout, qp_bits
from rtl.nic.read_path import ReadPath
from rtl.nic.regions import Regions
from rtl.nic.requester import Requester
from rtl.nic.responder import Responder, outlet_layout
from rtl.nic.transmit import Transmit
from rtl.nic.write_path import WritePath
from spec.interfaces import DONE, NIC_REQUEST, RX_META, TX_META
from spec.packet import READ_RESPONSES
from spec.params import MemParams, NicParams

REGISTERS = ("qp_state", "qp_dest_qp", "qp_dest_node", "qp_sq_psn", "qp_rq_psn", "mr_base", "mr_size", "mr_key", "mr_access")
COUNTERS = ("nic_tx_packets", "nic_rx_packets", "nic_retransmits", "nic_duplicates", "nic_naks")
ACK_QUEUE = 16


def node_members(mem: MemParams) -> dict:
    """Members that the transport and the whole NIC show to the node."""
    return {
        "request": In(stream.Signature(layout(NIC_REQUEST))),
        "done": Out(stream.Signature(layout(DONE))),
        "axi": Out(AXI4Signature.of(mem)),
        **{name: In(IndexedRegisterSignature()) for name in REGISTERS},
        **{name: Out(32) for name in COUNTERS},
    }


class Transport(Block):
    def __init__(self, nic: NicParams, mem: MemParams):
        self.nic, self.mem = nic, mem
        super().__init__({
            **node_members(mem),
            "tx_meta": Out(stream.Signature(layout(TX_META))), "tx_data": Out(stream.Signature(packet_layout())),
            "rx_meta": In(stream.Signature(layout(RX_META))), "rx_data": In(stream.Signature(packet_layout())),
            "dropped": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        nic, mem = self.nic, self.mem
        m.submodules.post = post = Post(nic)
        m.submodules.regions = regions = Regions(nic, mem)
        m.submodules.registers = registers = QpRegisters(nic)
        m.submodules.requester = requester = Requester(nic, mem)
        m.submodules.responder = responder = Responder(nic, mem)
        m.submodules.read_path = read_path = ReadPath(nic, mem)
        m.submodules.write_path = write_path = WritePath(nic, mem)
        m.submodules.transmit = transmit = Transmit(nic)

        for name in REGISTERS:
            connect(m, flipped(getattr(self, name)), getattr(registers if name.startswith("qp") else regions, name))
        connect(m, flipped(self.request), post.request)
        connect(m, post.check, regions.local)
        connect(m, responder.check, regions.remote)
        connect(m, post.send, requester.post)
        connect(m, post.recv, responder.post)
        connect(m, read_path.result, transmit.result)
        connect(m, read_path.flit, transmit.flit)
        connect(m, transmit.read_error, requester.read_error)
        connect(m, responder.ack_out, transmit.ack)
        connect(m, transmit.response_error, responder.response_error)
        connect(m, write_path.landed, requester.landed)
        connect(m, write_path.error, responder.write_error)
        connect(m, flipped(self.rx_data), write_path.data)
        connect(m, transmit.meta, flipped(self.tx_meta))
        connect(m, transmit.data, flipped(self.tx_data))
        connect(m, read_path.axi.ar, flipped(self.axi.ar))
        connect(m, flipped(self.axi.r), read_path.axi.r)
        connect(m, write_path.axi.aw, flipped(self.axi.aw))
        connect(m, write_path.axi.w, flipped(self.axi.w))
        connect(m, flipped(self.axi.b), write_path.axi.b)

        # Packets received: READ responses are the requester's. A packet's owner alone hands its payload on, so payloads stay in order.
        rx, is_response = self.rx_meta, Signal()
        m.d.comb += [
            is_response.eq(headers.is_in(rx.payload.opcode, READ_RESPONSES)),
            responder.meta.payload.eq(rx.payload), requester.response.payload.eq(rx.payload),
            responder.meta.valid.eq(rx.valid & ~is_response), requester.response.valid.eq(rx.valid & is_response),
            rx.ready.eq(Mux(is_response, requester.response.ready, responder.meta.ready)),
            write_path.command.valid.eq(requester.write.valid | responder.write.valid),
            write_path.command.payload.eq(Mux(requester.write.valid, requester.write.payload, responder.write.payload)),
            requester.write.ready.eq(write_path.command.ready), responder.write.ready.eq(write_path.command.ready & ~requester.write.valid),
        ]

        # Packets to send: READ responses go between those of the requester, and leave it the room that it has seen.
        m.submodules.outlet = outlet = SyncFIFO(width=outlet_layout(nic).size, depth=4)
        answer, take = Signal(outlet_layout(nic)), Signal()
        m.d.comb += [
            outlet.w_data.eq(responder.outlet.payload), outlet.w_en.eq(responder.outlet.valid), responder.outlet.ready.eq(outlet.w_rdy),
            answer.eq(outlet.r_data), take.eq(outlet.r_rdy & ~requester.packet.valid & transmit.spare & read_path.spare), outlet.r_en.eq(take),
            transmit.packet.payload.eq(Mux(take, answer.packet, requester.packet.payload)), transmit.packet.valid.eq(take | requester.packet.valid),
            requester.packet.ready.eq(transmit.packet.ready),
            read_path.command.payload.eq(Mux(take, answer.read, requester.read.payload)),
            read_path.command.valid.eq(Mux(take, answer.read.length != 0, requester.read.valid)), requester.read.ready.eq(read_path.command.ready),
        ]

        # Both engines take a write of software in the same cycle, and tell each other of errors.
        m.d.comb += [registers.requester_idle.eq(requester.idle), registers.responder_idle.eq(responder.idle)]
        for engine, side in ((requester, "a"), (responder, "b")):
            m.d.comb += [
                engine.command.eq(registers.command), engine.hold.eq(registers.hold), engine.go.eq(registers.go),
                getattr(registers, f"dest_{side}").eq(engine.dest),
                engine.dest_qp.eq(getattr(registers, f"dest_qp_{side}")), engine.dest_node.eq(getattr(registers, f"dest_node_{side}")),
            ]
        connect(m, requester.state_now, registers.state_now)
        connect(m, requester.psn_now, registers.sq_psn_now)
        connect(m, responder.psn_now, registers.rq_psn_now)

        def queue(name, give, take, width, depth):
            m.submodules[name] = fifo = SyncFIFO(width=width, depth=depth)
            m.d.comb += [
                fifo.w_data.eq(give.payload), fifo.w_en.eq(give.valid), give.ready.eq(fifo.w_rdy),
                take.payload.eq(fifo.r_data), take.valid.eq(fifo.r_rdy), fifo.r_en.eq(take.ready),
            ]

        queue("fault_a", requester.fault_out, responder.fault_in, qp_bits(nic), 4)
        queue("fault_b", responder.fault_out, requester.fault_in, qp_bits(nic), 4)
        queue("acks", responder.ack_in, requester.ack, ack_layout(nic).size, ACK_QUEUE)

        # Completions of both sides, in turn; a choice stands until it is taken.
        turn, locked, pick = Signal(), Signal(), Signal()
        a, b = requester.done, write_path.done
        m.d.comb += [
            pick.eq(Mux(locked, turn, Mux(a.valid & b.valid, turn, b.valid))),
            self.done.valid.eq(Mux(pick, b.valid, a.valid)), self.done.payload.eq(Mux(pick, b.payload, a.payload)),
            a.ready.eq(self.done.ready & ~pick), b.ready.eq(self.done.ready & pick),
        ]
        m.d.sync += locked.eq(self.done.valid & ~self.done.ready)
        with m.If(self.done.valid):
            m.d.sync += turn.eq(pick ^ self.done.ready)

        for counter, pulse in (
            (self.nic_tx_packets, transmit.sent), (self.nic_rx_packets, self.rx_meta.valid & self.rx_meta.ready),
            (self.nic_duplicates, responder.duplicate), (self.nic_naks, responder.nak), (self.dropped, responder.dropped | requester.dropped),
        ):
            with m.If(pulse):
                m.d.sync += counter.eq(counter + 1)
        m.d.comb += self.nic_retransmits.eq(requester.retransmits)
        return m
