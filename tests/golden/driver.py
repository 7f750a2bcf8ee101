"""A small driver for the functional system, through registers and memory: connects, posts WQEs, collects CQEs."""
from __future__ import annotations

import numpy as np

from golden.chip.system import System
from spec.params import SystemParams, config
from spec.registers import Access, QpState
from spec.wqe import CQE, CQE_BYTES, WQE, WQE_BYTES, Flag, Op, Status

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
RING = 1024  # entries of each work queue's ring
CQ = 4096
RINGS = 3 << 20  # work rings and the completion ring live in the fourth mebibyte of `tiny`
DATA_SIZE = 3 << 20
KEY = 0x1230  # of region 0: all data


class Driver:
    """Opens every node: queues, completion ring, region 0 over the data area with all rights under `KEY`."""

    def __init__(self, params: SystemParams | None = None, *, seed: int | None = None, cq: int = CQ,
                 **open_kw: int):
        self.params = params or config("tiny")
        self.s = System(self.params, seed=seed)
        self.queues = self.params.node.me.queues
        self.tails = [[0] * self.queues for _ in range(self.params.nodes)]
        self.seen = [0] * self.params.nodes
        self.cq = cq
        self.cq_base = RINGS + self.queues * RING * WQE_BYTES
        for n in range(self.params.nodes):
            self.s.write_reg(n, "cq_base", 0, self.cq_base)
            self.s.write_reg(n, "cq_size", 0, cq)
            for q in range(self.queues):
                self.s.write_reg(n, "wq_base", q, RINGS + q * RING * WQE_BYTES)
                self.s.write_reg(n, "wq_size", q, RING)
            self.region(n, 0, 0, open_kw.get("region_size", DATA_SIZE), KEY)

    def region(self, node: int, index: int, base: int, size: int, key: int, access: int = ALL) -> None:
        for name, value in (("base", base), ("size", size), ("key", key), ("access", access)):
            self.s.write_reg(node, f"mr_{name}", index, value)

    def connect(self, a: int, qa: int, b: int, qb: int, psn: int = 0xFFFFFD) -> None:
        for n, q, dn, dq in ((a, qa, b, qb), (b, qb, a, qa)):
            if self.s.read_reg(n, "qp_state", q) == QpState.ERR:
                self.s.write_reg(n, "qp_state", q, QpState.RESET)
            for name, value in (("dest_qp", dq), ("dest_node", dn), ("sq_psn", psn), ("rq_psn", psn)):
                self.s.write_reg(n, f"qp_{name}", q, value)
            self.s.write_reg(n, "qp_state", q, QpState.RTS)

    def post(self, node: int, queue: int, *wqes: dict) -> None:
        """Fields not named are 0, except lkey and rkey (`KEY`), SIGNALED and wr_id (position in the queue)."""
        for w in wqes:
            at = self.tails[node][queue]
            w = {"lkey": KEY, "rkey": KEY, "wr_id": at, "flags": Flag.SIGNALED, **w}
            raw = np.frombuffer(WQE.to_bytes(w), np.uint8)
            self.s.mem_write(node, RINGS + queue * RING * WQE_BYTES + at % RING * WQE_BYTES, raw)
            self.tails[node][queue] = at + 1
        self.s.write_reg(node, "wq_tail", queue, self.tails[node][queue])

    def poll(self, node: int) -> list[dict]:
        """New CQEs, told by their phase bit, and checked against cq_tail; gives the entries back through cq_head."""
        out = []
        while True:
            lap, slot = divmod(self.seen[node], self.cq)
            cqe = CQE.from_bytes(self.s.mem_read(node, self.cq_base + slot * CQE_BYTES, CQE_BYTES).tobytes())
            if self.seen[node] == self.s.read_reg(node, "cq_tail") or cqe["phase"] != ~lap & 1:
                break
            out.append(cqe)
            self.seen[node] += 1
        assert self.seen[node] == self.s.read_reg(node, "cq_tail")
        self.s.write_reg(node, "cq_head", 0, self.seen[node])
        return out

    def statuses(self, node: int, queue: int = 0) -> list[Status]:
        return [Status(c["status"]) for c in self.poll(node) if c["queue"] == queue]


def send(qpn: int, addr: int, length: int, **kw: int) -> dict:
    return dict(opcode=Op.SEND, qpn=qpn, addr_a=addr, length=length, **kw)


def recv(qpn: int, addr: int, length: int, **kw: int) -> dict:
    return dict(opcode=Op.RECV, qpn=qpn, addr_d=addr, length=length, **kw)


def write(qpn: int, addr: int, to: int, length: int, **kw: int) -> dict:
    return dict(opcode=Op.WRITE, qpn=qpn, addr_a=addr, addr_d=to, length=length, **kw)


def reduce_(a: int, b: int, d: int, length: int, **kw: int) -> dict:
    return dict(opcode=Op.REDUCE, addr_a=a, addr_b=b, addr_d=d, length=length, **kw)


def copy(a: int, d: int, length: int, **kw: int) -> dict:
    return dict(opcode=Op.COPY, addr_a=a, addr_d=d, length=length, **kw)


def wait(addr: int, cmp: int, value: int, **kw: int) -> dict:
    return dict(opcode=Op.WAIT, addr_a=addr, cmp=cmp, imm=value, **kw)


def set_(addr: int, value: int, **kw: int) -> dict:
    return dict(opcode=Op.SET, addr_d=addr, imm=value, **kw)
