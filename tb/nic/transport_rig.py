"""What the NIC's benches share: register writes, requests, packets as (fields, payload), completions."""
from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import numpy as np

from spec.interfaces import DONE, NIC_REQUEST, RX_META, TX_META
from spec.packet import Opcode, Syndrome, segment
from spec.registers import Access, QpState
from spec.wqe import Op, Status

FLIT = 64
ALL = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ)
KEY = 0x5A000000  # | index
PSN_MASK = 0xFFFFFF
INFORMED = (Status.LOC_PROT_ERR, Status.MEM_ERR, Status.REM_INV_REQ_ERR, Status.REM_ACCESS_ERR, Status.REM_OP_ERR)  # what `info` is: docs/blocks/nic.md
Packet = tuple[dict[str, int], bytes]


def request(op: int, qp: int, laddr: int, length: int, tag: int, *, raddr: int = 0, rkey: int = KEY, lkey: int = KEY, imm: int = 0) -> int:
    return NIC_REQUEST.pack(tag=tag, opcode=op, qpn=qp, length=length, laddr=laddr, raddr=raddr, lkey=lkey, rkey=rkey, imm=imm)


def beats(payload: bytes) -> list[int]:
    """Words of packet_layout(64): data, keep, first, last."""
    out = []
    for at in range(0, len(payload), FLIT):
        part = payload[at : at + FLIT]
        last = at + FLIT >= len(payload)
        out.append(int.from_bytes(part, "little") | ((1 << len(part)) - 1) << 512 | (at == 0) << 576 | last << 577)
    return out


def payloads(words: np.ndarray) -> list[bytes]:
    """Payloads in (n, 73) rows of packet beats; checks first, last and keep."""
    out: list[bytes] = []
    part = b""
    fresh = True
    for row in words:
        word = int.from_bytes(row[64:].tobytes(), "little")
        keep, first, last = word & (1 << 64) - 1, word >> 64 & 1, word >> 65 & 1
        n = keep.bit_length()
        assert keep == (1 << n) - 1 and n and (last or n == FLIT), f"keep {keep:#x}"
        assert first == fresh, "first beat not marked"
        part += row[:n].tobytes()
        fresh = bool(last)
        if last:
            out.append(part)
            part = b""
    assert not part, "packet without last beat"
    return out


