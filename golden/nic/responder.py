"""Golden twin of the responder of a reliable connection: packets in, acknowledgements out.

6. PSN as expected: carried out, acknowledged when asked for. Ahead (by less than 2^23): dropped; a PSN NAK with the
   expected PSN, once per gap, and none while an RNR NAK stands. Behind: no effect; acknowledged again (with the
   newest PSN) when asked for.
7. Refused with NAK_INVALID: opcodes other than SEND, WRITE and READ; FIRST or
   ONLY inside a message, MIDDLE or LAST outside, or of another kind; FIRST and MIDDLE not of `mtu` bytes, LAST of 0
   or more than `mtu`, ONLY of more; a WRITE whose packets do not add up to its RETH length; a SEND longer than the
   RECV (which ends in LOC_LEN_ERR).
8. WRITE's whole range is checked with its first packet (NAK_ACCESS; outside memory NAK_OPERATIONAL), a RECV's length and region
   when it is posted (LOC_LEN_ERR, LOC_PROT_ERR; it ends so when all before it are done), memory with each packet of a SEND (MEM_ERR with
   the packet's address, NAK_OPERATIONAL). A SEND's first
   packet and the last of a WRITE with immediate need a RECV, or get an RNR NAK and have no effect.
9. READ: refused with NAK_INVALID inside a message, with payload, or of more than 2^31 bytes; its whole range is checked (REMOTE_READ: NAK_ACCESS;
   outside memory NAK_OPERATIONAL). It takes a PSN for each response. A READ that is behind, range and PSNs as they must be, is carried out again;
   another has no effect. A READ takes the place of responses still to be sent: a requester has one under way at a time.
10. After an error, or a NAK other than PSN and RNR, the queue pair is in error: its RECVs and messages are flushed,
   packets are dropped.
"""
from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from golden.mem.memory import AccessError, Memory, RegionTable
from golden.net.wire import packets
from golden.nic.requester import MASK, MAX_MESSAGE, Completion, Meta, Packet, Request
from spec.packet import HAS_IMM, PSN_BITS, Opcode, Syndrome, segment
from spec.params import NicParams
from spec.registers import Access
from spec.wqe import Op, Status

HALF = 1 << PSN_BITS - 1

SENDS = frozenset(range(Opcode.SEND_FIRST, Opcode.SEND_ONLY_IMM + 1))
WRITES = frozenset(range(Opcode.WRITE_FIRST, Opcode.WRITE_ONLY_IMM + 1))
FIRSTS = frozenset({Opcode.SEND_FIRST, Opcode.WRITE_FIRST})
MIDDLES = frozenset({Opcode.SEND_MIDDLE, Opcode.WRITE_MIDDLE})
LASTS = frozenset({Opcode.SEND_LAST, Opcode.SEND_LAST_IMM, Opcode.WRITE_LAST, Opcode.WRITE_LAST_IMM})
ONLYS = frozenset({Opcode.SEND_ONLY, Opcode.SEND_ONLY_IMM, Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM})


@dataclass
class _Incoming:
    """The message being received."""

    kind: Op
    recv: Request | None
    addr: int
    dma_len: int
    offset: int = 0


class _Refuse(Exception):
    def __init__(self, syndrome: int, recv: Completion | None = None):
        self.syndrome, self.recv = syndrome, recv


