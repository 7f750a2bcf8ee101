"""Queued element against the golden one: GEMM jobs by register and express doorbell, errors, jobs that write jobs; launch and replacement in cycles."""
from __future__ import annotations

import cocotb

from spec.pe import DotFormat as F
from spec.work_queue import JobStatus
from tb.pe.queued_jobs import PE, Queue

LAUNCH = 104  # cycles from doorbell to first multiply-accumulate beyond the latencies of memory on the way
CONTROL = 4  # the doorbell's write at the control port to its register
REPLACE = 3


@cocotb.test()
async def test_gemms(dut):
    q = await Queue.start(dut)
    image, jobs = q.image()
    rows = 0
    for tag, shape in enumerate(((33, 11, 70), (8, 4, 32), (5, 40, 130))):
        g = image.gemm(*shape, F.BFLOAT16, bias=tag == 1)
        jobs.add(1 + tag, g.program(PE))
        rows += g.bound(PE)
        g = image.gemm(*shape, F.FLOAT8_E4M3FN, mx=32 if tag else 0)
        jobs.add(100 + tag, g.program(PE), express=True)
        rows += g.bound(PE)
    records = await q.run(jobs)
    assert all(r["status"] == JobStatus.OK for r in records)
    assert await q.read("mac_rows") == rows


@cocotb.test()
async def test_launch(dut):
    """Doorbell to first multiply-accumulate, and job to job, behind any latency of memory."""
    q = await Queue.start(dut)
    beyond: dict[tuple[str, int], int] = {}
    for latency in (1, 100, 400):
        q.bench.memory("axi").latency = latency
        for kind, reads in (("ring", 3), ("express", 2)):
            image, jobs = q.image()
            jobs.add(1, image.gemm(8, 4, 32, F.BFLOAT16).program(PE), express=kind == "express")
            (r,) = await q.run(jobs)
            before = CONTROL if kind == "ring" else 0
            total, first = before + r["mac"] - r["doorbell"], before + r["first"] - r["doorbell"]
            beyond[kind, latency] = total - reads * latency
            dut._log.info("%s, latency %d: first instruction %d, first multiply-accumulate %d, of it %d latencies, beyond them %d",
                          kind, latency, first, total, reads, beyond[kind, latency])
        image, jobs = q.image()
        for tag in range(4):
            jobs.add(tag, image.gemm(16, 8, 96, F.BFLOAT16).program(PE))
        records = await q.run(jobs)
        gaps = [y["first"] - x["ended"] for x, y in zip(records, records[1:], strict=False)]
        dut._log.info("latency %d: last completion to the next job's first instruction %s", latency, gaps)
        assert gaps[-1] == REPLACE, gaps
    q.bench.memory("axi").latency = 1
    assert max(beyond.values()) <= LAUNCH, beyond
