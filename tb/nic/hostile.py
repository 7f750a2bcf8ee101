"""A peer that means harm: packets drawn at random around what a queue pair expects, and what the golden transport makes of them.

`Victim` is a node's queue pairs by the golden model, on one memory with regions that leave guard bytes between them. `Attack` draws, for each of
them, a packet that would be right and damages it in one or two fields: opcode, PSN, length, rkey, address, RETH length, syndrome, source,
queue pair. The packets are as a deframer gives them (fields that an opcode does not carry are 0): whole frames are damaged in tests/golden.
"""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from golden.mem.memory import Memory, Region, RegionTable
from golden.nic.transport import Completion, Endpoint, Packet, Request
from spec.packet import HAS_AETH, HAS_IMM, HAS_RETH, PSN_BITS, Opcode, Syndrome
from spec.params import NicParams
from spec.registers import Access
from spec.wqe import Op

MASK = (1 << PSN_BITS) - 1
ME, PEER, PEER_QP = 0, 3, 9
KEY = 0x5A000000  # | index
SIZE = 1 << 18
REGIONS = (  # base, bytes, rights; none is both read and written by the other side: what two queue pairs do in one round has no order
    (0x1000, 0x8000, int(Access.LOCAL_WRITE | Access.REMOTE_WRITE)), (0xA000, 0x1001, int(Access.REMOTE_WRITE)),
    (0xC003, 0x0FFD, int(Access.LOCAL_WRITE)), (0xF000, 0x0800, int(Access.REMOTE_READ)), (0x10000, 0, 7), (0x12000, 0x40, 3),
    (0x14000, 0x8001, int(Access.REMOTE_READ)),
)
SOURCES = (3, 4, 6)  # regions that nobody writes
KINDS = ("right", "opcode", "psn", "length", "rkey", "va", "dma_len", "src_node", "dest_qp", "ack", "response")



class Victim:
    """Queue pairs `qps` of node ME, connected to PEER; `open` makes one anew."""

    def __init__(self, params: NicParams, qps: Iterable[int], image: np.ndarray):
        self.params, self.memory, self.regions = params, Memory(SIZE), RegionTable(params.mrs)
        self.memory.data[:] = image
        for i, (base, size, access) in enumerate(REGIONS):
            self.regions.regions[i] = Region(base=base, size=size, key=KEY | i, access=access)
        self.ends: dict[int, Endpoint] = {}
        self.qps = tuple(qps)

    def open(self, qp: int, sq_psn: int, rq_psn: int) -> None:
        self.ends[qp] = Endpoint(
            self.params, self.memory, self.regions, node=ME, qpn=qp, dest_node=PEER, dest_qp=PEER_QP + qp, sq_psn=sq_psn, rq_psn=rq_psn,
        )

    def failed(self, qp: int) -> bool:
        return self.ends[qp].requester.failed

    def post(self, qp: int, request: Request) -> None:
        self.ends[qp].post(request)

    def give(self, meta: dict[str, int], payload: bytes) -> bool:
        """A packet from the link; False: dropped."""
        end = self.ends.get(meta["dest_qp"])
        if end is None or end.requester.failed or meta["src_node"] != PEER:
            return False
        end.receive(meta, payload)
        return True

    def answers(self, qp: int) -> list[Packet]:
        """What the queue pair sends until it waits."""
        out = []
        while (p := self.ends[qp].next_packet()) is not None:
            out.append(p)
        return out

    def completions(self, qp: int) -> tuple[list[Completion], list[Completion]]:
        return self.ends[qp].drain()


def inside() -> np.ndarray:
    """Bytes that some region lets be written, by either end."""
    mask = np.zeros(SIZE, bool)
    for base, size, access in REGIONS:
        if access & (Access.LOCAL_WRITE | Access.REMOTE_WRITE):
            mask[base : base + size] = True
    return mask


