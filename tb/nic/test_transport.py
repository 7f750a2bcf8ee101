"""Transport alone: the peer is the test. Small limits (tb/nic/dut_transport.py): MTU 256, window 8, queues of 8."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.interfaces import RX_META
from spec.packet import HAS_AETH, RNR_UNITS, Opcode, Syndrome, segment
from spec.registers import Access, QpState
from spec.wqe import Op, Status
from tb.lib.bench import Bench
from tb.nic.dut_transport import params
from tb.nic.transport_rig import (
    KEY,
    PSN_MASK,
    READ,
    RECV,
    SEND,
    SEND_IMM,
    WRITE,
    WRITE_IMM,
    Rig,
    ack,
    flits,
    message,
    opcode,
    read_request,
    read_responses,
    request,
    statuses,
)

BASE, SIZE = 0x1000, 0x30000
ME, PEER, PEER_QP = 0, 3, 9


async def start(dut, *, qps=(1,), sq_psn: int = 0, rq_psn: int = 0) -> Rig:
    b = await Bench.start(dut)
    r = Rig(b)
    r.memory.write(0, b.rng.integers(0, 256, len(r.memory.image), dtype=np.uint8))
    r.p = params(b.config.node.nic)
    await r.region(0, BASE, SIZE)
    for qp in qps:
        await r.open(qp, dest_qp=PEER_QP + qp, dest_node=PEER, sq_psn=sq_psn, rq_psn=rq_psn)
    return r


def check_message(r: Rig, packets, laddr: int, length: int, psn: int, *, write: int | None, qp: int = 1) -> None:
    parts = segment(length, r.p.mtu)
    assert len(packets) == len(parts)
    at = 0
    for i, ((m, payload), n) in enumerate(zip(packets, parts, strict=True)):
        assert m["opcode"] == opcode(write is not None, i, len(parts)), f"packet {i}: opcode {m['opcode']:#x}"
        assert m["psn"] == (psn + i) & PSN_MASK
        assert (m["dest_node"], m["dest_qp"]) == (PEER, PEER_QP + qp)
        assert payload == r.memory.image[laddr + at : laddr + at + n].tobytes(), f"packet {i}: payload"
        if write is not None and i == 0:
            assert (m["va"], m["rkey"], m["dma_len"]) == (write, 0x77, length)
        at += n
    assert packets[-1][0]["ack_req"]


@cocotb.test()
async def test_segmentation(dut):
    r = await start(dut, sq_psn=PSN_MASK - 2)
    mtu, b = r.p.mtu, r.b
    psn = PSN_MASK - 2
    lengths = [0, 1, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5]
    for stall, latency in ((0.0, 10), (0.3, 3)):
        b.stalls(stall)
        r.memory.latency = latency
        for k, length in enumerate(lengths + [int(b.rng.integers(1, 8 * mtu)) for _ in range(10)]):
            laddr = BASE + int(b.rng.integers(0, 0x8000))
            write = int(b.rng.integers(1 << 40)) if k % 2 else None
            req = request(WRITE if k % 2 else SEND, 1, laddr, length, k, raddr=write or 0, rkey=0x77)
            parts = segment(length, mtu)
            await r.run([req], sent=len(parts), data=sum(flits(n) for n in parts))
            check_message(r, r.sent(), laddr, length, psn, write=write)
            psn += len(parts)
            await r.run([], [ack(psn - 1, qp=1, src=PEER)], done=1)
            d = r.done()[0]
            assert (d["tag"], d["status"], d["byte_len"], d["qpn"]) == (k, Status.SUCCESS, length, 1)
            b.cover("zero length" if not length else "one packet" if length <= mtu else "many packets")
            if laddr % 64:
                b.cover("unaligned")
            if length and laddr // 4096 != (laddr + length - 1) // 4096:
                b.cover("crosses 4 KiB")


@cocotb.test()
async def test_go_back_n(dut):
    """Stale ACKs are ignored; a NAK and a timeout restart at the oldest packet; after the retries RETRY_EXC_ERR."""
    first = PSN_MASK - 1
    r = await start(dut, sq_psn=first)
    mtu, b = r.p.mtu, r.b
    length, laddr = 5 * mtu + 9, BASE + 77
    n = 6

    async def part(packets, sent, done=0, deadline=20000):
        """`sent`: indices of the packets that must come."""
        sizes = [mtu if i < n - 1 else 9 for i in sent]
        await r.run([], packets, sent=len(sent), data=sum(map(flits, sizes)), done=done, deadline=deadline)
        got = r.sent()
        assert [(m["psn"] - first) & PSN_MASK for m, _ in got] == list(sent)
        for (m, payload), i, size in zip(got, sent, sizes, strict=True):
            assert m["opcode"] == opcode(False, i, n)
            assert payload == r.memory.image[laddr + i * mtu : laddr + i * mtu + size].tobytes()

    r.memory.latency = 4
    await r.run([request(SEND, 1, laddr, length, 5)], sent=n, data=sum(flits(x) for x in segment(length, mtu)))
    assert [m["ack_req"] for m, _ in r.sent()] == [0, 0, 0, 1, 0, 1]
    await part([ack(first - 1, qp=1, src=PEER), ack(first + n, qp=1, src=PEER), ack(first + 100, qp=1, src=PEER),
                ack(first + (1 << 23), qp=1, src=PEER), ack(first + n - 1, qp=1, src=PEER + 1)], [])
    await part([ack(first, qp=1, src=PEER), ack(first, qp=1, src=PEER)], [])
    await part([ack(first + 2, qp=1, src=PEER, syndrome=Syndrome.NAK_PSN)], [2, 3, 4, 5])
    assert r.counter("nic_retransmits") == 1
    b.cover("NAK restart")
    await part([ack(first + 3, qp=1, src=PEER)], [])
    t0 = b.total_cycles
    await part([], [4, 5])
    assert r.p.timeout * 0.5 < b.total_cycles - t0 < r.p.timeout * 1.5, b.total_cycles - t0
    b.cover("timeout restart")
    await part([], [4, 5])
    await r.run([], done=1)
    d = r.done()[0]
    assert (d["tag"], d["status"]) == (5, Status.RETRY_EXC_ERR) and await r.state(1) == QpState.ERR
    b.cover("retries exhausted")

    # Acknowledged past a restart: what is acknowledged is not sent again, and the next message follows.
    await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER, sq_psn=first)
    await r.run([request(SEND, 1, laddr, length, 6)], sent=n, data=sum(flits(x) for x in segment(length, mtu)))
    b.sink("tx_meta").backpressure = 0.9
    b.sink("tx_data").backpressure = 0.9
    packets = [ack(first, qp=1, src=PEER, syndrome=Syndrome.NAK_PSN), ack(first + n - 1, qp=1, src=PEER)]
    r.load([request(SEND, 1, laddr, 0, 7)], packets)
    b.sink("done").expect(1)
    b.sink("tx_meta").expect(1, exact=False)
    await b.run(20000, settle=400)
    assert statuses(r.done()) == [Status.SUCCESS]
    b.stalls(0)
    await r.run([], [ack(first + n, qp=1, src=PEER)], done=1)
    assert (r.done()[0]["tag"], r.done()[0]["status"]) == (7, Status.SUCCESS)


@cocotb.test()
async def test_immediate(dut):
    """SEND and WRITE with immediate, sent and received: opcodes, value, one RECV each; WRITE's RNR NAK at its last packet; what failed is never told as done."""
    r = await start(dut)
    b, mtu = r.b, r.p.mtu
    psn = 0
    for k, length in enumerate((0, 1, mtu, mtu + 1, 3 * mtu + 5)):
        for op in (SEND_IMM, WRITE_IMM):
            imm = 0xC0DE0000 | k
            parts = segment(length, mtu)
            await r.run([request(op, 1, BASE + k, length, k, raddr=0x77000 + k, rkey=0x77, imm=imm)], sent=len(parts), data=sum(flits(n) for n in parts))
            packets = r.sent()
            assert [m["opcode"] for m, _ in packets] == [opcode(op == WRITE_IMM, i, len(parts), True) for i in range(len(parts))]
            assert packets[-1][0]["imm"] == imm and b"".join(p for _, p in packets) == r.memory.image[BASE + k : BASE + k + length].tobytes()
            psn += len(parts)
            await r.run([], [ack(psn - 1, qp=1, src=PEER)], done=1)
            assert statuses(r.done()) == [Status.SUCCESS]
    b.cover("immediate sent")

    psn = msn = 0
    for k, length in enumerate((0, 1, mtu, mtu + 1, 3 * mtu + 5)):
        for write in (None, BASE + 0x4001):
            data = b.rng.bytes(length)
            packets = message(data, psn, mtu, qp=1, src=PEER, write=write, imm=0xFACE0000 | k)
            if write is not None:  # a WRITE is carried out up to its last packet, which waits for a RECV
                await r.run([], packets, sent=1)
                assert r.sent()[0][0]["syndrome"] == Syndrome.RNR_NAK | r.p.rnr_code and r.sent()[0][0]["psn"] == psn + len(packets) - 1
                packets = packets[-1:]
                b.cover("WRITE with immediate waits")
            await r.run([request(RECV, 1, BASE + 7, length if write is None else 0, 40 + k)])
            await r.run([], packets, sent=1, done=1)
            psn, msn = psn + len(segment(length, mtu)), msn + 1
            m, d = r.sent()[0][0], r.done()[0]
            assert (m["syndrome"], m["psn"], m["msn"]) == (Syndrome.ACK, psn - 1, msn)
            assert (d["tag"], d["status"], d["byte_len"], d["imm"]) == (40 + k, Status.SUCCESS, length, 0xFACE0000 | k)
            assert r.memory.read(write or BASE + 7, length).tobytes() == data
    await r.run([request(RECV, 1, BASE, 8, 60)])
    await r.run([], message(b"plain", psn, mtu, qp=1, src=PEER), sent=1, done=1)
    assert r.done()[0]["imm"] == 0
    b.cover("immediate received")

    # memory refuses the first packet of a WRITE whose last has been accepted already: its RECV does not end in SUCCESS, nor one of a SEND behind it
    r.memory.latency = 60
    for imm in (1, None):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        r.memory.error(0x5000, 0x5040)
        await r.run([request(RECV, 1, BASE, 64, 1)])
        behind = [] if imm else message(b"behind", 3, mtu, qp=1, src=PEER)
        r.load([], message(bytes(600), 0, mtu, qp=1, src=PEER, write=0x5000, imm=imm) + behind)
        b.sink("done").expect(1)
        b.sink("tx_meta").expect(1, exact=False)
        await b.run(20000, settle=400)
        d = r.done()[0]
        assert (d["status"], d["byte_len"], d["imm"], d["info"]) == (Status.MEM_ERR, 0, 0, 0x5000) and await r.state(1) == QpState.ERR
        # and the mark of it is not the next connection's
        r.memory.error(0, 0)
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.run([request(RECV, 1, BASE, 64, 1)])
        await r.run([], message(b"new", 0, mtu, qp=1, src=PEER, imm=9), sent=1, done=1)
        assert (r.done()[0]["status"], r.done()[0]["imm"]) == (Status.SUCCESS, 9)
    b.cover("failed before its immediate")


