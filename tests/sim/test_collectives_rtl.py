"""The simulated hardware under the collective library: bits, guard bytes, stalls, faults, errors, bandwidth, and the executor itself.

Stalls and faults of the fast tier share one build: a probability of zero is asked for as the smallest there is.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest

from hccl import Communicator, open_device
from hccl.devices.base import Device
from hccl.errors import CollectiveError, CollectiveTimeout, MismatchError
from hccl.executor import COUNTERS
from hccl.result import Result
from hccl.verbs import Context, connect
from spec.packet import FIRST_QP
from spec.params import config
from spec.registers import Access, QpState
from spec.wqe import WQE, Flag, Op, Status
from tb.chip import executor, service
from tests.hccl import definition as direct
from tests.sim import monolith

NODES = 5
PARAMS = config("tiny").replace(nodes=NODES)
GUARD = 0xA5
PROMPT = 8000  # cycles in which an error must show: about twice a run of the vectors used
LEAST = 1 / 65536  # the smallest probability that is not zero
KINDS = ("drop", "dup", "reorder", "corrupt")
COMBOS = [(d, o) for d in direct.DTYPES for o in direct.OPS if (d, o) != ("int32", "avg")]
Case = tuple[int, str, str, int, bool]  # ranks, dtype, op, count, in place


def counts(ranks: int) -> tuple[int, ...]:
    return (0, 1, max(ranks - 1, 1), 127, 128, 129, 10007)


GRID: list[Case] = [
    (n, d, o, c, ip) for n in range(1, NODES + 1) for d, o in COMBOS for c in dict.fromkeys(counts(n)) for ip in (False, True)
]


@lru_cache
def covering() -> list[Case]:
    """Cases in which every two values of different arguments meet (counts by their place in `counts`)."""
    def pairs(case: Case) -> set:
        n, d, o, c, ip = case
        return set(combinations(enumerate((n, d, o, counts(n).index(c), ip)), 2))

    order = [GRID[i] for i in np.random.default_rng(0).permutation(len(GRID))]
    left = set().union(*(pairs(c) for c in order))
    chosen = []
    while left:
        best = max(order, key=lambda c: len(pairs(c) & left))
        chosen.append(best)
        left -= pairs(best)
    return sorted(chosen)


@pytest.fixture(scope="module")
def rtl() -> Iterator[Device]:
    with open_device("rtl", PARAMS) as device:
        yield device


@pytest.fixture(scope="module")
def golden() -> Iterator[Device]:
    with open_device("golden", PARAMS) as device:
        yield device


def run(comm: Communicator, case: Case, rng: np.random.Generator, **kw) -> Result:
    """One all-reduce of new data; the result's bits are those of the direct definition."""
    n, dtype, op, count, in_place = case
    bits = direct.data(rng, n, count, dtype)
    want = direct.all_reduce(bits, dtype, op)
    result = comm.all_reduce([direct.as_array(b.copy(), dtype) for b in bits], dtype=dtype, op=op, in_place=in_place, **kw)
    for rank, out in enumerate(result.outputs):
        wrong = np.flatnonzero(direct.words(out) != want)
        assert not wrong.size, f"{case}: rank {rank}: {wrong.size} of {count} words wrong, first at {wrong[0]}"
    if comm.last and comm.device.kind == "rtl" and count and not in_place:
        for rank, b in enumerate(bits):
            region = comm.last.map.input
            assert (comm.device.mem_read(rank, region.base, region.size) == b.view(np.uint8)).all(), f"{case}: rank {rank}: input changed"
    return result


def holes(comm: Communicator) -> list[tuple[int, int]]:
    """Bytes of a node that belong to nothing: between the regions, and a stretch behind the last."""
    where = comm.last.map
    used = sorted((r.base, r.base + r.size) for r in (*where.rings, where.completions, where.output, where.input, where.scratch))
    ends = [*(b for b, _ in used[1:]), where.end + 8192]
    top, out = 0, []
    for (_, end), nxt in zip(used, ends):
        top = max(top, end)
        if nxt > top:
            out.append((top, nxt - top))
    return out


