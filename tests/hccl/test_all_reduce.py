"""All-reduce on the golden device against its definition: every rank count, dtype, op and awkward size; values and memory."""
from __future__ import annotations

from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest

from hccl.algorithms.table import make
from hccl.communicator import Communicator
from hccl.devices import open_device
from hccl.devices.golden import GoldenDevice
from hccl.reference import expected
from spec.params import config
from tests.hccl import definition as d


@lru_cache
def device(ranks: int) -> GoldenDevice:
    return open_device("golden", config("tiny").replace(nodes=ranks), seed=ranks)


@lru_cache
def communicator(ranks: int) -> Communicator:
    return Communicator(device(ranks))


def check(comm: Communicator, bits: list[np.ndarray], dtype: str, op: str, **kw: bool) -> None:
    want = d.all_reduce(bits, dtype, op)
    result = comm.all_reduce([d.as_array(x.copy(), dtype) for x in bits], dtype=dtype, op=op, **kw)
    for rank, out in enumerate(result.outputs):
        wrong = np.flatnonzero(d.words(out) != want)
        assert not wrong.size, f"rank {rank} of {len(bits)}, {dtype} {op}, count {want.size}: element {wrong[0]} of {wrong}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 9])
@pytest.mark.parametrize("dtype", d.DTYPES)
@pytest.mark.parametrize("op", d.OPS)
def test_grid(ranks: int, dtype: str, op: str) -> None:
    if op == "avg" and dtype == "int32":
        op = "sum"
    rng = np.random.default_rng([ranks, d.DTYPES.index(dtype), d.OPS.index(op)])
    for count in sorted({0, 1, ranks - 1, ranks, 31, 127, 128, 129, 1009, 10007}):
        check(communicator(ranks), d.data(rng, ranks, count, dtype), dtype, op, in_place=bool(count & 1))


GUARD = 0xA5


