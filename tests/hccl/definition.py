"""All-reduce as the documentation states it, written out once more for the tests, and data that provokes mistakes.

Nothing of `hccl` or `golden` is used: the 16-bit types go through ml_dtypes and NumPy, each op rounded once.
"""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np

DTYPES = ("float32", "bfloat16", "float16", "int32")
OPS = ("sum", "min", "max", "avg")
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}
CANONICAL = {"float32": 0x7FC00000, "bfloat16": 0x7FC0, "float16": 0x7E00}
NUMPY = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "int32": np.int32}


def words(x: np.ndarray) -> np.ndarray:
    """Bit patterns of an array."""
    return np.ascontiguousarray(x).reshape(-1).view(f"<u{x.dtype.itemsize}")


def _op(a: np.ndarray, b: np.ndarray, op: str, scale: np.float32 | None) -> np.ndarray:
    """binary32 result of one op, unrounded to the element type."""
    if op in ("sum", "avg"):
        r = a + b
    else:
        less = (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))
        r = np.where(less if op == "min" else ~less & ~((a == b) & (np.signbit(a) == np.signbit(b))), a, b)
        r = np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), r)
    return r if scale is None else r * scale


def all_reduce(vectors: list[np.ndarray], dtype: str, op: str) -> np.ndarray:
    """Bit patterns every rank must hold; `vectors` are bit patterns."""
    n, size = len(vectors), ITEMSIZE[dtype]
    if n == 1:
        return vectors[0].copy()
    count = vectors[0].size
    units = math.ceil(count * size / 64)
    out = np.empty_like(vectors[0])
    for c in range(n):
        lo, hi = (min(count, math.ceil(units * k / n) * 64 // size) for k in (c, c + 1))
        parts = [vectors[(c + k) % n][lo:hi] for k in range(n)]
        acc = parts[0]
        for k, part in enumerate(parts[1:], 1):
            if dtype == "int32":
                a, b = acc.view(np.int32), part.view(np.int32)
                r = (a.astype(np.int64) + b) if op == "sum" else np.minimum(a, b) if op == "min" else np.maximum(a, b)
                acc = (r.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
                continue
            scale = np.float32(1) / np.float32(n) if op == "avg" and k == n - 1 else None
            with np.errstate(all="ignore"):
                wide = [x.view(NUMPY[dtype]).astype(np.float32) for x in (acc, part)]
                narrow = _op(*wide, op, scale).astype(np.float32).astype(NUMPY[dtype])
            acc = np.where(np.isnan(narrow), np.array(CANONICAL[dtype], out.dtype), narrow.view(out.dtype))
        out[lo:hi] = acc
    return out


def data(rng: np.random.Generator, ranks: int, count: int, dtype: str) -> list[np.ndarray]:
    """Random bit patterns: half of them any pattern at all (NaN, infinities, subnormals), half of like size, so sums cancel."""
    out = []
    for _ in range(ranks):
        kind = np.uint32 if ITEMSIZE[dtype] == 4 else np.uint16
        x = rng.integers(0, 1 << (8 * ITEMSIZE[dtype]), count).astype(kind)
        if dtype != "int32":
            near = rng.standard_normal(count).astype(np.float32).astype(NUMPY[dtype]).view(kind)
            x = np.where(rng.random(count) < 0.5, x, near)
        out.append(x)
    return out


def as_array(bits: np.ndarray, dtype: str) -> np.ndarray:
    """What a caller passes: bfloat16 stays uint16 bit patterns."""
    return bits if dtype == "bfloat16" else bits.view(NUMPY[dtype])
