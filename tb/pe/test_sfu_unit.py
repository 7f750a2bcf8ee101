"""Unit of the special function unit on local memory against the golden unit: formats, operations, second operands, MX, errors, order, stalls, rate."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.convert import ConvertFormat as F
from spec.isa import UnitStatus
from spec.mx import ScaleRule
from spec.pe import Mx
from spec.sfu import ROW, TAKES_B, UNARY, SfuB, SfuOp
from tb.lib.bench import Bench
from tb.pe.sfu_unit_jobs import OVERHEAD, RESULTS, SCALED, Work, run


def fresh(b: Bench) -> Work:
    return Work(b.config.node.pe, b.rng)


async def carry_out(b: Bench, jobs: list[dict], traffic: int = 0) -> None:
    """Any number of instructions, as many at a time as memory holds."""
    w = fresh(b)
    for job in jobs:
        try:
            w.add(**job)
        except MemoryError:
            await run(b, w, traffic)
            w = fresh(b)
            w.add(**job)
    await run(b, w, traffic)


def some(rng: np.random.Generator, fmt: F, lanes: int) -> int:
    """A number of columns: one, around a beat, around lines, any."""
    line = 512 // fmt.slot_bits
    return int(rng.choice([1, lanes, lanes + 1, max(1, lanes - 1), line - 1, line, line + 1, int(rng.integers(1, 3 * line)), 2 * line]))


def random_job(b: Bench) -> dict:
    rng, lanes = b.rng, b.config.node.pe.lanes
    op = SfuOp(int(rng.choice([*UNARY, *TAKES_B, *ROW, *TAKES_B, *ROW])))
    fa, fb, fd = F(int(rng.integers(len(F)))), F(int(rng.integers(len(F)))), RESULTS[int(rng.integers(len(RESULTS)))]
    low, high, seed = (int(x) for x in rng.integers(0, 1 << 32, 3))
    job = dict(op=op, fa=fa, fb=fb, fd=fd, rows=int(rng.integers(1, 6)), columns=some(rng, (fa, fd)[int(rng.integers(2))], lanes),
               low=low, high=high, seed=seed, source_b=SfuB(int(rng.integers(4))), extra=int(rng.integers(0, 2)), sat=int(rng.integers(2)))
    if fa in SCALED:
        job["mx_a"] = Mx(int(rng.integers(3)))
    job["stochastic"] = int(rng.integers(4) == 0)
    if fd in SCALED and op not in ROW and not job["stochastic"]:
        job |= dict(mx_d=Mx(int(rng.integers(3))), rule=int(rng.integers(len(ScaleRule))))
    for name, hit in (("stochastic", job["stochastic"]), ("mx in", job.get("mx_a")), ("mx out", job.get("mx_d")), ("sat", job["sat"]),
                      ("row operation", op in ROW), ("one column", job["columns"] == 1), ("odd nibbles", fd is F.FLOAT4_E2M1FN and job["columns"] % 2),
                      ("gaps between rows", job["extra"])):
        if hit:
            b.cover(name)
    return job


@cocotb.test()
async def test_every_pair_of_formats(dut):
    """COPY from each format to each."""
    b = await Bench.start(dut)
    for sat in (0, 1):
        await carry_out(b, [dict(op=SfuOp.COPY, fa=fa, fd=fd, rows=2, columns=int(b.rng.integers(1, 75)), sat=sat) for fa in F for fd in RESULTS])


@cocotb.test()
async def test_every_operation(dut):
    """Each with every kind of second operand, in formats of each size."""
    b = await Bench.start(dut)
    jobs = []
    for op in SfuOp:
        for source_b in SfuB if op in TAKES_B else (SfuB.ELEMENTS,):
            for fa, fb, fd in ((F.FLOAT32, F.FLOAT32, F.FLOAT32), (F.BFLOAT16, F.INT32, F.FLOAT16), (F.FLOAT8_E4M3FN, F.FLOAT4_E2M1FN, F.BFLOAT16),
                               (F.FLOAT4_E2M1FN, F.FLOAT16, F.INT8), (F.INT16, F.FLOAT8_E5M2, F.FLOAT4_E2M1FN)):
                columns = some(b.rng, fa, b.config.node.pe.lanes)
                jobs.append(dict(op=op, fa=fa, fb=fb, fd=fd, source_b=source_b, rows=3, columns=columns, low=0xBF000000, high=0x40000000,
                                 extra=int(b.rng.integers(2))))
            if op in TAKES_B:
                b.cover(source_b.name.lower())
    await carry_out(b, jobs)


@cocotb.test()
async def test_mx(dut):
    """Every element format, block and rule, both ways, rows of less and more than a chunk."""
    b = await Bench.start(dut)
    jobs = []
    for f in SCALED:
        for block in (Mx.BLOCK_16, Mx.BLOCK_32):
            for rule in ScaleRule:
                for columns in (1, 15, 16, 33, 64, 128, 129, 300):
                    jobs.append(dict(op=SfuOp.COPY, fa=F.FLOAT32, fd=f, mx_d=block, rule=int(rule), sat=int(b.rng.integers(2)), rows=2, columns=columns))
            for columns in (1, 17, 64, 128, 129, 300):
                jobs.append(dict(op=SfuOp.COPY, fa=f, fd=F.FLOAT32, mx_a=block, rows=9, columns=columns))
                jobs.append(dict(op=SfuOp.MUL, fa=f, fd=SCALED[int(b.rng.integers(5))], mx_a=block, mx_d=Mx(3 - block), source_b=SfuB.COLUMN, rows=3,
                                 columns=columns))
    await carry_out(b, jobs)


@cocotb.test()
async def test_stochastic(dut):
    """Random bits of each result by its place: many short rows of numbers that lie between those of the result's format."""
    b = await Bench.start(dut)
    await carry_out(b, [
        dict(op=op, fa=F.INT16, fb=F.INT16, fd=fd, rows=40, columns=columns, stochastic=1, seed=int(b.rng.integers(1 << 32)))
        for op in (SfuOp.COPY, SfuOp.ADD, *ROW) for fd in (F.BFLOAT16, F.TFLOAT32, F.FLOAT8_E5M2) for columns in (1, 5, 19)])


