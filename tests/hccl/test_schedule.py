"""Plans that `hccl.schedule` makes: proved for any machine and sizes; the proof finds what is taken out of them; stages."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccl.algorithms.table import ALGORITHMS, check_groups, make
from hccl.errors import PlanError, UsageError
from hccl.layout import MATRIX, REDUCING, ROOTED, SPLIT, layout
from hccl.moves import Machine
from hccl.plan import ChunkOp, Plan, Ref
from hccl.proof import prove
from hccl.stages import staged

ALL = [(c, a) for c, known in ALGORITHMS.items() for a in known]


@settings(max_examples=100, deadline=None)
@given(
    which=st.sampled_from(ALL), ranks=st.integers(1, 9), count=st.integers(0, 900), splits=st.booleans(), in_place=st.booleans(), root=st.integers(0, 8),
    op=st.sampled_from(["sum", "avg", "premul_sum"]), channels=st.integers(1, 5), window=st.integers(5, 64), slots=st.integers(1, 8),
    depth=st.integers(1, 8), slice_size=st.sampled_from([None, 64, 256]), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_plan_is_proved(which, ranks, count, splits, in_place, root, op, channels, window, slots, depth, slice_size, seed) -> None:
    collective, algorithm = which
    sizes: list[int] = []
    if splits and collective in SPLIT and not (in_place and collective in MATRIX):
        sizes = [(seed * 31 + 7 * i * i) % (count + 1) for i in range(ranks * ranks if collective in MATRIX else ranks)]
    machine = Machine(channels=channels, window=window, slots=slots, rq_depth=depth, sq_depth=depth, slice_size=slice_size, mtu=256, qps=64)
    plan = make(
        collective, ranks=ranks, count=count, dtype="bfloat16", op=op if collective in REDUCING else "", in_place=in_place and collective != "send_recv",
        root=root % ranks if collective in ROOTED else 0, splits=sizes, algorithm=algorithm, machine=machine,
    )  # fmt: skip
    report = prove(plan)
    assert report.sq_depth <= depth and report.rq_depth <= depth
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("collective,algorithm", [w for w in ALL if w[0] in REDUCING])
def test_plans_in_stages(collective: str, algorithm: str) -> None:
    """Every operation once; no device operation of a stage needs a later one; the whole in that order is proved."""
    for dtype, op in (("int64", "sum"), ("int32", "avg"), ("float64", "premul_sum")):
        plan = make(collective, ranks=5, count=300, dtype=dtype, op=op, algorithm=algorithm)
        order, stages = staged(plan)
        prove(order)
        assert sum(len(s.host) for s in stages) == plan.host_ops > 0
        device = sum(len(ops) for s in stages for p in s.plan.programs for ops in p)
        assert device + plan.host_ops == sum(len(ops) for p in plan.programs for ops in p)
        assert not any(s.plan.host_ops for s in stages) and not stages[-1].host or len(stages) > 0
        if op == "avg":
            assert len(stages) <= 2 + (collective == "all_reduce")  # only the last sums are the host's
    assert len(staged(make(collective, ranks=5, count=300, op="sum", algorithm=algorithm))[1]) == 1


def edit(plan: Plan, rank: int, channel: int, change: Callable[[list[ChunkOp]], None]) -> Plan:
    programs = [[list(ops) for ops in p] for p in plan.programs]
    change(programs[rank][channel])
    return dataclasses.replace(plan, programs=tuple(tuple(tuple(ops) for ops in p) for p in programs))


def find(ops: list[ChunkOp], kind: str, nth: int = 0) -> int:
    return [i for i, o in enumerate(ops) if o.kind == kind][nth]


def test_a_block_in_another_place_is_found() -> None:
    plan = make("all_gather", ranks=3, count=16, algorithm="direct")
    prove(plan)

    def swap(ops: list[ChunkOp]) -> None:
        i, j = find(ops, "recv"), find(ops, "recv", 1)
        ops[i], ops[j] = dataclasses.replace(ops[i], d=ops[j].d), dataclasses.replace(ops[j], d=ops[i].d)

    with pytest.raises(PlanError, match="rank 1, .*output bytes .* hold x[02] from byte 0; expected x[02] from byte 0"):
        prove(edit(plan, 1, 0, swap))


def test_bytes_of_the_wrong_place_are_found() -> None:
    plan = make("scatter", ranks=3, count=16, algorithm="direct")

    def shift(ops: list[ChunkOp]) -> None:
        i = find(ops, "send")
        ops[i] = dataclasses.replace(ops[i], a=Ref("input", 0))

    with pytest.raises(PlanError, match="hold x0 from byte 0; expected x0 from byte 64"):
        prove(edit(plan, 0, 0, shift))


def test_every_dependency_counts() -> None:
    """Without any one of them the proof fails, or it was implied by others."""
    for collective, algorithm in (("reduce_scatter", "halving_doubling"), ("reduce", "tree"), ("all_to_all", "direct"), ("all_reduce", "direct")):
        plan = make(collective, ranks=4, count=100, op="sum" if collective in REDUCING else "", algorithm=algorithm, in_place=True)
        needed = 0
        for r, program in enumerate(plan.programs):
            for c, ops in enumerate(program):
                for i, op in enumerate(ops):
                    for dep in op.deps:
                        def without(ops: list[ChunkOp], i: int = i, dep: int = dep) -> None:
                            ops[i] = dataclasses.replace(ops[i], deps=tuple(x for x in ops[i].deps if x != dep))

                        try:
                            prove(edit(plan, r, c, without))
                        except PlanError as e:
                            needed += "hazard" in str(e) or "nothing has written" in str(e)
        assert needed >= sum(len(o.deps) for p in plan.programs for ops in p for o in ops) // 2, (collective, algorithm, needed)


def test_factors_once_and_first() -> None:
    plan = make("reduce", ranks=2, count=16, op="premul_sum", algorithm="direct")
    prove(plan)

    def twice(ops: list[ChunkOp]) -> None:
        i = find(ops, "scale")
        ops.append(dataclasses.replace(ops[i], a=ops[i].d, deps=(i,)))

    with pytest.raises(PlanError, match="a factor on f1·x1; expected an input, once"):
        prove(edit(plan, 1, 0, twice))

    def forget(ops: list[ChunkOp]) -> None:
        i = find(ops, "scale")
        ops[i] = dataclasses.replace(ops[i], kind="copy")

    with pytest.raises(PlanError, match="one operand lacks its factor"):
        prove(edit(plan, 1, 0, forget))
    with pytest.raises(PlanError, match="a factor in a premul_sum only"):
        prove(dataclasses.replace(plan, op="sum"))


def test_layouts() -> None:
    made = layout("all_gather", 3, 5, 4, 0, (), True)
    assert made.alias == (0, 64, 128) and made.bytes("output", 0) == 148 and made.bytes("input", 2) == 20
    made = layout("reduce_scatter", 3, 0, 4, 0, (1, 0, 40), True)
    assert made.alias == (0, -64, -64) and made.bytes("output", 1) == 0 and made.bytes("output", 2) == 160
    with pytest.raises(PlanError, match="blocks change places"):
        layout("all_to_all", 2, 0, 4, 0, (1, 2, 3, 4), True)
    with pytest.raises(PlanError, match="send_recv in place"):
        layout("send_recv", 2, 1, 4, 0, (), True)


def test_groups() -> None:
    assert check_groups(None, 9) == ((0, 1, 2), (3, 4, 5), (6, 7, 8)) and check_groups(None, 5) == ((0, 1, 2), (3, 4)) and check_groups(None, 1) == ((0,),)
    with pytest.raises(UsageError, match="each of the ranks 0 to 2 in exactly one"):
        check_groups([[0, 1], [1, 2]], 3)


def test_a_window_too_small() -> None:
    with pytest.raises(UsageError, match="window = 4; expected room for one slot"):
        make("reduce", ranks=3, count=9, op="sum", algorithm="tree", machine=Machine(window=4))
