"""The functional system: collectives of WQEs, order independence, errors across nodes, stalls that say why."""
from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.chip.system import System, SystemFaulted, SystemStalled
from golden.mem.memory import AccessError
from golden.net.wire import bound_cycles, message_wire_bytes, packets
from spec.packet import Opcode, wire_bytes
from spec.params import LinkParams, NodeParams, SystemParams, config
from spec.registers import ID_VALUE, VERSION, Access, QpState, node_registers
from spec.wqe import Compare, DType, Flag, Op, Status
from tests.golden.driver import ALL, KEY, Driver, copy, recv, reduce_, send, set_, wait, write

TMP = 1 << 20  # receive buffers
OK = Status.SUCCESS


def ring_all_reduce(d: Driver, n: int, nbytes: int, dtype: DType = DType.FLOAT32) -> None:
    """Post a ring all-reduce of `nbytes` at address 0 of nodes 0 .. n-1, all on queue 0."""
    chunk = nbytes // n
    for r in range(n):
        d.connect(r, 1, (r + 1) % n, 2)
    for r in range(n):
        for step in range(n - 1):
            out, got = (r - step) % n * chunk, (r - step - 1) % n * chunk
            tmp = TMP + step * chunk
            d.post(
                r, 0, recv(2, tmp, chunk), send(1, out, chunk), reduce_(got, tmp, got, chunk, dtype=dtype, wqe_sync=2,
                flags=Flag.FENCE | Flag.SIGNALED),
            )
        for step in range(n - 1):
            out, got = (r + 1 - step) % n * chunk, (r - step) % n * chunk
            last = {"opcode": Op.NOOP, "flags": Flag.FENCE | Flag.RX_SYNC}
            d.post(r, 0, recv(2, got, chunk), send(1, out, chunk), last)


def ring_expected(x: np.ndarray) -> np.ndarray:
    """Chunk c starts at rank c and goes up the ring: the sum in that order."""
    n = len(x)
    chunks = x.reshape(n, n, -1)
    out = np.empty_like(chunks[0])
    for c in range(n):
        acc = chunks[c][c]
        for k in range(1, n):
            acc = chunks[(c + k) % n][c] + acc
        out[c] = acc
    return out.reshape(-1)


def test_ring_all_reduce_of_one_mebibyte_is_fast():
    n, nbytes = 4, 1 << 20
    rng = np.random.default_rng(7)
    x = rng.standard_normal((n, nbytes // 4)).astype(np.float32)
    d = Driver()
    for r in range(n):
        d.s.mem_write(r, 0, x[r].view(np.uint8))
    start = time.perf_counter()
    ring_all_reduce(d, n, nbytes)
    d.s.run()
    took = time.perf_counter() - start
    want = ring_expected(x)
    for r in range(n):
        assert np.array_equal(d.s.mem_read(r, 0, nbytes).view(np.float32), want)
        assert all(c["status"] == OK for c in d.poll(r))
    assert took < 2.0, took
    assert [len(m) for m in d.s.messages()] == [2 * (n - 1)] * n


@pytest.mark.parametrize("n", [2, 3, 4])
def test_order_of_execution_does_not_change_the_result(n):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, 64 * n)).astype(np.float32)
    results = set()
    for seed in [None, *range(12)]:
        d = Driver(seed=seed)
        for r in range(n):
            d.s.mem_write(r, 0, x[r].view(np.uint8))
        ring_all_reduce(d, n, 256 * n)
        d.s.run()
        per_node = [d.s.mem_read(r, 0, 256 * n).tobytes() for r in range(n)]
        cqes = [[(c["queue"], c["wqe_index"], c["status"], c["byte_len"]) for c in d.poll(r)] for r in range(n)]
        assert all([i for q, i, *_ in c if q == 0] == sorted(i for q, i, *_ in c if q == 0) for c in cqes)
        results.add((tuple(per_node), tuple(tuple(sorted(c)) for c in cqes)))
    assert len(results) == 1


