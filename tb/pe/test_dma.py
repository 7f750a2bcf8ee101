"""DMA engine against the golden model: job files, every alignment, dependent and failing descriptors, stalls, latency, rate."""
from __future__ import annotations

from itertools import product

import cocotb
from cocotb.triggers import FallingEdge

from spec.dma import DmaOp, DmaStatus
from tb.lib.bench import Bench
from tb.pe.dma_jobs import JOBS, Job, World, copy, load, random_job

M, L = "memory", "local"


async def start(dut) -> tuple[Bench, World]:
    b = await Bench.start(dut)
    return b, World(b)


def latencies(b: Bench, memory: int, local: int = 1) -> None:
    b.memory("axi").latency, b.memory("near").latency = memory, local


@cocotb.test()
async def test_jobs(dut):
    """Every file of jobs: statuses and addresses as the file says, all bytes of both memories as the golden engine has them."""
    b, w = await start(dut)
    for path in sorted(JOBS.glob("*.toml")):
        for stall, far, near in ((0.0, 1, 1), (0.35, 30, 4)):
            file = load(path, b.rng)
            b.stalls(stall)
            latencies(b, far, near)
            w.errors(file.memory_error, file.local_error)
            await w.run(file.jobs)
            b.cover(f"file-{file.name}")


@cocotb.test()
async def test_nothing_to_move(dut):
    """Jobs of length or count 0 put nothing on a bus, alone and with other refused ones."""
    b, w = await start(dut)
    file = load(JOBS / "zero.toml", b.rng)
    quiet = [j for j in file.jobs if j.name.removeprefix("zero: ") in file.quiet]
    assert len(quiet) == len(file.quiet)
    await w.run(quiet)
    for name in ("axi", "near"):
        assert (b.memory(name).reads, b.memory(name).writes) == (0, 0), name
    b.cover("no-beat")


@cocotb.test()
async def test_beats(dut):
    """Words read and written are those that a row touches: two bytes across two words are two beats each way."""
    b, w = await start(dut)
    for src, dst, n in ((0x103F, 0x603F, 2), (0x1000, 0x6000, 64), (0x103F, 0x6000, 2), (0x1000, 0x603F, 2), (0x1FFE, 0x2FFF, 4), (0, 0x4001, 4097)):
        await w.run([copy((M, src), (M, dst), n)])
        reads, writes = (src % 64 + n + 63) // 64, (dst % 64 + n + 63) // 64
        assert (b.memory("axi").reads, b.memory("axi").writes) == (reads, writes), (src, dst, n)


@cocotb.test()
async def test_offsets(dut):
    """Lengths around one, two and three words at every kind of offset, each way, guard bytes between."""
    b, w = await start(dut)
    lengths, offsets = (1, 2, 31, 63, 64, 65, 127, 128, 129, 200), (0, 1, 32, 63)
    for stall in (0.0, 0.4):
        b.stalls(stall)
        for source, target in product((M, L), (M, L)):
            jobs, at = [], 0
            for n, a, c in product(lengths, offsets, offsets):
                jobs.append(copy((source, at % 0x4000 + a), (target, 0x4000 + at % 0x8000 + c), n))
                at += 384
            for k in range(0, len(jobs), 80):
                await w.run(jobs[k : k + 80])
    b.cover("stalled-offsets")


@cocotb.test()
async def test_random(dut):
    """Random descriptors of every kind in small memories, so that they depend on each other, under every stall and latency."""
    b, w = await start(dut)
    for stall, far, near in ((0.0, 1, 1), (0.0, 60, 8), (0.3, 15, 1), (0.7, 3, 3)):
        b.stalls(stall)
        latencies(b, far, near)
        for _ in range(4):
            at, jobs = 0, []
            for _ in range(30):
                jobs.append(random_job(b.rng, (0x1000, 0x3000), (0x400, 0x3000), index_at=0x8000 + at))
                at += 256
            await w.run(jobs)
        b.cover("stalls" if stall else "no-stalls")


