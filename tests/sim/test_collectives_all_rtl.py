"""Every collective by every algorithm on the simulated hardware: bits of the golden device, which `tests/hccl` holds against the definition."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hccl import Communicator, open_device
from hccl.algorithms.table import ALGORITHMS
from hccl.devices.base import Device
from hccl.dtypes import DTYPES
from hccl.layout import REDUCING, ROOTED
from spec.params import config
from tests.hccl import orders as d

NODES = 5
PARAMS = config("tiny").replace(nodes=NODES, switch=config("tiny").switch.replace(ports=8))
ALL = [(c, a) for c, known in ALGORITHMS.items() for a in known if c not in ("send_recv", "barrier")]
COMBOS = [("float32", "sum"), ("bfloat16", "avg"), ("float16", "max"), ("int32", "min"), ("complex64", "sum"), ("float32", "premul_sum"),
          ("int32", "avg"), ("int64", "bxor"), ("bfloat16", "prod")]  # fmt: skip
COUNTS = (1, 127, 129, 3001)


@pytest.fixture(scope="module")
def rtl() -> Iterator[Device]:
    with open_device("rtl", PARAMS) as device:
        yield device


@pytest.fixture(scope="module")
def golden() -> Iterator[Device]:
    with open_device("golden", PARAMS) as device:
        yield device


def same(devices: list[Device], collective: str, algorithm: str, n: int, count: int, dtype: str, op: str, in_place: bool) -> dict[str, int]:
    """One collective on every device: equal bits, equal work; counters of the first."""
    rng = d.seed(collective, algorithm, n, count, dtype, op)
    whole = collective in ("reduce_scatter", "scatter", "all_to_all") or (in_place and collective in ("all_gather", "gather"))
    x = [d.data(rng, count * (n if whole else 1), dtype).view(DTYPES[dtype].native or DTYPES[dtype].bits) for _ in range(n)]
    root = count % n if collective in ROOTED else 0
    kw: dict = {"dtype": dtype, "in_place": in_place, "algorithm": algorithm} | ({"root": root} if collective in ROOTED else {})
    if in_place and collective == "gather":
        x = [v if r == root else v[:count] for r, v in enumerate(x)]
    if collective in REDUCING:
        kw |= {"op": op} | ({"factor": [0.5 - r for r in range(n)]} if op == "premul_sum" else {})
    results = []
    for device in devices:
        with Communicator(device, n) as comm:
            for _ in range(2):
                results.append(getattr(comm, collective)([v.copy() for v in x], **kw))
    first = results[0]
    for other in results[1:]:
        for r, (a, b) in enumerate(zip(first.outputs, other.outputs, strict=True)):
            assert (a is None) == (b is None)
            assert a is None or (a.view(np.uint8) == b.view(np.uint8)).all(), (collective, algorithm, n, count, dtype, op, in_place, r)
        assert other.wqes == first.wqes and other.host_ops == first.host_ops
    assert first.cycles or n == 1 or not first.wqes
    return {k: sum(c[k] for c in first.counters) for k in first.counters[0]}


def cases(seed: int, ranks: list[int]) -> Iterator[tuple]:
    """Every collective and algorithm for each of `ranks`; counts, types, ops and forms in turn."""
    for i, (collective, algorithm) in enumerate(ALL):
        for n in ranks:
            turn = 5 * i + n + seed
            dtype, op = COMBOS[turn % len(COMBOS)]
            yield collective, algorithm, n, COUNTS[turn % len(COUNTS)], dtype, op if collective in REDUCING else "", bool(turn // 2 % 2)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_bits_equal_golden(ranks: int, rtl: Device, golden: Device) -> None:
    for case in cases(0, [ranks]):
        total = same([rtl, golden], *case)
        assert not total["nic_retransmits"] or total["nic_naks"], case  # nothing is lost; a receiver that is behind answers RNR


@pytest.mark.long
@pytest.mark.parametrize("collective,algorithm", [("all_reduce", "halving_doubling"), ("reduce_scatter", "direct"), ("broadcast", "tree"), ("all_to_all", "direct")])
def test_large(collective: str, algorithm: str, rtl: Device, golden: Device) -> None:
    """More slices than slots."""
    same([rtl, golden], collective, algorithm, 4, 30_011, "float32", "sum" if collective in REDUCING else "", False)


@pytest.mark.long
@pytest.mark.parametrize("seed,stalls,drop", [(1, 0.2, 0.0), (2, 0.05, 0.02)])
def test_bits_with_stalls_and_loss(seed: int, stalls: float, drop: float, golden: Device) -> None:
    faults = {"drop": drop, "dup": drop, "reorder": drop} if drop else {}
    lost = 0
    with open_device("rtl", PARAMS, seed=seed, stalls=stalls, faults=faults) as device:
        for case in cases(seed, [3 + seed % 3]):
            lost += same([device, golden], *case)["nic_retransmits"]
    assert bool(drop) <= bool(lost)


@pytest.mark.long
def test_messages_barriers_and_parts(rtl: Device) -> None:
    with Communicator(rtl) as comm:
        assert comm.barrier().cycles
        x, y = [np.full(300 + r, r, np.int16) for r in range(NODES)], [np.empty(300 + (r - 1) % NODES, np.int16) for r in range(NODES)]
        with comm.group():
            for r in range(NODES):
                comm.rank(r).send(x[r], (r + 1) % NODES)
                comm.rank(r).recv(y[r], (r - 1) % NODES)
        assert all((y[r] == (r - 1) % NODES).all() for r in range(NODES))
        parts = comm.split([0, 1, 0, 1, 1])
        for part in (parts[1], comm, parts[0], parts[1]):
            z = [np.full(1001, r + 1, np.float32) for r in range(part.nranks)]
            assert all((o == sum(range(1, part.nranks + 1))).all() for o in part.all_reduce(z).outputs)
