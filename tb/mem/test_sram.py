"""Node memory: random bursts against a byte mirror, any byte range through cocotbext-axi, errors, latency, rates."""
from __future__ import annotations

import cocotb
import numpy as np

from tb.common.bursts import BYTES, DECERR, FIXED, INCR, OKAY, SLVERR, WRAP, Burst, Port, apply, check, linear, load
from tb.common.pin_bus import axi_master
from tb.lib.bench import Bench

STREAMS = 4  # s0..s3 are stream ports, the fifth is on pins


def random_burst(b: Bench, low: int, high: int, *, write: bool) -> Burst:
    """A burst within [low, high), legal: inside 4 KiB."""
    rng = b.rng
    size = 6 if rng.random() < 0.5 else int(rng.integers(0, 7))
    kind = FIXED if rng.random() < 0.1 else INCR
    n = 1 << size
    addr = int(rng.integers(low, high - n))
    page = min((addr // 4096 + 1) * 4096, high)
    most = min(16 if kind == FIXED else 256, max(1, (page - addr // n * n) // n))
    beats = most if rng.random() < 0.05 else int(rng.integers(1, min(most, 24) + 1))
    x = Burst(addr, beats, size, kind, int(rng.integers(16)))
    if write:
        x.data = rng.integers(0, 256, (beats, 64), dtype=np.uint8)
        x.strb = np.zeros((beats, 64), np.uint8)
        density = rng.choice([0.0, 0.5, 1.0], p=[0.05, 0.35, 0.6])
        for k, at in enumerate(x.addresses()):
            first, last = at % BYTES, (at // n + 1) * n - at // BYTES * BYTES
            x.strb[k, first:last] = rng.random(last - first) < density
        b.cover("strobe-none" if density == 0 else "strobes")
    b.cover("narrow" if size < 6 else "wide")
    b.cover("unaligned" if addr % n else "aligned")
    b.cover("fixed" if kind == FIXED else "incr")
    if beats in (1, 256):
        b.cover(f"length-{beats}")
    return x


async def run(b: Bench, works: dict[int, Port], mirror: np.ndarray, deadline: int = 60_000) -> int:
    for p in range(STREAMS):
        load(b, f"s{p}", works.get(p, Port()))
    cycles = await b.run(deadline)
    for p, work in works.items():
        check(b, f"s{p}", work, mirror)
    for work in works.values():
        for x in work.writes:
            apply(mirror, x)
    return cycles


async def fill(b: Bench, mirror: np.ndarray, region: int = 64 << 10) -> None:
    """Known contents in the first four regions, one by each port."""
    works = {p: Port(writes=linear(b.rng, p * region, region // BYTES, 64, write=True)) for p in range(STREAMS)}
    await run(b, works, mirror)


@cocotb.test()
async def test_random_bursts(dut):
    b = await Bench.start(dut)
    mirror, region = np.zeros(b.config.node.mem.size_bytes, np.uint8), 64 << 10
    await fill(b, mirror)
    for step, stall in enumerate((0.0, 0.2, 0.7, 0.4)):
        b.stalls(stall)
        if stall:
            b.cover("idle-and-back-pressure")
        # Port p writes the lower half of its region and reads the upper half of its neighbour's, then the other way round.
        half = region // 2 * (step % 2)
        works = {}
        for p in range(STREAMS):
            low, other = p * region + half, (p + 1) % STREAMS * region + region // 2 - half
            works[p] = Port(
                writes=[random_burst(b, low, low + region // 2, write=True) for _ in range(80)],
                reads=[random_burst(b, other, other + region // 2, write=False) for _ in range(80)],
            )
        # The same burst of 256 narrow beats on every port, and all of the region read back.
        for p in range(STREAMS):
            works[p].reads.append(Burst((p + 1) % STREAMS * region + region // 2 - half, 256, 2))
            b.cover("length-256")
        await run(b, works, mirror)
        await run(b, {p: Port(reads=linear(b.rng, p * region, region // BYTES, 256, write=False)) for p in range(STREAMS)}, mirror)


@cocotb.test()
async def test_any_range(dut):
    b = await Bench.start(dut)
    master, rng = axi_master(dut, "pin"), b.rng
    base, span = 0x8000, 24 << 10
    mirror = rng.integers(0, 256, span, dtype=np.uint8)
    await master.write(base, mirror.tobytes())
    for k in range(60):
        n = int(rng.choice([1, int(rng.integers(2, 64)), int(rng.integers(64, 5000))]))
        at = int(rng.integers(0, span - n))
        size = 6 if k % 3 else int(rng.integers(0, 7))
        if size < 4:
            n = min(n, 200)
        data = rng.integers(0, 256, n, dtype=np.uint8)
        answer = await master.write(base + at, data.tobytes(), size=size)
        assert int(answer.resp) == OKAY
        mirror[at : at + n] = data
        b.cover("one-byte" if n == 1 else "many-bytes")
        if at // 4096 != (at + n) // 4096:
            b.cover("crosses-4k")
        low, high = max(0, at - 70), min(span, at + n + 70)
        got = await master.read(base + low, high - low)
        assert got.data == mirror[low:high].tobytes(), f"write {n} bytes at {at}, size {size}"
    whole = await master.read(base, span)
    assert whole.data == mirror.tobytes()


@cocotb.test()
async def test_errors(dut):
    b = await Bench.start(dut)
    end = b.config.node.mem.size_bytes
    mirror = np.zeros(end, np.uint8)
    await run(b, {0: Port(writes=[*linear(b.rng, 0, 64, 64, write=True), *linear(b.rng, end - 4096, 64, 64, write=True)])}, mirror)

    def writing(addr: int, beats: int, kind: int = INCR, ident: int = 0) -> Burst:
        return Burst(addr, beats, 6, kind, ident, b.rng.integers(0, 256, (beats, 64), dtype=np.uint8), np.ones((beats, 64), np.uint8))

    half = writing(end - 128, 5, ident=3)
    bad = [writing(end, 1), writing(0x8000_0000, 4, ident=9), half, writing(128, 4, WRAP, 1), writing(end - 4096, 2, ident=5)]
    reads = [Burst(end + 64, 2, id=4), Burst(end - 64, 3, id=7), Burst(64, 4, burst=WRAP, id=2), Burst(0, 1, id=8)]
    load(b, "s1", Port(writes=bad, reads=reads))
    await b.run(2000)
    b.cover("straddles-the-end")
    b.cover("wrap")
    assert b.sink("s1__b").words() == [DECERR, DECERR | 9 << 2, DECERR | 3 << 2, SLVERR | 1 << 2, OKAY | 5 << 2]
    for x in (half, bad[4]):  # the beats inside are written
        inside = sum(a < end for a in x.addresses())
        apply(mirror, Burst(x.addr, inside, data=x.data[:inside], strb=x.strb[:inside]))
    rows = b.sink("s1__r").array()
    want = [DECERR, DECERR, OKAY, DECERR, DECERR, *[SLVERR] * 4, OKAY]
    lasts = [0, 1, 0, 0, 1, 0, 0, 0, 1, 1]
    ids = [4, 4, 7, 7, 7, 2, 2, 2, 2, 8]
    assert [int(x) for x in rows[:, 64]] == [r | z << 2 | i << 3 for r, z, i in zip(want, lasts, ids, strict=True)]
    for row, resp in zip(rows, want, strict=True):
        assert resp == OKAY or not row[:64].any(), "data of an error beat"
    assert (rows[9, :64] == mirror[:64]).all()
    await run(b, {2: Port(reads=[*linear(b.rng, 0, 64, 9, write=False), *linear(b.rng, end - 4096, 64, 9, write=False)])}, mirror)


@cocotb.test()
async def test_read_after_write(dut):
    b = await Bench.start(dut)
    master = axi_master(dut, "pin")
    mirror = np.zeros(1 << 20, np.uint8)
    for k in range(40):
        # Port s0 keeps the same bank busy while the master writes and reads back.
        addr = int(b.rng.integers(0, 4096))
        data = b.rng.integers(0, 256, int(b.rng.integers(1, 300)), dtype=np.uint8)
        for p in range(STREAMS):
            load(b, f"s{p}", Port(writes=linear(b.rng, 0x10000 * (p + 1), 60, 4, write=True)) if k % 4 == 0 else Port())
        await b.begin()
        await master.write(addr, data.tobytes())
        mirror[addr : addr + len(data)] = data
        got = await master.read(addr, len(data))
        assert got.data == data.tobytes()
        await b.finish(4000)


@cocotb.test()
async def test_latency(dut):
    b = await Bench.start(dut)
    mirror = np.zeros(1 << 20, np.uint8)
    # One word through a source and a sink with L cycles between costs L + 2 cycles of the run (tb_cycles).
    write = linear(b.rng, 0, 1, 1, write=True)
    cycles = await run(b, {0: Port(writes=write)}, mirror)
    assert cycles == 2 + 2, f"write: {cycles}"
    cycles = await run(b, {0: Port(reads=[Burst(0, 1)])}, mirror)
    assert cycles == 3 + 2, f"read: {cycles}"


@cocotb.test()
async def test_rate_one_port(dut):
    b = await Bench.start(dut)
    mirror, beats = np.zeros(1 << 20, np.uint8), 1000
    for most in (1, 3, 256):
        cycles = await run(b, {0: Port(writes=linear(b.rng, 0, beats, most, write=True))}, mirror)
        assert beats / cycles >= 0.99, f"write, bursts up to {most}: {cycles} cycles for {beats} beats"
        cycles = await run(b, {0: Port(reads=linear(b.rng, 0, beats, most, write=False))}, mirror)
        assert beats / cycles >= 0.99, f"read, bursts up to {most}: {cycles} cycles for {beats} beats"
        both = Port(writes=linear(b.rng, 64 << 10, beats, most, write=True), reads=linear(b.rng, 0, beats, most, write=False))
        cycles = await run(b, {0: both}, mirror)
        assert beats / cycles >= 0.99, f"both, bursts up to {most}: {cycles} cycles for {beats} beats"


@cocotb.test()
async def test_rate_all_ports(dut):
    b = await Bench.start(dut)
    mirror, beats = np.zeros(1 << 20, np.uint8), 1000
    await run(b, {p: Port(writes=linear(b.rng, p << 17, beats + 4, 64, write=True)) for p in range(STREAMS)}, mirror)
    for k in range(1, b.config.node.mem.banks + 1):
        for phase in (0, 1):  # all start on one bank, or each on its own
            works = {p: Port(
                writes=linear(b.rng, (p << 17) + 0x10000 + phase * p * BYTES, beats, 16, write=True),
                reads=linear(b.rng, (p << 17) + phase * p * BYTES, beats, 16, write=False)) for p in range(k)}
            cycles = await run(b, works, mirror)
            assert beats / cycles >= 0.985, f"{k} ports, phase {phase}: {cycles} cycles for {beats} beats"
        b.cover(f"{k}-ports")


@cocotb.test()
async def test_one_bank(dut):
    b = await Bench.start(dut)
    mirror, each = np.zeros(1 << 20, np.uint8), 200
    stride = b.config.node.mem.banks * BYTES

    def work(p: int, n: int) -> Port:
        out = Port()
        for k in range(n):
            x = linear(b.rng, (p << 17) + k * stride, 1, 1, write=True)[0]
            out.writes.append(x)
        return out

    await run(b, {p: work(p, each) for p in range(STREAMS)}, mirror)
    reads = {p: Port(reads=[Burst((p << 17) + k * stride, 1) for k in range(each)]) for p in range(STREAMS)}
    cycles = await run(b, reads, mirror)
    assert STREAMS * each / cycles >= 0.98, f"{cycles} cycles for {STREAMS * each} beats on one bank"
    # Fair: every port has read as much as the others, within one beat a port, whenever we look.
    for p in range(STREAMS):
        load(b, f"s{p}", reads[p])
    await b.begin()
    for _ in range(10):
        await b.wait_cycles(50)
        got = [b.sink(f"s{p}__r").got for p in range(STREAMS)]
        assert max(got) - min(got) <= 1, f"unfair: {got}"
    await b.finish(5000)
