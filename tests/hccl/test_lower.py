"""Lowering: dependencies become wqe_sync and NOOPs, whatever finishes when; memory map, queue pairs, limits."""
from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl.algorithms.ring import all_reduce
from hccl.errors import PlanError, UsageError
from hccl.lower import DONE_WR_ID, RECV_DIR, SEND_DIR, endpoints, lower, order, scale_bits
from hccl.plan import ChunkOp, Plan, Ref
from spec.packet import FIRST_QP
from spec.params import config
from spec.wqe import WQE, Flag, Op

NODE = config("tiny").node
KEYS = {"input": 7, "output": 8, "scratch": 9}


def copy(*deps: int) -> ChunkOp:
    return ChunkOp(kind="copy", length=64, a=Ref("input", 0), d=Ref("output", 0), deps=deps)


def test_one_dependency_is_wqe_sync() -> None:
    assert order((copy(), copy(), copy(0)), 32) == [(0, 0), (1, 0), (2, 2)]


def test_a_second_dependency_is_a_noop_in_front() -> None:
    assert order((copy(), copy(), copy(0, 1)), 32) == [(0, 0), (1, 0), (None, 2), (2, 2)]


def test_what_an_earlier_wqe_waited_for_is_known() -> None:
    assert order((copy(), copy(), copy(0), copy(0, 1)), 32) == [(0, 0), (1, 0), (2, 2), (3, 2)]
    assert order((copy(), copy(0), copy(0, 1)), 32) == [(0, 0), (1, 1), (2, 1)]


def test_a_window_back_is_retired() -> None:
    ops = (*[copy()] * 8, copy(0))
    assert order(ops, 8)[-1] == (8, 0) and order(ops, 9)[-1] == (8, 8)


def test_too_far_for_the_field() -> None:
    with pytest.raises(PlanError, match="255"):
        order((*[copy()] * 300, copy(0)), 512)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_queue_never_starts_an_operation_early(data) -> None:
    """A queue that issues in order, holds on wqe_sync and retires in a window, with ends in any order."""
    n = data.draw(st.integers(1, 24))
    ops = tuple(copy(*data.draw(st.sets(st.integers(0, i - 1), max_size=3) if i else st.just(set()))) for i in range(n))
    window = data.draw(st.integers(2, 10))
    wqes = order(ops, window)
    assert [i for i, _ in wqes if i is not None] == list(range(n))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    done: set[int] = set()
    at = {i: p for p, (i, _) in enumerate(wqes) if i is not None}
    issued = 0
    while len(done) < len(wqes):
        head = next(p for p in range(len(wqes) + 1) if p not in done)
        moved = False
        if issued < len(wqes) and issued - head < window:
            i, k = wqes[issued]
            if not k or issued - k in done:
                if i is not None:
                    assert all(at[d] in done for d in ops[i].deps), f"op {i} started before {ops[i].deps}"
                issued += 1
                moved = True
        running = [p for p in range(issued) if p not in done]
        if running and (not moved or rng.random() < 0.4):
            done.add(int(rng.choice(running)))


def test_scale_is_the_nearest_binary32() -> None:
    for n in range(1, 1025):
        bits = scale_bits(1 / n)
        here, *around = (Fraction(float(np.uint32(b).view(np.float32))) for b in (bits, bits - 1, bits + 1))
        assert all(abs(here - Fraction(1, n)) < abs(x - Fraction(1, n)) for x in around)


