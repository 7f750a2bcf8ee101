"""Conversions beside torch, where it is installed (`pip install -e '.[torch]'`): the same codes, but for the differences named here.

torch 2.13 on CPU, measured: NaN keeps its sign in the 16-bit formats and float8_e5m2 and becomes 0x7F or 0xFF in float8_e4m3fn; here NaN is canonical. Finite numbers and
infinities beyond float8_e4m3fn's range follow neither mode of this project alone: see `test_float8_overflow`.
"""
from __future__ import annotations

import numpy as np
import pytest

from golden.numeric import convert, fp32
from spec.formats import format_of
from tb.numeric import vectors

torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`): no cross-check with it")

FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
WIDTH = {"bfloat16": (torch.int16, np.uint16), "float16": (torch.int16, np.uint16), "float8_e4m3fn": (torch.uint8, np.uint8), "float8_e5m2": (torch.uint8, np.uint8)}


def by_torch(bits: np.ndarray, name: str) -> np.ndarray:
    """Codes of `name` of binary32 patterns."""
    as_int, as_uint = WIDTH[name]
    x = torch.from_numpy(bits.view(np.float32).copy())
    return x.to(getattr(torch, name)).view(as_int).numpy().view(as_uint)


def inputs() -> np.ndarray:
    rng = np.random.default_rng(8)
    return np.concatenate([vectors.floats(rng, 400_000), *vectors.corner_pairs()]).astype(np.uint32)


@pytest.mark.parametrize("name", FORMATS)
def test_narrowing(name: str) -> None:
    """All numbers within the format's range, ties and subnormals among them."""
    x, f = inputs(), format_of(name)
    ours = convert.narrow(x, name, "ovf")
    finite = ~fp32.is_nan(x) & ((ours & f.magnitude_mask) <= f.max_code)
    assert finite.sum() > 100_000
    assert (by_torch(x, name)[finite] == ours[finite]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_widening(name: str) -> None:
    """All codes but NaN."""
    as_int, as_uint = WIDTH[name]
    f = format_of(name)
    codes = np.array([c for c in range(1 << f.bits) if not f.is_nan(c)], as_uint)
    theirs = torch.from_numpy(codes.view(np.int16 if f.bits == 16 else np.uint8)).view(getattr(torch, name)).to(torch.float32).numpy().view(np.uint32)
    assert (theirs == convert.widen(codes, name)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_nan_stays_nan(name: str) -> None:
    x = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF], np.uint32)
    f = format_of(name)
    assert all(f.is_nan(int(c)) for c in by_torch(x, name))
    assert (convert.narrow(x, name) == f.nan_code).all()


def test_16_bit_overflow() -> None:
    x = np.array([0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x477FF000, 0x477FEFFF], np.uint32)
    for name in ("bfloat16", "float16", "float8_e5m2"):
        assert (by_torch(x, name) == convert.narrow(x, name, "ovf")).all(), name


def test_float8_overflow() -> None:
    """448 and 464 stay, 465 and infinity are NaN here (`ovf`) or 448 (`sat`); torch gives one of the two."""
    x = np.array([448, 464, 465, 1e9, np.inf, -465], np.float32).view(np.uint32)
    theirs = by_torch(x, "float8_e4m3fn")
    both = [convert.narrow(x, "float8_e4m3fn", mode) for mode in ("ovf", "sat")]
    assert list(both[0][:2]) == list(theirs[:2]) == [0x7E, 0x7E]
    for t, o, s in zip(theirs[2:], both[0][2:], both[1][2:], strict=True):
        assert t & 0x7F in (o & 0x7F, s & 0x7F)
