"""Bench of the message engine: random programs under every timing against `me_check`, and directed tests of each rule."""
from __future__ import annotations

import cocotb

from spec.wqe import CQE, CQE_BYTES, Compare, Flag, Op, Status
from tb.nic.me_check import NIC_OPS, NMC_OPS
from tb.nic.me_driver import CQ, FLAGS, MeDriver, set_word, wait_word
from tb.nic.me_programs import TIMINGS, S, random_program, refusals, unit_wqe


@cocotb.test()
async def test_opcodes(dut):
    """Each opcode: every field of the request and of the CQE, and the CQE ring in memory."""
    d = await MeDriver.start(dut)
    d.configure()
    ops = [op for op in Op if op in NIC_OPS + NMC_OPS]
    d.post(0, [unit_wqe(d.b.rng, op, flags=S | scale) for op in ops for scale in (0, Flag.SCALE)])
    d.post(1, [{"opcode": Op.NOOP, "flags": S, "wr_id": 0xFFFFFFFF, "qpn": 7}])
    d.post(2, [set_word(3, 0xDEADBEEF, flags=S, wr_id=9)])
    d.post(3, [wait_word(3, Compare.EQ, 0xDEADBEEF, flags=S)])
    await d.run()
    cqes = d.check().cqes
    assert len(cqes) == 2 * len(ops) + 3
    assert int.from_bytes(d.memory.read(FLAGS + 3 * 64 + 12, 4).tobytes(), "little") == 0xDEADBEEF
    assert not d.memory.read(FLAGS + 3 * 64, 12).any() and not d.memory.read(FLAGS + 3 * 64 + 16, 48).any()
    for n, seen in enumerate(cqes):
        word = CQE.from_bytes(d.memory.read(CQ + n * CQE_BYTES, CQE_BYTES).tobytes())
        assert word == {k: seen[k] for k in word}, f"CQE {n} in memory: {word}"


@cocotb.test()
async def test_random_lists(dut):
    """More than a thousand random WQEs in four queues under each timing: no ordering flag is ever violated."""
    d = await MeDriver.start(dut)
    for t in TIMINGS:
        await d.again()
        d.timing(**t)
        d.configure()
        words: dict[int, int] = {}
        for q in range(d.me.queues):
            d.post(q, random_program(d, q, 280, words))
        await d.run(60_000)
        d.check()
        d.b.cover("stalled" if t.get("stall") else "full rate")


@cocotb.test()
async def test_holds_no_more(dut):
    """While units hold their answers exactly those WQEs start that no flag holds; the rest when they answer."""
    d = await MeDriver.start(dut)
    rng = d.b.rng
    for round_ in range(24):
        await d.again()
        d.timing(latency=2, delay=3)
        d.configure()
        held = NIC_OPS if round_ % 3 == 0 else NMC_OPS if round_ % 3 == 1 else NIC_OPS + NMC_OPS
        d.pin("nic_hold", int(Op.SEND in held)), d.pin("nmc_hold", int(Op.COPY in held))
        want = {NIC_OPS: 0, NMC_OPS: 0}
        for q in range(d.me.queues):
            program = []
            for _ in range(7):
                op = Op(int(rng.choice([Op.NOOP, Op.SEND, Op.RECV, Op.RECV, Op.COPY])))
                flag = int(rng.choice([0, 0, 0, 0, 0, Flag.FENCE, Flag.RX_SYNC, Flag.SYNC]))
                program.append({"opcode": op, "flags": flag, "wqe_sync": int(rng.choice([0, 0, 0, 1, 2, 3]))})
            d.post(q, program)
            done: list[bool] = []
            for i, w in enumerate(program):
                recvs = [x for x, p in zip(done, program, strict=False) if p["opcode"] == Op.RECV]
                fences = [x for x, p in zip(done, program, strict=False) if p["flags"] & Flag.FENCE]
                back = i - w["wqe_sync"]
                if (not all(fences) or (w["flags"] & Flag.RX_SYNC and not all(recvs)) or (w["flags"] & Flag.SYNC and not all(done))
                        or (w["wqe_sync"] and back >= 0 and not done[back])):
                    break
                done.append(w["opcode"] not in held)
                for ops in want:
                    want[ops] += w["opcode"] in ops
        await d.begin()
        for q in range(d.me.queues):
            await d.doorbell(q)
        await d.b.wait_cycles(120)
        got = {NIC_OPS: d.b.sink("log_nic").got, NMC_OPS: d.b.sink("log_nmc").got}
        assert got == want, f"round {round_}: started {list(got.values())}, expected {list(want.values())}: {d.program}"
        d.pin("nic_hold", 0), d.pin("nmc_hold", 0)
        await d.retired()
        await d.end()
        d.check()


