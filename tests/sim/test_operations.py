"""Every operation between two nodes, from WQE to CQE, on the functional system and the simulated hardware: same memory, same completions; the capture of
the hardware's link decodes, READ and immediates included."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hccl import open_device
from hccl.devices.base import Device
from hccl.verbs import Context, WorkCompletion, connect
from spec.packet import FIRST_QP, Opcode
from spec.params import config
from spec.registers import Access
from spec.wqe import WQE, Flag, Op, Status
from tests.sim.test_capture import expect_right

PARAMS = config("tiny").replace(nodes=4)  # the switch of the other tests
DATA, SIZE = 0x100000, 1 << 20
LENGTHS = (0, 1, 255, 4095, 4096, 4097, 3 * 4096 + 5)
KINDS = (Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM, Op.READ)


def run(device: Device, wqes: list[dict[str, Any]], recvs: list[dict[str, Any]]) -> tuple[list[list[WorkCompletion]], list[bytes]]:
    """Completions of both nodes, and their data; node 0 posts `wqes`, node 1 `recvs`, keys filled in."""
    nodes = [Context(device, i) for i in range(2)]
    wqs = [c.create_wq(0, 0, 64) for c in nodes]
    cqs = [c.create_cq(0x4000, 128) for c in nodes]
    pds = [c.alloc_pd() for c in nodes]
    mrs = [pd.reg_mr(DATA, SIZE, int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ)) for pd in pds]
    connect([tuple(pd.create_qp(FIRST_QP, w) for pd, w in zip(pds, wqs, strict=True))])  # type: ignore[list-item]
    for i in range(2):
        device.mem_write(i, DATA, np.random.default_rng(i).integers(0, 256, SIZE, np.uint8))
    for node, posts in ((1, recvs), (0, wqes)):
        for n, w in enumerate(posts):
            key = {"lkey": mrs[node].lkey, "rkey": mrs[1 - node].lkey}
            wqs[node].stage(WQE.to_bytes({**key, "wr_id": n, "qpn": FIRST_QP, "flags": int(Flag.SIGNALED | Flag.EVENT), **w}))
        device.write_regs([wqs[node].doorbell()])
        device.read_reg(node, "id")
    device.run([len(wqes), len(recvs), 0, 0], 400_000)
    return [cq.poll() for cq in cqs], [bytes(device.mem_read(i, DATA, SIZE)) for i in range(2)]


def program() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    wqes: list[dict[str, Any]] = []
    recvs: list[dict[str, Any]] = []
    for k, (op, n) in enumerate((op, n) for n in LENGTHS for op in KINDS):
        here, there = DATA + 0x3107 * k, DATA + SIZE // 2 + 0x3101 * k
        a, d = (there, here) if op == Op.READ else (here, there)
        wqes.append(dict(opcode=op, addr_a=a, addr_d=d, length=n, imm=0xBEEF0000 + k))
        if op not in (Op.WRITE, Op.READ):
            recvs.append(dict(opcode=Op.RECV, addr_d=there if op in (Op.SEND, Op.SEND_IMM) else DATA, length=n + k % 3))
    return wqes, recvs


@pytest.fixture(scope="module")
def golden() -> tuple[list[list[WorkCompletion]], list[bytes]]:
    with open_device("golden", PARAMS) as device:
        return run(device, *program())


def test_every_operation(golden: Any, tmp_path: Path) -> None:
    path = tmp_path / "operations.pcapng"
    with open_device("rtl", PARAMS, pcap=str(path)) as device:
        got = run(device, *program())
    assert [[c.status for c in cs] for cs in got[0]] == [[Status.SUCCESS] * len(cs) for cs in golden[0]]
    assert got[0] == golden[0] and got[1] == golden[1]
    assert {c.imm for c in got[0][1]} > {0, 0xBEEF0001}
    seen = {m["opcode"] for _, m in expect_right(path)}
    assert seen == set(Opcode), "a packet kind was not sent"


@pytest.mark.parametrize("bad,status", [
    ({"rkey": 5}, Status.REM_ACCESS_ERR), ({"addr_a": DATA + SIZE}, Status.REM_ACCESS_ERR), ({"lkey": 5}, Status.LOC_PROT_ERR)])
def test_read_refused(bad: dict[str, int], status: Status) -> None:
    wqes = [dict(opcode=Op.WRITE, addr_a=DATA, addr_d=DATA, length=5), dict(opcode=Op.READ, addr_a=DATA, addr_d=DATA, length=64) | bad,
            dict(opcode=Op.READ, addr_a=DATA, addr_d=DATA, length=64)]
    ends = []
    for kind in ("golden", "rtl"):
        with open_device(kind, PARAMS) as device:
            ends.append(run(device, wqes, []))
    assert ends[0] == ends[1]
    assert [c.status for c in ends[0][0][0]] == [Status.SUCCESS, status, Status.WR_FLUSH_ERR]
