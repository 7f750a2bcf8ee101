"""Golden twin of the requester of a reliable connection: messages out, acknowledgements in.

1. Messages leave in order, in packets of `mtu` bytes (`golden.net.wire.packets`), PSNs one up each modulo 2^24; at
   most `window` unacknowledged packets. The last packet of a message asks for an acknowledgement, and every
   `ack_every`-th in it (or every `window`-th, if that is less).
2. An ACK for PSN p acknowledges all packets up to p; ACKs and NAKs of PSNs that are not outstanding are ignored.
3. A PSN NAK or an RNR NAK for p acknowledges all before p and goes back to p, at once or when the RNR timer ends. A
   timeout goes back to the oldest unacknowledged packet. Restarts without an acknowledgement in between beyond
   `retries`: RETRY_EXC_ERR; RNR NAKs beyond `rnr_retries`: RNR_RETRY_EXC_ERR (7 is seven, not "for ever").
4. NAKs of invalid request, access and operation end the message of p in REM_INV_REQ_ERR, REM_ACCESS_ERR and
   REM_OP_ERR with the syndrome as `info`; codes that the standard reserves end it as an invalid request. Bit 7 of a syndrome is ignored, as are
   syndromes 0x40 to 0x5F. Refused before its first packet, once all earlier messages are acknowledged:
   other operations (LOC_QP_OP_ERR), more than 2^31 bytes (LOC_LEN_ERR), a source outside its
   region (LOC_PROT_ERR) or outside memory (MEM_ERR).
5. READ takes a PSN for each of its responses. Its request leaves when all before it was sent, and nothing follows it until the last response is in
   memory. The responses come in order from the oldest that is missing, and acknowledge all before the READ; an ACK acknowledges nothing of a
   READ. A response further on shows a loss: once until the next comes, the requester goes back as for a PSN NAK. Going back asks anew for what is
   missing (PSN, address and length of the rest). A response while no request is out is ignored; one that is due and has another length or place
   in the message than its PSN (FIRST and MIDDLE are one, for requests for the rest begin anew) ends the READ in BAD_RESP_ERR.
6. After an error everything left is flushed, and nothing is sent any more.
"""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from golden.mem.memory import AccessError, Memory, RegionTable
from golden.net.wire import packets
from spec.packet import PSN_BITS, Opcode, Syndrome, segment
from spec.params import NicParams
from spec.registers import Access
from spec.wqe import Op, Status

MASK = (1 << PSN_BITS) - 1
MAX_MESSAGE = 1 << 31
MESSAGES = frozenset({Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM, Op.READ})

Meta = dict[str, int]
Packet = tuple[Meta, bytes]

