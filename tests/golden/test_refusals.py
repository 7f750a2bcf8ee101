"""Whatever the number and engine models are given they answer, or refuse by a `raise` of their own: ValueError or TypeError that names what was wrong.

An error that comes out of NumPy or out of an index is none of theirs, and fails here.
"""
from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from golden.numeric import convert, convert_any, fp32, minmax, mx
from golden.pe import dma, layout_unit, local_memory, matrix_unit, reduction, sfu, sfu_rows
from golden.pe.dot_product import decode, dot_product, lanes
from golden.pe.processing_element import ProcessingElement
from spec.isa import DOT_ARGS
from spec.params import PeParams
from spec.sfu import SfuOp
from tb.lib.simulators import ROOT

PE = PeParams()
DTYPES = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "c8", "O", "U3")
NAMES = (*convert_any.NAMES, "float8_e8m0fnu", "float64", "int4", "", None, 3, ["float32"], np.uint8)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Small arrays of any type and shape, NumPy scalars, numbers, and what is no array at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from([None, "1.0", "", 3, -1, 1 << 32, 1 << 70, 1.5, float("nan"), 1j, True, [[1, 2], [3]], [1, "a"], {}, object(), [], [None]]))
    shape = draw(st.sampled_from([(), (0,), (1,), (3,), (1, 3), (2, 3), (3, 2), (2, 0), (2, 16), (3, 1, 3), (2, 64), (5,)]))
    a = np.asarray(draw(st.integers(0, 3)) * np.arange(int(np.prod(shape))).reshape(shape)).astype(draw(st.sampled_from(DTYPES)))
    if kind == 1 and a.ndim == 2:
        return a.T
    return a[()] if kind == 2 and a.ndim == 0 else a


names = st.sampled_from(NAMES)
modes = st.sampled_from(["ovf", "sat", "SAT", "", None, 1, ["sat"]])
seeds = st.sampled_from([None, 0, 7, np.uint32(3), -1, 1 << 32, 1.5, "1", True])
axes = st.sampled_from([-1, 0, 1, 2, -4, np.int64(0), None, 1.0, "0", (0, 1), True])
blocks = st.sampled_from([16, 32, 8, 0, -16, None, "16", 16.0, np.int64(16), [16]])
rules = st.sampled_from([*mx.RULES, "FLOOR", "", None, 0, ["floor"]])
ops = st.sampled_from([*SfuOp, 99, -1, None, "EXP", 1.5, [1], np.uint8(1)])
integers = st.sampled_from([0, 1, 2, 3, 64, 1 << 70, -1, None, 1.5, "1", np.uint8(2), True, [1]])
flags = st.sampled_from([False, True])


def ints(*fields: str) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(fields, integers)


def engine(call: str) -> Callable[..., Any]:
    return lambda *a, **k: getattr(reduction.ReductionEngine(PE), call)(*a, **k)


def local(call: str, ecc: bool) -> Callable[..., Any]:
    return lambda *a: getattr(local_memory.LocalMemory(PE.replace(ecc=ecc)), call)(*a)