class Attack:
    """Draws packets and requests for a victim."""

    def __init__(self, victim: Victim, rng: np.random.Generator, harm: float = 0.45):
        self.v, self.rng, self.harm = victim, rng, harm
        self.tag = 0

    def pick(self, *values: int) -> int:
        return int(values[int(self.rng.integers(len(values)))])

    def place(self, read: bool = False) -> tuple[int, int]:
        """Address in or around a region, and the key of it or another. `read`: one that nobody writes."""
        if read:
            i = self.pick(*SOURCES) if self.rng.random() < 0.1 else SOURCES[-1]
        else:
            i = int(self.rng.integers(len(REGIONS))) if self.rng.random() < 0.4 else 0
        base, size, _ = REGIONS[i]
        key = KEY | i
        if self.rng.random() < 0.1:
            key = self.pick(key ^ 1 << int(self.rng.integers(32)), int(self.rng.integers(1 << 32)), 0, KEY | int(self.rng.integers(16)))
            key = key ^ 1 << 31 if read and key == KEY | key & 15 else key
        return base + int(self.rng.integers(max(size // 2, 1))), key

    def length(self) -> int:
        mtu = self.v.params.mtu
        return self.pick(0, 1, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5, int(self.rng.integers(4 * mtu)))

    def request(self, kind: Op) -> Request:
        laddr, lkey = self.place(kind != Op.RECV)
        raddr, rkey = self.place()
        self.tag = (self.tag + 1) & 0xFFFF
        if kind == Op.READ:
            (laddr, lkey), (raddr, rkey) = self.place(), self.place(True)
        op = kind if self.rng.random() < 0.6 else {Op.SEND: Op.SEND_IMM, Op.WRITE: Op.WRITE_IMM}.get(kind, kind)
        op = op if kind == Op.RECV or self.rng.random() > 0.03 else Op.NOOP
        n = self.length() if self.rng.random() > 0.02 else self.pick((1 << 31) + 1, (1 << 32) - 1, 0x9000)
        return Request(tag=self.tag, op=op, length=n, laddr=laddr, lkey=lkey, raddr=raddr, rkey=rkey, imm=int(self.rng.integers(1 << 32)))

    def packet(self, qp: int) -> tuple[str, Packet]:
        """(what was done to it, packet) for a queue pair."""
        if self.rng.random() < 0.35:
            return "ack", self._ack(qp)
        if self.v.ends[qp].requester.read is not None and self.rng.random() < 0.5:
            return "response", self._response(qp)
        meta, n = self._right(qp)
        kind = "right"
        if self.rng.random() < self.harm:
            kind, n = self._damage(meta, n)
        op = meta["opcode"]
        for names, having in ((("va", "rkey", "dma_len"), HAS_RETH), (("syndrome", "msn"), HAS_AETH), (("imm",), HAS_IMM)):
            if op not in having:
                meta.update(dict.fromkeys(names, 0))
        meta["length"] = n
        return kind, (meta, self.rng.bytes(n))

    def _ack(self, qp: int) -> Packet:
        r = self.v.ends[qp].requester
        n = len(r.window)
        psn = r.una + self.pick(0, 0, int(self.rng.integers(n + 1)), n - 1, n, -1, 1 << 23, int(self.rng.integers(1 << 24)))
        syndrome = self.pick(Syndrome.ACK, int(self.rng.integers(0x20)), Syndrome.NAK_PSN, Syndrome.NAK_PSN, Syndrome.RNR_NAK | int(self.rng.integers(32)),
                             0x61, 0x62, 0x63, 0x64, 0x7F, 0x40, 0x80 | int(self.rng.integers(128)), int(self.rng.integers(256)))
        if self.rng.random() < 0.5:
            syndrome = int(Syndrome.ACK)
        if r.rnr_retries and self.rng.random() < 0.7:  # again, so that the limit is met
            psn, syndrome = r.una, Syndrome.RNR_NAK | 1
        return dict(opcode=int(Opcode.ACK), src_node=PEER, dest_qp=qp, psn=psn & MASK, syndrome=syndrome, msn=int(self.rng.integers(1 << 24)),
                    ack_req=self.pick(0, 1), length=0), b""

    def _response(self, qp: int) -> Packet:
        """A READ response: the one that is due, or one beside it."""
        r, mtu = self.v.ends[qp].requester, self.v.params.mtu
        psn = r._due if self.rng.random() < 0.8 else (r._due + self.pick(-1, 1, 2, 5, 1 << 23)) & MASK
        place = (psn - r.read_first) & MASK
        last = psn == (r.psn - 1) & MASK
        n = r.read.length - place * mtu if last else mtu
        op = self.pick(Opcode.READ_RESPONSE_LAST, Opcode.READ_RESPONSE_ONLY) if last else self.pick(Opcode.READ_RESPONSE_FIRST, Opcode.READ_RESPONSE_MIDDLE)
        if self.rng.random() < 0.15:
            op, n = self.pick(*range(0x0D, 0x11)), self.pick(n, 0, 1, mtu)
        n = min(max(n, 0), mtu)
        return dict(opcode=int(op), src_node=self.pick(PEER, PEER, PEER, PEER, PEER + 1), dest_qp=qp, psn=psn, syndrome=int(Syndrome.ACK),
                    msn=0, ack_req=0, length=n), self.rng.bytes(n)

    def _right(self, qp: int) -> tuple[dict[str, int], int]:
        """A packet that continues what the responder has; its payload's bytes."""
        r, mtu = self.v.ends[qp].responder, self.v.params.mtu
        va, rkey = self.place()
        total = self.length()
        meta = dict(ack_req=1, src_node=PEER, dest_qp=qp, psn=r.psn, va=va, rkey=rkey, dma_len=total, syndrome=0, msn=0, imm=int(self.rng.integers(1 << 32)))
        if r.message is None and self.rng.random() < 0.2:
            va, rkey = self.place(True)
            again = self.pick(0, 0, 1, 4)
            meta |= dict(opcode=int(Opcode.READ_REQUEST), va=va, rkey=rkey, psn=(r.psn - again) & MASK, dma_len=min(total, again * mtu) if again else total)
            return meta, 0
        if r.message is None:
            write = self.pick(0, 1)
            op = (Opcode.WRITE_FIRST if write else Opcode.SEND_FIRST) if total > mtu else Opcode.WRITE_ONLY if write else Opcode.SEND_ONLY
            return {**meta, "opcode": op + self.pick(0, total <= mtu)}, min(total, mtu)
        write = r.message.kind is Op.WRITE
        rest = r.message.dma_len - r.message.offset if write else self.pick(1, mtu, 2 * mtu)
        op = (Opcode.WRITE_LAST if write else Opcode.SEND_LAST) if rest <= mtu else (Opcode.WRITE_MIDDLE if write else Opcode.SEND_MIDDLE)
        return {**meta, "opcode": op + self.pick(0, rest <= mtu)}, min(rest, mtu)

    def _damage(self, meta: dict[str, int], n: int) -> tuple[str, int]:
        rng, mtu = self.rng, self.v.params.mtu
        kind = KINDS[1 + int(rng.integers(len(KINDS) - 3))]
        if kind == "opcode":
            meta["opcode"] = self.pick(int(rng.integers(256)), int(rng.integers(0x18)))
            if meta["opcode"] == Opcode.ACK:
                n = 0
        elif kind == "psn":
            meta["psn"] = (meta["psn"] + self.pick(-1, -2, 1, 2, (1 << 23) - 1, 1 << 23, -(1 << 23), int(rng.integers(1 << 24)))) & MASK
        elif kind == "length":
            n = self.pick(0, 1, mtu - 1, mtu, max(n - 1, 0), min(n + 1, mtu), int(rng.integers(mtu + 1)))
        elif kind == "rkey":
            meta["rkey"] ^= 1 << int(rng.integers(32))
        elif kind == "va":
            base, size, _ = REGIONS[int(rng.integers(len(REGIONS)))]
            meta["va"] = self.pick(base - 1, base + size, base + size - 1, 0, SIZE - 1, (1 << 32) + meta["va"], (1 << 64) - 1, int(rng.integers(1 << 63))) & (1 << 64) - 1
        elif kind == "dma_len":
            meta["dma_len"] = self.pick(0, meta["dma_len"] + 1, max(meta["dma_len"] - 1, 0), n, 1 << 31, (1 << 32) - 1, int(rng.integers(1 << 32)))
        elif kind == "src_node":
            meta["src_node"] = self.pick(PEER + 1, ME, 0xFFFF)
        else:
            meta["dest_qp"] = self.pick(self.v.params.qps, 1 << 23, self.v.params.qps - 1, MASK)
        return kind, n
