"""Stimulus of the dot-product benches: operands weighted to the extremes, tiles as rows of bytes, expected results from the golden model."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from golden.pe.dot_product import dot_product
from spec.pe import CHUNK_BYTES, DOT_HELD, DOT_ROW, DotFormat, Mx
from tb.lib.bench import Bench

NAN = 0x7FC00000
SCALED = [f for f in DotFormat if f.scaled]


@dataclass
class Operand:
    """`codes` (n, lanes) of `format`, with MX `scale` (n, lanes / block) where `mx` says so."""

    codes: np.ndarray
    format: int
    mx: int = Mx.NONE
    scale: np.ndarray | None = None

    def image(self) -> np.ndarray:
        """(n, 72) bytes: the chunk and its scales."""
        f = DotFormat(self.format) if self.format in list(DotFormat) else DotFormat.INT8
        n = len(self.codes)
        if f.slot_bits == 4:
            data = (self.codes[:, ::2] | self.codes[:, 1::2] << 4).astype(np.uint8)
        else:
            data = np.ascontiguousarray(self.codes.astype(f"<u{f.slot_bits // 8}")).view(np.uint8)
        out = np.zeros((n, CHUNK_BYTES + 8), np.uint8)
        out[:, :CHUNK_BYTES] = data
        if self.scale is not None:
            out[:, CHUNK_BYTES : CHUNK_BYTES + self.scale.shape[1]] = self.scale
        return out

    def sixteens(self) -> np.ndarray:
        """Scales as of blocks of 16; 1 without."""
        blocks = self.codes.shape[1] // 16
        if self.scale is None:
            return np.full((len(self.codes), blocks), 127, np.uint8)
        return np.repeat(self.scale, blocks // self.scale.shape[1], axis=1)


def rows_of(record, images: np.ndarray, **fields: np.ndarray | int) -> np.ndarray:
    """(n, 75) bytes of DOT_HELD or DOT_ROW words."""
    n = len(images)
    tail = np.zeros(n, np.uint64)
    for name, value in fields.items():
        tail |= np.broadcast_to(np.asarray(value, np.uint64), n) << np.uint64(record.offsets[name] - 8 * images.shape[1])
    return np.concatenate([images, tail.view(np.uint8).reshape(n, 8)[:, : record.nbytes - images.shape[1]]], axis=1)


@dataclass
class Tile:
    """A held operand, loaded in `order` of rows (default all), and what is streamed against it."""

    held: Operand
    streamed: Operand
    order: list[int] | None = None
    bad: bool = False

    def expected(self, rows: int) -> np.ndarray:
        """(streamed, rows) patterns."""
        n = len(self.streamed.codes)
        if self.bad:
            return np.full((n, rows), NAN, np.uint32)
        a, b = self.held, self.streamed
        names = [DotFormat(x.format).name.lower() for x in (a, b)]
        at = [i for i in range(len(a.codes)) if i < rows and (self.order is None or i in self.order)]
        x, scale = np.zeros((rows, a.codes.shape[1]), np.uint32), np.full((rows, a.codes.shape[1] // 16), 127, np.uint8)
        x[at], scale[at] = a.codes[at], a.sixteens()[at]
        mx = {"scale_a": scale, "scale_b": b.sixteens(), "block": 16} if a.mx or b.mx else {}
        kind = np.uint8 if names[0] == "int8" else np.uint32
        return dot_product(x.astype(kind), b.codes.astype(kind), *names, **mx).T

    def text(self, i: int, j: int) -> str:
        """Operands of a result."""
        lines = []
        for what, o, k in (("held", self.held, j), ("row", self.streamed, i)):
            some = "not loaded" if k >= len(o.codes) else f"{o.codes[k].tolist()} {'' if o.scale is None else o.scale[k].tolist()}"
            lines.append(f"  {what} {k}: {some}")
        return "\n".join(lines)


def codes(rng: np.random.Generator, fmt: DotFormat, n: int) -> np.ndarray:
    """(n, lanes) codes; the kind is drawn by row: uniform, small, one huge with many tiny, near in size, powers of two, sparse; one row in eight has NaN or Inf."""
    f, lanes = fmt.format, fmt.lanes
    if fmt is DotFormat.INT8:
        out = rng.integers(0, 256, (n, lanes))
        edge = rng.random(n) < 0.3
        out[edge] = rng.choice([0x80, 0x7F, 0xFF, 0, 1], (int(edge.sum()), lanes))
        return out.astype(np.uint32)
    finite = f.max_code
    sign = rng.integers(0, 2, (n, lanes)) << (f.bits - 1)
    frac = rng.integers(0, 1 << f.frac_bits, (n, lanes))
    top = max(finite >> f.frac_bits, 1)
    center = rng.integers(1, top + 1, (n, 1))
    kinds = [
        rng.integers(0, finite + 1, (n, lanes)),
        frac * (rng.random((n, lanes)) < 0.8) | (rng.integers(0, 2, (n, lanes)) << f.frac_bits),
        np.where(rng.integers(0, lanes, (n, 1)) == np.arange(lanes), finite - rng.integers(0, 3, (n, lanes)), rng.integers(0, 8, (n, lanes))),
        np.clip(center + rng.integers(-3, 4, (n, lanes)), 0, top) << f.frac_bits | frac,
        np.clip(center + rng.integers(-16, 17, (n, lanes)), 0, top) << f.frac_bits | rng.choice([0, 1, f.frac_mask], (n, lanes)),
        np.where(rng.random((n, lanes)) < 0.06, rng.integers(0, finite + 1, (n, lanes)), 0),
    ]
    out = np.minimum(np.choose(rng.integers(0, len(kinds), (n, 1)), kinds), finite) | sign
    odd = (rng.random((n, 1)) < 0.125) & (rng.random((n, lanes)) < 1.5 / lanes)
    return np.where(odd, rng.integers(0, 1 << f.bits, (n, lanes)) | f.exp_mask << f.frac_bits & -(f.has_inf), out).astype(np.uint32)


def pairs(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, sign: int) -> np.ndarray:
    """`b` with some rows such that products cancel against row 0 of `a`: its second half is the first half's negative."""
    half = a.shape[1] // 2
    if len(a) and (rng.random() < 0.5):
        a[0, half:] = a[0, :half]
        at = rng.random(len(b)) < 0.3
        b[at, half:] = b[at, :half] ^ sign
    return b


