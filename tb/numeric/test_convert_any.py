"""Conversion between any two formats against the golden model: whole code spaces, boundaries of every target, mixed random streams."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import convert, convert_any
from rtl.numeric.convert_any import Converter
from spec.convert import ConvertFlag, ConvertFormat
from spec.formats import Format, format_of
from tb.lib.bench import Bench
from tb.numeric import vectors
from tb.numeric.binary import count

FORMAT = {c: format_of(c.name.lower()) for c in ConvertFormat}
TARGETS = [c for c in ConvertFormat if c != ConvertFormat.FLOAT8_E8M0FNU]
MODES = ("ovf", "sat")


def pattern(codes: np.ndarray, f: Format) -> np.ndarray:
    """uint32 with the code in its low bits, the rest 0."""
    return codes.view(f"u{codes.dtype.itemsize}").astype(np.uint32) & np.uint32(f.mask)


def model(
    bits: np.ndarray, source: ConvertFormat, target: ConvertFormat, sat: int, seed: int | None, index: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Golden result and flags of codes in the low bits."""
    src, dst = FORMAT[source], FORMAT[target]
    codes = (bits & np.uint32(src.mask)).astype(f"u{src.container_bits // 8}")
    extra = {} if seed is None else {"seed": seed, "index": index}
    out = convert_any.convert(codes, src.name, dst.name, MODES[sat], **extra)
    return pattern(out, dst), convert_any.flags(codes, src.name, dst.name, MODES[sat], **extra)


def words(bits, source, target, sat=0, stochastic=0, seed=0, index=0) -> np.ndarray:
    """Request rows; every argument is an array or one for all."""
    n = len(bits)

    def column(x, kind):
        return np.broadcast_to(np.asarray(x), n).astype(kind)

    pair = column(source, np.uint8) | column(target, np.uint8) << np.uint8(4)
    mode = column(sat, np.uint8) | column(stochastic, np.uint8) << np.uint8(1)
    return vectors.rows(column(bits, np.uint32), column(seed, np.uint32), column(index, np.uint32), pair, mode, nbytes=14)


