"""The functional message engine on one node: flags, WAIT, completions, errors, near-memory ops, memory rules."""
from __future__ import annotations

import numpy as np
import pytest

from golden.chip.system import SystemStalled
from golden.mem import nmc
from golden.mem.memory import AccessError, Memory, Region, RegionTable, check_operands, check_word
from spec.params import MeParams, NodeParams, SystemParams
from spec.registers import Access
from spec.wqe import CQE_BYTES, Compare, DType, Flag, Op, ReduceOp, Status
from tests.golden.driver import RING, RINGS, Driver, copy, recv, reduce_, send, set_, wait

OK, FLUSH = Status.SUCCESS, Status.WR_FLUSH_ERR
SEEDS = [None, *range(8)]
NOOP = {"opcode": Op.NOOP}


def one_node(me: MeParams | None = None, **kw) -> Driver:
    return Driver(SystemParams(nodes=1, node=NodeParams(me=me or MeParams())), **kw)


def run(*wqes: dict, **kw) -> list[dict]:
    d = one_node(**kw)
    d.post(0, 0, *wqes)
    d.s.run()
    return d.poll(0)


# -- completions -----------------------------------------------------------------------------------------------------


def test_cqe_fields_and_order():
    got = run({"opcode": Op.NOOP, "wr_id": 0xDEADBEEF}, copy(0, 64, 100, wr_id=7), {"opcode": Op.NOOP, "qpn": 9, "flags": 0},
              set_(256, 5))
    names = ("wr_id", "opcode", "wqe_index", "byte_len", "qpn", "queue", "phase")
    assert [tuple(c[n] for n in names) for c in got] == [
        (0xDEADBEEF, Op.NOOP, 0, 0, 0, 0, 1), (7, Op.COPY, 1, 100, 0, 0, 1), (3, Op.SET, 3, 0, 0, 0, 1)]


def test_signaled_event_and_counters():
    d = one_node()
    d.post(0, 2, *[NOOP | {"flags": f} for f in (0, Flag.EVENT, Flag.SIGNALED, Flag.SIGNALED | Flag.EVENT)])
    d.s.run()
    assert [c["wqe_index"] for c in d.poll(0)] == [2, 3]
    assert d.s.read_reg(0, "event") == 1 and d.s.read_reg(0, "cq_tail") == 2
    assert d.s.read_reg(0, "wq_head", 2) == d.s.read_reg(0, "wq_tail", 2) == 4 and d.s.read_reg(0, "wq_head", 1) == 0


