"""Work-queue engine against the golden one, before a command processor with stand-in units."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.assembly import encode, instruction
from spec.isa import CpStatus, Unit
from spec.work_queue import JobFlag, JobStatus
from tb.lib.bench import Bench
from tb.pe.cp_programs import random_program, work
from tb.pe.work_queue_jobs import RING, Jobs, Program, failing, run, start

MEMORY = 1 << 20


def fresh(b: Bench, size: int = 8) -> Jobs:
    return Jobs(b.rng.integers(0, 256, MEMORY, dtype=np.uint8), size)


def programs(b: Bench, most: int) -> list[Program]:
    """One for each core, with buffers and counters of its own."""
    out = []
    for core in range(2):
        n = int(b.rng.integers(6, most))
        out.append(random_program(b.rng, n, cbs=range(8 * core, 8 * core + 4), events=range(8 * core, 8 * core + 4), start=5000 * core))
    return out


def nops(n: int) -> Program:
    return [instruction("nop", tag=i) for i in range(n)]


@cocotb.test()
async def test_ring(dut):
    b = await start(dut)
    for size in (1, 4, 16):
        jobs = fresh(b, size)
        for i in range(size):
            one, two = programs(b, 40 if i else 150)
            kind = int(b.rng.integers(0, 5))
            p = [[one, two], [one], [[], two], [], [one, two]][kind]
            jobs.add(100 + i, *p, record=bool(b.rng.integers(0, 4)))
        jobs.add(7, nops(3)) if not jobs.ring else None
        records = await run(b, jobs)
        assert failing(records) == [CpStatus.OK] * len(records)
    jobs = fresh(b)
    jobs.add(1, *programs(b, 20))
    jobs.add(2)
    jobs.add(3, nops(1), record=False)
    await run(b, jobs)
    for name in ("two cores", "empty", "no record"):
        b.cover(name)
    # Doorbells one after the other, five jobs in a ring of two.
    b.pin("base").value, b.pin("size").value, b.pin("tail").value = RING, 2, 0
    await b.reset()
    for number in range(5):
        jobs = fresh(b, 2)
        jobs.ring = [{}] * number
        job = jobs.add(40 + number, nops(number + 1))
        b.memory("axi").write(0, jobs.memory)
        b.sink("ended").expect(1)
        b.sink("seen").expect(number + 1)
        await b.begin(settle=32)
        b.pin("tail").value = number + 1
        await b.finish(2000)
        got = b.memory("axi").image[job["record"] : job["record"] + 4].view(np.uint32)[0]
        assert got == 40 + number and int(b.pin("head").value) == number + 1
    b.cover("wrap")


@cocotb.test()
async def test_express(dut):
    b = await start(dut)
    jobs = fresh(b)
    for i in range(8):
        jobs.add(1 + i, [work(int(Unit.DMA), i, cycles=100)])
        jobs.add(100 + i, [work(int(Unit.DOT), 50 + i, cycles=30)], [work(int(Unit.SFU), 80 + i, cycles=5)], express=True)
    records = await run(b, jobs)
    ring, express = records[:8], records[8:]
    assert ring[0]["ended"] < express[7]["first"] and express[0]["ended"] < ring[7]["first"], "one kind went wholly before the other"
    b.cover("between")


@cocotb.test()
async def test_refusals(dut):
    b = await start(dut)
    good = nops(5)
    bad_unit = instruction("nop", tag=9) | dict(unit=7)
    waits = instruction("wait", event=3, value=5, tag=8)
    unit_fails = work(int(Unit.LAYOUT), 77, status=5, tag=6)
    cases = {
        "failed": [[[*good, bad_unit, *good], []], [[*good, unit_fails], []], [[], [bad_unit, *good]]],
        "stuck": [[[*good, waits, *good], good]],
    }
    for name, lists in cases.items():
        for p in lists:
            jobs = fresh(b)
            jobs.add(1, *p)
            jobs.add(2, good, good)
            first, second = await run(b, jobs)
            assert first["status"] == JobStatus.FAILED and second["status"] == JobStatus.OK
            b.cover(name)
    for k in range(2):  # an instruction that cannot be read, in a burst and as the first; the other core's are carried out
        for line in (0, 3, 9):
            jobs = fresh(b)
            job = jobs.add(1, nops(12), nops(12))
            jobs.add(2, good)
            at = job[f"program{k}"] + 64 * line
            first, second = await run(b, jobs, refused=(at, at + 64))
            assert first["status"] == JobStatus.READ and first["address"] == at and first["completions"] == 12 + line
            assert second["status"] == JobStatus.OK
            b.cover("read")
    jobs = fresh(b)
    jobs.add(1, nops(3), program0=MEMORY - 64)  # over the end of memory
    jobs.memory[MEMORY - 64 :] = np.frombuffer(encode(nops(1)), np.uint8)
    jobs.add(2, good, count0=3, program0=jobs.at + 4)
    jobs.add(3, good, count1=1, program1=33)
    jobs.add(4, good, count0=0, program0=33)
    records = await run(b, jobs)
    assert [r["status"] for r in records] == [JobStatus.READ, JobStatus.ALIGN, JobStatus.ALIGN, JobStatus.OK]
    b.cover("align")
    jobs = fresh(b)
    for core in range(2):  # the last address there is, one beyond it, far beyond
        jobs.add(1, good, **{f"program{core}": (1 << 32) - 64, f"count{core}": 1})
        jobs.add(2, good, **{f"program{core}": (1 << 32) - 64, f"count{core}": 2})
        jobs.add(3, good, **{f"program{core}": 1 << 32 + core, f"count{core}": 1})
    jobs.add(4, good, record=1 << 40)
    records = await run(b, jobs)
    assert [r["status"] for r in records] == 2 * [JobStatus.READ, JobStatus.RANGE, JobStatus.RANGE]
    b.cover("range")
    jobs = fresh(b)
    for i in range(4):
        jobs.add(1 + i, good)
    records = await run(b, jobs, refused=(RING + 64, RING + 128))
    b.cover("descriptor")
    jobs = fresh(b)
    jobs.add(1, good, record=0x8008)
    bad = jobs.add(2, good)
    jobs.add(3, good)
    await run(b, jobs, refused=(bad["record"], bad["record"] + 64))
    b.cover("record")


@cocotb.test()
async def test_fence(dut):
    """A program written just before the job ahead of it ends: read after that with FENCE, and far earlier without."""
    b = await start(dut)
    b.memory("axi").latency = 100
    for flags in (0, JobFlag.FENCE):
        jobs = fresh(b)
        jobs.add(1, [work(int(Unit.DMA), 1, cycles=2000)])
        jobs.add(2, nops(3), flags=int(flags))
        first, second = await run(b, jobs)
        gap = second["first"] - first["ended"]
        dut._log.info("flags %d: next job's first instruction %d cycles after the last completion", flags, gap)
        assert gap == 3 if not flags else 200 < gap <= 216, gap  # a write and a read of memory
    b.memory("axi").latency = 1
    # One behind another, express among them.
    jobs = fresh(b)
    for i in range(4):
        jobs.add(1 + i, *programs(b, 20), flags=int(JobFlag.FENCE))
        jobs.add(100 + i, nops(3), express=True, flags=int(JobFlag.FENCE))
    await run(b, jobs)
    b.cover("fence")


@cocotb.test()
async def test_stalls(dut):
    b = await start(dut)
    for latency, stall in ((1, 0.0), (100, 0.0), (30, 0.5), (7, 0.9)):
        b.stalls(stall)
        b.memory("axi").latency = latency
        jobs = fresh(b)
        for i in range(6):
            jobs.add(1 + i, *programs(b, 30))
            jobs.add(100 + i, *programs(b, 10), express=True)
        await run(b, jobs)
    b.stalls(0)
    b.memory("axi").latency = 1
    b.cover("stalls")


@cocotb.test()
async def test_launch(dut):
    """Doorbell to first instruction: two reads of memory, or one by the express port, and a fixed number of cycles."""
    b = await start(dut)
    for express, reads in ((False, 2), (True, 1)):
        beyond = set()
        for latency in (1, 100, 400):
            b.memory("axi").latency = latency
            jobs = fresh(b)
            jobs.add(1, nops(2), express=express)
            (record,) = await run(b, jobs)
            beyond.add(record["first"] - record["doorbell"] - reads * latency)
        dut._log.info("launch %s: %s cycles beyond %d latencies", "express" if express else "ring", beyond, reads)
        assert len(beyond) == 1 and max(beyond) <= (10 if reads == 2 else 7), beyond
    b.memory("axi").latency = 1


@cocotb.test()
async def test_replacement(dut):
    """The next job's first instruction after the last completion of the one before, its record still on the way."""
    b = await start(dut)
    gaps = set()
    for latency in (1, 100, 400):
        b.memory("axi").latency = latency
        jobs = fresh(b)
        for i in range(4):
            jobs.add(i, [work(int(Unit.DMA), i, cycles=1500), *nops(4)])
        records = await run(b, jobs)
        gaps |= {y["first"] - x["ended"] for x, y in zip(records, records[1:], strict=False)}
    dut._log.info("replacement: %s cycles", gaps)
    assert gaps == {3}, gaps
    b.memory("axi").latency = 1


@cocotb.test()
async def test_rate(dut):
    """A long program behind 100 cycles takes what it takes behind one, and the first latency."""
    b = await start(dut)
    cycles = []
    for latency in (1, 100):
        b.memory("axi").latency = latency
        jobs = fresh(b)
        jobs.add(1, [work(int(Unit.LAYOUT) + i % 3, i) for i in range(300)])
        (record,) = await run(b, jobs)
        cycles.append(record["ended"] - record["first"])
    dut._log.info("300 instructions in %s cycles", cycles)
    assert cycles[1] <= cycles[0] + 100, cycles
    b.memory("axi").latency = 1


@cocotb.test()
async def test_visible(dut):
    """`ended` and `head` say so only when memory has answered the record's write."""
    b = await start(dut)
    b.memory("axi").latency = 300
    jobs = fresh(b)
    jobs.add(1, nops(2))
    (record,) = await run(b, jobs)
    spent = record["ended"] - record["doorbell"]
    assert jobs.cycles >= spent + 300, f"ended after {jobs.cycles} cycles; {spent} cycles and a write of 300"
    b.memory("axi").latency = 1