@cocotb.test()
async def test_rows_apart(dut):
    """Rows of a gather so far apart that the last one on its way ends before, as, and after the next is handed on; then what they wrote is read at once."""
    b, w = await start(dut)
    latencies(b, 1, 1)
    for k in range(60):
        b.memory("near").stall, b.memory("axi").stall = (0.9, 0.8, 0.6)[k % 3], 0.0
        w.put(0x200, b.rng.integers(0, 90, 80))
        back = copy((M, 0x6000), (M, 0x8000), 640)
        await w.run([copy((M, 0x5000), (M, 0x6000), 8, rows=80, op=DmaOp.GATHER, row_src=8, row_dst=8, index=0x200), back])
    b.cover("rows-apart")


@cocotb.test()
async def test_random_errors(dut):
    """The same with words that fail, on either side; and completions held back."""
    b, w = await start(dut)
    for k in range(12):
        b.stalls((0.0, 0.3)[k % 2])
        b.sink("completion").backpressure = (0.0, 0.9, 0.5)[k % 3]
        latencies(b, int(b.rng.integers(1, 40)), int(b.rng.integers(1, 4)))
        low, near = 0x1000 + int(b.rng.integers(0, 0x3000)), 0x400 + int(b.rng.integers(0, 0x3000))
        w.errors((low, low + int(b.rng.integers(64, 500))), (near, near + int(b.rng.integers(64, 300))) if k % 2 else (0x8100, 0x8140))
        await w.run([random_job(b.rng, (0x1000, 0x3000), (0x400, 0x3000), index_at=0x8000 + 256 * i) for i in range(25)])
    b.cover("errors")


@cocotb.test()
async def test_held_completions(dut):
    """Nothing takes completions for long: more descriptors than fit, of every ending, still end once each and in order."""
    b, w = await start(dut)
    b.sink("completion").backpressure = 0.97
    jobs: list[Job] = []
    for k in range(120):
        jobs.append(copy((M, 64 * k), (L, 64 * k), (0, 64, 65, 3)[k % 4], rows=(1, 0, 1, 2, 1)[k % 5]))
    await w.run(jobs)
    b.cover("held-completions")


@cocotb.test()
async def test_slow_destination(dut):
    """Reads run ahead of a destination that hardly takes words, and of responses that hardly come: nothing read is lost."""
    b, w = await start(dut)
    b.memory("near").stall = 0.9
    await w.run([copy((M, 0x101), (L, 0x3), 40000), copy((L, 0x8003), (M, 0x2_0000), 3000), copy((M, 0x4_0000), (L, 0x9000), 64, rows=60, row_src=64)])
    b.memory("near").stall = 0.0
    b.memory("axi").stall = 0.9
    await w.run([copy((M, 0x101), (M, 0x8_0003), 9000), copy((L, 0x3), (M, 0x2_0000), 9000)])
    b.cover("slow")


@cocotb.test()
async def test_chains(dut):
    """Each descriptor reads what the one before wrote, through both memories; an index list that a descriptor wrote."""
    b, w = await start(dut)
    for far in (1, 50):
        latencies(b, far, 2)
        jobs = []
        for k in range(30):
            here, there = ((M, L), (L, M), (M, M), (L, L))[k % 4]
            jobs.append(copy((here, 0x1000 + 100 * k), (there, 0x1000 + 100 * (k + 1)), 70, rows=2, row_src=3, row_dst=50))
        w.put(0x200, b.rng.integers(0, 90, 40))
        jobs.append(copy((L, 0x200), (L, 0x300), 160))
        jobs.append(copy((M, 0x5000), (L, 0x5000), 8, rows=40, op=DmaOp.GATHER, row_src=8, row_dst=8, index=0x300))
        jobs.append(copy((L, 0x5000), (L, 0x304), 4, rows=39, op=DmaOp.SCATTER, row_src=8, row_dst=4, index=0x300))
        await w.run(jobs)
    b.cover("chains")


async def rate(b: Bench, w: World, what: str, jobs: list[Job], beats: int, fixed: int) -> None:
    cycles = await w.run(jobs)
    b.dut._log.info("%s: %d beats in %d cycles", what, beats, cycles)
    assert beats <= cycles <= beats + fixed, f"{what}: {cycles} cycles for {beats} beats"


