"""Two NICs, node 0 (`a`) and node 1 (`b`), on a link with faults (tb/nic/dut_nic_pair.py)."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.packet import Opcode, wire_bytes
from spec.registers import QpState
from spec.wqe import Op, Status
from tb.lib.bench import Bench
from tb.nic.dut_nic_pair import FAULTS
from tb.nic.transport_rig import PSN_MASK, READ, RECV, SEND, WRITE, Rig, request, statuses

SIDES = ("a_", "b_")
PSN = PSN_MASK - 2  # 2^24 - 3


class Pair:
    """Both ends; QP k of one is joined to QP k of the other."""

    def __init__(self, b: Bench):
        self.b = b
        self.ends = [Rig(b, s) for s in SIDES]
        self.p = b.config.node.nic
        self.tag = 0

    @classmethod
    async def start(cls, dut, qps=(1,), psn: int = PSN) -> Pair:
        pair = cls(await Bench.start(dut))
        b = pair.b
        for node, r in enumerate(pair.ends):
            b.pin(r.port("node")).value = node
            r.memory.write(0, b.rng.integers(0, 256, len(r.memory.image), dtype=np.uint8))
            r.memory.latency = 10
            await r.region(0, 0, len(r.memory.image))
        for way in ("ab", "ba"):
            for p in FAULTS:
                b.pin(f"{way}_{p}").value = 0
            b.pin(f"{way}_lose").value = 0
        b.pin("on_wire").value = 0
        for qp in qps:
            await pair.open(qp, psn)
        return pair

    async def open(self, qp: int, psn: int) -> None:
        for node, r in enumerate(self.ends):
            await r.open(qp, dest_qp=qp, dest_node=1 - node, sq_psn=(psn + 1000 * node) & PSN_MASK, rq_psn=(psn + 1000 * (1 - node)) & PSN_MASK)

    def faults(self, way: str, **p: float) -> None:
        """Probabilities of drop, dup, reorder, corrupt on `way`; others 0."""
        self.b.pin(f"{way}_seed").value = self.b.seed32()
        for name in FAULTS:
            self.b.pin(f"{way}_{name}").value = int(65536 * p.get(name[2:], 0))

    async def post(self, requests: list[list[int]]) -> None:
        """Requests that cause no completion of their own yet (RECV)."""
        for r, reqs in zip(self.ends, requests, strict=True):
            self.b.source(r.port("request")).load(reqs)
        await self.b.run(20000, settle=40)

    async def run(self, requests: list[list[int]], done: list[int], deadline: int = 200000, settle: int = 40) -> int:
        for r, reqs, n in zip(self.ends, requests, done, strict=True):
            self.b.source(r.port("request")).load(reqs)
            self.b.sink(r.port("done")).expect(n)
        return await self.b.run(deadline, settle=settle)


def traffic(pair: Pair, lengths, qps, *, ways=(0, 1), slot: int = 0x4000, reads: bool = False):
    """Messages of `lengths` from each end named in `ways` to the other, over `qps` in turn, SEND and WRITE mixed, with `reads` READs too.

    Returns (RECVs, sends, completions per end, check): disjoint sources and targets at random alignments.
    """
    rng = pair.b.rng
    recvs, sends, done = [[], []], [[], []], [0, 0]
    checks, copies = [], []
    for me in ways:
        peer = 1 - me
        for k, n in enumerate(lengths):
            src = 0x80000 + int(rng.integers(0, 0x40000))
            dst = me * 0x40000 + (k * slot if len(lengths) > 1 else 0) + int(rng.integers(0, 128))
            assert n + 192 <= slot or len(lengths) == 1
            qp = qps[k % len(qps)]
            op = (SEND, WRITE, READ)[int(rng.integers(2 + reads))] if len(lengths) > 1 else SEND
            write = op != SEND
            pair.b.cover(Op(op).name)
            sends[me].append(request(op, qp, src, n, k, raddr=dst) if op != READ else request(op, qp, dst, n, k, raddr=src))
            done[me] += 1
            if not write:
                recvs[peer].append(request(RECV, qp, dst, n + int(rng.integers(0, 64)), 1000 + k))
                done[peer] += 1
            checks.append((me, k, qp, src, dst, n, write))
            copies.append((me, peer, src, dst, n) if op != READ else (peer, me, src, dst, n))

    images = [r.memory.image.copy() for r in pair.ends]
    for here, there, src, dst, n in copies:
        images[there][dst : dst + n] = pair.ends[here].memory.image[src : src + n]

    def check() -> None:
        """Every byte of both memories, every completion once, in order per QP and queue."""
        for node, r in enumerate(pair.ends):
            assert np.array_equal(images[node], r.memory.image), f"memory of node {node}"
            got = r.done()
            assert statuses(got) == [Status.SUCCESS] * len(got)
            for qp in qps:
                own = [(k, n) for me, k, q, _, _, n, _ in checks if me == node and q == qp]
                peer = [(1000 + k, n) for me, k, q, _, _, n, w in checks if me != node and q == qp and not w]
                assert [(d["tag"], d["byte_len"]) for d in got if d["qpn"] == qp and d["tag"] < 1000] == own
                assert [(d["tag"], d["byte_len"]) for d in got if d["qpn"] == qp and d["tag"] >= 1000] == peer

    return recvs, sends, done, check


@cocotb.test()
async def test_sizes(dut):
    pair = await Pair.start(dut, qps=(1, 2, 9))
    mtu = pair.p.mtu
    sizes = [0, 1, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5]
    for stall in (0.0, 0.2):
        pair.b.stalls(stall)
        order = [int(x) for x in pair.b.rng.permutation(sizes)]
        recvs, sends, done, check = traffic(pair, order, (1, 2, 9))
        await pair.post(recvs)
        await pair.run(sends, done)
        check()
        pair.b.cover("both ways")
    for r in pair.ends:
        assert r.counter("nic_retransmits") == 0 and r.counter("nic_rx_dropped") == 0


@cocotb.test()
async def test_zero_between(dut):
    pair = await Pair.start(dut)
    mtu = pair.p.mtu
    for _ in range(2):
        recvs, sends, done, check = traffic(pair, [mtu, 0, mtu, 0, 0, 1, 0, mtu], (1,))
        await pair.post(recvs)
        await pair.run(sends, done)
        check()


@cocotb.test()
async def test_lost_packet(dut):
    pair = await Pair.start(dut)
    b, mtu = pair.b, pair.p.mtu
    for way, at, name in (("ab", 1, "first"), ("ab", 3, "middle"), ("ab", 5, "last"), ("ba", 1, "ACK"), ("ba", 2, "ACK")):
        recvs, sends, done, check = traffic(pair, [4 * mtu + 100], (1,), ways=(0,))
        await pair.post(recvs)
        b.pin(f"{way}_lose").value = at
        cycles = await pair.run(sends, done)
        b.pin(f"{way}_lose").value = 0
        check()
        assert cycles < pair.p.timeout * 1.5 + 2000, (way, at, cycles)
        b.cover(name)


@cocotb.test()
async def test_loss(dut):
    pair = await Pair.start(dut, qps=(1, 2, 3, 12))
    b, mtu = pair.b, pair.p.mtu
    for rate, name, stall in ((0.001, "1 permille", 0.0), (0.01, "1 percent", 0.1), (0.05, "5 percent", 0.0)):
        b.stalls(stall)
        other = dict(dup=2 * rate, reorder=2 * rate, corrupt=rate)
        for _ in range(3):
            lengths = [int(x) for x in b.rng.integers(0, 3 * mtu, 8)] + [int(x) for x in b.rng.integers(0, 200, 8)]
            recvs, sends, done, check = traffic(pair, lengths, (1, 2, 3, 12))
            await pair.post(recvs)
            for way in ("ab", "ba"):
                pair.faults(way, drop=rate, **other)
            await pair.run(sends, done, deadline=400000)
            for way in ("ab", "ba"):
                pair.faults(way)
            await b.wait_cycles(2000)
            check()
        b.cover(name)
    a = pair.ends[0]
    if a.counter("nic_retransmits"):
        b.cover("retransmitted")
    if a.counter("nic_duplicates"):
        b.cover("duplicate")
    if a.counter("nic_rx_dropped"):
        b.cover("corrupted")


@cocotb.test()
async def test_read_loss(dut):
    """READ among SEND and WRITE, both ways at once, while the link loses, repeats, reorders and damages; then the rate of a long one."""
    pair = await Pair.start(dut, qps=(1, 2, 3, 12))
    b, mtu = pair.b, pair.p.mtu
    for rate in (0.0, 0.01, 0.05):
        for _ in range(2 + 2 * (rate > 0)):
            lengths = [int(x) for x in b.rng.integers(0, 3 * mtu, 8)] + [0, 1, mtu, mtu + 1, *(int(x) for x in b.rng.integers(0, 200, 4))]
            recvs, sends, done, check = traffic(pair, lengths, (1, 2, 3, 12), reads=True)
            await pair.post(recvs)
            for way in ("ab", "ba"):
                pair.faults(way, drop=rate, dup=2 * rate, reorder=2 * rate, corrupt=rate)
            await pair.run(sends, done, deadline=800000)
            for way in ("ab", "ba"):
                pair.faults(way)
            await b.wait_cycles(2000)
            check()
        b.cover("READ lossless" if not rate else "READ under loss")
    n = 48 * mtu
    bound = sum(wire_bytes(Opcode.READ_RESPONSE_MIDDLE, mtu) for _ in range(48)) / b.config.link.rate
    cycles = await pair.run([[request(READ, 1, 13, n, 1, raddr=0x80000 + 5)], []], [1, 0])
    assert np.array_equal(pair.ends[0].memory.read(13, n), pair.ends[1].memory.read(0x80005, n))
    cocotb.log.info("READ of %d bytes: %d cycles, bound %.0f", n, cycles, bound)
    assert cycles <= bound * 1.01 + 2 * b.config.link.latency + 2 * bound / 48 + 80, (cycles, bound)
    b.cover("READ at line rate")


@cocotb.test()
async def test_receiver_not_ready(dut):
    """SENDs posted long before their RECVs: RNR NAKs until then, and then every message arrives."""
    pair = await Pair.start(dut)
    mtu = pair.p.mtu
    sizes = [300, 2 * mtu, 0, 10]
    src = pair.ends[0].memory.image.copy()
    sends = [request(SEND, 1, 0x80000 + 8192 * k, n, k) for k, n in enumerate(sizes)]
    await pair.run([sends, []], [0, 0], settle=8 * pair.p.rnr_timer)
    assert pair.ends[1].counter("nic_naks") >= 3
    recvs = [request(RECV, 1, 0x4000 * k, n, k) for k, n in enumerate(sizes)]
    await pair.run([[], recvs], [4, 4])
    for r in pair.ends:
        assert [(d["tag"], d["status"], d["byte_len"]) for d in r.done()] == [(k, Status.SUCCESS, n) for k, n in enumerate(sizes)]
    for k, n in enumerate(sizes):
        assert np.array_equal(pair.ends[1].memory.read(0x4000 * k, n), src[0x80000 + 8192 * k : 0x80000 + 8192 * k + n])


@cocotb.test()
async def test_reopen(dut):
    """Both ends reset and reopened at once, with another PSN, while packets and ACKs of the old connection are on the link."""
    pair = await Pair.start(dut)
    b, mtu = pair.b, pair.p.mtu
    for k in range(3):
        old_recvs, old_sends, _, _ = traffic(pair, [8 * mtu], (1,), ways=(0, 1), slot=0x10000)
        await pair.post(old_recvs)
        for r, reqs in zip(pair.ends, old_sends, strict=True):
            b.source(r.port("request")).load(reqs)
            b.sink(r.port("done")).expect(2)
        await b.begin(40)
        await b.wait_cycles(300 + 61 * k)
        await pair.open(1, 0x400000 + 0x100000 * k)
        await b.finish(20000)
        assert all(d["status"] == Status.WR_FLUSH_ERR for r in pair.ends for d in r.done())
        if any(r.counter("nic_duplicates") or r.counter("nic_naks") for r in pair.ends):
            b.cover("stale packets")
        recvs, sends, done, check = traffic(pair, [3 * mtu, 5, 0, mtu], (1,))
        await pair.post(recvs)
        await pair.run(sends, done)
        check()


@cocotb.test()
async def test_dead_link(dut):
    pair = await Pair.start(dut, qps=(1, 2))
    b = pair.b
    for way in ("ab", "ba"):
        pair.faults(way, drop=0.99998)
    reqs = [request(RECV, 1, 0, 64, 50), *(request(SEND, 1 + k % 2, 0, 64, k) for k in range(4))]
    await pair.run([reqs, []], [5, 0], deadline=20 * pair.p.timeout)
    got = sorted((d["tag"], d["status"]) for d in pair.ends[0].done())
    assert got == [(0, Status.RETRY_EXC_ERR), (1, Status.RETRY_EXC_ERR), (2, Status.WR_FLUSH_ERR), (3, Status.WR_FLUSH_ERR), (50, Status.WR_FLUSH_ERR)]
    assert await pair.ends[0].state(1) == QpState.ERR
    assert pair.ends[0].counter("nic_retransmits") == 2 * pair.p.retries
    for way in ("ab", "ba"):
        pair.faults(way)
    await b.wait_cycles(2000)
    await pair.open(1, 5)
    recvs, sends, done, check = traffic(pair, [100, 0, 5000], (1,))
    await pair.post(recvs)
    await pair.run(sends, done)
    check()


@cocotb.test()
async def test_line_rate(dut):
    """64 KiB SENDs: the slope over four messages against the line time of their packets, and the fixed part before it."""
    pair = await Pair.start(dut)
    b, mtu, link = pair.b, pair.p.mtu, pair.b.config.link
    size = 0x10000
    packet = wire_bytes(Opcode.SEND_MIDDLE, mtu) / link.rate
    bound = size / mtu * packet

    async def cycles(ways: tuple[int, ...], n: int, align: int) -> int:
        await pair.post([[request(RECV, 1, 0x10000 * k + align, size, k) for k in range(n)] if 1 - me in ways else [] for me in (0, 1)])
        sends = [[request(SEND, 1, 0x80000 + align // 2, size, k) for k in range(n)] if me in ways else [] for me in (0, 1)]
        return await pair.run(sends, [n * (me in ways) + n * (1 - me in ways) for me in (0, 1)])

    for ways, name in (((0,), "one way"), ((0, 1), "both ways at rate")):
        for align in (0, 13):
            few, many = await cycles(ways, 2, align), await cycles(ways, 6, align)
            ratio = 4 * bound / (many - few)
            cocotb.log.info("%s, align %d: ratio to the frame format's bound %.4f, fixed part %.0f cycles", name, align, ratio, few - 2 * bound)
            assert 0.99 <= ratio <= 1.001, (name, align, ratio)
            # Link both ways, first packet read and last packet checked whole before they move on, memory, pipeline.
            assert few - 2 * bound <= 2 * link.latency + 2 * packet + 30
        b.cover(name)