async def run(b: Bench, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """(codes, flags, cycles)."""
    out, cycles, depth = [], 0, b.ports["operands"].depth
    for at in range(0, len(rows), depth):
        part = rows[at:at + depth]
        b.source("operands").load(part)
        b.sink("result").expect(len(part))
        cycles += await b.run(deadline=40 * len(part) + 200)
        out.append(b.sink("result").array())
    got = np.concatenate(out)
    return vectors.words32(got[:, :4]), got[:, 4], cycles


async def check(b: Bench, bits: np.ndarray, source: ConvertFormat, target: ConvertFormat, sat: int = 0, seed: int | None = None,
                index: np.ndarray | int = 0) -> int:
    at = np.broadcast_to(np.asarray(index, np.uint32), bits.shape)
    got, flags, cycles = await run(b, words(bits, source, target, sat, seed is not None, seed or 0, at))
    want, want_flags = model(bits, source, target, sat, seed, at)
    what = f"{source.name} to {target.name}, {MODES[sat]}" + ("" if seed is None else f", seed {seed:#x}")
    text = vectors.mismatch(what, got, want, bits) or vectors.mismatch(f"flags of {what}", flags, want_flags, bits)
    assert not text, text
    return cycles


def boundaries(f: Format, step: int) -> np.ndarray:
    """float32 patterns around every value and midpoint of a target; of wide formats every `step`-th value."""
    if f.is_float:
        codes = np.unique(np.concatenate([np.arange(0, f.max_code + 1, step), np.arange(max(f.max_code - 8, 0), f.max_code + 1)]))
        low = convert.widen(codes.astype(np.uint32), f.name).view(np.float32).astype(np.float64)
        quantum = 2.0 ** (np.maximum(codes >> f.frac_bits, 1) - f.bias - f.frac_bits).astype(np.float64)
    else:
        top = int(f.max) + 2
        near = np.concatenate([2 ** k + np.arange(-3, 4) for k in range(f.bits)])
        codes = np.unique(np.concatenate([np.arange(0, min(top, 4096)), near, top - np.arange(6)]))
        low, quantum = codes[codes >= 0].astype(np.float64), np.float64(1)
    with np.errstate(over="ignore"):
        at = np.concatenate([low, low + quantum / 2, low + quantum]).astype(np.float32).view(np.uint32).astype(np.int64)
    at = np.unique(np.clip((at[:, None] + np.array([-1, 0, 1])).ravel(), 0, 0x7FFFFFFF)).astype(np.uint32)
    return np.concatenate([at, at | np.uint32(0x80000000)])


@cocotb.test()
async def test_every_code(dut):
    """All of them to nearest even, mode `ovf`; then stochastically, mode `sat`, an eighth of the 16-bit ones. The four-state simulator takes a
    part."""
    b = await Bench.start(dut)
    for source, f in FORMAT.items():
        if f.bits > 16:
            continue
        codes = np.arange(1 << f.bits, dtype=np.uint32)
        if b.sim != "verilator":
            codes = codes[b.rng.integers(0, 3)::3] if f.bits <= 8 else codes[b.rng.integers(0, 997)::997]
        for target in TARGETS:
            await check(b, codes, source, target, 0)
            part = codes if f.bits <= 8 else codes[b.rng.integers(0, 8)::8]
            await check(b, part, source, target, 1, b.seed32(), part)


@cocotb.test()
async def test_boundaries(dut):
    b = await Bench.start(dut)
    for target in TARGETS:
        f = FORMAT[target]
        step = {32: 65537 * 9, 19: 17}.get(f.bits, 1) * (1 if b.sim == "verilator" else 16 if f.bits <= 8 else 997)
        bits = boundaries(f, step)
        bits = bits if b.sim == "verilator" else b.rng.choice(bits, min(len(bits), 400))
        await check(b, bits, ConvertFormat.FLOAT32, target, 0)
        part = b.rng.choice(bits, min(len(bits), 8_000))
        part[: len(part) // 4] = np.sort(bits & np.uint32(0x7FFFFFFF))[-(len(part) // 4):]  # those around the largest number are among them
        await check(b, part, ConvertFormat.FLOAT32, target, 1)
        await check(b, part, ConvertFormat.FLOAT32, target, 0, b.seed32(), np.arange(len(part)))
    b.cover("boundaries")


@cocotb.test()
async def test_random(dut):
    """Everything mixed: another pair of formats, mode, seed and index with every element."""
    b = await Bench.start(dut)
    n = count(b, 120_000)
    source = b.rng.choice([ConvertFormat.FLOAT32, ConvertFormat.TFLOAT32, ConvertFormat.INT32, *ConvertFormat], n)
    target, sat, stochastic = b.rng.choice(TARGETS, n), b.rng.integers(0, 2, n), b.rng.integers(0, 2, n)
    wide = vectors.floats(b.rng, n)
    whole = wide >> b.rng.integers(0, 32, n, dtype=np.uint32)
    bits = np.where(source == ConvertFormat.INT32, np.where(b.rng.integers(0, 2, n), whole, -whole.astype(np.int64)), wide).astype(np.uint32)
    bits = np.where(source == ConvertFormat.TFLOAT32, bits >> 13, bits).astype(np.uint32)  # high bits beyond a code are ignored: left as they are
    moderate = ((127 + b.rng.integers(-12, 12, n)) << 23 | b.rng.integers(0, 1 << 23, n) | b.rng.integers(0, 2, n) << 31).astype(np.uint32)
    bits = np.where((source == ConvertFormat.FLOAT32) & (b.rng.integers(0, 2, n) == 1), moderate, bits)
    seeds = np.array([b.seed32() for _ in range(4)], np.uint32)
    which, index = b.rng.integers(0, 4, n), b.rng.integers(0, 1 << 32, n, dtype=np.uint32)
    got, flags, _ = await run(b, words(bits, source, target, sat, stochastic, seeds[which], index))
    for s in ConvertFormat:
        for t in TARGETS:
            for mode in (0, 1):
                for seed in (None, *range(4)):
                    here = (source == s) & (target == t) & (sat == mode) & (stochastic == (seed is not None))
                    here = np.flatnonzero(here if seed is None else here & (which == seed))
                    if not here.size:
                        continue
                    want, want_flags = model(bits[here], s, t, mode, None if seed is None else int(seeds[seed]), index[here])
                    text = vectors.mismatch(f"{s.name} to {t.name}", got[here], want, bits[here], index[here])
                    text = text or vectors.mismatch(f"flags, {s.name} to {t.name}", flags[here], want_flags, bits[here])
                    assert not text, text
                    f = FORMAT[t]
                    if seed is not None and (want != model(bits[here], s, t, mode, None, index[here])[0]).any():
                        b.cover("stochastic-up")
                    magnitude = want & np.uint32(f.magnitude_mask)
                    if f.is_float and ((magnitude > 0) & (magnitude <= f.frac_mask)).any():
                        b.cover("subnormal")
                    if not f.is_float and f.signed and (want >> np.uint32(f.bits - 1)).any():
                        b.cover("negative-integer")
    if (flags & int(ConvertFlag.NAN_LOST)).any():
        b.cover("nan-lost")
    if (flags & int(ConvertFlag.OVERFLOW)).any():
        b.cover("overflow")


F = ConvertFormat
DIRECTED = (  # source, target, sat, bits, code, flags
    (F.INT32, F.BFLOAT16, 0, 0x01010001, 0x4B81, 0), (F.INT32, F.BFLOAT16, 0, 0xFEFEFFFF, 0xCB81, 0),  # once, not through float32
    (F.INT32, F.FLOAT32, 0, 0x80000000, 0xCF000000, 0), (F.INT32, F.FLOAT32, 0, 0x7FFFFFFF, 0x4F000000, 0), (F.INT32, F.FLOAT32, 0, 0, 0, 0),
    (F.INT32, F.FLOAT32, 0, 0x01000001, 0x4B800000, 0), (F.INT32, F.FLOAT32, 0, 0x01000003, 0x4B800002, 0),
    (F.INT32, F.FLOAT16, 0, 65520, 0x7C00, 2), (F.INT32, F.FLOAT16, 1, 65520, 0x7BFF, 2), (F.INT32, F.FLOAT16, 0, 65519, 0x7BFF, 0),
    (F.INT32, F.INT8, 0, 0x80, 0x7F, 2), (F.INT32, F.INT8, 0, 0xFFFFFF7F, 0x80, 2), (F.INT32, F.INT8, 0, 0xFFFFFF80, 0x80, 0),
    (F.INT8, F.UINT8, 0, 0xFF, 0, 2), (F.UINT8, F.INT8, 0, 0xFF, 0x7F, 2), (F.INT8, F.INT32, 0, 0x80, 0xFFFFFF80, 0),
    (F.FLOAT32, F.INT8, 0, 0x42FF0000, 0x7F, 2), (F.FLOAT32, F.INT8, 0, 0xC3008000, 0x80, 0), (F.FLOAT32, F.INT8, 0, 0xC3010000, 0x80, 2),
    (F.FLOAT32, F.INT8, 0, 0x3F000000, 0, 0), (F.FLOAT32, F.INT8, 0, 0x3FC00000, 2, 0), (F.FLOAT32, F.INT8, 0, 0xC0200000, 0xFE, 0),
    (F.FLOAT32, F.UINT8, 0, 0xBF000000, 0, 0), (F.FLOAT32, F.UINT8, 0, 0xBF000001, 0, 2), (F.FLOAT32, F.UINT8, 0, 0x437F8000, 0xFF, 2),
    (F.FLOAT32, F.INT32, 0, 0x4F000000, 0x7FFFFFFF, 2), (F.FLOAT32, F.INT32, 0, 0xCF000000, 0x80000000, 0),
    (F.FLOAT32, F.INT32, 0, 0xFF800000, 0x80000000, 2), (F.FLOAT32, F.INT32, 0, 0x7FC00001, 0, 1), (F.FLOAT32, F.INT32, 0, 0x7F7FFFFF, 0x7FFFFFFF, 2),
    (F.FLOAT32, F.FLOAT8_E4M3FN, 0, 0x43E80000, 0x7E, 0), (F.FLOAT32, F.FLOAT8_E4M3FN, 0, 0x43E88000, 0x7F, 2),
    (F.FLOAT32, F.FLOAT8_E4M3FN, 1, 0x43E88000, 0x7E, 2), (F.FLOAT32, F.FLOAT8_E4M3FN, 0, 0xFF800000, 0x7F, 2),
    (F.FLOAT32, F.FLOAT8_E4M3FN, 0, 0x80000000, 0x80, 0), (F.FLOAT32, F.FLOAT8_E4M3FN, 0, 0x40880000, 0x48, 0),
    (F.FLOAT32, F.FLOAT8_E5M2, 0, 0x47700000, 0x7C, 2), (F.FLOAT32, F.FLOAT8_E5M2, 1, 0x7F800000, 0x7B, 2),
    (F.FLOAT32, F.FLOAT8_E5M2, 0, 0x7F800000, 0x7C, 0),
    (F.FLOAT32, F.FLOAT4_E2M1FN, 0, 0xFFC00000, 0x7, 1), (F.FLOAT32, F.FLOAT4_E2M1FN, 0, 0xFF800000, 0xF, 2),
    (F.FLOAT32, F.FLOAT32, 1, 0x7F800000, 0x7F7FFFFF, 2), (F.FLOAT32, F.FLOAT32, 0, 0x00000001, 0x00000001, 0),
    (F.FLOAT32, F.FLOAT32, 0, 0xFFFFFFFF, 0x7FC00000, 0),
    (F.FLOAT32, F.BFLOAT16, 0, 0x7F7F8000, 0x7F80, 2), (F.FLOAT32, F.BFLOAT16, 0, 0x7F800001, 0x7FC0, 0),
    (F.FLOAT32, F.BFLOAT16, 0, 0x00008001, 0x0001, 0),
    (F.FLOAT8_E8M0FNU, F.FLOAT32, 0, 0, 0x00400000, 0), (F.FLOAT8_E8M0FNU, F.FLOAT32, 0, 0xFE, 0x7F000000, 0),
    (F.FLOAT8_E8M0FNU, F.FLOAT32, 0, 0xFF, 0x7FC00000, 0),
    (F.FLOAT8_E4M3FN, F.FLOAT32, 0, 0xFF, 0x7FC00000, 0), (F.FLOAT8_E4M3FN, F.FLOAT16, 0, 0x01, 0x1800, 0),
    (F.FLOAT16, F.BFLOAT16, 0, 0x3FFF, 0x4000, 0),
)


@cocotb.test()
async def test_directed(dut):
    b = await Bench.start(dut)
    source, target, sat, bits, want, want_flags = (np.array(c, np.uint32) for c in zip(*DIRECTED, strict=True))
    got, flags, _ = await run(b, words(bits, source, target, sat))
    text = vectors.mismatch("directed", got, want, source, target, bits)
    text = text or vectors.mismatch("directed flags", flags, want_flags, source, target, bits)
    assert not text, text


@cocotb.test()
async def test_stochastic_repeats(dut):
    """The same elements in another order, with stalls, and in pieces give the same bits; another seed gives others."""
    b = await Bench.start(dut)
    n = count(b, 20_000)
    bits, index = vectors.floats(b.rng, n), np.arange(n, dtype=np.uint32)
    for target in (ConvertFormat.BFLOAT16, ConvertFormat.FLOAT8_E4M3FN, ConvertFormat.FLOAT4_E2M1FN):
        seed = b.seed32()
        await check(b, bits, ConvertFormat.FLOAT32, target, 0, seed, index)
        first, _, _ = await run(b, words(bits, ConvertFormat.FLOAT32, target, 0, 1, seed, index))
        order = b.rng.permutation(n)
        b.stalls(0.4)
        again, _, _ = await run(b, words(bits[order], ConvertFormat.FLOAT32, target, 0, 1, seed, index[order]))
        b.stalls(0.0)
        assert (again == first[order]).all()
        other, _, _ = await run(b, words(bits, ConvertFormat.FLOAT32, target, 0, 1, seed ^ 1, index))
        assert (other != first).any()


@cocotb.test()
async def test_numbers_stay(dut):
    """Stochastic rounding of numbers of the target format, widened: unchanged under any seed."""
    b = await Bench.start(dut)
    for target in TARGETS:
        f = FORMAT[target]
        if not f.is_float or f.bits > 16:
            continue
        codes = np.arange(0, f.max_code + 1, 1 if b.sim == "verilator" or f.bits <= 8 else 97, dtype=np.uint32)
        wide = convert.widen(codes, f.name)
        got, flags, _ = await run(b, words(wide, ConvertFormat.FLOAT32, target, 0, 1, b.seed32(), np.arange(len(codes))))
        assert (got == codes).all() and not flags.any(), f.name


@cocotb.test()
async def test_unknown_codes(dut):
    b = await Bench.start(dut)
    n = 512
    pair = b.rng.integers(0, 256, n)
    source, target = pair & 15, pair >> 4
    bits = vectors.floats(b.rng, n)
    got, _, _ = await run(b, words(bits, source, target))  # one answer each, and no X
    known = (source == ConvertFormat.FLOAT32) & (target == ConvertFormat.FLOAT32)
    assert (got[known] == convert.narrow(bits[known], "float32")).all() and len(got) == n


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall in (0.1, 0.5, 0.9):
        b.stalls(stall)
        for target in TARGETS:
            n = count(b, 1000)
            await check(b, vectors.floats(b.rng, n), ConvertFormat.FLOAT32, target, 1, b.seed32(), np.arange(n))
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    b = await Bench.start(dut)
    n = 4096
    cycles = await check(b, vectors.floats(b.rng, n), ConvertFormat.FLOAT32, ConvertFormat.FLOAT8_E5M2, 0, 5, np.arange(n))
    assert n + Converter.LATENCY <= cycles <= n + Converter.LATENCY + 6, cycles