@dataclass
class Responder:
    params: NicParams
    memory: Memory
    regions: RegionTable
    psn: int = 0  # expected
    msn: int = 0
    failed: bool = False
    completions: list[Completion] = field(default_factory=list)
    duplicates: int = 0
    naks: int = 0
    executed: int = 0  # packets carried out

    def __post_init__(self) -> None:
        self.recvs: deque[Request] = deque()
        self.bad: dict[int, Completion] = {}  # RECVs that will end in an error, by id
        self.responses: deque[tuple[Meta, int]] = deque()  # READ responses to send: headers, address of the payload
        self.message: _Incoming | None = None
        self.nak_stands = False

    def post(self, recv: Request) -> None:
        if self.failed:
            self.completions.append(Completion(tag=recv.tag, status=Status.WR_FLUSH_ERR))
            return
        self.recvs.append(recv)
        try:
            if recv.length > MAX_MESSAGE:
                self.bad[id(recv)] = Completion(tag=recv.tag, status=Status.LOC_LEN_ERR)
            else:
                self.regions.check(recv.lkey, recv.laddr, recv.length, Access.LOCAL_WRITE, Status.LOC_PROT_ERR)
        except AccessError as e:
            self.bad[id(recv)] = Completion(tag=recv.tag, status=e.status, info=e.address)
        self._look()

    def _look(self) -> None:
        """A bad RECV that is now the oldest ends, and the queue pair with it."""
        if self.recvs and id(self.recvs[0]) in self.bad:
            self.completions.append(self.bad[id(self.recvs.popleft())])
            self.fail()

    def receive(self, meta: Meta, payload: bytes) -> Meta | None:
        """A request packet; the acknowledge packet it is answered with, or None. Responses to a READ are in `responses`."""
        if self.failed:
            return None
        ahead = (meta["psn"] - self.psn) & MASK
        if ahead >= HALF:
            self.duplicates += 1
            if meta["opcode"] == Opcode.READ_REQUEST:
                self._read_again(meta, payload)
                return None
            return self._ack(Syndrome.ACK, self.psn - 1 & MASK) if meta["ack_req"] else None
        if ahead:
            if self.nak_stands:
                return None
            return self._nak(Syndrome.NAK_PSN)
        try:
            self._execute(meta, payload)
        except _Refuse as refuse:
            if refuse.syndrome >> 5 == 1:
                return self._nak(refuse.syndrome)
            if refuse.recv is not None:
                self.recvs.popleft()
                self.completions.append(refuse.recv)
            self.fail()
            return self._nak(refuse.syndrome)
        self.executed += 1
        self.nak_stands = False
        if meta["opcode"] == Opcode.READ_REQUEST:
            return None
        self.psn = (self.psn + 1) & MASK
        return self._ack(Syndrome.ACK, meta["psn"]) if meta["ack_req"] else None

    def _ack(self, syndrome: int, psn: int) -> Meta:
        return {"opcode": int(Opcode.ACK), "psn": psn, "syndrome": int(syndrome), "msn": self.msn}

    def _nak(self, syndrome: int) -> Meta:
        self.naks += 1
        self.nak_stands = True
        return self._ack(syndrome, self.psn)

    def _execute(self, meta: Meta, payload: bytes) -> None:
        op, n = meta["opcode"], len(payload)
        if op == Opcode.READ_REQUEST:
            self._read(meta, n)
            return
        kind = Op.SEND if op in SENDS else Op.WRITE if op in WRITES else None
        begins, ends = op in FIRSTS or op in ONLYS, op in LASTS or op in ONLYS
        message = self.message
        if kind is None or begins != (message is None) or (message is not None and message.kind != kind):
            raise _Refuse(Syndrome.NAK_INVALID)
        if n > self.params.mtu or (not ends and n != self.params.mtu) or (op in LASTS and n == 0):
            raise _Refuse(Syndrome.NAK_INVALID)
        if kind is Op.WRITE:
            left = meta["dma_len"] if message is None else message.dma_len - message.offset
            if n > left or (n == left) != ends:
                raise _Refuse(Syndrome.NAK_INVALID)
        if message is None:
            message = self._begin(kind, meta)
        end = message.offset + n
        if kind is Op.WRITE:
            if op in HAS_IMM:
                message.recv = self._recv()
        else:
            self._check_recv(message, n)
        self.memory.write(message.addr + message.offset, np.frombuffer(payload, np.uint8))
        message.offset = end
        self.message = None if ends else message
        if ends:
            self.msn = (self.msn + 1) & MASK
            if message.recv is not None:
                self.recvs.popleft()
                imm = meta["imm"] if op in HAS_IMM else 0
                self.completions.append(Completion(tag=message.recv.tag, status=Status.SUCCESS, byte_len=end, imm=imm))
                self._look()

    def _read(self, meta: Meta, n: int) -> None:
        va, length = meta["va"], meta["dma_len"]
        if self.message is not None or n or length > MAX_MESSAGE:
            raise _Refuse(Syndrome.NAK_INVALID)
        try:
            self.regions.check(meta["rkey"], va, length, Access.REMOTE_READ, Status.REM_ACCESS_ERR)
        except AccessError:
            raise _Refuse(Syndrome.NAK_ACCESS) from None
        try:
            self.memory.check(va, length)
        except AccessError:
            raise _Refuse(Syndrome.NAK_OPERATIONAL) from None
        self.msn = (self.msn + 1) & MASK
        self.psn = (self.psn + len(segment(length, self.params.mtu))) & MASK
        self._respond(meta)

    def _read_again(self, meta: Meta, payload: bytes) -> None:
        va, length = meta["va"], meta["dma_len"]
        behind = (self.psn - meta["psn"]) & MASK
        if payload or length > MAX_MESSAGE or len(segment(length, self.params.mtu)) > behind:
            return
        with suppress(AccessError):
            self.regions.check(meta["rkey"], va, length, Access.REMOTE_READ, Status.REM_ACCESS_ERR)
            self.memory.check(va, length)
            self._respond(meta)

    def _respond(self, meta: Meta) -> None:
        at = 0
        self.responses.clear()
        for i, (opcode, size) in enumerate(packets(Op.READ, meta["dma_len"], self.params.mtu)):
            head = self._ack(Syndrome.ACK, (meta["psn"] + i) & MASK) | {"opcode": int(opcode), "length": size}
            self.responses.append((head, meta["va"] + at))
            at += size

    def next_response(self) -> Packet | None:
        """The next response to a READ, its payload as memory has it now."""
        if not self.responses:
            return None
        head, at = self.responses.popleft()
        return head, self.memory.view(at, head["length"]).tobytes()

    def _begin(self, kind: Op, meta: Meta) -> _Incoming:
        if kind is Op.SEND:
            recv = self._recv()
            return _Incoming(kind, recv, recv.laddr, 0)
        va, n = meta["va"], meta["dma_len"]
        try:
            self.regions.check(meta["rkey"], va, n, Access.REMOTE_WRITE, Status.REM_ACCESS_ERR)
        except AccessError:
            raise _Refuse(Syndrome.NAK_ACCESS) from None
        try:
            self.memory.check(va, n)
        except AccessError:
            raise _Refuse(Syndrome.NAK_OPERATIONAL) from None
        return _Incoming(kind, None, va, n)

    def _recv(self) -> Request:
        if not self.recvs:
            raise _Refuse(Syndrome.RNR_NAK | self.params.rnr_code)
        return self.recvs[0]

    def _check_recv(self, message: _Incoming, n: int) -> None:
        recv = message.recv
        assert recv is not None
        if message.offset + n > recv.length:
            raise _Refuse(Syndrome.NAK_INVALID, Completion(tag=recv.tag, status=Status.LOC_LEN_ERR))
        at = message.addr + message.offset
        try:
            self.memory.check(at, n)
        except AccessError as e:
            error = Completion(tag=recv.tag, status=e.status, info=at)
            raise _Refuse(Syndrome.NAK_OPERATIONAL, error) from None

    def fail(self) -> None:
        """Flush the RECVs; packets are dropped from now on."""
        self.failed = True
        self.responses.clear()
        while self.recvs:
            self.completions.append(Completion(tag=self.recvs.popleft().tag, status=Status.WR_FLUSH_ERR))
