"""Beats of the special function unit: packing, unpacking, and what the golden model makes of them."""
from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from golden.pe import sfu, sfu_round, sfu_rows
from spec.convert import ConvertFormat
from spec.sfu import BINARY, CONTROL, NATIVE, ROW, UNARY, SfuOp
from tb.lib.bench import Bench
from tb.numeric import vectors

NAMES = {f: f.name.lower() for f in ConvertFormat}
MASK = {f: f.format.mask for f in NATIVE}
RESULTS = tuple(f for f in ConvertFormat if f is not ConvertFormat.FLOAT8_E8M0FNU)
SEEDS = (0, 0x12345678, 0xFFFFFFFF)


@dataclass
class Beats:
    """n beats: operands (n, lanes) uint32, keep (n, lanes) bool, the rest (n,)."""

    a: np.ndarray
    b: np.ndarray
    low: np.ndarray
    high: np.ndarray
    keep: np.ndarray
    op: np.ndarray
    format_a: np.ndarray
    format_b: np.ndarray
    format_out: np.ndarray
    scalar: np.ndarray
    first: np.ndarray
    last: np.ndarray
    sat: np.ndarray
    stochastic: np.ndarray
    seed: np.ndarray
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.op)

    def part(self, at) -> Beats:
        return Beats(**{f.name: getattr(self, f.name)[at] for f in fields(self)})

    def packed(self) -> np.ndarray:
        """(n, bytes) words of the stream."""
        lanes = self.keep.shape[1]
        control = (self.keep.astype(np.uint64) << np.arange(lanes, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        at = lanes
        for name, bits in CONTROL:
            control |= getattr(self, name).astype(np.uint64) << np.uint64(at)
            at += bits
        nbytes = -(-(64 * lanes + 128 + at) // 8)
        columns = (x.astype(np.uint32) for x in (self.a, self.b, self.low, self.high, self.seed, self.index))
        return vectors.rows(*columns, control, nbytes=nbytes)

    @property
    def shown(self) -> np.ndarray:
        """Which beats give results."""
        return (self.op < SfuOp.ROW_SUM) | (self.last != 0)

    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(data, keep, last) of the results."""
        n, lanes = self.keep.shape
        out = np.zeros((n, lanes), np.uint32)
        key = np.stack([self.op, self.format_a, self.format_b * (self.op > UNARY[-1]), self.format_out, self.sat, self.stochastic, self.seed * self.stochastic], axis=1)
        kinds, which = np.unique(key, axis=0, return_inverse=True)
        for k, (op, fa, fb, fo, *_) in enumerate(kinds):
            at = np.flatnonzero(which.reshape(-1) == k)
            if op < SfuOp.ROW_SUM:
                out[at] = self._elementwise(at, SfuOp(int(op)), *(ConvertFormat(int(f)) for f in (fa, fb, fo)))
        keep = self.keep.copy()
        start = None
        for i in np.flatnonzero(self.op >= SfuOp.ROW_SUM):
            if self.first[i]:
                start = []
            start.append(self.a[i][self.keep[i]])
            if self.last[i]:
                fa = ConvertFormat(int(self.format_a[i]))
                x, out_name = np.concatenate(start) & MASK[fa], NAMES[ConvertFormat(int(self.format_out[i]))]
                out[i] = 0
                out[i, 0] = sfu_rows.row(SfuOp(int(self.op[i])), x, NAMES[fa], out_name, self._how(i, 0))
                keep[i] = np.arange(lanes) == 0
        out = np.where(keep, out, 0)
        return out[self.shown], keep[self.shown], self.last[self.shown]

    def _how(self, i: int, index: object) -> sfu_round.Rounding:
        mode = "sat" if self.sat[i] else "ovf"
        return sfu_round.Rounding(mode, int(self.seed[i]), self.index[i] + index) if self.stochastic[i] else sfu_round.Rounding(mode)

    def _elementwise(self, at: np.ndarray, op: SfuOp, fa: ConvertFormat, fb: ConvertFormat, fo: ConvertFormat) -> np.ndarray:
        a = self.a[at] & MASK[fa]
        mode = "sat" if self.sat[at[0]] else "ovf"
        index = self.index[at].astype(np.int64)[:, None] + np.arange(a.shape[1])
        how = sfu_round.Rounding(mode, int(self.seed[at[0]]), index) if self.stochastic[at[0]] else sfu_round.Rounding(mode)
        if op in UNARY:
            return sfu.unary(op, a, NAMES[fa], NAMES[fo], how)
        result = np.zeros(a.shape, np.uint32)
        for scalar in (0, 1):
            sel = self.scalar[at] == scalar
            part = how if how.seed is None else replace(how, index=index[sel])
            b, fb_name = (self.low[at][sel][:, None], "float32") if scalar else (self.b[at][sel] & MASK[fb], NAMES[fb])
            if op == SfuOp.CLAMP:
                result[sel] = sfu.clamp(a[sel], b, self.high[at][sel][:, None], NAMES[fa], fb_name, NAMES[fo], part)
            else:
                result[sel] = sfu.binary(op, a[sel], b, NAMES[fa], fb_name, NAMES[fo], part)
        return result


def lanes_of(b: Bench) -> int:
    return b.config.node.pe.lanes


def elementwise(
    lanes: int, op: SfuOp, a: np.ndarray, b: np.ndarray | None = None, *, fa=ConvertFormat.FLOAT32, fb=ConvertFormat.FLOAT32, fo=None,
    low: int | None = None, high: int = 0, sat: int = 0, seed: int | None = None,
) -> Beats:
    """One operation on all of `a`; the last beat is filled up with elements that are not kept. `index` counts elements from 0."""
    n = -(-len(a) // lanes)

    def fill(x) -> np.ndarray:
        return np.concatenate([x, np.zeros(n * lanes - len(x), x.dtype)]).reshape(n, lanes)

    def all_(v) -> np.ndarray:
        return np.full(n, v, np.uint32)

    return Beats(
        a=fill(a.astype(np.uint32)), b=fill(np.zeros(len(a), np.uint32) if b is None else b.astype(np.uint32)), low=all_(low or 0), high=all_(high),
        keep=fill(np.ones(len(a), bool)), op=all_(op), format_a=all_(fa), format_b=all_(fb), format_out=all_(fa if fo is None else fo),
        scalar=all_(low is not None), first=all_(1), last=all_(1), sat=all_(sat), stochastic=all_(seed is not None), seed=all_(seed or 0),
        index=np.arange(n, dtype=np.uint32) * np.uint32(lanes),
    )


def row(lanes: int, op: SfuOp, a: np.ndarray, *, fa=ConvertFormat.FLOAT32, fo=None) -> Beats:
    """One row operation over `a`."""
    beats = elementwise(lanes, op, a, fa=fa, fo=fo)
    beats.first, beats.last = ((np.arange(len(beats)) == k).astype(np.uint32) for k in (0, len(beats) - 1))
    return beats


def join(parts: list[Beats]) -> Beats:
    return Beats(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Beats)})


def random_beats(rng: np.random.Generator, lanes: int, n: int) -> Beats:
    """Any operation and formats in any beat, every other one as the beat before; rows of a few beats, with elementwise beats among theirs."""
    op = rng.integers(0, SfuOp.ROW_SUM, n)
    op = op[np.maximum.accumulate(np.where(rng.integers(0, 2, n) > 0, np.arange(n), 0))]
    first, last = rng.integers(0, 2, n), rng.integers(0, 2, n)
    codes = np.array(NATIVE)
    out = rng.choice(RESULTS, 3, replace=False)  # three besides: as many kinds of beats as all formats make take the golden model long
    formats = np.stack([rng.choice(codes, n), rng.choice(codes, n), rng.choice([*codes, *out], n)])
    keep = rng.integers(0, 4, (n, lanes)) > 0
    at = 0
    while at < n:
        spots = at + np.flatnonzero(rng.integers(0, 2, min(n - at, int(rng.integers(1, 12)))))
        if len(spots):
            op[spots] = rng.choice(ROW)
            first[spots], last[spots] = 0, 0
            first[spots[0]] = last[spots[-1]] = 1
            formats[0, spots] = formats[0, spots[0]]
            keep[spots[0], int(rng.integers(lanes))] = True
            at = int(spots[-1])
        at += 1
    return Beats(
        a=operands(rng, n * lanes).reshape(n, lanes), b=operands(rng, n * lanes).reshape(n, lanes), low=operands(rng, n), high=operands(rng, n),
        keep=keep, op=op, format_a=formats[0], format_b=formats[1], format_out=formats[2], scalar=rng.integers(0, 2, n), first=first, last=last,
        sat=rng.integers(0, 2, n), stochastic=rng.integers(0, 4, n) == 0, seed=rng.choice(np.array(SEEDS), n), index=rng.integers(0, 1 << 32, n),
    )


def operands(rng: np.random.Generator, n: int) -> np.ndarray:
    """Patterns weighted to the extremes and to where functions bend; their low halves are 16-bit codes of all kinds."""
    near = (127 + rng.integers(-30, 8, n)).astype(np.uint32) << np.uint32(23) | rng.integers(0, 1 << 32, n, dtype=np.uint32) & np.uint32(0x807FFFFF)
    linear = rng.uniform(-120, 120, n).astype(np.float32).view(np.uint32)
    x = np.choose(rng.integers(0, 3, n), [vectors.floats(rng, n), near, linear]).astype(np.uint32)
    half = rng.choice(np.array([0, 0x8000, 0x7C00, 0xFC00, 0x7F80, 0xFF80, 0x3F80, 0xBF80, 0x3C00, 1, 0x7FFF], np.uint32), n)
    return np.where(rng.integers(0, 16, n) == 0, x & np.uint32(0xFFFF0000) | half, x).astype(np.uint32)


async def check(b: Bench, beats: Beats, *, deadline: int = 0) -> int:
    """Run the beats, in batches of the bench's depth; every result must be the golden model's. Returns cycles."""
    depth, cycles, got = b.ports["beats"].depth, 0, []
    lanes = lanes_of(b)
    shown = beats.shown
    words = beats.packed()
    for at in range(0, len(beats), depth):
        b.source("beats").load(words[at:at + depth])
        b.sink("results").expect(int(shown[at:at + depth].sum()))
        cycles += await b.run(deadline=deadline or 60 * min(depth, len(beats)) + 300)
        got.append(b.sink("results").array())
    rows = np.concatenate(got)
    data = np.ascontiguousarray(rows[:, :4 * lanes]).view(np.uint32)
    tail = np.zeros((len(rows), 8), np.uint8)
    tail[:, :rows.shape[1] - 4 * lanes] = rows[:, 4 * lanes:]
    word = tail.view(np.uint64).ravel()
    keep = (word[:, None] >> np.arange(lanes, dtype=np.uint64) & np.uint64(1)) != 0
    want, want_keep, want_last = beats.expected()
    wrong = (data != want).any(axis=1) | (keep != want_keep).any(axis=1) | ((word >> np.uint64(lanes) & np.uint64(1)) != want_last)
    if wrong.any():
        source = beats.part(np.flatnonzero(shown))
        lines = [f"{int(wrong.sum())} of {len(rows)} beats differ"]
        for i in np.flatnonzero(wrong)[:5]:
            lane = int(np.flatnonzero(data[i] != want[i])[0]) if (data[i] != want[i]).any() else 0
            formats = " ".join(NAMES[ConvertFormat(int(f[i]))] for f in (source.format_a, source.format_b, source.format_out))
            lines.append(
                f"  beat {i} lane {lane} {SfuOp(int(source.op[i])).name} {formats}: a {source.a[i, lane]:#010x} b {source.b[i, lane]:#010x} "
                f"low {source.low[i]:#010x} high {source.high[i]:#010x} -> {data[i, lane]:#010x}, expected {want[i, lane]:#010x}; "
                f"keep {keep[i].astype(int)}, expected {want_keep[i].astype(int)}")
        raise AssertionError("\n".join(lines))
    return cycles


__all__ = ["BINARY", "MASK", "NAMES", "RESULTS", "ROW", "UNARY", "Beats", "check", "elementwise", "join", "lanes_of", "operands", "random_beats", "row"]
