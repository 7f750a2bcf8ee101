"""Kernels on the `small` processing element behind 100 cycles of memory latency: memory equals the golden element's, and what the kernel must give; cycles beside their bounds."""
from __future__ import annotations

import json
from typing import Any

import cocotb
import numpy as np

from golden.pe.kernels.panels import FORMATS
from golden.pe.kernels.ranking import Ranking
from golden.pe.kernels.rowwise import LayerNorm, RmsNorm, Softmax
from rtl.emit import write_atomic
from spec.convert import ConvertFormat as C
from spec.params import config
from spec.pe import DotFormat
from spec.sfu import TAKES_B, UNARY, SfuB, SfuOp
from tb.lib.bench import Bench
from tb.lib.simulators import BUILD
from tb.pe.cp_programs import start
from tb.pe.kernel_jobs import Job, Problem, ranking_file
from tb.pe.pe_jobs import run

PE = config("small").node.pe
LATENCY = 100
MEMORY = 4 << 20
FLOATS = (C.FLOAT32, C.BFLOAT16, C.FLOAT16, C.FLOAT8_E4M3FN, C.FLOAT8_E5M2)


def publish(b: Bench, rows: list[dict[str, Any]], name: str) -> None:
    """Figures, as build/report/kernels_<name>.json."""
    for r in rows:
        r["of_bound"] = round(r["bound"] / r["cycles"], 4)
        b.dut._log.info("%s", r)
    text = json.dumps({"configuration": "small", "latency": LATENCY, "rows": rows}, indent=1) + "\n"
    write_atomic(BUILD / "report" / f"kernels_{name}.json", lambda p: p.write_text(text))


async def carry(b: Bench, job: Job) -> int:
    """Cycles from the first instruction to the last completion; memory as the job and the golden element say."""
    bound = job.kernel.bound(PE, LATENCY)
    cycles, _ = await run(b, PE, job.memory, [job.kernel.program(PE)], bound=bound)
    wrong = np.flatnonzero(b.memory("axi").image != job.want)
    assert not len(wrong), f"{job.kernel}: {len(wrong)} bytes of memory are not as defined, the first at {int(wrong[0]):#x}"
    b.dut._log.info("%s: %d cycles, bound %d", job.kernel, cycles, bound)
    return cycles


async def begin(dut: Any) -> tuple[Bench, Any]:
    """The bench, and what makes problems."""
    b = await start(dut)
    b.memory("axi").latency = LATENCY
    return b, lambda: Problem(b.rng, MEMORY)


@cocotb.test()
async def test_transpose(dut):
    b, problem = await begin(dut)
    for size in (1, 2, 4):
        for k, (rows, columns) in enumerate([(1, 1), (1, 777), (300, 1), (64, 64), (131, 67), (3, 200), (400, 331)]):
            await carry(b, problem().transpose(rows, columns, size, packed=k % 2 == 0))
        b.cover(str(size))
    await carry(b, problem().transpose(521, 257, 4))
    b.cover("beyond")


@cocotb.test()
async def test_embedding(dut):
    b, problem = await begin(dut)
    for fmt in (C.BFLOAT16, C.FLOAT8_E5M2, C.FLOAT32):
        await carry(b, problem().gather(90, 67, 300, fmt))
        b.cover("gather")
        for k, lengths in enumerate(([1], [3, 0, 0, 17, 1, 40, 0, 5, 128, 7], [0, 0, 0], [150, 2, 129, 300])):
            await carry(b, problem().bags(lengths, (24, 67)[k % 2], fmt, FLOATS[(fmt + k) % 5], mean=k % 2 == 1, wild=k == 1))
    for name in ("empty", "pieces", "mean"):
        b.cover(name)


@cocotb.test()
async def test_rowwise(dut):
    b, problem = await begin(dut)
    for k, fmt in enumerate(FLOATS):
        for kind, vectors in ((Softmax, {}), (LayerNorm, dict(gamma=True, beta=True)), (RmsNorm, dict(gamma=True)), (LayerNorm, {})):
            for rows, columns in ((1, 1), (33, 70), (5, 1000)):
                await carry(b, problem().rowwise(kind, rows, columns, fmt, FLOATS[(k + rows) % 5], wild=rows == 33, **vectors))
            b.cover(kind.name)
    b.cover("special")


@cocotb.test()
async def test_elementwise(dut):
    b, problem = await begin(dut)
    for k, op in enumerate([*UNARY, *TAKES_B]):
        await carry(b, problem().elementwise(op, 40, 67, C.BFLOAT16, FLOATS[k % 5]))
        if op in TAKES_B:
            for source in (SfuB.ELEMENTS, SfuB.ROW, SfuB.COLUMN):
                await carry(b, problem().elementwise(op, 30, 100, FLOATS[k % 5], source_b=source, format_b=FLOATS[(k + source) % 5], packed=source == SfuB.ELEMENTS))
    for fmt in FORMATS:
        await carry(b, problem().elementwise(SfuOp.COPY, 9, 65, fmt, FORMATS[(FORMATS.index(fmt) + 5) % len(FORMATS)], sat=fmt % 2 == 1))


