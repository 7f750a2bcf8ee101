"""GEMM programs on the golden processing element: the bits of the dot product and its accumulation, in every shape and format; nothing else is written."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.numeric import convert, fp32
from golden.pe.dot_product import dot_product
from golden.pe.kernels.gemm import Gemm, pack_rows, row_bytes, scale_rows
from golden.pe.processing_element import ProcessingElement
from spec.assembly import assemble, disassemble
from spec.isa import CpStatus, OutFormat
from spec.params import PeParams, config
from spec.pe import DotFormat
from tb.pe.dot_jobs import SCALED, codes

TINY = config("tiny").node.pe


def problem(seed: int, pe: PeParams, m: int, n: int, k: int, fmt: DotFormat, *, bias: bool = False, relu: bool = False, out: OutFormat = OutFormat.FLOAT32, mx: int = 0,
            other: DotFormat | None = None) -> tuple[Gemm, np.ndarray, np.ndarray, np.ndarray]:
    """(GEMM, memory before, bytes of C row by row as they must be, cells that may change)."""
    rng = np.random.default_rng(seed)
    fmt_w = other or fmt
    a, w = (np.concatenate([codes(rng, f, r) for _ in range(-(-k // f.lanes))], axis=1)[:, :k] for f, r in ((fmt, m), (fmt_w, n)))
    size = 4 if out == OutFormat.FLOAT32 else 2
    memory = rng.integers(0, 256, 1 << 21, dtype=np.uint8)
    at = 64

    def put(data: np.ndarray, align: int = 64) -> int:
        nonlocal at
        at = -(-at // align) * align
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        memory[at : at + len(flat)] = flat
        at += len(flat)
        return at - len(flat)

    place_a, place_w = put(pack_rows(a, fmt)), put(pack_rows(w, fmt_w))
    kw = {}
    sa = sw = None
    if mx:
        sa, sw = (rng.integers(100, 150, (r, -(-k // mx))).astype(np.uint8) for r in (m, n))
        kw = dict(mx=mx, scale_a=put(scale_rows(sa, fmt, mx)), scale_w=put(scale_rows(sw, fmt_w, mx)))
    values = fp32.as_bits(rng.standard_normal(n).astype(np.float32).view(np.uint32))
    if bias:
        kw["bias"] = put(values, 4)
    stride_c = n * size + int(rng.integers(0, 50))
    place_c = at + int(rng.integers(0, 200))
    gemm = Gemm(m=m, n=n, k=k, format_a=fmt, format_w=fmt_w, a=place_a, w=place_w, c=place_c, stride_c=stride_c, out=out, relu=relu, **kw)
    kind = np.uint8 if fmt is DotFormat.INT8 else np.uint32
    want = dot_product(a.astype(kind), w.astype(kind), fmt.name.lower(), fmt_w.name.lower(), bias=values[None] if bias else None,
                       **(dict(scale_a=sa, scale_b=sw, block=mx) if mx else {}))
    if relu:
        want = np.where((want >> 31 != 0) & ((fmt is DotFormat.INT8) | ~fp32.is_nan(want)), 0, want).astype(np.uint32)
    if out != OutFormat.FLOAT32:
        want = convert.narrow(want, out.name.lower())
    data = np.ascontiguousarray(want).view(np.uint8)
    cells = place_c + stride_c * np.arange(m)[:, None] + np.arange(n * size)
    return gemm, memory, data, cells


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
    check(TINY, *problem(1, TINY, 33, 13, 3 * fmt.lanes - 6, fmt))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 9, 32), (127, 65, 33), (3, 200, 70), (200, 3, 500), (64, 64, 64), (65, 129, 31)])
@pytest.mark.parametrize("out", list(OutFormat), ids=lambda o: o.name.lower())
def test_shapes(m: int, n: int, k: int, out: OutFormat) -> None:
    check(TINY, *problem(2, TINY, m, n, k, DotFormat.BFLOAT16, bias=True, relu=n % 2 == 1, out=out))


@pytest.mark.parametrize("fmt", SCALED, ids=lambda f: f.name.lower())
@pytest.mark.parametrize("block", [16, 32])
def test_mx(fmt: DotFormat, block: int) -> None:
    check(TINY, *problem(3, TINY, 40, 21, 2 * fmt.lanes + block + 2, fmt, mx=block))


def test_formats_may_differ() -> None:
    check(TINY, *problem(4, TINY, 9, 10, 100, DotFormat.FLOAT8_E4M3FN, other=DotFormat.FLOAT8_E5M2, mx=32))


def test_large_configuration_and_text() -> None:
    pe = config("small").node.pe
    case = problem(5, pe, 100, 150, 200, DotFormat.BFLOAT16, bias=True)
    program = case[0].program(pe)
    assert assemble(disassemble(program)) == program
    check(pe, *case)


@settings(max_examples=40)
@given(st.integers(1, 90), st.integers(1, 70), st.integers(1, 150), st.sampled_from([f for f in DotFormat if f.slot_bits > 4]), st.booleans(), st.booleans(), st.integers(0, 99))
def test_any_shape(m: int, n: int, k: int, fmt: DotFormat, bias: bool, relu: bool, seed: int) -> None:
    check(TINY, *problem(seed, TINY, m, n, k, fmt, bias=bias and fmt is not DotFormat.INT8, relu=relu))


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
