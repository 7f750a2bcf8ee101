"""Special function unit against the golden model: every 16-bit operand, binary32, arithmetic, rows, kernels, mixed beats, stalls, full rate."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import convert
from golden.pe import sfu, sfu_round, sfu_rows
from spec.convert import ConvertFormat
from spec.formats import format_of
from spec.sfu import BINARY, NATIVE, ROW, UNARY, SfuOp
from tb.lib.bench import Bench
from tb.numeric import vectors
from tb.pe.sfu_beats import NAMES, RESULTS, check, elementwise, join, lanes_of, operands, random_beats, row

CODES = np.arange(1 << 16, dtype=np.uint32)
LATENCY = 14
F32, BF16, F16 = NATIVE
MAX, INF, MINUS = 0x7F7FFFFF, 0x7F800000, 0x80000000
SPECIAL = np.array([0, MINUS, INF, INF | MINUS, 0x7FC00000, 0xFF800001, 0x3F800000, 0xBF800000, 1, MAX, MAX | MINUS], np.uint32)


def count(b: Bench, n: int) -> int:
    """Fewer vectors on the four-state simulator."""
    return n if b.sim == "verilator" else max(1, n // 40)


async def every_code(b: Bench, fmt: ConvertFormat) -> None:
    """All codes (on the four-state simulator every 257th), with bits above them that must not matter."""
    noise = b.rng.integers(0, 1 << 16, 1 << 16, dtype=np.uint32) << np.uint32(16)
    codes = (CODES | noise)[::1 if b.sim == "verilator" else 257]
    for op in UNARY:
        await check(b, elementwise(lanes_of(b), op, codes, fa=fmt))


@cocotb.test()
async def test_bfloat16_all(dut):
    await every_code(await Bench.start(dut), BF16)


@cocotb.test()
async def test_float16_all(dut):
    await every_code(await Bench.start(dut), F16)


@cocotb.test()
async def test_float32(dut):
    b = await Bench.start(dut)
    for op in UNARY:
        for fo in NATIVE:
            x = operands(b.rng, count(b, 32_000 if fo == F32 else 8_000))
            await check(b, elementwise(lanes_of(b), op, x, fo=fo))
            mag, f = x & 0x7FFFFFFF, format_of(NAMES[fo])
            out = sfu.unary(op, x, "float32", NAMES[fo]) & f.magnitude_mask
            for name, hit in {
                "subnormal-in": (mag > 0) & (mag < 0x00800000), "subnormal-out": (out > 0) & (out < 1 << f.frac_bits),
                "overflow": (out == f.inf_code) & (mag < INF) & (mag > 0),
            }.items():
                if hit.any():
                    b.cover(name)


@cocotb.test()
async def test_special_operands(dut):
    """Each function of corners of its format, both signs; infinities, NaN of any payload, limits of the octaves."""
    b = await Bench.start(dut)
    limits = np.array([2.0**k * s for k in range(-30, 10) for s in (1, 1.5)], np.float32).view(np.uint32)
    corners = np.concatenate([vectors.CORNERS, limits, limits - 1, limits + 1]).astype(np.uint32)
    corners = np.concatenate([corners, corners | np.uint32(MINUS)])
    parts = []
    for fmt in NATIVE:
        x = np.unique(convert.narrow(corners, NAMES[fmt])).astype(np.uint32)
        f = format_of(NAMES[fmt])
        x = np.concatenate([x, np.array([f.inf_code + 1, f.inf_code + 1 | f.sign_mask, f.mask, f.magnitude_mask], np.uint32)])
        parts += [elementwise(lanes_of(b), op, x, fa=fmt, fo=fo) for op in UNARY for fo in NATIVE]
    await check(b, join(parts if b.sim == "verilator" else parts[::5]))  # 5: every function


@cocotb.test()
async def test_arithmetic(dut):
    b = await Bench.start(dut)
    lanes = lanes_of(b)
    parts = []
    for op in (*BINARY, SfuOp.CLAMP):
        for fa in NATIVE:
            for fb in NATIVE:
                for fo in NATIVE:
                    n = count(b, 1200 if fa == fb == F32 else 240)
                    x, y = vectors.pairs(b.rng, n)
                    high = int(operands(b.rng, 1)[0])
                    parts.append(elementwise(lanes, op, x, y, fa=fa, fb=fb, fo=fo, high=high))
                    parts.append(elementwise(lanes, op, x, fa=fa, fb=fb, fo=fo, low=int(operands(b.rng, 1)[0]), high=high))
    x, y = vectors.corner_pairs() if b.sim == "verilator" else (v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL))
    parts += [elementwise(lanes, op, x, y) for op in BINARY]
    parts += [elementwise(lanes, SfuOp.CLAMP, x, y, high=high) for high in (0x40400000, MINUS, 0x7FC00000)]
    await check(b, join(parts))
    b.cover("scalar")
    b.cover("vector")


@cocotb.test()
async def test_every_result_format(dut):
    """Functions, arithmetic and rows into every format, next to its ties and limits: both overflow modes, to nearest and stochastically."""
    b = await Bench.start(dut)
    lanes, parts = lanes_of(b), []
    for fo in RESULTS:
        f = fo.format
        codes = b.rng.integers(0, f.magnitude_mask + 1, count(b, 400)).astype(f"u{f.container_bits // 8}")
        near = sfu_round.widen(codes, NAMES[fo]).view(np.float32).astype(np.float64)
        near += b.rng.choice([0, 0.5, 0.25, 1], len(codes)) * 2.0 ** b.rng.integers(-20, 3, len(codes))
        with np.errstate(over="ignore", invalid="ignore"):
            x = (near * b.rng.choice([-1, 1], len(codes))).astype(np.float32).view(np.uint32)
        x = np.concatenate([x, SPECIAL, operands(b.rng, count(b, 400))])
        y = b.rng.permutation(x)
        for sat in (0, 1):
            for seed in (None, 0x87654321):
                how = dict(fo=fo, sat=sat, seed=seed)
                parts += [elementwise(lanes, op, x, **how) for op in (SfuOp.COPY, SfuOp.EXP, SfuOp.TANH, SfuOp.LOG, SfuOp.GELU)]
                parts += [elementwise(lanes, op, x, y, **how) for op in (SfuOp.ADD, SfuOp.MUL, SfuOp.MIN)]
        parts += [row(lanes, op, b.rng.choice(x, int(b.rng.integers(1, 3 * lanes))), fo=fo) for op in ROW for _ in range(count(b, 40))]
    beats = join(parts)
    await check(b, beats)
    for name, hit in (("stochastic", beats.stochastic), ("sat", beats.sat)):
        if hit.any():
            b.cover(name)


@cocotb.test()
async def test_rows(dut):
    b = await Bench.start(dut)
    lanes = lanes_of(b)
    lengths = [*range(1, 70), 127, 128, 129, 255, 300, 511, 777] if b.sim == "verilator" else [1, 2, lanes, lanes + 1, 19, 130]
    parts = []
    for op in ROW:
        for n in lengths:
            for fa in NATIVE:
                finite = b.rng.normal(0, 10.0 ** b.rng.integers(-3, 4), n).astype(np.float32).view(np.uint32)
                x = operands(b.rng, n) if n % 5 == 0 else convert.narrow(finite, NAMES[fa]).astype(np.uint32)
                parts.append(row(lanes, op, x, fa=fa, fo=NATIVE[int(b.rng.integers(3))]))
            if n == 1:
                b.cover("row-of-one")
            if n % lanes:
                b.cover("row-not-multiple")
            if n <= lanes:
                b.cover("row-one-beat")
    beats = join(parts)
    beats.a = np.where(beats.keep, beats.a, operands(b.rng, beats.a.size).reshape(beats.a.shape))  # what is not kept does not count
    await check(b, beats)


def floats(*x: float) -> np.ndarray:
    return np.array(x, np.float32).view(np.uint32)


@cocotb.test()
async def test_row_extremes(dut):
    b = await Bench.start(dut)
    lanes = lanes_of(b)
    rows = [
        floats(3.4e38, 3.4e38, -3.4e38, -3.4e38, 1e-45), floats(-0.0, -0.0, -0.0, -0.0, -0.0), floats(-0.0, 0.0), floats(-0.0), floats(1.0, -1.0),
        floats(np.inf, 1.0), floats(-np.inf, 1.0, 2.0), floats(np.inf, -np.inf), floats(np.inf, 1, 1, 1, 1, 1, -np.inf), floats(np.nan, 1.0),
        floats(1, 1, 1, 1, 1, 1, np.nan), floats(1e-45, 1e-45), floats(-1e-45, 1.0), floats(1.0, 2.0**-24), floats(1.0, 2.0**-24, 1e-45),
        floats(1.0, 2.0**-24, -1e-45), floats(-1.0, -(2.0**-24), 1e-45), floats(*[3.4e38] * 9), floats(*[-3.4e38] * 9), floats(0.0), floats(0, 0),
        np.array([MAX, 0x73000000 - 1], np.uint32), np.array([MAX, 0x73000000], np.uint32),  # just below, at the tie to infinity
        floats(2.0**127, 2.0**-149, -(2.0**127)), floats(*[2.0**k for k in range(-149, 128)]), floats(*[-(2.0**k) for k in range(-149, 128)]),
    ]
    for _ in range(count(b, 300)):  # everything cancels but what is left of two elements
        x = vectors.floats(b.rng, int(b.rng.integers(1, 40)))
        x = x[(x & INF) != INF]
        rows.append(b.rng.permutation(np.concatenate([x, x[2:] ^ np.uint32(MINUS), floats(0.0)])).astype(np.uint32))
    await check(b, join([row(lanes, op, x, fo=fo) for x in rows for op in ROW for fo in NATIVE]))


class Engine:
    """The unit's operations one by one, results taken from the hardware."""

    def __init__(self, b: Bench):
        self.b, self.lanes = b, lanes_of(b)

    async def map(self, op: SfuOp, a: np.ndarray, other: np.ndarray | None = None, fa=F32, fb=F32, fo=F32) -> np.ndarray:
        """`op` of the rows of `a`; a scalar for each row, (rows, 1), goes as `low`."""
        parts = []
        for i, x in enumerate(a):
            if other is not None and other.shape[-1] == 1:
                parts.append(elementwise(self.lanes, op, x, fa=fa, fo=fo, low=int(other[i % len(other), 0])))
            else:
                parts.append(elementwise(self.lanes, op, x, None if other is None else other[i % len(other)], fa=fa, fb=fb, fo=fo))
        return await self._run(parts, a.shape)

    async def row(self, op: SfuOp, a: np.ndarray, fa=F32) -> np.ndarray:
        return await self._run([row(self.lanes, op, x, fa=fa, fo=F32) for x in a], (len(a), 1))

    async def _run(self, parts, shape) -> np.ndarray:
        beats = join(parts)
        await check(self.b, beats)
        words = np.ascontiguousarray(self.b.sink("results").array())[:, :4 * self.lanes]
        per = len(words) // shape[0]
        return np.ascontiguousarray(words).view(np.uint32).reshape(shape[0], per * self.lanes)[:, :shape[1]]

    async def mean(self, x: np.ndarray, n: int, fa=F32) -> np.ndarray:
        inverse = await self.map(SfuOp.RECIPROCAL, floats(n)[None])
        return await self.map(SfuOp.MUL, await self.row(SfuOp.ROW_SUM, x, fa), inverse)