def test_completion_ring_laps_and_phase():
    d = one_node(cq=4)
    seen = []
    for _ in range(5):
        d.post(0, 0, *[NOOP] * 3)
        d.s.run()
        seen += [(c["wqe_index"], c["phase"]) for c in d.poll(0)]
    assert seen == [(i, 1 - i // 4 % 2) for i in range(15)]


def test_full_completion_ring_holds_and_reports():
    d = one_node(cq=4)
    d.post(0, 0, *[NOOP] * 10)
    with pytest.raises(SystemStalled, match=r"completion ring is full \(tail 4, head 0, size 4\)"):
        d.s.run()
    got = []
    while len(got) < 10:
        got += [c["wqe_index"] for c in d.poll(0)]
        if len(got) < 8:
            with pytest.raises(SystemStalled):
                d.s.run()
        else:
            d.s.run()
    assert got == list(range(10))


def test_no_completion_ring_no_start():
    d = one_node()
    d.s.write_reg(0, "cq_size", 0, 0)
    d.post(0, 0, set_(0, 1))
    with pytest.raises(SystemStalled, match="held: cq_size is 0"):
        d.s.run()
    assert not d.s.mem_read(0, 0, 4).any()


def test_work_ring_wraps():
    d = one_node()
    for lap in range(3):
        d.post(0, 1, *[set_(64, lap * 1000 + i) for i in range(RING)])
        d.s.run()
        assert d.s.nodes[0].memory.word(64) == lap * 1000 + RING - 1
        assert len(d.poll(0)) == RING
    assert d.s.read_reg(0, "wq_head", 1) == 3 * RING


def test_cqes_of_a_queue_come_in_order_though_work_ends_out_of_order():
    for seed in SEEDS:
        d = one_node(seed=seed)
        d.connect(0, 1, 0, 2)
        d.post(0, 0, recv(2, 0x1000, 64), copy(0, 0x2000, 64), set_(0x3000, 1), NOOP)
        d.post(0, 1, wait(0x3000, Compare.EQ, 1), send(1, 0, 64))  # so SET is done before RECV
        d.s.run()
        assert [c["wqe_index"] for c in d.poll(0) if c["queue"] == 0] == [0, 1, 2, 3]


# -- ordering flags: each makes a racing pair right in every order of execution, and without it some order is wrong ----

X, Y, Z = 0x1000, 0x2000, 0x3000


def outcomes(program) -> set[bytes]:
    """Bytes at Z after the program under many orders; source at X holds ones."""
    out = set()
    for seed in range(30):
        d = one_node(seed=seed)
        d.connect(0, 1, 0, 2)
        d.s.mem_write(0, X, np.ones(64, np.uint8))
        program(d)
        d.s.run()
        out.add(d.s.mem_read(0, Z, 64).tobytes())
    return out


@pytest.mark.parametrize("second", [
    {"wqe_sync": 1}, {"flags": Flag.SYNC}, {"flags": Flag.RX_SYNC}, {"_fence_first": True},
    {"wqe_sync": 2, "_fence_first": True},
])
def test_flags_order_a_receive_before_its_use(second):
    second = dict(second)
    fence = second.pop("_fence_first", False)

    def program(d: Driver, ordered: bool = True) -> None:
        first = recv(2, Y, 64, flags=Flag.FENCE if fence and ordered else 0)
        d.post(0, 0, first, copy(Y, Z, 64, **(second if ordered else {})))
        d.post(0, 1, send(1, X, 64))

    assert outcomes(program) == {b"\x01" * 64}
    assert len(outcomes(lambda d: program(d, False))) == 2


def test_rx_sync_waits_for_receives_only():
    d = one_node()
    d.connect(0, 1, 0, 2)
    d.s.write_reg(0, "wait_timeout", 0, 0)
    d.post(0, 0, send(1, X, 64), set_(Z, 1, flags=Flag.RX_SYNC))  # the SEND has no RECV yet
    with pytest.raises(SystemStalled):
        d.s.run(expire=False)
    assert d.s.nodes[0].memory.word(Z) == 1
    d.post(0, 0, set_(Z, 2, flags=Flag.SYNC))
    with pytest.raises(SystemStalled, match="held: sync: 1 WQE before it not done"):
        d.s.run(expire=False)
    d.post(0, 1, recv(2, Y, 64))
    d.s.run()
    assert d.s.nodes[0].memory.word(Z) == 2


def test_wqe_sync_waits_for_that_one_only():
    d = one_node()
    d.connect(0, 1, 0, 2)
    d.post(0, 0, set_(Z, 1), recv(2, Y, 64), set_(Z, 2, wqe_sync=2), set_(Z, 3, wqe_sync=2))
    with pytest.raises(SystemStalled, match=r"WQE 3 .* held: wqe_sync on WQE 1 \(RECV"):
        d.s.run()
    assert d.s.nodes[0].memory.word(Z) == 2
    d.post(0, 1, send(1, X, 64))
    d.s.run()
    assert d.s.nodes[0].memory.word(Z) == 3


def test_wqe_sync_beyond_the_start_or_the_window_is_done():
    assert [c["status"] for c in run(NOOP | {"wqe_sync": 255}, *[NOOP] * 70, NOOP | {"wqe_sync": 60})] == [OK] * 72


def test_wait_is_a_barrier_for_its_queue_only():
    d = one_node()
    d.post(0, 0, set_(Y, 1), wait(X, Compare.EQ, 7), set_(Z, 1), NOOP)
    d.post(0, 1, set_(Z + 64, 1))
    d.s.write_reg(0, "wait_timeout", 0, 0)
    with pytest.raises(SystemStalled):
        d.s.run()
    word = d.s.nodes[0].memory.word
    assert (word(Y), word(Z), word(Z + 64)) == (1, 0, 1)
    assert d.s.read_reg(0, "wq_head", 0) == 1 and d.s.read_reg(0, "wq_state", 0) == 2
    d.post(0, 2, set_(X, 7))
    d.s.run()
    assert word(Z) == 1 and d.s.read_reg(0, "wq_head", 0) == 4


@pytest.mark.parametrize("cmp,value,true_for", [
    (Compare.EQ, 5, {5}), (Compare.NE, 5, {0, 4, 6, 0xFFFFFFFF}), (Compare.GE, 5, {5, 6, 0xFFFFFFFF}),
    (Compare.LT, 5, {0, 4}), (Compare.GE, 0, {0, 4, 5, 6, 0xFFFFFFFF}), (Compare.LT, 0xFFFFFFFF, {0, 4, 5, 6}),
    (Compare.EQ, 0xFFFFFFFF, {0xFFFFFFFF}),
])
def test_compares_are_unsigned(cmp, value, true_for):
    for word in (0, 4, 5, 6, 0xFFFFFFFF):
        got = run(set_(X, word), wait(X, cmp, value))
        assert got[1]["status"] == (OK if word in true_for else Status.WAIT_TIMEOUT), (cmp, word)


def test_window_bounds_what_is_outstanding():
    d = one_node(MeParams(window=4))
    d.connect(0, 1, 0, 2)
    d.post(0, 0, *[recv(2, Y, 64)] * 4, set_(Z, 1))
    with pytest.raises(SystemStalled, match="held: window of 4 WQEs full"):
        d.s.run()
    d.post(0, 1, send(1, X, 64))
    with pytest.raises(SystemStalled):
        d.s.run()
    assert d.s.nodes[0].memory.word(Z) == 1


def test_ring_of_waits_across_queues():
    """Each queue waits for the one before and signals the next: any order of execution."""
    for seed in SEEDS:
        d = one_node(seed=seed)
        for q in (3, 2, 1, 0):
            d.post(0, q, wait(X + 4 * q, Compare.EQ, 1), set_(X + 4 * q + 4, 1))
        d.s.mem_write(0, X, np.array([1, 0, 0, 0], np.uint8))
        d.s.run()
        assert d.s.nodes[0].memory.word(X + 16) == 1


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad,status,info", [
    ({"opcode": len(Op)}, Status.LOC_QP_OP_ERR, 0), ({"opcode": 255}, Status.LOC_QP_OP_ERR, 0),
    ({"opcode": Op.READ}, Status.LOC_QP_OP_ERR, 0),
    (reduce_(0, 0, 0, 64, rop=3), Status.LOC_QP_OP_ERR, 0), (reduce_(0, 0, 0, 64, dtype=4), Status.LOC_QP_OP_ERR, 0),
    (reduce_(0, 0, 0, 64, dtype=DType.INT32, flags=Flag.SCALE), Status.LOC_QP_OP_ERR, 0),
    (wait(0, 4, 0), Status.LOC_QP_OP_ERR, 0), (send(16, 0, 1), Status.LOC_QP_OP_ERR, 0),
    (send(3, 0, 1), Status.LOC_QP_OP_ERR, 0), (recv(3, 0, 1), Status.LOC_QP_OP_ERR, 0),
    (reduce_(32, 64, 128, 64), Status.ALIGN_ERR, 32), (reduce_(0, 65, 128, 64), Status.ALIGN_ERR, 65),
    (reduce_(0, 64, 4, 64), Status.ALIGN_ERR, 4), (reduce_(128, 0, 0, 6), Status.ALIGN_ERR, 0),
    (reduce_(128, 0, 0, 3, dtype=DType.BFLOAT16), Status.ALIGN_ERR, 0), (reduce_(1, 0, 0, 6), Status.ALIGN_ERR, 1),
    ({"opcode": Op.NOOP, "flags": 64}, Status.LOC_QP_OP_ERR, 0), (reduce_(1, 0, 0, 0, rop=3), Status.LOC_QP_OP_ERR, 0),
    (reduce_(64, (1 << 32) - 64, 0, 128), Status.LOC_LEN_ERR, (1 << 32) - 64),
    (copy(64, 1 << 32, 1), Status.LOC_LEN_ERR, 1 << 32), (copy((1 << 64) - 64, 0, 64), Status.LOC_LEN_ERR, (1 << 64) - 64),
    (copy(1, 64, 64), Status.ALIGN_ERR, 1), (copy(0, 96, 64), Status.ALIGN_ERR, 96),
    (set_(2, 0), Status.ALIGN_ERR, 2), (wait(1, Compare.EQ, 0), Status.ALIGN_ERR, 1),
    (copy(0, (4 << 20) - 64, 65), Status.MEM_ERR, 4 << 20), (copy(4 << 20, 0, 1), Status.MEM_ERR, 4 << 20),
    (reduce_((4 << 20) - 64, 5 << 20, 0, 128), Status.MEM_ERR, 5 << 20),
    (reduce_((4 << 20) - 64, 0, (4 << 20) - 128, 256), Status.MEM_ERR, 4 << 20), (set_(4 << 20, 1), Status.MEM_ERR, 4 << 20),
    (wait(1 << 63, Compare.EQ, 1), Status.MEM_ERR, 1 << 63),
])
@pytest.mark.parametrize("signaled", [0, Flag.SIGNALED])
def test_error_ends_the_queue_and_flushes(bad, status, info, signaled):
    d = one_node()
    d.connect(0, 1, 0, 2)
    bad = bad | {"flags": bad.get("flags", 0) | signaled}
    d.post(0, 0, NOOP, bad, set_(X, 1, wqe_sync=1, flags=0), wait(X, Compare.EQ, 9, flags=0), NOOP)
    d.post(0, 1, set_(Y, 1))
    d.s.run()
    got = d.poll(0)
    mine = [(c["wqe_index"], c["status"], c["info"], c["byte_len"]) for c in got if c["queue"] == 0]
    assert mine == [(0, OK, 0, 0), (1, status, info, 0)] + [(i, FLUSH, 0, 0) for i in (2, 3, 4)]
    assert d.s.nodes[0].memory.word(X) == 0 and d.s.nodes[0].memory.word(Y) == 1
    assert d.s.read_reg(0, "wq_state", 0) == 1 and d.s.read_reg(0, "wq_state", 1) == 0
    assert d.s.read_reg(0, "wq_head", 0) == 5


