"""Kernels on the golden processing element: bits equal the direct definition in every shape and format; nothing else in memory is written."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from golden.pe.kernels import interaction, transpose
from golden.pe.kernels.elementwise import Elementwise
from golden.pe.kernels.embedding import EmbeddingBag, Gather
from golden.pe.kernels.interaction import Interaction
from golden.pe.kernels.panels import FORMATS
from golden.pe.kernels.rowwise import LayerNorm, RmsNorm, RowKernel, Softmax
from golden.pe.kernels.transpose import Transpose
from golden.pe.processing_element import ProcessingElement
from spec.assembly import assemble, disassemble
from spec.convert import ConvertFormat as C
from spec.isa import CpStatus
from spec.params import config
from spec.pe import DotFormat
from spec.sfu import TAKES_B, UNARY, SfuB, SfuOp
from tb.pe.kernel_jobs import Job, Problem

PE = {name: config(name).node.pe for name in ("tiny", "small", "mtia300")}
TINY = PE["tiny"]
SHAPES = [(1, 1), (1, 7), (9, 1), (64, 64), (131, 67), (1, 5003), (5003, 1), (3, 777), (257, 321)]


def check(job: Job, name: str = "tiny") -> None:
    pe, program = PE[name], job.kernel.program(PE[name])
    memory = job.memory.copy()
    done = ProcessingElement(pe, memory).run(program)
    assert {c.status for c in done} == {CpStatus.OK}, [c for c in done if c.status != CpStatus.OK][:3]
    wrong = np.flatnonzero(memory != job.want)
    assert not len(wrong), f"{job.kernel}: {len(wrong)} bytes of memory differ, the first at {wrong[0]:#x}"
    assert (job.memory != job.want).any(), "the result lay there before"
    assert job.kernel.bound(pe) > 0
    assert len(program) > 60 or assemble(disassemble(program)) == program


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_transpose(rows: int, columns: int, size: int) -> None:
    check(Problem(rows + size).transpose(rows, columns, size))
    check(Problem(rows + size).transpose(rows, columns, size, packed=True), "mtia300")


def test_transpose_is_of_what_numpy_says() -> None:
    assert transpose.direct(np.arange(6).reshape(2, 3)).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("name", list(PE))
@pytest.mark.parametrize("fmt", [DotFormat.BFLOAT16, DotFormat.FLOAT16, DotFormat.TFLOAT32], ids=lambda f: f.name.lower())
@pytest.mark.parametrize(("samples", "vectors", "k"), [(1, 2, 1), (5, 7, 24), (100, 7, 24), (67, 3, 65), (3, 32, 40), (9, 33, 33)])
def test_interaction(name: str, fmt: DotFormat, samples: int, vectors: int, k: int) -> None:
    check(Problem(samples).interaction(samples, vectors, k, fmt), name)


def test_interaction_order() -> None:
    v = np.array([[[0x3F80], [0x4000], [0x4040]]], np.uint16)  # 1, 2, 3
    head, pairs = interaction.direct(v, DotFormat.BFLOAT16)
    assert head.tolist() == [[0x3F80]] and pairs.tolist() == [[0x4000, 0x4040, 0x40C0]]  # 1; 2, 3; 6


FLOATS = [C.FLOAT32, C.BFLOAT16, C.FLOAT16, C.FLOAT8_E4M3FN, C.FLOAT8_E5M2]
KINDS = [(Softmax, {}), (LayerNorm, {}), (LayerNorm, dict(gamma=True)), (LayerNorm, dict(gamma=True, beta=True)), (RmsNorm, {}), (RmsNorm, dict(gamma=True))]
ROW_SHAPES = [(1, 1), (3, 1), (1, 777), (70, 33), (257, 64), (13, 1000)]


@pytest.mark.parametrize(("kind", "vectors"), KINDS, ids=lambda x: x.name if isinstance(x, type) else "-".join(x))
@pytest.mark.parametrize("fmt", FLOATS, ids=lambda f: f.name.lower())
def test_rowwise(kind: type[RowKernel], vectors: dict[str, bool], fmt: C) -> None:
    for k, (rows, columns) in enumerate(ROW_SHAPES if fmt in (C.FLOAT32, C.BFLOAT16) else ROW_SHAPES[-2:]):
        out = None if k % 2 else FLOATS[(fmt + k) % len(FLOATS)]
        check(Problem(rows + columns).rowwise(kind, rows, columns, fmt, out, wild=k % 3 == 2, **vectors), ("tiny", "small", "mtia300")[k % 3])


def test_rowwise_of_special_rows() -> None:
    """What the sequence of steps gives: a row whose largest is an infinity, or that holds a NaN, is NaN; a row of one number is 1, and 0 by LayerNorm."""
    kw = dict(rows=4, columns=2, format=C.FLOAT32, x=0, y=0)
    x = np.array([[0, np.inf], [-np.inf, -np.inf], [np.nan, 1], [-np.inf, 3]], np.float32).view(np.uint32)
    got = Softmax(**kw).direct(x).view(np.float32)
    assert np.isnan(got[:3]).all() and got[3].tolist() == [0, 1]
    assert not LayerNorm(**kw).direct(np.full((4, 2), 0x3F800000, np.uint32)).any()


@pytest.mark.parametrize("op", [*UNARY, *TAKES_B], ids=lambda o: o.name.lower())
def test_elementwise(op: SfuOp) -> None:
    cases = [(131, 67, C.BFLOAT16, None, SfuB.SCALAR), (1, 1, C.FLOAT32, C.FLOAT16, SfuB.COLUMN), (40, 300, C.FLOAT16, C.FLOAT32, SfuB.ROW), (3, 5003, C.FLOAT32, None, SfuB.ELEMENTS)]
    for rows, columns, fmt, out, source in cases:
        check(Problem(columns).elementwise(op, rows, columns, fmt, out, source_b=source, format_b=C.FLOAT32, packed=rows == 3))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name.lower())
def test_conversions(fmt: C) -> None:
    """From and to every format, either mode."""
    for out in FORMATS:
        check(Problem(int(fmt)).elementwise(SfuOp.COPY, 9, 65, fmt, out, sat=out % 2 == 1), "small")


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name.lower())
@pytest.mark.parametrize(("rows", "columns", "lookups"), [(1, 1, 1), (50, 64, 700), (7, 33, 5), (300, 129, 257)])
def test_gather(fmt: C, rows: int, columns: int, lookups: int) -> None:
    check(Problem(lookups).gather(rows, columns, lookups, fmt))


LENGTHS = {"one": [1], "ragged": [3, 0, 0, 17, 1, 40, 0, 5, 128, 7] * 3, "empty": [0, 0, 1, 0], "all empty": [0, 0, 0], "long": [300, 2, 129, 700]}


@pytest.mark.parametrize("lengths", list(LENGTHS.values()), ids=list(LENGTHS))
@pytest.mark.parametrize("fmt", FLOATS, ids=lambda f: f.name.lower())
@pytest.mark.parametrize("mean", [False, True])
def test_embedding_bag(lengths: list[int], fmt: C, mean: bool) -> None:
    for columns, name in ((1, "tiny"), (24, "small"), (67, "tiny"))[0 if fmt == C.BFLOAT16 else 2 :]:
        out = None if columns == 24 else FLOATS[(fmt + columns) % len(FLOATS)]
        check(Problem(columns).bags(lengths, columns, fmt, out, mean=mean, wild=columns == 67), name)


def test_embedding_bag_is_the_same_wherever_it_runs() -> None:
    """Its order is of the bag and `piece` alone; with pieces of one lookup, additions in order."""
    for name in PE:
        check(Problem(1).bags([200, 3, 65], 300, C.BFLOAT16, C.FLOAT32, piece=64), name)
    job = Problem(2).bags([40], 8, C.FLOAT32, piece=1)
    check(job)
    k = job.kernel
    rows = np.ascontiguousarray(job.memory[k.table + k.stride * np.arange(200)[:, None] + np.arange(32)]).view(np.float32)
    order = np.ascontiguousarray(job.memory[k.index : k.index + 160]).view(np.uint32)
    total = rows[order[0]]
    for i in order[1:]:
        total = total + rows[i]
    assert (np.ascontiguousarray(job.want[k.y : k.y + 32]).view(np.float32) == total).all()


BASE: dict[type, dict[str, Any]] = {
    Transpose: dict(rows=3, columns=5, size=4, a=0, b=4096),
    Softmax: dict(rows=3, columns=5, format=C.BFLOAT16, x=0, y=4096), LayerNorm: dict(rows=3, columns=5, format=C.BFLOAT16, x=0, y=4096),
    Elementwise: dict(op=SfuOp.ADD, rows=3, columns=5, format=C.FLOAT16, x=0, y=4096, b=0),
    Gather: dict(lookups=3, row_bytes=5, table=0, index=4, y=4096),
    EmbeddingBag: dict(offsets=(0, 3, 5), columns=5, format=C.FLOAT16, table=0, index=4, y=4096),
    Interaction: dict(samples=3, vectors=7, k=24, format=DotFormat.BFLOAT16, v=0, x=4096, stride_x=90),
}


@pytest.mark.parametrize(("kind", "change", "message"), [
    (Transpose, dict(rows=0), "transpose of 0x5 elements of 4 bytes: sizes start at 1"),
    (Transpose, dict(size=3), "elements of 3 bytes: expected elements of 1, 2 or 4 bytes"),
    (Transpose, dict(stride=19), "stride = 19; expected at least the 20 bytes of a row"),
    (Transpose, dict(stride_out=1 << 31), "stride_out = 2147483648; expected at least the 12 bytes of a row, below 2^31"),
    (Softmax, dict(rows=0), "softmax of 0 rows of 5 elements in bfloat16: sizes start at 1"),
    (Softmax, dict(columns=9999, rows=2), "softmax of 2 rows of 9999 elements in bfloat16: buffers of 120192 bytes for one row; expected at most the 65536 of local memory"),
    (Softmax, dict(format=C.FLOAT4_E2M1FN), "format = <ConvertFormat.FLOAT4_E2M1FN: 8>; expected one of float32, tfloat32, bfloat16"),
    (LayerNorm, dict(stride=9), "stride = 9; expected at least the 10 bytes of a row"),
    (LayerNorm, dict(epsilon=-1.0), "epsilon = -1.0; expected a number from 0 to the largest of float32"),
    (Elementwise, dict(op=SfuOp.ROW_SUM), "ROW_SUM of 3x5 elements in float16: expected one of EXP, EXP2"),
    (Elementwise, dict(source_b=SfuB.ELEMENTS, stride_b=8), "stride_b = 8; expected at least the 10 bytes of a row"),
    (Elementwise, dict(format_out=C.FLOAT8_E8M0FNU), "format_out = <ConvertFormat.FLOAT8_E8M0FNU"),
    (Gather, dict(index=2), "gather of 3 rows of 5 bytes, indices at 0x2: expected lookups from 0 on, and indices at a multiple of 4"),
    (Gather, dict(row_bytes=1 << 16), "198656 bytes of buffers; expected at most the 65536 of local memory"),
    (EmbeddingBag, dict(offsets=(0, 5, 3)), "offsets that end in (0, 5, 3); expected a piece of 1 or more, and offsets from 0 on that never fall"),
    (EmbeddingBag, dict(offsets=(0, 9999), piece=9999), "bytes for a piece of 9999 lookups; expected at most the 65536 of local memory: a smaller `piece`"),
    (Interaction, dict(vectors=1), "interaction of 3 samples of 1 vectors of 24: expected two vectors or more"),
    (Interaction, dict(format=DotFormat.INT8), "int8; expected bfloat16 or float16 or tfloat32"),
    (Interaction, dict(format=DotFormat.TFLOAT32), "tfloat32: expected `pairs` with tfloat32, and not without"),
    (Interaction, dict(stride_x=89), "stride_x = 89; expected at least the 90 bytes of a row"),
    (Interaction, dict(vectors=65, stride_x=9000), "expected at most 64 vectors, and twice the 20864 bytes of a sample"),
    (Interaction, dict(k=100000, stride_x=1 << 20), "twice the 1600512 bytes of a sample and its products in the 65536 bytes of local memory"),
], ids=str)
def test_refusals(kind: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as e:
        kind(**BASE[kind] | change).program(TINY)  # type: ignore[index]
    assert message in str(e.value)