def check(case: Case, rtl: Device, golden: Device) -> None:
    """Twice with new data, the second time with guard bytes around everything; and once more on the golden device."""
    n, dtype, op, count, in_place = case
    with Communicator(rtl, n) as comm, Communicator(golden, n) as reference:
        run(comm, case, np.random.default_rng(count + 1))
        if not count:
            return
        for rank in range(n):
            for at, size in holes(comm):
                rtl.mem_write(rank, at, np.full(size, GUARD, np.uint8))
        for rank in range(n, NODES):
            rtl.mem_write(rank, 0, np.full(1 << 16, GUARD, np.uint8))
        got = run(comm, case, np.random.default_rng(count))
        same = run(reference, case, np.random.default_rng(count))
        assert all((direct.words(a) == direct.words(b)).all() for a, b in zip(got.outputs, same.outputs)), case
        assert got.wqes == same.wqes and got.cycles > 0
        for rank in range(n):
            for at, size in holes(comm):
                assert (rtl.mem_read(rank, at, size) == GUARD).all(), f"{case}: rank {rank}: bytes changed in {at:#x} … +{size:#x}"
        for rank in range(n, NODES):
            assert (rtl.mem_read(rank, 0, 1 << 16) == GUARD).all(), f"{case}: node {rank} has no rank and changed"
        quiet = ("nic_retransmits", "nic_duplicates", "nic_rx_dropped", "nic_naks")
        assert not any(c[k] for c in got.counters for k in quiet), f"{case}: {got.counters}"


def test_covering_set_covers() -> None:
    assert len(covering()) < 80
    for n in range(1, NODES + 1):
        assert {(c[1], c[2]) for c in covering()} == set(COMBOS) and {c[3] for c in covering() if c[0] == n} == set(counts(n))


@pytest.mark.parametrize("ranks", range(1, NODES + 1))
def test_bits(ranks: int, rtl: Device, golden: Device) -> None:
    for case in covering():
        if case[0] == ranks:
            check(case, rtl, golden)


@pytest.mark.long
@pytest.mark.parametrize("ranks", range(1, NODES + 1))
def test_bits_whole_grid(ranks: int, rtl: Device, golden: Device) -> None:
    for case in GRID:
        if case[0] == ranks:
            check(case, rtl, golden)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bandwidth_of_one_mebibyte(dtype: str, rtl: Device) -> None:
    with Communicator(rtl, 4) as comm:
        result = run(comm, (4, dtype, "sum", (1 << 20) // direct.ITEMSIZE[dtype], False), np.random.default_rng(1))
    assert result.percent_of_bound >= 90, f"{result.cycles} cycles, bound {result.bound_cycles}"


def test_large_prime_count_on_five_ranks(rtl: Device) -> None:
    with Communicator(rtl) as comm:
        run(comm, (NODES, "bfloat16", "avg", 100003, True), np.random.default_rng(2))


# -- stalls and faults ----------------------------------------------------------------------------------------------


def disturbed(seed: int, stalls: float, faults: dict[str, float], cases: list[Case]) -> dict[str, int]:
    """Run `cases` on a disturbed device; sums of the counters."""
    rng, total = np.random.default_rng(seed), {}
    with open_device("rtl", PARAMS, seed=seed, stalls=stalls, faults=faults) as device:
        for case in cases:
            with Communicator(device, case[0]) as comm:
                for counters in run(comm, case, rng).counters:
                    for k, v in counters.items():
                        total[k] = total.get(k, 0) + v
    return total


def some_cases(seed: int, n: int, largest: int = 50021) -> list[Case]:
    rng = np.random.default_rng(seed)
    sizes = [c for c in (5, 129, 1009, 10007, 50021) if c <= largest]
    return [
        (int(rng.integers(2, NODES + 1)), *COMBOS[rng.integers(len(COMBOS))], int(rng.choice(sizes)), bool(rng.integers(2)))
        for _ in range(n)
    ]


@pytest.mark.parametrize("seed,stalls", [(1, 0.05), (2, 0.3)])
def test_stalls(seed: int, stalls: float) -> None:
    disturbed(seed, stalls, {"dup": LEAST}, some_cases(seed, 6, 10007))


MEASURE: Case = (4, "float32", "sum", 50021, False)


@pytest.mark.parametrize("kind,shows", [
    ("drop", ("nic_retransmits",)), ("dup", ("nic_duplicates",)), ("reorder", ("nic_naks", "nic_retransmits")),
    ("corrupt", ("nic_rx_dropped", "nic_retransmits")),
])
def test_each_fault(kind: str, shows: tuple[str, ...]) -> None:
    total = disturbed(11, LEAST, {kind: 0.01}, [MEASURE])
    assert all(total[k] for k in shows), total


@pytest.mark.parametrize("seed,rate,stalls", [(21, 0.01, LEAST), (22, 0.02, 0.1)])
def test_all_faults_together(seed: int, rate: float, stalls: float) -> None:
    total = disturbed(seed, stalls, dict.fromkeys(KINDS, rate), [*some_cases(seed, 4), MEASURE])
    assert all(total[k] for k in ("nic_retransmits", "nic_duplicates", "nic_rx_dropped")), total


@pytest.mark.long
@pytest.mark.parametrize("stalls", [0.05, 0.15, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_stalls_alone(seed: int, stalls: float) -> None:
    total = disturbed(seed, stalls, {}, some_cases(seed, 10))
    assert not total["nic_duplicates"] and not total["nic_rx_dropped"], total


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, "all"])
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.02, 0.1])
def test_faults_alone(kind: str, rate: float) -> None:
    faults = dict.fromkeys(KINDS if kind == "all" else [kind], rate)
    big = [] if rate > 0.02 else [(4, "bfloat16", "sum", 1 << 19, False)]
    seen: dict[str, int] = {}
    for seed in range(3):
        for k, v in disturbed(seed, 0, faults, [*big, *some_cases(seed, 6)]).items():
            seen[k] = seen.get(k, 0) + v
    assert seen["nic_duplicates" if kind == "dup" else "nic_retransmits"], seen
    assert kind in ("dup", "reorder") or rate < 0.01 or seen["nic_retransmits"] > 3, seen


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_link_too_bad_ends_in_an_error_or_in_the_right_bits(seed: int) -> None:
    rng, failed = np.random.default_rng(seed), 0
    with open_device("rtl", PARAMS, seed=seed, faults={"drop": 0.45, "dup": 0.4, "reorder": 0.4}) as device:
        for case in some_cases(seed, 6, 10007):
            try:
                with Communicator(device, case[0]) as comm:
                    run(comm, case, rng)
            except CollectiveTimeout:
                raise
            except CollectiveError as e:
                assert "RETRY_EXC_ERR" in str(e), e
                failed += 1
    assert failed < 6


