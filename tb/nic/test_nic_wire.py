"""One NIC, `a` of the pair, against the golden packet model: whole frames in and out."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.nic import packet as model
from spec.interfaces import DONE
from spec.packet import UDP_PORT_ROCE, Opcode, Syndrome, frame_bytes, segment
from spec.wqe import Status
from tb.lib.bench import Bench
from tb.nic.transport_rig import (
    FLIT,
    KEY,
    PSN_MASK,
    RECV,
    SEND,
    WRITE,
    Rig,
    beats,
    message,
    opcode,
    payloads,
    request,
    statuses,
)

ME, PEER, QP, PEER_QP = 2, 5, 7, 0x1234
BASE = 0x1000
PSN = PSN_MASK - 2


class Wire:
    def __init__(self, b: Bench):
        self.b, self.r, self.p = b, Rig(b, "a_"), b.config.node.nic

    @classmethod
    async def start(cls, dut) -> Wire:
        w = cls(await Bench.start(dut))
        w.b.pin(w.r.port("node")).value = ME
        w.b.pin("on_wire").value = 1
        w.r.memory.write(0, w.b.rng.integers(0, 256, len(w.r.memory.image), dtype=np.uint8))
        w.r.memory.latency = 10
        await w.r.region(0, BASE, 0x30000)
        await w.r.open(QP, dest_qp=PEER_QP, dest_node=PEER, sq_psn=PSN, rq_psn=PSN)
        return w

    async def run(self, requests=(), frames=(), *, done: int = 0, flits: int = 0) -> list[bytes]:
        """Frames that came out."""
        self.b.source(self.r.port("request")).load(list(requests))
        self.b.source("wire_rx").load([x for f in frames for x in beats(f)])
        self.b.sink(self.r.port("done")).expect(done)
        self.b.sink("wire_tx").expect(flits)
        await self.b.run(20000, settle=60)
        return payloads(self.b.sink("wire_tx").array())

    def done(self):
        return [DONE.unpack(x) for x in self.b.sink(self.r.port("done")).words()]


def frame(meta: dict[str, int], payload: bytes) -> bytes:
    """What the peer sends: `meta` in the words of RX_META."""
    fields = {k: v for k, v in meta.items() if k != "src_node"}
    return model.build(fields | {"dest_node": ME}, payload, meta["src_node"])


def flit_count(length: int, mtu: int, write: bool) -> int:
    parts = segment(length, mtu)
    head = [frame_bytes(opcode(write, i, len(parts)), n) for i, n in enumerate(parts)]
    return sum(-(-n // FLIT) for n in head)


@cocotb.test()
async def test_frames_out(dut):
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    w = await Wire.start(dut)
    mtu, psn = w.p.mtu, PSN
    for k, length in enumerate((0, 1, 64, mtu - 1, mtu, mtu + 1, 2 * mtu + 7)):
        for write in (False, True):
            laddr = BASE + 64 * k + k
            out = await w.run([request(WRITE if write else SEND, QP, laddr, length, k, raddr=0xABCDEF0123, rkey=77)],
                              flits=flit_count(length, mtu, write))
            parts, at = segment(length, mtu), 0
            for i, (f, n) in enumerate(zip(out, parts, strict=True)):
                m, payload = model.parse(f, node=PEER, mtu=mtu)
                assert payload == w.r.memory.image[laddr + at : laddr + at + n].tobytes()
                assert (m["opcode"], m["psn"], m["src_node"], m["dest_qp"]) == (opcode(write, i, len(parts)), (psn + i) & PSN_MASK, ME, PEER_QP)
                if write and i == 0:
                    assert (m["va"], m["rkey"], m["dma_len"]) == (0xABCDEF0123, 77, length)
                seen = Ether(f)
                assert seen[UDP].dport == UDP_PORT_ROCE and seen[IP].len == len(f) - 14 and seen[IP].dst == f"10.0.0.{PEER + 1}"
                at += n
            psn += len(parts)
            await w.run([], [frame(dict(opcode=int(Opcode.ACK), src_node=PEER, dest_qp=QP, psn=(psn - 1) & PSN_MASK, syndrome=int(Syndrome.ACK)), b"")], done=1)
            assert statuses(w.done()) == [Status.SUCCESS]
            w.b.cover("WRITE frame" if write else "SEND frame")


@cocotb.test()
async def test_frames_in(dut):
    w = await Wire.start(dut)
    mtu, b = w.p.mtu, w.b
    first = b.rng.bytes(2 * mtu + 9)
    packets = message(first, PSN, mtu, qp=QP, src=PEER)
    await w.run([request(RECV, QP, BASE + 3, len(first), 1)])
    frames = [frame(*p) for p in packets]
    damaged = bytearray(frames[1])
    damaged[mtu // 2] ^= 4
    short = frames[1][: len(frames[1]) // 2]
    other = bytearray(frames[1])
    other[5] ^= 1
    dropped = w.r.counter("nic_rx_dropped")
    out = await w.run([], [frames[0], bytes(damaged), short, bytes(other), frames[1], frames[0], frames[2]], done=1, flits=2)
    answers = [model.parse(f, node=PEER, mtu=mtu)[0] for f in out]
    assert {m["syndrome"] for m in answers} == {Syndrome.ACK} and answers[-1]["psn"] == (PSN + 2) & PSN_MASK
    assert all(m["opcode"] == Opcode.ACK and m["dest_qp"] == PEER_QP for m in answers)
    d = w.done()[0]
    assert (d["tag"], d["status"], d["byte_len"]) == (1, Status.SUCCESS, len(first))
    assert w.r.memory.read(BASE + 3, len(first)).tobytes() == first
    assert w.r.counter("nic_rx_dropped") == dropped + 3 and w.r.counter("nic_duplicates") == 1
    for name in ("damaged", "truncated", "other node", "repeated"):
        b.cover(name)
    data = b.rng.bytes(3 * mtu + 5)
    out = await w.run([], [frame(*p) for p in message(data, PSN + 3, mtu, qp=QP, src=PEER, write=BASE + 0x8001, rkey=KEY)], flits=1)
    assert len(out) == 1 and w.r.memory.read(BASE + 0x8001, len(data)).tobytes() == data
