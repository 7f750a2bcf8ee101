"""Every collective by every algorithm on the golden device against its definition: ranks 1 to 9, awkward counts, types, ops, in place or not."""
from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import pytest

from hccl import arith
from hccl.algorithms.table import ALGORITHMS, BY_COUNT, check_groups, make
from hccl.communicator import Communicator
from hccl.devices import open_device
from hccl.dtypes import DTYPES, OPS_OF, engine_of
from hccl.layout import REDUCING, ROOTED
from hccl.proof import prove
from hccl.reference import expected
from hccl.result import Result
from spec.params import config
from tests.hccl import orders as d

ALL = [(c, a) for c, known in ALGORITHMS.items() for a in known if c not in ("send_recv", "barrier")]
MOVED = ("float8_e4m3fnuz", "float4_e2m1fn_x2", "int16", "complex128", "bool", "float32")
ENGINE = [(t, o) for t, o in d.COMBOS if engine_of(t, o) is not None]


@lru_cache
def communicator(ranks: int) -> Communicator:
    tiny = config("tiny")
    node = tiny.node.replace(nic=tiny.node.nic.replace(qps=32))  # direct: a queue pair each way to every peer
    return Communicator(open_device("golden", tiny.replace(nodes=ranks, node=node), seed=ranks))


def as_array(bits: np.ndarray, dtype: str) -> np.ndarray:
    t = DTYPES[dtype]
    return bits.view(t.native or t.bits)


def rows(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays]


def check(collective: str, algorithm: str, ranks: int, count: int, dtype: str, op: str, in_place: bool, uneven: bool = False, root: int = 0) -> Result:
    """One run against the definition, every byte of every rank's result, and nothing else changed."""
    who = (collective, algorithm, ranks, count, dtype, op, in_place, uneven, root)
    rng, comm, n = d.seed(*who), communicator(ranks), ranks
    per = d.SIZE.get(dtype, DTYPES[dtype].size)

    def part(k: int) -> np.ndarray:
        return d.data(rng, k, dtype) if dtype in d.SIZE else np.frombuffer(rng.bytes(k * per), np.uint8).copy()

    words = d.words(dtype).itemsize if dtype in d.SIZE else 1
    unit = per // words  # words of an element
    sizes = [int(s) for s in rng.integers(0, count + 1, n)] if uneven else [count] * n
    kw: dict = {"dtype": dtype, "in_place": in_place, "algorithm": algorithm} | ({"root": root} if collective in ROOTED else {})
    factors = [1] * n
    if collective in REDUCING:
        kw["op"] = op
        if op == "premul_sum":
            kw["factor"] = factors = [3 * r + 1 for r in range(n)] if DTYPES[dtype].kind in ("int", "uint") else [0.5 - r for r in range(n)]
    groups = [list(g) for g in check_groups(None, n)]
    blocks = [unit * e for e in accumulate(sizes, initial=0)]
    cuts = [slice(a, b) for a, b in pairwise(blocks)]
    name = collective + ("_v" if uneven else "")
    if uneven and collective in ("reduce_scatter", "scatter"):
        kw["splits"] = sizes

    if collective in ("all_reduce", "reduce", "reduce_scatter"):
        x = [part(sum(sizes) if collective == "reduce_scatter" else count) for _ in range(n)]
        y = [d.times(v, dtype, f) for v, f in zip(x, factors, strict=True)] if op == "premul_sum" else x
        if collective == "reduce_scatter":
            want = [d.reduction(collective, algorithm, [v[cut] for v in y], dtype, op, block=r, groups=groups) for r, cut in enumerate(cuts)]
        else:
            whole = d.reduction(collective, algorithm, y, dtype, op, root=root, groups=groups)
            want = [whole if collective == "all_reduce" or r == root else None for r in range(n)]
    elif collective == "broadcast":
        x = [part(count) for _ in range(n)]
        want = [x[root]] * n
    elif collective in ("all_gather", "gather"):
        x = [part(s) for s in sizes]
        want = [np.concatenate(x) if collective == "all_gather" or r == root else None for r in range(n)]
    elif collective == "scatter":
        x = [part(sum(sizes)) for _ in range(n)]
        want = [x[root][cut] for cut in cuts]
    else:
        table = [[int(v) for v in row] for row in rng.integers(0, count + 1, (n, n))] if uneven else [[count] * n] * n
        if uneven and in_place:
            table = [[table[min(s, t)][max(s, t)] for t in range(n)] for s in range(n)]
        x = [part(sum(row)) for row in table]
        ends = [list(accumulate(row, initial=0)) for row in table]
        want = [np.concatenate([x[s][unit * ends[s][r] : unit * ends[s][r + 1]] for s in range(n)]) for r in range(n)]
        if uneven:
            kw["send_splits"] = table
    send = [as_array(v.copy(), dtype) for v in x]
    if in_place and collective in ("all_gather", "gather"):
        for r in range(n):
            if collective == "all_gather" or r == root:
                buffer = np.zeros(blocks[-1], x[r].dtype)
                buffer[cuts[r]] = x[r]
                send[r] = as_array(buffer, dtype)
        if uneven:
            kw["splits"] = sizes
    elif uneven and collective in ("all_gather", "gather"):
        kw["splits"] = sizes
    result = getattr(comm, name)(send, **kw)
    for r, (got, should) in enumerate(zip(result.outputs, want, strict=True)):
        assert (got is None) == (should is None), (who, r)
        if should is not None:
            a, b = rows([got, should])
            assert a.size == b.size and (a == b).all(), f"{who}: rank {r}: byte {np.flatnonzero(a != b)[:1]} of {a.size}"
    for r in range(n):  # what is no part of a result stays
        here, before = rows([send[r], x[r]])
        if in_place and collective in ("reduce_scatter", "scatter") and (collective == "reduce_scatter" or r == root):
            keep = np.ones(here.size, bool)
            keep[blocks[r] * words : blocks[r + 1] * words] = False
            assert (here[keep] == before[keep]).all(), (who, r)
        elif not in_place or (collective in ("reduce", "gather", "scatter") and r != root):
            assert (here == before).all(), (who, r)
    assert bool(result.host_ops) == ((ranks > 1 or op == "premul_sum") and bool(result.wqes) and collective in REDUCING and _hosted(dtype, op)), who
    return result