@cocotb.test()
async def test_window(dut):
    """Exactly `window` WQEs start without an answer; wqe_sync of the window and more never holds longer than the window does."""
    d = await MeDriver.start(dut)
    n = d.me.window
    for back in (0, n - 1, n, 255):
        await d.again()
        d.configure()
        d.pin("nic_hold", 1)
        d.post(0, [{"opcode": Op.SEND, "wqe_sync": back if i >= n - 1 else 0, "flags": S} for i in range(2 * n)])
        await d.begin()
        await d.doorbell(0)
        await d.b.wait_cycles(300)
        assert d.pin("nic_pending") == (n - 1 if back == n - 1 else n), f"{d.pin('nic_pending')} started, wqe_sync {back}"
        assert await d.read("wq_state", 0) == (2 if back == n - 1 else 0)
        d.pin("nic_hold", 0)
        await d.retired()
        await d.end()
        d.check()


@cocotb.test()
async def test_ring_wrap(dut):
    """A ring of 16 WQEs and a ring of 8 CQEs go round many times, filled by 1 to 16 WQEs at once; a base at the end of a page."""
    d = await MeDriver.start(dut)
    d.timing(latency=3, delay=15)
    d.configure(size=16, cq_size=8, base={0: 0x10000, 1: 0x20E00, 2: 0x30F40, 3: 0x40FC0})
    for round_ in range(30):
        for q in range(d.me.queues):
            n = 16 if round_ % 5 == 0 else int(d.b.rng.integers(0, 17))
            d.post(q, [{"opcode": Op.NOOP if i % 2 else Op.COPY, "flags": S if d.b.rng.random() < 0.3 else 0, "wr_id": i} for i in range(n)])
        await d.begin()
        for q in range(d.me.queues):
            await d.doorbell(q)
        await follow(d)
        await d.end()
    assert len(d.check().cqes) > 100
    assert min(d.posted) > 32


async def follow(d: MeDriver, step: int = 3, deadline: int = 20000) -> None:
    """Be the software that consumes CQEs, a few at a time, until everything posted is retired and consumed."""
    head = d.pin("cq_head")
    while deadline > 0:
        heads = [await d.read("wq_head", q) for q in range(d.me.queues)]
        tail = d.pin("cq_tail")
        assert tail - head <= d.cq_size
        if heads == d.posted and tail == head:
            await d.retired(100)
            if d.pin("cq_tail") == head:
                return
        head += min(step, d.pin("cq_tail") - head)
        d.pin("cq_head", head)
        await d.b.wait_cycles(5)
        deadline -= 5
    raise AssertionError(f"not retired: {heads} of {d.posted}")


@cocotb.test()
async def test_cq_full(dut):
    """A full completion ring stalls, overwrites nothing, and goes on CQE for CQE as software makes room."""
    d = await MeDriver.start(dut)
    d.configure(cq_size=4)
    d.post(0, [{"opcode": Op.NOOP, "flags": S, "wr_id": i} for i in range(40)])
    d.post(1, [{"opcode": Op.COPY, "flags": S | Flag.EVENT, "wr_id": i} for i in range(20)])
    await d.begin()
    await d.doorbell(0), await d.doorbell(1)
    for head in range(8):
        d.pin("cq_head", head)
        await d.b.wait_cycles(60)
        assert d.pin("cq_tail") == head + 4 and d.writes == head + 4, f"cq_tail {d.pin('cq_tail')} with head {head}"
    await follow(d)
    await d.end()
    assert len(d.check().cqes) == 60
    assert d.pin("event_count") == 20 == d.pin("pulses")


