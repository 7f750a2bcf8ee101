"""The verbs driver: states, regions, posting, polling over many laps, refusals."""
from __future__ import annotations

import numpy as np
import pytest

from golden.mem.memory import Memory, RegionTable
from golden.nic.transport import Endpoint, Request
from hccl.devices import open_device
from hccl.errors import UsageError
from hccl.psn import TRIES, PsnSequence, distance
from hccl.verbs import Context, connect
from spec.params import config
from spec.registers import Access, QpState
from spec.wqe import Flag, Op, Status

RING, CQ, BUFFER = 0x0, 0x1000, 0x4000


class Pair:
    """Two nodes with a connected queue pair each."""

    def __init__(self, cq_size: int = 8, wq_size: int = 4, psn: int = 0xFFFFFE):
        self.device = open_device("golden", config("tiny").replace(nodes=2))
        self.ctx = [Context(self.device, i) for i in range(2)]
        self.pd = [c.alloc_pd() for c in self.ctx]
        self.cq = [c.create_cq(CQ, cq_size) for c in self.ctx]
        self.wq = [c.create_wq(0, RING, wq_size) for c in self.ctx]
        self.qp = [pd.create_qp(3 + i, wq) for i, (pd, wq) in enumerate(zip(self.pd, self.wq, strict=True))]
        self.mr = [pd.reg_mr(BUFFER, 0x1000, Access.LOCAL_WRITE) for pd in self.pd]
        connect([(self.qp[0], self.qp[1])], psn=psn)

    def run(self) -> None:
        self.device.run([self.device.read_reg(i, "event") for i in range(2)], 10_000)


def test_messages_over_many_laps() -> None:
    p = Pair()
    for i in range(25):
        data = np.full(100 + i, i + 1, np.uint8)
        p.device.mem_write(0, BUFFER, data)
        p.qp[1].post_recv(p.mr[1], BUFFER + 64, 256, wr_id=1000 + i)
        p.qp[0].post_send(p.mr[0], BUFFER, data.size, wr_id=i)
        p.run()
        assert (p.device.mem_read(1, BUFFER + 64, data.size) == data).all()
        (got,) = p.cq[1].poll()
        assert (got.wr_id, got.status, got.byte_len, got.opcode) == (1000 + i, Status.SUCCESS, data.size, Op.RECV)
        (sent,) = p.cq[0].poll()
        assert sent.wr_id == i and sent.qpn == 3 and sent.status_name == "SUCCESS"
        assert p.cq[0].poll() == []


def test_poll_takes_at_most_what_is_asked() -> None:
    p = Pair(cq_size=4)
    for i in range(4):
        p.wq[0].post(opcode=Op.NOOP, flags=Flag.SIGNALED, wr_id=i)
    p.run()
    assert [c.wr_id for c in p.cq[0].poll(3)] == [0, 1, 2]
    assert [c.wr_id for c in p.cq[0].poll()] == [3]


def test_a_new_completion_ring_begins_where_the_hardware_is() -> None:
    p = Pair(cq_size=4)
    for size in (4, 2, 16, 4, 8):
        cq = p.ctx[0].create_cq(CQ + 0x800, size)
        for i in range(7):
            p.wq[0].post(opcode=Op.NOOP, flags=Flag.SIGNALED, wr_id=i)
            p.run()
            assert [c.wr_id for c in cq.poll()] == [i], (size, i)


def test_states() -> None:
    p = Pair()
    qp = p.pd[0].create_qp(9, p.wq[0])
    assert qp.state == QpState.RESET
    with pytest.raises(UsageError, match="RESET to RTS is no step; expected to be in RTR"):
        qp.modify(QpState.RTS, sq_psn=0)
    qp.modify(QpState.INIT)
    with pytest.raises(UsageError, match="expected exactly"):
        qp.modify(QpState.RTR, dest_node=1)
    with pytest.raises(UsageError, match="qp 9 is in INIT; expected RTS"):
        qp.post_send(p.mr[0], BUFFER, 4)
    qp.modify(QpState.RTR, dest_node=1, dest_qp=4, rq_psn=5)
    qp.modify(QpState.RTS, sq_psn=6)
    assert qp.state == QpState.RTS
    qp.modify(QpState.ERR)
    with pytest.raises(UsageError, match="is in ERR"):
        qp.post_recv(p.mr[0], BUFFER, 4)
    qp.modify(QpState.RESET)


