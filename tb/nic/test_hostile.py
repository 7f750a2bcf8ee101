"""Transport against a hostile peer (tb/nic/hostile.py), in lock step with the golden transport: one packet for each queue pair a round."""
from __future__ import annotations

from zlib import crc32

import cocotb
import numpy as np

from golden.nic.transport import Request
from spec.packet import HAS_AETH, HAS_IMM, HAS_RETH, READ_RESPONSES, Opcode
from spec.registers import QpState
from spec.wqe import Op
from tb.lib.bench import Bench
from tb.nic.dut_transport import patient
from tb.nic.hostile import PEER, PEER_QP, REGIONS, SIZE, Attack, Victim, inside
from tb.nic.transport_rig import RECV, SEND, Rig, ack, flits, message, request

QPS = tuple(range(12))
CLEAN = 13
PACKETS = 10_000


async def start(dut) -> tuple[Rig, Victim, Attack]:
    b = await Bench.start(dut)
    r = Rig(b)
    r.memory.write(0, b.rng.integers(0, 256, SIZE, dtype=np.uint8))
    r.memory.latency = 4
    for i, (base, size, access) in enumerate(REGIONS):
        await r.region(i, base, size, access)
    v = Victim(patient(b.config.node.nic), QPS, r.memory.image.copy())
    return r, v, Attack(v, b.rng)


async def reopen(r: Rig, v: Victim, qp: int) -> None:
    sq, rq = (int(x) for x in r.b.rng.integers(0, 1 << 24, 2))
    v.open(qp, sq, rq)
    await r.open(qp, dest_qp=PEER_QP + qp, dest_node=PEER, sq_psn=sq, rq_psn=rq)


def words(q: Request, qp: int) -> int:
    return request(q.op, qp, q.laddr, q.length, q.tag, raddr=q.raddr, rkey=q.rkey, lkey=q.lkey, imm=q.imm)


def told(m: dict[str, int], payload: bytes) -> tuple:
    """What must be equal of a packet sent: of data all but when it asks for an ACK (which restarts shift), of an ACK everything."""
    op = m["opcode"]
    names = ("psn", "dest_node", "dest_qp", *(("syndrome", "msn") if op in HAS_AETH else ()), *(("va", "rkey", "dma_len") if op in HAS_RETH else ()),
             *(("imm",) if op in HAS_IMM else ()))
    return op, *(m[n] for n in names), len(payload), crc32(payload)


def sort(packet) -> int:
    """ACKs, READ responses and what the requester sends have no order among them."""
    op = packet[0]["opcode"]
    return 2 if op in READ_RESPONSES else int(op == Opcode.ACK)


def by_qp(items, key) -> dict[int, list]:
    out: dict[int, list] = {}
    for x in items:
        out.setdefault(key(x), []).append(x)
    return out


async def step(r: Rig, v: Victim, requests: list[tuple[int, Request]], packets) -> None:
    """Give both the same; what comes out must be equal for every queue pair and direction."""
    for qp, q in requests:
        v.post(qp, q)
    for p in packets:
        v.give(*p)
    answers = {qp: v.answers(qp) for qp in QPS}
    done = {qp: v.completions(qp) for qp in QPS}
    sent = [p for ps in answers.values() for p in ps]
    await r.run([words(q, qp) for qp, q in requests], packets, sent=len(sent), data=sum(flits(len(p)) for _, p in sent),
                done=sum(len(a) + len(b) for a, b in done.values()), settle=60)
    got = by_qp(r.sent(), lambda x: x[0]["dest_qp"] - PEER_QP)
    ended = by_qp(r.done(), lambda d: d["qpn"])
    for qp in QPS:
        for kind in range(3):
            mine = [told(*p) for p in got.get(qp, []) if sort(p) == kind]
            want = [told(*p) for p in answers[qp] if sort(p) == kind]
            assert mine == want, f"qp {qp}: sent {mine}, expected {want}; given {[m for m, _ in packets if m['dest_qp'] == qp]}"
        mine = sorted((d["tag"], d["status"], d["byte_len"], d["imm"], d["info"]) for d in ended.get(qp, []))
        want = sorted((c.tag, c.status, c.byte_len, c.imm, c.info) for c in (*done[qp][0], *done[qp][1]))
        assert mine == want, f"qp {qp}: completions {mine}, expected {want}; given {[m for m, _ in packets if m['dest_qp'] == qp]}"