@cocotb.test()
async def test_kernels(dut):
    b = await Bench.start(dut)
    e = Engine(b)
    n, eps = 77 if b.sim == "verilator" else 13, floats(1e-5)[None]
    for fmt in NATIVE:
        name = NAMES[fmt]
        x = convert.narrow(b.rng.normal(0, 3, (6, n)).astype(np.float32).view(np.uint32), name).astype(np.uint32)
        f = format_of(name)
        x[1, 5], x[2, :], x[3, 0] = f.nan_code, f.inf_code | f.sign_mask, f.inf_code
        codes = x.astype(np.uint16) if fmt != F32 else x

        d = await e.map(SfuOp.SUB, x, await e.row(SfuOp.ROW_MAX, x, fmt), fa=fmt)
        p = await e.map(SfuOp.EXP, d)
        r = await e.map(SfuOp.RECIPROCAL, await e.row(SfuOp.ROW_SUM, p))
        assert (await e.map(SfuOp.MUL, p, r, fo=fmt) == sfu_rows.softmax(codes, name)).all(), f"softmax {name}"

        d = await e.map(SfuOp.SUB, x, await e.mean(x, n, fmt), fa=fmt)
        v = await e.mean(await e.map(SfuOp.MUL, d, d), n)
        r = await e.map(SfuOp.RSQRT, await e.map(SfuOp.ADD, v, eps))
        y = await e.map(SfuOp.MUL, d, r)
        y = await e.map(SfuOp.MUL, y, x[:1], fb=fmt)
        y = await e.map(SfuOp.ADD, y, x[4:5], fb=fmt, fo=fmt)
        want = sfu_rows.layer_norm(codes, name, epsilon=1e-5, gamma=codes[:1], beta=codes[4:5])
        assert (y == want).all(), f"LayerNorm {name}"

        v = await e.mean(await e.map(SfuOp.MUL, x, x, fa=fmt, fb=fmt), n)
        r = await e.map(SfuOp.RSQRT, await e.map(SfuOp.ADD, v, eps))
        assert (await e.map(SfuOp.MUL, x, r, fa=fmt, fo=fmt) == sfu_rows.rms_norm(codes, name, epsilon=1e-5)).all(), f"RMSNorm {name}"


