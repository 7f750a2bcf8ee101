"""Functional NIC: reliable connections that move whole messages, ending as packets would on a lossless link.

Rules (packet by packet in `golden.nic.transport`; both end alike):

1. Messages of a queue pair are carried out in the order posted. A step takes the oldest from source to destination.
2. Posting: SEND and WRITE need RTS (SQD holds them), RECV needs INIT, RTR, RTS or SQD, else LOC_QP_OP_ERR; on ERR
   WR_FLUSH_ERR; a queue pair number that does not exist LOC_QP_OP_ERR. A RECV is checked when posted, its region for the
   whole length (more than 2^31 bytes LOC_LEN_ERR, else LOC_PROT_ERR); a bad one ends when all before it are done.
3. Of a message whose turn it is, refused before anything is sent: other operations, LOC_QP_OP_ERR; more than 2^31 bytes LOC_LEN_ERR; outside its region LOC_PROT_ERR; outside memory MEM_ERR.
4. A message waits while the peer's queue pair is not receiving (RTR, RTS, SQD), names another node, or expects
   earlier PSNs: RETRY_EXC_ERR when it is given up (`expire`). It waits while the peer has no RECV for it: RNR_RETRY_EXC_ERR
   (this model counts no retries: also where `rnr_retries` is 7, with which hardware would wait on).
   PSNs the peer has had already are acknowledged without effect.
5. SEND fills the oldest RECV. WRITE's whole range is checked before its first byte is written; SEND's packet by
   packet:

   ====================================  =================  =========================
   receiver finds                        RECV ends in       sender ends in
   ====================================  =================  =========================
   message longer than the RECV          LOC_LEN_ERR        REM_INV_REQ_ERR, info 0x61
   RECV outside memory                   MEM_ERR, info: a   REM_OP_ERR, info 0x63
   WRITE not allowed by rkey             --                 REM_ACCESS_ERR, info 0x62
   WRITE outside memory                  --                 REM_OP_ERR, info 0x63
   READ not allowed by rkey              --                 REM_ACCESS_ERR, info 0x62
   READ from outside memory              --                 REM_OP_ERR, info 0x63
   ====================================  =================  =========================

   a: the address of the packet that failed. The whole packets before it are in memory; of its own bytes nothing is said.
   Here memory answers at once. Hardware acknowledges a packet before its write is done: a message whose last ACK left before memory
   refused it ends in SUCCESS at the sender, and the connection in ERR after it.
6. A queue pair with an error goes to ERR at either end; everything left in its queues ends in WR_FLUSH_ERR, as it
   does when software writes ERR or RESET. Only RESET leaves ERR; it makes both PSNs 0.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from golden.mem.memory import AccessError, Memory, RegionTable
from golden.nic.me import Work
from golden.nic.requester import MAX_MESSAGE, MESSAGES
from spec.packet import PSN_BITS, Syndrome, segment
from spec.params import NicParams
from spec.registers import Access, QpState
from spec.wqe import Op, Status

if TYPE_CHECKING:
    from golden.chip.capture import Capture

PSN_MASK = (1 << PSN_BITS) - 1
HALF = 1 << PSN_BITS - 1

SENDING = frozenset({QpState.RTS, QpState.SQD})
RECEIVING = frozenset({QpState.RTR, QpState.RTS, QpState.SQD})
POSTING_RECV = RECEIVING | {QpState.INIT}


class QueuePair:
    def __init__(self, number: int):
        self.number = number
        self.state = QpState.RESET
        self.dest_qp = self.dest_node = self.sq_psn = self.rq_psn = 0
        self.msn = 0  # messages received whole
        self.sq: deque[Work] = deque()
        self.rq: deque[Work] = deque()
        self.bad: dict[int, tuple[Status, int]] = {}  # RECVs that will end in an error: id -> status, info
        self.blocked = ""  # why the oldest message does not move
        self.expiry = Status.SUCCESS  # what it ends in when that lasts


class Nic:
    """The queue pairs and regions of one node. `peer(node)` finds another node's NIC, or None. `capture` sees every message; `port` is this
    NIC's place in it."""

    capture: Capture | None = None
    port = 0

    def __init__(
        self, node: int, params: NicParams, memory: Memory, peer: Callable[[int], Nic | None]
    ):
        self.node, self.params, self.memory, self.peer = node, params, memory, peer
        self.regions = RegionTable(params.mrs)
        self.qps = [QueuePair(i) for i in range(params.qps)]
        self.active: dict[int, QueuePair] = {}  # queue pairs with messages to send
        self.messages: list[tuple[int, int]] = []  # (op, length) of each message carried out that this node sent, or READ that it answered
        self.counters = dict.fromkeys(
            ("nic_tx_packets", "nic_rx_packets", "nic_rx_dropped", "nic_retransmits", "nic_duplicates", "nic_naks"), 0)

    # -- the engine's side -------------------------------------------------------------------------------------------

    def room(self, work: Work) -> bool:
        number = work.wqe["qpn"]
        if number >= self.params.qps:
            return True
        if work.op == Op.RECV:
            return len(self.qps[number].rq) < self.params.rq_depth
        return len(self.qps[number].sq) < self.params.sq_depth

    def post(self, work: Work) -> None:
        number = work.wqe["qpn"]
        if number >= self.params.qps:
            return work.finish(Status.LOC_QP_OP_ERR)
        qp = self.qps[number]
        if qp.state == QpState.ERR:
            return work.finish(Status.WR_FLUSH_ERR)
        if qp.state not in (POSTING_RECV if work.op == Op.RECV else SENDING):
            return work.finish(Status.LOC_QP_OP_ERR)
        if work.op != Op.RECV:
            qp.sq.append(work)
            self.active[number] = qp
            return None
        w = work.wqe
        qp.rq.append(work)
        try:
            if w["length"] > MAX_MESSAGE:
                qp.bad[id(work)] = (Status.LOC_LEN_ERR, 0)
            else:
                self.regions.check(w["lkey"], w["addr_d"], w["length"], Access.LOCAL_WRITE, Status.LOC_PROT_ERR)
        except AccessError as e:
            qp.bad[id(work)] = (e.status, e.address)
        self._look(qp)
        return None

    def _look(self, qp: QueuePair) -> None:
        """A bad RECV that is now the oldest ends, and the queue pair with it."""
        if qp.rq and id(qp.rq[0]) in qp.bad:
            status, info = qp.bad[id(qp.rq[0])]
            self.fail(qp, qp.rq[0], status, info)

    # -- control -----------------------------------------------------------------------------------------------------

    def set_state(self, qp: QueuePair, value: int) -> None:
        state = QpState(value) if value in QpState._value2member_map_ else QpState.ERR
        if qp.state == QpState.ERR and state != QpState.RESET:
            return
        qp.state = state
        if state == QpState.RESET:
            qp.sq_psn = qp.rq_psn = qp.msn = 0
        if state in (QpState.ERR, QpState.RESET):
            self._flush(qp)

    def fail(self, qp: QueuePair, work: Work | None, status: Status, info: int = 0) -> None:
        """Queue pair to ERR: `work` ends in `status`, the rest is flushed."""
        qp.state = QpState.ERR
        if work is not None and not work.done:
            for q in (qp.sq, qp.rq):
                if q and q[0] is work:
                    q.popleft()
            work.finish(status, info=info)
        self._flush(qp)

    def _flush(self, qp: QueuePair) -> None:
        for q in (qp.sq, qp.rq):
            while q:
                q.popleft().finish(Status.WR_FLUSH_ERR)
        qp.bad.clear()
        self.active.pop(qp.number, None)

    # -- moving messages ---------------------------------------------------------------------------------------------

    def step_qp(self, qp: QueuePair) -> bool:
        """Carry out the oldest message of `qp`; False when it has to wait."""
        qp.blocked, qp.expiry = "", Status.SUCCESS
        if not qp.sq:
            self.active.pop(qp.number, None)
            return False
        if qp.state != QpState.RTS:
            qp.blocked = f"state {qp.state.name}"
            return False
        work = qp.sq[0]
        w, n = work.wqe, work.wqe["length"]
        if work.op not in MESSAGES or n > MAX_MESSAGE:
            self.fail(qp, work, Status.LOC_LEN_ERR if work.op in MESSAGES else Status.LOC_QP_OP_ERR)
            return True
        try:
            laddr = w["addr_d" if work.op == Op.READ else "addr_a"]
            self.regions.check(w["lkey"], laddr, n, Access.LOCAL_WRITE if work.op == Op.READ else 0, Status.LOC_PROT_ERR)
            self.memory.check(laddr, n)
        except AccessError as e:
            self.fail(qp, work, e.status, e.address)
            return True
        there = self.peer(qp.dest_node)
        other = there.qps[qp.dest_qp] if there is not None and qp.dest_qp < there.params.qps else None
        name = f"node {qp.dest_node} qp {qp.dest_qp}"
        if there is None or other is None or other.state not in RECEIVING or other.dest_node != self.node:
            why = "does not exist" if other is None else f"is {other.state.name}"
            if other is not None and other.state in RECEIVING:
                why = f"is connected to node {other.dest_node}"
            return self._hold(qp, f"{name} {why}", Status.RETRY_EXC_ERR)
        count = len(segment(n, self.params.mtu))
        ahead = (qp.sq_psn - other.rq_psn) & PSN_MASK
        if 0 < ahead < HALF:
            return self._hold(qp, f"{name} expects PSN {other.rq_psn:#x}, not {qp.sq_psn:#x}", Status.RETRY_EXC_ERR)
        if ahead:
            there.counters["nic_duplicates"] += min(count, (1 << PSN_BITS) - ahead)
        else:
            serve = there.serve_read if work.op == Op.READ else there.receive
            status, info, whole = serve(other, work, self.memory)
            if status == Status.RNR_RETRY_EXC_ERR:
                return self._hold(qp, f"{name} has no RECV posted", status)
            if self.capture is not None:
                data = self.memory.view(laddr, n).tobytes()
                self.capture.message((self, qp), (there, other), w, data, refused=None if status == Status.SUCCESS else (whole, info))
            if status != Status.SUCCESS:
                there.counters["nic_naks"] += 1
                self.fail(qp, work, status, info)
                return True
            other.rq_psn = (other.rq_psn + count) & PSN_MASK
            other.msn = (other.msn + 1) & PSN_MASK
        self._count(there, work, count)
        qp.sq_psn = (qp.sq_psn + count) & PSN_MASK
        qp.sq.popleft()
        work.finish(byte_len=n)
        return True

    def serve_read(self, qp: QueuePair, asked: Work, to: Memory) -> tuple[Status, int, int]:
        """Carry out a peer's READ into its memory; as :meth:`receive`."""
        w, n = asked.wqe, asked.wqe["length"]
        try:
            self.regions.check(w["rkey"], w["addr_a"], n, Access.REMOTE_READ, Status.REM_ACCESS_ERR)
            self.memory.check(w["addr_a"], n)
        except AccessError as e:
            self.fail(qp, None, e.status)
            if e.status == Status.REM_ACCESS_ERR:
                return e.status, Syndrome.NAK_ACCESS, 0
            return Status.REM_OP_ERR, Syndrome.NAK_OPERATIONAL, 0
        to.write(w["addr_d"], self.memory.view(w["addr_a"], n))
        return Status.SUCCESS, 0, 0

    def receive(self, qp: QueuePair, sent: Work, source: Memory) -> tuple[Status, int, int]:
        """Carry out a message at its destination: the status for the sender, its `info`, and the packets before one that was refused."""
        w, n, mtu = sent.wqe, sent.wqe["length"], self.params.mtu
        data = source.view(w["addr_a"], n)
        needs_recv = sent.op != Op.WRITE
        recv = qp.rq[0] if needs_recv and qp.rq else None
        if sent.op in (Op.SEND, Op.SEND_IMM):
            if recv is None:
                return Status.RNR_RETRY_EXC_ERR, 0, 0
            r, capacity = recv.wqe, recv.wqe["length"]
            good, error = n, None
            if n > capacity:
                good, error = capacity, (Status.LOC_LEN_ERR, Status.REM_INV_REQ_ERR, Syndrome.NAK_INVALID)
            try:
                self.memory.check(r["addr_d"], n)
            except AccessError as e:
                if error is None or (e.address - r["addr_d"]) // mtu < good // mtu:
                    good = e.address - r["addr_d"]
                    error = (e.status, Status.REM_OP_ERR, Syndrome.NAK_OPERATIONAL)
            if error is not None:
                good -= good % mtu
                self.memory.write(r["addr_d"], data[:good])
                self.fail(qp, recv, error[0], r["addr_d"] + good if error[0] == Status.MEM_ERR else 0)
                return error[1], error[2], good // mtu
            self.memory.write(r["addr_d"], data)
        else:
            try:
                self.regions.check(w["rkey"], w["addr_d"], n, Access.REMOTE_WRITE, Status.REM_ACCESS_ERR)
                self.memory.check(w["addr_d"], n)
            except AccessError as e:
                self.fail(qp, None, e.status)
                if e.status == Status.REM_ACCESS_ERR:
                    return e.status, Syndrome.NAK_ACCESS, 0
                return Status.REM_OP_ERR, Syndrome.NAK_OPERATIONAL, 0
            if needs_recv and recv is None:
                self.memory.write(w["addr_d"], data[: max(n - 1, 0) // mtu * mtu])  # all packets but the last, which asks for it
                return Status.RNR_RETRY_EXC_ERR, 0, 0
            self.memory.write(w["addr_d"], data)
        if recv is not None:
            qp.rq.popleft()
            recv.finish(byte_len=n, imm=w["imm"] if sent.op in (Op.SEND_IMM, Op.WRITE_IMM) else 0)
            self._look(qp)
        return Status.SUCCESS, 0, 0

    def expire(self, status: Status) -> bool:
        """Give up every message that waits for a reason whose end is `status`; True when there was one."""
        stuck = [qp for qp in self.active.values() if qp.sq and qp.expiry == status]
        for qp in stuck:
            self.fail(qp, qp.sq[0], status)
        return bool(stuck)

    def report(self) -> list[str]:
        """Why each queue pair with messages left does not move, a line each."""
        return [
            f"qp {qp.number}: {len(qp.sq)} message(s), the first {qp.sq[0].describe()} of queue "
            f"{qp.sq[0].queue.number}: {qp.blocked or 'not yet tried'}"
            for qp in self.active.values() if qp.sq
        ]

    def _hold(self, qp: QueuePair, why: str, expiry: Status) -> bool:
        qp.blocked, qp.expiry = why, expiry
        return False

    def _count(self, there: Nic, work: Work, count: int) -> None:
        """Packets as a lossless link would see them: every data packet, an ACK for each that asks for one."""
        asks = sum(1 for i in range(1, count + 1) if i == count or i % self.params.ack_every == 0)
        (there if work.op == Op.READ else self).messages.append((int(work.op), work.wqe["length"]))  # whose link carries it
        if work.op == Op.READ:
            count, asks = 1, count
        for nic, sent, got in ((self, count, asks), (there, asks, count)):
            nic.counters["nic_tx_packets"] += sent
            nic.counters["nic_rx_packets"] += got