def test_first_psns_are_far_apart() -> None:
    seq = PsnSequence()
    got = [seq.next() for _ in range(4096)]
    assert got[0] == 0xFFFFF0 and seq.k == 4096
    for n in (2, 3, 10, 100, 1000, 4096):
        for at in (0, 5, 4096 - n):
            row = sorted(got[at : at + n])
            assert min(distance(a, b) for a, b in zip(row, row[1:] + row[:1], strict=True)) >= (1 << 24) / (2.7 * n)


def test_first_psns_avoid_where_a_connection_ended() -> None:
    plain, seq = PsnSequence(), PsnSequence()
    row = [plain.next() for _ in range(40)]
    seq.left[0, 3] = row[0] + 5, row[1] - 5  # of node 0 queue pair 3: two numbers are left out for it, none for others
    assert [seq.next([(0, 3), (1, 4)]), seq.next([(0, 3)]), seq.next([(1, 3)])] == [row[2], row[3], row[4]]
    seq.left = {(0, q): (q << 19, q << 19) for q in range(32)}  # nowhere is far: the farthest of the next TRIES
    at = seq.k
    got, rest = seq.next(seq.left), [(0xFFFFF0 + k * 0x9E3779) % (1 << 24) for k in range(at, at + TRIES)]
    room = {x: min(distance(x, q << 19) for q in range(32)) for x in rest}
    assert room[got] == max(room.values()) > 0


def test_every_connection_has_another_first_psn() -> None:
    p, seen = Pair(), []
    for _ in range(5):
        pair = [pd.create_qp(5, wq) for pd, wq in zip(p.pd, p.wq, strict=True)]
        connect([(pair[0], pair[1])])
        seen.append(p.device.read_reg(0, "qp_sq_psn", 5))
        assert [p.device.read_reg(i, f"qp_{k}_psn", 5) for i in range(2) for k in ("sq", "rq")] == [seen[-1]] * 4
        pair[1].post_recv(p.mr[1], BUFFER, 64)
        pair[0].post_send(p.mr[0], BUFFER, 64)
        p.run()
        pair[0].modify(QpState.RESET)
        assert p.device.psns.left[0, 5] == (seen[-1] + 1 & 0xFFFFFF, seen[-1])
        for end in (p.cq[0], p.cq[1]):
            assert [c.status for c in end.poll()] == [Status.SUCCESS]
    assert len(set(seen)) == 5 and min(distance(a, b) for a in seen for b in seen if a != b) >= 1 << 20


@pytest.mark.parametrize("reused", [True, False])
def test_packets_of_a_closed_connection(reused: bool) -> None:
    """Packet by packet: a stale SEND and a stale ACK reach a connection that was opened again."""
    params, seq = config("tiny").node, PsnSequence()

    def ends(psn: int) -> list[Endpoint]:
        out = []
        for i in range(2):
            memory, regions = Memory(1 << 16), RegionTable(params.nic.mrs)
            r = regions.regions[0]
            r.base, r.size, r.key, r.access = 0, 1 << 16, 16, Access.LOCAL_WRITE
            out.append(Endpoint(params.nic, memory, regions, node=i, qpn=0, dest_node=1 - i, dest_qp=0, sq_psn=psn, rq_psn=psn))
        return out

    def post(pair: list[Endpoint], value: int) -> None:
        pair[0].memory.write(0, np.full(100, value, np.uint8))
        pair[0].post(Request(op=Op.SEND, tag=value, length=100, laddr=0, lkey=16))
        pair[1].post(Request(op=Op.RECV, tag=value, length=100, laddr=4096, lkey=16))

    def deliver(to: Endpoint, packet) -> None:
        to.receive({**packet[0], "src_node": 1 - to.node}, packet[1])

    first = seq.next()
    old = ends(first)
    post(old, 1)
    stale = old[0].next_packet()
    deliver(old[1], stale)
    stale_ack = old[1].next_packet()
    new = ends(first if reused else seq.next())
    post(new, 2)
    deliver(new[1], stale)
    fresh = new[0].next_packet()
    deliver(new[0], stale_ack)
    early = new[0].drain()[0]
    deliver(new[1], fresh)
    for _ in range(3):
        while (reply := new[1].next_packet()) is not None:
            deliver(new[0], reply)
        while (again := new[0].next_packet()) is not None:
            deliver(new[1], again)
    got = new[1].memory.read(4096, 100)
    if reused:
        assert (got == 1).all() and early
    else:
        assert (got == 2).all() and not early
        assert [c.status for c in new[0].drain()[0]] == [c.status for c in new[1].drain()[1]] == [Status.SUCCESS]