CALLS: dict[str, tuple[Callable[..., Any], list[st.SearchStrategy[Any]], dict[str, st.SearchStrategy[Any]]]] = {
    "fp32.add": (fp32.add, [arrays(), arrays()], {}), "fp32.mul": (fp32.mul, [arrays(), arrays()], {}), "fp32.canonical": (fp32.canonical, [arrays()], {}),
    **{f"minmax.{f.__name__}": (f, [arrays(), arrays()], {}) for f in (minmax.fmin, minmax.fmax, minmax.imin, minmax.imax)},
    **{f"minmax.{f.__name__}": (f, [arrays(), arrays(), names], {}) for f in (minmax.minimum, minmax.maximum)},
    "convert.widen": (convert.widen, [arrays(), names], {}), "convert.drops_nan": (convert.drops_nan, [arrays(), names], {}),
    "convert.narrow": (convert.narrow, [arrays(), names], {"mode": modes, "seed": seeds, "index": st.none() | arrays()}),
    "convert": (convert_any.convert, [arrays(), names, names], {"mode": modes, "seed": seeds, "index": st.none() | arrays()}),
    "flags": (convert_any.flags, [arrays(), names, names], {"mode": modes, "seed": seeds, "index": st.none() | arrays()}),
    "mx.encode": (mx.encode, [arrays(), names], {"block": blocks, "rule": rules, "mode": modes, "axis": axes}),
    "mx.decode": (mx.decode, [arrays(), arrays(), names], {"block": blocks, "axis": axes}),
    "mx.scale_codes": (mx.scale_codes, [arrays(), names, rules], {}),
    "lanes": (lanes, [names], {}), "dot.decode": (decode, [arrays(), names], {"scale": st.none() | arrays(), "block": blocks}),
    "dot_product": (dot_product, [arrays(), arrays(), names], {
        "format_b": names, "bias": st.none() | arrays(), "scale_a": st.none() | arrays(), "scale_b": st.none() | arrays(), "block": blocks}),
    "sfu.unary": (sfu.unary, [ops, arrays(), names], {"format_out": names}),
    "sfu.binary": (sfu.binary, [ops, arrays(), arrays(), names], {"format_b": names, "format_out": names}),
    "sfu.clamp": (sfu.clamp, [arrays(), arrays(), arrays(), names], {"format_low": names, "format_out": names}),
    "sfu.row": (sfu_rows.row, [ops, arrays(), names], {"format_out": names}), "softmax": (sfu_rows.softmax, [arrays(), names], {"format_out": names}),
    "layer_norm": (lambda x, n, e, **k: sfu_rows.layer_norm(x, n, epsilon=e, **k), [arrays(), names, integers], {"gamma": st.none() | arrays(), "beta": st.none() | arrays(), "format_out": names}),
    "rms_norm": (lambda x, n, e, **k: sfu_rows.rms_norm(x, n, epsilon=e, **k), [arrays(), names, integers], {"gamma": st.none() | arrays(), "format_out": names}),
    "reduction.add": (reduction.add, [arrays(), arrays()], {"integer": flags}), "reduction.extremes": (reduction.extremes, [arrays()], {"integer": flags}),
    "reduction.chain": (reduction.chain, [arrays()], {"integer": flags}),
    "reduction.load": (engine("load"), [integers, integers, arrays()], {}),
    "reduction.accumulate": (engine("accumulate"), [integers, integers, arrays()], {"first": flags, "integer": flags}),
    "reduction.drain": (engine("drain"), [integers, integers, integers], {"partials": st.none() | arrays(), "integer": flags}),
    **{f"local.{c}{'-ecc' * e}": (local(c, e), a, {}) for e in (False, True) for c, a in (
        ("read", [integers]), ("bank", [integers]), ("load", [integers, arrays()]), ("write", [integers, arrays(), arrays(), st.none() | arrays()]))},
    "layout.run": (lambda memory, **job: layout_unit.run(memory, job), [arrays()], ints("op", "size", "rows", "columns", "source", "source_stride", "destination", "destination_stride")),
    "dma.Space": (dma.Space, [arrays()], {}),
    "dma.run": (lambda **d: dma.DmaEngine(dma.Space(np.zeros(4096, np.uint8)), dma.Space(np.zeros(4096, np.uint8))).run([d]), [], ints("op", "src_local", "dst_local", "row_bytes", "src", "dst", "rows", "planes", "repeats", "row_src", "index")),
    "matrix.dot": (lambda memory, a, b, **args: matrix_unit.dot(memory, dict.fromkeys(DOT_ARGS.widths, 1) | args, a, b), [arrays(), integers, integers], ints("held", "rows", "chunks", "tail", "format_a", "mx_a", "stride_a", "stride_b", "scale_a")),
    "ProcessingElement": (lambda memory: ProcessingElement(PE, memory), [arrays()], {}),
}


def refused(e: BaseException) -> bool:
    """Whether an error is a refusal by this project's own `raise`."""
    at = e.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    assert at is not None
    file = at.tb_frame.f_code.co_filename
    line = linecache.getline(file, at.tb_lineno).strip()
    return isinstance(e, ValueError | TypeError) and file.startswith((str(ROOT / "golden"), str(ROOT / "spec"))) and line.startswith("raise")


