"""Conversion of whole arrays in the golden model, nanoseconds an element, beside ml_dtypes' and NumPy's casts of the same numbers.

All ways of a format must give the same codes (NaN aside, whose codes differ on purpose; there are none among the numbers). Stochastic rounding
and MX blocks have nothing beside them.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from golden.numeric import mx
from golden.numeric.convert import narrow, widen
from spec.mx import ELEMENTS

FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn")
ROUNDS = 5


def best(work: Callable[[], Any], count: int) -> float:
    """Nanoseconds of CPU an element, the best of `ROUNDS`."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) / count * 1e9


def _row(name: str, ours: float, theirs: float | None, console: Console) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "ns": round(ours, 3)}
    if theirs is not None:
        row |= {"outside_ns": round(theirs, 3), "ratio": round(ours / theirs, 2)}
    console.print(f"  {name}: {ours:.2f} ns an element", highlight=False)
    return row


def measure(full: bool, console: Console) -> list[dict[str, Any]]:
    """A row per conversion; `ratio` is our time over theirs.

    Raises:
        RuntimeError: codes that differ, or ml_dtypes missing.
    """
    try:
        import ml_dtypes
    except ImportError:
        raise RuntimeError("ml_dtypes is missing (it comes with the dev extra: make setup)") from None
    count = 1 << (24 if full else 21)
    x = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    bits = x.view(np.uint32)
    rows = []
    for name in FORMATS:
        dtype = np.dtype(name if name == "float16" else getattr(ml_dtypes, name))
        codes, theirs = narrow(bits, name), x.astype(dtype)
        if not np.array_equal(codes, theirs.view(codes.dtype)) or not np.array_equal(widen(codes, name), theirs.astype(np.float32).view(np.uint32)):
            raise RuntimeError(f"{name}: codes differ from {dtype}'s")
        down = best(lambda n=name: narrow(bits, n), count), best(lambda d=dtype: x.astype(d), count)
        up = best(lambda c=codes, n=name: widen(c, n), count), best(lambda t=theirs: t.astype(np.float32), count)
        rows += [_row(f"float32 to {name}", *down, console), _row(f"{name} to float32", *up, console)]
    rows.append(_row("float32 to bfloat16, stochastic", best(lambda: narrow(bits, "bfloat16", seed=1), count), None, console))
    for element in ELEMENTS[:1] + ELEMENTS[-1:]:
        codes, scales = mx.encode(bits, element)
        rows.append(_row(f"MX encode, {element}", best(lambda e=element: mx.encode(bits, e), count), None, console))
        rows.append(_row(f"MX decode, {element}", best(lambda e=element, c=codes, s=scales: mx.decode(c, s, e), count), None, console))
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    t = Table(title="golden conversion of arrays: CPU ns an element (outside: ml_dtypes; float16: NumPy)", title_justify="left")
    for c in ("conversion", "ours", "outside", "ours / outside"):
        t.add_column(c, justify="left" if c == "conversion" else "right")
    for r in rows:
        t.add_row(r["name"], f"{r['ns']:.2f}", *((f"{r['outside_ns']:.2f}", f"{r['ratio']:.2f}") if "ratio" in r else ("", "")))
    return t
