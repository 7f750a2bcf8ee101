"""Groups, messages, splits, shrink, abort, the journal; lists of sizes; what ranks may disagree on."""
from __future__ import annotations

import logging

import numpy as np
import pytest

from hccl.communicator import Communicator
from hccl.devices import open_device
from hccl.errors import CollectiveError, CollectiveTimeout, MismatchError, PlanError, UsageError
from hccl.journal import DEPTH
from spec.params import config

TINY = config("tiny")


def ranks(n: int, seed: int | None = None) -> Communicator:
    p = TINY.replace(nodes=n, switch=TINY.switch.replace(ports=max(n, 4)))
    return Communicator(open_device("golden", p, seed=seed))


def vectors(n: int, count: int = 8) -> list[np.ndarray]:
    return [np.arange(count, dtype=np.float32) + 10 * r for r in range(n)]


# -- lists of sizes -------------------------------------------------------------------------------------------------


def test_uneven_all_to_all() -> None:
    comm = ranks(3)
    table = [[3, 2, 1], [2, 2, 2], [1, 2, 3]]
    x = [np.arange(6, dtype=np.int64) + 100 * r for r in range(3)]
    out = comm.all_to_all_v(x, table, recv_splits=[list(column) for column in zip(*table, strict=True)]).outputs
    assert [o.tolist() for o in out] == [[0, 1, 2, 100, 101, 200], [3, 4, 102, 103, 201, 202], [5, 104, 105, 203, 204, 205]]


@pytest.mark.parametrize("table,match", [
    ([[3, 2, 1], [2, 2, 2], [1, 2, 4]], r"rank 2: all_to_all_v: splits \[1, 2, 4\] are 7 elements, sendbuf has 6"),
    ([[3, 2, 1], [7, -3, 2], [1, 2, 3]], r"rank 1: all_to_all_v: send_splits\[1\] of \[7, -3, 2\] = -3; expected an integer of at least 0"),
    ([[3, 3], [2, 2, 2], [1, 2, 3]], r"rank 0: all_to_all_v: send_splits = \[3, 3\]; expected 3 sizes, one per rank"),
    ([[3, 2, 1], [2, 2, 2], [1, 2.0, 3]], r"rank 2: all_to_all_v: send_splits\[1\].* = 2.0; expected an integer"),
])  # fmt: skip
def test_lists_of_sizes_are_checked(table: list, match: str) -> None:
    comm = ranks(3)
    with pytest.raises(UsageError, match=match):
        comm.all_to_all_v([np.zeros(6, np.float32)] * 3, table)


def test_contradicting_lists_name_both_ranks() -> None:
    comm = ranks(2)
    with pytest.raises(MismatchError, match=r"rank 1 expects 2 elements from rank 0 \(recv_splits \[2, 1\]\), which sends 1 \(send_splits \[1, 1\]\)"):
        comm.all_to_all_v([np.zeros(2, np.float32)] * 2, [[1, 1], [1, 1]], recv_splits=[[1, 1], [2, 1]])
    with pytest.raises(MismatchError, match=r"rank 1 says splits \[2, 3\]; the ranks give \[2, 2\]"), comm.group():
        comm.rank(0).all_gather_v(np.zeros(2, np.float32))
        comm.rank(1).all_gather_v(np.zeros(2, np.float32), splits=[2, 3])
    with pytest.raises(UsageError, match="reduce_scatter: sendbuf has 3 elements; expected a multiple of 2"):
        comm.reduce_scatter([np.zeros(3, np.float32)] * 2)
    with pytest.raises(UsageError, match="rank 1: all_gather: recvbuf has 3 elements; expected 4"):
        comm.all_gather([np.zeros(2, np.float32)] * 2, [np.zeros(4, np.float32), np.zeros(3, np.float32)])
    with pytest.raises(PlanError, match="all_to_all in place with splits .*; expected as much from s to d as from d to s"):
        ranks(3).all_to_all_v([np.zeros(3, np.float32) for _ in range(3)], [[0, 1, 2], [2, 0, 1], [1, 2, 0]], in_place=True)


# -- in place -------------------------------------------------------------------------------------------------------