@cocotb.test()
async def test_not_started(dut):
    """Nothing is read while cq_size is 0 or the ring has no size; a later value starts the engine."""
    d = await MeDriver.start(dut)
    d.configure()
    d.pin("cq_size", 0)
    for q in range(2):
        d.post(q, [{"opcode": Op.NOOP, "flags": S}] * 3)
    d._registers = [r for r in d._registers if r[:2] != ("wq_size", 1)]
    await d.begin()
    await d.doorbell(0), await d.doorbell(1)
    await d.b.wait_cycles(100)
    assert d.reads == 0
    d.pin("cq_size", d.cq_size)
    await d.b.wait_cycles(100)
    assert await d.read("wq_head", 0) == 3 and await d.read("wq_head", 1) == 0
    await d.write("wq_size", 1, 1024)
    await d.retired()
    await d.end()
    d.check()


@cocotb.test()
async def test_doorbell_pieces(dut):
    """The tail moves by random steps at random times: every WQE once, none before its doorbell."""
    d = await MeDriver.start(dut)
    for t in TIMINGS[1:3]:
        await d.again()
        d.timing(**t)
        d.configure()
        for q in range(d.me.queues):
            d.post(q, random_program(d, q, 120, {}))
        await d.begin()
        while any(d.posted[q] < 120 for q in range(d.me.queues)):
            q = int(d.b.rng.integers(d.me.queues))
            await d.doorbell(q, min(120, d.posted[q] + int(d.b.rng.choice([0, 1, 1, 2, 5, 40]))))
            await d.b.wait_cycles(int(d.b.rng.integers(1, 60)))
        await d.retired()
        await d.end()
        d.check()


@cocotb.test()
async def test_errors(dut):
    """Every error: its CQE; later WQEs flushed, posted before or after; other queues unharmed; reset makes the queue new."""
    d = await MeDriver.start(dut)
    d.configure()
    d.memory.error(FLAGS + 0x8000, FLAGS + 0x8040)
    rng = d.b.rng
    cases = [{"opcode": Op.NOOP} | w for w in refusals()]
    cases += [unit_wqe(rng, op) | {a: 0x77 | int(s) << 48} for op, a, s in (
        (Op.SEND, "addr_a", Status.RETRY_EXC_ERR), (Op.RECV, "addr_d", Status.LOC_LEN_ERR), (Op.READ, "addr_d", Status.REM_ACCESS_ERR),
        (Op.REDUCE, "addr_a", Status.ALIGN_ERR), (Op.COPY, "addr_a", Status.MEM_ERR))]
    bad_memory = [set_word(512, 1), wait_word(512, Compare.EQ, 1)]
    later = [unit_wqe(rng, Op.RECV), {"opcode": Op.NOOP, "wqe_sync": 1, "wr_id": 5}, set_word(1, 7, flags=Flag.SYNC, wr_id=6), wait_word(1, Compare.EQ, 9), unit_wqe(rng, Op.COPY, flags=S)]
    first = 0
    for n, case in enumerate(cases + bad_memory):
        q = n % d.me.queues
        d.doorbells = {k: [] for k in d.doorbells}
        first = d.pin("cq_tail")
        for k in range(d.me.queues):
            if k != q:
                d.post(k, [unit_wqe(rng, Op.WRITE, flags=S), {"opcode": Op.NOOP, "flags": S | Flag.SYNC}])
        d.post(q, [unit_wqe(rng, Op.COPY, flags=S), case | {"wr_id": 1000 + n}, {"opcode": Op.NOOP, "flags": Flag.SYNC}, *later])
        await d.run()
        assert await d.read("wq_state", q) == 1
        d.post(q, later)
        await d.run()
        assert await d.read("wq_state", q) == 1 and await d.read("wq_head", q) == len(d.program[q])
        status = {(q, 1): Status.MEM_ERR} if case in bad_memory else {}
        c = d.check(first_cqe=first, wait_status=status)
        assert c.cut[q] == 2, f"case {n}: flushed from {c.cut[q]}"
        d.b.cover(Status(c.expected_cqe(q, 1)["status"]).name)
        for k in range(d.me.queues):
            await d.reset_queue(k)
        await d.b.wait_cycles(4)
        assert await d.read("wq_state", q) == 0 and await d.read("wq_head", q) == 0 and await d.read("wq_tail", q) == 0


