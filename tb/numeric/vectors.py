"""Operand vectors for the number benches: binary32 patterns weighted to the extremes, and the directed cases."""
from __future__ import annotations

import numpy as np

#: Zeros, subnormals, the limits of every binade that matters, Inf, quiet and signalling NaN (positive; both signs are used).
CORNERS = np.array([
    0x00000000, 0x00000001, 0x00000002, 0x00000003, 0x003FFFFF, 0x00400000, 0x007FFFFE, 0x007FFFFF, 0x00800000, 0x00800001,
    0x00FFFFFF, 0x01000000, 0x33800000, 0x33800001, 0x337FFFFF, 0x34000000, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001,
    0x3FFFFFFF, 0x40000000, 0x4B800000, 0x4B7FFFFF, 0x4B800001, 0x7EFFFFFF, 0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000,
    0x7F800001, 0x7FA00000, 0x7FBFFFFF, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0x477FF000, 0x477FEFFF, 0x387FC000, 0x33000000,
], np.uint32)


def corner_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Every pair of corners, all signs."""
    c = np.concatenate([CORNERS, CORNERS | np.uint32(0x80000000)])
    a, b = np.meshgrid(c, c)
    return a.ravel(), b.ravel()


def floats(rng: np.random.Generator, n: int) -> np.ndarray:
    """`n` patterns: uniform bits, small and large exponents, subnormals, near powers of two, corners."""
    bits = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    sign = bits & np.uint32(0x80000000)
    frac = bits & np.uint32(0x007FFFFF)
    exp = rng.integers(0, 256, n, dtype=np.uint32) << np.uint32(23)
    one = np.uint32(1) << rng.integers(0, 23, n, dtype=np.uint32)
    kinds = [
        bits,
        sign | frac,
        sign | np.uint32(0x7F000000) | (bits & np.uint32(0x00FFFFFF)),
        sign | np.uint32(0x3F000000) | (bits & np.uint32(0x00FFFFFF)),
        sign | exp | one,
        sign | exp | (np.uint32(0x800000) - one) & np.uint32(0x7FFFFF),
        sign | rng.integers(0, 4, n, dtype=np.uint32) << np.uint32(23) | frac,
        sign | rng.choice(CORNERS, n),
    ]
    return np.choose(rng.integers(0, len(kinds), n), kinds).astype(np.uint32)


def pairs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """`n` operand pairs; a quarter are close to each other's negative or within a few binades (cancellation, alignment)."""
    a, b = floats(rng, n), floats(rng, n)
    near = a ^ np.uint32(0x80000000) ^ rng.integers(0, 8, n, dtype=np.uint32)
    shift = rng.integers(0, 30, n, dtype=np.uint32) << np.uint32(23)
    binade = (b & np.uint32(0x807FFFFF)) | ((a & np.uint32(0x7F800000)) - np.minimum(shift, a & np.uint32(0x7F800000)))
    b = np.choose(rng.choice(4, n, p=[0.125, 0.25, 0.125, 0.5]), [near, binade, a, b]).astype(np.uint32)
    return a, b


def rows(*columns: np.ndarray, nbytes: int) -> np.ndarray:
    """Little-endian words of the columns' bytes in order, cut to `nbytes`."""
    parts = [np.ascontiguousarray(c).view(np.uint8).reshape(len(c), -1) for c in columns]
    return np.ascontiguousarray(np.concatenate(parts, axis=1)[:, :nbytes])


def words32(data: np.ndarray) -> np.ndarray:
    """(n, 4) rows as uint32."""
    return np.ascontiguousarray(data).view(np.uint32).ravel()


def mismatch(what: str, got: np.ndarray, want: np.ndarray, *inputs: np.ndarray) -> str:
    """Text of the first differences, empty if none."""
    bad = np.flatnonzero(got != want)
    lines = [f"{what}: {len(bad)} of {len(got)} differ"] if len(bad) else []
    for i in bad[:5]:
        lines.append("  " + " ".join(f"{int(x[i]):#010x}" for x in inputs) + f" -> {int(got[i]):#010x}, expected {int(want[i]):#010x}")
    return "\n".join(lines)