@cocotb.test()
async def test_ten_thousand_packets(dut):
    r, v, a = await start(dut)
    b, rng, before = r.b, r.b.rng, r.memory.image.copy()
    for qp in QPS:
        await reopen(r, v, qp)
    for round_ in range(-(-PACKETS // len(QPS))):
        posts = []
        for qp in QPS:
            e = v.ends[qp]
            for kind, have, p in ((Op.RECV, len(e.responder.recvs), 0.5), (Op.SEND, len(e.requester.messages), 0.25), (Op.WRITE, len(e.requester.messages), 0.25),
                                  (Op.READ, len(e.requester.messages), 0.15)):
                if have < 5 and rng.random() < p:
                    posts.append((qp, a.request(kind)))
        await step(r, v, posts, [])
        packets = []
        for qp in QPS:
            kind, packet = a.packet(qp)
            packets.append(packet)
            b.cover(kind if kind != "right" else "ack")
        b.stalls(0.2 * (round_ % 4 == 3))
        await step(r, v, [], packets)
        b.stalls(0)
        if round_ % 20 == 19:
            assert np.array_equal(r.memory.image, v.memory.data), f"memory differs at {np.flatnonzero(r.memory.image != v.memory.data)[:8]}"
        for qp in QPS:
            if v.failed(qp):
                assert await r.state(qp) == QpState.ERR, f"qp {qp}"
                if rng.random() < 0.7:
                    await reopen(r, v, qp)
            else:
                assert await r.state(qp) == QpState.RTS, f"qp {qp}"
    assert np.array_equal(r.memory.image, v.memory.data)
    assert np.array_equal(before[~inside()], r.memory.image[~inside()]), "bytes outside every region were written"


@cocotb.test()
async def test_flood(dut):
    r, v, a = await start(dut)
    b, before = r.b, r.memory.image.copy()
    await r.open(CLEAN, dest_qp=PEER_QP + CLEAN, dest_node=PEER)
    for round_ in range(20):
        for qp in QPS:
            await reopen(r, v, qp)
        b.stalls(0.3 * (round_ % 2))
        posts = [(qp, a.request(kind)) for _ in range(6) for qp in QPS for kind in (Op.RECV, b.rng.choice([Op.WRITE, Op.READ]))]
        r.load([words(q, qp) for qp, q in posts])
        for name in ("done", "tx_meta", "tx_data"):
            b.sink(name).expect(0, exact=False)
        await b.run(60_000, settle=200)
        packets = []
        for _ in range(30):
            for qp in QPS:
                packet = a.packet(qp)[1]
                v.give(*packet)
                packets.append(packet)
        text = b.rng.bytes(40)
        r.load([request(RECV, CLEAN, 0x1000, 64, 7), request(SEND, CLEAN, 0x1000, 40, 8)], packets)
        for name in ("done", "tx_meta", "tx_data"):
            b.sink(name).expect(0, exact=False)
        await b.run(100_000, settle=400)
        # the queue pair left alone: its SEND left among the answers, its message arrives, its ACK counts
        assert [m["psn"] for m in r.sent_metas() if m["dest_qp"] == PEER_QP + CLEAN] == [round_]
        await r.run([], [*message(text, round_, r.b.config.node.nic.mtu, qp=CLEAN, src=PEER), ack(round_, qp=CLEAN, src=PEER)], done=2, sent=1)
        assert r.memory.read(0x1000, 40).tobytes() == text
        for qp in QPS:
            await r.reg("qp_state", qp, QpState.RESET)
        b.sink("done").expect(0, exact=False)
        await b.run(20_000, settle=400)
    assert np.array_equal(before[~inside()], r.memory.image[~inside()]), "bytes outside every region were written"
