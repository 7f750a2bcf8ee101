"""Front end of the NIC's requests: looks at each once, and sends it to the side that keeps it.

Members
    `request`  In stream NIC_REQUEST
    `check`    Out(CheckSignature): local protection
    `send`     Out stream post_layout: to the requester (SEND, WRITE, with or without immediate, READ, and everything that cannot run)
    `recv`     Out stream post_layout: to the responder (RECV)

`status` of what goes out: LOC_QP_OP_ERR (an opcode that is not in CARRIED_OUT; or no such QP, with `immediate` set), LOC_LEN_ERR
(more than 2^31 bytes), LOC_PROT_ERR (region, bounds; RECV and READ need LOCAL_WRITE), else 0. A request waits here while the queue of its QP is
full, and with it everything behind it.

Latency 3 cycles, interval 4.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.nic.queue_pair import MAX_MESSAGE, post_layout
from rtl.nic.regions import CheckSignature
from spec.interfaces import NIC_REQUEST
from spec.params import NicParams
from spec.registers import Access
from spec.wqe import Op, Status

CARRIED_OUT = (Op.SEND, Op.SEND_IMM, Op.RECV, Op.WRITE, Op.WRITE_IMM, Op.READ)


class Post(Block):
    def __init__(self, nic: NicParams):
        self.nic = nic
        super().__init__({
            "request": In(stream.Signature(layout(NIC_REQUEST))),
            "check": Out(CheckSignature()),
            "send": Out(stream.Signature(post_layout())),
            "recv": Out(stream.Signature(post_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        r, out = Signal(layout(NIC_REQUEST)), Signal(post_layout())
        to_recv = Signal()
        shift = exact_log2(self.nic.mtu)
        known = Signal()
        m.d.comb += [
            known.eq(Cat(r.opcode == op for op in CARRIED_OUT).any()),
            self.check.key.eq(r.lkey), self.check.addr.eq(r.laddr), self.check.length.eq(r.length),
            self.check.need.eq(Mux((r.opcode == Op.RECV) | (r.opcode == Op.READ), Access.LOCAL_WRITE.value, 0)),
            self.send.payload.eq(out), self.recv.payload.eq(out),
        ]
        with m.FSM():
            with m.State("TAKE"):
                m.d.comb += self.request.ready.eq(1)
                m.d.sync += r.eq(self.request.payload)
                with m.If(self.request.valid):
                    m.next = "LOOK"
            with m.State("LOOK"):
                m.next = "CHECK"
            with m.State("CHECK"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                packets = Signal(33)
                m.d.comb += packets.eq((r.length + (self.nic.mtu - 1)) >> shift)
                m.d.sync += [
                    out.request.eq(r), out.status.eq(Status.SUCCESS), out.immediate.eq(0), to_recv.eq(r.opcode == Op.RECV),
                    out.packets.eq(Mux(r.length == 0, 1, packets)),
                ]
                with m.If(~known):
                    m.d.sync += out.status.eq(Status.LOC_QP_OP_ERR)
                with m.Elif(r.length > MAX_MESSAGE):
                    m.d.sync += out.status.eq(Status.LOC_LEN_ERR)
                with m.Elif(~self.check.ok):
                    m.d.sync += out.status.eq(Status.LOC_PROT_ERR)
                with m.If(r.qpn >= self.nic.qps):
                    m.d.sync += [out.status.eq(Status.LOC_QP_OP_ERR), out.immediate.eq(1), to_recv.eq(0)]
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += [self.send.valid.eq(~to_recv), self.recv.valid.eq(to_recv)]
                with m.If((self.send.ready & ~to_recv) | (self.recv.ready & to_recv)):
                    m.next = "TAKE"
        return m
