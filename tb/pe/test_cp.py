"""Command processor against the golden model: random programs, order, errors, deadline, halt, stalls, rate."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.pe.command_processor import CommandProcessor
from spec.isa import COMPLETION, Control, CpStatus, Unit
from spec.params import config
from tb.lib.bench import Bench
from tb.pe.cp_programs import check, control, debug, notes, packed, random_program, run, start, work

PE = config("tiny").node.pe
DMA, LAYOUT, DOT, REDUCE, SFU = Unit.DMA, Unit.LAYOUT, Unit.DOT, Unit.REDUCE, Unit.SFU


def amount(b: Bench, n: int) -> int:
    return n if b.sim == "verilator" else max(1, n // 10)


def buffers(*sizes: int) -> list[dict[str, int]]:
    return [control(Control.BUFFER, cb=k, base=4096 * k, size=s, tag=k) for k, s in enumerate(sizes)]


async def clear(b: Bench) -> None:
    assert int(b.pin("idle").value) == 1
    b.pin("clear").value = 1
    await b.wait_cycles(2)
    b.pin("clear").value = 0
    await b.wait_cycles(2)
    assert int(b.pin("failed").value) == 0


@cocotb.test()
async def test_random_one_core(dut):
    b = await start(dut)
    for _ in range(amount(b, 12)):
        await b.reset()
        await run(b, [random_program(b.rng, amount(b, 400), cbs=range(int(b.rng.integers(1, 9))), events=range(4))])


@cocotb.test()
async def test_two_cores(dut):
    b = await start(dut)
    for _ in range(amount(b, 6)):
        await b.reset()
        await run(b, [random_program(b.rng, 300, cbs=range(0, 6), events=range(0, 3)),
                      random_program(b.rng, 300, cbs=range(6, 16), events=range(3, 6), start=10000)])


@cocotb.test()
async def test_barrier(dut):
    """Core 1 fills what core 0 reads, and the reverse, hand in hand by counters; SET begins a second round."""
    b = await start(dut)
    one = [*buffers(256, 256), control(Control.SET, event=5, value=1, tag=90)]
    two = [control(Control.WAIT, event=5, value=1, tag=91)]
    for k in range(20):
        two.append(work(DMA, 100 + k, cycles=20, event=0, d=(0, 0, 256, 256)))
        one += [control(Control.WAIT, event=0, value=k + 1, tag=k), work(DOT, 200 + k, cycles=5, event=1, a=(0, 0, 256, 256), d=(1, 0, 64, 64))]
        two += [control(Control.WAIT, event=1, value=k + 1, tag=k), work(SFU, 300 + k, cycles=1, a=(1, 0, 64, 64))]
    await run(b, [one, two])
    order = [t["number"] for t in notes(b) if t["done"]]
    for k in range(19):
        assert order.index(100 + k) < order.index(200 + k) < order.index(300 + k) < order.index(301 + k)
    b.cover("barrier")


@cocotb.test()
async def test_out_of_order(dut):
    """An instruction that waits holds up its own unit only; a unit gets its next instruction while it works."""
    b = await start(dut)
    program = [*buffers(512, 512), work(DMA, 10, cycles=300, d=(0, 0, 64, 64)), work(DOT, 11, a=(0, 0, 64, 64)), work(DOT, 12, cycles=9),
               work(SFU, 13, cycles=9), work(REDUCE, 14, cycles=9), work(DMA, 15, cycles=9)]
    await run(b, [program])
    seen = notes(b)
    starts = [t["number"] for t in seen if not t["done"]]
    assert starts.index(13) < starts.index(11) < starts.index(12) and starts.index(14) < starts.index(11)
    b.cover("overtaken")
    at = {(t["number"], t["done"]): t["cycle"] for t in seen}
    assert at[15, 0] < at[10, 1]
    b.cover("overlap")


@cocotb.test()
async def test_ahead(dut):
    """Producers given out ahead of the consumers that make room for them, through a buffer of one piece; SYNC behind."""
    b = await start(dut)
    n = PE.queue
    program = [*buffers(64), *(work(DMA, 10 + k, d=(0, 0, 64, 64)) for k in range(n)), *(work(DOT, 40 + k, a=(0, 0, 64, 64)) for k in range(n)),
               control(Control.SYNC, tag=3)]
    out = await run(b, [program])
    assert {c.status for c in out} == {CpStatus.OK} and out[-1].tag == 3
    order = [t["number"] for t in notes(b) if t["done"]]
    assert order == [x for k in range(n) for x in (10 + k, 40 + k)]
    b.cover("ahead")


@cocotb.test()
async def test_two_pops(dut):
    """Both operands of an instruction pop the same buffer: what both pop must be there, and fit."""
    b = await start(dut)
    both = work(SFU, 20, a=(0, 0, 64, 64), b=(0, 0, 64, 64))
    program = [*buffers(192), work(DMA, 10, d=(0, 0, 64, 64)), both, work(DMA, 11, cycles=100, d=(0, 0, 64, 64)), work(DMA, 12, cycles=100, d=(0, 0, 64, 64)),
               work(DOT, 21, a=(0, 0, 64, 64))]
    await run(b, [program])
    at = {(t["number"], t["done"]): t["cycle"] for t in notes(b)}
    assert at[20, 0] > at[11, 1] and at[21, 0] > at[12, 1]
    b.cover("two pops")
    await b.reset()
    out = await run(b, [[*buffers(64), work(DMA, 10, d=(0, 0, 64, 64)), both]], checked=False)
    assert out[-1].status == CpStatus.TOO_LARGE


@cocotb.test()
async def test_directed(dut):
    """Writers of one buffer in two units keep their order; a reader before the one that pops what it reads; one buffer as both operands."""
    b = await start(dut)
    program = buffers(256, 256)
    program += [work(DMA, 10, cycles=200, d=(0, 0, 64, 64)), work(SFU, 11, cycles=1, d=(0, 0, 64, 64)), work(DOT, 12, a=(0, 0, 128, 0)),
                work(DOT, 13, cycles=150, a=(0, 0, 64, 0), b=(0, 64, 64, 0)), work(LAYOUT, 14, a=(0, 0, 128, 128)),
                work(REDUCE, 15, cycles=100, a=(0, 0, 0, 0)), work(DMA, 16, d=(0, 128, 64, 192)), work(LAYOUT, 17, a=(0, 128, 64, 192), d=(1, 0, 256, 256))]
    await run(b, [program])
    at = {(t["number"], t["done"]): t for t in notes(b)}
    assert at[11, 0]["cycle"] > at[10, 1]["cycle"] and (at[10, 0]["d"], at[11, 0]["d"]) == (0, 64)
    b.cover("writers in order")
    assert at[14, 0]["cycle"] > at[13, 1]["cycle"] and (at[13, 0]["a"], at[13, 0]["b"]) == (0, 64)
    b.cover("reader before popper")
    # In one unit, pointers move on as instructions start: the second's address is behind what the first pops, before the first is done.
    await b.reset()
    program = [*buffers(192), work(DMA, 20, d=(0, 0, 192, 192)), work(DOT, 21, cycles=99, a=(0, 0, 64, 64)), work(DOT, 22, a=(0, 64, 64, 128)),
               work(DMA, 23, d=(0, 64, 64, 128))]
    await run(b, [program])
    at = {(t["number"], t["done"]): t for t in notes(b)}
    assert [at[k, 0]["a"] for k in (21, 22)] == [0, 128] and at[22, 0]["cycle"] < at[21, 1]["cycle"] and at[23, 0]["d"] == 64


@cocotb.test()
async def test_errors(dut):
    b = await start(dut)
    one = work(DMA, 50, d=(0, 0, 64, 64))
    cases = {
        CpStatus.NO_BUFFER: [work(DOT, 10, a=(3, 0, 0, 0))],
        CpStatus.TOO_LARGE: [work(DOT, 10, a=(0, 0, 257, 0))],
        CpStatus.STRADDLES: [work(DMA, 8, d=(0, 0, 192, 192)), work(DOT, 9, a=(0, 0, 0, 192)), work(DMA, 10, d=(0, 0, 65, 0))],
        CpStatus.BAD_OP: [dict(work(DMA, 10), unit=6)],
        CpStatus.BUSY: [work(DMA, 9, cycles=200, d=(0, 0, 64, 0)), control(Control.BUFFER, cb=0, size=64, tag=10)],
        CpStatus.UNIT: [work(SFU, 10, status=0x42)],
    }
    more = [(CpStatus.TOO_LARGE, [work(DMA, 10, d=(1, 0, 0, 65))]), (CpStatus.TOO_LARGE, [work(DMA, 10, d=(1, 32, 33, 0))]),
            (CpStatus.NO_BUFFER, [control(Control.BUFFER, cb=2, tag=9), work(DMA, 10, d=(2, 0, 0, 0))]),
            (CpStatus.BAD_OP, [control(31, tag=10)]), (CpStatus.BAD_OP, [dict(work(DMA, 10), unit=7)]),
            (CpStatus.BUSY, [control(Control.BUFFER, cb=5, base=32, size=64, tag=10)]), (CpStatus.BUSY, [control(Control.BUFFER, cb=5, size=65, tag=10)])]
    for status, bad in [*cases.items(), *more]:
        await b.reset()
        # The last instruction can only be flushed: it waits for what the bad one would have let it have.
        program = [*buffers(256, 64), *bad, work(SFU, 60, a=(1, 0, 64, 64)), control(Control.WAIT, event=7, value=1, tag=70), one]
        out = await run(b, [program], checked=False)
        ends = {c.tag: c for c in out}
        assert ends[10].status == status, f"{status.name}: {ends[10]}"
        assert [ends[t].status for t in (60, 70, 50)] == [CpStatus.FLUSHED] * 3, f"{status.name}: {ends}"
        assert int(b.pin("failed").value) == 1
        b.cover(status.name)
        b.cover("FLUSHED")
        await clear(b)
        # Nothing uses the buffers any more: they can be set up again, and work goes on.
        late = await run(b, [[*buffers(256, 64), one]], checked=False)
        assert [c.status for c in late] == [CpStatus.OK] * 3, f"after {status.name}: {late}"
    assert ends[10].info == 0
    await b.reset()
    out = await run(b, [[work(SFU, 0x1234, status=7)]], checked=False)
    assert (out[0].status, out[0].info) == (CpStatus.UNIT, 7 | 0x1234 << 8)


@cocotb.test()
async def test_stuck(dut):
    """Data that never comes, a counter that never rises, on one core and both: all that waits ends in STUCK."""
    b = await start(dut)
    for programs in ([[*buffers(64), work(DOT, 10, a=(0, 0, 64, 64)), work(DOT, 11)]], [[control(Control.WAIT, event=1, value=1, tag=10), work(DOT, 11)]],
                     [[*buffers(64), work(DOT, 10, a=(0, 0, 1, 0)), work(LAYOUT, 11, a=(0, 0, 1, 1))], [control(Control.WAIT, value=9, tag=12)]]):
        await b.reset()
        t0 = b.total_cycles
        out = await run(b, programs, checked=False)
        assert PE.deadline <= b.total_cycles - t0 <= PE.deadline + 1000
        assert {c.status for c in out if c.tag >= 10} == {CpStatus.STUCK} and int(b.pin("failed").value) == 1
        b.cover("STUCK")
        await clear(b)
        assert (await run(b, [[work(DOT, 5)]], checked=False))[0].status == CpStatus.OK


@cocotb.test()
async def test_alone(dut):
    """A unit that only goes on with another's instruction counts as nothing at work: after the deadline, and after an error, it is told to end; not while others work."""
    b = await start(dut)
    alone = b.pin("alone")
    reduce_bit = 1 << (int(REDUCE) - 1)
    for error in (False, True):
        await b.reset()
        alone.value = reduce_bit
        program = [work(DMA, 9, cycles=3000), work(REDUCE, 10, cycles=2 * PE.deadline, status=6), *([work(LAYOUT, 11, status=1)] if error else [])]
        b.source("core0").load(packed(program))
        b.source("core1").load(np.zeros((0, 64), np.uint8))
        for u in ("dma", "layout", "dot", "reduce", "sfu"):
            b.sink(f"trace_{u}").expect(0, exact=False)
        b.sink("completion").expect(len(program))
        await b.begin()
        await b.wait_cycles(2900)
        assert not int(b.pin("drop").value), "the DMA unit is at work"
        await b.wait_cycles(300 if error else PE.deadline - 200)
        assert int(b.pin("drop").value) == error
        await b.wait_cycles(400)
        assert int(b.pin("drop").value) == 1
        await b.finish(3 * PE.deadline)
        got = {c["tag"]: c["status"] for c in map(COMPLETION.unpack, b.sink("completion").words())}
        assert got == {9: CpStatus.OK, 10: CpStatus.UNIT} | ({11: CpStatus.UNIT} if error else {}), got
        assert not int(b.pin("drop").value) and int(b.pin("failed").value)
        await clear(b)
        b.cover("alone")
    alone.value = 0


