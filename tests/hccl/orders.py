"""Every collective by its definition: the documented order of every algorithm and the arithmetic of every type, written out for the tests.

Nothing of `hccl` or `golden` is used. Vectors are bit patterns (unsigned integers).
"""
from __future__ import annotations

import math
import zlib

import ml_dtypes
import numpy as np

FLOATS = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2, "float64": np.float64,
}  # fmt: skip
NAN = {"float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E, "float64": 0x7FF8 << 48}
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
ARITHMETIC, BITWISE = ("sum", "prod", "min", "max", "avg", "premul_sum"), ("band", "bor", "bxor")
COMBOS = [
    *((d, o) for d in FLOATS for o in ARITHMETIC), *((d, o) for d in INTS for o in ARITHMETIC + BITWISE),
    *(("bool", o) for o in ("sum", "prod", "min", "max", *BITWISE)), *((d, o) for d in COMPLEX for o in ("sum", "prod", "avg", "premul_sum")),
]  # fmt: skip
SIZE = {"bool": 1, "complex32": 4, "complex64": 8, "complex128": 16, **{d: np.dtype(t).itemsize for d, t in FLOATS.items()}, **{d: np.dtype(d).itemsize for d in INTS}}


def words(dtype: str) -> np.dtype:
    """Unsigned integers that hold the patterns of an element, or of a part of it."""
    return np.dtype(f"u{min(SIZE[dtype], 8)}" if dtype not in COMPLEX else f"u{SIZE[dtype] // 2}")


def data(rng: np.random.Generator, count: int, dtype: str) -> np.ndarray:
    """Half any patterns, half small numbers."""
    kind = words(dtype)
    n = count * (SIZE[dtype] // kind.itemsize)
    x = np.frombuffer(rng.bytes(n * kind.itemsize), kind).copy()
    if dtype == "bool":
        return x & 1
    part = COMPLEX.get(dtype, dtype)
    if part in FLOATS:
        near = rng.standard_normal(n).astype(np.float32).astype(FLOATS[part]).view(kind)
        return np.where(rng.random(n) < 0.5, x, near)
    return x


def _wide(x: np.ndarray, part: str) -> np.ndarray:
    return x.view(np.float64) if part == "float64" else x.view(FLOATS[part]).astype(np.float32)


def _narrow(r: np.ndarray, part: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        y = r.astype(FLOATS[part])
    bits = y.view(words(part))
    return np.where(np.isnan(y.astype(np.float64)), np.array(NAN[part], bits.dtype), bits)


def combine(x: np.ndarray, y: np.ndarray, dtype: str, op: str, n: int = 1) -> np.ndarray:
    """Patterns of ``x op y``; `n` above 1: the last sum of an average over n."""
    with np.errstate(all="ignore"):
        if dtype == "bool":
            both = {"sum": x | y, "max": x | y, "bor": x | y, "prod": x & y, "min": x & y, "band": x & y, "bxor": x ^ y}
            return both[op]
        if dtype in INTS:
            a, b = x.view(dtype), y.view(dtype)
            r = {
                "sum": a + b, "avg": a + b, "premul_sum": a + b, "prod": a * b, "min": np.minimum(a, b), "max": np.maximum(a, b), "band": a & b,
                "bor": a | b, "bxor": a ^ b,
            }[op]  # fmt: skip
            if n > 1:
                r = np.array([int(v) // n if v >= 0 else -(-int(v) // n) for v in r], dtype=dtype)
            return r.view(x.dtype)
        part = COMPLEX.get(dtype, dtype)
        a, b = _wide(x, part), _wide(y, part)
        if dtype in COMPLEX and op == "prod":
            r = np.empty_like(a)
            r[::2], r[1::2] = a[::2] * b[::2] - a[1::2] * b[1::2], a[::2] * b[1::2] + a[1::2] * b[::2]
            return _narrow(r, part)
        if op in ("min", "max"):
            less = (a < b) | ((a == b) & np.signbit(a))
            r = np.where(np.isnan(a) | np.isnan(b), np.nan, np.where(less == (op == "min"), a, b)).astype(a.dtype)
        else:
            r = a * b if op == "prod" else a + b
        if n > 1:
            r = r * (r.dtype.type(1) / r.dtype.type(n))
        return _narrow(r, part)


def times(x: np.ndarray, dtype: str, factor: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        if dtype in INTS:
            return (x.view(dtype) * np.array(int(factor), dtype)).view(x.dtype)
        part = COMPLEX.get(dtype, dtype)
        a = _wide(x, part)
        return _narrow(a * a.dtype.type(factor), part)


class Sums:
    """Left folds over the ranks' vectors, one part of the vector at a time."""

    def __init__(self, vectors: list[np.ndarray], dtype: str, op: str):
        self.x, self.dtype, self.op, self.n = vectors, dtype, op, len(vectors)

    def fold(self, terms: list[np.ndarray], last: bool = False) -> np.ndarray:
        acc = terms[0]
        for k, t in enumerate(terms[1:], 2):
            acc = combine(acc, t, self.dtype, self.op, self.n if last and self.op == "avg" and k == len(terms) else 1)
        return acc

    def ranks(self, order: list[int]) -> np.ndarray:
        return self.fold([self.x[r % self.n] for r in order], True)

    def tree(self, listed: list[int], v: int = 0) -> np.ndarray:
        """(x[v] op y[2v+1]) op y[2v+2]"""
        return self.fold([self.x[listed[v] % self.n], *(self.tree(listed, c) for c in (2 * v + 1, 2 * v + 2) if c < self.n)], v == 0)

    def halving(self) -> np.ndarray:
        p = 2 ** int(math.log2(self.n))
        last = p == 1
        y = [self.fold([self.x[i], self.x[i + p]], last) if i + p < self.n else self.x[i] for i in range(p)]
        d = p // 2
        while d:
            y = [self.fold([y[i], y[i ^ d]], d == 1) for i in range(p)]
            d //= 2
        return y[0]

    def groups(self, groups: list[list[int]], first: int) -> np.ndarray:
        m = len(groups)
        if m == 1:
            return self.ranks(groups[0])
        return self.fold([self.fold([self.x[r] for r in groups[(first + k) % m]]) for k in range(m)], True)


def reduction(collective: str, algorithm: str, vectors: list[np.ndarray], dtype: str, op: str, *, root: int = 0, block: int = 0,
              groups: list[list[int]] | None = None) -> np.ndarray:  # fmt: skip
    """Result of reducing whole vectors; of reduce_scatter the block of rank `block` (`vectors` are that block of each rank)."""
    n, groups = len(vectors), groups or []
    if n == 1:
        return vectors[0].copy()

    def one(order, part: slice) -> np.ndarray:
        return order(Sums([v[part] for v in vectors], dtype, op))

    unit, every = 64 // vectors[0].dtype.itemsize, slice(None)
    units = -(-vectors[0].size // unit)
    if collective == "all_reduce" and algorithm in ("ring", "hierarchical", "double_tree"):
        parts = {"ring": n, "hierarchical": min(map(len, groups), default=1), "double_tree": 2}[algorithm]
        orders = {
            "ring": lambda c: lambda s: s.ranks([c + k for k in range(n)]), "hierarchical": lambda c: lambda s: s.groups(groups, c),
            "double_tree": lambda c: lambda s: s.tree([list(range(n)), list(range(n - 1, -1, -1))][c]),
        }[algorithm]  # fmt: skip
        ends = [-(-units * c // parts) * unit for c in range(parts + 1)]
        return np.concatenate([one(orders(c), slice(ends[c], ends[c + 1])) for c in range(parts)])
    home = {"reduce": root, "reduce_scatter": block}.get(collective, 0)
    if algorithm == "ring":
        return one(lambda s: s.ranks([home + 1 + k for k in range(n)]), every)
    if algorithm in ("direct", "two_step"):
        return one(lambda s: s.ranks(list(range(n))), every)
    if algorithm == "halving_doubling":
        return one(lambda s: s.halving(), every)
    if algorithm == "hierarchical":
        return one(lambda s: s.groups(groups, next(g for g, members in enumerate(groups) if home in members)), every)
    up = one(lambda s: s.tree([root + k for k in range(n)]), every)
    if algorithm == "tree":
        return up
    assert (collective, algorithm) == ("reduce", "double_tree")
    middle = -(-units // 2) * unit
    return np.concatenate([up[:middle], one(lambda s: s.tree([root - k + n for k in range(n)]), slice(middle, None))])


def seed(*args: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(args).encode()))
