"""Measurements as nccl-tests makes and prints them: sizes doubled, out of place and in place, results checked."""
from __future__ import annotations

import csv
import io as text
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hccl.communicator import Communicator, make_plan
from hccl.dtypes import DTYPES
from hccl.errors import UsageError
from hccl.io import convert
from hccl.layout import REDUCING, ROOTED
from hccl.reference import expected
from hccl.result import Result, bus_factor

BLOCKS = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
PERF = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all", "sendrecv")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Form:
    """A size in one form. Bandwidths are bytes a cycle; None: the device has no time, or the form does not exist. `wrong` counts elements."""

    cycles: int | None
    algbw: float | None
    busbw: float | None
    wrong: int | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """`size` in bytes and `count` in elements, as nccl-tests counts them: of the whole vector, and of what a rank sends (or gets)."""

    size: int
    count: int
    dtype: str
    redop: str
    root: int
    algorithm: str
    out_of_place: Form
    in_place: Form


def parse_size(value: str) -> int:
    """8, 4K, 16M, 1G.

    Raises:
        UsageError: anything else.
    """
    head = value.strip().upper().removesuffix("B")
    unit = head[-1:] if head[-1:] in _UNITS and not head[-1:].isdigit() else ""
    digits = head.removesuffix(unit) if unit else head
    if not digits.isdecimal():
        raise UsageError(f"size {value!r}; expected bytes, as 8, 4K, 16M")
    return int(digits) * _UNITS[unit]


def sizes(begin: int, end: int, factor: int, step: int) -> Iterator[int]:
    """From `begin` to `end`, times `factor`, or `step` more where that is not 0."""
    size = begin
    while size <= end:
        yield size
        size = size + step if step else max(size * factor, size + 1)


def _data(n: int, ranks: int, dtype: str, seed: int) -> list[Any]:
    """Small integers, whose sums are exact in any order."""
    rng, kind = np.random.default_rng([seed, n]), DTYPES[dtype]
    if kind.kind == "opaque" or (kind.bits and dtype != "bfloat16"):
        return [rng.integers(0, 8, n).astype(kind.bits) for _ in range(ranks)]
    whole = [rng.integers(0, 2, n) for _ in range(ranks)]
    return [convert(x.astype(np.float32), "float32", dtype, "data") if dtype == "bfloat16" else x.astype(kind.native) for x in whole]


def measure(
    comm: Communicator, collective: str, size: int, *, dtype: str, op: str, root: int, algorithm: str | None, warmup: int, iters: int, seed: int, check: bool,
) -> Row:  # fmt: skip
    """One row: `warmup` runs, then the mean of `iters`, in both forms."""
    n, item = comm.nranks, DTYPES[dtype].size
    block = size // item // n if collective in BLOCKS else size // item
    count = block * n if collective in ("scatter", "all_to_all") else block
    forms, name = [], algorithm or ""
    for in_place in (False, True):
        if collective == "sendrecv" and in_place:
            forms.append(Form(cycles=None, algbw=None, busbw=None, wrong=None))
            continue
        wrong, cycles = 0, []
        for i in range(warmup + iters):
            x = _data(block, n, dtype, seed + i)
            result, bad = _once(comm, collective, x, block, dtype, op, root, algorithm, in_place, check)
            wrong += bad
            name = result.algorithm
            if i >= warmup and result.cycles is not None:
                cycles.append(result.cycles)
        mean = round(sum(cycles) / len(cycles)) if cycles else None
        moved = block * item * (n if collective in BLOCKS else 1)
        alg = moved / mean if mean else None
        forms.append(Form(
            cycles=mean, algbw=alg, busbw=None if alg is None else alg * bus_factor(collective, n), wrong=wrong if check else None,
        ))  # fmt: skip
    return Row(
        size=block * item * (n if collective in BLOCKS else 1), count=count, dtype=dtype, redop=op if collective in REDUCING else "none",
        root=root if collective in ROOTED else -1, algorithm=name, out_of_place=forms[0], in_place=forms[1],
    )  # fmt: skip