@cocotb.test()
async def test_rate(dut):
    """A word a cycle, beside a fixed start and end: one long row, chained descriptors, strided rows, fills, at any alignment; a descriptor a cycle."""
    b, w = await start(dut)
    latencies(b, 20)
    ways = ((M, L), (L, M), (M, M))
    for source, target in ways:
        far = 80  # start and end: the latency of a read and of a write, and the engine's
        for a, c in ((0, 0), (5, 5), (1, 60), (60, 1)):
            n, where = 128 * 64, f"{source} to {target}, {a} to {c}"
            words = max((a + n + 63) // 64, (c + n + 63) // 64)
            await rate(b, w, f"one row, {where}", [copy((source, a), (target, 0x8000 + c), n)], words, far)
            rows = [copy((source, 512 * k + a), (target, 0x8000 + 512 * k + c), 300) for k in range(32)]
            await rate(b, w, f"chained, {where}", rows, 32 * max((a + 363) // 64, (c + 363) // 64), far)
            one = [copy((source, a), (target, 0x8000 + c), 200, rows=40, row_src=512, row_dst=256)]
            await rate(b, w, f"strided, {where}", one, 40 * max((a + 263) // 64, (c + 263) // 64), far)
        for n in (1, 64):
            small = [copy((source, 64 * k), (target, 0x8000 + 64 * k), n) for k in range(200)]
            latencies(b, 1)
            await rate(b, w, f"{n} byte(s) each, {source} to {target}", small, 200, 40)
            latencies(b, 20)
        b.cover(f"rate-{source}-{target}")
    mixed = [copy((M, 512 * k + 10 * (k % 2)), (L, 0x8000 + 512 * k + k % 2), 100) for k in range(32)]  # two words each way; every other row is late
    await rate(b, w, "alternating alignments: a cycle lost every two rows", mixed, 5 * 16, 40)
    mixed = [copy((M, 512 * k + 10), (L, 0x8000 + 512 * k + 1), 100) for k in range(32)]
    await rate(b, w, "the same without alternating", mixed, 4 * 16, 40)
    for target in (M, L):
        await rate(b, w, f"fill of {target}", [copy((M, 0), (target, 0x8001), 8000, op=DmaOp.FILL)], 126, 60)
    near = [copy((L, 0), (L, 0x8000), 8192)]
    await rate(b, w, "local to local: two accesses a word", near, 256, 40)
    rings = []  # operands into two rings, results out of a third between them
    for k in range(24):
        rings += [copy((M, 1024 * k), (L, (0x0000, 0xC000)[k % 2] + 1024 * (k % 12)), 1024), copy((L, 0x6000 + 1024 * (k % 12)), (M, 0x8000 + 1024 * k), 1024)]
    await rate(b, w, "in and out, rings of local memory: two accesses a word", rings, 48 * 16, 80)
    latencies(b, 100)
    apart = [j for k in range(48) for j in (copy((M, 1024 * (k % 24)), (L, 1024 * (k % 12)), 1024),
                                            copy((L, 0x6000 + 1024 * (k % 12)), (M, 0x8000 + 1024 * k), 1024))]
    await rate(b, w, "in and out, latency 100, one ring each", apart, 96 * 16, 300)
    latencies(b, 20)
    turns = []  # many more on their way than the interlock has intervals, to both memories
    for k in range(100):
        turns += [copy((M, 64 * k), (L, 64 * k), 64), copy((L, 0x8000 + 64 * k), (M, 0x8000 + 64 * k), 64)]
    await rate(b, w, "loads and stores of a word in turn: an access a descriptor", turns, 200, 80)
    w.put(0x7000, b.rng.integers(0, 32, 64))
    for n in (128, 64):
        gather = [copy((M, 0x8000), (L, 0x8000), n, rows=64, op=DmaOp.GATHER, row_src=512, row_dst=n, index=0x7000)]
        await rate(b, w, f"gather of {n} bytes", gather, 64 * n // 64, 85 if n == 128 else 105)


#: (bytes, memory latency, source offset, destination offset) of test_utilisation
FAST = [(n, latency, a, c) for n in (8, 1000, 65536) for latency in (1, 100, 400) for a, c in ((0, 0), (3, 40), (40, 3))]


def bound(n: int, latency: int, a: int, c: int, depth: int, source: str, target: str) -> tuple[int, float]:
    """Beats of a row (the wider side), and the most of them a cycle: `depth` bursts in flight, each from its address to its last response.

    A burst of k beats is in flight for latency + k + 2 cycles as a read of the bench's memory, latency + k + 3 as a write. Pages of rows are bursts.
    """
    def one(offset: int) -> tuple[int, int]:
        return (offset + n + 63) // 64, (offset + n + 4095) // 4096

    (reads, read_bursts), (writes, write_bursts) = one(a), one(c)
    beats = max(reads, writes)
    limits = [1.0]
    if source == M:
        limits.append(depth * beats / (read_bursts * (latency + 2) + reads))
    if target == M:
        limits.append(depth * beats / (write_bursts * (latency + 3) + writes))
    return beats, min(limits)


async def utilise(b: Bench, w: World, cases: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int, float, float]]:
    """Beats a cycle of a stream of equal descriptors, from the difference of a long and a short stream (start and end cancel out)."""
    depth, rows = b.config.node.pe.dma_depth, []
    for n, latency, a, c in cases:
        latencies(b, latency)
        beats, most = bound(n, latency, a, c, depth, M, M)
        space = max(4096, (n + 200 + 4095) // 4096 * 4096)
        count = 4 if n > 4096 else depth * min(12, max(1, 1200 // (beats * depth)))  # whole turns of the slots
        step = 4096 if n <= 4096 - 64 else space
        fits = 0x8_0000 // step
        jobs = [copy((M, k % fits * step + a), (M, 0x8_0000 + k % fits * step + c), n) for k in range(3 * count)]
        short = await w.run(jobs[:count])
        long = await w.run(jobs)
        got = 2 * count * beats / (long - short)
        rows.append((n, latency, a, c, got, most))
        assert 0.99 * most <= got <= most + 0.001, f"{n} bytes, latency {latency}, {a} to {c}: {got:.4f} beats a cycle, bound {most:.4f}"
    return rows


@cocotb.test()
async def test_utilisation(dut):
    """Beats a cycle, memory to memory, against depth and latency: size x latency x alignment."""
    b, w = await start(dut)
    for n, latency, a, c, got, most in await utilise(b, w, FAST):
        b.dut._log.info("%6d bytes, latency %3d, offsets %2d to %2d: %.4f beats a cycle, bound %.4f", n, latency, a, c, got, most)
    b.cover("utilisation")


@cocotb.test()
async def test_latency(dut):
    """Cycles from a descriptor taken to its first address, and of the smallest jobs."""
    b, w = await start(dut)
    seen: dict[str, int] = {}

    async def watch(valid: str, name: str, clock: int = 0) -> None:
        while not int(b.pin("descriptor__valid").value):
            await FallingEdge(b.pin("clk"))
        for cycle in range(1000):
            if int(b.pin(valid).value):
                seen[name] = cycle
                return
            await FallingEdge(b.pin("clk"))

    for job, valid, name in (
        (copy((M, 0x1001), (L, 0), 8), "axi__ar__valid", "memory read"), (copy((L, 0x1001), (M, 0), 8), "near__ar__valid", "local read"),
        (copy((M, 0), (M, 0x100), 4, op=DmaOp.FILL), "axi__aw__valid", "fill, write"), (copy((M, 0), (L, 0x100), 0), "completion__valid", "empty, completion"),
    ):
        task = cocotb.start_soon(watch(valid, name))
        cycles = await w.run([job])
        await task
        b.dut._log.info("%s: %d cycles after the descriptor; whole job %d", name, seen[name], cycles)
    assert seen["memory read"] == 4 and seen["local read"] == 4, seen
    assert seen["empty, completion"] == 2, seen
    far = []
    for latency in (1, 50):
        latencies(b, latency)
        far.append(await w.run([copy((M, 0x1001), (M, 0x3001), 8)]))
    assert far[1] - far[0] == 98 and far[0] <= 22, far
    assert DmaStatus.OK == 0
