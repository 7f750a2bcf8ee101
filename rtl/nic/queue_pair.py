"""Queue-pair state: the layouts of its memories, and the registers through which software sets it.

Every QP has a send context (owned by the requester), a receive context (owned by the responder), a ring of `sq_depth` send
entries and one of `rq_depth` receive entries, all in memories indexed by QP: a NIC of 1,024 QPs is the same logic as one of 16.

`QpRegisters(nic)`
    Members
        `qp_state`, `qp_dest_qp`, `qp_dest_node`, `qp_sq_psn`, `qp_rq_psn`  In(IndexedRegisterSignature)
        `command` Out(command_layout), `hold` Out(1)  a write of state or PSN that both engines must take at the same time: while
            `hold` is high they finish what they do and start nothing but pending faults
        `requester_idle`, `responder_idle` In(1), `go` Out(1)  high for the one cycle in which both take `command`
        `dest_a`, `dest_b` In(QP), `dest_qp_a`, `dest_node_a`, … Out  the peer's number, one cycle after the index
        `state_now`, `sq_psn_now`, `rq_psn_now`  QP-indexed writes from the engines, which keep what software reads

Rules
    1. Writes of state and PSN wait in a queue and are applied in order, each at a moment when no event of any QP is half done.
       A read that finds its write, the newest of all, waiting or being applied sees the written value.
    2. Peer numbers are stored at the write.

Latency: a write is applied 2 cycles after it when both engines are idle; an engine event takes at most 4 cycles plus the time for
which `done` is not taken. Reads: 1 cycle.

Assumptions
    A1. Software leaves at least 4 cycles between writes over the long run (an AXI4-Lite write takes 4): the queue of 8 + qps / 4 then
        outlasts the `qps` cycles in which the engines clear their memories after a reset. It overflows only while `done` stays
        blocked (tb/nic/test_transport.py: every test opens its QPs right after the reset).
"""
from __future__ import annotations

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.csr import IndexedRegisterSignature
from rtl.common.layouts import layout
from spec.interfaces import NIC_REQUEST
from spec.packet import PSN_BITS, RNR_UNITS
from spec.params import NicParams

MAX_MESSAGE = 1 << 31  # bytes; at the smallest MTU still half of the PSN space

COMMANDS = ("qp_state", "qp_sq_psn", "qp_rq_psn")  # command_layout.what


def qp_bits(p: NicParams) -> int:
    return exact_log2(p.qps)


def stamp_bits(p: NicParams) -> int:
    """Width of the timers' time: twice the longest wait, and more than looks are apart."""
    return max(26, (p.rnr_timer * max(RNR_UNITS)).bit_length() + 1)


def post_layout() -> data.StructLayout:
    """A request after its checks. `status`: what it must complete with, 0 when it may run; `immediate`: no such QP."""
    return data.StructLayout({"request": layout(NIC_REQUEST), "status": 8, "immediate": 1, "packets": PSN_BITS})


def send_context(p: NicParams) -> data.StructLayout:
    """`head` oldest entry, `send` entry being sent, `good` end of the entries that may be sent, `tail` end; one wrap bit each.

    PSNs: `una` oldest not acknowledged, `nxt` next to send, `top` one above the highest ever sent, `post` first of the next message.
    READ: `reading` from its request to its last byte in memory; its PSNs are `read_first` up to `read_end`; `gap`: a gap in its responses has been answered.
    """
    ptr = exact_log2(p.sq_depth) + 1
    return data.StructLayout({
        "state": 3, "epoch": 2, "queued": 1, "poison": 1, "rnr": 1,
        "head": ptr, "send": ptr, "good": ptr, "tail": ptr,
        "una": PSN_BITS, "nxt": PSN_BITS, "top": PSN_BITS, "post": PSN_BITS,
        "stamp": stamp_bits(p), "retry": 3, "rnr_count": 3, "rnr_code": 5, "since_ack": 10,
        "reading": 1, "gap": 1, "read_first": PSN_BITS, "read_end": PSN_BITS,
    })


def send_entry() -> data.StructLayout:
    return data.StructLayout({
        "tag": 16, "write": 1, "read": 1, "with_imm": 1, "status": 8, "length": 32, "laddr": 64, "raddr": 64, "rkey": 32, "imm": 32,
        "first": PSN_BITS, "last": PSN_BITS,
    })