def _hosted(dtype: str, op: str) -> bool:
    return engine_of(dtype, op) is None or (op in ("avg", "premul_sum") and engine_of(dtype, op, True) is None)


def counts(ranks: int) -> list[int]:
    return list(dict.fromkeys([0, 1, max(ranks - 1, 1), 31, 127, 128, 129, 1009]))


@pytest.mark.parametrize("collective,algorithm", ALL)
def test_covering_set(collective: str, algorithm: str) -> None:
    """All ranks; counts, types, ops, roots and forms in turn, so that every two meet over the set of algorithms."""
    combos = d.COMBOS if collective in REDUCING else [(t, "") for t in MOVED]
    start = 17 * ALL.index((collective, algorithm))
    for ranks in range(1, 10):
        for k in range(2):
            turn = start + 2 * ranks + k
            choice = ENGINE if collective in REDUCING and not k else combos
            dtype, op = choice[turn * 7 % len(choice)]
            uneven = collective in ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all") and turn % 3 == 0
            check(collective, algorithm, ranks, counts(ranks)[turn % len(counts(ranks))], dtype, op, bool(turn // 2 % 2), uneven, turn % ranks if collective in ROOTED else 0)


@pytest.mark.long
@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("collective,algorithm", ALL)
def test_whole_grid(collective: str, algorithm: str, ranks: int) -> None:
    """Every op that near-memory compute has with every count, every other with one count in turn; every form, every root."""
    combos = d.COMBOS if collective in REDUCING else [(t, "") for t in MOVED]
    v = collective in ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
    for i, (dtype, op) in enumerate(combos):
        every = counts(ranks)
        for j, count in enumerate(every if (dtype, op) in ENGINE or not op else [every[i % len(every)]]):
            for in_place in (False, True):
                root = (i + j + in_place) % ranks if collective in ROOTED else 0
                check(collective, algorithm, ranks, count, dtype, op, in_place, v and (i + j) % 2 == 1, root)


def test_arithmetic_of_every_type() -> None:
    """The host's reductions: any patterns, every op of every type; what near-memory compute does is the same there."""
    rng = np.random.default_rng(5)
    for dtype, op in d.COMBOS:
        for n in (1, 3):
            x, y = d.data(rng, 999, dtype), d.data(rng, 999, dtype)
            divide = n if op == "avg" else 1
            got = arith.reduce(x.view(np.uint8), y.view(np.uint8), dtype, op, divide)
            assert (got == d.combine(x, y, dtype, op, divide).view(np.uint8)).all(), (dtype, op, n)
        if op == "premul_sum":
            for factor in (3, 2) if dtype in d.INTS else (0.5, -1.7, 1e30):
                assert (arith.premultiply(x.view(np.uint8), dtype, factor) == d.times(x, dtype, factor).view(np.uint8)).all(), (dtype, factor)
    assert {(t, o) for t, k in DTYPES.items() for o in OPS_OF[k.kind]} == set(d.COMBOS)


def test_reference_is_the_definition() -> None:
    for collective, algorithm in ALL:
        if collective in REDUCING:
            for n in (1, 2, 5, 8, 9):
                root = n // 2 if collective == "reduce" else 0
                plan = make(collective, ranks=n, count=157, dtype="bfloat16", op="avg", algorithm=algorithm, root=root)
                x = [d.data(d.seed(n, r), 157 * (n if collective == "reduce_scatter" else 1), "bfloat16") for r in range(n)]
                got = expected(plan, [v.view(np.uint8) for v in x])
                groups = [list(g) for g in check_groups(None, n)]
                for r in range(n):
                    part = [v[157 * r : 157 * (r + 1)] for v in x] if collective == "reduce_scatter" else x
                    if got[r].size:
                        want = d.reduction(collective, algorithm, part, "bfloat16", "avg", root=root, block=r, groups=groups)
                        assert (got[r] == want.view(np.uint8)).all(), (collective, algorithm, n, r)


@pytest.mark.parametrize("collective", REDUCING)
def test_fixed_order_does_not_depend_on_the_count(collective: str) -> None:
    """Algorithms that say so have one expression for a whole vector (or a block), whatever the count; the others are refused."""
    for algorithm in ALGORITHMS[collective]:
        if (collective, algorithm) in BY_COUNT:
            with pytest.raises(ValueError, match=f"the order of {algorithm} depends on the count"):
                make(collective, ranks=5, count=3, op="sum", algorithm=algorithm, fixed_order=True)
            continue
        for n in (3, 6, 8):
            x = [d.data(d.seed(n, r), 4000, "float32") for r in range(n)]
            for short in (1, 33):
                whole, part = (
                    communicator(n).all_reduce([as_array(v[:c], "float32") for v in x], algorithm=algorithm, fixed_order=True).outputs[n - 1]
                    for c in (4000, short)
                ) if collective == "all_reduce" else (np.zeros(0), np.zeros(0))  # fmt: skip
                assert (whole.view(np.uint32)[: part.size] == part.view(np.uint32)).all(), (algorithm, n, short)
        if collective != "all_reduce":
            texts = {c: [t for *_, t in prove(make(collective, ranks=6, count=c, op="sum", algorithm=algorithm)).expressions] for c in (1, 17, 5003)}
            assert all(t == texts[1] for t in texts.values()) and len(texts[1]) == (6 if collective == "reduce_scatter" else 1)


@pytest.mark.parametrize("collective", list(ALGORITHMS))
def test_counts_around_two_to_the_31(collective: str) -> None:
    """No arithmetic wraps: plans are proved, and cover every byte (there is no data here)."""
    for algorithm in ALGORITHMS[collective]:
        every = ((1 << 31) - 1, 1 << 31, (1 << 31) + 1) if collective in ("broadcast", "all_to_all") else ((1 << 31) + 1,)
        for count in every if collective not in ("barrier", "send_recv") else (1,):
            splits = (count, 3, 0, 1 << 30) if collective == "all_gather" else ()
            prove(make(collective, ranks=4, count=count, dtype="uint8", op="max" if collective in REDUCING else "", algorithm=algorithm, splits=splits))


def test_cancelling_sums() -> None:
    """The order shows: a ring keeps what a tree loses, the same on all ranks."""
    x = [np.array([v], np.float32) for v in (1e8, 1, -1e8, 1)]
    for algorithm, value in (("ring", 1.0), ("direct", 1.0), ("two_step", 1.0), ("halving_doubling", 2.0), ("tree", 0.0)):
        assert [float(o[0]) for o in communicator(4).all_reduce(x, algorithm=algorithm).outputs] == [value] * 4, algorithm