def _once(
    comm: Communicator, collective: str, x: list[Any], block: int, dtype: str, op: str, root: int, algorithm: str | None, in_place: bool, check: bool,
) -> tuple[Result, int]:  # fmt: skip
    """A run; its wrong elements, by values that are exact in any order."""
    n = comm.nranks
    kw: dict[str, Any] = {"dtype": dtype, "algorithm": algorithm} | ({"root": root} if collective in ROOTED else {})
    if collective in REDUCING:
        kw |= {"op": op} | ({"factor": 2} if op == "premul_sum" else {})
    send = [np.concatenate([np.roll(v, k) for k in range(n)]) if collective in ("reduce_scatter", "scatter", "all_to_all") else v for v in x]
    if collective == "sendrecv":
        got = [np.empty_like(v) for v in x]
        with comm.group(algorithm=None) as group:
            for r in range(n):
                comm.rank(r).send(x[r], (r + 1) % n, dtype=dtype)
                comm.rank(r).recv(got[r], (r - 1) % n, dtype=dtype)
        return group.results[0], sum(int((got[r].view(np.uint8) != x[r - 1].view(np.uint8)).sum()) for r in range(n)) if check else 0
    given = [v.copy() for v in send]
    if in_place and collective in ("all_gather", "gather"):
        for r in range(n):
            if collective == "all_gather" or r == root:
                given[r] = np.zeros(block * n, x[r].dtype)
                given[r][r * block : (r + 1) * block] = x[r]
    if in_place and collective == "broadcast":
        given = [v if r == root else np.zeros_like(v) for r, v in enumerate(given)]
    result: Result = getattr(comm, collective)(given, in_place=in_place, **kw)
    return result, _wrong(comm, result, collective, send, block, dtype, op, root) if check else 0


def _wrong(comm: Communicator, result: Result, collective: str, send: list[Any], block: int, dtype: str, op: str, root: int) -> int:
    algorithm = result.algorithm
    plan = make_plan(comm.device.params, collective, comm.nranks, block, dtype, op if collective in REDUCING else "", False,
                     root if collective in ROOTED else 0, (), algorithm).plan  # fmt: skip
    inputs = [np.ascontiguousarray(v).view(np.uint8) if plan.layout.inputs[r] else np.zeros(0, np.uint8) for r, v in enumerate(send)]
    want = expected(plan, inputs, [2] * comm.nranks)
    bad = 0
    for got, should in zip(result.outputs, want, strict=True):
        if got is not None:
            different = (np.ascontiguousarray(got).reshape(-1).view(np.uint8) != should).reshape(-1, DTYPES[dtype].size)
            bad += int(different.any(axis=1).sum())
    return bad


HEAD = ("size", "count", "type", "redop", "root")
FORM = ("time", "algbw", "busbw", "#wrong")


def table(rows: Sequence[Row]) -> str:
    """nccl-tests' table; times in cycles, bandwidths in bytes a cycle."""
    lines = [
        "#" + " " * 57 + "out-of-place" + " " * 24 + "in-place",
        "#" + "".join(f"{h:>{w}}" for h, w in zip(HEAD, (11, 12, 11, 8, 6), strict=True)) + "".join(f"{h:>9}" for h in FORM * 2),
        "#" + f"{'(B)':>11}{'(elements)':>12}" + " " * 25 + f"{'(cyc)':>9}{'(B/cyc)':>9}{'(B/cyc)':>9}" + " " * 9 + f"{'(cyc)':>9}{'(B/cyc)':>9}{'(B/cyc)':>9}",
    ]
    for r in rows:
        line = f" {r.size:>11}{r.count:>12}{r.dtype:>11}{r.redop:>8}{r.root:>6}"
        for f in (r.out_of_place, r.in_place):
            for v in (f.cycles, f.algbw, f.busbw, f.wrong):
                line += f"{'N/A' if v is None else f'{v:.2f}' if isinstance(v, float) else v:>9}"
        lines.append(line)
    return "\n".join([*lines, *footer(rows)])


def footer(rows: Sequence[Row]) -> list[str]:
    """Wrong elements, and the average of the bus bandwidths, as nccl-tests ends."""
    forms = [f for r in rows for f in (r.out_of_place, r.in_place)]
    bus = [f.busbw for f in forms if f.busbw is not None]
    wrong = [f.wrong for f in forms if f.wrong is not None]
    state = "not checked" if not wrong else f"{sum(wrong)} {'OK' if not sum(wrong) else 'FAILED'}"
    return [f"# Out of bounds values : {state}", f"# Avg bus bandwidth    : {f'{sum(bus) / len(bus):.2f}' if bus else 'N/A'}"]


def as_csv(rows: Sequence[Row]) -> str:
    out = text.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["size", "count", "type", "redop", "root", "algorithm", *(f"{form}_{f}" for form in ("oop", "ip") for f in ("time", "algbw", "busbw", "wrong"))])
    for r in rows:
        writer.writerow([r.size, r.count, r.dtype, r.redop, r.root, r.algorithm, *(v for f in (r.out_of_place, r.in_place) for v in asdict(f).values())])
    return out.getvalue()


def as_dict(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(r) for r in rows]