@cocotb.test()
async def test_error_ends_wait(dut):
    """A WQE that fails while a WAIT behind it polls: the WAIT is given up, though it has no deadline."""
    d = await MeDriver.start(dut)
    d.configure()
    d.pin("nic_hold", 1), d.pin("wait_timeout", 0)
    d.post(0, [unit_wqe(d.b.rng, Op.SEND, addr_a=int(Status.RETRY_EXC_ERR) << 48), wait_word(0, Compare.EQ, 1, wr_id=4), {"opcode": Op.NOOP}])
    await d.begin()
    await d.doorbell(0)
    await d.b.wait_cycles(100)
    assert d.pin("cq_tail") == 0 and await d.read("wq_state", 0) == 2
    d.pin("nic_hold", 0)
    await d.retired(400)
    await d.end()
    c = d.check()
    assert [x["status"] for x in c.cqes] == [Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR, Status.WR_FLUSH_ERR]


@cocotb.test()
async def test_random_errors(dut):
    """Random programs in which WQEs fail now and then, under random timing: each queue ends flushed and complete."""
    d = await MeDriver.start(dut)
    for t in (TIMINGS * 3):
        await d.again()
        d.timing(**t)
        d.configure()
        for q in range(d.me.queues):
            d.post(q, random_program(d, q, 80, {}, errors=0.03))
        await d.run(60_000)
        c = d.check(late_start=None if t["delay"] else 6)
        d.b.cover("flushed" if any(c.cut[q] < 80 for q in range(d.me.queues)) else "no error")


@cocotb.test()
async def test_fetch_error(dut):
    """A WQE that cannot be read: MEM_ERR with its address, all later ones flushed with wr_id 0; also when the queue flushes already."""
    d = await MeDriver.start(dut)
    for place, early in ((0, False), (5, False), (6, True), (18, False)):
        await d.again()
        d.configure(size=32)
        at = d.base[0] + place * 64
        d.memory.error(at, at + 64, 3 if place == 5 else 2)
        program = [{"opcode": Op.NOOP, "flags": S, "wr_id": 50 + i, "qpn": i} for i in range(20)]
        if early:
            program[2] = {"opcode": 99, "wr_id": 52}
        d.post(0, program)
        d.post(1, [{"opcode": Op.COPY, "flags": S}] * 20)
        await d.run()
        c = d.check(bad_fetch={0: place})
        cqes = {x["wqe_index"]: x for x in c.cqes if x["queue"] == 0}
        assert len(cqes) == 20 and (early or cqes[place]["info"] == at) and c.cut[0] == (3 if early else place + 1)


@cocotb.test()
async def test_queue_reset(dut):
    """Reset with work outstanding: what started finishes with its CQE, a WAIT ends flushed, what did not start is forgotten."""
    d = await MeDriver.start(dut)
    d.configure()
    d.pin("nic_hold", 1), d.pin("wait_timeout", 0)
    d.post(0, [unit_wqe(d.b.rng, Op.SEND, flags=S), {"opcode": Op.COPY, "flags": S | Flag.SYNC}, {"opcode": Op.NOOP}])
    d.post(1, [wait_word(0, Compare.EQ, 1), {"opcode": Op.NOOP, "flags": S}])
    await d.begin()
    await d.doorbell(0), await d.doorbell(1)
    await d.b.wait_cycles(60)
    assert await d.read("wq_state", 0) == 2 == await d.read("wq_state", 1)
    await d.write("wq_reset", 0, 1), await d.write("wq_reset", 1, 1)
    await d.b.wait_cycles(60)
    assert await d.read("wq_state", 0) & 4 and await d.read("wq_state", 1) == 0
    assert d.pin("cq_tail") == 1, "the WAIT that was ended"
    d.pin("nic_hold", 0)
    await d.b.wait_cycles(60)
    assert await d.read("wq_state", 0) == 0 and await d.read("wq_head", 0) == 0 and d.pin("cq_tail") == 2
    await d.end()
    assert not d.log.nmc
    d.program = {0: d.program[0][:1], 1: d.program[1][:1], 2: [], 3: []}
    d.posted, tail = [1, 1, 0, 0], 2
    d._reads = lambda: None  # the forgotten WQEs were read
    d.check(wait_status={(1, 0): Status.WR_FLUSH_ERR})
    del d._reads
    d.pin("wait_timeout", 1 << 20)
    for _ in range(3):  # new queues in the same place, each after the other
        for q in (0, 1):
            await d.reset_queue(q)
        d.doorbells = {k: [] for k in d.doorbells}
        await d.b.wait_cycles(4)
        d.post(0, random_program(d, 0, 40, {}))
        d.post(1, random_program(d, 1, 40, {}))
        await d.run()
        tail += len(d.check(first_cqe=tail).cqes)


