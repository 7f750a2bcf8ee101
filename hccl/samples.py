"""Random arrays of every element type."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hccl import io
from hccl.dtypes import DTYPES


def random_arrays(shape: Sequence[int], dtype: str, seed: int) -> list[Any]:
    """An array of each size; small values, so that no type overflows at once."""
    rng = np.random.default_rng(seed)
    kind, out = DTYPES[dtype], []
    for n in shape:
        if dtype == "int32":
            out.append(rng.integers(-(1 << 31), 1 << 31, n).astype(np.int32))
        elif kind.kind in ("int", "uint", "bool"):
            out.append(rng.integers(0, 2 if kind.kind == "bool" else 100, n).astype(dtype))
        elif dtype in ("float32", "float16", "bfloat16", "float64"):
            out.append(io.convert(rng.standard_normal(n).astype(np.float32), "float32", dtype, "random data"))
        elif kind.native:
            out.append((rng.standard_normal(n) + 1j * rng.standard_normal(n)).astype(dtype))
        else:  # patterns of small numbers in every such type
            out.append(rng.integers(0, 0x30, n).astype(kind.bits))
    return out