@cocotb.test()
async def test_mixed(dut):
    b = await Bench.start(dut)
    await check(b, random_beats(b.rng, lanes_of(b), count(b, 16_000)))


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for idle, back in ((0.1, 0.1), (0.5, 0.5), (0.9, 0.0), (0.0, 0.9), (0.8, 0.8)):
        b.source("beats").idle, b.sink("results").backpressure = idle, back
        await check(b, random_beats(b.rng, lanes_of(b), count(b, 3000)))
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    """n beats take n + latency + a few cycles of the bench's own: mixed operations; rows of one beat; one function."""
    b = await Bench.start(dut)
    lanes, n = lanes_of(b), min(count(b, 8000), b.ports["beats"].depth)
    one = [row(lanes, op, operands(b.rng, k)) for op in ROW for k in range(1, lanes + 1)] * (n // (3 * lanes))
    mixed = random_beats(b.rng, lanes, n)
    mixed.op[-1], mixed.last[-1] = SfuOp.GELU, 1  # the last beat gives a result
    for what, beats in (("mixed", mixed), ("rows of one beat", join(one)), ("GELU", elementwise(lanes, SfuOp.GELU, operands(b.rng, n * lanes)))):
        cycles = await check(b, beats)
        b.dut._log.info(f"{what}: {len(beats)} beats in {cycles} cycles")
        assert len(beats) <= cycles <= len(beats) + LATENCY + 6, f"{what}: {cycles} cycles for {len(beats)} beats"


@cocotb.test()
async def test_latency(dut):
    b = await Bench.start(dut)
    seen = {}
    for op in SfuOp:
        make = row if op in ROW else elementwise
        seen[op.name] = await check(b, make(lanes_of(b), op, operands(b.rng, lanes_of(b))))
    b.dut._log.info(f"one beat: {seen}")
    assert len(set(seen.values())) == 1 and LATENCY <= seen["EXP"] <= LATENCY + 4, seen
