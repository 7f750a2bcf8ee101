"""Golden twin of the requester of a reliable connection: messages out, acknowledgements in.

1. Messages leave in order, in packets of `mtu` bytes (`golden.net.wire.packets`), PSNs one up each modulo 2^24; at
   most `window` unacknowledged packets. The last packet of a message asks for an acknowledgement, and every
   `ack_every`-th in it (or every `window`-th, if that is less).
2. An ACK for PSN p acknowledges all packets up to p; PSNs that are not outstanding are ignored.
3. A PSN NAK or an RNR NAK for p acknowledges all before p and goes back to p, at once or when the RNR timer ends. A
   timeout goes back to the oldest unacknowledged packet. Restarts without an acknowledgement in between beyond
   `retries`: RETRY_EXC_ERR; RNR NAKs beyond `rnr_retries`: RNR_RETRY_EXC_ERR (7 is seven, not "for ever").
4. NAKs of invalid request, access and operation end the message of p in REM_INV_REQ_ERR, REM_ACCESS_ERR and
   REM_OP_ERR with the syndrome as `info`. Refused before its first packet, once all earlier messages are acknowledged:
   READ, and WRITE_IMM without `immediate` (LOC_QP_OP_ERR), more than 2^31 bytes (LOC_LEN_ERR), a source outside its
   region (LOC_PROT_ERR) or outside memory (MEM_ERR).
5. After an error everything left is flushed, and nothing is sent any more.
"""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from golden.mem.memory import AccessError, Memory, RegionTable
from golden.net.wire import packets
from spec.packet import PSN_BITS, Opcode, Syndrome
from spec.params import NicParams
from spec.wqe import Op, Status

MASK = (1 << PSN_BITS) - 1
MAX_MESSAGE = 1 << 31

Meta = dict[str, int]
Packet = tuple[Meta, bytes]

NAK_STATUS = {
    Syndrome.NAK_INVALID: Status.REM_INV_REQ_ERR,
    Syndrome.NAK_ACCESS: Status.REM_ACCESS_ERR,
    Syndrome.NAK_OPERATIONAL: Status.REM_OP_ERR,
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A message to send: SEND, WRITE or WRITE_IMM; or a RECV (`laddr`, `length`: capacity, `lkey`)."""

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
    immediate: bool = False

    def __post_init__(self) -> None:
        self.una = self.psn
        self.messages: deque[Request] = deque()  # not acknowledged whole
        self.unsent: deque[Request] = deque()  # of those, the ones not yet cut into packets
        self.cut: deque[_Sent] = deque()  # packets of the message being sent, not sent yet
        self.window: deque[_Sent] = deque()  # sent, not acknowledged
        self.cursor = 0  # next of `window` to send; its length: none to send again
        self.retries = self.rnr_retries = 0

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
            if len(self.window) == self.params.window or not (self.cut or self._cut_next()):
                return None
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

    def _cut_next(self) -> bool:
        if not self.unsent:
            return False
        r, refusal = self.unsent[0], self._refusal()
        if refusal is not None:
            if not self.window:
                self.fail(refusal.status, refusal.address)
            return False
        self.unsent.popleft()
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
        if r.op not in (Op.SEND, Op.WRITE) and not (self.immediate and r.op == Op.WRITE_IMM):
            return AccessError(Status.LOC_QP_OP_ERR, 0, f"{r.op.name} is not carried out")
        if r.length > MAX_MESSAGE:
            return AccessError(Status.LOC_LEN_ERR, 0, f"{r.length} bytes")
        try:
            self.regions.check(r.lkey, r.laddr, r.length, 0, Status.LOC_PROT_ERR)
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
        if len(self.window) == self.params.window:
            return False
        return bool(self.cut) or (bool(self.unsent) and (not self.window or self._refusal() is None))

    def receive(self, meta: Meta) -> None:
        """An acknowledge packet."""
        if self.failed:
            return
        syndrome, count = meta["syndrome"], (meta["psn"] - self.una) & MASK
        if syndrome >> 5 == 0:
            if count < len(self.window):
                self._acknowledge(count + 1)
        elif syndrome == Syndrome.NAK_PSN:
            if count <= len(self.window):
                self._acknowledge(count)
                if self.cursor:
                    self._restart()
        elif count < len(self.window) and syndrome >> 5 == 1:
            self._acknowledge(count)
            self.cursor = 0
            self.rnr_retries += 1
            if self.rnr_retries > self.params.rnr_retries:
                self.fail(Status.RNR_RETRY_EXC_ERR)
            else:
                self.waiting_rnr = True
        elif count < len(self.window) and syndrome in NAK_STATUS:
            self._acknowledge(count)
            self.fail(NAK_STATUS[Syndrome(syndrome)], syndrome)

    def timeout(self) -> None:
        """No progress for the time of `timeout`."""
        if self.window and not self.failed and not self.waiting_rnr:
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
        if not self.window:
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

    @property
    def busy(self) -> bool:
        return bool(self.messages)