def scales(rng: np.random.Generator, n: int, lanes: int, mx: int) -> np.ndarray | None:
    if mx == Mx.NONE:
        return None
    shape = (n, lanes // Mx(mx).block)
    base = rng.choice([127, 0, 254, 1, 60, 200], (n, 1))
    out = np.clip(base + rng.integers(-12, 13, shape) * (rng.random(shape) < 0.7), 0, 254)
    return np.where(rng.random(shape) < 0.004, 255, out).astype(np.uint8)


def random_tile(rng: np.random.Generator, a: DotFormat, b: DotFormat, held: int, n: int, mx_a: int = 0, mx_b: int = 0) -> Tile:
    x, y = codes(rng, a, held), codes(rng, b, n)
    if a is b and a is not DotFormat.INT8:
        y = pairs(rng, x, y, a.format.sign_mask)
    return Tile(Operand(x, a, mx_a, scales(rng, held, a.lanes, mx_a)), Operand(y, b, mx_b, scales(rng, n, b.lanes, mx_b)))


def stimulus(tiles: Iterable[Tile], tag: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Words of `held` and of `row`."""
    held, row = [], []
    for t in tiles:
        order = list(range(len(t.held.codes))) if t.order is None else t.order
        image = t.held.image()[order]
        held.append(rows_of(DOT_HELD, image, format=t.held.format, mx=t.held.mx, row=np.array(order), last=np.arange(len(order)) == len(order) - 1))
        image = t.streamed.image()
        tags = (tag + np.arange(len(image))) & 0xFFFF
        row.append(rows_of(DOT_ROW, image, format=t.streamed.format, mx=t.streamed.mx, first=np.arange(len(image)) == 0, tag=tags))
        tag += len(image)
    return np.concatenate(held), np.concatenate(row)


def split(words: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(values, tag, integer, bad) of result words."""
    values = np.ascontiguousarray(words[:, : 4 * rows]).view("<u4")
    tail = np.ascontiguousarray(np.pad(words[:, 4 * rows :], ((0, 0), (0, 1)))).view("<u4").ravel()
    return values, tail & 0xFFFF, tail >> 16 & 1, tail >> 17 & 1


async def run(b: Bench, tiles: list[Tile], rows: int, *, deadline: int = 0) -> tuple[np.ndarray, int]:
    """Result values of the tiles, all checked against golden, and cycles."""
    depth = min(b.ports["held"].depth, b.ports["row"].depth, b.ports["result"].depth)
    out, cycles, at = [], 0, 0
    while at < len(tiles):
        batch, held, row = [], 0, 0
        while at < len(tiles) and (not batch or max(held + len(tiles[at].held.codes), row + len(tiles[at].streamed.codes)) <= depth):
            batch.append(tiles[at])
            held, row, at = held + len(batch[-1].held.codes), row + len(batch[-1].streamed.codes), at + 1
        h, r = stimulus(batch)
        b.source("held").load(h)
        b.source("row").load(r)
        b.sink("result").expect(len(r))
        cycles += await b.run(deadline or 60 * (len(r) + len(h)) + 400)
        values, tag, integer, bad = split(b.sink("result").array(), rows)
        assert (tag == np.arange(len(r)) & 0xFFFF).all(), "tags"
        start = 0
        for t in batch:
            end = start + len(t.streamed.codes)
            want = t.expected(rows)
            wrong = np.argwhere(values[start:end] != want)
            if len(wrong):
                i, j = wrong[0]
                raise AssertionError(
                    f"{DotFormat(t.held.format).name} x {DotFormat(t.streamed.format).name}, mx {t.held.mx} {t.streamed.mx}: {len(wrong)} of "
                    f"{want.size} differ: {values[start + i, j]:#010x}, expected {want[i, j]:#010x}\n{t.text(i, j)}")
            assert (bad[start:end] == t.bad).all(), "bad"
            assert (integer[start:end] == (not t.bad and t.held.format == DotFormat.INT8)).all(), "integer"
            out.append(values[start:end])
            start = end
    return np.concatenate(out), cycles