@cocotb.test()
async def test_read(dut):
    """READ as requester: request, responses of every size to any address, nothing behind it before its end, loss, wrong responses, flush."""
    first = PSN_MASK - 2
    r = await start(dut, sq_psn=first)
    b, mtu, psn = r.b, r.p.mtu, first
    for k, length in enumerate((0, 1, 63, 65, mtu, mtu + 1, 3 * mtu + 5)):
        laddr, data = BASE + 0x100 + 13 * k, b.rng.bytes(length)
        image = r.memory.image.copy()
        image[laddr : laddr + length] = np.frombuffer(data, np.uint8)
        r.memory.latency = 20 if k % 2 else 3
        b.stalls(0.3 * (k % 3 == 2))
        await r.run([request(READ, 1, laddr, length, k, raddr=0x7700 + k, rkey=0x77), request(SEND, 1, BASE, 5, 50 + k)], sent=1)
        m = r.sent()[0][0]
        assert (m["opcode"], m["psn"], m["va"], m["rkey"], m["dma_len"]) == (Opcode.READ_REQUEST, psn & PSN_MASK, 0x7700 + k, 0x77, length)
        count = len(segment(length, mtu))
        await r.run([], read_responses(data, psn, mtu, qp=1, src=PEER), done=1, sent=1, data=1)
        d = r.done()[0]
        assert (d["tag"], d["status"], d["byte_len"]) == (k, Status.SUCCESS, length) and np.array_equal(image, r.memory.image)
        assert (r.sent()[0][0]["opcode"], r.sent()[0][0]["psn"]) == (Opcode.SEND_ONLY, (psn + count) & PSN_MASK)
        await r.run([], [ack(psn + count, qp=1, src=PEER)], done=1)
        psn += count + 1
    b.stalls(0)
    b.cover("read")

    # A lost response: one restart, for the rest; an ACK acknowledges nothing of a READ; a SEND before it is acknowledged by its first response.
    data = b.rng.bytes(5 * mtu + 9)
    answers = read_responses(data, psn + 1, mtu, qp=1, src=PEER)
    await r.run([request(SEND, 1, BASE, 5, 1), request(READ, 1, BASE + 64, len(data), 2, raddr=0x10000, rkey=9)], sent=2, data=1)
    await r.run([], [ack(psn + 3, qp=1, src=PEER)], done=1)
    await r.run([], [answers[0], answers[1], answers[3], answers[4]], sent=1)
    m = r.sent()[0][0]
    assert (m["psn"], m["va"], m["dma_len"]) == ((psn + 3) & PSN_MASK, 0x10000 + 2 * mtu, len(data) - 2 * mtu)
    await r.run([], [answers[4], answers[1], *read_responses(data[2 * mtu :], psn + 3, mtu, qp=1, src=PEER)], done=1)
    assert (r.done()[0]["tag"], r.done()[0]["status"]) == (2, Status.SUCCESS) and r.memory.read(BASE + 64, len(data)).tobytes() == data
    psn += 1 + len(answers)
    b.cover("read restarted")

    for qp, change, status in ((1, dict(opcode=int(Opcode.READ_RESPONSE_ONLY)), Status.BAD_RESP_ERR), (2, dict(length=mtu - 1), Status.BAD_RESP_ERR)):
        await r.open(qp, dest_qp=PEER_QP + qp, dest_node=PEER, sq_psn=10)
        await r.run([request(READ, qp, BASE, 2 * mtu, 1, raddr=0, rkey=9), request(SEND, qp, BASE, 1, 2), request(RECV, qp, BASE, 1, 3)], sent=1)
        m, payload = read_responses(bytes(2 * mtu), 10, mtu, qp=qp, src=PEER)[0]
        m |= change
        before = r.memory.image.copy()
        await r.run([], [(m, payload[: m["length"]])], done=3)
        assert sorted((d["tag"], d["status"]) for d in r.done()) == [(1, status), (2, Status.WR_FLUSH_ERR), (3, Status.WR_FLUSH_ERR)]
        assert np.array_equal(before, r.memory.image) and await r.state(qp) == QpState.ERR
    b.cover("bad response")
    for syndrome, status in ((Syndrome.NAK_ACCESS, Status.REM_ACCESS_ERR), (Syndrome.NAK_OPERATIONAL, Status.REM_OP_ERR)):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER, sq_psn=10)
        await r.run([request(READ, 1, BASE, 3 * mtu, 1, raddr=0, rkey=9)], sent=1)
        await r.run([], [read_responses(bytes(3 * mtu), 10, mtu, qp=1, src=PEER)[0], ack(11, qp=1, src=PEER, syndrome=syndrome)], done=1)
        assert statuses(r.done()) == [status]
    # memory refuses the data, of the first or the last response; the timer asks again; what nobody waits for is dropped
    for at in (0x5000, 0x5000 + mtu):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER, sq_psn=10)
        r.memory.error(at, at + 64)
        await r.run([request(READ, 1, 0x5000, 2 * mtu, 1, raddr=0, rkey=9)], sent=1)
        await r.run([], read_responses(bytes(2 * mtu), 10, mtu, qp=1, src=PEER), done=1)
        assert (r.done()[0]["status"], r.done()[0]["info"]) == (Status.MEM_ERR, at)
    r.memory.error(0, 0)
    b.cover("read data refused")
    await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER, sq_psn=10)
    lost = r.counter("dropped")
    await r.run([], read_responses(bytes(2 * mtu), 10, mtu, qp=1, src=PEER))
    assert r.counter("dropped") == lost + 2
    await r.run([request(READ, 1, 0x5000, 2 * mtu, 1, raddr=0, rkey=9)], sent=1)
    await r.run([], read_responses(bytes(2 * mtu), 10, mtu, qp=1, src=PEER)[:1])
    await r.run([], sent=1)
    assert (r.sent()[0][0]["psn"], r.sent()[0][0]["va"], r.sent()[0][0]["dma_len"]) == (11, mtu, mtu)
    await r.run([], [], done=1, act=lambda: r.reg("qp_state", 1, QpState.ERR))
    assert statuses(r.done()) == [Status.WR_FLUSH_ERR]
    for bad in (request(READ, 1, 0x100, 8, 1), request(READ, 1, BASE, 8, 1, lkey=KEY | 4)):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.region(4, BASE, 64, Access.REMOTE_READ)
        await r.run([bad], done=1)
        assert statuses(r.done()) == [Status.LOC_PROT_ERR]