def test_a_dead_link_runs_out_of_retries() -> None:
    with open_device("rtl", PARAMS, stalls=LEAST, faults={"drop": 0.9999}) as device:
        for _ in range(2):
            start, p = device.cycles, PARAMS.node.nic
            with pytest.raises(CollectiveError, match="rank . channel 0: send of chunk .* ended in RETRY_EXC_ERR"):
                Communicator(device, 2).all_reduce([np.ones(100, np.float32)] * 2)
            assert device.cycles - start < (p.retries + 1) * p.timeout + PROMPT


# -- errors ---------------------------------------------------------------------------------------------------------


def works(device: Device, ranks: int = 4) -> None:
    """A new communicator gives the right bits."""
    with Communicator(device, ranks) as comm:
        run(comm, (ranks, "float32", "sum", 1009, False), np.random.default_rng(9))


def test_a_dead_queue_pair(rtl: Device) -> None:
    comm = Communicator(rtl, 4)
    run(comm, (4, "int32", "max", 129, False), np.random.default_rng(0))
    rtl.write_reg(1, "qp_state", FIRST_QP, int(QpState.ERR))
    start = rtl.cycles
    with pytest.raises(CollectiveError, match="collective 1 .* rank 1 channel 0: .* ended in WR_FLUSH_ERR"):
        run(comm, (4, "int32", "max", 129, False), np.random.default_rng(0))
    assert rtl.cycles - start < PROMPT
    with pytest.raises(CollectiveError, match="aborted"):
        run(comm, (4, "int32", "max", 129, False), np.random.default_rng(0))
    works(rtl)


@pytest.mark.parametrize("region,what", [("scratch", "recv"), ("input", "send")])
def test_memory_that_is_not_registered(region: str, what: str, rtl: Device) -> None:
    comm = Communicator(rtl, 4)
    case = (4, "float32", "sum", 5003, False)
    run(comm, case, np.random.default_rng(0))
    rtl.write_reg(2, "mr_size", comm.executor.mrs[2][region].index, 0)
    start, at = rtl.cycles, f"{region}[+]\\d+ at 0x[0-9a-f]+"
    with pytest.raises(CollectiveError, match=f"failed: rank 2 channel .: {what} of chunk .* {at}, ended in LOC_PROT_ERR") as e:
        run(comm, case, np.random.default_rng(0))
    assert rtl.cycles - start < PROMPT and "node 2: events " in e.value.state and "state 0001" in e.value.state
    assert "RETRY" not in str(e.value) and "flush did not end" not in comm.broken
    works(rtl)


