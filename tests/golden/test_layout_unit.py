"""The layout unit's golden model against loops over elements, NumPy's own slices and concatenations, and its refusals."""
from __future__ import annotations

import numpy as np
import pytest

from golden.pe.layout_unit import SIZES, cut, join, run
from spec.layout_unit import LU_DONE, LU_JOB, LayoutOp, LayoutStatus

RNG = np.random.default_rng(11)
TYPES = (np.uint8, np.uint16, np.uint32)
BASE = dict(op=LayoutOp.TRANSPOSE, size=1, rows=5, columns=7, source=0, source_stride=20, destination=512, destination_stride=16)


def job(**changes: int) -> dict[str, int]:
    return {**BASE, **changes}


@pytest.mark.parametrize("op", LayoutOp)
def test_element_by_element(op: LayoutOp) -> None:
    for _ in range(60):
        size = int(RNG.integers(3))
        e = SIZES[size]
        rows, columns = (int(x) for x in RNG.integers(0, 12, 2))
        out_rows, out_columns = (columns, rows) if op == LayoutOp.TRANSPOSE else (rows, columns)
        one = job(op=op, size=size, rows=rows, columns=columns, source=e * int(RNG.integers(64)), source_stride=e * int(RNG.integers(0, 30)),
                  destination=2048 + e * int(RNG.integers(64)), destination_stride=e * int(RNG.integers(out_columns, out_columns + 9)))
        memory = RNG.integers(0, 256, 8192, dtype=np.uint8)
        want = memory.copy()
        for r in range(rows):
            for c in range(columns):
                at = one["source"] + r * one["source_stride"] + c * e
                i, j = (c, r) if op == LayoutOp.TRANSPOSE else (r, c)
                to = one["destination"] + i * one["destination_stride"] + j * e
                want[to : to + e] = memory[at : at + e]
        assert run(memory, one) == LayoutStatus.OK
        assert (memory == want).all() and out_rows * out_columns == rows * columns


@pytest.mark.parametrize("size", range(3))
def test_slices_and_concatenations(size: int) -> None:
    t, e = TYPES[size], SIZES[size]
    memory = RNG.integers(0, 256, 16384, dtype=np.uint8)
    a, b = (np.ndarray((9, 14), t, memory.data, at) for at in (0, 4096))
    run(memory, cut(0, 14 * e, size, slice(2, 8), slice(3, 12), 8192, 9 * e))
    assert (np.ndarray((6, 9), t, memory.data, 8192) == a[2:8, 3:12]).all()
    for axis, shape in ((0, (18, 14)), (1, (9, 28))):
        for one in join([(0, 14 * e, 9, 14), (4096, 14 * e, 9, 14)], size, axis, 10240, shape[1] * e):
            assert run(memory, one) == LayoutStatus.OK
        assert (np.ndarray(shape, t, memory.data, 10240) == np.concatenate([a, b], axis)).all()


@pytest.mark.parametrize("changes, status", [
    (dict(), LayoutStatus.OK),
    (dict(op=2), LayoutStatus.OP), (dict(size=3, rows=0), LayoutStatus.OP),
    (dict(rows=0, source=1 << 31), LayoutStatus.OK), (dict(columns=0, source_stride=3, destination_stride=0), LayoutStatus.OK),
    (dict(source=1), LayoutStatus.ALIGN), (dict(destination_stride=17), LayoutStatus.ALIGN), (dict(size=2, source=2), LayoutStatus.ALIGN),
    (dict(op=LayoutOp.COPY, source=1, source_stride=19), LayoutStatus.OK),
    (dict(destination_stride=8), LayoutStatus.STRIDE), (dict(columns=1, destination_stride=0), LayoutStatus.OK),
    (dict(source_stride=0), LayoutStatus.OK),
    (dict(source=1024 - 4 * 20 - 14), LayoutStatus.OK), (dict(source=1024 - 4 * 20 - 12), LayoutStatus.RANGE),
    (dict(destination=1024 - 6 * 16 - 10), LayoutStatus.OK), (dict(destination=1024 - 6 * 16 - 8), LayoutStatus.RANGE),
    (dict(source_stride=0xFFFFFFFE, rows=65535, destination_stride=0x40000), LayoutStatus.RANGE), (dict(destination=0xFFFFFFFE), LayoutStatus.RANGE),
    (dict(source=1, destination_stride=2, destination=0xFFFFFFFE), LayoutStatus.ALIGN),
])
def test_status(changes: dict[str, int], status: LayoutStatus) -> None:
    memory = RNG.integers(0, 256, 1024, dtype=np.uint8)
    before = memory.copy()
    assert run(memory, job(**changes)) == status
    if status != LayoutStatus.OK:
        assert (memory == before).all()


def test_damaged_rows() -> None:
    memory = np.zeros(1024, np.uint8)
    assert run(memory, job(source=60, source_stride=128, rows=2, columns=2), [1, 3]) == LayoutStatus.OK
    assert run(memory, job(source=60, source_stride=128, rows=2, columns=3), [3]) == LayoutStatus.DAMAGED


def test_records() -> None:
    assert LU_JOB.nbytes == 24 and LU_DONE.nbytes == 3
    assert LU_JOB.unpack(LU_JOB.pack(job(tag=9))) == job(tag=9)