@cocotb.test()
async def test_halt(dut):
    b = await start(dut)
    program = [*buffers(64, 128), *(work(DMA, 10 + k, cycles=30, d=(0, 0, 64, 64)) if k % 2 == 0 else work(DOT, 10 + k, a=(0, 0, 64, 64)) for k in range(20))]
    golden = CommandProcessor()
    want = golden.run([program], lambda *_: (0, 0))
    b.source("core0").load(packed(program))
    b.source("core1").load(np.zeros((0, 64), np.uint8))
    for u in ("dma", "dot"):
        b.sink(f"trace_{u}").expect(20)
    for u in ("layout", "reduce", "sfu"):
        b.sink(f"trace_{u}").expect(0)
    b.sink("completion").expect(len(want))
    await b.begin()
    await b.wait_cycles(260)
    b.pin("halt").value = 1
    await b.wait_cycles(100)
    got = b.sink("completion").got
    await b.wait_cycles(400)
    assert 2 < b.sink("completion").got == got < len(want)
    state = await debug(b, 0)
    assert state & 0xFFFFFF == 0 and state >> 24 & 0xFFFFFF == 64
    assert await debug(b, 1) >> 24 & 0xFFFFFF == 128 and await debug(b, 2) == 0
    assert await debug(b, 17) != 0  # something waits
    b.cover("halted")
    b.pin("halt").value = 0
    await b.finish(20000)
    check([program], notes(b))