def test_mismatch_is_found_before_anything_runs(rtl: Device) -> None:
    with Communicator(rtl, 3) as comm:
        run(comm, (3, "float32", "sum", 129, False), np.random.default_rng(0))
        before = rtl.cycles
        with pytest.raises(MismatchError, match="count differs"), comm.group():
            for r in range(3):
                comm.rank(r).all_reduce(np.zeros(8 + (r == 1), np.float32))
        with pytest.raises(MismatchError, match=r"rank\(s\) 1 did not call"), comm.group():
            for r in (0, 2):
                comm.rank(r).all_reduce(np.zeros(8, np.float32))
        assert rtl.cycles == before
        run(comm, (3, "float32", "sum", 129, False), np.random.default_rng(1))


def test_a_rank_that_does_not_come(rtl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its doorbell is never rung: the others wait for it until the deadline, and the error names it and shows the queues."""
    comm = Communicator(rtl, 4)
    run(comm, (4, "float32", "sum", 129, False), np.random.default_rng(0))
    queue = comm.executor.wqs[2][0]
    kept, ring, abort = [], queue.doorbell, comm.abort
    monkeypatch.setattr(queue, "doorbell", lambda n=None: kept.append(ring(n)) or (2, "wq_tail", 0, before))
    before = rtl.read_reg(2, "wq_tail", 0)
    monkeypatch.setattr(comm, "abort", lambda why: (rtl.write_regs(kept), abort(why))[1])  # it comes when all is over
    with pytest.raises(CollectiveTimeout, match=r"not done within 20000 cycles; not done: .*rank 2 \(1 of 1 queues\)") as e:
        run(comm, (4, "float32", "sum", 129, False), np.random.default_rng(0), deadline=20000)
    state = e.value.state
    assert re.search(r"node 0: events \d+ of \d+, .*\n    queue 0: \d+ of \d+ WQEs done, state 0010", state), state
    assert "nic_naks" in state.split("node 2:")[1].split("node 3:")[0], state  # it had no receives
    assert "flush did not end" not in comm.broken
    works(rtl)


@pytest.mark.parametrize("deadline", [150, 400, 700, 1500])
def test_deadline(deadline: int, rtl: Device) -> None:
    comm = Communicator(rtl, 4)
    with pytest.raises(CollectiveTimeout, match=f"not done within {deadline} cycles; not done: rank 0") as e:
        run(comm, (4, "float32", "sum", 40009, False), np.random.default_rng(0), deadline=deadline)
    for node in range(4):
        assert f"node {node}: events " in e.value.state
    assert "queue 3: " in e.value.state and "WQEs done, state" in e.value.state
    assert "flush did not end" not in comm.broken
    works(rtl)


def test_a_message_longer_than_its_receive(rtl: Device) -> None:
    with Communicator(rtl, 2) as comm:
        run(comm, (2, "float32", "sum", 129, False), np.random.default_rng(0))
        a, b = comm.executor.wqs[0][0], comm.executor.wqs[1][0]
        send, recv = comm.executor.qps[0][0, 0, 1], comm.executor.qps[1][0, 1, 0]
        out, source = comm.executor.mrs[1]["output"], comm.executor.mrs[0]["input"]
        before = rtl.mem_read(1, out.addr, out.length)
        b.post(opcode=Op.RECV, qpn=recv.qpn, addr_d=out.addr, length=64, lkey=out.lkey, flags=int(Flag.SIGNALED | Flag.EVENT))
        a.post(opcode=Op.SEND, qpn=send.qpn, addr_a=source.addr, length=65, lkey=source.lkey, flags=int(Flag.SIGNALED | Flag.EVENT))
        want = [e + (r < 2) for r, e in enumerate(rtl.read_regs([(r, "event", 0) for r in range(NODES)]))]
        rtl.run(want, 50000)
        (sent,), (got,) = comm.executor.cqs[0].poll(), comm.executor.cqs[1].poll()
        assert (sent.status, got.status) == (Status.REM_INV_REQ_ERR, Status.LOC_LEN_ERR)
        assert (send.state, recv.state) == (QpState.ERR, QpState.ERR) and out.access == Access.LOCAL_WRITE
        assert (rtl.mem_read(1, out.addr, out.length) == before).all()
    works(rtl, 2)


@pytest.mark.parametrize("reused", [True, False])
def test_packets_of_a_closed_connection(reused: bool, rtl: Device) -> None:
    """Close and open again while packets are under way: they are ignored; they would not be if the first PSN came again."""
    data, n, rng = 0x100000, 4 * PARAMS.node.nic.mtu, np.random.default_rng(8)
    old, new = rng.integers(0, 256, (2, n), dtype=np.uint8)
    nodes = [Context(rtl, i) for i in range(2)]
    wqs = [[c.create_wq(q, 0x1000 * q, 16) for q in range(2)] for c in nodes]  # a closed connection leaves its work queue in error
    cqs = [c.create_cq(0x4000, 64) for c in nodes]
    pds = [c.alloc_pd() for c in nodes]
    mrs = [pd.reg_mr(data, 1 << 20, int(Access.LOCAL_WRITE)) for pd in pds]
    a, b = (pd.create_qp(3, w[0]) for pd, w in zip(pds, wqs))
    connect([(a, b)])
    psn = rtl.read_reg(0, "qp_sq_psn", 3)
    rtl.mem_write(0, data, np.concatenate([old, new]))
    for i in range(2):
        here = {"qpn": 3, "length": n, "flags": int(Flag.SIGNALED | Flag.EVENT), "wr_id": i}
        wqs[0][i].stage(WQE.to_bytes({"opcode": Op.SEND, "addr_a": data + i * n, "lkey": mrs[0].lkey, **here}))
        wqs[1][i].stage(WQE.to_bytes({"opcode": Op.RECV, "addr_d": data, "lkey": mrs[1].lkey, **here}))
    rtl.write_regs([wqs[1][0].doorbell()])
    rtl.read_regs([(1, "id", 0)] * 8)
    sent, got = (rtl.read_reg(i, f"nic_{k}_packets") for i, k in enumerate(("tx", "rx")))
    events = rtl.read_regs([(i, "event", 0) for i in range(NODES)])
    rtl.write_regs([wqs[0][0].doorbell()])
    under_way = (rtl.read_reg(0, "nic_tx_packets") != sent for _ in range(200))
    assert any(under_way), "the first packet did not leave"
    rtl.psns.left[0, 3] = rtl.psns.left[1, 3] = (psn, psn)  # what QueuePair.modify(RESET) keeps; here there is no time to ask
    again = psn if reused else rtl.psns.next([(0, 3), (1, 3)])
    for i in (1, 0):  # at once, on both: reset, set up, post
        values = (("state", QpState.RESET), ("state", QpState.INIT), ("dest_node", 1 - i), ("dest_qp", 3), ("rq_psn", again),
                  ("state", QpState.RTR), ("sq_psn", again), ("state", QpState.RTS))
        rtl.write_regs([*((i, f"qp_{k}", 3, int(v)) for k, v in values), wqs[i][1].doorbell()])
    assert rtl.read_reg(1, "nic_rx_packets") == got, "the old packets were there before the new connection"
    rtl.run([e + (2 if i < 2 else 0) for i, e in enumerate(events)], 50_000)
    ends = [{c.wr_id: c.status for c in cq.poll()} for cq in cqs]
    right = (rtl.mem_read(1, data, n) == new).all()
    rtl.write_regs([(i, "qp_state", 3, int(QpState.RESET)) for i in range(2)])
    assert rtl.read_reg(1, "nic_rx_packets") - got > 4, "no packet of the old connection came"
    assert right != reused and ends[0][1] == Status.SUCCESS
    if not reused:
        assert ends == [{0: Status.WR_FLUSH_ERR, 1: Status.SUCCESS}] * 2
    works(rtl)


def test_first_psns_are_the_same_on_every_device(golden: Device) -> None:
    def opened(device: Device) -> list[list[int]]:
        out = []
        for n in (2, 4, 1, 3):
            with Communicator(device, n) as comm:
                comm.all_reduce([np.ones(1000, np.float32)] * n)
                out.append([device.read_reg(r, f"qp_{k}_psn", q.qpn) for r in range(n) for q in comm.executor.qps[r].values() for k in ("sq", "rq")])
        return out

    with open_device("rtl", PARAMS) as rtl, open_device("golden", PARAMS) as model:
        assert opened(rtl) == opened(model) and rtl.psns.k == model.psns.k == 3


# -- the executor ---------------------------------------------------------------------------------------------------


def test_systems_of_one_build_side_by_side(rtl: Device) -> None:
    """Made and closed in any order, each with its own memory and clock."""
    a, b, c = (open_device("rtl", PARAMS) for _ in range(3))
    works(c)
    works(a)
    b.close()
    works(a)
    a.close()
    b = open_device("rtl", PARAMS)
    works(b)
    assert b.cycles == c.cycles
    c.close()
    works(b)
    b.close()
    b.close()
    works(rtl)


def incast(device: Device, length: int) -> tuple[int, list[int]]:
    """Nodes 0 and 1 send `length` bytes to node 0 at the same time, so that its link pushes back; cycles, and what each node counted."""
    data, rng = 0x100000, np.random.default_rng(length)
    nodes = [Context(device, i) for i in range(2)]
    pds, wqs = [c.alloc_pd() for c in nodes], [c.create_wq(0, 0, 16) for c in nodes]
    cqs = [c.create_cq(0x1000, 64) for c in nodes]
    mrs = [pd.reg_mr(data, 1 << 20, int(Access.LOCAL_WRITE)) for pd in pds]
    to0, at0, loop, back = (pds[n].create_qp(q, wqs[n]) for n, q in ((1, 0), (0, 0), (0, 1), (0, 2)))
    connect([(to0, at0), (loop, back)], psn=0xFFFFF8)
    x = rng.integers(0, 256, (2, length), dtype=np.uint8)
    for n in range(2):
        device.mem_write(n, data, x[n])
    before = device.read_regs([(n, "event", 0) for n in range(2)])
    here = {"lkey": mrs[0].lkey, "length": length, "flags": int(Flag.SIGNALED | Flag.EVENT)}
    for qp, at in ((at0, data + (1 << 18)), (back, data + (1 << 19))):
        wqs[0].stage(WQE.to_bytes({"opcode": Op.RECV, "qpn": qp.qpn, "addr_d": at, **here}))
    device.write_regs([wqs[0].doorbell()])
    device.read_regs([(0, "id", 0)])  # the receives are there before anything is sent
    for n, qp in ((0, loop), (1, to0)):
        wqs[n].stage(WQE.to_bytes({"opcode": Op.SEND, "qpn": qp.qpn, "addr_a": data, **here, "lkey": mrs[n].lkey}))
    device.write_regs([wqs[0].doorbell(), wqs[1].doorbell()])
    cycles = device.run([before[0] + 3, before[1] + 1], 400_000)
    assert all(c.status == Status.SUCCESS for cq in cqs for c in cq.poll())
    assert (device.mem_read(0, data + (1 << 18), length) == x[1]).all() and (device.mem_read(0, data + (1 << 19), length) == x[0]).all()
    return cycles, device.read_regs([(n, r, 0) for n in range(2) for r in COUNTERS])


@pytest.mark.long
@pytest.mark.parametrize("seed,stalls,faults", [(0, 0.0, {}), (3, 0.2, dict.fromkeys(KINDS, 0.03)), (4, 0.75, {"dup": LEAST})])
def test_executor_equals_one_verilog_design(
    seed: int, stalls: float, faults: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stations and switch joined in C++ take every event in the same cycle, with the same counters, as the system as one design."""
    def story() -> list[object]:
        rng, out = np.random.default_rng(5), []
        with open_device("rtl", config("tiny").replace(nodes=2), seed=seed, stalls=stalls, faults=faults) as device:
            for n in (2, 1):
                with Communicator(device, n) as comm:
                    for dtype, op, count in (("float32", "sum", 5), ("bfloat16", "avg", 3001), ("int32", "min", 20011), ("float16", "max", 129)):
                        result = run(comm, (n, dtype, op, count, False), rng)
                        out.append((result.cycles, device.cycles, result.counters))
            out.append((*incast(device, 1 << 17), device.cycles))
            comm = Communicator(device)
            comm.all_reduce([np.zeros(99, np.float32)] * 2)
            device.write_reg(1, "mr_size", comm.executor.mrs[1]["input"].index, 0)
            with pytest.raises(CollectiveError, match="LOC_PROT_ERR") as e:
                comm.all_reduce([np.zeros(99, np.float32)] * 2)
            out.append((str(e.value), device.cycles))
        return out

    here = story()
    monkeypatch.setattr(executor, "library", monolith.library)
    assert story() == here
    assert service.Executor is executor.Executor
    assert len(faults) < 2 or any(c["nic_retransmits"] for _, _, counters in here[:-2] for c in counters)