def flits(length: int) -> int:
    return -(-length // FLIT)


def opcode(write: bool, index: int, count: int, imm: bool = False) -> int:
    base = Opcode.WRITE_FIRST if write else Opcode.SEND_FIRST
    return base + (4 if count == 1 else 0 if index == 0 else 2 if index == count - 1 else 1) + (imm and index == count - 1)


def message(data: bytes, psn: int, mtu: int, *, qp: int, src: int, write: int | None = None, rkey: int = KEY, ack_every: int = 0,
            imm: int | None = None) -> list[Packet]:
    """Packets of one message as a receiver sees them; `write`: the remote address; `imm`: the immediate."""
    parts, at, out = segment(len(data), mtu), 0, []
    for i, n in enumerate(parts):
        last = i == len(parts) - 1
        meta = dict(opcode=opcode(write is not None, i, len(parts), imm is not None), ack_req=int(last or (ack_every and (i + 1) % ack_every == 0)),
                    src_node=src, dest_qp=qp, psn=(psn + i) & PSN_MASK, length=n)
        if write is not None and i == 0:
            meta |= dict(va=write, rkey=rkey, dma_len=len(data))
        if imm is not None and last:
            meta |= dict(imm=imm)
        out.append((meta, data[at : at + n]))
        at += n
    return out


def read_request(va: int, length: int, psn: int, *, qp: int, src: int, rkey: int = KEY) -> Packet:
    return dict(opcode=int(Opcode.READ_REQUEST), ack_req=1, src_node=src, dest_qp=qp, psn=psn & PSN_MASK, length=0, va=va, rkey=rkey, dma_len=length), b""


def read_responses(data: bytes, psn: int, mtu: int, *, qp: int, src: int) -> list[Packet]:
    """Responses to a READ as a requester sees them."""
    parts, out, at = segment(len(data), mtu), [], 0
    for i, n in enumerate(parts):
        op = Opcode.READ_RESPONSE_FIRST + (3 if len(parts) == 1 else 0 if i == 0 else 2 if i == len(parts) - 1 else 1)
        out.append((dict(opcode=op, src_node=src, dest_qp=qp, psn=(psn + i) & PSN_MASK, length=n, syndrome=int(Syndrome.ACK)), data[at : at + n]))
        at += n
    return out


def ack(psn: int, *, qp: int, src: int, syndrome: int = Syndrome.ACK, msn: int = 0) -> Packet:
    return dict(opcode=int(Opcode.ACK), src_node=src, dest_qp=qp, psn=psn & PSN_MASK, syndrome=int(syndrome), msn=msn & PSN_MASK, length=0), b""


class Rig:
    """One transport or NIC of the bench; `side` prefixes its ports."""

    def __init__(self, bench: Any, side: str = ""):
        self.b, self.side = bench, side

    def port(self, name: str) -> str:
        return self.side + name

    @property
    def memory(self):
        return self.b.memory(self.port("axi"))

    def counter(self, name: str) -> int:
        return int(self.b.pin(self.port(name)).value)

    async def reg(self, name: str, index: int, value: int, gap: int = 4) -> None:
        pin = self.b.pin
        base = self.port(name)
        pin(f"{base}__index").value, pin(f"{base}__wdata").value, pin(f"{base}__write").value = index, value, 1
        await self.b.wait_cycles(1)
        pin(f"{base}__write").value = 0
        if gap:
            await self.b.wait_cycles(gap)

    async def read_reg(self, name: str, index: int) -> int:
        base = self.port(name)
        self.b.pin(f"{base}__index").value = index
        await self.b.wait_cycles(3)
        return int(self.b.pin(f"{base}__rdata").value)

    async def region(self, index: int, base: int, size: int, access: int = ALL) -> int:
        key = KEY | index
        for name, value in (("base", base), ("size", size), ("key", key), ("access", access)):
            await self.reg(f"mr_{name}", index, value)
        return key

    async def open(self, qp: int, *, dest_qp: int, dest_node: int, sq_psn: int = 0, rq_psn: int = 0, state: int = QpState.RTS) -> None:
        for name, value in (("state", QpState.RESET), ("dest_qp", dest_qp), ("dest_node", dest_node), ("sq_psn", sq_psn), ("rq_psn", rq_psn)):
            await self.reg(f"qp_{name}", qp, value)
        for step in range(1, state + 1):
            await self.reg("qp_state", qp, step)

    async def state(self, qp: int) -> int:
        return await self.read_reg("qp_state", qp)

    # One run: what goes in, what must come out.
    def load(self, requests: Sequence[int] = (), packets: Iterable[Packet] = ()) -> None:
        packets = list(packets)
        self.b.source(self.port("request")).load(list(requests))
        self.b.source(self.port("rx_meta")).load([RX_META.pack(m) for m, _ in packets])
        self.b.source(self.port("rx_data")).load([w for _, p in packets for w in beats(p)])

    async def run(
        self, requests: Sequence[int] = (), packets: Iterable[Packet] = (), *, done: int = 0, sent: int = 0, data: int = 0,
        deadline: int = 20000, settle: int = 40, act: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """`done` completions, `sent` packets with `data` payload beats; `act` happens while the run goes on."""
        self.load(requests, packets)
        self.b.sink(self.port("done")).expect(done)
        self.b.sink(self.port("tx_meta")).expect(sent)
        self.b.sink(self.port("tx_data")).expect(data)
        await self.b.begin(settle)
        if act is not None:
            await act()
        return await self.b.finish(deadline)

    def done(self) -> list[dict[str, int]]:
        """Completions of the run; `info` is 0 where the status gives it no meaning."""
        out = [DONE.unpack(w) for w in self.b.sink(self.port("done")).words()]
        assert all(d["info"] == 0 or d["status"] in INFORMED for d in out), f"info without meaning: {out}"
        return out

    def sent_metas(self) -> list[dict[str, int]]:
        """Packets given out in a run that may have ended inside a payload."""
        return [TX_META.unpack(w) for w in self.b.sink(self.port("tx_meta")).words()]

    def sent(self) -> list[Packet]:
        """Packets given out, with their payloads."""
        metas = self.sent_metas()
        data = iter(payloads(self.b.sink(self.port("tx_data")).array()))
        out = [(m, next(data) if m["length"] else b"") for m in metas]
        assert all(len(p) == m["length"] for m, p in out)
        assert next(data, None) is None, "payload without packet"
        return out


def statuses(done: list[dict[str, int]]) -> list[Status]:
    return [Status(d["status"]) for d in done]


SEND, RECV, WRITE, SEND_IMM, WRITE_IMM, READ = (int(op) for op in (Op.SEND, Op.RECV, Op.WRITE, Op.SEND_IMM, Op.WRITE_IMM, Op.READ))
