"""GEMM programs on the golden processing element: the bits of the dot product and its accumulation, in every shape and format; nothing else is written."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.numeric import convert, fp32
from golden.pe.command_processor import CommandProcessor
from golden.pe.dot_product import dot_product
from golden.pe.kernels.gemm import Gemm, pack_rows, row_bytes, scale_rows
from golden.pe.processing_element import ProcessingElement
from spec.assembly import assemble, disassemble
from spec.isa import CpStatus, OutFormat
from spec.params import PeParams, config
from spec.pe import DotFormat
from tb.pe.dot_jobs import SCALED
from tb.pe.pe_jobs import Image

TINY = config("tiny").node.pe


def problem(seed: int, m: int, n: int, k: int, fmt: DotFormat, *, bias: bool = False, relu: bool = False, out: OutFormat = OutFormat.FLOAT32, mx: int = 0,
            other: DotFormat | None = None) -> tuple[Gemm, np.ndarray, np.ndarray, np.ndarray]:
    """(GEMM, memory before, bytes of C row by row as they must be, cells that may change)."""
    image = Image(np.random.default_rng(seed), 1 << 21, noise=1 << 21)
    gemm = image.gemm(m, n, k, fmt, bias=bias, relu=relu, out=out, mx=mx, other=other)
    a, w = image.a, image.w
    kind = np.uint8 if fmt is DotFormat.INT8 else np.uint32
    want = dot_product(a.codes.astype(kind), w.codes.astype(kind), a.fmt.name.lower(), w.fmt.name.lower(), bias=None if image.bias is None else image.bias[None],
                       **(dict(scale_a=a.scale, scale_b=w.scale, block=mx) if mx else {}))
    if relu:
        want = np.where((want >> 31 != 0) & ((fmt is DotFormat.INT8) | ~fp32.is_nan(want)), 0, want).astype(np.uint32)
    if out != OutFormat.FLOAT32:
        want = convert.narrow(want, out.name.lower())
    data = np.ascontiguousarray(want).view(np.uint8)
    cells = gemm.c + gemm.stride_c * np.arange(m)[:, None] + np.arange(data.shape[1])
    return gemm, image.bytes, data, cells


def check(pe: PeParams, gemm: Gemm, memory: np.ndarray, data: np.ndarray, cells: np.ndarray) -> None:
    want = memory.copy()
    want[cells] = data
    element = ProcessingElement(pe, memory)
    done = element.run(gemm.program(pe))
    assert {c.status for c in done} == {CpStatus.OK}, [c for c in done if c.status != CpStatus.OK][:3]
    wrong = np.flatnonzero(memory != want)
    assert not len(wrong), f"{gemm}: {len(wrong)} bytes of memory differ, the first at {wrong[0]:#x}"


@pytest.mark.parametrize("fmt", list(DotFormat), ids=lambda f: f.name.lower())
def test_every_format(fmt: DotFormat) -> None:
    check(TINY, *problem(1, 33, 13, 3 * fmt.lanes - 6, fmt))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 9, 32), (127, 65, 33), (3, 200, 70), (200, 3, 500), (64, 64, 64), (65, 129, 31)])
@pytest.mark.parametrize("out", list(OutFormat), ids=lambda o: o.name.lower())
def test_shapes(m: int, n: int, k: int, out: OutFormat) -> None:
    check(TINY, *problem(2, m, n, k, DotFormat.BFLOAT16, bias=True, relu=n % 2 == 1, out=out))


@pytest.mark.parametrize("fmt", SCALED, ids=lambda f: f.name.lower())
@pytest.mark.parametrize("block", [16, 32])
def test_mx(fmt: DotFormat, block: int) -> None:
    check(TINY, *problem(3, 40, 21, 2 * fmt.lanes + block + 2, fmt, mx=block))


def test_formats_may_differ() -> None:
    check(TINY, *problem(4, 9, 10, 100, DotFormat.FLOAT8_E4M3FN, other=DotFormat.FLOAT8_E5M2, mx=32))


def test_large_configuration_and_text() -> None:
    pe = config("small").node.pe
    case = problem(5, 100, 150, 200, DotFormat.BFLOAT16, bias=True)
    program = case[0].program(pe)
    assert assemble(disassemble(program)) == program
    check(pe, *case)


@settings(max_examples=40)
@given(st.integers(1, 90), st.integers(1, 70), st.integers(1, 150), st.sampled_from([f for f in DotFormat if f.slot_bits > 4]), st.booleans(), st.booleans(), st.integers(0, 99))
def test_any_shape(m: int, n: int, k: int, fmt: DotFormat, bias: bool, relu: bool, seed: int) -> None:
    check(TINY, *problem(seed, m, n, k, fmt, bias=bias and fmt is not DotFormat.INT8, relu=relu))


def test_refusals() -> None:
    base = dict(m=4, n=4, k=4, format_a=DotFormat.BFLOAT16, format_w=DotFormat.BFLOAT16, a=0, w=0, c=0, stride_c=16)
    with pytest.raises(ValueError, match="GEMM 4x4x1000000: rows of 2000000 bytes; two of A and 4 of W do not fit in 65536 bytes of local memory"):
        Gemm(**base | dict(k=1000000)).program(TINY)
    with pytest.raises(ValueError, match="GEMM 0x4x4: sizes start at 1"):
        Gemm(**base | dict(m=0)).program(TINY)
    with pytest.raises(ValueError, match="GEMM of int8 with results in bfloat16: they are int32 only"):
        Gemm(**base | dict(format_a=DotFormat.INT8, format_w=DotFormat.INT8, out=OutFormat.BFLOAT16)).program(TINY)
    with pytest.raises(ValueError, match="K = 5: rows of 4-bit elements hold an even number"):
        Gemm(**base | dict(k=5, format_a=DotFormat.FLOAT4_E2M1FN, format_w=DotFormat.FLOAT4_E2M1FN)).program(TINY)


def test_rows_in_memory() -> None:
    assert row_bytes(DotFormat.BFLOAT16, 33) == 128 and row_bytes(DotFormat.FLOAT4_E2M1FN, 128) == 64
    assert pack_rows(np.array([[1, 2, 3, 4]], np.uint32), DotFormat.FLOAT4_E2M1FN)[0, :3].tolist() == [0x21, 0x43, 0]
    s = scale_rows(np.arange(6).reshape(2, 3), DotFormat.FLOAT8_E4M3FN, 32)
    assert s.shape == (2, 2, 8) and s[:, 0].tolist() == [[0, 1] + [127] * 6, [2, 127] + [127] * 6]


@pytest.mark.parametrize("name", ["tiny", "small", "mtia300"])
def test_programs_start(name: str) -> None:
    """Shapes of all sizes, MX too: every instruction of the program starts, its operands in one piece, and all of A and C is given back."""
    pe = config(name).node.pe
    rng = np.random.default_rng(6)
    for i in range(150):
        m, n, k = (int(x) for x in np.exp(rng.uniform(0, np.log(1500), 3)))
        fmt = (DotFormat.BFLOAT16, DotFormat.FLOAT8_E4M3FN)[i % 2]
        gemm = Gemm(m=m, n=n, k=k, format_a=fmt, format_w=fmt, a=0, w=1 << 24, c=1 << 26, stride_c=4 * n, mx=32 * (i % 4 == 3), scale_a=1 << 27, scale_w=1 << 28)
        cp = CommandProcessor()
        done = cp.run([gemm.program(pe)], lambda *_: (0, 0))
        assert {c.status for c in done} == {CpStatus.OK}, f"{m}x{n}x{k}: {[c for c in done if c.status != CpStatus.OK][:2]}"
        assert all(b.avail == 0 for b in cp.buffers), f"{m}x{n}x{k}: {cp.buffers[:4]}"


def test_bound() -> None:
    """By hand: 3 groups of 4, 2 chunks, 10 rows; 1 x 1 x 1; results that take longer to move than to make."""
    base = dict(format_a=DotFormat.BFLOAT16, format_w=DotFormat.BFLOAT16, a=0, w=0, c=0, stride_c=0)
    assert Gemm(m=10, n=9, k=33, **base).bound(TINY, 100) == 100 + (5 + 3 * 2 * 10) + 1 + 100
    assert Gemm(m=1, n=1, k=1, **base).bound(TINY, 7) == 7 + 3 + 1 + 7
    assert Gemm(m=100, n=3, k=2, **base).bound(TINY, 0) == 103 + 100 + 1
    assert Gemm(m=2, n=8, k=32, **base).bound(TINY, 0) == 5 + 8 + 1  # groups of 4 load in 4 cycles
    fp8 = base | dict(format_a=DotFormat.FLOAT8_E4M3FN, format_w=DotFormat.FLOAT8_E4M3FN, mx=32)
    assert Gemm(m=10, n=9, k=65, **fp8).bound(TINY, 100) == 100 + (7 + 3 * 2 * 10) + 1 + 100
    assert Gemm(m=10, n=9, k=33, **base).slots(TINY) == 60