def test_error_gives_up_a_wait_in_progress():
    for seed in SEEDS:
        d = one_node(seed=seed)
        d.s.write_reg(0, "wait_timeout", 0, 0)
        d.post(0, 0, copy(1, 64, 64), wait(X, Compare.EQ, 9), NOOP)
        d.s.run()
        assert d.statuses(0) == [Status.ALIGN_ERR, FLUSH, FLUSH]


def test_wqe_that_cannot_be_read():
    d = one_node()
    d.s.write_reg(0, "wq_base", 0, (4 << 20) - 64)
    d.s.write_reg(0, "wq_tail", 0, 2)
    d.s.run()
    assert [(c["wqe_index"], c["status"], c["info"]) for c in d.poll(0)] == [
        (1, Status.MEM_ERR, 4 << 20)]


def test_queue_reset_forgets_what_has_not_started():
    d = one_node()
    d.connect(0, 1, 0, 2)
    d.s.write_reg(0, "wait_timeout", 0, 0)
    d.post(0, 0, recv(2, Y, 64), NOOP | {"flags": Flag.SYNC | Flag.SIGNALED}, set_(Z, 1))
    d.post(0, 1, wait(X, Compare.EQ, 9), set_(Z, 1))
    with pytest.raises(SystemStalled):
        d.s.run()
    for q in (0, 1):
        d.s.write_reg(0, "wq_reset", q, 1)
    assert d.s.read_reg(0, "wq_state", 0) & 4 and d.s.read_reg(0, "wq_state", 1) == 0
    assert [(c["queue"], c["wqe_index"], c["status"]) for c in d.poll(0)] == [(1, 0, FLUSH)]
    with pytest.raises(ValueError, match=r"doorbell while WQE 0 \(RECV .* is still to end"):
        d.s.write_reg(0, "wq_tail", 0, 1)
    d.post(0, 2, send(1, X, 64))
    d.s.run()
    assert [(c["queue"], c["wqe_index"], c["status"]) for c in d.poll(0)] == [(0, 0, OK), (2, 0, OK)]
    for q in (0, 1):
        assert [d.s.read_reg(0, f"wq_{name}", q) for name in ("head", "tail", "state")] == [0, 0, 0]
        d.tails[0][q] = 0
        d.post(0, q, set_(Z + 4 * q, 5))
    d.s.run()
    assert d.statuses(0, 0) == [OK] and d.s.nodes[0].memory.word(Z) == d.s.nodes[0].memory.word(Z + 4) == 5


