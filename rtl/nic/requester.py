"""Send side of the transport: send queues, PSNs, segmentation, window, acknowledgements, go-back-N, timers, completions.

One engine serves all QPs, one event at a time, on a context read from memory and written back. Events, first come first:
a fault from the responder; a write of software; a payload read error; an overdue timer look; an ACK or NAK; a packet to send; a new
request; a timer look.

Members
    `post`        In stream post_layout: SEND and WRITE, with or without immediate, READ, and whatever cannot run
    `ack`         In stream ack_layout: ACKs and NAKs received
    `read`        Out stream {addr, length}: payload of the packet just pushed on `packet` (packets of length 0 have none)
    `packet`      Out stream {meta: TX_META, qp, epoch}: packets in the order in which they leave
    `read_error`  In stream {qp, epoch, psn, addr}: memory answered an error for this packet's payload; it was not sent
    `response`    In stream RX_META: READ responses received, `write` Out stream write_command: what becomes of their payload
    `landed`      In stream landed_layout: the payload of a READ is in memory, or memory refused some of it
    `dropped`     Out(1)  pulse: a response that nobody waits for
    `done`        Out stream DONE
    `fault_in`, `fault_out`  streams of QP: the other engine (this one) has put the QP in error
    `dest`, `dest_qp`, `dest_node`  peer of a QP, one cycle after `dest`
    `command`, `hold`, `idle`, `go`  writes of software, see queue_pair.QpRegisters
    `state_now`, `psn_now`  what software reads
    `retransmits` Out(32)  go-back-N restarts

Rules
    1. A QP with packets to send and window to send them waits in a queue; the QP at its head sends until its message ends or its window
       (`window` unacknowledged packets) is full. So QPs alternate message by message.
    2. PSNs are given to a message when it is queued: one per packet, at least one. They wrap at 2^24; comparisons are modulo 2^24.
    3. `ack_req` is set on the last packet of a message, on every `ack_every`-th packet, and on the one that fills the window.
    4. An ACK or NAK counts only when its PSN lies in [una, top): sent and not acknowledged; others are ignored. ACK n acknowledges up to
       n, any NAK up to n-1. Messages wholly acknowledged complete with SUCCESS, in order.
    5. NAK PSN: sending restarts at the oldest unacknowledged packet, if any was sent since it last did. RNR NAK: the same after `rnr_timer` cycles for each unit of its code, or
       when an ACK comes before, at most `rnr_retries` times without progress (7: no limit), then RNR_RETRY_EXC_ERR. `timeout` cycles without
       progress after a packet was sent: restart. A restart more than `retries` without progress, for a NAK or a timeout, is RETRY_EXC_ERR.
       Other NAKs: REM_INV_REQ_ERR (and codes the standard reserves), REM_ACCESS_ERR, REM_OP_ERR. Bit 7 of a syndrome is reserved and ignored.
    6. A request that cannot run (protection, length, opcode) is queued and completes with its error when all before it are done.
    7. Any error puts the QP in ERR: the message at fault completes with the error, everything else queued with WR_FLUSH_ERR, and the
       responder flushes its queue. Software writing ERR or RESET flushes the same way; RESET also clears the PSNs.
    8. SQD holds new messages and sends nothing; ACKs count as in RTS. In other states requests complete at once: WR_FLUSH_ERR in ERR,
       otherwise LOC_QP_OP_ERR. QpState writes other than RESET are
       ignored in ERR; a write of sq_psn is ignored above RTR.
    9. READ takes a PSN for each response. Its request leaves when all before it was sent, and nothing follows it until its last byte is in memory:
       `reading`. ACKs and NAKs acknowledge nothing of it. Responses come in order from the oldest that is missing, and acknowledge what was before
       the READ. One further on shows a loss: once until the next comes, sending restarts as for a NAK PSN. A restart asks for the rest. Responses
       while no request is out are dropped; one that is due with a wrong length or opcode ends the READ in BAD_RESP_ERR.

Latency: request on `post` to `packet` 6 cycles when idle. Interval: 3 cycles a packet, 3 a request, 3 an ACK and 2 for each message it completes.

Assumptions
    A1. `fault_out` is never full for long: the responder takes faults before anything else (tb/nic/test_transport.py: test_flush).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.nic.queue_pair import (
    PSN_BITS,
    ack_layout,
    command_layout,
    now_signature,
    post_layout,
    qp_bits,
    send_context,
    send_entry,
    stamp_bits,
)
from rtl.nic.write_path import landed_layout, write_command
from spec.interfaces import DONE, RX_META, TX_META
from spec.packet import RNR_UNITS, Opcode, Syndrome
from spec.params import MemParams, NicParams
from spec.registers import QpState
from spec.wqe import Op, Status


class Event(enum.Enum, shape=4):
    FAULT = 0
    COMMAND = 1
    READ_ERROR = 2
    TIMER = 3
    ACK = 4
    SEND = 5
    POST = 6
    RESPONSE = 7
    LANDED = 8


def packet_entry(p: NicParams) -> data.StructLayout:
    return data.StructLayout({"meta": layout(TX_META), "qp": qp_bits(p), "epoch": 2, "response": 1})


def read_error_layout(p: NicParams) -> data.StructLayout:
    return data.StructLayout({"qp": qp_bits(p), "epoch": 2, "psn": PSN_BITS, "addr": 64})


def read_command() -> data.StructLayout:
    return data.StructLayout({"addr": 64, "length": 13})


class Requester(Block):
    def __init__(self, nic: NicParams, mem: MemParams):
        self.nic = nic
        q = qp_bits(nic)
        super().__init__({
            "post": In(stream.Signature(post_layout())),
            "ack": In(stream.Signature(ack_layout(nic))),
            "read": Out(stream.Signature(read_command())),
            "packet": Out(stream.Signature(packet_entry(nic))),
            "read_error": In(stream.Signature(read_error_layout(nic))),
            "response": In(stream.Signature(layout(RX_META))), "write": Out(stream.Signature(write_command(nic))),
            "landed": In(stream.Signature(landed_layout(nic))), "dropped": Out(1),
            "done": Out(stream.Signature(layout(DONE))),
            "fault_in": In(stream.Signature(q)), "fault_out": Out(stream.Signature(q)),
            "dest": Out(q), "dest_qp": In(24), "dest_node": In(16),
            "command": In(command_layout(nic)), "hold": In(1), "idle": Out(1), "go": In(1),
            "state_now": Out(now_signature(nic, 3)), "psn_now": Out(now_signature(nic, PSN_BITS)),
            "retransmits": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        p = self.nic
        q, depth_bits = qp_bits(p), exact_log2(p.sq_depth)
        ctx_layout = send_context(p)

        contexts = Memory(shape=ctx_layout, depth=p.qps, init=[])
        m.submodules.contexts = contexts
        ctx_rd, ctx_wr = contexts.read_port(), contexts.write_port()
        entries = Memory(shape=send_entry(), depth=p.qps * p.sq_depth, init=[])
        m.submodules.entries = entries
        sq_rd, sq_wr = entries.read_port(), entries.write_port()
        m.submodules.ready = ready = SyncFIFO(width=q, depth=p.qps)

        event, qp = Signal(Event), Signal(q)
        c, n = Signal(ctx_layout), Signal(ctx_layout)  # the context, and what it becomes
        e = sq_rd.data
        picked, picked_qp = Signal(Event), Signal(q)
        current, current_valid = Signal(q), Signal()
        post_full = Signal()
        now = Signal(stamp_bits(p))
        m.d.sync += now.eq(now + 1)

        # The loop that completes entries from the head on: what ends it, and with what.
        error, match, reset, rewind = Signal(), Signal(), Signal(), Signal()
        tell = Signal()
        error_status, error_psn, error_info = Signal(8), Signal(PSN_BITS), Signal(64)
        command = Signal(command_layout(p))
        ack_psn, ack_syndrome = Signal(PSN_BITS), Signal(7)  # bit 7 is reserved

        # Timer looks: one QP every `interval` cycles.
        interval = max(4, min(p.timeout, p.rnr_timer) // (4 * p.qps))
        age, look, look_qp, overdue = Signal(range(interval + 1)), Signal(), Signal(q), Signal(5)
        m.d.sync += age.eq(age + 1)
        with m.If(age == interval - 1):
            m.d.sync += [age.eq(0), look.eq(1)]
        with m.If(look & ~overdue.all()):
            m.d.sync += overdue.eq(overdue + 1)

        def fail(status, psn, info):
            """The entry holding `psn` completes with `status`; the QP goes to ERR."""
            return [error.eq(1), match.eq(1), error_status.eq(status), error_psn.eq(psn), error_info.eq(info)]

        sendable, busy, active = Signal(), Signal(), Signal()
        m.d.comb += [
            active.eq((c.state == QpState.RTS) | (c.state == QpState.SQD)),
            sendable.eq((n.state == QpState.RTS) & (n.send != n.good) & ~n.rnr & ((n.nxt - n.una)[:PSN_BITS] < p.window)
                        & ~(n.reading & (n.nxt == n.read_end))),
            n.eq(c),
            ctx_wr.addr.eq(qp), ctx_wr.data.eq(n),
            self.state_now.qp.eq(qp), self.state_now.value.eq(n.state), self.state_now.write.eq(ctx_wr.en),
            self.psn_now.qp.eq(qp), self.psn_now.value.eq(n.top), self.psn_now.write.eq(ctx_wr.en),
            self.dest.eq(qp), ready.w_data.eq(qp),
            self.fault_out.payload.eq(qp),
            ctx_rd.en.eq(0), sq_rd.en.eq(0),
        ]
        with m.If(ctx_wr.en & sendable & ~n.queued):
            m.d.comb += [ready.w_en.eq(1), ctx_wr.data.queued.eq(1)]

        # Packet about to leave, from the context and the entry being sent.
        shift = exact_log2(p.mtu)
        meta = self.packet.payload.meta
        index, offset, length = Signal(PSN_BITS), Signal(32), Signal(16)
        first, last, ask, message_op, rest = Signal(), Signal(), Signal(), Signal(8), Signal(32)
        nxt1 = Signal(PSN_BITS)
        m.d.comb += [
            index.eq(c.nxt - e.first), first.eq(index == 0), last.eq((c.nxt == e.last) | e.read),
            nxt1.eq(Mux(e.read, e.last, c.nxt) + 1),
            offset.eq(index << shift), length.eq(Mux(e.read, 0, Mux(last, e.length - offset, p.mtu))),
            ask.eq(last | (c.since_ack == p.ack_every - 1) | ((nxt1 - c.una)[:PSN_BITS] == p.window)),
            message_op.eq(Mux(e.write, Opcode.WRITE_FIRST.value, 0) + Mux(first, Mux(last, Opcode.SEND_ONLY.value, 0), Mux(last, 2, 1))
                          + (last & e.with_imm)),
            meta.opcode.eq(Mux(e.read, Opcode.READ_REQUEST.value, message_op)),
            meta.imm.eq(e.imm), rest.eq(Mux(e.read, offset, 0)),
            meta.ack_req.eq(ask), meta.dest_node.eq(self.dest_node), meta.dest_qp.eq(self.dest_qp), meta.psn.eq(c.nxt),
            meta.length.eq(length), meta.va.eq(e.raddr + rest), meta.rkey.eq(e.rkey), meta.dma_len.eq(e.length - rest),
            self.packet.payload.qp.eq(qp), self.packet.payload.epoch.eq(c.epoch),
            self.read.payload.addr.eq(e.laddr + offset), self.read.payload.length.eq(length),
        ]
        can_send = Signal()
        m.d.comb += can_send.eq((current_valid | ready.r_rdy) & self.read.ready & self.packet.ready)

        done = self.done.payload
        post = self.post.payload
        m.d.comb += done.qpn.eq(qp)
        progress, in_window, unacked = Signal(), Signal(), Signal(PSN_BITS)
        landed = Signal()  # the READ at the head is in memory

        # A READ response: its place among those of the READ, and the place of the one that is due.
        got, write = self.response.payload, self.write.payload
        place, due, before = Signal(PSN_BITS), Signal(PSN_BITS), Signal()
        wanted, in_turn, final, fits = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            before.eq((c.una - c.read_first)[PSN_BITS - 1]), due.eq(Mux(before, 0, c.una - c.read_first)), place.eq(got.psn - c.read_first),
            wanted.eq(active & (self.dest_node == got.src_node) & (got.dest_qp < p.qps) & c.reading & (c.una != c.read_end) & (c.nxt == c.read_end)
                      & (place >= due) & (place < (c.read_end - c.read_first)[:PSN_BITS])),
            in_turn.eq(wanted & (place == due)), final.eq((got.psn + 1)[:PSN_BITS] == c.read_end),
            fits.eq((((got.opcode == Opcode.READ_RESPONSE_LAST) | (got.opcode == Opcode.READ_RESPONSE_ONLY)) == final)
                    & (got.length == Mux(final, (e.length - (place << shift))[:16], p.mtu))),
            write.qp.eq(qp), write.epoch.eq(c.epoch), write.read.eq(1), write.length.eq(got.length), write.addr.eq(e.laddr + (place << shift)),
            write.drop.eq(~(in_turn & fits)), write.notify.eq(in_turn & fits & final),
        ]
        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):  # memories keep their contents over a reset: every context starts from zero
                m.d.comb += [n.eq(0), ctx_wr.en.eq(1)]
                m.d.sync += qp.eq(qp + 1)
                with m.If(qp == p.qps - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                m.d.comb += [ctx_rd.addr.eq(picked_qp), self.dest.eq(picked_qp), self.idle.eq(~self.fault_in.valid), ctx_rd.en.eq(busy)]
                m.d.sync += [event.eq(picked), qp.eq(picked_qp), error.eq(0), match.eq(0), reset.eq(0), rewind.eq(0), tell.eq(0), landed.eq(0)]
                with m.If(self.fault_in.valid):
                    m.d.comb += [busy.eq(1), picked.eq(Event.FAULT), picked_qp.eq(self.fault_in.payload), self.fault_in.ready.eq(1)]
                with m.Elif(self.hold):
                    m.d.comb += [busy.eq(self.go), picked.eq(Event.COMMAND), picked_qp.eq(self.command.qp)]
                    m.d.sync += command.eq(self.command)
                with m.Elif(self.read_error.valid):
                    m.d.comb += [busy.eq(1), picked.eq(Event.READ_ERROR), picked_qp.eq(self.read_error.payload.qp)]
                with m.Elif(self.landed.valid):
                    m.d.comb += [busy.eq(1), picked.eq(Event.LANDED), picked_qp.eq(self.landed.payload.qp)]
                with m.Elif(self.response.valid & self.write.ready & ~overdue.all()):
                    m.d.comb += [busy.eq(1), picked.eq(Event.RESPONSE), picked_qp.eq(got.dest_qp[:q])]
                with m.Elif(self.ack.valid & ~overdue.all()):
                    m.d.comb += [busy.eq(1), picked.eq(Event.ACK), picked_qp.eq(self.ack.payload.qp), self.ack.ready.eq(1)]
                    m.d.sync += [ack_psn.eq(self.ack.payload.psn), ack_syndrome.eq(self.ack.payload.syndrome[:7])]
                with m.Elif(can_send & ~overdue.all()):
                    m.d.comb += [busy.eq(1), picked.eq(Event.SEND), picked_qp.eq(Mux(current_valid, current, ready.r_data))]
                    m.d.comb += ready.r_en.eq(~current_valid)
                with m.Elif(self.post.valid & ~post_full & ~overdue.all()):
                    m.d.comb += [busy.eq(1), picked.eq(Event.POST), picked_qp.eq(post.request.qpn[:q])]
                with m.Elif(look):
                    m.d.comb += [busy.eq(1), picked.eq(Event.TIMER), picked_qp.eq(look_qp)]
                    m.d.sync += [look.eq(0), overdue.eq(0), look_qp.eq(look_qp + 1)]
                with m.If(busy):
                    m.next = "FETCH"

            with m.State("FETCH"):
                m.d.sync += c.eq(ctx_rd.data)
                entry = Signal(depth_bits)  # a response's is the one before the next to send
                m.d.comb += [
                    entry.eq(ctx_rd.data.send - (event == Event.RESPONSE)), sq_rd.addr.eq(Cat(entry, qp)),
                    sq_rd.en.eq((event == Event.SEND) | (event == Event.RESPONSE)),
                ]
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
                    with m.Case(1):
                        with m.If(c.state <= QpState.RTR):
                            m.d.comb += [n.una.eq(value), n.nxt.eq(value), n.top.eq(value), n.post.eq(value), ctx_wr.en.eq(1)]

            with m.State("READ_ERROR"):
                gone = self.read_error.payload
                m.d.comb += self.read_error.ready.eq(1)
                m.next = "IDLE"
                with m.If(active & (c.epoch == gone.epoch)):
                    m.d.sync += [*fail(Status.MEM_ERR, gone.psn, gone.addr), tell.eq(1)]
                    m.next = "LOOP"

            with m.State("TIMER"):
                waited, rnr_wait = Signal(stamp_bits(p)), Signal(stamp_bits(p))
                m.d.comb += waited.eq(now - c.stamp)
                with m.Switch(c.rnr_code):
                    for k, units in enumerate(RNR_UNITS):
                        with m.Case(k):
                            m.d.comb += rnr_wait.eq(p.rnr_timer * units)
                m.next = "IDLE"
                with m.If(active):
                    with m.If(c.rnr):
                        with m.If(waited >= rnr_wait):
                            m.d.comb += [n.rnr.eq(0), n.stamp.eq(now), ctx_wr.en.eq(1)]
                    with m.Elif((c.una != c.nxt) & (waited >= p.timeout)):
                        with m.If(c.retry == p.retries):
                            m.d.sync += [*fail(Status.RETRY_EXC_ERR, c.una, 0), tell.eq(1)]
                            m.next = "LOOP"
                        with m.Else():
                            m.d.comb += [n.retry.eq(c.retry + 1), n.stamp.eq(now), n.nxt.eq(c.una), n.send.eq(c.head), ctx_wr.en.eq(1)]
                            m.d.sync += self.retransmits.eq(self.retransmits + 1)

            with m.State("SEND"):
                m.d.comb += ctx_wr.en.eq(1)
                m.d.sync += [current.eq(qp), current_valid.eq(0)]
                m.next = "IDLE"
                with m.If((c.state == QpState.RTS) & (c.send != c.good) & ~c.rnr & ((c.nxt - c.una)[:PSN_BITS] < p.window)
                          & ~(c.reading & (c.nxt == c.read_end))):
                    m.d.comb += [
                        self.packet.valid.eq(1), self.read.valid.eq(length != 0),
                        n.nxt.eq(nxt1), n.since_ack.eq(Mux(ask, 0, c.since_ack + 1)),
                    ]
                    with m.If(c.nxt == c.top):
                        m.d.comb += n.top.eq(nxt1)
                    with m.If(e.read & ~c.reading):
                        m.d.comb += [n.reading.eq(1), n.gap.eq(0), n.read_first.eq(e.first), n.read_end.eq(nxt1)]
                    with m.If(c.nxt == c.una):
                        m.d.comb += n.stamp.eq(now)
                    with m.If(last):
                        m.d.comb += [n.send.eq(c.send + 1), n.queued.eq(0)]
                    with m.Else():
                        m.d.sync += current_valid.eq(1)
                with m.Else():
                    m.d.comb += n.queued.eq(0)

            with m.State("POST"):
                full = Signal()
                m.d.comb += full.eq((c.tail - c.head)[:depth_bits + 1] == p.sq_depth)
                m.d.comb += [
                    done.tag.eq(post.request.tag), done.qpn.eq(post.request.qpn),
                    done.status.eq(Mux((c.state == QpState.ERR) & ~post.immediate, Status.WR_FLUSH_ERR.value, Status.LOC_QP_OP_ERR.value)),
                    sq_wr.addr.eq(Cat(c.tail[:depth_bits], qp)),
                    sq_wr.data.tag.eq(post.request.tag), sq_wr.data.imm.eq(post.request.imm), sq_wr.data.read.eq(post.request.opcode == Op.READ),
                    sq_wr.data.write.eq((post.request.opcode == Op.WRITE) | (post.request.opcode == Op.WRITE_IMM)),
                    sq_wr.data.with_imm.eq((post.request.opcode == Op.SEND_IMM) | (post.request.opcode == Op.WRITE_IMM)),
                    sq_wr.data.status.eq(Mux(c.poison, Status.WR_FLUSH_ERR.value, post.status)),
                    sq_wr.data.length.eq(post.request.length), sq_wr.data.laddr.eq(post.request.laddr),
                    sq_wr.data.raddr.eq(post.request.raddr), sq_wr.data.rkey.eq(post.request.rkey),
                    sq_wr.data.first.eq(c.post), sq_wr.data.last.eq(c.post + post.packets - 1),
                ]
                with m.If(post.immediate | ~active):
                    m.d.comb += [self.done.valid.eq(1), self.post.ready.eq(self.done.ready)]
                    with m.If(self.done.ready):
                        m.next = "IDLE"
                with m.Elif(full):
                    m.d.sync += post_full.eq(1)
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += [sq_wr.en.eq(1), self.post.ready.eq(1), n.tail.eq(c.tail + 1), ctx_wr.en.eq(1)]
                    m.d.sync += c.eq(ctx_wr.data)
                    m.next = "IDLE"
                    with m.If(c.poison | (post.status != 0)):
                        m.d.comb += n.poison.eq(1)
                        m.next = "LOOP"
                    with m.Else():
                        m.d.comb += [n.good.eq(c.tail + 1), n.post.eq(c.post + post.packets)]

            with m.State("ACK"):
                kind, code = ack_syndrome[5:7], ack_syndrome[:5]
                named, limit = Signal(PSN_BITS), Signal(PSN_BITS)  # nothing of a READ is acknowledged but by its responses
                m.d.comb += [
                    in_window.eq((ack_psn - c.una)[:PSN_BITS] < (c.top - c.una)[:PSN_BITS]),
                    named.eq(Mux(kind == 0, ack_psn + 1, ack_psn)), limit.eq(Mux(before, c.read_first, c.una)),
                    unacked.eq(Mux(c.reading & (limit - named)[PSN_BITS - 1], limit, named)), progress.eq(unacked != c.una),
                ]
                m.next = "IDLE"
                with m.If(active & in_window & (kind != 2)):
                    m.d.comb += n.una.eq(unacked)
                    with m.If(progress):
                        m.d.comb += [n.stamp.eq(now), n.retry.eq(0), n.rnr_count.eq(0), n.rnr.eq(0)]
                    with m.If((unacked - c.nxt)[:PSN_BITS] <= p.window):  # acknowledged past a restart: go on from there
                        m.d.comb += n.nxt.eq(unacked)
                    with m.If((kind == 3) & (code == 0) & (n.nxt != unacked)):
                        m.d.comb += n.retry.eq(Mux(progress, 0, c.retry) + 1)
                        with m.If(Mux(progress, 0, c.retry) == p.retries):
                            m.d.sync += [*fail(Status.RETRY_EXC_ERR, unacked, 0), tell.eq(1)]
                        with m.Else():
                            m.d.sync += [rewind.eq(1), self.retransmits.eq(self.retransmits + 1)]
                    with m.If((kind == 3) & (code != 0)):
                        for syndrome, status in ((Syndrome.NAK_ACCESS, Status.REM_ACCESS_ERR), (Syndrome.NAK_OPERATIONAL, Status.REM_OP_ERR)):
                            with m.If(ack_syndrome == syndrome):
                                m.d.sync += fail(status, unacked, ack_syndrome)
                        with m.If((ack_syndrome != Syndrome.NAK_ACCESS) & (ack_syndrome != Syndrome.NAK_OPERATIONAL)):
                            m.d.sync += fail(Status.REM_INV_REQ_ERR, unacked, ack_syndrome)
                        m.d.sync += tell.eq(1)
                    with m.If(kind == 1):
                        m.d.sync += rewind.eq(1)
                        m.d.comb += [n.rnr.eq(1), n.rnr_code.eq(code), n.stamp.eq(now), n.retry.eq(0), n.rnr_count.eq(c.rnr_count + 1)]
                        with m.If(progress):
                            m.d.comb += n.rnr_count.eq(1)
                        if p.rnr_retries < 7:
                            with m.If((c.rnr_count == p.rnr_retries) & ~progress | (p.rnr_retries == 0)):
                                m.d.sync += [*fail(Status.RNR_RETRY_EXC_ERR, unacked, 0), tell.eq(1)]
                    m.d.sync += c.eq(n)
                    m.next = "LOOP"

            with m.State("RESPONSE"):
                m.d.comb += self.write.valid.eq((got.length != 0) | write.notify)
                with m.If(self.write.ready | ~self.write.valid):
                    m.d.comb += [self.response.ready.eq(1), self.dropped.eq(~wanted)]
                    m.next = "IDLE"
                    with m.If(in_turn):
                        m.d.comb += [n.una.eq(got.psn + fits), n.stamp.eq(now), n.retry.eq(0), n.rnr_count.eq(0), n.gap.eq(0)]
                        m.d.sync += c.eq(n)
                        with m.If(~fits):
                            m.d.sync += [*fail(Status.BAD_RESP_ERR, got.psn, 0), tell.eq(1)]
                        m.next = "LOOP"
                    with m.Elif(wanted & ~c.gap):
                        with m.If(c.retry == p.retries):
                            m.d.sync += [*fail(Status.RETRY_EXC_ERR, c.una, 0), tell.eq(1)]
                            m.next = "LOOP"
                        with m.Else():
                            m.d.comb += [n.gap.eq(1), n.retry.eq(c.retry + 1), n.stamp.eq(now), n.send.eq(c.head), n.nxt.eq(c.una), ctx_wr.en.eq(1)]
                            m.d.sync += self.retransmits.eq(self.retransmits + 1)

            with m.State("LANDED"):
                place_of = self.landed.payload
                m.d.comb += self.landed.ready.eq(1)
                m.next = "IDLE"
                with m.If(active & (c.epoch == place_of.epoch) & c.reading):
                    m.next = "LOOP"
                    with m.If(place_of.failed):
                        m.d.sync += [*fail(Status.MEM_ERR, c.read_first, place_of.addr), tell.eq(1)]
                    with m.Else():
                        m.d.comb += n.reading.eq(0)
                        m.d.sync += [c.eq(n), landed.eq(1)]

            with m.State("LOOP"):
                m.d.comb += [sq_rd.addr.eq(Cat(c.head[:depth_bits], qp)), sq_rd.en.eq(1)]
                m.next = "ENTRY"
                with m.If(c.head == c.tail):
                    m.next = "END"

            with m.State("ENTRY"):
                acked, hit, emit = Signal(), Signal(), Signal()
                m.d.comb += [
                    acked.eq((e.status == 0) & ~(c.una - 1 - e.last)[PSN_BITS - 1] & (~e.read | landed)),
                    hit.eq(match & (e.status == 0) & ((error_psn - e.first)[:PSN_BITS] <= (e.last - e.first)[:PSN_BITS])),
                    done.tag.eq(e.tag), done.qpn.eq(qp), emit.eq(1), self.done.valid.eq(emit),
                ]
                with m.If(acked):
                    m.d.comb += [done.status.eq(Status.SUCCESS), done.byte_len.eq(e.length)]
                with m.Elif(error):
                    m.d.comb += done.status.eq(Status.WR_FLUSH_ERR)
                    with m.If(hit):
                        m.d.comb += [done.status.eq(error_status), done.info.eq(error_info)]
                with m.Elif(e.status != 0):
                    m.d.comb += [done.status.eq(e.status), done.info.eq(Mux(e.status == Status.LOC_PROT_ERR, e.laddr, 0))]
                with m.Else():
                    m.d.comb += emit.eq(0)
                    m.next = "END"
                with m.If(emit & self.done.ready):
                    m.d.comb += n.head.eq(c.head + 1)
                    with m.If(c.send == c.head):
                        m.d.comb += n.send.eq(c.head + 1)
                    m.d.sync += [c.eq(n), post_full.eq(0)]
                    with m.If(e.read):
                        m.d.sync += landed.eq(0)
                    with m.If(~acked & ~error):
                        m.d.sync += [error.eq(1), tell.eq(1)]
                    with m.If(hit & ~acked):
                        m.d.sync += match.eq(0)
                    m.next = "LOOP"

            with m.State("END"):
                m.d.comb += ctx_wr.en.eq(1)
                m.d.sync += post_full.eq(0)
                m.next = "IDLE"
                with m.If(rewind):
                    m.d.comb += [n.nxt.eq(c.una), n.send.eq(c.head), n.since_ack.eq(0)]
                with m.If(error):
                    m.d.comb += [n.state.eq(QpState.ERR), n.good.eq(c.tail), n.send.eq(c.tail), n.poison.eq(0), n.rnr.eq(0), n.reading.eq(0)]
                    m.d.comb += [n.nxt.eq(c.una), n.top.eq(c.una)]
                with m.If(reset):
                    m.d.comb += [n.eq(0), n.queued.eq(c.queued), n.epoch.eq(c.epoch + 1)]
                with m.If(tell):
                    m.d.comb += [self.fault_out.valid.eq(1), ctx_wr.en.eq(self.fault_out.ready)]
                    with m.If(~self.fault_out.ready):
                        m.next = "END"
        return m