@pytest.mark.parametrize("ranks", range(1, 10))
def test_guard_bytes_and_new_data(ranks: int) -> None:
    """Every world: twice with new data on one communicator, in place or not; bytes that belong to nothing stay, and so does the input."""
    rng, dev = np.random.default_rng(ranks), open_device("golden", config("tiny").replace(nodes=ranks), seed=ranks)
    size = dev.params.node.mem.size_bytes
    comm = Communicator(dev)
    for i, count in enumerate((1, max(ranks - 1, 1), 127, 128, 129, 1009)):
        dtype, in_place = d.DTYPES[(i + ranks) % 4], bool((i + ranks // 4) % 2)
        op = d.OPS[(i // 2 + ranks) % (3 if dtype == "int32" else 4)]
        for again in range(2):
            bits = d.data(rng, ranks, count, dtype)
            check(comm, bits, dtype, op, in_place=in_place)
            where = comm.last.map
            used = np.zeros(size, bool)
            for region in where.table():
                used[region.base : region.base + region.size] = True
            for r in range(ranks):
                memory = dev.mem_read(r, 0, size)
                if again:
                    assert (memory[~used] == GUARD).all(), f"rank {r} of {ranks}, {dtype} {op}, count {count}: guard bytes changed"
                    if not in_place:
                        assert (memory[where.input.base :][: where.input.size] == bits[r].view(np.uint8)).all()
                else:
                    memory[~used] = GUARD
                    dev.mem_write(r, 0, memory)
    comm.close()


def test_several_slices_a_channel() -> None:
    rng = np.random.default_rng(1)
    check(communicator(2), d.data(rng, 2, 200_003, "float32"), "float32", "sum")
    check(communicator(4), d.data(rng, 4, 262_144, "bfloat16"), "bfloat16", "avg")


def test_reference_is_the_definition() -> None:
    rng = np.random.default_rng(2)
    for n in (1, 2, 3, 7):
        for dtype in d.DTYPES:
            for op in d.OPS[:3] if dtype == "int32" else d.OPS:
                bits = d.data(rng, n, 157, dtype)
                plan = make("all_reduce", ranks=n, count=157, dtype=dtype, op=op)
                got, *others = expected(plan, [x.view(np.uint8) for x in bits])
                assert all((got == o).all() for o in others)
                assert (got.view(bits[0].dtype) == d.all_reduce(bits, dtype, op)).all(), (n, dtype, op)


def test_one_rank_keeps_every_bit() -> None:
    """Signalling NaNs too; every count from 1 to 130."""
    comm = communicator(1)
    for count in range(1, 131):
        x = np.arange(count, dtype=np.uint32) + 0x7F800001
        for op in d.OPS:
            out = comm.all_reduce([x.view(np.float32)], op=op).outputs[0]
            assert (out.view(np.uint32) == x).all(), (count, op)


def test_again_with_new_data() -> None:
    """Nothing of an earlier run is left over, larger or smaller."""
    comm = communicator(3)
    rng = np.random.default_rng(3)
    for count in (5000, 7, 5000, 129, 4999, 64, 5000):
        for _ in range(2):
            check(comm, d.data(rng, 3, count, "float32"), "float32", "sum")


def test_order_of_a_cancelling_sum() -> None:
    x = [np.array([v], np.float32) for v in (1e8, 1, -1e8, 1)]
    result = communicator(4).all_reduce(x)
    assert [float(o[0]) for o in result.outputs] == [1.0] * 4


def test_int32_wraps() -> None:
    x = [np.array([2**31 - 1, -(2**31)], np.int32), np.array([1, -1], np.int32)]
    assert communicator(2).all_reduce(x).outputs[1].tolist() == [-(2**31), 2**31 - 1]


def test_average_is_scaled_before_the_rounding() -> None:
    """(1 + 2^-8) + 1 needs a bit more than bfloat16 has; half of it rounds once, to even."""
    x = [np.array([1 + 2**-7], ml_dtypes.bfloat16), np.array([1], ml_dtypes.bfloat16)]
    out = communicator(2).all_reduce(x, op="avg").outputs[0]
    assert out.dtype == ml_dtypes.bfloat16 and float(out[0]) == 1.0
    big = [np.full(3, 3e38, np.float32)] * 2
    assert np.isinf(communicator(2).all_reduce(big, op="avg").outputs[0]).all()  # the sum overflows, as documented


@pytest.mark.parametrize("in_place", [False, True])
def test_nothing_else_in_memory_is_touched(in_place: bool) -> None:
    dev = open_device("golden", config("tiny").replace(nodes=3))
    size = dev.params.node.mem.size_bytes
    for r in range(3):
        dev.mem_write(r, 0, np.full(size, 0xA5, np.uint8))
    comm = Communicator(dev)
    x = [np.full(1001, r + 1, np.float32) for r in range(3)]
    comm.all_reduce(x, in_place=in_place)
    where = comm.last.map
    for r in range(3):
        memory = dev.mem_read(r, 0, size)
        for region in where.table():
            memory[region.base : region.base + region.size] = 0xA5
        assert (memory == 0xA5).all(), f"rank {r}: byte {np.flatnonzero(memory != 0xA5)[0]}"
        if not in_place:
            source = dev.mem_read(r, where.input.base, where.input.size).view(np.float32)
            assert (source == r + 1).all()


@pytest.mark.parametrize("seed", range(6))
def test_any_interleaving_gives_the_same_bits(seed: int) -> None:
    dev = open_device("golden", config("tiny").replace(nodes=4), seed=seed)
    bits = d.data(np.random.default_rng(4), 4, 40_001, "float16")
    check(Communicator(dev), bits, "float16", "sum", in_place=bool(seed & 1))


@pytest.mark.parametrize("name", ["small", "mtia300"])
def test_other_configurations(name: str) -> None:
    p = config(name)
    p = p.replace(nodes=3, node=p.node.replace(mem=p.node.mem.replace(size_bytes=4 << 20)))
    comm = Communicator(open_device("golden", p))
    check(comm, d.data(np.random.default_rng(5), 3, 100_003, "float32"), "float32", "avg")


def test_ranks_on_some_of_the_nodes() -> None:
    comm = Communicator(open_device("golden", config("tiny")), 3)
    check(comm, d.data(np.random.default_rng(6), 3, 500, "int32"), "int32", "max")