def test_gather_in_place_is_block_r_on_every_rank() -> None:
    comm, n = ranks(4), 4
    for form in range(2):  # said, or seen from where the arrays lie
        whole = [np.full(12, -1.0, np.float32) for _ in range(n)]
        for r, w in enumerate(whole):
            w[3 * r : 3 * r + 3] = [r, r + 0.5, -r]
        want = np.concatenate([w[3 * r : 3 * r + 3] for r, w in enumerate(whole)])
        if form:
            comm.all_gather([w[3 * r : 3 * r + 3] for r, w in enumerate(whole)], whole)
            assert comm.last.map.input is comm.last.map.output
        else:
            comm.all_gather(whole, in_place=True)
        assert all((w == want).all() for w in whole)
    with pytest.raises(UsageError, match="rank 0: all_gather: recvbuf overlaps sendbuf; expected none of it, or block 0 exactly"):
        comm.all_gather([w[1:4] for w in whole], whole)
    with pytest.raises(MismatchError, match=r"in_place differs: rank\(s\) 0, 1, 2: True; rank\(s\) 3: False"):
        comm.all_gather([*(w[3 * r : 3 * r + 3] for r, w in enumerate(whole[:3])), np.zeros(3, np.float32)], whole)


def test_scatter_in_place_leaves_the_rest() -> None:
    comm, n = ranks(3), 3
    x = vectors(n, 9)
    before = [v.copy() for v in x]
    out = comm.reduce_scatter(x, in_place=True).outputs
    for r in range(n):
        s = slice(3 * r, 3 * r + 3)
        assert (x[r][s] == sum(b[s] for b in before)).all() and np.shares_memory(out[r], x[r])
        x[r][s] = before[r][s]
        assert (x[r] == before[r]).all()
    with pytest.raises(UsageError, match="expected a contiguous one"):
        comm.reduce_scatter([v[::2] for v in vectors(n, 18)], in_place=True)


# -- types ----------------------------------------------------------------------------------------------------------


def test_integer_averages_count_ranks_and_truncate() -> None:
    comm = ranks(2)
    assert comm.all_reduce([np.array([3, -3, 5], np.int32), np.array([4, -4, 5], np.int32)], op="avg").outputs[0].tolist() == [3, -3, 5]
    assert comm.all_reduce([np.array([120], np.int8), np.array([100], np.int8)]).outputs[1].tolist() == [-36]
    assert comm.all_reduce([np.array([255], np.uint8), np.array([255], np.uint8)], op="avg").outputs[1].tolist() == [127]  # wraps first


def test_bool_and_factors() -> None:
    comm = ranks(2)
    assert comm.all_reduce([np.array([True, False]), np.array([True, True])]).outputs[0].tolist() == [True, True]
    x = [np.array([0x3F80, 0x4000], np.uint16)] * 2  # 1, 2
    assert comm.all_reduce(x, dtype="bfloat16", op="premul_sum", factor=0.5).outputs[0].tolist() == [0x3F80, 0x4000]
    for factor, dtype, match in ((None, "float32", "without a factor"), ("2", "float32", "expected a finite real"), (1.5, "int32", "factor of int32 = 1.5"),
                                 (300, "int8", "from -128 to 127"), (float("nan"), "float16", "expected a finite real")):  # fmt: skip
        with pytest.raises(UsageError, match=match):
            comm.all_reduce([np.zeros(2, dtype)] * 2, op="premul_sum", factor=factor)
    with pytest.raises(UsageError, match="factor = 2 with op 'sum'"):
        comm.all_reduce(vectors(2), factor=2)
    with pytest.raises(UsageError, match="sum of float4_e2m1fn_x2 is not supported; expected a collective that only moves it"):
        comm.all_reduce([np.zeros(4, np.uint8)] * 2, dtype="float4_e2m1fn_x2")


def test_reductions_of_the_host_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    comm = ranks(3)
    with caplog.at_level(logging.DEBUG, "hccl"):
        result = comm.reduce([v.astype(np.int64) for v in vectors(3)], op="band", root=1)
    assert (result.host_ops, result.host_bytes) == (2, 2 * 64) and "band of int64: 2 reductions (128 bytes) by the host" in caplog.text
    assert comm.all_reduce(vectors(3), op="avg").host_ops == 0


# -- messages -------------------------------------------------------------------------------------------------------


def test_messages() -> None:
    comm = ranks(3)
    x, y = vectors(3, 5), [np.zeros((5, 2), np.float32) for _ in range(3)]
    small, got, own = np.array([7], np.int8), np.array([0], np.int8), np.zeros(5, np.float32)
    with comm.group() as group:
        for r in range(3):
            comm.rank(r).recv(y[r][:, 1], (r - 1) % 3)
            comm.rank(r).send(x[r], (r + 1) % 3)
            comm.rank(r).all_reduce(x[r])
        comm.rank(0).send(small, 1)  # the second from 0 to 1
        comm.rank(1).recv(got, 0)
        comm.rank(2).send(x[2], 2)
        comm.rank(2).recv(own, 2)
    assert all((y[r][:, 1] == x[r - 1]).all() and not y[r][:, 0].any() for r in range(3)) and got[0] == 7 and (own == x[2]).all()
    assert [r.collective for r in group.results] == ["all_reduce", "send_recv"] and (group.results[0].outputs[0] == sum(x)).all()