@pytest.mark.parametrize("name", list(CALLS))
def test_answered_or_refused(name: str) -> None:
    call, positional, keywords = CALLS[name]

    @settings(max_examples=60, phases=[Phase.generate])
    @given(st.tuples(*positional), st.fixed_dictionaries({}, optional=keywords))
    def check(args: tuple[Any, ...], kw: dict[str, Any]) -> None:
        try:
            call(*args, **kw)
        except Exception as e:
            assert refused(e) and len(str(e)) > 10, f"{type(e).__name__}: {e}"

    check()


ROW = np.zeros((2, 3), np.uint32)
JOB = dict.fromkeys(DOT_ARGS.widths, 1) | {"stride_a": 64, "stride_b": 64}


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: fp32.add(ROW, np.zeros(2, np.uint32)), ValueError, r"binary32 add: a of shape \(2, 3\), b of shape \(2,\); expected shapes that broadcast"),
    (lambda: fp32.mul(ROW, [0.5]), TypeError, "b: expected uint32 bit patterns .*, not float64"), (lambda: fp32.add(-1, 0), TypeError, "a: expected .* not -1"),
    (lambda: minmax.fmin(ROW, np.zeros(2, np.uint32)), ValueError, "minimum: a of shape"),
    (lambda: minmax.imax(ROW, np.zeros(2, np.uint32)), ValueError, "int32 maximum: a of shape"),
    (lambda: reduction.add(ROW, np.zeros(2, np.uint32)), ValueError, "accumulation: a of shape"),
    (lambda: sfu.binary(SfuOp.ADD, ROW, np.zeros(2, np.uint32), "float32"), ValueError, "ADD: a of shape"),
    (lambda: sfu.clamp(ROW, np.zeros(2, np.uint32), 0, "float32"), ValueError, r"CLAMP: x of shape \(2, 3\), low of shape \(2,\), high of shape \(\)"),
    (lambda: mx.encode(ROW, "float8_e5m2", axis=None), TypeError, "axis = None; expected an integer"),
    (lambda: mx.encode(ROW, "float8_e5m2", axis=2), ValueError, "axis 2 of an array of 2 dimensions"),
    (lambda: mx.scale_codes(np.array([0x7F800000], np.uint32), "float8_e5m2", "floor"), ValueError, "amax up to 0x7f800000; expected finite"),
    (lambda: convert.narrow([[1, 2], [3]], "bfloat16"), TypeError, "bits32: expected an array of numbers"),
    (lambda: matrix_unit.dot(np.zeros(64, np.uint8), JOB | {"chunks": 2}, 0, 0), ValueError, "operand a: bytes 0x0 to 0x7f; local memory has 0x40 bytes"),
    (lambda: matrix_unit.dot(np.zeros(64, np.uint8), {}, 0, 0), ValueError, "DOT_ARGS without"),
    (lambda: layout_unit.run(np.zeros(64, np.uint8), {"op": 0}), ValueError, "job without size"),
    (lambda: dma.Space(np.zeros((2, 64), np.uint8)), ValueError, r"memory of shape \(2, 64\); expected one dimension"),
    (lambda: local_memory.LocalMemory(PE).read(1 << 20), ValueError, "row of local memory = 1048576; expected an integer from 0 to 1023"),
])
def test_refusals_say_what_and_where(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("source", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "int32"])
def test_single_numbers_to_integers(source: str, target: str) -> None:
    """A NumPy scalar and an array without dimensions convert as an array of one does."""
    value = {"float32": np.float32(-3.5).view(np.uint32), "bfloat16": np.uint16(0xC060), "int32": np.int32(-4)}[source]
    for seed in (None, 7):
        for call in (convert_any.convert, convert_any.flags):
            whole = call(np.array([value]), source, target, seed=seed)
            for one in (call(value, source, target, seed=seed), call(np.array(value), source, target, seed=seed)):
                assert isinstance(one, np.ndarray) and one.shape == () and one.dtype == whole.dtype and one == whole[0]


def test_pairs_of_formats_that_the_contract_names() -> None:
    assert dot_product([[0x3FC0]], [[0x4000]], "bfloat16", "float16") == np.float32(3).view(np.uint32)
    assert dot_product([[0x38]], [[0x3C]], "float8_e4m3fn", "float8_e5m2") == np.float32(1).view(np.uint32)
    with pytest.raises(ValueError, match="bfloat16 with tfloat32: the engine has no such pair"):
        dot_product([[0]], [[0]], "bfloat16", "tfloat32")
