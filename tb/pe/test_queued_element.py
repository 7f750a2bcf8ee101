"""Queued element against the golden one: GEMM jobs by register and express doorbell, errors, jobs that write jobs; launch and replacement in cycles."""
from __future__ import annotations

import cocotb

from spec.assembly import encode, instruction
from spec.isa import DMA_ARGS, CpStatus, Unit
from spec.pe import DotFormat as F
from spec.work_queue import JobFlag, JobStatus
from tb.pe.queued_jobs import OFFSETS, PE, Queue
from tb.pe.work_queue_jobs import RING, record_of

LAUNCH = 64  # cycles from doorbell to first multiply-accumulate beyond the latencies of memory on the way
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
        rows += g.slots(PE)
        g = image.gemm(*shape, F.FLOAT8_E4M3FN, mx=32 if tag else 0)
        jobs.add(100 + tag, g.program(PE), express=True)
        rows += g.slots(PE)
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
            assert r["doorbell"] < r["first"] < r["mac"] < r["ended"], r
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


@cocotb.test()
async def test_errors(dut):
    """A job that fails at any of its instructions, in any unit, is followed by one that does not; what was at work when it failed ends."""
    q = await Queue.start(dut)
    beyond = (1 << 21) - 64
    for latency in (1, 100):
        q.bench.memory("axi").latency = latency
        image, jobs = q.image(16)
        good = image.gemm(9, 5, 40, F.BFLOAT16)
        but = [(beyond, beyond + 64)]
        for tag, at in enumerate(("load", "bias", "store")):
            g = image.gemm(60, 24, 200, F.BFLOAT16, bias=True)
            but.append((g.c, g.c + g.m * g.stride_c))
            program = g.program(PE)
            dmas = [i for i, x in enumerate(program) if x["unit"] == int(Unit.DMA)]
            k = {"load": dmas[1], "bias": dmas[0], "store": dmas[-1]}[at]
            args = DMA_ARGS.unpack(program[k]["args"]) | dict(address=beyond)
            program[k] = program[k] | dict(args=DMA_ARGS.pack(args), tag=77)
            jobs.add(10 * tag + 1, program)
            jobs.add(10 * tag + 2, good.program(PE))
        jobs.add(50, [instruction("nop", tag=3), instruction("layout", a=(0, 0, 0, 0), d=(0, 0, 0, 0), kind=3, rows=1, columns=1, tag=9)])
        jobs.add(51, [instruction("wait", event=15, value=1, tag=5)], good.program(PE))
        jobs.add(52, good.program(PE))
        records = await q.run(jobs, but=but)
        for r in records:
            if r["tag"] in (1, 11, 21):
                assert (r["status"], r["fail_tag"], r["fail_status"], r["fail_unit"]) == (JobStatus.FAILED, 77, CpStatus.UNIT, Unit.DMA), r
            elif r["tag"] in (50, 51):
                assert r["status"] == JobStatus.FAILED and r["fail_status"] == (CpStatus.UNIT if r["tag"] == 50 else CpStatus.STUCK), r
            else:
                assert r["status"] == JobStatus.OK, r
    q.bench.memory("axi").latency = 1
    q.bench.cover("failed")
    q.bench.cover("stuck")


@cocotb.test()
async def test_halves(dut):
    """DOT without REDUCE, REDUCE without DOT, one after the other and beside an error: nothing waits for ever, the next job's products are its own."""
    q = await Queue.start(dut)
    image, jobs = q.image(16)
    g = image.gemm(12, 6, 100, F.BFLOAT16)
    program = g.program(PE)
    for tag, gone in enumerate((Unit.REDUCE, Unit.DOT)):
        half = [x for x in program if x["unit"] != int(gone) and not (x["unit"] == int(Unit.DMA) and x["a_use"])]
        jobs.add(10 * tag + 1, half)
        jobs.add(10 * tag + 2, image.gemm(7, 5, 40, F.FLOAT16).program(PE))
        if gone is Unit.REDUCE:
            jobs.add(10 * tag + 3, [instruction("buffer", cb=15, base=0, size=64), *half[:-1], instruction("layout", a=(15, 0, 0, 0), d=(15, 0, 0, 0), kind=3, rows=1, columns=1, tag=9)])
        jobs.add(10 * tag + 4, image.gemm(7, 5, 40, F.FLOAT16).program(PE))
    small = image.gemm(1, 1, 8, F.BFLOAT16).program(PE)  # sums that stay in the engine
    jobs.add(50, [x for x in small if x["unit"] != int(Unit.REDUCE) and not (x["unit"] == int(Unit.DMA) and x["a_use"])])
    jobs.add(51, image.gemm(3, 2, 8, F.BFLOAT16).program(PE))
    records = await q.run(jobs)
    assert [(r["tag"], r["status"]) for r in records if r["tag"] % 10 in (2, 4)] == [(t, JobStatus.OK) for t in (2, 4, 12, 14)]
    assert records[-1]["status"] == JobStatus.OK
    q.bench.cover("halves")