def test_messages_that_do_not_meet() -> None:
    comm = ranks(3)
    x = vectors(3)
    cases = [
        (lambda: comm.rank(0).send(x[0], 2), r"rank 0 sends 1 message\(s\) to rank 2, which receives 0 from it"),
        (lambda: comm.rank(1).recv(x[1], 0), r"rank 0 sends 0 message\(s\) to rank 1, which receives 1"),
        (lambda: (comm.rank(0).send(x[0], 2), comm.rank(2).recv(x[2][:4], 0)), "message 0 from rank 0 to rank 2 differs: rank 0 sends 8 of float32, rank 2 expects 4"),
        (lambda: (comm.rank(0).send(x[0], 2), comm.rank(2).recv(x[2].astype(np.int32), 0)), "expects 8 of int32"),
    ]  # fmt: skip
    for calls, match in cases:
        with pytest.raises(MismatchError, match=match), comm.group():
            calls()
    for call, match in ((lambda: comm.rank(0).send(x[0], 3), "rank 0: send: peer = 3"), (lambda: comm.rank(0).recv([1], 1), "list is not an array")):
        with comm.group(), pytest.raises(UsageError, match=match):
            call()
    with pytest.raises(UsageError, match="rank 0: send outside a group would wait"):
        comm.rank(0).send(x[0], 1)


def test_mismatches_of_other_collectives() -> None:
    comm = ranks(3)
    a, b, c = vectors(3)
    every: list = [
        ([lambda r: r.broadcast(a, root=0), lambda r: r.broadcast(None, root=0), lambda r: r.broadcast(None, root=1)], r"rank 2.*sendbuf|root differs: rank\(s\) 0, 1: 0; rank\(s\) 2: 1"),
        ([lambda r: r.all_reduce(a), lambda r: r.broadcast(b), lambda r: r.all_reduce(c)], r"collective differs: rank\(s\) 0, 2: all_reduce; rank\(s\) 1: broadcast"),
        ([lambda r: r.all_gather(a), lambda r: r.all_gather(b[:7]), lambda r: r.all_gather(c)], r"count differs: rank\(s\) 0, 2: 8; rank\(s\) 1: 7"),
        ([lambda r: r.reduce_scatter_v(a, [4, 4, 0]), lambda r: r.reduce_scatter_v(b, [4, 3, 1]), lambda r: r.reduce_scatter_v(c, [4, 4, 0])],
         r"splits differs: rank\(s\) 0, 2: \(4, 4, 0\); rank\(s\) 1: \(4, 3, 1\)"),
        ([lambda r: r.barrier(), lambda r: r.barrier(), lambda r: None], r"rank\(s\) 2 did not call barrier"),
        ([lambda r: r.broadcast(a), lambda r: r.broadcast(None, np.zeros(9, np.float32)), lambda r: r.broadcast(None)], r"count differs: rank\(s\) 0: 8; rank\(s\) 1: 9"),
    ]  # fmt: skip
    for calls, match in every:
        with pytest.raises((MismatchError, UsageError), match=match), comm.group():
            for r, call in enumerate(calls):
                call(comm.rank(r))
    comm.barrier()
    assert comm.seq == 1


# -- parts of a communicator ----------------------------------------------------------------------------------------


