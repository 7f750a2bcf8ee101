"""The proof accepts every ring and finds every planted fault, naming rank, channel and operation."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl.algorithms.ranges import chunk_bounds
from hccl.algorithms.ring import all_reduce
from hccl.errors import PlanError, UsageError
from hccl.plan import ChunkOp, Plan, Ref
from hccl.proof import prove


def small(**kw: object) -> Plan:
    """Two channels, two slices each a chunk, three ranks."""
    args: dict = {"ranks": 3, "count": 3 * 4 * 16, "slice_size": 64, "channels": 2} | kw
    return all_reduce(**args)


def edit(plan: Plan, rank: int, channel: int, change: Callable[[list[ChunkOp]], None]) -> Plan:
    programs = [[list(ops) for ops in p] for p in plan.programs]
    change(programs[rank][channel])
    return dataclasses.replace(plan, programs=tuple(tuple(tuple(ops) for ops in p) for p in programs))


def find(ops: list[ChunkOp], kind: str, nth: int = 0) -> int:
    return [i for i, o in enumerate(ops) if o.kind == kind][nth]


def drop(ops: list[ChunkOp], at: int) -> None:
    """Remove an operation, and what depended on it depends on nothing instead."""
    del ops[at]
    for i, o in enumerate(ops):
        ops[i] = dataclasses.replace(o, deps=tuple(d - (d > at) for d in o.deps if d != at))


def change(**kw: object) -> Callable[[list[ChunkOp], int], None]:
    def do(ops: list[ChunkOp], at: int) -> None:
        ops[at] = dataclasses.replace(ops[at], **kw)

    return do


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 7), count=st.integers(0, 1500), dtype=st.sampled_from(["float32", "bfloat16"]),
    op=st.sampled_from(["sum", "avg"]), in_place=st.booleans(), channels=st.integers(1, 5),
    slots=st.integers(1, 8), lead=st.integers(1, 8), slice_size=st.sampled_from([None, 64, 128, 1024]),
    window=st.integers(5, 40), sq_depth=st.integers(1, 8),
)  # fmt: skip
def test_every_ring_is_proved(**kw: object) -> None:
    plan = all_reduce(**kw)  # type: ignore[arg-type]
    report = prove(plan)
    assert report.sq_depth <= plan.sq_depth and report.rq_depth <= plan.rq_depth
    assert Plan.from_json(plan.to_json()) == plan
    n = plan.ranks
    bounds = chunk_bounds(plan.nbytes, n)
    for start, end, text in report.expressions:
        c = next(i for i in range(n) if bounds[i] <= start < bounds[i + 1]) if n > 1 else 0
        want = f"x{c}"
        for k in range(1, n):
            want = f"({want} op x{(c + k) % n})"
        if n == 2:  # the two orders of two ranks are one expression
            assert text in ("(x0 op x1)", "(x1 op x0)")
        else:
            assert text == want and end == (bounds[c + 1] if n > 1 else plan.nbytes)


def fails(plan: Plan, match: str, *, rank: int | None = None, channel: int | None = None, index: int | None = None) -> PlanError:
    with pytest.raises(PlanError, match=match) as e:
        prove(plan)
    for name, want in (("rank", rank), ("channel", channel), ("index", index)):
        if want is not None:
            assert getattr(e.value, name) == want, str(e.value)
            assert f"{'op' if name == 'index' else name} {want}" in str(e.value)
    assert "expected" in str(e.value)
    return e.value


def test_the_base_of_the_faults_is_right() -> None:
    prove(small())
    prove(small(in_place=True, op="avg"))


def test_dropped_recv() -> None:
    plan = small()
    last = find(list(plan.programs[1][0]), "recv", -1)
    fails(edit(plan, 1, 0, lambda ops: drop(ops, last)), "has no recv: rank 1 posts", rank=0, channel=0)


def test_dropped_send() -> None:
    plan = small()
    last = find(list(plan.programs[2][1]), "send", -1)
    fails(edit(plan, 2, 1, lambda ops: drop(ops, last)), "has no send: rank 2 sends", rank=0, channel=1)


def test_swapped_recvs() -> None:
    def swap(ops: list[ChunkOp]) -> None:
        ops[0], ops[1] = ops[1], ops[0]

    fails(edit(small(), 1, 0, swap), "meets op .* of rank 0", rank=1, channel=0, index=0)


def test_swapped_sends() -> None:
    def swap(ops: list[ChunkOp]) -> None:
        i, j = find(ops, "send"), find(ops, "send", 1)
        ops[i], ops[j] = ops[j], ops[i]

    fails(edit(small(), 1, 0, swap), "meets op .* of rank 1", rank=2, channel=0)


def test_swapped_slots_are_found_by_value() -> None:
    """Both ends agree, but the data lands in each other's place."""
    def swap(ops: list[ChunkOp]) -> None:
        a, b = ops[0], ops[1]
        ops[0], ops[1] = dataclasses.replace(a, d=b.d, slot=b.slot), dataclasses.replace(b, d=a.d, slot=a.slot)

    fails(edit(small(), 1, 0, swap), "hazard: reads scratch", rank=1, channel=0)