@cocotb.test()
async def test_interaction(dut):
    b, problem = await begin(dut)
    for fmt in (DotFormat.BFLOAT16, DotFormat.FLOAT16, DotFormat.TFLOAT32):
        for samples, vectors, k in ((1, 2, 1), (37, 7, 24), (9, 27, 70)):
            await carry(b, problem().interaction(samples, vectors, k, fmt))


@cocotb.test()
async def test_ranking(dut):
    b, _ = await begin(dut)
    rows = []
    for fmt in (DotFormat.BFLOAT16, DotFormat.FLOAT16, DotFormat.TFLOAT32):
        model, batch, _ = ranking_file(256 if fmt == DotFormat.BFLOAT16 else 64)
        ranking = Ranking(model, batch, fmt)
        memory = np.zeros(MEMORY, np.uint8)
        image = ranking.image()
        memory[: len(image)] = image
        if fmt == DotFormat.BFLOAT16:  # kernel by kernel
            for name, kernel in ranking.kernels():
                cycles, _ = await run(b, PE, memory, [kernel.program(PE)], bound=kernel.bound(PE, LATENCY))
                memory = b.memory("axi").image.copy()
                rows.append(dict(kernel=name, what=type(kernel).__name__, cycles=cycles, bound=kernel.bound(PE, LATENCY)))
            memory[: len(image)] = image
        cycles, _ = await run(b, PE, memory, [ranking.program(PE)], bound=ranking.bound(PE, LATENCY))
        got = ranking.results(b.memory("axi").image)
        assert all((got[n] == codes).all() for n, codes in ranking.direct().items())
        rows.append(dict(kernel="all", what=f"{fmt.name.lower()}, {ranking.samples} samples", cycles=cycles, bound=ranking.bound(PE, LATENCY)))
    publish(b, rows, "ranking")


@cocotb.test()
async def test_stalls(dut):
    b, problem = await begin(dut)
    for latency, stall in ((1, 0.0), (30, 0.5), (5, 0.9)):
        b.stalls(stall)
        b.memory("axi").latency = latency
        for job in (problem().transpose(90, 50, 2), problem().bags([3, 0, 17, 1, 40], 24, C.BFLOAT16, mean=True), problem().rowwise(Softmax, 20, 70, C.FLOAT16),
                    problem().rowwise(LayerNorm, 20, 70, C.BFLOAT16, gamma=True, beta=True), problem().interaction(20, 7, 24, DotFormat.BFLOAT16),
                    problem().elementwise(SfuOp.GELU, 20, 300, C.FLOAT32, C.FLOAT8_E4M3FN)):
            await carry(b, job)
    b.stalls(0)


@cocotb.test()
async def test_cycles(dut):
    b, problem = await begin(dut)
    rng = np.random.default_rng(7)
    ragged = rng.integers(0, 41, 200).tolist()
    cases = [
        *((least, f"transpose, 512 x 512, {size} bytes", problem().transpose(512, 512, size, packed=True)) for size, least in ((1, 0.45), (2, 0.55), (4, 0.7))),
        (0.65, "gather, 2,000 rows of 128 bytes", problem().gather(2000, 64, 2000, C.BFLOAT16)),
        (0.75, "embedding bag, 200 bags of 0 to 40, 64 columns, bfloat16", problem().bags(ragged, 64, C.BFLOAT16, rows=2000)),
        (0.6, "the same, mean", problem().bags(ragged, 64, C.BFLOAT16, rows=2000, mean=True)),
        (0.9, "softmax, 256 x 512, bfloat16", problem().rowwise(Softmax, 256, 512, C.BFLOAT16)),
        (0.85, "LayerNorm, gamma and beta, 256 x 512, bfloat16", problem().rowwise(LayerNorm, 256, 512, C.BFLOAT16, gamma=True, beta=True)),
        (0.85, "RMSNorm, gamma, 256 x 512, bfloat16", problem().rowwise(RmsNorm, 256, 512, C.BFLOAT16, gamma=True)),
        (0.85, "GELU, 256 x 512, bfloat16", problem().elementwise(SfuOp.GELU, 256, 512, C.BFLOAT16, packed=True)),
        (0.65, "addition, 256 x 512, float32", problem().elementwise(SfuOp.ADD, 256, 512, C.FLOAT32, source_b=SfuB.ELEMENTS, packed=True)),
        (0.6, "interaction, 500 samples of 7 x 24, bfloat16", problem().interaction(500, 7, 24, DotFormat.BFLOAT16)),
    ]
    rows = [dict(kernel=name, cycles=await carry(b, job), bound=job.kernel.bound(PE, LATENCY), least=least) for least, name, job in cases]
    publish(b, rows, "cycles")
    short = [r for r in rows if r["of_bound"] < r["least"]]
    assert not short, f"less of their bounds than they had: {short}"
