"""The verbs driver: states, regions, posting, polling over many laps, refusals."""
from __future__ import annotations

import numpy as np
import pytest

from hccl.devices import open_device
from hccl.errors import UsageError
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