@cocotb.test()
async def test_read_answered(dut):
    """READ as responder: responses of every size from any address, again when it comes again, refused outside its region; other QPs in between."""
    first = PSN_MASK - 1
    r = await start(dut, qps=(1, 2), rq_psn=first)
    b, mtu, psn, msn = r.b, r.p.mtu, first, 0
    await r.region(5, 0x8000, 0x1000, Access.REMOTE_READ)
    key = KEY | 5

    async def read(va, length, at, answers, *, rkey=key, qp=1):
        want = r.memory.image[va : va + length].tobytes()
        await r.run([], [read_request(va, length, at, qp=qp, src=PEER, rkey=rkey)], sent=answers, data=sum(flits(n) for n in segment(length, mtu)))
        got = r.sent()
        expected = read_responses(want, at, mtu, qp=qp, src=PEER)
        for (m, payload), (e, data) in zip(got, expected, strict=True):
            assert (m["opcode"], m["psn"], payload) == (e["opcode"], e["psn"], data) and (m["dest_qp"], m["dest_node"]) == (PEER_QP + qp, PEER)
            if m["opcode"] in HAS_AETH:
                assert (m["syndrome"], m["msn"]) == (Syndrome.ACK, msn)

    for k, length in enumerate((0, 1, 64, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 9 * mtu)):
        r.memory.latency = 30 if k % 2 else 4
        b.stalls(0.3 * (k % 3 == 1))
        msn += 1
        count = len(segment(length, mtu))
        await read(0x8000 + 7 * k, length, psn, count)
        psn += count
        if length > mtu:  # again, whole and from the second packet on; beyond what was asked: no effect
            await read(0x8000 + 7 * k, length, psn - count, count)
            await read(0x8000 + 7 * k + mtu, length - mtu, psn - count + 1, count - 1)
            await r.run([], [read_request(0x8000, length, psn - count + 1, qp=1, src=PEER, rkey=key), read_request(0x7000, 1, psn - 1, qp=1, src=PEER, rkey=key)])
            b.cover("read again")
    b.stalls(0)
    b.cover("read answered")

    # Two QPs answer in turn, and a message for one of them is carried out meanwhile.
    await r.run([request(RECV, 2, BASE, 64, 7)])
    packets = [read_request(0x8000, 8 * mtu, psn, qp=1, src=PEER, rkey=key), read_request(0x8100, 8 * mtu, first, qp=2, src=PEER, rkey=key),
               *message(b"meanwhile", first + 8, mtu, qp=2, src=PEER)]
    await r.run([], packets, sent=17, data=16 * flits(mtu), done=1)
    order = [m["dest_qp"] - PEER_QP for m, _ in r.sent() if m["opcode"] != Opcode.ACK]
    assert sorted(order) == [1] * 8 + [2] * 8 and order[4:8].count(1) == 2, order
    b.cover("answers in turn")

    await r.region(6, BASE, 0x100, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    # Answers and messages of other QPs share the way out, while the link stalls and memory is slow: nothing is lost, and each keeps its order.
    for back, latency in ((0.7, 4), (0.5, 60), (0.0, 100)):
        r.memory.latency = latency
        b.sink("tx_meta").backpressure = b.sink("tx_data").backpressure = back
        for qp in (1, 2, 3):
            await r.open(qp, dest_qp=PEER_QP + qp, dest_node=PEER)
        sends = [request(SEND, 1 + 2 * (k % 2), BASE + 0x100 * k, mtu, k) for k in range(16)]
        await r.run(sends, [read_request(0x8000, 16 * mtu, 0, qp=2, src=PEER, rkey=key)], sent=32, data=32 * flits(mtu), deadline=60000)
        got = r.sent()
        answers = [(m["psn"], p) for m, p in got if m["dest_qp"] == PEER_QP + 2]
        assert answers == [(k, r.memory.image[0x8000 + k * mtu :][:mtu].tobytes()) for k in range(16)]
        for qp in (1, 3):
            mine = [(m["psn"], p) for m, p in got if m["dest_qp"] == PEER_QP + qp]
            assert mine == [(i, r.memory.image[BASE + 0x100 * k :][:mtu].tobytes()) for i, k in enumerate(range(qp // 2, 16, 2))]
        await r.run([], [ack(7, qp=1, src=PEER), ack(7, qp=3, src=PEER)], done=16)
    b.stalls(0)
    b.cover("shared way out")

    bad = [(read_request(0x8FFF, 2, 0, qp=1, src=PEER, rkey=key), Syndrome.NAK_ACCESS), (read_request(BASE, 1, 0, qp=1, src=PEER, rkey=KEY | 6), Syndrome.NAK_ACCESS),
           (read_request(0x8000, 1, 0, qp=1, src=PEER, rkey=key ^ 0x100), Syndrome.NAK_ACCESS),
           (read_request(0x8000, (1 << 31) + 1, 0, qp=1, src=PEER, rkey=key), Syndrome.NAK_INVALID)]
    m, _ = read_request(0x8000, 8, 0, qp=1, src=PEER, rkey=key)
    bad.append(((dict(m, length=4), b"data"), Syndrome.NAK_INVALID))
    for packet, syndrome in bad:
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.run([], [packet], sent=1)
        assert (r.sent()[0][0]["opcode"], r.sent()[0][0]["syndrome"], r.sent()[0][0]["psn"]) == (Opcode.ACK, syndrome, 0)
        assert await r.state(1) == QpState.ERR
    b.cover("read refused")
    # memory refuses one of the packets
    await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
    r.memory.error(0x8200, 0x8240)
    r.load([], [read_request(0x8000, 4 * mtu, 0, qp=1, src=PEER, rkey=key)])
    b.sink("tx_meta").expect(1, exact=False)
    b.sink("tx_data").expect(0, exact=False)
    await b.run(20000, settle=400)
    nak = [m for m in r.sent_metas() if m["opcode"] == Opcode.ACK]
    assert [(m["syndrome"], m["psn"]) for m in nak] == [(Syndrome.NAK_OPERATIONAL, 2)] and await r.state(1) == QpState.ERR
    r.memory.error(0, 0)
    b.cover("read of bad memory")


@cocotb.test()
async def test_window_and_turns(dut):
    """At most `window` packets are unacknowledged; QPs alternate message by message; every queue entry completes in order."""
    r = await start(dut, qps=(1, 2, 3))
    mtu, b = r.p.mtu, r.b
    w = r.p.window
    await r.run([request(SEND, 1, BASE, 11 * mtu, 1)], sent=w, data=4 * w)
    assert [m["ack_req"] for m, _ in r.sent()] == [0, 0, 0, 1] * (w // 4)
    await r.run([], [ack(3, qp=1, src=PEER)], sent=3, data=12)
    b.cover("window full")
    await r.run([], [ack(10, qp=1, src=PEER)], done=1)

    # Both queues filled while the outlet is busy with a third QP: then messages of the two in turn.
    b.stalls(0.8)
    reqs = [request(SEND, 3, BASE, w * mtu, 9)] + [request(SEND, 1 + (k >= 4), BASE, 2 * mtu, k) for k in range(8)]
    await r.run(reqs, sent=w + 16, data=4 * (w + 16), deadline=60000)
    b.stalls(0)
    order = [m["dest_qp"] - PEER_QP for m, _ in r.sent()]
    turns = order[w::2]
    assert order[:w] == [3] * w and order[w + 1 :: 2] == turns, f"messages are not whole: {order}"
    start_of_2 = turns.index(2)  # before it QP 1 had the line for itself: the requests of QP 2 were still to come
    assert start_of_2 <= 3 and turns[start_of_2:] == [2, 1] * (4 - start_of_2) + [2] * start_of_2, f"no turns: {order}"
    b.cover("turns")
    await r.run([], [ack(18, qp=1, src=PEER), ack(7, qp=2, src=PEER), ack(w - 1, qp=3, src=PEER)], done=9)
    done = r.done()
    assert statuses(done) == [Status.SUCCESS] * 9
    for qp, tags in ((1, range(4)), (2, range(4, 8))):
        assert [d["tag"] for d in done if d["qpn"] == qp] == list(tags)

    # Queue of 8: a ninth request waits until an entry is free, and nothing is lost.
    await r.run([request(SEND, 1, BASE, 8, 100 + k) for k in range(8)], sent=8, data=8)
    r.load([request(SEND, 1, BASE, 8, 108), request(SEND, 1, BASE, 8, 109), request(SEND, 2, BASE, 8, 110)])
    b.source("rx_meta").load([RX_META.pack(ack(19 + 1, qp=1, src=PEER)[0])])
    b.sink("done").expect(2)
    b.sink("tx_meta").expect(3)
    b.sink("tx_data").expect(3)
    await b.run(20000)
    assert [d["tag"] for d in r.done()] == [100, 101]
    b.cover("send queue full")
    await r.run([], [ack(19 + 9, qp=1, src=PEER), ack(8, qp=2, src=PEER)], done=9)
    assert sorted(d["tag"] for d in r.done()) == list(range(102, 111))


@cocotb.test()
async def test_peer_errors(dut):
    """RNR NAK waits and repeats up to its limit; fatal NAKs map to their status; the rest is flushed on both queues."""
    r = await start(dut, qps=(1, 2, 3, 4))
    b, p = r.b, r.p
    await r.run([request(SEND, 1, BASE, 8, 1), request(SEND, 1, BASE, 16, 2)], sent=2, data=2)
    for k in range(p.rnr_retries):
        t0 = b.total_cycles
        code = (1, 4)[k]
        await r.run([], [ack(0, qp=1, src=PEER, syndrome=Syndrome.RNR_NAK | code)], sent=2, data=2)
        wait = p.rnr_timer * RNR_UNITS[code]
        assert wait <= b.total_cycles - t0 < wait + p.rnr_timer
        assert [m["psn"] for m, _ in r.sent()] == [0, 1]
        if k == 0:
            b.cover("RNR repeats")
    await r.run([], [ack(0, qp=1, src=PEER, syndrome=Syndrome.RNR_NAK | 1)], done=2)
    assert statuses(r.done()) == [Status.RNR_RETRY_EXC_ERR, Status.WR_FLUSH_ERR]
    assert await r.state(1) == QpState.ERR
    b.cover("RNR exhausted")

    for qp, code, want in ((2, Syndrome.NAK_INVALID, Status.REM_INV_REQ_ERR), (3, Syndrome.NAK_ACCESS, Status.REM_ACCESS_ERR),
                           (4, Syndrome.NAK_OPERATIONAL, Status.REM_OP_ERR), (2, 0x64, Status.REM_INV_REQ_ERR), (3, 0x80 | 0x62, Status.REM_ACCESS_ERR)):
        await r.open(qp, dest_qp=PEER_QP + qp, dest_node=PEER)
        reqs = [request(RECV, qp, BASE, 64, 50), request(RECV, qp, BASE, 64, 51), *(request(SEND, qp, BASE, 8, k) for k in range(4))]
        await r.run(reqs, sent=4, data=4)
        await r.run([], [ack(1, qp=qp, src=PEER, syndrome=code)], done=6)
        done = r.done()
        assert all(d["qpn"] == qp for d in done)
        assert [(d["tag"], d["status"]) for d in done if d["tag"] < 50] == [
            (0, Status.SUCCESS), (1, want), (2, Status.WR_FLUSH_ERR), (3, Status.WR_FLUSH_ERR)]
        assert [(d["tag"], d["status"]) for d in done if d["tag"] >= 50] == [(50, Status.WR_FLUSH_ERR), (51, Status.WR_FLUSH_ERR)]
        assert next(d for d in done if d["tag"] == 1)["info"] == code & 0x7F
        await r.run([request(SEND, qp, BASE, 8, 1), request(RECV, qp, BASE, 8, 2)], done=2)
        assert statuses(r.done()) == [Status.WR_FLUSH_ERR] * 2
    b.cover("fatal NAK")

    # A NAK PSN that never lets anything through ends as a timeout does; an ACK after an RNR NAK ends its wait.
    await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
    await r.run([request(SEND, 1, BASE, 8, 1)], sent=1, data=1)
    for _ in range(p.retries):
        await r.run([], [ack(0, qp=1, src=PEER, syndrome=Syndrome.NAK_PSN)], sent=1, data=1)
    await r.run([], [ack(0, qp=1, src=PEER, syndrome=Syndrome.NAK_PSN)], done=1)
    assert statuses(r.done()) == [Status.RETRY_EXC_ERR]
    b.cover("NAK flood")
    await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
    await r.run([request(SEND, 1, BASE, 8, k) for k in range(3)], sent=3, data=3)
    await r.run([], [ack(1, qp=1, src=PEER, syndrome=Syndrome.RNR_NAK | 31)], done=1)
    await r.run([], [ack(1, qp=1, src=PEER)], sent=1, data=1, done=1)
    assert r.sent()[0][0]["psn"] == 2 and statuses(r.done()) == [Status.SUCCESS]


@cocotb.test()
async def test_flush(dut):
    """Wrong states, unknown QPs and operations; software's ERR and RESET flush; a flushed queue loses nothing."""
    r = await start(dut, qps=(0, 1, 2))  # 0: what an unknown QP 16 must not become
    b = r.b
    await r.run([request(SEND, 5, BASE, 8, 1), request(RECV, 5, BASE, 8, 2), request(SEND, 16, BASE, 8, 3), request(RECV, 1 << 20, BASE, 8, 4)], done=4)
    assert sorted((d["tag"], d["status"], d["qpn"]) for d in r.done()) == [
        (1, Status.LOC_QP_OP_ERR, 5), (2, Status.LOC_QP_OP_ERR, 5), (3, Status.LOC_QP_OP_ERR, 16), (4, Status.LOC_QP_OP_ERR, 1 << 20)]
    await r.run([request(RECV, 1, BASE, 64, 10 + k) for k in range(8)] + [request(SEND, 1, BASE, 64, 20 + k) for k in range(8)], sent=8, data=8)
    b.stalls(0.3)
    await r.run([], done=16, act=lambda: r.reg("qp_state", 1, QpState.ERR))
    b.stalls(0)
    done = r.done()
    assert statuses(done) == [Status.WR_FLUSH_ERR] * 16 and sorted(d["tag"] for d in done) == [*range(10, 18), *range(20, 28)]
    for lo in (10, 20):
        tags = [d["tag"] for d in done if lo <= d["tag"] < lo + 10]
        assert tags == sorted(tags)
    await r.reg("qp_state", 1, QpState.RTS)
    assert await r.state(1) == QpState.ERR, "only RESET leaves ERR"
    b.cover("flush by ERR")

    await r.run([request(SEND, 2, BASE, 64, 1), request(RECV, 2, BASE, 64, 2)], sent=1, data=1)
    await r.run([], done=2, act=lambda: r.reg("qp_state", 2, QpState.RESET))
    assert statuses(r.done()) == [Status.WR_FLUSH_ERR] * 2
    assert await r.read_reg("qp_sq_psn", 2) == 0
    await r.open(2, dest_qp=PEER_QP + 2, dest_node=PEER, sq_psn=500)
    await r.run([request(SEND, 2, BASE, 64, 3)], [ack(0, qp=2, src=PEER)], sent=1, data=1)
    assert r.sent()[0][0]["psn"] == 500
    await r.run([], [ack(500, qp=2, src=PEER)], done=1)
    assert statuses(r.done()) == [Status.SUCCESS]
    b.cover("flush by RESET")

    # SQD holds messages, still takes ACKs, and goes on in RTS.
    await r.run([request(SEND, 2, BASE, 64, 5)], sent=1, data=1)
    await r.reg("qp_state", 2, QpState.SQD)
    await r.run([request(SEND, 2, BASE, 64, 6)], [ack(501, qp=2, src=PEER)], done=1)
    await r.run([], sent=1, data=1, act=lambda: r.reg("qp_state", 2, QpState.RTS))
    await r.run([], [ack(502, qp=2, src=PEER)], done=1)
    assert (r.done()[0]["tag"], r.done()[0]["status"]) == (6, Status.SUCCESS)
    b.cover("SQD")

    # Operations of later forms, and messages beyond 2^31 bytes: in order, then ERR.
    await r.run([request(SEND, 2, BASE, 64, 1), request(int(Op.SET), 2, BASE, 64, 2), request(SEND, 2, BASE, 64, 3)], sent=1, data=1)
    await r.run([], [ack(503, qp=2, src=PEER)], done=3)
    assert statuses(r.done()) == [Status.SUCCESS, Status.LOC_QP_OP_ERR, Status.WR_FLUSH_ERR]
    await r.open(2, dest_qp=PEER_QP + 2, dest_node=PEER)
    await r.run([request(SEND, 2, BASE, (1 << 31) + 1, 2)], done=1)
    assert statuses(r.done()) == [Status.LOC_LEN_ERR]


@cocotb.test()
async def test_protection(dut):
    """Nothing outside a region is read or written; LOC_PROT_ERR here, NAK access to the peer."""
    r = await start(dut)
    b = r.b
    await r.region(3, 0x8000, 0x100, Access.LOCAL_WRITE)
    await r.region(4, 0x9000, 0x100, Access.REMOTE_WRITE)
    good, ro = KEY | 3, KEY | 4
    before = r.memory.image.copy()

    async def reopen():
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)

    await r.region(5, 0xFFFFFF00, 0x200)  # beyond the end of the address space
    high = KEY | 5
    bad = [(0x8000, 0x101, good), (0x7FFF, 1, good), (0xFFFFFF80, 0x81, high), (0xFFFFFFFF, 2, high), (0x8000, 1, good ^ 1 << 31), (0x8000, 1, good ^ 1 << 24), (0x80FF, 2, good), (0x8100, 1, good), (0x8000, 1, good ^ 0x10), (0x8000, 1, 5),
           ((1 << 32) + 0x8000, 1, good), ((1 << 64) - 1, 2, good), (0x8000, 1 << 31, good)]
    for op in (SEND, WRITE, RECV):
        for addr, length, key in bad + ([(0x9000, 1, ro)] if op == RECV else []):
            await reopen()
            await r.run([request(op, 1, addr, length, 9, lkey=key)], done=1)
            d = r.done()[0]
            assert (d["status"], d["info"]) == (Status.LOC_PROT_ERR, addr), (hex(addr), length, hex(key))
            assert await r.state(1) == QpState.ERR
    await reopen()
    await r.run([request(SEND, 1, 0xFFFFFF80, 0x80, 9, lkey=high)], done=1)  # up to the end: allowed, and memory refuses it
    assert statuses(r.done()) == [Status.MEM_ERR]
    b.cover("bad local access")
    await reopen()
    await r.run([request(SEND, 1, 0x8000, 0x100, 1, lkey=good), request(SEND, 1, 0x80FF, 1, 2, lkey=good), request(SEND, 1, 0x9000, 1, 3, lkey=ro),
                 request(SEND, 1, 0, 0, 4, lkey=KEY | 15)], sent=4, data=6)
    # A bad request waits for its turn: what is before it succeeds, what is behind it is flushed.
    await r.run([request(SEND, 1, 0x8000, 1, 5, lkey=0), request(SEND, 1, 0x8000, 1, 6, lkey=good), request(RECV, 1, 0x8000, 1, 7, lkey=good)])
    await r.run([], [ack(3, qp=1, src=PEER)], done=7)
    done = r.done()
    assert [(d["tag"], d["status"]) for d in done if d["tag"] != 7] == [
        *((t, Status.SUCCESS) for t in (1, 2, 3, 4)), (5, Status.LOC_PROT_ERR), (6, Status.WR_FLUSH_ERR)]

    for va, length, key in [(a, n, k) for a, n, k in bad if n <= 0x1000] + [(0x8000, 1, good), (0x9100, 1, ro), (0x9000, 1, ro ^ 0x100)]:
        await reopen()
        await r.run([], message(bytes(length), 0, r.p.mtu, qp=1, src=PEER, write=va, rkey=key)[:1], sent=1)
        m = r.sent()[0][0]
        assert (m["opcode"], m["syndrome"], m["psn"]) == (Opcode.ACK, Syndrome.NAK_ACCESS, 0), hex(va)
        assert await r.state(1) == QpState.ERR
    b.cover("bad remote access")
    assert np.array_equal(before, r.memory.image)
    await reopen()
    await r.run([], message(b"x" * 0x100, 0, r.p.mtu, qp=1, src=PEER, write=0x9000, rkey=ro), sent=1)
    assert r.memory.read(0x9000, 0x100).tobytes() == b"x" * 0x100

    # No region is valid after a reset until its size is written; what is not valid reads as size 0.
    assert await r.read_reg("mr_size", 3) == 0x100
    await b.reset()
    for index in (0, 3, 4):
        assert await r.read_reg("mr_size", index) == 0, index
    await reopen()
    await r.run([request(SEND, 1, 0x8000, 1, 9, lkey=good)], done=1)
    assert statuses(r.done()) == [Status.LOC_PROT_ERR]
    await r.region(3, 0x8000, 0x100)
    assert [await r.read_reg("mr_size", index) for index in (0, 3, 4)] == [0, 0x100, 0]
    await reopen()
    await r.run([request(SEND, 1, 0x8000, 1, 9, lkey=good)], sent=1, data=1)
    b.cover("reset")


@cocotb.test()
async def test_memory_errors(dut):
    """SLVERR on payload: MEM_ERR with its address, the packet is not sent, QP to ERR; on a write NAK operational."""
    r = await start(dut)
    b = r.b
    r.memory.latency = 8
    r.memory.error(0x5000, 0x5040)
    await r.run([request(SEND, 1, 0x4E00, 1024, 1), request(SEND, 1, BASE, 8, 2), request(RECV, 1, BASE, 8, 3)], done=3, sent=4, data=12 + 1)
    assert [m["psn"] for m, _ in r.sent()] == [0, 1, 3, 4]
    done = r.done()
    assert sorted((d["tag"], d["status"]) for d in done) == [(1, Status.MEM_ERR), (2, Status.WR_FLUSH_ERR), (3, Status.WR_FLUSH_ERR)]
    assert next(d for d in done if d["tag"] == 1)["info"] == 0x5000
    assert await r.state(1) == QpState.ERR
    b.cover("read error")

    for write in (None, 0x4F00):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.run([request(RECV, 1, 0x4F00, 1024, 1), request(RECV, 1, 0x4F00, 1024, 2)])
        await r.run([], message(bytes(600), 0, r.p.mtu, qp=1, src=PEER, write=write)[:2], done=2, sent=1)
        m = r.sent()[0][0]
        assert (m["syndrome"], m["psn"]) == (Syndrome.NAK_OPERATIONAL, 2)
        assert statuses(r.done()) == [Status.WR_FLUSH_ERR if write else Status.MEM_ERR, Status.WR_FLUSH_ERR]
        assert await r.state(1) == QpState.ERR
    b.cover("write error")
    # The last packet is accepted before the error is known: its RECV still completes with MEM_ERR, once.
    r.memory.latency = 60
    await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
    await r.run([request(RECV, 1, 0x4F00, 1024, 1), request(RECV, 1, BASE, 64, 2), request(RECV, 1, BASE, 64, 3)])
    r.load([], message(bytes(600), 0, r.p.mtu, qp=1, src=PEER) + message(bytes(64), 3, r.p.mtu, qp=1, src=PEER))
    b.sink("done").expect(3)
    b.sink("tx_meta").expect(1, exact=False)
    await b.run(20000, settle=400)
    done = r.done()
    assert [d["tag"] for d in done] == [1, 2, 3] and statuses(done)[0] == Status.MEM_ERR and statuses(done)[2] == Status.WR_FLUSH_ERR
    b.cover("late write error")


@cocotb.test()
async def test_read_errors(dut):
    """The first bad beat of a packet is named, whichever it is, with SLVERR and DECERR; the packet of another QP behind it is right."""
    r = await start(dut, qps=(1, 2))
    b = r.b
    r.memory.latency = 20
    for laddr, length, bad, resp in ((0x5000, 256, (0x5040, 0x5100), 2), (0x5007, 200, (0x50C0, 0x5100), 3), (0x5000, 256, (0x50C0, 0x5100), 3)):
        for qp in (1, 2):
            await r.open(qp, dest_qp=PEER_QP + qp, dest_node=PEER)
        r.memory.error(*bad, resp)
        await r.run([request(SEND, 1, laddr, length, 1), request(SEND, 2, BASE + 1, 100, 2)], sent=1, data=2, done=1)
        d, (m, payload) = r.done()[0], r.sent()[0]
        assert (d["tag"], d["status"], d["info"]) == (1, Status.MEM_ERR, bad[0]), (hex(laddr), hex(d["info"]))
        assert m["dest_qp"] == PEER_QP + 2 and payload == r.memory.image[BASE + 1 : BASE + 101].tobytes()
        await r.run([], [ack(0, qp=2, src=PEER)], done=1)
        assert statuses(r.done()) == [Status.SUCCESS]
        b.cover("DECERR" if resp == 3 else "two bad beats")


@cocotb.test()
async def test_errors_of_before(dut):
    """Memory's error for a packet of an old connection, read or written, does nothing to the one opened since on the same queue pair."""
    r = await start(dut)
    b = r.b

    async def reopen() -> None:
        await b.wait_cycles(60)  # the access is under way; its answer comes after the new connection
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)

    for receive in (False, True):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        r.memory.error(0x5000, 0x5040, 2)
        r.memory.latency = 300
        if receive:
            await r.run([request(RECV, 1, 0x5000, 64, 1)])
        r.load([] if receive else [request(SEND, 1, 0x5000, 64, 1)], message(bytes(64), 0, r.p.mtu, qp=1, src=PEER) if receive else [])
        b.sink("done").expect(1)
        b.sink("tx_meta").expect(0, exact=not receive)  # a packet may be acknowledged before it is in memory
        await b.begin(settle=500)
        await reopen()
        await b.finish(20000)
        # the message had been received whole: what its write came to is its status
        assert statuses(r.done()) == [Status.MEM_ERR if receive else Status.WR_FLUSH_ERR]
        assert (r.memory.writes if receive else r.memory.reads) == 1, "the access did not happen"
        assert await r.state(1) == QpState.RTS, "an error of the old connection ended the new one"
        r.memory.error(0, 0)
        r.memory.latency = 20
        if receive:
            await r.run([request(RECV, 1, 0x5000, 8, 2)])
            await r.run([], message(b"newcomer", 0, r.p.mtu, qp=1, src=PEER), done=1, sent=1)
            assert statuses(r.done()) == [Status.SUCCESS] and r.memory.read(0x5000, 8).tobytes() == b"newcomer"
        else:
            await r.run([request(SEND, 1, 0x5000, 64, 2)], sent=1, data=1)
            await r.run([], [ack(0, qp=1, src=PEER)], done=1)
            assert statuses(r.done()) == [Status.SUCCESS]
        b.cover("received" if receive else "sent")


@cocotb.test()
async def test_write_errors(dut):
    """The RECV names the first packet whose write failed, also when only one of its bursts did, with SLVERR and DECERR; the next RECV is right."""
    r = await start(dut)
    b, mtu = r.b, r.p.mtu
    r.memory.latency = 60  # all packets are accepted before the first error is known
    for addr, length, bad, resp, info in (
        (0x4F00, 600, (0x5000, 0x5200), 2, 0x5000), (0x4F00, 600, (0x4F00, 0x5100), 3, 0x4F00), (0x4FD1, 200, (0x4FC0, 0x5000), 3, 0x4FD1), (0x4FD1, 200, (0x5000, 0x5040), 2, 0x4FD1),
        (0x4F13, 600, (0x5100, 0x5200), 3, 0x5013),
    ):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.run([request(RECV, 1, addr, length, 1)])
        r.memory.error(*bad, resp)
        r.load([], message(bytes(length), 0, mtu, qp=1, src=PEER))
        b.sink("done").expect(1)
        b.sink("tx_meta").expect(1, exact=False)
        await b.run(20000, settle=400)
        d = r.done()[0]
        assert (d["tag"], d["status"], d["byte_len"], d["info"]) == (1, Status.MEM_ERR, 0, info), (hex(addr), hex(d["info"]))
        assert await r.state(1) == QpState.ERR
        b.cover("two bad packets" if bad[1] - bad[0] > mtu else "first burst bad" if bad[0] < addr else "second burst bad")
        r.memory.error(0, 0)
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.run([request(RECV, 1, addr, 8, 2)])
        await r.run([], message(b"recovers", 0, mtu, qp=1, src=PEER), done=1, sent=1)
        assert statuses(r.done()) == [Status.SUCCESS] and r.memory.read(addr, 8).tobytes() == b"recovers"


@cocotb.test()
async def test_outlet(dut):
    """More small packets than reads may be open leave whole and in order; an ACK passes the packets that wait; both are counted."""
    r = await start(dut, qps=(1, 2, 3))
    b, mtu = r.b, r.p.mtu
    r.memory.latency = 100
    await r.run([request(SEND, 1 + k % 3, BASE + 64 * k, 8, k) for k in range(24)], sent=24, data=24)
    for k, (m, payload) in enumerate(sorted(r.sent(), key=lambda x: (x[0]["psn"], x[0]["dest_qp"]))):
        assert (m["dest_qp"], m["psn"]) == (PEER_QP + 1 + k % 3, k // 3)
        assert payload == r.memory.image[BASE + 64 * k : BASE + 64 * k + 8].tobytes(), k
    await r.run([], [ack(7, qp=qp, src=PEER) for qp in (1, 2, 3)], done=24)
    assert r.counter("nic_tx_packets") == 24
    b.cover("reads open")

    await r.run([request(RECV, 2, BASE, 64, 1)])
    b.sink("tx_meta").backpressure = b.sink("tx_data").backpressure = 0.97
    r.load([request(SEND, 1, BASE, mtu, k) for k in range(8)])
    b.sink("tx_meta").expect(1, exact=False)
    b.sink("tx_data").expect(1, exact=False)
    await b.run(20000, settle=100)  # now the buffer is full, and packets wait behind it
    before = len(r.sent_metas())
    r.load([], message(b"x", 0, mtu, qp=2, src=PEER))
    b.sink("tx_meta").expect(9 - before)
    b.sink("tx_data").expect(1, exact=False)
    b.sink("done").expect(1)
    await b.run(20000)
    order = [m["opcode"] == Opcode.ACK for m in r.sent_metas()]
    assert sum(order) == 1 and order.index(True) <= 2 and len(order) >= 5, order
    packets = r.counter("nic_tx_packets")
    assert packets == 24 + 9 or packets > 24 + 9 and r.counter("nic_retransmits")
    b.cover("ACK first")


@cocotb.test()
async def test_receive(dut):
    """SEND and WRITE of every length at every alignment: bytes, guard bytes, completions, ACKs; PSN over 2^24; random stalls."""
    psn = PSN_MASK - 2
    r = await start(dut, rq_psn=psn)
    b, mtu = r.b, r.p.mtu
    msn = 0
    lengths = [0, 1, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5]
    for stall, latency in ((0.0, 10), (0.3, 3)):
        r.memory.latency = latency
        for k, length in enumerate(lengths + [int(b.rng.integers(1, 8 * mtu)) for _ in range(10)]):
            b.stalls(0)
            addr = BASE + int(b.rng.integers(0, 0x8000))
            payload = b.rng.bytes(length)
            write = addr if k % 2 else None
            image = r.memory.image.copy()
            image[addr : addr + length] = np.frombuffer(payload, np.uint8)
            if write is None:
                await r.run([request(RECV, 1, addr, length + k % 3, k)])
            b.stalls(stall)
            packets = message(payload, psn, mtu, qp=1, src=PEER, write=write)
            await r.run([], packets, done=int(write is None), sent=1, settle=60)
            psn, msn = psn + len(packets), msn + 1
            m = r.sent()[0][0]
            assert (m["opcode"], m["psn"], m["syndrome"], m["msn"]) == (Opcode.ACK, (psn - 1) & PSN_MASK, Syndrome.ACK, msn)
            assert (m["dest_node"], m["dest_qp"]) == (PEER, PEER_QP + 1)
            if write is None:
                d = r.done()[0]
                assert (d["tag"], d["status"], d["byte_len"], d["qpn"]) == (k, Status.SUCCESS, length, 1)
            assert np.array_equal(image, r.memory.image), f"length {length} at {addr:#x}"
            b.cover("receive WRITE" if k % 2 else "receive SEND")
            if length and addr // 4096 != (addr + length - 1) // 4096:
                b.cover("write crosses 4 KiB")


@cocotb.test()
async def test_sequence(dut):
    """Every message once: duplicates are acknowledged again, gaps answered by one NAK, SEND without RECV by an RNR NAK."""
    first = PSN_MASK - 2  # three before the wrap
    r = await start(dut, rq_psn=first)
    b, mtu = r.b, r.p.mtu
    data = [bytes([k]) * (k + 1) for k in range(8)]
    one = [message(data[k], first + k, mtu, qp=1, src=PEER)[0] for k in range(8)]

    async def give(packets, answers, done=()):
        """One at a time, so that no ACK merges with another; `answers`: (syndrome, offset of PSN) of each or None."""
        got = []
        for packet, want in zip(packets, answers, strict=True):
            expect = 1 if want is not None and packet in one[:8] and len(got) < len(done) and want[0] == Syndrome.ACK and want[2:] else 0
            await r.run([], [packet], sent=int(want is not None), done=expect)
            got += [d["tag"] for d in r.done()]
            if want is not None:
                m = r.sent()[0][0]
                assert (m["syndrome"], m["psn"]) == (want[0], (first + want[1]) & PSN_MASK), want
        assert got == list(done)

    A, P, N = Syndrome.ACK, Syndrome.NAK_PSN, Syndrome.RNR_NAK | r.p.rnr_code
    await give([one[0]], [(N, 0)])
    await give([one[1], one[0]], [None, (N, 0)])
    b.cover("RNR NAK")
    await r.run([request(RECV, 1, BASE + 64 * k, 64, k) for k in range(8)])
    await give([one[0], one[1]], [(A, 0, 1), (A, 1, 1)], [0, 1])
    await give([one[3], one[4], one[0], one[1]], [(P, 2), None, (A, 1), (A, 1)])
    b.cover("gap")
    b.cover("duplicate")
    await give([one[2], one[4], one[5]], [(A, 2, 1), (P, 3), None], [2])
    await give([one[3], one[2], one[4], one[5], one[6], one[7]], [(A, 3, 1), (A, 3), (A, 4, 1), (A, 5, 1), (A, 6, 1), (A, 7, 1)], [3, 4, 5, 6, 7])
    assert r.counter("nic_duplicates") == 3
    assert r.counter("nic_naks") == 4
    for k in range(8):
        assert r.memory.read(BASE + 64 * k, k + 1).tobytes() == data[k]
    # Not for us: unknown QP, QP in RESET, another node.
    lost = r.counter("dropped")
    await r.run([], [(dict(one[0][0], dest_qp=3), one[0][1]), (dict(one[0][0], dest_qp=16 + 1), one[0][1]), (dict(one[0][0], src_node=PEER + 1), one[0][1])])
    assert r.counter("dropped") == lost + 3
    b.cover("dropped")
    # Many at once: ACKs may merge, the newest PSN arrives last, nothing is lost.
    b.sink("tx_meta").backpressure = 0.97
    r.load([request(RECV, 1, BASE, 64, k) for k in range(8)])
    await r.b.run(20000)
    r.load([], [p for k in range(8) for p in message(bytes(10), first + 8 + k, mtu, qp=1, src=PEER)])
    b.sink("done").expect(8)
    b.sink("tx_meta").expect(2, exact=False)
    await b.run(20000, settle=400)
    acks = [m["psn"] for m, _ in r.sent()]
    assert acks == sorted(acks) and acks[-1] == (first + 15) & PSN_MASK and len(acks) < 8, acks
    b.cover("ACKs merged")


@cocotb.test()
async def test_bad_packets(dut):
    """Opcode sequence, lengths, messages longer than the RECV, operations of later forms: NAK invalid request, QP to ERR."""
    r = await start(dut)
    b, mtu = r.b, r.p.mtu

    def send(n, psn=0):
        return message(bytes(n), psn, mtu, qp=1, src=PEER)

    def change(packet, payload=None, **fields):
        m, p = packet
        p = p if payload is None else payload
        return dict(m, **fields, length=len(p)), p

    three = send(3 * mtu)
    write = message(bytes(3 * mtu), 0, mtu, qp=1, src=PEER, write=BASE)
    cases = {
        "middle without first": [change(three[1], psn=0)],
        "last without first": [change(three[2], psn=0)],
        "first twice": [three[0], change(three[0], psn=1)],
        "only inside": [three[0], change(send(4)[0], psn=1)],
        "write inside send": [three[0], change(write[1])],
        "short first": [change(three[0], bytes(mtu - 1))],
        "short middle": [three[0], change(three[1], bytes(8))],
        "empty last": [three[0], change(three[2], b"", psn=1)],
        "write too long": [write[0], write[1], change(write[1], psn=2)],
        "write too short": [write[0], change(write[2], psn=1)],
        "write length": [change(message(bytes(8), 0, mtu, qp=1, src=PEER, write=BASE)[0], dma_len=9)],
        "write in place of an immediate": [three[0], change(write[2], opcode=int(Opcode.WRITE_LAST_IMM), psn=1)],
        "read inside a message": [three[0], change(send(0)[0], opcode=int(Opcode.READ_REQUEST), psn=1, va=BASE, rkey=KEY, dma_len=8)],
        "unknown": [change(send(0)[0], opcode=0x55)],
    }
    for name, packets in cases.items():
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.run([request(RECV, 1, BASE, 4 * mtu, 1), request(RECV, 1, BASE, 4 * mtu, 2)])
        for i, p in enumerate(packets):
            bad = i == len(packets) - 1
            await r.run([], [(dict(p[0], ack_req=0), p[1])], sent=int(bad), done=2 * bad)
        m = r.sent()[0][0]
        assert (m["syndrome"], m["psn"]) == (Syndrome.NAK_INVALID, len(packets) - 1), name
        assert statuses(r.done()) == [Status.WR_FLUSH_ERR] * 2, name
        assert await r.state(1) == QpState.ERR
        b.cover("bad packet")
    for n, room in ((65, 64), (2 * mtu + 1, 2 * mtu), (3 * mtu, mtu)):
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        await r.run([request(RECV, 1, BASE + 5, room, 1), request(RECV, 1, BASE, 4 * mtu, 2)])
        guard = r.memory.read(BASE + 5 + room, 64)
        packets = send(n)[: room // mtu + 1]
        await r.run([], packets, sent=1, done=2)
        assert r.sent()[0][0]["syndrome"] == Syndrome.NAK_INVALID
        assert statuses(r.done()) == [Status.LOC_LEN_ERR, Status.WR_FLUSH_ERR]
        assert np.array_equal(r.memory.read(BASE + 5 + room, 64), guard)
    b.cover("longer than RECV")


@cocotb.test()
async def test_close_reopen(dut):
    """A QP closed and opened again with another PSN: packets and ACKs of the old connection have no effect."""
    r = await start(dut, sq_psn=100, rq_psn=200)
    b, mtu = r.b, r.p.mtu
    await r.run([request(RECV, 1, BASE, 2 * mtu, 1), request(SEND, 1, BASE, 8, 2)], sent=1, data=1)
    await r.run([], message(bytes(2 * mtu), 200, mtu, qp=1, src=PEER)[:1])
    old = message(b"old" * 100, 200, mtu, qp=1, src=PEER)
    await r.run([], done=2, act=lambda: r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER, sq_psn=0x700000, rq_psn=0x600000))
    assert statuses(r.done()) == [Status.WR_FLUSH_ERR] * 2
    await r.run([request(RECV, 1, BASE, 2 * mtu, 3), request(SEND, 1, BASE, 8, 4)], sent=1, data=1)
    assert r.sent()[0][0]["psn"] == 0x700000
    # Old PSNs lie behind: acknowledged as duplicates with the new connection's newest PSN, never executed.
    await r.run([], [old[1], ack(100, qp=1, src=PEER), ack(100, qp=1, src=PEER, syndrome=Syndrome.NAK_PSN)], sent=1)
    assert r.sent()[0][0]["psn"] == 0x5FFFFF
    new = message(b"new", 0x600000, mtu, qp=1, src=PEER)
    await r.run([], [*new, ack(0x700000, qp=1, src=PEER)], sent=1, done=2)
    assert sorted((d["tag"], d["status"]) for d in r.done()) == [(3, Status.SUCCESS), (4, Status.SUCCESS)]
    assert r.memory.read(BASE, 3).tobytes() == b"new"
    b.cover("stale packet")


@cocotb.test()
async def test_state_reads(dut):
    """qp_state reads as written from the write on, however long the flush that the write begins takes."""
    r = await start(dut)
    pin = r.b.pin
    for state in (QpState.RESET, QpState.ERR):
        for recvs in (0, 1, 8):
            await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
            await r.run([request(RECV, 1, BASE, 8, i) for i in range(recvs)])
            seen = []

            async def write(state=state, seen=seen):
                await r.reg("qp_state", 1, state, gap=0)
                for _ in range(60):
                    await r.b.wait_cycles(1)
                    seen.append(int(pin("qp_state__rdata").value))

            await r.run([], done=recvs, act=write)
            assert statuses(r.done()) == [Status.WR_FLUSH_ERR] * recvs
            assert set(seen) == {state}, f"{state.name} with {recvs} RECVs: reads {seen}"


@cocotb.test()
async def test_open_under_load(dut):
    """Writes of state and PSN take effect in both engines while packets and ACKs keep them busy."""
    r = await start(dut)
    for k in range(8):
        noise = [ack(0, qp=1, src=PEER + 1 if i % 3 else PEER) for i in range(100 + k)]  # the responder drops or hands on each
        await r.run([], noise, act=lambda k=k: r.open(2, dest_qp=PEER_QP + 2, dest_node=PEER, sq_psn=k, rq_psn=k + 9))
        packet = message(b"x", k + 9, r.p.mtu, qp=2, src=PEER)
        await r.run([request(RECV, 2, BASE, 8, 1), request(SEND, 2, BASE, 8, 2)], [], sent=1, data=1)
        assert r.sent()[0][0]["psn"] == k
        await r.run([], [*packet, ack(k, qp=2, src=PEER)], done=2, sent=1)
        assert statuses(r.done()) == [Status.SUCCESS] * 2
        await r.run([], noise, act=lambda: r.reg("qp_state", 2, QpState.ERR))
        await r.run([request(RECV, 2, BASE, 8, 1), request(SEND, 2, BASE, 8, 2)], done=2)
        assert statuses(r.done()) == [Status.WR_FLUSH_ERR] * 2


@cocotb.test()
async def test_slow_and_fast_peer(dut):
    """A completion belongs to its own message, whichever peer answers first; within a QP the order is that of the requests."""
    r = await start(dut, qps=(1, 2))
    b = r.b
    await r.run([request(SEND, 1 + k % 2, BASE, 8 + k, k) for k in range(8)], sent=8, data=8)
    await r.run([], [ack(k, qp=2, src=PEER) for k in range(4)], done=4)
    assert [(d["tag"], d["byte_len"]) for d in r.done()] == [(k, 8 + k) for k in (1, 3, 5, 7)], "the slow peer's messages are not done"
    await r.run([], [ack(3, qp=1, src=PEER)], done=4)
    assert [(d["tag"], d["byte_len"]) for d in r.done()] == [(k, 8 + k) for k in (0, 2, 4, 6)]

    # A signal behind WRITEs: its completion comes after their data is in memory, however slow that is.
    psn = 0
    for latency in (2, 200):
        r.memory.latency = latency
        data = [b.rng.bytes(64) for _ in range(6)]
        await r.run([request(RECV, 1, BASE, 8, 9)])
        packets = [p for k, d in enumerate(data) for p in message(d, psn + k, r.p.mtu, qp=1, src=PEER, write=0x6000 + 64 * k)]
        packets += message(b"signal", psn + 6, r.p.mtu, qp=1, src=PEER, imm=5)
        r.load([], [(dict(m, ack_req=0), p) for m, p in packets])
        b.sink("done").expect(1)
        cycles = await b.run(20000)
        assert (r.done()[0]["imm"], r.memory.writes) == (5, 7) and cycles >= latency
        assert r.memory.read(0x6000, 384).tobytes() == b"".join(data)
        psn += 7
    b.cover("signal behind WRITEs")


@cocotb.test()
async def test_rates(dut):
    """Line rate both ways at once, from and to unaligned memory; latency from request to first packet."""
    r = await start(dut)
    b, mtu = r.b, r.p.mtu
    for latency in (10, 40):
        r.memory.latency = latency
        await r.run([request(SEND, 1, BASE, 0, 0)], sent=1)
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
        cycles = await r.run([request(SEND, 1, BASE, 64, 0)], sent=1, data=1)
        cocotb.log.info("64 bytes, memory latency %d: last beat out after %d cycles", latency, cycles)
        assert cycles <= latency + 20, cycles
        await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
    n = 8
    r.memory.latency = 10
    cycles = await r.run([request(SEND, 1, BASE + 13, n * mtu, 0)], sent=n, data=4 * n)
    assert cycles <= 5 * n + 40, cycles  # a packet of 256 bytes takes five flits on the link
    await r.open(1, dest_qp=PEER_QP + 1, dest_node=PEER)
    await r.run([request(RECV, 1, BASE + 13, 64 * mtu, 0)])
    packets = message(bytes(64 * mtu), 0, mtu, qp=1, src=PEER)
    cycles = await r.run([], packets, done=1, sent=1)
    assert cycles <= 5 * 64 * 1.03 + 40, cycles
    b.cover("line rate")
