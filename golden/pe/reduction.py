"""Reduction engine: banks of accumulator rows that sums of chunks, bias and the neighbour's partial sums meet in; bit-exact.

Rules (docs/numbers.md, "Accumulation")
    * An addition is binary32, rounded to nearest even; a NaN becomes the canonical one. int32 sums wrap. A row is added in the order the
      rows come: acc = acc + row. The first row of a sum stands for itself.
    * Loading and draining move bits; draining with `merge` gives ``partial + acc``: along a chain of engines sums are taken in hop order.
    * `low` and `high` of a drained row are its minimum and maximum: NaN counts, -0 is below +0.
    * Rows are addressed modulo the depth of a bank, banks modulo their number.
"""
from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from golden.numeric import fp32, minmax
from golden.numeric.arguments import integer as integer_of
from golden.numeric.arguments import together
from golden.numeric.fp32 import Bits
from spec.params import PeParams
from spec.pe import RE_DRAIN


def add(a: Any, b: Any, *, integer: bool = False) -> Bits:
    """One accumulation, elementwise: binary32, or int32 modulo 2^32. NaN is canonical."""
    a, b = fp32.as_bits(a, "a"), fp32.as_bits(b, "b")
    together("accumulation", a=a, b=b)
    return (a + b).astype(np.uint32) if integer else fp32.canonical(fp32.add(a, b))


def extremes(rows: Bits, *, integer: bool = False) -> tuple[Bits, Bits]:
    """(minimum, maximum) of each row of (n, width).

    Raises:
        ValueError: not rows of one value or more.
    """
    rows = fp32.as_bits(rows, "rows")
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"extremes of shape {rows.shape}; expected (n, width), width at least 1")
    low, high = (minmax.imin, minmax.imax) if integer else (minmax.fmin, minmax.fmax)
    columns = [rows[:, i] for i in range(rows.shape[1])]
    return reduce(low, columns, low(columns[0], columns[0])), reduce(high, columns, high(columns[0], columns[0]))


def chain(partials: Any, *, integer: bool = False) -> Bits:
    """Sum of the engines' results along a chain, (engines, …): each adds its own to what the engine before hands on.

    Raises:
        ValueError: no engine.
    """
    results = fp32.as_bits(partials, "partials")
    if results.ndim == 0 or len(results) == 0:
        raise ValueError(f"chain of results of shape {results.shape}; expected (engines, …), one engine or more")
    return reduce(lambda handed, own: add(handed, own, integer=integer), results)


class ReductionEngine:
    """One engine: `banks` x `depth` rows of `rows` binary32 or int32 patterns.

    Rows are (n, rows) arrays. Raises ValueError for rows of another width.
    """

    def __init__(self, pe: PeParams):
        self.pe = pe
        self.banks = np.zeros((pe.banks, pe.depth, pe.rows), np.uint32)

    def _place(self, bank: Any, base: Any) -> tuple[int, int]:
        return integer_of(bank, "bank") % self.pe.banks, integer_of(base, "base") % self.pe.depth

    def _rows(self, values: Any) -> Bits:
        v = fp32.as_bits(values, "values")
        if v.ndim != 2 or v.shape[1] != self.pe.rows:
            raise ValueError(f"rows of shape {v.shape}; expected (n, {self.pe.rows})")
        return v

    def load(self, bank: int, base: int, values: Any) -> None:
        """Rows as they are."""
        bank, base = self._place(bank, base)
        for i, row in enumerate(self._rows(values)):
            self.banks[bank, (base + i) % self.pe.depth] = row

    def accumulate(self, bank: int, base: int, values: Any, *, first: bool = False, integer: bool = False) -> None:
        """Rows added one after the other: a command longer than the bank comes back to its first row."""
        bank, base = self._place(bank, base)
        at = self.banks[bank]
        values = self._rows(values)
        for start in range(0, len(values), self.pe.depth):
            part = values[start : start + self.pe.depth]
            to = (base + start + np.arange(len(part))) % self.pe.depth
            at[to] = part if first else add(at[to], part, integer=integer)

    def drain(self, bank: int, base: int, count: int, *, partials: Any = None, integer: bool = False) -> tuple[Bits, Bits, Bits]:
        """(rows, minima, maxima), each row added to the neighbour's where `partials` is given.

        Raises:
            ValueError: a count that RE_DRAIN has no bits for, or another number of partial rows.
        """
        bank, base = self._place(bank, base)
        count = integer_of(count, "count", 0, (1 << RE_DRAIN.widths["count"]) - 1)
        out = self.banks[bank][(base + np.arange(count)) % self.pe.depth]
        if partials is not None:
            handed = self._rows(partials)
            if len(handed) != count:
                raise ValueError(f"{len(handed)} partial rows for a drain of {count}")
            out = add(handed, out, integer=integer)
        low, high = extremes(out, integer=integer)
        return out, low, high