NAK_STATUS: dict[int, Status] = {
    Syndrome.NAK_INVALID: Status.REM_INV_REQ_ERR,
    Syndrome.NAK_ACCESS: Status.REM_ACCESS_ERR,
    Syndrome.NAK_OPERATIONAL: Status.REM_OP_ERR,
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A message: SEND, SEND_IMM, WRITE, WRITE_IMM or READ (`laddr`: where to); or a RECV (`laddr`, `length`: capacity, `lkey`)."""

    tag: int
    op: Op
    length: int
    laddr: int = 0
    raddr: int = 0
    lkey: int = 0
    rkey: int = 0
    imm: int = 0


@dataclass(frozen=True, kw_only=True)
class Completion:
    tag: int
    status: Status
    byte_len: int = 0
    imm: int = 0
    info: int = 0


@dataclass(frozen=True)
class _Sent:
    """One packet that has been sent and may be again."""

    psn: int
    request: Request
    offset: int
    opcode: Opcode
    size: int
    ack_req: bool
    last: bool


@dataclass
class Requester:
    params: NicParams
    memory: Memory
    regions: RegionTable
    psn: int = 0  # next to send
    una: int = 0  # oldest unacknowledged
    failed: bool = False
    waiting_rnr: bool = False
    completions: list[Completion] = field(default_factory=list)
    retransmits: int = 0

    def __post_init__(self) -> None:
        self.una = self.psn
        self.messages: deque[Request] = deque()  # not acknowledged whole
        self.unsent: deque[Request] = deque()  # of those, the ones not yet cut into packets
        self.cut: deque[_Sent] = deque()  # packets of the message being sent, not sent yet
        self.window: deque[_Sent] = deque()  # sent, not acknowledged
        self.cursor = 0  # next of `window` to send; its length: none to send again
        self.retries = self.rnr_retries = 0
        self.read: Request | None = None  # the READ under way
        self.read_first = 0  # its first PSN; `psn` is one above its last
        self.asked = self.gap = False  # its request is out; a gap in its responses has been answered

    def post(self, request: Request) -> None:
        if self.failed:
            self.completions.append(Completion(tag=request.tag, status=Status.WR_FLUSH_ERR))
            return
        self.messages.append(request)
        self.unsent.append(request)

    def next_packet(self) -> Packet | None:
        """The packet to send now, or None."""
        if self.failed or self.waiting_rnr:
            return None
        if self.cursor == len(self.window):
            if self.read is not None:
                return self._ask()
            if len(self.window) == self.params.window or not (self.cut or self._cut_next()):
                return None
            if self.read is not None:
                return self._ask()
            self.window.append(self.cut.popleft())
            self.psn = (self.psn + 1) & MASK
        sent = self.window[self.cursor]
        self.cursor += 1
        r = sent.request
        meta = {
            "opcode": int(sent.opcode), "ack_req": int(sent.ack_req), "psn": sent.psn, "length": sent.size, "va": r.raddr,
            "rkey": r.rkey, "dma_len": r.length, "imm": r.imm,
        }
        return meta, self.memory.view(r.laddr + sent.offset, sent.size).tobytes()

    @property
    def _due(self) -> int:
        """PSN of the READ's next response."""
        return self.read_first if self.window else self.una

    def _ask(self) -> Packet | None:
        r = self.read
        if r is None or self.asked:
            return None
        self.asked = True
        at = ((self._due - self.read_first) & MASK) * self.params.mtu
        return {
            "opcode": int(Opcode.READ_REQUEST), "ack_req": 1, "psn": self._due, "length": 0, "va": r.raddr + at, "rkey": r.rkey,
            "dma_len": r.length - at, "imm": 0,
        }, b""  # fmt: skip

    def response(self, meta: Meta, payload: bytes) -> None:
        """A READ response."""
        r = self.read
        if self.failed or r is None or not self.asked:
            return
        total, index, due = (self.psn - self.read_first) & MASK, (meta["psn"] - self.read_first) & MASK, (self._due - self.read_first) & MASK
        if not due <= index < total:
            return
        if index > due:
            if not self.gap:
                self.gap = True
                self._restart()
            return
        self._acknowledge(len(self.window))
        last, at = index == total - 1, index * self.params.mtu
        ends = meta["opcode"] in (Opcode.READ_RESPONSE_LAST, Opcode.READ_RESPONSE_ONLY)
        if ends != last or len(payload) != (r.length - at if last else self.params.mtu):
            self.fail(Status.BAD_RESP_ERR)
            return
        self.memory.write(r.laddr + at, np.frombuffer(payload, np.uint8))
        self.una = (self.una + 1) & MASK
        self.retries = self.rnr_retries = 0
        self.gap = False
        if last:
            self.read = None
            self.messages.popleft()
            self.completions.append(Completion(tag=r.tag, status=Status.SUCCESS, byte_len=r.length))

    def _cut_next(self) -> bool:
        if not self.unsent:
            return False
        r, refusal = self.unsent[0], self._refusal()
        if refusal is not None:
            if not self.window:
                self.fail(refusal.status, refusal.address)
            return False
        self.unsent.popleft()
        if r.op == Op.READ:
            self.read, self.read_first, self.asked, self.gap = r, self.psn, False, False
            self.psn = (self.psn + len(segment(r.length, self.params.mtu))) & MASK
            return True
        every, offset = min(self.params.ack_every, self.params.window), 0
        cut = packets(r.op, r.length, self.params.mtu)
        for i, (opcode, size) in enumerate(cut):
            last = i == len(cut) - 1
            ask = last or (i + 1) % every == 0
            self.cut.append(_Sent(self.psn + i & MASK, r, offset, opcode, size, ask, last))
            offset += size
        return True

    def _refusal(self) -> AccessError | None:
        """Why the next message may not be sent."""
        r = self.unsent[0]
        if r.op not in MESSAGES:
            return AccessError(Status.LOC_QP_OP_ERR, 0, f"{r.op!r} is not carried out")
        if r.length > MAX_MESSAGE:
            return AccessError(Status.LOC_LEN_ERR, 0, f"{r.length} bytes")
        try:
            need = Access.LOCAL_WRITE if r.op == Op.READ else 0
            self.regions.check(r.lkey, r.laddr, r.length, need, Status.LOC_PROT_ERR)
            self.memory.check(r.laddr, r.length)
        except AccessError as e:
            return e
        return None

    @property
    def ready(self) -> bool:
        """`next_packet` gives a packet, or ends a message."""
        if self.failed or self.waiting_rnr:
            return False
        if self.cursor < len(self.window):
            return True
        if self.read is not None:
            return not self.asked
        if len(self.window) == self.params.window:
            return False
        return bool(self.cut) or (bool(self.unsent) and (not self.window or self._refusal() is None))

    def receive(self, meta: Meta) -> None:
        """An acknowledge packet."""
        if self.failed:
            return
        syndrome, count = meta["syndrome"] & 0x7F, (meta["psn"] - self.una) & MASK
        if count >= (self.psn - self.una if self.read is not None else len(self.window)) & MASK:
            return
        count = min(count + (syndrome >> 5 == 0), len(self.window))
        if syndrome >> 5 == 0:
            self._acknowledge(count)
        elif syndrome == Syndrome.NAK_PSN:
            self._acknowledge(count)
            if self.cursor or (self.read is not None and self.asked):
                self._restart()
        elif syndrome >> 5 == 1:
            self._acknowledge(count)
            self.cursor = self.retries = 0
            self.asked = False
            self.rnr_retries += 1
            if self.rnr_retries > self.params.rnr_retries:
                self.fail(Status.RNR_RETRY_EXC_ERR)
            else:
                self.waiting_rnr = True
        elif syndrome >> 5 == 3:
            self._acknowledge(count)
            self.fail(NAK_STATUS.get(syndrome, Status.REM_INV_REQ_ERR), syndrome)

    def timeout(self) -> None:
        """No progress for the time of `timeout`."""
        if (self.window or self.read is not None) and not self.failed and not self.waiting_rnr:
            self._restart()

    def rnr_expired(self) -> None:
        if self.waiting_rnr:
            self.waiting_rnr = False
            self.retransmits += 1

    def _acknowledge(self, count: int) -> None:
        for _ in range(count):
            sent = self.window.popleft()
            self.una = (self.una + 1) & MASK
            self.cursor = max(self.cursor - 1, 0)
            self.retries = self.rnr_retries = 0
            if sent.last:
                self.messages.popleft()
                self.completions.append(
                    Completion(tag=sent.request.tag, status=Status.SUCCESS, byte_len=sent.request.length))
        if count:
            self.waiting_rnr = False

    def _restart(self) -> None:
        self.cursor = 0
        self.asked = False
        if not self.window and self.read is None:
            return
        self.retries += 1
        if self.retries > self.params.retries:
            self.fail(Status.RETRY_EXC_ERR)
        else:
            self.retransmits += 1

    def fail(self, status: Status, info: int = 0) -> None:
        """The oldest message ends in `status`, the others are flushed. On an error elsewhere: WR_FLUSH_ERR for all."""
        if self.failed:
            return
        self.failed = True
        for request in self.messages:
            self.completions.append(Completion(tag=request.tag, status=status, info=info))
            status, info = Status.WR_FLUSH_ERR, 0
        for q in (self.messages, self.unsent, self.cut, self.window):
            q.clear()
        self.read = None

    @property
    def busy(self) -> bool:
        return bool(self.messages)
