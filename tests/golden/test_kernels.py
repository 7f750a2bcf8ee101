"""Kernels on the golden processing element: bits equal the direct definition in every shape and format; nothing else in memory is written."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from golden.pe.kernels import interaction, transpose
from golden.pe.kernels.interaction import Interaction
from golden.pe.kernels.transpose import Transpose
from golden.pe.processing_element import ProcessingElement
from spec.assembly import assemble, disassemble
from spec.isa import CpStatus
from spec.params import config
from spec.pe import DotFormat
from tb.pe.kernel_jobs import Job, Problem

PE = {name: config(name).node.pe for name in ("tiny", "small", "mtia300")}
TINY = PE["tiny"]
SHAPES = [(1, 1), (1, 7), (9, 1), (64, 64), (131, 67), (1, 5003), (5003, 1), (3, 777), (257, 521)]


def check(job: Job, name: str = "tiny") -> None:
    pe, program = PE[name], job.kernel.program(PE[name])
    memory = job.memory.copy()
    done = ProcessingElement(pe, memory).run(program)
    assert {c.status for c in done} == {CpStatus.OK}, [c for c in done if c.status != CpStatus.OK][:3]
    wrong = np.flatnonzero(memory != job.want)
    assert not len(wrong), f"{job.kernel}: {len(wrong)} bytes of memory differ, the first at {wrong[0]:#x}"
    assert (job.memory != job.want).any(), "the result lay there before"
    assert job.kernel.bound(pe) > 0 and assemble(disassemble(program)) == program


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_transpose(rows: int, columns: int, size: int) -> None:
    check(Problem(rows + size).transpose(rows, columns, size))
    check(Problem(rows + size).transpose(rows, columns, size, packed=True), "mtia300")


def test_transpose_is_of_what_numpy_says() -> None:
    assert transpose.direct(np.arange(6).reshape(2, 3)).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("name", list(PE))
@pytest.mark.parametrize("fmt", [DotFormat.BFLOAT16, DotFormat.FLOAT16], ids=lambda f: f.name.lower())
@pytest.mark.parametrize(("samples", "vectors", "k"), [(1, 2, 1), (5, 7, 24), (100, 7, 24), (67, 3, 65), (3, 32, 40), (9, 33, 33)])
def test_interaction(name: str, fmt: DotFormat, samples: int, vectors: int, k: int) -> None:
    check(Problem(samples).interaction(samples, vectors, k, fmt), name)


def test_interaction_order() -> None:
    v = np.array([[[0x3F80], [0x4000], [0x4040]]], np.uint16)  # 1, 2, 3
    assert interaction.direct(v, DotFormat.BFLOAT16).tolist() == [[0x3F80, 0x4000, 0x4040, 0x40C0]]  # 1; 2, 3; 6


BASE: dict[type, dict[str, Any]] = {
    Transpose: dict(rows=3, columns=5, size=4, a=0, b=4096),
    Interaction: dict(samples=3, vectors=7, k=24, format=DotFormat.BFLOAT16, v=0, x=4096, stride_x=90),
}


@pytest.mark.parametrize(("kind", "change", "message"), [
    (Transpose, dict(rows=0), "transpose of 0x5 elements of 4 bytes: sizes start at 1"),
    (Transpose, dict(size=3), "elements of 3 bytes: expected elements of 1, 2 or 4 bytes"),
    (Transpose, dict(stride=19), "stride = 19; expected at least the 20 bytes of a row"),
    (Transpose, dict(stride_out=1 << 31), "stride_out = 2147483648; expected at least the 12 bytes of a row, below 2^31"),
    (Interaction, dict(vectors=1), "interaction of 3 samples of 1 vectors of 24: expected two vectors or more"),
    (Interaction, dict(format=DotFormat.INT8), "int8; expected bfloat16 or float16"),
    (Interaction, dict(stride_x=89), "stride_x = 89; expected at least the 90 bytes of a row"),
    (Interaction, dict(vectors=65, stride_x=9000), "expected at most 64 vectors, and twice the 16640 bytes of a sample"),
    (Interaction, dict(k=100000, stride_x=1 << 20), "twice the 1400448 bytes of a sample and its products in the 65536 bytes of local memory"),
], ids=str)
def test_refusals(kind: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as e:
        kind(**BASE[kind] | change).program(TINY)  # type: ignore[index]
    assert message in str(e.value)
