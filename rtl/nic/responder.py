"""Receive side of the transport: sequence check, RECV queues, protection of WRITE, ACKs and NAKs.

One engine serves all QPs, one event at a time. Events, first come first: a fault from the requester; a write of software; a failed memory
write; an ACK to give out when the outlet is free; a packet; a RECV request. A packet is judged and its payload handed to the write path
(or dropped there); nothing here waits for the transmit side: an ACK is a bit in the QP's context and its number in a queue.

Members
    `meta`     In stream RX_META; `write` Out stream write_command: what becomes of the payload, and completions
    `check`    Out(CheckSignature): the remote region
    `post`     In stream post_layout: RECV
    `ack_in`   Out stream ack_layout: ACKs received, to the requester (never waited for: when its queue is full the ACK is lost)
    `ack_out`  Out stream TX_META: ACKs and NAKs to send
    `outlet`   Out stream {packet, read}: READ responses; ready, once it is, stays until one is given
    `response_error`  In stream read_error_layout: memory answered an error for a response's payload; it was not sent
    `write_error`  In stream {qp, epoch}
    `fault_in`, `fault_out`, `dest`, …, `command`, `hold`, `idle`, `go`, `state_now`, `psn_now`  as in the requester
    `dropped`, `duplicate`, `nak`  Out(1)  pulses for the counters

Rules
    1. Packets for an unknown QP, for one not in RTR, RTS or SQD, or from another node than its peer are dropped and counted.
    2. PSN expected: judged as below. Up to 2^23 behind: a duplicate, acknowledged again, never executed. Ahead: dropped; one NAK PSN per gap.
    3. Judgement, first that applies: opcode not SEND or WRITE, opcode sequence, or length (FIRST, MIDDLE: MTU; LAST: 1 to MTU; WRITE: the
       sum of the packets is RETH's length): NAK invalid request. WRITE outside its region or without REMOTE_WRITE: NAK access. First packet of
       a SEND, or last of a WRITE with immediate, without RECV: RNR NAK, not accepted. SEND longer than the RECV: NAK invalid request, RECV
       completes with LOC_LEN_ERR. The last packet of a SEND or of a WRITE with immediate completes the RECV, with the immediate. Otherwise accepted. Every NAK but RNR and PSN puts the QP in ERR; the RECV queue is flushed with WR_FLUSH_ERR.
       READ with payload, inside a message or of more than 2^31 bytes: NAK invalid request; outside its region or without REMOTE_READ: NAK access.
       A READ behind is carried out again when its range is right and its PSNs are behind too, else it has no effect.
       A QP answers one READ: another takes the place of responses still to be given out. Responses go out one a turn, QP by QP, and never keep a
       packet waiting for more than one. A read of memory that fails is a NAK operational with the PSN of its response.
    4. An accepted packet with `ack_req` is acknowledged at once: the ACK says that this NIC is responsible for the data. DONE says that the
       data is in memory. A write that fails later makes the RECV complete with MEM_ERR, sends NAK operational and puts the QP in ERR.
    5. One ACK waits per QP; it carries the newest PSN when it leaves. A duplicate does not replace a NAK that waits.
    6. A RECV with a bad key completes with LOC_PROT_ERR when it reaches the head of its queue, and puts the QP in ERR. RECVs to a QP in
       ERR complete with WR_FLUSH_ERR, in RESET with LOC_QP_OP_ERR.

Latency: packet to write command 3 cycles, to ACK on `ack_out` 6. Interval: 4 cycles a packet, 3 an ACK, 3 a RECV.

Assumptions
    A1. `meta` and its payload are whole and checked (rtl.nic.deframer); payload of every meta follows on the data stream.
"""
from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.nic.queue_pair import (
    MAX_MESSAGE,
    PSN_BITS,
    ack_layout,
    command_layout,
    now_signature,
    post_layout,
    qp_bits,
    receive_context,
    receive_entry,
)
from rtl.nic.regions import CheckSignature
from rtl.nic.requester import packet_entry, read_command, read_error_layout
from rtl.nic.write_path import write_command, write_error
from spec.interfaces import RX_META, TX_META
from spec.packet import Opcode, Syndrome
from spec.params import MemParams, NicParams
from spec.registers import Access, QpState
from spec.wqe import Status


