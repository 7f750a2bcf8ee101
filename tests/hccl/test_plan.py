"""Plans as data: JSON, chunk arithmetic, sizes beyond 2^31."""
from __future__ import annotations

import json

import pytest

from hccl.algorithms.ranges import chunk_bounds
from hccl.algorithms.ring import all_reduce
from hccl.errors import PlanError
from hccl.moves import slice_bytes
from hccl.plan import Plan
from hccl.proof import prove


def test_json_round_trip() -> None:
    plan = all_reduce(ranks=3, count=1000, dtype="bfloat16", op="avg", in_place=True)
    again = Plan.from_json(plan.to_json(indent=1))
    assert again == plan and again.to_json() == plan.to_json()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d.update(colour="red"), "unknown key\\(s\\) colour"),
        (lambda d: d["programs"][0][0][0].update(size=1), r"programs\[0\]\[0\]\[0\] has unknown key\(s\) size"),
        (lambda d: d["programs"][1][0][2].pop("kind"), r"programs\[1\]\[0\]\[2\] lacks key\(s\) kind"),
        (lambda d: d["programs"][0][0][0].update(kind="jump"), "kind 'jump'"),
        (lambda d: d["programs"][0][0][0].update(d=["output"]), "buffer, offset"),
        (lambda d: d["programs"][0][0][0].update(d=["output", "0"]), "expected int"),
        (lambda d: d["programs"][0][0][0].update(deps=[1.5]), "expected int"),
        (lambda d: d["programs"][0][0][0].update(length=True), "expected int"),
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.pop("count"), "lacks key\\(s\\) count"),
        (lambda d: d.pop("programs"), "lacks key\\(s\\) programs"),
        (lambda d: d.update(count="8"), "count is str"),
        (lambda d: d.update(programs={}), "programs is dict"),
    ],
)  # fmt: skip
def test_json_refusals(change, match: str) -> None:
    data = json.loads(all_reduce(ranks=2, count=64).to_json())
    change(data)
    with pytest.raises(PlanError, match=match):
        Plan.from_json(json.dumps(data))


def test_not_json() -> None:
    for text in ("{", "[]", "3"):
        with pytest.raises(PlanError):
            Plan.from_json(text)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16])
def test_chunks_tile_the_vector(ranks: int) -> None:
    for nbytes in [*range(0, 700, 2), 4096, 1 << 20, (1 << 33) + 4]:
        bounds = chunk_bounds(nbytes, ranks)
        assert bounds[0] == 0 and bounds[-1] == nbytes and bounds == sorted(bounds)
        assert all(b % 64 == 0 for b in bounds[:-1] if b != nbytes)
        sizes = [b - a for a, b in zip(bounds, bounds[1:], strict=False)]
        assert max(sizes) - min(sizes) <= 128  # a unit apart, and the last may be cut short
        assert not nbytes or sizes[0] > 0


def test_slices_are_whole_packets() -> None:
    for chunk in (1, 4096, 4097, 65536, 1 << 18, 1 << 30, (1 << 33) + 4):
        size = slice_bytes(chunk, 4, 4096)
        assert size % 4096 == 0 and -(-chunk // size) <= 4 * 16 + 4


@pytest.mark.parametrize("count", [(1 << 31) - 1, 1 << 31, (1 << 31) + 1, 1 << 33])
@pytest.mark.parametrize("ranks", [1, 4])
def test_counts_around_two_to_the_31(count: int, ranks: int) -> None:
    """No arithmetic wraps: the plan is proved, and covers every byte (there is no data here)."""
    for dtype in ("float32", "bfloat16"):
        plan = all_reduce(ranks=ranks, count=count, dtype=dtype)
        report = prove(plan)
        assert report.expressions[-1][1] == plan.nbytes == count * (4 if dtype == "float32" else 2)
        if ranks > 1:
            sent = sum(sum(plan.messages(r)) for r in range(ranks))
            assert sent == 2 * (ranks - 1) * plan.nbytes


def test_link_work_is_the_least() -> None:
    plan = all_reduce(ranks=4, count=1 << 18)
    assert all(row["sent_bytes"] == 2 * 3 * (1 << 20) // 4 for row in plan.summary())