@cocotb.test()
async def test_wait_compare(dut):
    """Each comparison, unsigned, true at once and after a SET of another queue; polls come every poll_interval cycles."""
    d = await MeDriver.start(dut)
    big = 0x80000000
    cases = [  # compare, value, word before, word after (None: true at once)
        (Compare.EQ, 0, 0, None), (Compare.EQ, big, 0, big), (Compare.NE, 0, 1, None), (Compare.NE, 7, 7, 8), (Compare.GE, 5, 5, None),
        (Compare.GE, big, big - 1, big + 1), (Compare.LT, big, 5, None), (Compare.LT, 3, 0xFFFFFFFF, 2), (Compare.GE, 0, 0, None),
        (Compare.LT, 1, 1, 0), (Compare.EQ, 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF),
    ]
    d.timing(latency=3)
    d.configure()
    for k, (cmp, value, before, after) in enumerate(cases):
        d.memory.write(FLAGS + 64 * k + 4 * (k % 16), before.to_bytes(4, "little"))
        d.post(0, [wait_word(k, cmp, value, wr_id=k, flags=S), unit_wqe(d.b.rng, Op.COPY, addr_a=k)])
        if after is not None:
            d.post(1, [set_word(k, after)])
    await d.begin()
    await d.doorbell(0)
    sets = 0
    for k, (*_, after) in enumerate(cases):
        await d.b.wait_cycles(100)
        if after is not None:
            assert await d.read("wq_head", 0) == 2 * k and await d.read("wq_state", 0) == 2, f"WAIT {k} did not wait"
            sets += 1
            await d.doorbell(1, sets)
    await d.retired()
    await d.end()
    c = d.check()
    for k, (*_, after) in enumerate(cases):
        polls = [now for now, _ in c.polls[0, 2 * k]]
        gaps = {b - a for a, b in zip(polls, polls[1:], strict=False)}
        assert gaps <= {d.me.poll_interval}, f"WAIT {k}: polls {gaps} cycles apart"
        assert (len(polls) == 1) == (after is None), f"WAIT {k}: {len(polls)} polls"


@cocotb.test()
async def test_wait_timeout(dut):
    """The deadline register ends a WAIT, never before one poll; 0 is for ever."""
    d = await MeDriver.start(dut)
    for timeout, latency in ((1, 2), (1, 60), (100, 3), (1000, 100)):
        await d.again()
        d.timing(latency=latency)
        d.configure()
        d.pin("wait_timeout", timeout)
        d.post(0, [wait_word(0, Compare.NE, 0, wr_id=8), {"opcode": Op.NOOP}])
        d.post(1, [wait_word(0, Compare.EQ, 0, wr_id=9, flags=S), {"opcode": Op.COPY, "flags": S}])
        await d.run()
        c = d.check(wait_status={(0, 0): Status.WAIT_TIMEOUT})
        cqe = next(x for x in c.cqes if x["queue"] == 0)
        took = cqe["now"] - c.start[0, 0]
        slack = latency + 12
        assert timeout <= took + 4 and took <= max(timeout, latency) + slack, f"timeout {timeout}, latency {latency}: CQE after {took}"
    await d.again()
    d.configure()
    d.pin("wait_timeout", 0)
    d.post(0, [wait_word(0, Compare.NE, 0, flags=S)])
    d.post(1, [set_word(0, 1)])
    await d.begin()
    await d.doorbell(0)
    await d.b.wait_cycles(4000)
    assert await d.read("wq_head", 0) == 0
    await d.doorbell(1)
    await d.retired()
    await d.end()
    d.check()


@cocotb.test()
async def test_independent(dut):
    """A queue that waits, a NIC that takes nothing: the other queues and near-memory compute go on."""
    d = await MeDriver.start(dut)
    d.configure()
    d.pin("nic_stall", 256), d.pin("wait_timeout", 0)
    d.post(0, [{"opcode": Op.SEND, "flags": S}] * 12)
    d.post(1, [wait_word(0, Compare.EQ, 1, flags=S), {"opcode": Op.COPY, "flags": S}])
    d.post(2, [{"opcode": Op.COPY, "flags": S | Flag.SYNC}] * 40 + [set_word(0, 1)])
    d.post(3, [{"opcode": Op.NOOP, "flags": S}] * 40 + [{"opcode": Op.SEND, "flags": S}])
    await d.begin()
    for q in range(4):
        await d.doorbell(q, 40 if q == 2 else None)
    await d.b.wait_cycles(1500)
    assert [await d.read("wq_head", q) for q in range(4)] == [0, 0, 40, 40]
    d.pin("nic_stall", 0)
    await d.b.wait_cycles(200)
    assert [await d.read("wq_head", q) for q in range(4)] == [12, 0, 40, 41]
    await d.doorbell(2)
    await d.retired()
    await d.end()
    d.check()