@cocotb.test()
async def test_stalls(dut):
    b = await start(dut)
    for stall in (0.2, 0.7):
        await b.reset()
        b.stalls(stall)
        await run(b, [random_program(b.rng, 200, cbs=range(4), events=range(3)), random_program(b.rng, 200, cbs=range(4, 9), events=range(3, 5), start=9000)])
    b.stalls(0)
    b.sink("completion").backpressure = 0.95
    await b.reset()
    await run(b, [random_program(b.rng, 150, cbs=range(4), events=range(3))])
    b.sink("completion").backpressure = 0.0
    b.cover("stalls")


@cocotb.test()
async def test_rate(dut):
    """8 cycles an instruction, and 5 for each operand (at least one)."""
    b = await start(dut)
    operands = dict(a=(0, 0, 64, 0), b=(1, 0, 64, 0), d=(2, 0, 64, 0))
    for used in ((), "a", "b", "d", "ab", "ad", "bd", "abd"):
        costs = []
        for n in (10, 60):
            await b.reset()
            program = [*buffers(64, 64, 64), work(DMA, 1, d=(0, 0, 64, 64)), work(DMA, 2, d=(1, 0, 64, 64)), control(Control.SYNC, tag=3)]
            program += [work(DOT, 20 + k, **{name: operands[name] for name in used}) for k in range(n)]
            t0 = b.total_cycles
            await run(b, [program])
            costs.append(b.total_cycles - t0)
        rate = (costs[1] - costs[0]) / 50
        dut._log.info("%s: %.1f cycles an instruction", used or "none", rate)
        assert rate <= 8 + 5 * max(1, len(used)), f"operands {used or 'none'}: {rate} cycles"
