"""Matrix unit on local memory against the golden units: random products, refusals, stalls, full rate."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.isa import UNIT_DONE, OutFormat, UnitStatus
from spec.params import config
from spec.pe import DotFormat as F
from spec.pe import Mx
from tb.lib.bench import Bench
from tb.pe.dot_jobs import SCALED
from tb.pe.matrix_jobs import Work, load, run

PE = config("tiny").node.pe


def fresh(b: Bench) -> Work:
    return Work(PE, b.rng.integers(0, 256, PE.local_bytes, dtype=np.uint8))


def fill(b: Bench, w: Work, most: int = 100) -> None:
    """Products of random format and shape, as many as memory holds."""
    rng = b.rng
    for _ in range(most):
        f = F(int(rng.integers(len(F))))
        mx = int(rng.integers(3)) if f in SCALED else 0
        held, rows, chunks = int(rng.choice([1, 2, 3, 4, 5, 8, 11, 19])), int(rng.choice([1, 2, 7, 8, 9, 20, 40])), int(rng.integers(1, 5))
        size = f.slot_bits // 8 or 1
        tail = 64 if rng.random() < 0.5 else size * int(rng.integers(1, 64 // size + 1))
        out = OutFormat.FLOAT32 if f is F.INT8 else OutFormat(int(rng.integers(3)))
        bias, relu = bool(rng.integers(2)), bool(rng.integers(2))
        try:
            w.product(rng, f, held=held, rows=rows, chunks=chunks, tail=tail, mx=mx, bias=bias, relu=relu, out=out, extra=int(rng.integers(0, 2)))
        except MemoryError:
            return
        for name, hit in (("bias", bias), ("relu", relu), ("mx", mx), ("tail", tail < 64), ("integer", f is F.INT8), ("bfloat16", out == OutFormat.BFLOAT16),
                          ("float16", out == OutFormat.FLOAT16), ("last group", held % PE.rows), ("one row", rows == 1)):
            if hit:
                b.cover(name)


@cocotb.test()
async def test_random(dut):
    b = await Bench.start(dut)
    for _ in range(8):
        w = fresh(b)
        fill(b, w)
        await run(b, w)


@cocotb.test()
async def test_back_to_back(dut):
    """Many short products: each is written while the next ones are read and summed."""
    b = await Bench.start(dut)
    for chunks, rows in ((1, 1), (1, 2), (2, 3), (1, 16)):
        w = fresh(b)
        for k in range(12):
            w.product(b.rng, (F.BFLOAT16, F.FLOAT8_E4M3FN, F.INT8)[k % 3], held=1 + k % 9, rows=rows, chunks=chunks, bias=k % 2 == 0)
        await run(b, w)


@cocotb.test()
async def test_refusals(dut):
    b = await Bench.start(dut)
    good = dict(format_a=1, format_b=1, mx_a=0, mx_b=0, held=4, rows=4, chunks=1, tail=64, stride_a=64, stride_b=64, scale_a=0, scale_b=0)
    half = dict(held=4, rows=4, chunks=1, stride_d=16, bias=0, integer=0, relu=0, out=0)
    w = fresh(b)
    w.at = 8192
    for change in (dict(held=0), dict(rows=0), dict(chunks=0), dict(rows=PE.depth + 1)):  # sizes that neither half has
        w.give(good | change, 0, 0, half | change, 0, 4096)
        w.product(b.rng, F.BFLOAT16, held=5, rows=3, chunks=2)
    # One half is refused: the other takes part with NaN, or with nothing to write, and the next product is right.
    for change in (dict(tail=0), dict(tail=65), dict(stride_a=32), dict(stride_b=1), dict(scale_a=8), dict(scale_b=63)):
        w.give(good | change, 0, 0, half, 0, 4096)
    for a, c in ((1, 0), (0, 32), (63, 63)):
        w.give(good | dict(held=7, chunks=2), a, c, half | dict(held=7, chunks=2, stride_d=32), 0, 4096)
    w.product(b.rng, F.FLOAT16, held=5, rows=3, chunks=2)
    for change, bias, d in ((dict(stride_d=8), 0, 4096), (dict(), 0, 4104), (dict(bias=1), 4, 4096), (dict(out=1), 0, 4100), (dict(out=1, stride_d=4), 0, 4096),
                            (dict(out=1, integer=1), 0, 4096), (dict(out=2, integer=1), 0, 4096)):
        w.give(good, 0, 0, half | change, bias, d)
        w.product(b.rng, F.BFLOAT16, held=5, rows=3, chunks=2, bias=True)
    w.give(good | dict(tail=0), 0, 0, half | dict(stride_d=8), 0, 4096)  # both
    w.product(b.rng, F.BFLOAT16, held=5, rows=3, chunks=2)
    assert set(w.done_reduce) == {UnitStatus.OK, UnitStatus.RANGE, UnitStatus.FORMAT}
    assert set(w.done_dot) == {UnitStatus.OK, UnitStatus.RANGE, UnitStatus.ALIGN}
    b.cover("RANGE")
    b.cover("ALIGN")
    w.product(b.rng, F.BFLOAT16, held=6, rows=5, chunks=2, other=F.TFLOAT32)
    w.product(b.rng, F.BFLOAT16, held=6, rows=5, chunks=2)
    assert w.done_reduce[-2:] == [UnitStatus.FORMAT, UnitStatus.OK]
    w.product(b.rng, F.FLOAT8_E4M3FN, held=3, rows=5, chunks=1, other=F.INT8)
    w.product(b.rng, F.INT8, held=3, rows=5, chunks=1)
    b.cover("FORMAT")
    await run(b, w)


@cocotb.test()
async def test_halves(dut):
    """Halves that disagree in their sizes, in each of them, by one and by much: DOT ends well, REDUCE in RANGE, nothing is written, and the next product is right."""
    b = await Bench.start(dut)
    w = fresh(b)
    w.at = 16384
    good = dict(format_a=1, format_b=1, mx_a=0, mx_b=0, held=9, rows=6, chunks=3, tail=64, stride_a=256, stride_b=256, scale_a=0, scale_b=0)
    half = dict(held=9, rows=6, chunks=3, stride_d=64, bias=0, integer=0, relu=0, out=0)
    for name in ("held", "rows", "chunks"):
        for size in (good[name] - 1, good[name] + 1, 1, 5 * good[name], 0, PE.depth + 1):
            for dot, reduce in ((good, half | {name: size}), (good | {name: size}, half)):
                if dot["rows"] * dot["stride_b"] <= 8192 and dot["held"] * dot["stride_a"] <= 8192 and dot["chunks"] <= 16:
                    w.give(dot, 0, 8192, reduce | dict(bias=size % 2), 4096, 12288)
        w.product(b.rng, F.BFLOAT16, held=5, rows=3, chunks=2, bias=True)
    assert w.done_dot.count(UnitStatus.OK) > 20 and w.done_reduce.count(UnitStatus.OK) == 3
    await run(b, w)
    b.cover("odd halves")


@cocotb.test()
async def test_alone(dut):
    """A half whose other half does not come says so once what was before it is done, and ends when it is told to; its late other half is alone too."""
    b = await Bench.start(dut)
    for name, other in (("dot", "reduce"), ("reduce", "dot")):
        w = fresh(b)
        for _ in range(3):
            w.product(b.rng, F.BFLOAT16, held=5, rows=30, chunks=2)
        jobs = dict(dot=w.dots, reduce=w.reduces)
        for half, count in ((name, 3), (other, 2)):
            load(b, f"start_{half}", jobs[half][:count])
            b.sink(f"done_{half}").expect(count)
        await b.begin()
        await b.wait_cycles(100)
        assert not int(b.pin("alone_dot").value) and not int(b.pin("alone_reduce").value), "two products are at work"
        await b.wait_cycles(400)
        assert int(b.pin(f"alone_{name}").value) == 1 and int(b.pin(f"alone_{other}").value) == 0 and b.sink(f"done_{name}").got == 2
        b.pin("drop").value = 1
        await b.finish(1000)
        assert [UNIT_DONE.unpack(x)["status"] for x in b.sink(f"done_{name}").words()] == [0, 0, UnitStatus.ALONE]
        load(b, f"start_{name}", [])
        load(b, f"start_{other}", jobs[other][2:])
        b.sink(f"done_{other}").expect(1)
        await b.run(1000)
        assert [UNIT_DONE.unpack(x)["status"] for x in b.sink(f"done_{other}").words()] == [UnitStatus.ALONE]
        b.pin("drop").value = 0
        b.cover("alone")
        w = fresh(b)
        w.product(b.rng, F.BFLOAT16, held=5, rows=30, chunks=2)
        await run(b, w)


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall in (0.3, 0.9):
        b.stalls(stall)
        w = fresh(b)
        fill(b, w)
        await run(b, w)
    b.cover("stalls")


@cocotb.test()
async def test_full_rate(dut):
    """A row a cycle over everything, MX too; what is beyond: loading the first group, latencies, the last group's writing."""
    b = await Bench.start(dut)
    for f, mx in ((F.BFLOAT16, Mx.NONE), (F.FLOAT8_E4M3FN, Mx.BLOCK_32), (F.FLOAT4_E2M1FN, Mx.BLOCK_16), (F.TFLOAT32, Mx.NONE)):
        w = fresh(b)
        for _ in range(3):
            w.product(b.rng, f, held=8, rows=32, chunks=5, mx=mx)
        cycles = await run(b, w)
        dut._log.info("%s: %d rows in %d cycles, %.4f of the bound", f.name, w.cycles, cycles, w.cycles / cycles)
        assert cycles <= w.cycles + 32 + 60, f"{f.name}: {cycles} cycles for {w.cycles} rows"