def test_wqes_of_a_ring() -> None:
    plan = all_reduce(ranks=3, count=1000, dtype="bfloat16", op="avg")
    low = lower(plan, NODE, KEYS)
    for rank, queues in enumerate(low.queues):
        for channel, queue in enumerate(queues):
            ops = plan.programs[rank][channel]
            words = queue.words()
            assert len(words) == 64 * len(queue.wqes)
            for p, (w, i) in enumerate(zip(queue.wqes, queue.ops, strict=True)):
                assert WQE.from_bytes(words[64 * p : 64 * p + 64])["opcode"] == w["opcode"]
                if i is not None:
                    assert w["opcode"] == Op[ops[i].kind.upper()] and w["length"] == ops[i].length
                if w["opcode"] == Op.SEND:
                    assert w["lkey"] in (7, 8) and w["qpn"] == FIRST_QP + 2 * channel
                if w["opcode"] == Op.RECV:
                    assert w["lkey"] in (8, 9) and w["qpn"] == FIRST_QP + 2 * channel + 1
            last = queue.wqes[-1]
            assert last["flags"] == Flag.SYNC | Flag.SIGNALED | Flag.EVENT and last["wr_id"] == DONE_WR_ID
            assert sum(w.get("flags", 0) & Flag.SCALE > 0 for w in queue.wqes) == 1
            assert 0 < queue.early and all(w["opcode"] == Op.RECV for w in queue.wqes[: queue.early])
    assert low.counts["REDUCE"] == 3 * 2 and low.counts["SEND"] == low.counts["RECV"] == 3 * 4


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [1, 64, 100_003])
def test_regions_do_not_overlap(count: int, in_place: bool) -> None:
    where = lower(all_reduce(ranks=4, count=count, in_place=in_place), NODE, KEYS).map
    assert (where.input is where.output) == in_place
    table = sorted(where.table(), key=lambda r: r.base)
    for a, b in zip(table, table[1:], strict=False):
        assert a.base % 4096 == 0 and a.base + a.size <= b.base, (a, b)
    for ring in (*where.rings, where.completions):
        entries = ring.size // (32 if ring is where.completions else 64)
        assert entries & (entries - 1) == 0
    assert where.end <= NODE.mem.size_bytes


def test_rings_once_made_keep_the_map() -> None:
    for params in (NODE, config("mtia300").node):
        plan = all_reduce(ranks=3, count=100_003, channels=params.me.queues, window=params.me.window)
        first = lower(plan, params, KEYS).map
        again = lower(plan, params, KEYS, least=[r.size for r in first.rings]).map
        assert again == first
        small = all_reduce(ranks=3, count=5, channels=params.me.queues, window=params.me.window)
        assert [r.size for r in lower(small, params, KEYS, least=[r.size for r in first.rings]).map.rings] == [
            r.size for r in first.rings
        ]


def test_endpoints_pair_up() -> None:
    plan = all_reduce(ranks=4, count=100_000)
    ends = [endpoints(plan, r) for r in range(4)]
    for r in range(4):
        assert sorted(e.qpn for e in ends[r].values()) == list(range(FIRST_QP, FIRST_QP + len(ends[r])))
        for (channel, direction, peer), e in ends[r].items():
            other = ends[peer][channel, RECV_DIR if direction == SEND_DIR else SEND_DIR, r]
            assert other.peer == r and e.peer == peer


@pytest.mark.parametrize(
    ("kw", "match"),
    [
        ({"count": 1 << 20}, "expected at most MemParams.size_bytes = 4194304"),
        ({"count": 1 << 19, "channels": 8}, "8 channels; expected at most MeParams.queues = 4"),
        ({"count": 64, "window": 64}, "MeParams.window = 32"),
        ({"count": 64, "rq_depth": 64}, "NicParams.rq_depth = 32"),
    ],
)
def test_limits(kw: dict, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        lower(all_reduce(ranks=2, **kw), NODE, KEYS)


def test_too_many_queue_pairs() -> None:
    node = NODE.replace(nic=NODE.nic.replace(qps=4))
    with pytest.raises(UsageError, match="8 queue pairs on rank 0; expected at most 2"):
        lower(all_reduce(ranks=2, count=1 << 17), node, KEYS)


def test_empty_plan_still_signals() -> None:
    low = lower(all_reduce(ranks=1, count=8, in_place=True), NODE, KEYS)
    assert [w["opcode"] for w in low.queues[0][0].wqes] == [Op.NOOP]
    assert isinstance(low.plan, Plan)