def test_wrong_size() -> None:
    fails(edit(small(), 0, 0, lambda ops: change(length=32)(ops, 0)), "32 bytes", rank=0, channel=0, index=0)


def test_double_reduce() -> None:
    def twice(ops: list[ChunkOp]) -> None:
        i = find(ops, "reduce")
        ops.append(dataclasses.replace(ops[i], a=ops[i].d, slot=None, deps=(i,)))

    fails(edit(small(), 0, 0, twice), "contribution of rank 0 is counted twice", rank=0, channel=0)


def test_missing_contribution() -> None:
    def forget(ops: list[ChunkOp]) -> None:
        i = find(ops, "reduce")
        ops[i] = dataclasses.replace(ops[i], kind="copy", b=None)

    fails(edit(small(), 0, 0, forget), "lack the contribution of rank\\(s\\) 0")


def test_unwritten_output() -> None:
    """The last all-gather message lands in scratch instead."""
    plan = small()

    def away(ops: list[ChunkOp]) -> None:
        i = find(ops, "recv", -1)
        ops[i] = dataclasses.replace(ops[i], d=Ref("scratch", 0), slot=0, deps=())

    bad = edit(plan, 0, 0, away)
    fails(bad, "lack the contribution of rank\\(s\\) 1", rank=0)
    one = all_reduce(ranks=1, count=32)
    fails(dataclasses.replace(one, programs=(((),),)), "never written", rank=0)


def test_deadlock_names_every_rank() -> None:
    """Every rank waits for its first message before it sends."""
    plan = all_reduce(ranks=3, count=48, channels=1)

    def wait(ops: list[ChunkOp]) -> None:
        i = find(ops, "send")
        ops[i] = dataclasses.replace(ops[i], deps=(0,))

    for r in range(3):
        plan = edit(plan, r, 0, wait)
    e = fails(plan, "deadlock", rank=0, channel=0)
    for r in range(3):
        assert f"rank {r} op" in str(e)


def test_deadlock_by_window() -> None:
    """Receives posted ahead fill the window of every rank, and no send can follow."""
    plan = all_reduce(ranks=2, count=4096, channels=1, slice_size=64, slots=8)
    fails(dataclasses.replace(plan, window=4), "deadlock.*window of 4")


@pytest.mark.parametrize(
    ("ref", "match"),
    [
        (Ref("output", 3 * 4 * 64), "out of bounds"), (Ref("output", -64), "out of bounds"), (Ref("input", 0), "writes the input"),
        (Ref("output", 2), "multiple of"), (Ref("elsewhere", 0), "buffer 'elsewhere'"), (Ref("output", 4), "multiple of 64"),
    ],
)  # fmt: skip
def test_places(ref: Ref, match: str) -> None:
    plan = small()
    at = find(list(plan.programs[1][0]), "reduce")
    fails(edit(plan, 1, 0, lambda ops: change(d=ref)(ops, at)), match, rank=1, channel=0, index=at)


def test_slots() -> None:
    plan = small()
    fails(edit(plan, 1, 1, lambda ops: change(slot=None)(ops, 0)), "slot None", rank=1, channel=1, index=0)
    fails(edit(plan, 1, 1, lambda ops: change(slot=plan.slots)(ops, 0)), "slot", rank=1, channel=1, index=0)
    fails(edit(plan, 1, 1, lambda ops: change(d=Ref("scratch", 0))(ops, 0)), "outside slot", rank=1, channel=1, index=0)


def test_slot_reused_before_its_reduce() -> None:
    plan = small(slots=1)

    def early(ops: list[ChunkOp]) -> None:
        i = next(i for i, o in enumerate(ops) if o.kind == "recv" and o.deps)
        ops[i] = dataclasses.replace(ops[i], deps=())

    fails(edit(plan, 0, 0, early), "hazard: writes scratch", rank=0, channel=0)


def test_send_before_its_reduce() -> None:
    plan = small()

    def early(ops: list[ChunkOp]) -> None:
        i = next(i for i, o in enumerate(ops) if o.kind == "send" and o.step == 1)
        ops[i] = dataclasses.replace(ops[i], deps=())

    fails(edit(plan, 0, 0, early), "hazard: reads output", rank=0, channel=0)


def test_reduce_before_its_recv() -> None:
    plan = small()
    at = find(list(plan.programs[2][0]), "reduce")
    fails(edit(plan, 2, 0, lambda ops: change(deps=())(ops, at)), "hazard: reads scratch", rank=2, channel=0)