@cocotb.test()
async def test_unread(dut):
    """Memory refuses a descriptor, an instruction, a record: the job's record or end says so, the next job runs."""
    q = await Queue.start(dut)
    for what in ("descriptor", "program", "record"):
        image, jobs = q.image()
        g = image.gemm(9, 5, 40, F.BFLOAT16)
        jobs.add(1, g.program(PE))
        bad = jobs.add(2, [instruction("nop", tag=i) for i in range(20)])
        jobs.add(3, image.gemm(9, 5, 40, F.FLOAT16).program(PE))
        at = {"descriptor": RING + 64, "program": bad["program0"] + 64 * 11, "record": bad["record"]}[what]
        records = await q.run(jobs, refused=(at, at + 64))
        assert [r["status"] for r in records if r["tag"] in (1, 3)] == [JobStatus.OK] * 2
        q.bench.cover(what)


@cocotb.test()
async def test_fence(dut):
    """A job copies the next one's program into place, and one behind many."""
    q = await Queue.start(dut)
    for latency in (1, 200):
        q.bench.memory("axi").latency = latency
        image, jobs = q.image()
        real = encode(image.gemm(8, 6, 64, F.BFLOAT16).program(PE))
        source, size = jobs.put(real), len(real)
        target = jobs.put(encode([instruction("nop")] * (size // 64)))
        copy = [
            instruction("buffer", cb=7, base=0, size=-(-size // 64) * 64),
            instruction("dma", d=(7, 0, size, size), address=source, rows=1, planes=1, row_bytes=size),
            instruction("dma", a=(7, 0, size, size), address=target, to_memory=1, rows=1, planes=1, row_bytes=size), instruction("sync"),
        ]
        jobs.add(1, copy)
        jobs.add(2, program0=target, count0=size // 64, flags=int(JobFlag.FENCE))
        records = await q.run(jobs)
        assert [r["completions"] for r in records] == [len(copy), size // 64] and records[1]["mac"] != records[1]["doorbell"]
    q.bench.memory("axi").latency = 1
    q.bench.cover("fence")


@cocotb.test()
async def test_stalls(dut):
    q = await Queue.start(dut)
    for latency, stall in ((100, 0.0), (30, 0.5), (5, 0.9)):
        q.bench.stalls(stall)
        q.bench.memory("axi").latency = latency
        image, jobs = q.image()
        for tag in range(3):
            jobs.add(1 + tag, image.gemm(20, 9, 130, F.FLOAT8_E5M2, mx=32).program(PE))
            jobs.add(100 + tag, image.gemm(11, 6, 70, F.FLOAT16, bias=True).program(PE), express=True)
        await q.run(jobs)
    q.bench.stalls(0)
    q.bench.memory("axi").latency = 1
    q.bench.cover("stalls")


@cocotb.test()
async def test_registers(dut):
    """Doorbells one after the other over the ring's end; registers keep what they are given; what is unmapped is refused."""
    q = await Queue.start(dut)
    b = q.bench
    image, jobs = q.image(2)
    for name, value in (("jq_base", RING), ("jq_base_high", 0), ("jq_size", 2)):
        await q.write(name, value)
        assert await q.read(name) == value
    for number in range(5):
        jobs.ring = [{}] * number
        job = jobs.add(40 + number, [instruction("nop")] * (number + 1))
        b.memory("axi").write(0, jobs.memory)
        b.sink("ended").expect(1)
        await b.begin(settle=32)
        await q.write("jq_tail", number + 1)
        await b.finish(5000)
        assert record_of(b.memory("axi").image, job)["tag"] == 40 + number
        assert await q.read("jq_head") == number + 1 and await q.read("jq_errors") == 0
    assert await q.bus.write(OFFSETS["jq_head"], 1) == 2 and (await q.bus.read(0x100))[1] == 3
    b.cover("wrap")