def test_reserved_bits_are_refused():
    d = one_node()
    d.post(0, 0, NOOP)
    d.s.mem_write(0, RINGS + 63, np.array([1], np.uint8))
    d.s.run()
    assert d.statuses(0) == [Status.LOC_QP_OP_ERR]


# -- near-memory ops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("rop", list(ReduceOp))
@pytest.mark.parametrize("length", [0, 4, 64, 68, 4096, 5000])
@pytest.mark.parametrize("place", ["apart", "d is a", "d is b"])
def test_reduce_is_the_near_memory_twin(dtype, rop, length, place):
    rng = np.random.default_rng(length)
    data = rng.integers(0, 256, 1 << 15, np.uint8)
    d = one_node()
    d.s.mem_write(0, 0, data)
    to = {"apart": 0x4000, "d is a": 0, "d is b": 0x2000}[place]
    scale = 0x3E800000 if dtype != DType.INT32 and length % 64 == 0 else None
    d.post(0, 0, reduce_(0, 0x2000, to, length, dtype=dtype, rop=rop, scale=scale or 0x40000000,
                         flags=Flag.SIGNALED | (Flag.SCALE if scale else 0)))
    d.s.run()
    (c,) = d.poll(0)
    assert (c["status"], c["byte_len"]) == (OK, length)
    want = data.copy()
    want[to : to + length] = nmc.reduce(data[:length], data[0x2000 : 0x2000 + length], dtype, rop, scale)
    assert np.array_equal(d.s.mem_read(0, 0, 1 << 15), want)
    assert d.s.read_reg(0, "nmc_busy") == -(-length // 64)


@pytest.mark.parametrize("a, b, to, beats", [
    (-128, 0, 0x4000, 2), (0, -192, 0x4000, 3), (-128, 0, -128, 2), (0, 0, -128, 10), (0, 64, 0x4000, 10), (0, 0x1001, 0x4000, 0),
])
def test_busy_counts_the_beats_that_write(a, b, to, beats):
    """None from the first failed read on; those that memory refuses were given to it. Negative: from the memory's end."""
    d = one_node()
    size = d.params.node.mem.size_bytes
    d.post(0, 0, reduce_(a % size, b % size, to % size, 640, dtype=DType.INT32))
    d.s.run()
    assert (d.poll(0)[0]["status"] == OK) == (beats == 10 and to > 0)
    assert d.s.read_reg(0, "nmc_busy") == beats


def test_copy_moves_any_bits_and_any_length():
    data = np.frombuffer(np.array([0x7F800001, 0xFFFFFFFF, 0x80000000, 1], "<u4").tobytes() * 20, np.uint8)
    for n in (0, 1, 63, 64, 65, 320):
        d = one_node()
        d.s.mem_write(0, 0, data)
        d.post(0, 0, copy(0, 0x1000, n))
        d.s.run()
        got = d.s.mem_read(0, 0x1000, 400)
        assert np.array_equal(got[:n], data[:n]) and not got[n:].any()


def test_length_zero_touches_nothing_wherever_it_points():
    assert [c["status"] for c in run(reduce_(1, 2, 3, 0), copy(1 << 50, 7, 0))] == [OK, OK]


def test_destination_is_written_up_to_the_first_refused_bytes():
    d = one_node()
    top = 4 << 20
    d.s.mem_write(0, top - 128, np.full(128, 3, np.uint8))
    d.post(0, 0, copy(top - 128, 0, 200))
    d.s.run()
    assert d.statuses(0) == [Status.MEM_ERR]
    assert (d.s.mem_read(0, 0, 128) == 3).all() and not d.s.mem_read(0, 128, 128).any()


def test_doorbell_and_ring_of_completions_touch_nothing_else():
    d = one_node()
    d.s.nodes[0].memory.data[: d.cq_base] = 0
    d.post(0, 0, *[NOOP] * 5)
    before = d.s.nodes[0].memory.data.copy()
    d.s.run()
    changed = np.flatnonzero(before != d.s.nodes[0].memory.data)
    assert changed.min() >= d.cq_base and changed.max() < d.cq_base + 5 * CQE_BYTES


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_bounds():
    m = Memory(4096)
    m.write(4092, np.arange(4).astype(np.uint8))
    assert m.read(4092, 4).tolist() == [0, 1, 2, 3] and m.read(9999, 0).size == 0
    for addr, n, at in ((4093, 4, 4096), (4096, 1, 4096), (1 << 64, 1, 1 << 64)):
        with pytest.raises(AccessError) as e:
            m.read(addr, n)
        assert e.value.status is Status.MEM_ERR and e.value.address == at
    m.set_word(0, 0x1_2345_6789)
    assert m.word(0) == 0x23456789


def test_region_rules():
    t = RegionTable(16)
    t.regions[3] = Region(base=100, size=50, key=0x73, access=Access.REMOTE_WRITE)
    for key, addr, n, rights, at in (
        (0x73, 99, 1, 0, 99), (0x73, 100, 51, 0, 100), (0x73, 150, 1, 0, 150), (0x63, 100, 1, 0, 100),
        (0x72, 100, 1, 0, 100), (0x73, 100, 1, Access.LOCAL_WRITE, 100), (0x73, 100, 1, Access.REMOTE_READ, 100),
    ):
        with pytest.raises(AccessError) as e:
            t.check(key, addr, n, rights, Status.LOC_PROT_ERR)
        assert e.value.status is Status.LOC_PROT_ERR and e.value.address == at
    for key, addr, n, rights in ((0x73, 100, 50, 0), (0x73, 149, 1, Access.REMOTE_WRITE), (0, 0, 0, 7)):
        t.check(key, addr, n, rights, Status.LOC_PROT_ERR)


def test_alignment_rules():
    check_operands(0, 64, 128, length=2, dtype=DType.BFLOAT16)
    check_operands(0, 64, length=1, dtype=None)
    check_word(4)
    for call in (lambda: check_operands(0, 63, length=4, dtype=None), lambda: check_word(6),
                 lambda: check_operands(0, 64, length=2, dtype=DType.FLOAT32)):
        with pytest.raises(AccessError, match="ALIGN_ERR"):
            call()