@cocotb.test()
async def test_random(dut):
    b = await Bench.start(dut)
    await carry_out(b, [random_job(b) for _ in range(400)])


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for stall, traffic in ((0.3, 500), (0.9, 100), (0.0, 2000)):
        b.stalls(stall)
        await carry_out(b, [random_job(b) for _ in range(80)], traffic)
    b.cover("stalls")


@cocotb.test()
async def test_refusals(dut):
    """Each rule of the status alone, with a good instruction after it; nothing is written."""
    b = await Bench.start(dut)
    w = fresh(b)
    A, B, D = 0, 4096, 8192
    w.at = 16384
    good = dict(rows=3, columns=20, stride_a=128, stride_b=128, stride_d=128)
    scaled = dict(format_a=4, mx_a=1, format_d=4, mx_d=1)
    cases = [(31, {}, A, B, D), *((len(SfuOp) + k, {}, A, B, D) for k in range(2))]
    cases += [(SfuOp.COPY, change, A, B, D) for change in (
        dict(format_a=14), dict(format_a=15), dict(format_d=14), dict(format_d=9), dict(mx_a=1), dict(mx_d=2), dict(format_a=4, mx_a=3),
        dict(format_d=8, mx_d=3), scaled | dict(rule=3), scaled | dict(stochastic=1), dict(rows=0),
        dict(columns=0), dict(stride_a=32), dict(stride_a=65), dict(stride_d=32),
        dict(stride_d=2), scaled | dict(scale_a=8), scaled | dict(scale_d=32), dict(scale_a=8, scale_d=8, rule=3))]
    cases += [(SfuOp.ADD, change, A, B, D) for change in (
        dict(format_b=14), dict(format_b=14, source_b=3), dict(stride_b=4), dict(stride_b=4, source_b=1), dict(stride_b=6, source_b=2),
        dict(stride_b=4, source_b=2), dict(stride_b=3, source_b=2, format_b=2), dict(stride_b=3, source_b=2, format_b=4),
        dict(stride_b=2, source_b=2, format_b=2))]
    cases += [(SfuOp.ROW_MAX, change, A, B, D) for change in (
        dict(format_d=4, mx_d=1), dict(stride_d=2), dict(stride_d=6, format_d=3), dict(stride_d=3, format_d=8))]
    cases += [(SfuOp.COPY, {}, A + at, 1, D) for at in (1, 32, 64)] + [(SfuOp.COPY, {}, A, 1, D + at) for at in (8, 32, 64)]
    cases += [(SfuOp.ADD, dict(source_b=source), A, B + at, D) for source in range(4) for at in (2, 4, 64)]
    cases += [(SfuOp.ROW_MIN, {}, A, 1, D + at) for at in (1, 2, 4)]
    for op, change, *at in cases:
        w.give(op, good | change, *at)
        if w.rng.random() < 0.3:
            w.add(SfuOp.ADD, F.BFLOAT16, F.FLOAT32, rows=2, columns=5)
    assert set(w.done) == {UnitStatus.OK, UnitStatus.FORMAT, UnitStatus.RANGE, UnitStatus.ALIGN}
    for name in ("FORMAT", "RANGE", "ALIGN"):
        b.cover(name)
    await run(b, w)