def test_channels_do_not_share_bytes() -> None:
    plan = small()
    at = find(list(plan.programs[0][1]), "reduce")
    other = plan.programs[0][0][find(list(plan.programs[0][0]), "reduce")]

    def clash(ops: list[ChunkOp]) -> None:
        ops[at] = dataclasses.replace(ops[at], b=other.b, d=other.d)

    fails(edit(plan, 0, 1, clash), "adds vector byte", rank=0, channel=1, index=at)
    # Right in every order of the two queues that this executes, and still not ordered.
    peek = ChunkOp(kind="copy", length=64, a=other.d, d=Ref("scratch", plan.slot_offset(1, 0)), slot=0, deps=(at,))
    fails(edit(plan, 0, 1, lambda ops: ops.append(peek)), "hazard: reads output.* of channel 0 may still write", rank=0, channel=1)
    source = ChunkOp(kind="copy", length=64, a=other.b, d=Ref("scratch", plan.slot_offset(1, 0)), slot=0)
    prove(edit(plan, 0, 1, lambda ops: ops.append(dataclasses.replace(source, deps=(len(ops) - 1,)))))


def test_scale() -> None:
    plan = small(op="avg")
    last = find(list(plan.programs[0][0]), "reduce", -1)
    first = find(list(plan.programs[0][0]), "reduce")
    fails(edit(plan, 0, 0, lambda ops: change(scale=False)(ops, last)), "not scaled")
    fails(edit(plan, 0, 0, lambda ops: change(scale=True)(ops, first)), "already scaled")
    fails(edit(small(), 0, 0, lambda ops: change(scale=True)(ops, last)), "scaled", rank=0, channel=0, index=last)


def test_ranks_must_agree_on_the_expression() -> None:
    """Two ranks that each add both inputs by themselves agree only because addition of two commutes; three do not."""
    def program(rank: int, n: int) -> tuple[ChunkOp, ...]:
        ops: list[ChunkOp] = []
        others = [(rank + k) % n for k in range(1, n)]
        for k, p in enumerate(others):
            ops.append(ChunkOp(kind="recv", length=64, peer=p, d=Ref("scratch", 64 * k), slot=k))
        for p in others:
            ops.append(ChunkOp(kind="send", length=64, peer=p, a=Ref("input", 0)))
        b = Ref("input", 0)
        for k in range(n - 1):
            deps = (k,) if k == 0 else (k, len(ops) - 1)
            ops.append(ChunkOp(kind="reduce", length=64, a=Ref("scratch", 64 * k), b=b, d=Ref("output", 0), slot=k, deps=deps))
            b = Ref("output", 0)
        return tuple(ops)

    def direct(n: int) -> Plan:
        return Plan(collective="all_reduce", algorithm="direct", op="sum", dtype="float32", count=16, ranks=n, slots=n - 1,
                    slot_bytes=64, programs=tuple((program(r, n),) for r in range(n)))  # fmt: skip

    prove(direct(2))
    fails(direct(3), "on rank 0", rank=1)


def test_queue_depths() -> None:
    plan = small(slots=4, lead=4)
    report = prove(plan)
    fails(dataclasses.replace(plan, rq_depth=report.rq_depth - 1), "receives may be posted")
    fails(dataclasses.replace(plan, sq_depth=report.sq_depth - 1), "sends may be outstanding")


@pytest.mark.parametrize(
    ("kw", "match"),
    [
        ({"collective": "all_to_some"}, "all_to_some"), ({"op": "mean"}, "mean"), ({"dtype": "int7"}, "int7"), ({"count": -1}, "count"),
        ({"ranks": 4}, "programs for 3 ranks"), ({"channels": 3}, "2 channels"), ({"dtype": "bool", "op": "avg"}, "avg of bool"),
        ({"collective": "all_gather"}, "op 'sum' in all_gather"), ({"root": 1}, "root is 1"), ({"splits": (1, 2, 3)}, "splits are .1, 2, 3."),
    ],
)  # fmt: skip
def test_head(kw: dict, match: str) -> None:
    fails(dataclasses.replace(small(), **kw), match)


@pytest.mark.parametrize(
    ("kw", "match"),
    [
        ({"kind": "jump"}, "unknown kind"), ({"peer": 1}, "peer 1"), ({"peer": 3}, "peer 3"), ({"peer": None}, "peer is None"),
        ({"a": Ref("input", 0)}, "a is"), ({"length": 0}, "length 0"), ({"length": 6}, "length 6"), ({"deps": (0,)}, "depends on op 0"),
    ],
)  # fmt: skip
def test_operations(kw: dict, match: str) -> None:
    fails(edit(small(), 1, 0, lambda ops: change(**kw)(ops, 0)), match, rank=1, channel=0, index=0)


@pytest.mark.parametrize(
    ("kw", "match"),
    [
        ({"ranks": 0}, "ranks = 0"), ({"count": -1}, "count = -1"), ({"dtype": "float65"}, "float65"), ({"op": "mean"}, "mean"),
        ({"dtype": "bool", "op": "avg"}, "avg of bool"), ({"channels": 0}, "channels"), ({"slice_size": 100}, "multiple of 64"),
    ],
)  # fmt: skip
def test_ring_arguments(kw: dict, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        small(**kw)
