"""Stimulus of the reduction benches: programs of fills and drains, run on the golden engine for what must come out."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from golden.numeric import fp32
from golden.pe.reduction import ReductionEngine
from spec.params import PeParams
from spec.pe import RE_DRAIN, RE_FILL, Drain, Fill
from tb.lib.bench import Bench
from tb.numeric import vectors

OUTLETS = {Drain.MEMORY: "memory", Drain.SFU: "sfu", Drain.NEIGHBOUR: "neighbour"}


def words(record, rows: list[dict[str, int]]) -> np.ndarray:
    return np.frombuffer(b"".join(record.to_bytes(r) for r in rows), np.uint8).reshape(len(rows), record.nbytes)


@dataclass
class Program:
    """Commands and rows of one engine, and what it must give, by outlet: values, low, high, bad, last."""

    pe: PeParams
    fills: list[dict[str, int]] = field(default_factory=list)
    drains: list[dict[str, int]] = field(default_factory=list)
    sums: list[np.ndarray] = field(default_factory=list)
    bias: list[np.ndarray] = field(default_factory=list)
    partial: list[np.ndarray] = field(default_factory=list)
    out: dict[str, list[np.ndarray]] = field(default_factory=lambda: {n: [] for n in OUTLETS.values()})

    def __post_init__(self) -> None:
        self.engine = ReductionEngine(self.pe)
        self.bad = [False] * self.pe.banks

    def fill(self, rng: np.random.Generator, bank: int, base: int, values: np.ndarray, *, op: int = Fill.ACCUMULATE, first: bool = False,
             opens: bool = False, close: bool = False, integer: bool = False, bad: int = -1) -> None:
        """`bad`: the row that is marked so."""
        n, b = len(values), bank % self.pe.banks
        self.fills.append(dict(bank=bank, base=base, count=n, op=op, first=first, open=opens, close=close))
        if op == Fill.LOAD:
            self.engine.load(bank, base, values)
            self.bias.append(np.ascontiguousarray(values).view(np.uint8))
        else:
            self.engine.accumulate(bank, base, values, first=first, integer=integer)
            tail = (rng.integers(0, 1 << 16, n) | (integer << 16) | (np.arange(n) == bad) << 17).astype("<u4")
            self.sums.append(np.concatenate([np.ascontiguousarray(values).view(np.uint8), tail.view(np.uint8).reshape(n, 4)[:, :3]], axis=1))
        self.bad[b] = (self.bad[b] and not opens) or (op == Fill.ACCUMULATE and 0 <= bad < n)

    def drain(self, bank: int, base: int, count: int, to: int, *, free: bool = False, partials: np.ndarray | None = None, integer: bool = False) -> None:
        self.drains.append(dict(bank=bank, base=base, count=count, to=to, merge=partials is not None, integer=integer, free=free))
        if partials is not None:
            self.partial.append(np.ascontiguousarray(partials).view(np.uint8))
        values, low, high = self.engine.drain(bank, base, count, partials=partials, integer=integer)
        if to in OUTLETS and count:
            tail = (np.full(count, self.bad[bank % self.pe.banks]) | (np.arange(count) == count - 1) << 1).astype(np.uint8)
            rows = np.concatenate([values, low[:, None], high[:, None]], axis=1).astype("<u4")
            self.out[OUTLETS[Drain(to)]].append(np.concatenate([rows.view(np.uint8), tail[:, None]], axis=1))


def joined(parts: list[np.ndarray], nbytes: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, nbytes), np.uint8)


async def run(b: Bench, p: Program, *, deadline: int = 0, expected: bool = True) -> int:
    """Run the program, check every outlet bit for bit; cycles."""
    width = 4 * p.pe.rows
    b.source("fill").load(words(RE_FILL, p.fills) if p.fills else np.zeros((0, RE_FILL.nbytes), np.uint8))
    b.source("drain").load(words(RE_DRAIN, p.drains) if p.drains else np.zeros((0, RE_DRAIN.nbytes), np.uint8))
    for name, parts, nbytes in (("sums", p.sums, width + 3), ("bias", p.bias, width), ("partial", p.partial, width)):
        b.source(name).load(joined(parts, nbytes))
    want = {n: joined(parts, width + 9) for n, parts in p.out.items()}
    for name, rows in want.items():
        b.sink(name).expect(len(rows) if expected else 0)
    work = sum(map(len, p.sums)) + sum(map(len, p.bias)) + sum(map(len, want.values())) + len(p.fills) + len(p.drains)
    cycles = await b.run(deadline or 60 * work + 400, settle=24)
    for name, rows in want.items() if expected else ():
        got = b.sink(name).array()
        wrong = np.argwhere((got != rows).any(axis=1)).ravel()
        assert not len(wrong), (
            f"{name}: {len(wrong)} of {len(rows)} rows differ; row {wrong[0]}: {got[wrong[0]].tobytes()[::-1].hex()}, "
            f"expected {rows[wrong[0]].tobytes()[::-1].hex()} (last, bad; high; low; values from the top)")
    return cycles


def floats(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
    """(n, rows) patterns weighted to the extremes, as the dot product gives them: NaN canonical, and few."""
    v = fp32.canonical(vectors.floats(rng, n * rows)).reshape(n, rows)
    nan = (v & 0x7FFFFFFF) >= 0x7F800000
    return np.where(nan & (rng.random((n, rows)) < 0.9), v & np.uint32(0xBFFFFFFF), v).astype(np.uint32)
