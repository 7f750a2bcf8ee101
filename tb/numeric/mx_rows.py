"""Rows of MX blocks as beats of the encoder's and decoder's streams, and the golden model's answers in the same form."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from golden.numeric import mx
from spec.mx import ELEMENTS

LANES = 16
MODES = ("ovf", "sat")


@dataclass(frozen=True)
class Config:
    """One row's settings: element's place, block of 16 or 32, scale rule's code, saturation."""

    element: int
    block: int
    rule: int = 0
    sat: int = 1


ALL = [Config(e, b, r, s) for e in range(len(ELEMENTS)) for b in (16, 32) for r in range(3) for s in (0, 1)]


def _beats(rows: np.ndarray) -> np.ndarray:
    """(rows, n) as (rows · beats, 16), missing lanes 0."""
    n = rows.shape[1]
    beats = -(-n // LANES)
    full = np.zeros((len(rows), beats * LANES), rows.dtype)
    full[:, :n] = rows
    return full.reshape(-1, LANES)


def _shape(rows: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(count, last) of every beat of rows of `n` elements."""
    beats = -(-n // LANES)
    count, last = np.full(beats, LANES), np.zeros(beats, np.int64)
    count[-1], last[-1] = n - (beats - 1) * LANES, 1
    return np.tile(count, rows), np.tile(last, rows)


def _tail(columns: list[tuple[np.ndarray | int, int]], n: int) -> np.ndarray:
    """(n, bytes) of fields (value, bits) packed from bit 0 upward."""
    word, at = np.zeros(n, np.uint64), 0
    for value, bits in columns:
        word |= np.asarray(value, np.uint64) << np.uint64(at)
        at += bits
    return word.view(np.uint8).reshape(n, 8)[:, : -(-at // 8)]


def encoder_words(x: np.ndarray, c: Config, rng: np.random.Generator | None = None) -> np.ndarray:
    """Beats of rows `x` (rows, n) of binary32 patterns; with `rng` the lanes without a number hold random bits, NaN and Inf among them."""
    data = _beats(x)
    count, last = _shape(*x.shape)
    if rng is not None:
        junk = rng.choice(np.array([0x7F800000, 0xFFC00001, 0x7F7FFFFF, 0x3F800000], np.uint32), data.shape)
        data = np.where(np.arange(LANES) < count[:, None], data, junk)
    tail = _tail([(count, 5), (last, 1), (c.element, 3), (c.rule, 2), (c.block == 32, 1), (c.sat, 1)], len(data))
    return np.ascontiguousarray(np.concatenate([data.view(np.uint8).reshape(len(data), 64), tail], axis=1))


def block_words(codes: np.ndarray, scales: np.ndarray, c: Config) -> np.ndarray:
    """Beats of codes (rows, n) and scales (rows, blocks): what the encoder gives and the decoder takes."""
    data = _beats(codes)
    count, last = _shape(*codes.shape)
    beats = len(data) // len(codes)
    scale = np.repeat(scales, c.block // LANES, axis=1)[:, :beats].reshape(-1)
    tail = _tail([(scale, 8), (count, 5), (last, 1), (c.element, 3), (c.block == 32, 1)], len(data))
    return np.ascontiguousarray(np.concatenate([data, tail], axis=1))


def number_words(x: np.ndarray) -> np.ndarray:
    """Beats of binary32 rows: what the decoder gives."""
    data = _beats(x)
    count, last = _shape(*x.shape)
    return np.ascontiguousarray(np.concatenate([data.view(np.uint8).reshape(len(data), 64), _tail([(count, 5), (last, 1)], len(data))], axis=1))


def encoded(x: np.ndarray, c: Config) -> np.ndarray:
    """The golden model's beats for :func:`encoder_words`."""
    return block_words(*mx.encode(x, ELEMENTS[c.element], c.block, mx.RULES[c.rule], MODES[c.sat]), c)


def decoded(codes: np.ndarray, scales: np.ndarray, c: Config) -> np.ndarray:
    """The golden model's beats for :func:`block_words`."""
    return number_words(mx.decode(codes, scales, ELEMENTS[c.element], c.block))


def numbers(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """Rows around every magnitude that binary32 has, a dozen binades each, with ties, zeros, and in some Inf or NaN."""
    field = np.clip(rng.integers(0, 256, (rows, 1)) + rng.integers(-12, 2, (rows, n)), 0, 254).astype(np.uint32)
    frac = rng.integers(0, 1 << 23, (rows, n), dtype=np.uint32)
    frac = np.where(rng.integers(0, 2, (rows, 1)) == 1, frac & np.uint32(0x780000), frac)
    bits = field << np.uint32(23) | frac | rng.integers(0, 2, (rows, n), dtype=np.uint32) << np.uint32(31)
    for k, special in enumerate((0x7F800000, 0xFF800001, 0xFF800000, 0x7FC00000)):
        hit = np.flatnonzero(rng.integers(0, 12, rows) == k)
        bits[hit, rng.integers(0, n, len(hit))] = special
    bits[rng.integers(0, 24, rows) == 0] &= np.uint32(0x80000000)
    return bits


def mismatch(what: str, got: np.ndarray, want: np.ndarray, sent: np.ndarray) -> str:
    """Text of the first differing beats, empty if none."""
    if got.shape == want.shape and (got == want).all():
        return ""
    if got.shape != want.shape:
        return f"{what}: {got.shape} beats, expected {want.shape}"
    bad = np.flatnonzero((got != want).any(axis=1))
    text = [f"{what}: {len(bad)} of {len(got)} beats differ"]
    text += [f"  beat {i}: {sent[i].tobytes().hex()} -> {got[i].tobytes().hex()}, expected {want[i].tobytes().hex()}" for i in bad[:3]]
    return "\n".join(text)