class Event(enum.Enum, shape=3):
    FAULT = 0
    COMMAND = 1
    WRITE_ERROR = 2
    ACK = 3
    PACKET = 4
    POST = 5
    RESPOND = 6
    RESPONSE_ERROR = 7


class Verdict(enum.Enum, shape=4):
    DROP = 0
    IS_ACK = 1
    DUPLICATE = 2
    AHEAD = 3
    NOT_READY = 4
    INVALID = 5
    TOO_LONG = 6
    ACCESS = 7
    ACCEPT = 8
    READ = 9
    AGAIN = 10
    STALE = 11


def outlet_layout(p: NicParams) -> data.StructLayout:
    return data.StructLayout({"packet": packet_entry(p), "read": read_command()})


class Responder(Block):
    def __init__(self, nic: NicParams, mem: MemParams):
        self.nic = nic
        q = qp_bits(nic)
        super().__init__({
            "meta": In(stream.Signature(layout(RX_META))),
            "write": Out(stream.Signature(write_command(nic))),
            "check": Out(CheckSignature()),
            "post": In(stream.Signature(post_layout())),
            "ack_in": Out(stream.Signature(ack_layout(nic))),
            "ack_out": Out(stream.Signature(layout(TX_META))),
            "outlet": Out(stream.Signature(outlet_layout(nic))), "response_error": In(stream.Signature(read_error_layout(nic))),
            "write_error": In(stream.Signature(write_error(nic))),
            "fault_in": In(stream.Signature(q)), "fault_out": Out(stream.Signature(q)),
            "dest": Out(q), "dest_qp": In(24), "dest_node": In(16),
            "command": In(command_layout(nic)), "hold": In(1), "idle": Out(1), "go": In(1),
            "state_now": Out(now_signature(nic, 3)), "psn_now": Out(now_signature(nic, PSN_BITS)),
            "dropped": Out(1), "duplicate": Out(1), "nak": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        p = self.nic
        q, depth_bits = qp_bits(p), exact_log2(p.rq_depth)
        ctx_layout = receive_context(p)

        contexts = Memory(shape=ctx_layout, depth=p.qps, init=[])
        m.submodules.contexts = contexts
        ctx_rd, ctx_wr = contexts.read_port(), contexts.write_port()
        entries = Memory(shape=receive_entry(), depth=p.qps * p.rq_depth, init=[])
        m.submodules.entries = entries
        rq_rd, rq_wr = entries.read_port(), entries.write_port()
        m.submodules.readers = readers = SyncFIFO(width=q, depth=p.qps)  # QPs that answer a READ
        served = Signal()  # the last event but one was a response: a packet's turn
        m.submodules.acks = acks = SyncFIFO(width=q, depth=p.qps)

        event, qp = Signal(Event), Signal(q)
        c, n = Signal(ctx_layout), Signal(ctx_layout)
        e = rq_rd.data
        picked, picked_qp, busy = Signal(Event), Signal(q), Signal()
        post_full = Signal()
        command = Signal(command_layout(p))
        error, reset, tell = Signal(), Signal(), Signal()
        first_status = Signal(8)
        lost = Signal(write_error(p))

        meta, post, out, write = self.meta.payload, self.post.payload, self.ack_out.payload, self.write.payload
        is_read = Signal()
        m.d.comb += [
            n.eq(c), ctx_wr.addr.eq(qp), ctx_wr.data.eq(n),
            self.state_now.qp.eq(qp), self.state_now.value.eq(n.state), self.state_now.write.eq(ctx_wr.en),
            self.psn_now.qp.eq(qp), self.psn_now.value.eq(n.epsn), self.psn_now.write.eq(ctx_wr.en),
            self.dest.eq(qp), acks.w_data.eq(qp), self.fault_out.payload.eq(qp),
            ctx_rd.en.eq(0), rq_rd.en.eq(0),
            self.check.key.eq(meta.rkey), self.check.addr.eq(meta.va), self.check.length.eq(meta.dma_len),
            self.check.need.eq(Mux(is_read, Access.REMOTE_READ.value, Access.REMOTE_WRITE.value)),
            self.ack_in.payload.qp.eq(qp), self.ack_in.payload.psn.eq(meta.psn), self.ack_in.payload.syndrome.eq(meta.syndrome),
            write.qp.eq(qp), write.epoch.eq(c.epoch), write.length.eq(0),
        ]
        with m.If(ctx_wr.en & n.pending & ~n.queued):
            m.d.comb += [acks.w_en.eq(1), ctx_wr.data.queued.eq(1)]
        with m.If(ctx_wr.en & n.responding & ~n.in_line):
            m.d.comb += [readers.w_en.eq(1), ctx_wr.data.in_line.eq(1)]

        def answer(syndrome):
            return [n.pending.eq(1), n.syndrome.eq(syndrome)]

        # What a packet is, from its opcode.
        op = meta.opcode
        is_send, is_write, immediate = Signal(), Signal(), Signal()
        only, starts, ends, full_size, completes = Signal(), Signal(), Signal(), Signal(), Signal()

        def one_of(*codes):
            return reduce(or_, (op == code.value for code in codes))

        m.d.comb += [
            is_read.eq(op == Opcode.READ_REQUEST), is_send.eq(op <= Opcode.SEND_ONLY_IMM), is_write.eq(~is_send & (op <= Opcode.WRITE_ONLY_IMM)),
            immediate.eq(one_of(Opcode.SEND_LAST_IMM, Opcode.SEND_ONLY_IMM, Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM)),
            only.eq(one_of(Opcode.SEND_ONLY, Opcode.SEND_ONLY_IMM, Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM)),
            starts.eq(only | one_of(Opcode.SEND_FIRST, Opcode.WRITE_FIRST)), ends.eq(only | immediate | one_of(Opcode.SEND_LAST, Opcode.WRITE_LAST)),
            completes.eq(ends & (is_send | immediate)),
            full_size.eq(meta.length == p.mtu),
        ]
        live, sequence, size_right, total_right = Signal(), Signal(), Signal(), Signal()
        distance, room = Signal(PSN_BITS), Signal(32)
        verdict = Signal(Verdict)
        target = Signal(64)
        m.d.comb += [
            live.eq(((c.state == QpState.RTR) | (c.state == QpState.RTS) | (c.state == QpState.SQD))
                    & (self.dest_node == meta.src_node) & (meta.dest_qp < p.qps)),
            distance.eq(meta.psn - c.epsn),
            sequence.eq(Mux(starts, ~c.in_message, c.in_message & (c.write == is_write))),
            size_right.eq(Mux(ends, (meta.length <= p.mtu) & (starts | (meta.length != 0)), full_size)),
            room.eq(Mux(starts, Mux(is_write, meta.dma_len, e.length), c.remain)),
            total_right.eq(is_send | Mux(ends, room == meta.length, room > meta.length)),
        ]

        # READ: responses that its range takes, and whether it may be carried out.
        shift = exact_log2(p.mtu)
        responses, read_right = Signal(PSN_BITS + 1), Signal()
        m.d.comb += [
            responses.eq(Mux(meta.dma_len == 0, 1, (meta.dma_len + (p.mtu - 1)) >> shift)),
            read_right.eq((meta.length == 0) & (meta.dma_len <= MAX_MESSAGE)),
        ]

        # The next packet of a READ's answer.
        size, final = Signal(13), Signal()
        packet, give = self.outlet.payload.packet, self.outlet.payload.read
        reply = packet.meta
        m.d.comb += [
            final.eq(c.left <= p.mtu), size.eq(Mux(final, c.left, p.mtu)), readers.w_data.eq(qp),
            packet.qp.eq(qp), packet.epoch.eq(c.epoch), packet.response.eq(1), give.addr.eq(c["from"]), give.length.eq(size),
            reply.opcode.eq(Opcode.READ_RESPONSE_FIRST.value + Mux(final, Mux(c.fresh, 3, 2), ~c.fresh)), reply.psn.eq(c.response),
            reply.dest_node.eq(self.dest_node), reply.dest_qp.eq(self.dest_qp), reply.length.eq(size), reply.syndrome.eq(Syndrome.ACK), reply.msn.eq(c.msn),
        ]

        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):  # memories keep their contents over a reset: every context starts from zero
                m.d.comb += [n.eq(0), ctx_wr.en.eq(1)]
                m.d.sync += qp.eq(qp + 1)
                with m.If(qp == p.qps - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                m.d.comb += [ctx_rd.addr.eq(picked_qp), self.dest.eq(picked_qp), self.idle.eq(~self.fault_in.valid), ctx_rd.en.eq(busy)]
                m.d.sync += [event.eq(picked), qp.eq(picked_qp), error.eq(0), reset.eq(0), tell.eq(0), first_status.eq(Status.WR_FLUSH_ERR)]
                with m.If(self.fault_in.valid):
                    m.d.comb += [busy.eq(1), picked.eq(Event.FAULT), picked_qp.eq(self.fault_in.payload), self.fault_in.ready.eq(1)]
                with m.Elif(self.hold):
                    m.d.comb += [busy.eq(self.go), picked.eq(Event.COMMAND), picked_qp.eq(self.command.qp)]
                    m.d.sync += command.eq(self.command)
                with m.Elif(self.write_error.valid):
                    m.d.comb += [busy.eq(1), picked.eq(Event.WRITE_ERROR), picked_qp.eq(self.write_error.payload.qp)]
                    m.d.comb += self.write_error.ready.eq(1)
                    m.d.sync += lost.eq(self.write_error.payload)
                with m.Elif(acks.r_rdy & ~self.ack_out.valid):
                    m.d.comb += [busy.eq(1), picked.eq(Event.ACK), picked_qp.eq(acks.r_data), acks.r_en.eq(1)]
                with m.Elif(self.response_error.valid):
                    m.d.comb += [busy.eq(1), picked.eq(Event.RESPONSE_ERROR), picked_qp.eq(self.response_error.payload.qp)]
                with m.Elif(readers.r_rdy & self.outlet.ready & ~(served & self.meta.valid & self.write.ready)):
                    m.d.comb += [busy.eq(1), picked.eq(Event.RESPOND), picked_qp.eq(readers.r_data), readers.r_en.eq(1)]
                    m.d.sync += served.eq(1)
                with m.Elif(self.meta.valid & self.write.ready):
                    m.d.comb += [busy.eq(1), picked.eq(Event.PACKET), picked_qp.eq(meta.dest_qp[:q])]
                    m.d.sync += served.eq(0)
                with m.Elif(self.post.valid & ~post_full):
                    m.d.comb += [busy.eq(1), picked.eq(Event.POST), picked_qp.eq(post.request.qpn[:q])]
                with m.If(busy):
                    m.next = "FETCH"

            with m.State("FETCH"):
                m.d.sync += c.eq(ctx_rd.data)
                m.d.comb += [rq_rd.addr.eq(Cat(ctx_rd.data.head[:depth_bits], qp)), rq_rd.en.eq(event == Event.PACKET)]
                with m.Switch(event):
                    for one in Event:
                        with m.Case(one):
                            m.next = one.name

            with m.State("FAULT"):
                m.next = "IDLE"
                with m.If((c.state != QpState.ERR) & (c.state != QpState.RESET)):
                    m.d.sync += error.eq(1)
                    m.next = "LOOP"

            with m.State("COMMAND"):
                value = command.data
                m.next = "IDLE"
                with m.Switch(command.what):
                    with m.Case(0):
                        with m.If((value == QpState.RESET) | (value == QpState.ERR)):
                            m.d.sync += [error.eq(1), reset.eq(value == QpState.RESET)]
                            m.next = "LOOP"
                        with m.Elif((c.state != QpState.ERR) & (value < QpState.ERR)):
                            m.d.comb += [n.state.eq(value), ctx_wr.en.eq(1)]
                    with m.Case(2):
                        with m.If(c.state <= QpState.RTR):
                            m.d.comb += [n.epsn.eq(value), ctx_wr.en.eq(1)]

            with m.State("WRITE_ERROR"):
                m.next = "IDLE"
                with m.If((c.state != QpState.ERR) & (c.state != QpState.RESET) & (c.epoch == lost.epoch)):
                    m.d.comb += answer(Syndrome.NAK_OPERATIONAL)
                    m.d.sync += [c.eq(n), error.eq(1), tell.eq(1)]
                    m.next = "LOOP"

            with m.State("RESPONSE_ERROR"):
                gone = self.response_error.payload
                m.d.comb += self.response_error.ready.eq(1)
                m.next = "IDLE"
                with m.If((c.state != QpState.ERR) & (c.state != QpState.RESET) & (c.epoch == gone.epoch)):
                    m.d.comb += [*answer(Syndrome.NAK_OPERATIONAL), n.epsn.eq(gone.psn)]  # the NAK is of the response that cannot be sent
                    m.d.sync += [c.eq(n), error.eq(1), tell.eq(1)]
                    m.next = "LOOP"

            with m.State("RESPOND"):
                m.d.comb += [n.in_line.eq(0), ctx_wr.en.eq(1), self.outlet.valid.eq(c.responding)]
                with m.If(c.responding):
                    m.d.comb += [
                        n["from"].eq(c["from"] + size), n.left.eq(c.left - size), n.response.eq(c.response + 1), n.fresh.eq(0), n.responding.eq(~final),
                    ]
                m.next = "IDLE"

            with m.State("ACK"):
                m.d.comb += [n.pending.eq(0), n.queued.eq(0), ctx_wr.en.eq(1)]
                with m.If(c.pending):
                    m.d.sync += [
                        self.ack_out.valid.eq(1), out.opcode.eq(Opcode.ACK), out.dest_node.eq(self.dest_node),
                        out.dest_qp.eq(self.dest_qp), out.syndrome.eq(c.syndrome), out.msn.eq(c.msn),
                        out.psn.eq(Mux(c.syndrome == Syndrome.ACK, c.epsn - 1, c.epsn)),
                    ]
                    m.d.comb += self.nak.eq(c.syndrome != Syndrome.ACK)
                m.next = "IDLE"

            with m.State("PACKET"):
                m.next = "APPLY"
                m.d.sync += [verdict.eq(Verdict.ACCEPT), target.eq(Mux(starts, Mux(is_write, meta.va, e.laddr), c.addr))]
                with m.If(~live):
                    m.d.sync += verdict.eq(Verdict.DROP)
                with m.Elif(op == Opcode.ACK):
                    m.d.sync += verdict.eq(Verdict.IS_ACK)
                with m.Elif(distance[PSN_BITS - 1]):
                    m.d.sync += verdict.eq(Verdict.DUPLICATE)
                    with m.If(is_read):
                        m.d.sync += verdict.eq(Mux(read_right & self.check.ok & (responses <= (c.epsn - meta.psn)[:PSN_BITS]), Verdict.AGAIN, Verdict.STALE))
                with m.Elif(distance != 0):
                    m.d.sync += verdict.eq(Verdict.AHEAD)
                with m.Elif(is_read & ~c.in_message & read_right):
                    m.d.sync += verdict.eq(Mux(self.check.ok, Verdict.READ, Verdict.ACCESS))
                with m.Elif(~(is_send | is_write) | ~sequence | ~size_right | ~total_right):
                    m.d.sync += verdict.eq(Verdict.INVALID)
                with m.Elif(is_write & starts & ~self.check.ok):
                    m.d.sync += verdict.eq(Verdict.ACCESS)
                with m.Elif(((is_send & starts) | immediate) & (c.head == c.tail)):
                    m.d.sync += verdict.eq(Verdict.NOT_READY)
                with m.Elif(is_send & (meta.length > room)):
                    m.d.sync += verdict.eq(Verdict.TOO_LONG)

            with m.State("APPLY"):
                m.d.comb += [
                    self.meta.ready.eq(1), ctx_wr.en.eq(1),
                    write.drop.eq(verdict != Verdict.ACCEPT), write.addr.eq(target), write.length.eq(meta.length),
                    write.send.eq(is_send), write.tag.eq(e.tag), self.write.valid.eq(meta.length != 0),
                ]
                m.next = "IDLE"
                with m.Switch(verdict):
                    with m.Case(Verdict.DROP):
                        m.d.comb += [self.dropped.eq(1), ctx_wr.en.eq(0)]
                    with m.Case(Verdict.IS_ACK):
                        m.d.comb += [self.ack_in.valid.eq(1), ctx_wr.en.eq(0)]
                    with m.Case(Verdict.DUPLICATE):
                        m.d.comb += [self.duplicate.eq(1), n.pending.eq(1)]
                        with m.If(~c.pending):
                            m.d.comb += n.syndrome.eq(Syndrome.ACK)
                    with m.Case(Verdict.STALE):
                        m.d.comb += self.duplicate.eq(1)
                    with m.Case(Verdict.READ, Verdict.AGAIN):
                        m.d.comb += [
                            n.responding.eq(1), n.fresh.eq(1), n["from"].eq(meta.va), n.left.eq(meta.dma_len), n.response.eq(meta.psn),
                            self.duplicate.eq(verdict == Verdict.AGAIN),
                        ]
                        with m.If(verdict == Verdict.READ):
                            m.d.comb += [n.epsn.eq(c.epsn + responses), n.msn.eq(c.msn + 1), n.nak_sent.eq(0)]
                    with m.Case(Verdict.AHEAD):
                        with m.If(~c.nak_sent):
                            m.d.comb += [*answer(Syndrome.NAK_PSN), n.nak_sent.eq(1)]
                    with m.Case(Verdict.NOT_READY):
                        m.d.comb += [*answer(Syndrome.RNR_NAK | p.rnr_code), n.nak_sent.eq(1)]
                    with m.Case(Verdict.ACCEPT):
                        count = Signal(32)
                        m.d.comb += [
                            count.eq(Mux(starts, 0, c.count) + meta.length),
                            n.epsn.eq(c.epsn + 1), n.nak_sent.eq(0), n.in_message.eq(~ends), n.write.eq(is_write),
                            n.addr.eq(target + meta.length), n.remain.eq(room - meta.length), n.count.eq(count),
                            write.emit.eq(completes), write.byte_len.eq(count), write.imm.eq(Mux(immediate, meta.imm, 0)),
                        ]
                        with m.If(meta.ack_req):
                            m.d.comb += answer(Syndrome.ACK)
                        with m.If(ends):
                            m.d.comb += n.msn.eq(c.msn + 1)
                        with m.If(completes):
                            m.d.comb += [n.head.eq(c.head + 1), self.write.valid.eq(1)]
                            m.d.sync += [post_full.eq(0), c.eq(ctx_wr.data)]
                            with m.If(c.poison):
                                m.next = "LOOP"
                    with m.Default():
                        with m.Switch(verdict):
                            with m.Case(Verdict.ACCESS):
                                m.d.comb += answer(Syndrome.NAK_ACCESS)
                            with m.Default():
                                m.d.comb += answer(Syndrome.NAK_INVALID)
                        m.d.comb += ctx_wr.en.eq(0)
                        m.d.sync += [c.eq(n), error.eq(1), tell.eq(1)]
                        with m.If(verdict == Verdict.TOO_LONG):
                            m.d.sync += first_status.eq(Status.LOC_LEN_ERR)
                        m.next = "LOOP"

            with m.State("POST"):
                full = Signal()
                m.d.comb += [
                    full.eq((c.tail - c.head)[:depth_bits + 1] == p.rq_depth),
                    rq_wr.addr.eq(Cat(c.tail[:depth_bits], qp)), rq_wr.data.tag.eq(post.request.tag),
                    rq_wr.data.status.eq(Mux(c.poison, Status.WR_FLUSH_ERR.value, post.status)),
                    rq_wr.data.length.eq(post.request.length), rq_wr.data.laddr.eq(post.request.laddr),
                    write.tag.eq(post.request.tag), write.emit.eq(1),
                    write.status.eq(Mux(c.state == QpState.ERR, Status.WR_FLUSH_ERR.value, Status.LOC_QP_OP_ERR.value)),
                ]
                m.next = "IDLE"
                with m.If((c.state == QpState.ERR) | (c.state == QpState.RESET)):
                    m.d.comb += [self.write.valid.eq(1), self.post.ready.eq(self.write.ready)]
                    with m.If(~self.write.ready):
                        m.next = "POST"
                with m.Elif(full):
                    m.d.sync += post_full.eq(1)
                with m.Else():
                    m.d.comb += [rq_wr.en.eq(1), self.post.ready.eq(1), n.tail.eq(c.tail + 1), ctx_wr.en.eq(1)]
                    m.d.sync += c.eq(ctx_wr.data)
                    with m.If(c.poison | (post.status != 0)):
                        m.d.comb += n.poison.eq(1)
                        m.next = "LOOP"

            with m.State("LOOP"):
                m.d.comb += [rq_rd.addr.eq(Cat(c.head[:depth_bits], qp)), rq_rd.en.eq(1)]
                m.next = "ENTRY"
                with m.If(c.head == c.tail):
                    m.next = "END"

            with m.State("ENTRY"):
                m.d.comb += [
                    self.write.valid.eq(error | (e.status != 0)), write.tag.eq(e.tag), write.emit.eq(1),
                    write.status.eq(Mux(error, first_status, e.status)),
                    write.info.eq(Mux(~error & (e.status == Status.LOC_PROT_ERR), e.laddr, 0)), n.head.eq(c.head + 1),
                ]
                with m.If(~self.write.valid):
                    m.next = "END"
                with m.Elif(self.write.ready):
                    m.d.sync += [c.eq(n), first_status.eq(Status.WR_FLUSH_ERR), post_full.eq(0)]
                    with m.If(~error):
                        m.d.sync += [error.eq(1), tell.eq(1)]
                    m.next = "LOOP"

            with m.State("END"):
                m.d.comb += ctx_wr.en.eq(1)
                m.d.sync += post_full.eq(0)
                m.next = "IDLE"
                with m.If(error):
                    m.d.comb += [n.state.eq(QpState.ERR), n.in_message.eq(0), n.poison.eq(0), n.responding.eq(0)]
                with m.If(reset):
                    m.d.comb += [n.eq(0), n.queued.eq(c.queued), n.in_line.eq(c.in_line), n.epoch.eq(c.epoch + 1)]
                with m.If(tell):
                    m.d.comb += [self.fault_out.valid.eq(1), ctx_wr.en.eq(self.fault_out.ready)]
                    with m.If(~self.fault_out.ready):
                        m.next = "END"
        with m.If(self.ack_out.valid & self.ack_out.ready):
            m.d.sync += self.ack_out.valid.eq(0)
        return m
