"""All-reduce by its definition: every chunk's sum written out in the documented order, with no plan, message or queue in it.

Arithmetic is `golden.mem.nmc`'s. What `--check` and callers compare the output of a device with.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from golden.mem import nmc
from hccl.algorithms.ring import chunk_bounds
from hccl.lower import ROP, scale_bits
from hccl.plan import DTYPES

Bytes = NDArray[np.uint8]


def ring_all_reduce(inputs: Sequence[Bytes], dtype: str, op: str) -> Bytes:
    """Result bytes, equal on all ranks, of one row of bytes per rank (order: `hccl.algorithms.ring`)."""
    n = len(inputs)
    if n == 1:
        return inputs[0].copy()
    out = np.empty_like(inputs[0])
    for c, (start, end) in enumerate(pairwise(chunk_bounds(out.size, n))):
        acc = inputs[c][start:end]
        for k in range(1, n):
            scale = scale_bits(n) if op == "avg" and k == n - 1 else None
            acc = nmc.reduce(acc, inputs[(c + k) % n][start:end], DTYPES[dtype], ROP[op], scale)
        out[start:end] = acc
    return out