def test_a_race_shows_under_some_seed():
    """The same ring without its dependency: some order of execution must give another result."""
    results = set()
    for seed in range(20):
        d = Driver(seed=seed)
        d.connect(0, 1, 1, 1)
        d.s.mem_write(0, 0, np.full(64, 7, np.uint8))
        d.post(0, 0, copy(0, 128, 64), send(1, 128, 64))
        d.post(1, 0, recv(1, 0, 64))
        d.s.run()
        results.add(d.s.mem_read(1, 0, 64).tobytes())
    assert len(results) == 2


@pytest.mark.parametrize("length", [0, 1, 3, 255, 4095, 4096, 4097, 8192, 3 * 4096 + 5])
@pytest.mark.parametrize("op", [Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM])
def test_message_sizes_and_guard_bytes(op, length):
    rng = np.random.default_rng(length)
    data = rng.integers(0, 256, length, np.uint8)
    src, dst, size = 0x10003, 0x20001, length + 128
    d = Driver()
    d.connect(0, 3, 1, 5)
    d.s.mem_write(0, src, data)
    d.s.mem_write(1, dst - 64, np.full(size, 0xA5, np.uint8))
    if op in (Op.SEND, Op.SEND_IMM):
        d.post(0, 0, send(3, src, length, imm=0xCAFE) | {"opcode": op})
    else:
        d.post(0, 0, write(3, src, dst, length, imm=0xCAFE) | {"opcode": op})
    if op != Op.WRITE:
        d.post(1, 0, recv(5, dst, length + 7))
    d.s.run()
    got = d.s.mem_read(1, dst - 64, size)
    assert np.array_equal(got[64 : 64 + length], data)
    assert (got[:64] == 0xA5).all() and (got[64 + length :] == 0xA5).all()
    (c,) = d.poll(0)
    assert (c["status"], c["opcode"], c["byte_len"], c["qpn"], c["imm"], c["info"]) == (OK, op, length, 3, 0, 0)
    if op != Op.WRITE:
        (c,) = d.poll(1)
        imm = 0xCAFE if op in (Op.SEND_IMM, Op.WRITE_IMM) else 0
        assert (c["status"], c["opcode"], c["byte_len"], c["qpn"], c["imm"]) == (OK, Op.RECV, length, 5, imm)
    else:
        assert d.poll(1) == []
    count = max(1, -(-length // 4096))
    assert d.s.read_reg(0, "qp_sq_psn", 3) == d.s.read_reg(1, "qp_rq_psn", 5) == (0xFFFFFD + count) & 0xFFFFFF


def test_zero_byte_message_between_full_ones():
    d = Driver()
    d.connect(0, 1, 1, 1)
    d.s.mem_write(0, 0, np.arange(4096).astype(np.uint8))
    d.post(0, 0, send(1, 0, 4096), send(1, 0, 0), send(1, 0, 4096))
    d.post(1, 0, *[recv(1, 8192 * i, 4096) for i in range(3)])
    d.s.run()
    assert [c["byte_len"] for c in d.poll(1)] == [4096, 0, 4096]
    assert d.s.read_reg(1, "qp_rq_psn", 1) == 0


def test_flag_written_after_data_is_a_signal():
    """WRITE of data, WRITE of a flag on one queue pair, WAIT at the peer, COPY: right in every order of execution."""
    for seed in range(10):
        d = Driver(seed=seed)
        d.connect(0, 1, 1, 1)
        d.s.mem_write(0, 0, np.full(4096, 9, np.uint8))
        d.s.mem_write(0, 8192, np.array([1, 0, 0, 0], np.uint8))
        d.post(1, 2, wait(0x9000, Compare.GE, 1), copy(0x4000, 0x5000, 4096))
        d.post(0, 1, write(1, 0, 0x4000, 4096), write(1, 8192, 0x9000, 4))
        d.s.run()
        assert (d.s.mem_read(1, 0x5000, 4096) == 9).all()


# -- errors across nodes ---------------------------------------------------------------------------------------------


def pair(**kw) -> Driver:
    d = Driver(**kw)
    d.connect(0, 1, 1, 1)
    return d


def test_send_longer_than_its_recv():
    d = pair()
    d.s.mem_write(0, 0, np.full(10000, 3, np.uint8))
    d.post(1, 0, recv(1, 0x8000, 9000), recv(1, 0, 64))
    d.post(0, 0, send(1, 0, 10000), send(1, 0, 1))
    d.s.run()
    a, b = d.poll(0), d.poll(1)
    assert [c["status"] for c in a] == [Status.REM_INV_REQ_ERR, Status.WR_FLUSH_ERR] and a[0]["info"] == 0x61
    assert [c["status"] for c in b] == [Status.LOC_LEN_ERR, Status.WR_FLUSH_ERR]
    assert d.s.read_reg(0, "qp_state", 1) == d.s.read_reg(1, "qp_state", 1) == QpState.ERR
    assert d.s.read_reg(0, "wq_state", 0) & 1 and d.s.read_reg(1, "wq_state", 0) & 1
    got = d.s.mem_read(1, 0x8000, 10000)
    assert (got[:8192] == 3).all() and (got[8192:] == 0).all()


@pytest.mark.parametrize("base,size,access,key", [
    (0x1000, 0x1000, 7, 0x55), (0x1001, 0x2000, 7, 0x51), (0x1000, 0xFFF, 7, 0x51), (0, 0, 7, 0x51),
    (0x1000, 0x1000, Access.LOCAL_WRITE | Access.REMOTE_READ, 0x51),
])
def test_write_outside_the_rights_of_rkey(base, size, access, key):
    d = pair()
    d.region(1, 1, base, size, key, access)
    d.s.mem_write(0, 0, np.full(4096, 3, np.uint8))
    d.post(1, 0, recv(1, 0, 64))
    d.post(0, 0, write(1, 0, 0x1000, 4096, rkey=0x51))
    d.s.run()
    (c,) = d.poll(0)
    assert c["status"] == Status.REM_ACCESS_ERR and c["info"] == 0x62
    assert not d.s.mem_read(1, 0, 1 << 16).any()
    assert d.statuses(1) == [Status.WR_FLUSH_ERR]


def test_write_of_nothing_needs_no_right():
    d = pair()
    d.post(0, 0, write(1, 0xFFFFFFFF, 0xFFFFFFFFFF, 0, rkey=0x99, lkey=0x98))
    d.s.run()
    assert d.statuses(0) == [OK]


def test_local_protection():
    for addr, length, key in ((0, 64, 0x7), (3 << 20, 1, KEY), ((3 << 20) - 63, 64, KEY)):
        d = pair()
        d.post(0, 0, send(1, addr, length, lkey=key), {"opcode": Op.NOOP, "flags": Flag.SYNC | Flag.SIGNALED})
        d.s.run()
        c = d.poll(0)
        assert [x["status"] for x in c] == [Status.LOC_PROT_ERR, Status.WR_FLUSH_ERR]
        assert c[0]["info"] == addr


def test_recv_outside_its_region():
    for key, addr in ((KEY, (3 << 20) - 64), (KEY + 16, 0), (0x51, 0)):
        d = pair()
        d.region(1, 1, 0, 4096, 0x51, Access.REMOTE_WRITE)
        d.post(1, 0, recv(1, 0, 64), recv(1, addr, 128, lkey=key), recv(1, 0, 64))
        d.post(0, 0, send(1, 0, 64), send(1, 0, 64))
        d.s.run()  # a bad request ends in its error when all before it are done
        got = d.poll(1)
        assert [c["status"] for c in got] == [OK, Status.LOC_PROT_ERR, Status.WR_FLUSH_ERR]
        assert got[1]["info"] == addr and d.s.read_reg(1, "qp_state", 1) == QpState.ERR
        assert d.statuses(0) == [OK, Status.RETRY_EXC_ERR]
        d = pair()
        d.region(1, 1, 0, 4096, 0x51, Access.REMOTE_WRITE)
        d.post(1, 0, recv(1, addr, 128, lkey=key), recv(1, 0, 64))
        d.s.run()  # the oldest: no message needed
        assert d.statuses(1) == [Status.LOC_PROT_ERR, Status.WR_FLUSH_ERR]
    d = pair()
    d.post(1, 0, recv(1, (3 << 20) - 64, 64), recv(1, 1 << 40, 0, lkey=1))
    d.post(0, 0, send(1, 0, 64), send(1, 0, 0))
    d.s.run()
    assert d.statuses(0) == d.statuses(1) == [OK, OK]


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 3 * 4096 + 5])
def test_read(length):
    rng = np.random.default_rng(length)
    data = rng.integers(0, 256, length, np.uint8)
    d = Driver()
    d.connect(0, 3, 1, 5)
    d.s.mem_write(1, 0x10003, data)
    d.s.mem_write(0, 0x20001 - 64, np.full(length + 128, 0xA5, np.uint8))
    d.post(0, 0, dict(opcode=Op.READ, qpn=3, addr_a=0x10003, addr_d=0x20001, length=length), send(3, 0, 0))
    d.post(1, 0, recv(5, 0, 0))
    d.s.run()
    got = d.s.mem_read(0, 0x20001 - 64, length + 128)
    assert np.array_equal(got[64 : 64 + length], data) and (got[:64] == 0xA5).all() and (got[64 + length :] == 0xA5).all()
    assert [(c["status"], c["opcode"], c["byte_len"]) for c in d.poll(0)] == [(OK, Op.READ, length), (OK, Op.SEND, 0)]
    assert d.s.messages()[:2] == [[(Op.SEND, 0)], [(Op.READ, length)]]
    count = max(1, -(-length // 4096)) + 1
    assert d.s.read_reg(0, "qp_sq_psn", 3) == d.s.read_reg(1, "qp_rq_psn", 5) == (0xFFFFFD + count) & 0xFFFFFF


@pytest.mark.parametrize("kw,access,status", [
    ({"rkey": 1}, ALL, Status.REM_ACCESS_ERR), ({}, Access.LOCAL_WRITE | Access.REMOTE_WRITE, Status.REM_ACCESS_ERR),
    ({"addr_a": 3 << 20}, ALL, Status.REM_ACCESS_ERR), ({"lkey": 1}, ALL, Status.LOC_PROT_ERR)])
def test_read_without_the_right(kw, access, status):
    d = pair()
    d.region(1, 0, 0, 3 << 20, KEY, access)
    d.post(0, 0, dict(opcode=Op.READ, qpn=1, addr_a=0, addr_d=0x100, length=64) | kw, send(1, 0, 64))
    d.s.run()
    assert d.statuses(0) == [status, Status.WR_FLUSH_ERR]


def test_message_beyond_the_largest():
    d = pair()
    d.post(0, 0, send(1, 0, (1 << 31) + 1))
    d.s.run()
    assert d.statuses(0) == [Status.LOC_LEN_ERR]


def test_only_reset_leaves_error_and_clears_psns():
    d = pair()
    d.s.write_reg(0, "qp_state", 1, QpState.ERR)
    d.s.write_reg(0, "qp_state", 1, QpState.RTS)
    assert d.s.read_reg(0, "qp_state", 1) == QpState.ERR and d.s.read_reg(0, "qp_sq_psn", 1) == 0xFFFFFD
    d.s.write_reg(0, "qp_state", 1, QpState.RESET)
    assert d.s.read_reg(0, "qp_sq_psn", 1) == d.s.read_reg(0, "qp_rq_psn", 1) == 0
    d.s.write_reg(0, "qp_state", 1, QpState.RTS)
    assert d.s.read_reg(0, "qp_state", 1) == QpState.RTS


def test_region_beyond_memory_is_a_memory_error():
    d = pair(region_size=5 << 20)
    d.post(1, 0, recv(1, (4 << 20) - 1, 64))
    d.post(0, 0, send(1, 0, 64))
    d.s.run()
    (a,), (b,) = d.poll(0), d.poll(1)
    assert (a["status"], b["status"], b["info"]) == (Status.REM_OP_ERR, Status.MEM_ERR, (4 << 20) - 1)  # of the packet
    d = pair(region_size=5 << 20)
    d.post(0, 0, write(1, 0, 4 << 20, 4))
    d.s.run()
    assert d.statuses(0) == [Status.REM_OP_ERR]
    d = pair(region_size=5 << 20)
    d.post(0, 0, send(1, 4 << 20, 4))
    d.s.run()
    assert d.statuses(0) == [Status.MEM_ERR]


def test_send_without_recv_ends_in_rnr_retry():
    d = pair()
    d.post(0, 0, send(1, 0, 64), send(1, 0, 64))
    with pytest.raises(SystemStalled, match=r"node 0 qp 1: 2 message\(s\).*node 1 qp 1 has no RECV posted"):
        d.s.run(expire=False)
    assert d.poll(0) == []
    d.s.run()
    assert d.statuses(0) == [Status.RNR_RETRY_EXC_ERR, Status.WR_FLUSH_ERR]
    assert "no RECV posted" in d.s.last_stall


def test_a_watched_queue_in_error_ends_the_run_before_a_timer_does():
    def failing():
        d = pair()
        d.post(1, 1, recv(1, 0, 64, lkey=0x7))  # refused: the queue pair goes to ERR
        d.post(0, 0, send(1, 0, 64))
        return d

    d = failing()
    with pytest.raises(SystemFaulted, match="node 0 qp 1: .* node 1 qp 1 is ERR") as e:
        d.s.run(watch=[(0, 0), (1, 0), (1, 1)])
    assert e.value.queues == [(1, 1)]
    assert d.poll(0) == [] and [c["status"] for c in d.poll(1)] == [Status.LOC_PROT_ERR]
    for watch in ((), [(0, 0), (1, 2)]):  # not watched: to the end of the timers
        d = failing()
        try:
            d.s.run(watch=watch)
        except SystemFaulted as f:
            assert watch and f.queues == [(0, 0)]
        assert d.statuses(0) == [Status.RETRY_EXC_ERR]


def test_late_recv_after_a_stall():
    d = pair()
    d.post(0, 0, send(1, 0, 64))
    with pytest.raises(SystemStalled):
        d.s.run(expire=False)
    d.post(1, 0, recv(1, 0, 64))
    d.s.run()
    assert d.statuses(0) == d.statuses(1) == [OK]


@pytest.mark.parametrize("state,word", [(QpState.RESET, "RESET"), (QpState.ERR, "ERR"), (QpState.INIT, "INIT")])
def test_peer_that_does_not_receive(state, word):
    d = pair()
    d.s.write_reg(1, "qp_state", 1, state)
    d.post(0, 0, send(1, 0, 64))
    with pytest.raises(SystemStalled, match=f"node 1 qp 1 is {word}"):
        d.s.run(expire=False)
    d.s.run()
    assert d.statuses(0) == [Status.RETRY_EXC_ERR]


def test_peer_connected_elsewhere_or_missing():
    d = pair()
    d.s.write_reg(1, "qp_dest_node", 1, 2)
    d.post(0, 0, send(1, 0, 64))
    with pytest.raises(SystemStalled, match="connected to node 2"):
        d.s.run(expire=False)
    d = pair()
    d.s.write_reg(0, "qp_dest_node", 1, 200)
    d.post(0, 0, send(1, 0, 64))
    with pytest.raises(SystemStalled, match="node 200 qp 1 does not exist"):
        d.s.run(expire=False)


def test_psns_apart():
    """Ahead of what the peer expects: refused. Behind: an old connection's packets, acknowledged without effect."""
    d = pair()
    d.s.write_reg(0, "qp_sq_psn", 1, 5)  # the peer expects 0xFFFFFD
    d.post(1, 0, recv(1, 0, 64))
    d.post(0, 0, send(1, 0, 64))
    with pytest.raises(SystemStalled, match="expects PSN 0xfffffd, not 0x5"):
        d.s.run(expire=False)
    d = pair()
    d.s.write_reg(1, "qp_rq_psn", 1, 0)
    d.s.mem_write(0, 0, np.full(64, 1, np.uint8))
    d.post(1, 0, recv(1, 0x1000, 64))
    d.post(0, 0, *[send(1, 0, 64)] * 4)
    d.s.run()
    assert d.statuses(0) == [OK] * 4 and len(d.poll(1)) == 1
    assert d.s.read_reg(1, "nic_duplicates") == 3


def test_reconnect_after_an_error():
    d = pair()
    d.post(0, 0, send(1, 0, 64))
    d.s.run()
    assert d.statuses(0) == [Status.RNR_RETRY_EXC_ERR]
    d.post(0, 0, {"opcode": Op.NOOP})
    d.s.run()
    assert d.statuses(0) == [Status.WR_FLUSH_ERR]
    d.s.write_reg(0, "wq_reset", 0, 1)
    d.tails[0][0] = 0
    assert d.s.read_reg(0, "wq_head", 0) == d.s.read_reg(0, "wq_tail", 0) == d.s.read_reg(0, "wq_state", 0) == 0
    d.connect(0, 1, 1, 1, psn=77)
    d.post(1, 0, recv(1, 0, 64))
    d.post(0, 0, send(1, 0, 64))
    d.s.run()
    assert d.statuses(0) == d.statuses(1) == [OK]


def test_software_puts_a_queue_pair_in_error():
    d = pair()
    d.post(0, 0, recv(1, 0, 64), recv(1, 0, 64))
    d.post(0, 1, recv(1, 0, 64), {"opcode": Op.NOOP})
    with pytest.raises(SystemStalled, match=r"node 0 queue 0: WQE 1 \(RECV qp 1, 64 B, wr_id 1\) waits for a message"):
        d.s.run()
    d.s.write_reg(0, "qp_state", 1, QpState.ERR)
    d.s.run()
    assert sorted((c["queue"], c["wqe_index"], c["status"]) for c in d.poll(0)) == [
        (0, 0, 5), (0, 1, 5), (1, 0, 5), (1, 1, 0)]  # the NOOP had run before the error


def test_a_write_error_flushes_recvs_of_the_other_end():
    d = pair()
    d.post(1, 3, recv(1, 0, 64))
    d.post(0, 0, write(1, 0, 0, 64, rkey=1), write(1, 0, 0, 64))
    d.s.run()
    assert d.statuses(0) == [Status.REM_ACCESS_ERR, Status.WR_FLUSH_ERR]
    assert d.statuses(1, 3) == [Status.WR_FLUSH_ERR]


# -- stalls and limits -----------------------------------------------------------------------------------------------


def test_deadlock_report_names_everything():
    d = pair()
    d.s.write_reg(0, "wait_timeout", 0, 0)
    d.post(0, 0, recv(1, 0, 64), send(1, 0, 64, flags=Flag.RX_SYNC), {"opcode": Op.NOOP})
    d.post(1, 0, recv(1, 0, 64), send(1, 0, 64, wqe_sync=1))
    d.post(0, 1, wait(0x100, Compare.EQ, 5), set_(0x200, 1))
    with pytest.raises(SystemStalled) as e:
        d.s.run()
    text = str(e.value)
    for line in (
        "node 0 queue 0: WQE 0 (RECV qp 1, 64 B, wr_id 0) waits for a message",
        "node 0 queue 0: WQE 1 (SEND qp 1, 64 B, wr_id 1) and 1 behind it are held: rx_sync: 1 RECV before it not done",
        "node 0 queue 1: WQE 0 (WAIT [0x100] EQ 5, wr_id 0) waits for memory, which holds 0",
        "node 0 queue 1: WQE 1 (SET [0x200] = 1, wr_id 1) and 0 behind it are held: WQE 0 (WAIT [0x100] EQ 5, wr_id 0) "
        "before it is a barrier",
        "node 1 queue 0: WQE 1 (SEND qp 1, 64 B, wr_id 1) and 0 behind it are held: wqe_sync on WQE 0 (RECV qp 1, 64 B",
    ):
        assert line in text, text
    assert d.s.read_reg(0, "wq_state", 0) == 2


def test_wait_timeout_register():
    d = pair()
    d.post(0, 1, wait(0x100, Compare.EQ, 5), set_(0x200, 1))
    d.s.run()
    c = d.poll(0)
    assert [x["status"] for x in c] == [Status.WAIT_TIMEOUT, Status.WR_FLUSH_ERR] and c[0]["info"] == 0x100
    assert not d.s.mem_read(0, 0x200, 4).any()


def test_deadline_in_steps():
    d = pair()
    d.post(0, 0, *[{"opcode": Op.NOOP}] * 100)
    with pytest.raises(SystemStalled, match="deadline of 10 steps"):
        d.s.run(10)
    d.s.run(1000)
    assert d.statuses(0) == [OK] * 100


def test_send_queue_depth_holds_the_queue():
    params = SystemParams(nodes=2, node=NodeParams(nic=config("tiny").node.nic.replace(sq_depth=2, rq_depth=2)))
    d = pair(params=params)
    d.post(0, 0, *[send(1, 0, 64)] * 5)
    with pytest.raises(SystemStalled, match="held: queue of qp 1 full"):
        d.s.run(expire=False)
    d.post(1, 0, *[recv(1, 0, 64)] * 5)
    d.s.run()
    assert d.statuses(0) == d.statuses(1) == [OK] * 5


def test_loopback_queue_pair():
    d = Driver()
    d.connect(0, 1, 0, 2)
    d.s.mem_write(0, 0, np.arange(256).astype(np.uint8))
    d.post(0, 0, recv(2, 1, 256), send(1, 0, 256))  # overlapping by 255 bytes: the source is read first
    d.s.run()
    assert np.array_equal(d.s.mem_read(0, 1, 256), np.arange(256).astype(np.uint8))


def test_registers_by_name():
    d = pair()
    s = d.s
    assert s.read_reg(2, "id") == ID_VALUE and s.read_reg(2, "version") == VERSION
    assert s.read_reg(2, "node") == 2 and s.read_reg(0, "wait_timeout") == 1 << 20
    for r in node_registers(s.params.node):
        for i in {0, r.count - 1}:
            assert 0 <= s.read_reg(3, r.name, i) < 1 << 32
        with pytest.raises(IndexError, match=f"{r.name}: copy {r.count} of {r.count}"):
            s.read_reg(3, r.name, r.count)
        if r.access == "ro":
            with pytest.raises(ValueError, match="read-only"):
                s.write_reg(3, r.name, 0, 1)
        elif r.access == "rw" and r.name not in ("wq_tail", "qp_state"):
            s.write_reg(3, r.name, r.count - 1, 0xFFFFFFFF)
            assert s.read_reg(3, r.name, r.count - 1) == (1 << r.width) - 1
    with pytest.raises(KeyError, match="no register 'colour'"):
        s.read_reg(0, "colour")
    with pytest.raises(ValueError, match="2000 WQEs posted and not done, the ring has 1024"):
        s.write_reg(0, "wq_tail", 0, 2000)


def test_memory_calls_check():
    s = System(SystemParams(nodes=1))
    with pytest.raises(AccessError):
        s.mem_write(0, (4 << 20) - 1, np.zeros(2, np.uint8))
    with pytest.raises(AccessError):
        s.mem_read(0, 4 << 20, 1)
    with pytest.raises(TypeError, match="row of uint8"):
        s.mem_write(0, 0, np.zeros(2, np.float32))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.data())
def test_random_programs_without_races_do_not_depend_on_order(data):
    """Random sends, writes, copies and reduces on disjoint destinations, with random harmless flags."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    plan = []
    for i in range(int(rng.integers(1, 25))):
        a, b = rng.choice(3, 2, replace=False)
        kind = rng.choice(["send", "write", "copy", "reduce", "noop"])
        length = int(rng.choice([0, 1, 63, 64, 4096, 5000]))
        flags = int(rng.choice([0, Flag.FENCE, Flag.SYNC, Flag.RX_SYNC])) | Flag.SIGNALED
        plan.append((kind, int(a), int(b), length, flags if kind != "send" else Flag.SIGNALED, i))
    source = [rng.integers(0, 256, 1 << 16, np.uint8) for _ in range(3)]
    results = set()
    for seed in (None, 1, 2, 3):
        d = Driver(seed=seed)
        for a in range(3):
            d.s.mem_write(a, 0, source[a])
            for b in range(a):
                d.connect(a, b, b, a)
        for kind, a, b, n, flags, i in plan:
            dst = (1 << 20) + i * 8192
            if kind == "send":
                d.post(b, 1, recv(a, dst, n))
                d.post(a, 0, send(b, i, n, flags=flags))
            elif kind == "write":
                d.post(a, 0, write(b, i, dst, n, flags=flags))
            elif kind == "copy":
                d.post(a, 0, copy(64 * i, dst, n, flags=flags))
            elif kind == "reduce":
                d.post(a, 0, reduce_(64 * i, 0, dst, n & ~3, flags=flags))
            else:
                d.post(a, 0, {"opcode": Op.NOOP, "flags": flags})
        d.s.run()
        cq = tuple(tuple(sorted((c["queue"], c["wqe_index"], c["status"]) for c in d.poll(a))) for a in range(3))
        results.add((cq, tuple(d.s.mem_read(a, 0, 2 << 20).tobytes() for a in range(3))))
    assert len(results) == 1


# -- the bound -------------------------------------------------------------------------------------------------------


def test_bound_cycles():
    link = LinkParams(latency=100, rate=64)
    assert packets(Op.WRITE_IMM, 9000, 4096) == [
        (Opcode.WRITE_FIRST, 4096), (Opcode.WRITE_MIDDLE, 4096), (Opcode.WRITE_LAST_IMM, 808)]
    assert packets(Op.SEND, 0, 256) == [(Opcode.SEND_ONLY, 0)]
    sizes = ((Opcode.WRITE_FIRST, 4096), (Opcode.WRITE_MIDDLE, 4096), (Opcode.WRITE_LAST, 808))
    want = sum(wire_bytes(*s) for s in sizes)
    assert message_wire_bytes(Op.WRITE, 9000, 4096) == want == 9000 + 3 * 82 + 16
    assert bound_cycles([[(Op.WRITE, 9000)], []], 4096, link) == -(-want // 64) + 100
    assert bound_cycles([[(Op.SEND, 1)] * 3, [(Op.SEND, 1)]], 4096, LinkParams(latency=1, rate=1)) == 3 * 86 + 1
    for length in (0, 1, 1024, 1025, 3072, 3073, 4096, 5000, 99999):
        for op in (Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM, Op.READ):
            assert message_wire_bytes(op, length, 1024) == sum(wire_bytes(*p) for p in packets(op, length, 1024))
    assert bound_cycles([[], []], 4096, link) == 0 == bound_cycles([], 4096, link)
    with pytest.raises(ValueError, match="sends no message"):
        packets(Op.RECV, 4, 4096)
    # 98.0 % of the line at MTU 4096, 96.2 % at 2048, 92.6 % at 1024
    for mtu, share in ((4096, 0.980), (2048, 0.962), (1024, 0.926)):
        cycles = bound_cycles([[(Op.SEND, 1 << 26)]], mtu, LinkParams(latency=1, rate=64))
        assert abs((1 << 26) / 64 / cycles - share) < 5e-4