def receive_context(p: NicParams) -> data.StructLayout:
    """`epsn` expected PSN; `pending`: an ACK or NAK (`syndrome`) waits; `queued`: the QP is in the ACK queue.

    Message in progress: `addr` next byte to write, `remain` bytes left (of the buffer for SEND, of the message for WRITE), `count` done.

    READ being answered (`responding`): `from` next byte to read, `left` bytes left, `response` PSN of the next packet, `fresh`: it is the first;
    `in_line`: the QP is in the queue of those that respond.
    """
    ptr = exact_log2(p.rq_depth) + 1
    return data.StructLayout({
        "state": 3, "epoch": 2, "queued": 1, "poison": 1, "pending": 1, "syndrome": 8,
        "head": ptr, "tail": ptr, "epsn": PSN_BITS, "msn": PSN_BITS,
        "in_message": 1, "write": 1, "nak_sent": 1, "addr": 64, "remain": 32, "count": 32,
        "responding": 1, "in_line": 1, "fresh": 1, "from": 64, "response": PSN_BITS, "left": 32,
    })


def receive_entry() -> data.StructLayout:
    return data.StructLayout({"tag": 16, "status": 8, "length": 32, "laddr": 64})


def command_layout(p: NicParams) -> data.StructLayout:
    """`what` indexes COMMANDS."""
    return data.StructLayout({"what": 2, "qp": qp_bits(p), "data": 24})


def ack_layout(p: NicParams) -> data.StructLayout:
    return data.StructLayout({"qp": qp_bits(p), "psn": PSN_BITS, "syndrome": 8})


def now_signature(p: NicParams, width: int) -> wiring.Signature:
    """What software reads of a context, kept up by its owner."""
    return wiring.Signature({"qp": Out(qp_bits(p)), "value": Out(width), "write": Out(1)})


class QpRegisters(Block):
    def __init__(self, nic: NicParams):
        self.nic = nic
        q = qp_bits(nic)
        members = {name: In(IndexedRegisterSignature())
                   for name in ("qp_state", "qp_dest_qp", "qp_dest_node", "qp_sq_psn", "qp_rq_psn")}
        for side in "ab":
            members |= {f"dest_{side}": In(q), f"dest_qp_{side}": Out(24), f"dest_node_{side}": Out(16)}
        super().__init__({
            **members,
            "command": Out(command_layout(nic)), "hold": Out(1), "go": Out(1),
            "requester_idle": In(1), "responder_idle": In(1),
            "state_now": In(now_signature(nic, 3)), "sq_psn_now": In(now_signature(nic, PSN_BITS)),
            "rq_psn_now": In(now_signature(nic, PSN_BITS)),
        })

    def elaborate(self, platform):
        m = Module()
        q = qp_bits(self.nic)

        # Peer numbers: one write port each, read by both engines and by software.
        for name, width in (("dest_qp", 24), ("dest_node", 16)):
            port = getattr(self, f"qp_{name}")
            mem = Memory(shape=unsigned(width), depth=self.nic.qps, init=[])
            m.submodules[name] = mem
            write = mem.write_port()
            m.d.comb += [write.addr.eq(port.index), write.data.eq(port.wdata), write.en.eq(port.write)]
            for side in "ab":
                read = mem.read_port(transparent_for=(write,))
                m.d.comb += [read.addr.eq(getattr(self, f"dest_{side}")), getattr(self, f"{name}_{side}").eq(read.data)]
            read = mem.read_port(transparent_for=(write,))
            m.d.comb += [read.addr.eq(port.index), port.rdata.eq(read.data)]

        m.submodules.queue = queue = SyncFIFO(width=command_layout(self.nic).size, depth=8 + self.nic.qps // 4)
        entry = Signal(command_layout(self.nic))
        newest = Signal(command_layout(self.nic))
        m.d.comb += [queue.w_data.eq(entry), self.command.eq(queue.r_data), self.hold.eq(queue.r_rdy)]
        for what, name in enumerate(COMMANDS):
            port = getattr(self, name)
            with m.If(port.write):
                m.d.comb += [entry.what.eq(what), entry.qp.eq(port.index[:q]), entry.data.eq(port.wdata), queue.w_en.eq(1)]
                m.d.sync += newest.eq(entry)
        m.d.comb += [
            self.go.eq(self.hold & self.requester_idle & self.responder_idle),
            queue.r_en.eq(self.go),
        ]
        applying = Signal()  # the engines have taken a write and not yet told its outcome
        with m.If(self.go):
            m.d.sync += applying.eq(1)
        with m.Elif(self.requester_idle & self.responder_idle):
            m.d.sync += applying.eq(0)

        for what, name in enumerate(COMMANDS):
            port, now = getattr(self, name), getattr(self, f"{name.removeprefix('qp_')}_now")
            mem = Memory(shape=unsigned(len(now.value)), depth=self.nic.qps, init=[])
            m.submodules[name] = mem
            write = mem.write_port()
            read = mem.read_port(transparent_for=(write,))
            m.d.comb += [
                write.addr.eq(now.qp), write.data.eq(now.value), write.en.eq(now.write),
                read.addr.eq(port.index), port.rdata.eq(read.data),
            ]
            with m.If((queue.r_rdy | applying) & (newest.what == what) & (newest.qp == port.index[:q])):
                m.d.comb += port.rdata.eq(newest.data)
        return m