def test_errors_come_with_a_status() -> None:
    p = Pair()
    p.qp[1].post_recv(p.mr[1], BUFFER, 16)
    p.qp[0].post_send(p.mr[0], BUFFER, 64, wr_id=5)
    p.run()
    assert p.cq[0].poll()[0].status_name == "REM_INV_REQ_ERR" and p.cq[1].poll()[0].status_name == "LOC_LEN_ERR"
    assert p.qp[0].state == QpState.ERR


def test_regions() -> None:
    p = Pair()
    size = p.device.params.node.mem.size_bytes
    for addr, n in ((-1, 4), (0, 0), (size - 4, 8)):
        with pytest.raises(UsageError, match="outside node memory"):
            p.pd[0].reg_mr(addr, n)
    with pytest.raises(UsageError, match="Access bits"):
        p.pd[0].reg_mr(0, 4, 8)
    made = [p.pd[0].reg_mr(64 * i, 64) for i in range(p.device.params.node.nic.mrs - 1)]
    assert len({m.lkey for m in made} | {p.mr[0].lkey}) == len(made) + 1
    with pytest.raises(UsageError, match="in use"):
        p.pd[0].reg_mr(0, 4)
    p.pd[0].dereg_mr(made[0])
    with pytest.raises(UsageError, match="not registered"):
        p.pd[0].dereg_mr(made[0])
    again = p.pd[0].reg_mr(0, 64)
    assert again.index == made[0].index and again.lkey != made[0].lkey
    with pytest.raises(UsageError, match="not writable"):
        p.qp[0].post_recv(again, 0, 4)
    with pytest.raises(UsageError, match="outside region"):
        p.qp[0].post_send(p.mr[0], BUFFER + 0xFFF, 2)


def test_work_queue_limits() -> None:
    p = Pair(wq_size=4)
    with pytest.raises(UsageError, match="multiple of 64"):
        p.wq[0].stage(b"x" * 63)
    with pytest.raises(UsageError, match="5 WQEs, the ring of 4 has room for 4"):
        p.wq[0].stage(bytes(5 * 64))
    p.wq[0].stage(bytes(3 * 64))
    with pytest.raises(UsageError, match="doorbell for 4 WQEs, 3 are staged"):
        p.wq[0].doorbell(4)
    with pytest.raises(UsageError, match="room for 1"):
        p.wq[0].stage(bytes(2 * 64))
    p.device.write_regs([p.wq[0].doorbell(1), p.wq[0].doorbell()])
    p.run()
    assert p.ctx[0].read("wq_head", 0) == 3


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: Context(p.device, 2), "node 2"), (lambda p: p.pd[0].create_qp(16, p.wq[0]), "number 16"),
        (lambda p: p.ctx[0].create_wq(4, 0, 4), "queue 4"), (lambda p: p.ctx[0].create_wq(1, 0, 3), "power of two"),
        (lambda p: p.ctx[0].create_cq(32, 4), "64-byte boundary"), (lambda p: open_device("gpu", p.device.params), "golden, rtl"),
    ],
)  # fmt: skip
def test_refusals(call, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        call(Pair())
