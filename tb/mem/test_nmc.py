"""Near-memory compute against the golden model: every type and operation, lengths, overlap, errors, stalls, latency, full rate."""
from __future__ import annotations

import cocotb

from spec.wqe import DType, ReduceOp, Status
from tb.lib.bench import Bench
from tb.mem.nmc_jobs import Job, Layout, elements, expect, refused, run, statuses

SIZE = 1 << 18
SCALES = (0x3F000000, 0x3EAAAAAB, 0x3F800000, 0x00000001, 0x7F7FFFFF, 0x80000000, 0x7F800000, 0x7FC00001, 0x007FFFFF, 0xBE4CCCCD)
FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


async def start(dut, size: int = SIZE) -> tuple[Bench, Layout]:
    b = await Bench.start(dut)
    return b, Layout(b.rng, size)


def short(b: Bench, n: int) -> int:
    """Fewer elements on the four-state simulator."""
    return n if b.sim == "verilator" else max(33, n // 30)


@cocotb.test()
async def test_every_type_and_operation(dut):
    b, mem = await start(dut)
    jobs = [mem.job(elements(t, short(b, 2000)), dtype=t, rop=r) for t in DType for r in ReduceOp]
    await run(b, jobs, mem.image)
    for j in jobs:
        b.cover(f"{DType(j.dtype).name.lower()}-{ReduceOp(j.rop).name.lower()}")


@cocotb.test()
async def test_scale(dut):
    """Sum rounded to binary32, times scale rounded to binary32, then one rounding to the type; scale corners."""
    b, mem = await start(dut)
    jobs = [mem.job(elements(t, short(b, 300)), dtype=t, rop=r, scale=s) for t in FLOATS for r in ReduceOp for s in SCALES]
    await run(b, jobs if b.sim == "verilator" else jobs[::4], mem.image)


@cocotb.test()
async def test_lengths(dut):
    """0, 1, 2, ... elements up to three beats, then around 4 KiB; every type."""
    b, mem = await start(dut, 1 << 20)
    for t in DType:
        mem.at = 0
        counts = [*range(0, 98, 1 if b.sim == "verilator" else 13), 1023, 1024, 1025, 2047, 2048, 2049]
        jobs = [mem.job(elements(t, n), dtype=t) for n in counts]
        await run(b, jobs, mem.image)
        b.cover(f"lengths-{t.name.lower()}")


@cocotb.test()
async def test_copy_lengths(dut):
    """COPY of any byte length; NaN and all other bits unchanged; B not read; rop, dtype, scale and addr_b are ignored."""
    b, mem = await start(dut)
    counts = [*range(0, 194, 1 if b.sim == "verilator" else 17), 4095, 4096, 4097, 8191]
    jobs = [mem.job(n, copy=True) for n in counts]
    jobs += [Job(length=65, a=jobs[-1].a, b=0xFFFF_FFFF_FFFF_FFFF, d=mem.place(65), copy=True, rop=3, dtype=DType.INT32, scale=0x7FC00000)]
    await run(b, jobs, mem.image)
    b.cover("copy")


@cocotb.test()
async def test_page_crossing(dut):
    """A, B and D at different offsets in their 4 KiB pages (the bus model refuses a burst that crosses one)."""
    b, mem = await start(dut, 1 << 20)
    jobs = []
    for a_off in (0, 64, 2048, 4032):
        for n in (64, 128, 4096, 4160, 8192) if b.sim == "verilator" else (128, 4160):
            j = mem.job(n, page_offset=a_off)
            jobs.append(Job(length=n, a=j.a, b=j.b, d=mem.place(n, page_offset=(a_off * 7 + 192) % 4096)))
    await run(b, jobs, mem.image)
    b.cover("pages")


@cocotb.test()
async def test_in_place(dut):
    b, mem = await start(dut)
    mem_bytes = 5000 if b.sim == "verilator" else 600
    jobs = []
    for same in ("da", "db", "ab", "abd"):
        for t in DType:
            jobs.append(mem.job(mem_bytes // 4 * 4, same=same, dtype=t))
        b.cover(f"in-place-{same}")
    jobs.append(mem.job(777, same="abd", copy=True))
    for latency in (1, 40):
        b.memory("axi_a").latency = b.memory("axi_b").latency = latency
        await run(b, jobs, mem.image.copy())


@cocotb.test()
async def test_stalls_and_latency(dut):
    b, mem = await start(dut)
    for stall, lat_a, lat_b in ((0.0, 100, 3), (0.2, 1, 60), (0.5, 20, 20), (0.8, 5, 1)):
        mem.at = 0
        b.stalls(stall)
        b.memory("axi_a").latency, b.memory("axi_b").latency = lat_a, lat_b
        jobs = []
        for k in range(16 if b.sim == "verilator" else 5):
            t = DType(int(b.rng.integers(4)))
            copy = bool(b.rng.integers(4) == 0)
            n = int(b.rng.choice([0, 1, 16, 17, 33, 100, 1024, int(b.rng.integers(1, 1500))]))
            jobs.append(mem.job(n if copy else elements(t, n), copy=copy, dtype=t, rop=int(b.rng.integers(3)),
                                scale=SCALES[k % len(SCALES)] if t != DType.INT32 and not copy and k % 3 == 0 else None))
        await run(b, jobs, mem.image)
    b.cover("stalls")


@cocotb.test()
async def test_refusals(dut):
    """Every refusal and their precedence, between good jobs: nothing read or written for them, order kept."""
    b, mem = await start(dut)
    top = 1 << b.config.node.mem.addr_width
    good = [mem.job(300 * 4) for _ in range(2)]
    j = mem.job(256)
    h = mem.job(256, dtype=DType.BFLOAT16)
    i = mem.job(256, dtype=DType.INT32)
    c = mem.job(256, copy=True)
    far = top + 64 if top < 1 << 64 else top - 64
    op, align, length = Status.LOC_QP_OP_ERR, Status.ALIGN_ERR, Status.LOC_LEN_ERR
    jobs = [
        good[0],
        refused(j, op, 0, rop=3), refused(i, op, 0, scale=0x3F800000), refused(i, op, 0, rop=3, length=0),
        refused(j, op, 0, rop=3, a=j.a + 1),
        refused(j, align, j.a + 4, a=j.a + 4), refused(j, align, j.b + 32, b=j.b + 32), refused(j, align, j.d + 63, d=j.d + 63),
        refused(j, align, j.a + 1, a=j.a + 1, b=j.b + 1, d=j.d + 1),
        refused(j, align, 0, length=254), refused(j, align, 0, length=253), refused(h, align, 0, length=255),
        refused(i, align, 0, length=2), refused(c, align, c.d + 1, d=c.d + 1), refused(c, align, c.a + 2, a=c.a + 2),
        refused(j, align, far + 1, a=far + 1),
        refused(j, length, top - 64, a=top - 64), refused(j, length, top - 128, b=top - 128), refused(j, length, far, d=far),
        refused(j, length, top - 64, a=top - 64, b=top - 64), refused(c, length, top - 64, d=top - 64),
        refused(j, length, 1 << 63, b=1 << 63), refused(j, length, (1 << 64) - 64, a=(1 << 64) - 64),
        refused(j, length, j.a, length=0xFFFF_FFFC) if top <= 1 << 32 else good[1],
        good[1],
        Job(length=0, a=1, b=2, d=3), Job(length=0, a=far, b=far, d=far, copy=True),
        mem.job(64, dtype=DType.FLOAT16),
    ]
    await run(b, jobs, mem.image)
    b.stalls(0.4)
    await run(b, jobs, mem.image)
    for name in ("op", "align", "length", "zero"):
        b.cover(f"refused-{name}")


@cocotb.test()
async def test_memory_errors(dut):
    """SLVERR and DECERR on each of A, B, D: MEM_ERR with the first failing address, D untouched from there on, later jobs run."""
    b, mem = await start(dut)
    size = b.ports["axi_a"].size_bytes
    n = 150 * 64
    for port, word, resp in (("axi_a", 70, 2), ("axi_b", 0, 3), ("axi_b", 149, 2), ("axi_a", 0, 3)):
        mem.at = 0
        jobs = [mem.job(1000), mem.job(n), mem.job(1200)]
        bad = jobs[1]
        at = (bad.a if port == "axi_a" else bad.b) + 64 * word
        b.memory("axi_a").error(0, 0)
        b.memory("axi_b").error(0, 0)
        b.memory(port).error(at, at + 128, resp)
        b.memory("axi_a").latency = int(b.rng.integers(1, 50))
        jobs[1] = refused(bad, Status.MEM_ERR, at)
        await run(b, jobs, mem.image, check=False)
        statuses(b, jobs)
        want = expect(mem.image, [jobs[0], jobs[2], Job(length=64 * word, a=bad.a, b=bad.b, d=bad.d)])
        assert (b.memory("axi_a").read(0, SIZE) == want).all(), (port, word)
        b.cover(f"read-error-{port[-1]}")
    b.memory("axi_b").error(0, 0)
    # writes: the failing burst of D; the other bursts are written
    mem.at = 0
    jobs = [mem.job(1000), mem.job(n, page_offset=64), mem.job(1200)]
    bad = jobs[1]
    at = (bad.d + 4096) // 4096 * 4096  # second burst of D
    b.memory("axi_a").error(at + 640, at + 1280, 2)
    jobs[1] = refused(bad, Status.MEM_ERR, at)
    await run(b, jobs, mem.image, check=False)
    statuses(b, jobs)
    want = expect(mem.image, [jobs[0], jobs[2], bad])
    want[at + 640:at + 1280] = mem.image[at + 640:at + 1280]
    assert (b.memory("axi_a").read(0, SIZE) == want).all()
    b.memory("axi_a").error(0, 0)
    b.cover("write-error")
    # beyond the memory: DECERR on reading A, on reading B, on writing D
    j = mem.job(640)
    jobs = [refused(j, Status.MEM_ERR, size, a=size), refused(j, Status.MEM_ERR, size + 64, b=size + 64),
            refused(j, Status.MEM_ERR, size, d=size), refused(j, Status.MEM_ERR, size - 128 + 128, a=size - 128), j,
            refused(j, Status.MEM_ERR, size + 4096, a=size + 4096, b=size)]
    await run(b, jobs, mem.image, check=False)
    statuses(b, jobs)
    b.cover("decode-error")


async def rate(b: Bench, mem: Layout, jobs: list[Job], what: str) -> None:
    """Cycles of `jobs` at latency 100 against one beat a cycle."""
    b.memory("axi_a").latency = b.memory("axi_b").latency = 100
    cycles = await run(b, jobs, mem.image)
    beats = sum(j.beats for j in jobs)
    b.dut._log.info(f"{what}: {beats} beats in {cycles} cycles, {beats / (cycles - 220):.4f} a cycle after 220 of fill and drain")
    assert beats <= cycles <= 1.03 * beats + 250, f"{what}: {cycles} cycles for {beats} beats"


@cocotb.test()
async def test_full_rate(dut):
    """Latency 100: one beat a cycle in every type; one long job, jobs of 4 KiB back to back, COPY."""
    b, mem = await start(dut, 1 << 20)
    n = 128 * 1024 if b.sim == "verilator" else 8 * 1024
    for t in DType if b.sim == "verilator" else (DType.BFLOAT16,):
        mem.at = 0
        await rate(b, mem, [mem.job(n, dtype=t)], f"{t.name} one job")
    mem.at = 0
    await rate(b, mem, [mem.job(n, dtype=DType.FLOAT16, scale=0x3E800000)], "FLOAT16 with scale")
    mem.at = 0
    await rate(b, mem, [mem.job(n, copy=True)], "COPY")
    mem.at = 0
    await rate(b, mem, [mem.job(8192, page_offset=0, dtype=DType.BFLOAT16) for _ in range(n // 8192)], "8 KiB jobs back to back")
    b.cover("full-rate")


@cocotb.test()
async def test_busy(dut):
    """`busy` is 1 in exactly the cycles in which a beat of D that writes is handed over: none from a failed read on."""
    b, mem = await start(dut)
    b.stalls(0.3)
    jobs = [mem.job(1000), mem.job(333, copy=True), mem.job(64 * 20, dtype=DType.INT32)]
    counted = 0

    async def watch():
        nonlocal counted
        from cocotb.triggers import RisingEdge

        while True:
            await RisingEdge(b.pin("clk"))
            counted += int(b.pin("busy").value)

    task = cocotb.start_soon(watch())
    await run(b, jobs, mem.image)
    assert counted == sum(j.beats for j in jobs), counted
    counted = 0
    bad = mem.job(64 * 20)
    b.memory("axi_b").error(bad.b + 64 * 7, bad.b + 64 * 8)
    jobs = [refused(bad, Status.MEM_ERR, bad.b + 64 * 7), mem.job(640)]
    await run(b, jobs, mem.image, check=False)
    task.cancel()
    statuses(b, jobs)
    assert counted == 7 + 10, counted


@cocotb.test()
async def test_latency(dut):
    """Smallest job: cycles from request to DONE at memory latency 1 and 50."""
    b, mem = await start(dut)
    seen = {}
    for latency in (1, 50):
        b.memory("axi_a").latency = b.memory("axi_b").latency = latency
        seen[latency] = await run(b, [mem.job(64)], mem.image)
    b.dut._log.info(f"one beat: {seen[1]} cycles at latency 1, {seen[50]} at latency 50")
    assert seen[50] - seen[1] == 98  # once for the read, once for the write response
    assert seen[1] <= 30