@cocotb.test()
async def test_order(dut):
    """Instructions that read what the ones before wrote, in place too: softmax of rows, bags of rows, a chain of additions."""
    b = await Bench.start(dut)
    for columns in (3, 16, 45, 130):
        w = fresh(b)
        rows = 6
        shape = dict(rows=rows, columns=columns)
        a, stride_a = w.operand(rows, columns, F.BFLOAT16, 0)
        wide, stride = w.operand(rows, columns, F.FLOAT32, 0)
        top, total, d = w.room(4 * rows), w.room(4 * rows), w.room(stride_a * rows)
        here = dict(stride_a=stride_a, format_a=F.BFLOAT16)
        for op, change, at in (
            (SfuOp.ROW_MAX, here | dict(stride_d=4), (a, 0, top)), (SfuOp.SUB, here | dict(source_b=SfuB.COLUMN, stride_b=4, stride_d=stride), (a, top, wide)),
            (SfuOp.EXP, dict(stride_a=stride, stride_d=stride), (wide, 0, wide)), (SfuOp.ROW_SUM, dict(stride_a=stride, stride_d=4), (wide, 0, total)),
            (SfuOp.RECIPROCAL, dict(rows=1, columns=rows), (total, 0, total)),
            (SfuOp.MUL, dict(format_d=F.BFLOAT16, source_b=SfuB.COLUMN, stride_a=stride, stride_b=4, stride_d=stride_a), (wide, total, d)),
        ):
            w.give(op, shape | {k: int(v) for k, v in change.items()}, *at)
        sums = w.room(stride * 2)
        bag = dict(rows=2, columns=columns, format_a=int(F.BFLOAT16), stride_a=3 * stride_a, stride_b=stride, stride_d=stride)
        for k in range(3):
            w.give(SfuOp.ADD if k else SfuOp.COPY, bag, a + k * stride_a, sums, sums)
        for _ in range(4):
            w.give(SfuOp.ADD, dict(rows=2, columns=columns, stride_a=stride, stride_b=stride, stride_d=stride), sums, sums, sums)
        await run(b, w)


@cocotb.test()
async def test_full_rate(dut):
    """An element a lane and cycle, or a line a cycle and port, whichever is more; what is beyond is the same for every instruction, and what ports lose that
    meet in a bank: those that read one line again and again, or write it in pieces, meet others."""
    b = await Bench.start(dut)
    pe = b.config.node.pe
    for name, job in {
        "exp, binary32": dict(op=SfuOp.EXP, fa=F.FLOAT32, fd=F.FLOAT32, columns=256),
        "add, bfloat16": dict(op=SfuOp.ADD, fa=F.BFLOAT16, fb=F.BFLOAT16, fd=F.BFLOAT16, columns=512),
        "mul by a column into MXFP8": dict(op=SfuOp.MUL, fa=F.BFLOAT16, fb=F.FLOAT32, fd=F.FLOAT8_E4M3FN, mx_d=Mx.BLOCK_32, source_b=SfuB.COLUMN, columns=512),
        "copy, MXFP4 to bfloat16": dict(op=SfuOp.COPY, fa=F.FLOAT4_E2M1FN, mx_a=Mx.BLOCK_16, fd=F.BFLOAT16, columns=512),
        "row sums of bfloat16": dict(op=SfuOp.ROW_SUM, fa=F.BFLOAT16, fd=F.FLOAT32, columns=512),
        "rows of one beat": dict(op=SfuOp.ROW_MAX, fa=F.FLOAT32, fd=F.FLOAT32, columns=pe.lanes, rows=60, slack=1.15),
        "short rows, int8 from binary32 by a row": dict(op=SfuOp.ADD, fa=F.FLOAT32, fb=F.FLOAT16, fd=F.INT8, source_b=SfuB.ROW, columns=24, rows=60,
                                                        slack=1.15),
    }.items():
        w, slack = fresh(b), job.pop("slack", 1.03)
        w.add(**(dict(rows=20) | job))
        cycles = await run(b, w)
        most = w.cycles - OVERHEAD
        dut._log.info("%s: bound %d, %d cycles, %.4f", name, most, cycles, most / cycles)
        assert most <= cycles <= slack * most + OVERHEAD, f"{name}: {cycles} cycles, bound {most}"


@cocotb.test()
async def test_latency(dut):
    b = await Bench.start(dut)
    seen = {}
    for op in (SfuOp.COPY, SfuOp.ADD, SfuOp.ROW_SUM):
        w = fresh(b)
        w.add(op, F.BFLOAT16, F.FLOAT32, rows=1, columns=1)
        seen[op.name] = await run(b, w)
    dut._log.info("one element: %s", seen)
    assert max(seen.values()) <= OVERHEAD, seen