def test_overlapping_parts_take_turns() -> None:
    comm = ranks(8)
    upper = comm.split([None] * 4 + [0] * 4)[0]
    rows, columns = comm.split([r // 4 for r in range(8)]), comm.split([r % 4 for r in range(8)])
    for turn in range(3):
        for part in (comm, upper, *rows.values(), comm, *columns.values()):
            x = vectors(part.nranks, 700 + turn)
            assert all((o == sum(x)).all() for o in part.all_reduce(x, algorithm=("ring", "tree", "halving_doubling")[turn]).outputs)
            part.barrier()
    assert upper.nodes == (4, 5, 6, 7) and rows[1].nranks == 4 and columns[3].nodes == (3, 7)


def test_keys_order_the_ranks() -> None:
    comm = ranks(4)
    part = comm.split([0] * 4, keys=[3, 1, 2, 1])[0]
    assert part.nodes == (1, 3, 2, 0)
    x = vectors(4)
    assert [o[0] for o in part.scatter([np.arange(4.0), None, None, None]).outputs] == [0, 1, 2, 3]
    assert (part.reduce(x, root=2).outputs[2] == sum(x)).all()
    for kw, match in (({"colors": [0, 1]}, "colors = .*; expected one per rank, 4"), ({"colors": [0] * 4, "keys": [1]}, "keys")):
        with pytest.raises(UsageError, match=match):
            comm.split(**kw)


def test_a_part_fails_for_itself_and_the_rest_goes_on() -> None:
    comm = ranks(4)
    left, right = comm.split([0, 0, 1, 1]).values()
    left.all_reduce(vectors(2))
    with pytest.raises(CollectiveTimeout, match="not done within 5 steps") as e:
        left.all_reduce(vectors(2, 5000), deadline=5)
    assert "recent operations:\n  rank 0:\n    0: all_reduce sum float32 count 8 by ring: done\n    1: all_reduce sum float32 count 5000 by ring: timed out" in e.value.state
    with pytest.raises(CollectiveError, match="was aborted"):
        left.barrier()
    for part in (right, comm, left.shrink([1]), comm.shrink([0])):
        x = vectors(part.nranks, 999)
        assert all((o == sum(x)).all() for o in part.all_reduce(x).outputs)
    assert comm.shrink([0, 2]).nodes == (1, 3)
    with pytest.raises(UsageError, match="all 4 ranks are excluded"):
        comm.shrink(range(4))
    comm.close()
    with pytest.raises(CollectiveError, match="the communicator was closed"):
        right.all_reduce(vectors(2))


def test_the_journal_keeps_the_last() -> None:
    comm = ranks(2)
    for _ in range(DEPTH + 3):
        comm.broadcast(vectors(2, 3), root=1)
    rows = comm.journal.entries
    assert [e.seq for e in rows[1]] == list(range(3, DEPTH + 3)) and str(rows[0][-1]) == f"{DEPTH + 2}: broadcast float32 count 3 root 1 by tree: done"


# -- choice ---------------------------------------------------------------------------------------------------------


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    comm, x = ranks(3), vectors(3)
    for value, names in (("direct", ("direct", "direct")), ("all_reduce:tree", ("tree", "tree")), ("ring,all_reduce:two_step", ("two_step", "ring")),
                         ("halving_doubling", ("halving_doubling", "tree")), ("", ("ring", "tree"))):  # fmt: skip
        monkeypatch.setenv("HCCL_ALGO", value)
        assert (comm.all_reduce(x).algorithm, comm.broadcast(x).algorithm) == names, value
    assert comm.all_reduce(x, fixed_order=True).algorithm == "two_step"
    for value in ("rings", "all_reduce:gather", "all:ring", "gather:ring"):
        monkeypatch.setenv("HCCL_ALGO", value)
        with pytest.raises(UsageError, match="HCCL_ALGO"):
            comm.all_reduce(x)
    monkeypatch.delenv("HCCL_ALGO")
    with pytest.raises(UsageError, match="all_to_all: algorithm 'ring' is not known; expected one of direct"):
        comm.all_to_all(vectors(3, 9), algorithm="ring")
    for groups in ([[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], []], [[0, 1], [3]]):
        with pytest.raises(UsageError):
            comm.all_reduce(x, algorithm="hierarchical", groups=groups)
    uneven = comm.all_reduce(x, algorithm="hierarchical", groups=[[2], [1, 0]])
    assert (uneven.outputs[0] == sum(x)).all()


def test_direct_needs_a_queue_pair_for_every_peer() -> None:
    comm = ranks(10)
    with pytest.raises(UsageError, match="needs 18 queue pairs on rank 0; expected at most 14 "):
        comm.all_to_all(vectors(10, 10))
    assert (comm.all_reduce(vectors(10), algorithm="halving_doubling").outputs[9] == sum(vectors(10))).all()


def test_empty_arrays_of_every_collective() -> None:
    comm = ranks(3)
    for shape in ((0,), (3, 0), (0, 2)):
        x = [np.empty(shape, np.float32)] * 3
        for name in ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "gather", "scatter", "all_to_all"):
            result = getattr(comm, name)(x)
            assert result.cycles is None and all(o is None or not o.size for o in result.outputs), (name, shape)