@cocotb.test()
async def test_slow_memory(dut):
    """Memory that takes 300 cycles to answer."""
    d = await MeDriver.start(dut)
    d.timing(latency=300, delay=3)
    d.configure()
    words: dict[int, int] = {}
    for q in range(d.me.queues):
        d.post(q, random_program(d, q, 20, words))
    await d.run(60_000)
    d.check()


@cocotb.test()
async def test_many_sets(dut):
    """More SETs than may be on their way, from all queues, to memory that answers late: each is written and reported once."""
    d = await MeDriver.start(dut)
    d.timing(latency=300)
    d.configure()
    for q in range(d.me.queues):
        d.post(q, [set_word(30 * q + k, q << 8 | k, flags=S, wr_id=k) for k in range(30)])
    await d.run(60_000)
    assert len(d.check().cqes) == 30 * d.me.queues


@cocotb.test()
async def test_cq_write_error(dut):
    """A CQE that memory refuses shows in every queue's wq_state."""
    d = await MeDriver.start(dut)
    d.configure()
    d.post(0, [{"opcode": Op.NOOP, "flags": S}] * 3)
    d.memory.error(CQ + 64, CQ + 128)
    await d.run()
    assert [await d.read("wq_state", q) for q in range(4)] == [8] * 4
    await d.b.reset()
    assert await d.read("wq_state", 0) == 0


@cocotb.test()
async def test_rate(dut):
    """Cycles against the bound: one start a cycle; from one queue as fast as its prefetch and the memory's latency allow."""
    d = await MeDriver.start(dut)
    for queues, op, flags in ((4, Op.COPY, 0), (4, Op.NOOP, 0), (4, Op.COPY, S), (4, Op.NOOP, S), (1, Op.COPY, 0), (1, Op.NOOP, S)):
        n = 256
        await d.again()
        d.timing(latency=1, delay=0)
        d.configure()
        for q in range(queues):
            d.post(q, [{"opcode": op, "flags": flags}] * n)
        await d.begin()
        for q in range(queues):
            await d.doorbell(q)
        begin = d.doorbells[0][0][0]
        await d.retired()
        await d.end()
        d.check()
        ends = [e["now"] for e in (d.log.aw or d.log.nmc or d.log.r)]
        cycles = max(ends) - begin
        dut._log.info(f"rate: {queues} queues {op.name} {flags:#x}: {queues * n} WQEs in {cycles} cycles, {cycles / queues / n:.3f} a WQE")
        assert cycles <= RATE[queues] * queues * n + 40, f"{queues} queues, {op.name}: {cycles} cycles for {queues * n} WQEs"


RATE = {4: 1.0, 1: 2.0}


@cocotb.test()
async def test_latency(dut):
    """Doorbell to request 5 + L cycles, answer to the request it unlocks 3, answer to CQE address 5 (L: memory latency)."""
    d = await MeDriver.start(dut)
    for latency in (1, 10, 50):
        await d.again()
        d.timing(latency=latency, delay=0)
        d.configure()
        d.post(0, [{"opcode": Op.COPY}, {"opcode": Op.RECV, "wqe_sync": 1, "flags": S}])
        await d.run()
        d.check()
        asked = d.log.r[0]["now"] - d.log.ar[0]["now"]
        first = d.log.nmc[0]["now"] - d.doorbells[0][0][0]
        unlocked = d.log.nic[0]["now"] - d.log.nmc_done[0]["now"]
        cqe = d.log.aw[0]["now"] - d.log.nic_done[0]["now"]
        dut._log.info(f"latency {latency}: read {asked}, doorbell to request {first}, answer to request {unlocked}, answer to CQE {cqe}")
        assert first <= asked + 5 and unlocked <= 3 and cqe <= 5, (first, unlocked, cqe)
