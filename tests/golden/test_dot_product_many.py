"""Dot product, very many: the golden model against a second one written another way (second_dot.cpp), bit for bit, in every format."""
from __future__ import annotations

import ctypes
import platform
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from bench import report
from golden.pe.dot_product import dot_product
from spec.formats import format_of
from spec.pe import DotFormat, Mx
from tb.pe.dot_jobs import SCALED, codes, scales

FAST, LONG = 50_000, 100_000_000
CASES = [(f, Mx.NONE) for f in DotFormat if f is not DotFormat.INT8] + [(f, mx) for f in SCALED for mx in (Mx.BLOCK_16, Mx.BLOCK_32)]
SEED = 20


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if platform.machine() not in ("x86_64", "i686", "AMD64"):
        pytest.skip("the second model needs the x87's 80-bit numbers")
    out = tmp_path_factory.mktemp("second") / "second_dot.so"
    subprocess.run(["g++", "-O3", "-shared", "-fPIC", "-o", str(out), str(Path(__file__).with_name("second_dot.cpp"))], check=True)
    return ctypes.CDLL(str(out))


def by_second(lib: ctypes.CDLL, a: np.ndarray, b: np.ndarray, name: str, sa: np.ndarray | None, sb: np.ndarray | None, block: int) -> np.ndarray:
    f = format_of(name)
    numbers = (ctypes.c_int * 5)(f.bits, f.exp_bits, f.frac_bits, f.bias, ("none", "ieee", "all_ones").index(f.nan))
    out = np.zeros((len(a), len(b)), np.uint32)
    a, b = (np.ascontiguousarray(x, np.uint32) for x in (a, b))
    sa, sb = (np.zeros(1, np.uint8) if s is None else np.ascontiguousarray(s) for s in (sa, sb))
    p = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, sa, sb, out)]
    lib.second_dot(p[0], p[1], len(a), len(b), a.shape[1], numbers, numbers, p[2], p[3], block, p[4])
    return out


def compare(lib: ctypes.CDLL, fmt: DotFormat, mx: Mx, count: int) -> str:
    """`count` dot products, rows drawn anew for every million; text of the rate."""
    rng = np.random.default_rng([SEED, fmt, mx])
    name, block = fmt.name.lower(), mx.block
    side, done, start = min(1000, int(count**0.5) + 1), 0, time.perf_counter()
    kinds: dict[str, int] = {"NaN": 0, "Inf": 0, "zero": 0, "subnormal": 0}
    while done < count:
        a, b = codes(rng, fmt, side), codes(rng, fmt, side)
        sa, sb = scales(rng, side, fmt.lanes, mx), scales(rng, side, fmt.lanes, mx)
        got = dot_product(a, b, name, scale_a=sa, scale_b=sb, block=block or None)
        want = by_second(lib, a, b, name, sa, sb, block)
        wrong = np.argwhere(got != want)
        if len(wrong):
            i, j = wrong[0]
            raise AssertionError(f"{name}, block {block}: {len(wrong)} of {got.size} differ: {got[i, j]:#010x}, second model {want[i, j]:#010x}\n{a[i]}\n{b[j]}")
        magnitude = got & 0x7FFFFFFF
        for kind, hit in (("NaN", magnitude > 0x7F800000), ("Inf", magnitude == 0x7F800000), ("zero", magnitude == 0), ("subnormal", (magnitude > 0) & (magnitude < 0x800000))):
            kinds[kind] += int(hit.sum())
        done += got.size
    return f"{name} block {block}: {done:,} equal, {kinds}, seed {SEED}, {done / (time.perf_counter() - start):,.0f} a second"


IDS = [f"{f.name.lower()}{f'-mx{mx.block}' if mx else ''}" for f, mx in CASES]


@pytest.mark.parametrize(("fmt", "mx"), CASES, ids=IDS)
def test_many(second: ctypes.CDLL, fmt: DotFormat, mx: Mx) -> None:
    compare(second, fmt, mx, FAST)


@pytest.mark.long
@pytest.mark.parametrize(("fmt", "mx"), CASES, ids=IDS)
def test_very_many(second: ctypes.CDLL, fmt: DotFormat, mx: Mx) -> None:
    """The counts go to ``build/report/dot_product_many/<format>.json``."""
    text = compare(second, fmt, mx, LONG)
    report.write(f"dot_product_many/{fmt.name.lower()}-{mx.block}", {"counts": text})
    print(text)
