"""A node as software and the network see it: control registers, host port, doorbells, frames; beside the golden node where both run."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.nic import packet as model
from rtl.common.csr import is_constant, is_indexed
from spec.packet import Opcode, Syndrome
from spec.registers import QpState
from spec.wqe import Compare, DType, Flag, Op, ReduceOp, Status
from tb.chip.node_driver import CQ, DATA, DECERR, KEPT, OKAY, SLVERR, NodeDriver, Twin
from tb.lib.bench import Bench
from tb.nic.transport_rig import ack, beats, message, payloads

NODE, PEER = 0x0102, 0x0203


async def reads_reset_values(d: NodeDriver, *, but: tuple[str, ...] = ()) -> None:
    for r in d.table.values():
        for i in range(r.count) if r.name not in but else ():
            assert await d.read(r.name, i) == (0 if r.access == "w1" else r.reset), f"{r.name}[{i}] after reset"


@cocotb.test()
async def test_registers(dut):
    """Every copy of every register by its declared access, width and reset value."""
    d = await NodeDriver.start(dut)
    b, table = d.b, d.table
    await reads_reset_values(d)
    # While cq_size is 0 the engine does not start, whatever the doorbells say: so it and what is special come last.
    plain = [r for r in table.values() if r.access == "rw" and r.name not in ("cq_size", "qp_state")]
    values = {}
    for ones in (True, False):
        for r in plain:
            for i in range(r.count):
                values[r.name, i] = 0xFFFFFFFF if ones else int(b.rng.integers(1 << 32))
                await d.write(r.name, values[r.name, i], i)
        for r in plain:
            for i in range(r.count):
                want = values[r.name, i] & (1 << r.width) - 1
                assert await d.read(r.name, i) == want, f"{r.name}[{i}]"
                b.cover("rw-copies" if is_indexed(r) else "rw")
                if r.width < 32:
                    b.cover("narrow")
    for r in table.values():
        if r.access == "ro":
            for i in {0, r.count - 1}:
                before = await d.read(r.name, i)
                assert await d.ctl.write(d.address(r.name, i), 0xFFFFFFFF) == SLVERR, r.name
                assert await d.read(r.name, i) == before, r.name
                b.cover("constant" if is_constant(r) else "ro")
    for q in range(d.p.me.queues):
        await d.write("wq_reset", 1, q)
        assert await d.read("wq_reset", q) == 0
        for other in range(d.p.me.queues):
            want = 0 if other <= q else values["wq_tail", other]
            assert await d.read("wq_tail", other) == want, f"wq_tail[{other}] after wq_reset[{q}]"
        b.cover("w1")
    for q in range(d.p.me.queues):
        await d.write("wq_size", 0, q)
    for value in (0xFFFFFFFF, int(b.rng.integers(1 << 32)), 0, 16):
        await d.write("cq_size", value)
        assert await d.read("cq_size") == value
    for qp in (0, d.p.nic.qps - 1):
        for value, state in ((7, 0), (QpState.INIT, 1), (6, 1), (QpState.RTR, 2), (QpState.RTS, 3), (QpState.SQD, 4), (QpState.ERR, 5),
                             (QpState.RTS, 5), (QpState.RESET, 0)):
            await d.write("qp_state", value, qp)
            await b.wait_cycles(20)
            assert await d.read("qp_state", qp) == state, f"qp_state[{qp}] after {value}"
            assert await d.read("qp_state", qp ^ 1) == QpState.RESET
        assert [await d.read(n, qp) for n in ("qp_sq_psn", "qp_rq_psn")] == [0, 0]
    await b.reset()
    await reads_reset_values(d, but=KEPT)
    for r in plain:
        for i in range(r.count) if r.name in KEPT else ():
            assert await d.read(r.name, i) == values[r.name, i] & (1 << r.width) - 1, f"{r.name}[{i}] is kept"
    b.cover("reset")


@cocotb.test()
async def test_errors(dut):
    """What is not mapped, not aligned or not whole is refused, ends, and has no effect."""
    d = await NodeDriver.start(dut)
    b = d.b
    mapped = {d.address(r.name, i) for r in d.table.values() for i in range(r.count)}
    beyond = [r.offset + r.count * r.stride for r in d.table.values()]
    near = [a + step for a in mapped for step in (-4, 4, 0x20, 0x40)]
    anywhere = [4 * int(x) for x in b.rng.integers(0, 1 << 18, 60)]
    for addr in sorted({a for a in [*beyond, *near, *anywhere, 0xFFFFC] if a >= 0} - mapped):
        assert await d.ctl.write(addr, 0xFFFFFFFF) == DECERR, hex(addr)
        assert await d.ctl.read(addr) == (0, DECERR), hex(addr)
        b.cover("unmapped")
    for name in ("node", "wq_base", "qp_state"):
        at = d.address(name)
        for low in (1, 2, 3):
            for n in (1, 2) if low == 2 else (1,):
                got = await d.ctl._answer("partial write", d.ctl.master.write(at + low, b"\xff" * n))
                assert int(got.resp) == SLVERR, (name, low, n)
        b.cover("partial")
    await b.wait_cycles(50)
    await reads_reset_values(d, but=KEPT)


@cocotb.test()
async def test_host(dut):
    """Any bytes of the memory from outside, at any address; DECERR beyond its end."""
    d = await NodeDriver.start(dut)
    b, size = d.b, d.p.mem.size_bytes
    mirror = np.zeros(0x4000, np.uint8)
    assert await d.host_write(0, mirror) == OKAY
    for _ in range(30):
        n = int(b.rng.choice([1, 3, 64, int(b.rng.integers(1, 300)), int(b.rng.integers(1, 6000))]))
        at = int(b.rng.integers(0, len(mirror) - n))
        mirror[at : at + n] = b.rng.integers(0, 256, n, dtype=np.uint8)
        assert await d.host_write(at, mirror[at : at + n]) == OKAY
        if at // 4096 != (at + n - 1) // 4096:
            b.cover("crosses 4 KiB")
        if at % 64 or n % 64:
            b.cover("part of a word")
        n = int(b.rng.integers(1, 400))
        at = int(b.rng.integers(0, len(mirror) - n))
        assert await d.host_read(at, n) == (mirror[at : at + n].tobytes(), OKAY), f"{n} bytes at {at:#x}"
    assert (await d.host_read(0, len(mirror)))[0] == mirror.tobytes()
    assert await d.host_write(size - 64, bytes(61) + b"end") == OKAY and (await d.host_read(size - 3, 3))[0] == b"end"
    for at, n in ((size, 1), (size + 64, 200), (size - 64, 128), (0xFFFFFF00, 64)):
        if at >= size:
            assert (await d.host_read(at, n)) == (bytes(n), DECERR), hex(at)
        assert await d.host_write(at, b"\x5a" * n) == DECERR, hex(at)
        b.cover("beyond the end")
    assert await d.host_read(0, len(mirror)) == (mirror.tobytes(), OKAY)
    assert (await d.host_read(size - 64, 64))[0] == b"\x5a" * 64  # the part inside is written


@cocotb.test()
async def test_noop(dut):
    """A NOOP by every queue's doorbell: its CQE, head, tail, phase, event; a full completion ring holds until cq_head moves."""
    d = Twin(await Bench.start(dut))
    b = d.b
    await d.configure(cq_size=4)
    for q in range(d.p.me.queues):
        await d.post(q, dict(opcode=Op.NOOP, wr_id=0xC0FFEE00 + q, flags=Flag.SIGNALED | (Flag.EVENT if q % 2 else 0)))
        cqe = (await d.completions(1))[0]
        assert (cqe["wr_id"], cqe["status"], cqe["opcode"], cqe["queue"], cqe["wqe_index"], cqe["byte_len"]) == (
            0xC0FFEE00 + q, Status.SUCCESS, Op.NOOP, q, 0, 0)
        assert await d.read("wq_head", q) == 1 and await d.read("event") == (q + 1) // 2
        b.cover("queue")
    await d.same(CQ, CQ + 4 * 32)
    events = await d.read("event")
    assert int(b.pin("events").value) == int(b.pin("pulses").value) == events == d.p.me.queues // 2
    # Held by a full ring; then given back one by one.
    await NodeDriver.post(d, 0, *[dict(opcode=Op.NOOP)] * 6)
    await b.wait_cycles(300)
    assert await d.read("cq_tail") == d.seen + 4
    for given in (1, 2):
        await NodeDriver.write(d, "cq_head", d.seen + given)
        await b.wait_cycles(100)
        assert await d.read("cq_tail") == d.seen + 4 + given
    assert await d.read("wq_head", 0) == 7
    b.cover("completion ring full")


@cocotb.test()
async def test_copy(dut):
    """COPY and REDUCE by doorbell: every byte of the data and every register as in the golden node."""
    d = Twin(await Bench.start(dut))
    b, end = d.b, 0x6000
    await d.configure()
    assert await d.host_write(0, b.rng.integers(0, 256, end, dtype=np.uint8)) == OKAY
    for k, (n, a, to) in enumerate(((0, 0, 0x4000), (1, 64, 0x4000), (64, 0x80, 0x4040), (65, 0x1C0, 0x4080), (1000, 0xFC0, 0x4800), (4097, 0x40, 0x4FC0))):
        await d.post(k % d.p.me.queues, dict(opcode=Op.COPY, addr_a=a, addr_d=to, length=n))
        cqe = (await d.completions(1))[0]
        assert (cqe["status"], cqe["opcode"], cqe["byte_len"], cqe["info"]) == (Status.SUCCESS, Op.COPY, n, 0), f"{n} bytes"
        b.cover("copy")
    floats = b.rng.standard_normal((2, 100)).astype(np.float32)
    assert await d.host_write(0, floats[0].tobytes()) == OKAY and await d.host_write(0x1000, floats[1].tobytes()) == OKAY
    await d.post(0, dict(opcode=Op.REDUCE, rop=ReduceOp.SUM, dtype=DType.FLOAT32, addr_a=0, addr_b=0x1000, addr_d=0x2000, length=400))
    assert (await d.completions(1))[0]["status"] == Status.SUCCESS
    assert (await d.host_read(0x2000, 400))[0] == (floats[0] + floats[1]).tobytes()
    b.cover("reduce")
    await d.post(2, dict(opcode=Op.COPY, addr_a=0x40, addr_d=0x4001, length=1))
    cqe = (await d.completions(1))[0]
    assert (cqe["status"], cqe["info"]) == (Status.ALIGN_ERR, 0x4001)
    b.cover("unaligned")
    # Beyond the memory: an error with the address, nothing is written, and the queue is in error until its reset.
    size = d.p.mem.size_bytes
    await d.post(3, dict(opcode=Op.COPY, addr_a=size, addr_d=0x100, length=64, flags=Flag.SIGNALED | Flag.FENCE), dict(opcode=Op.NOOP))
    bad, flushed = await d.completions(2)
    assert (bad["status"], bad["info"], flushed["status"]) == (Status.MEM_ERR, size, Status.WR_FLUSH_ERR)
    assert await d.read("wq_state", 3) & 1
    b.cover("memory error")
    await d.same(0, end)


@cocotb.test()
async def test_wait_set(dut):
    """A WAIT of one queue for a SET of another; and one that ends by the register wait_timeout."""
    d = await NodeDriver.start(dut)
    b = d.b
    await d.configure()
    assert await d.host_write(0, bytes(0x1040)) == OKAY
    await d.post(0, dict(opcode=Op.WAIT, addr_a=0x44, cmp=Compare.EQ, imm=77), dict(opcode=Op.COPY, addr_a=0x40, addr_d=0x1000, length=8))
    await b.wait_cycles(200)
    assert await d.read("wq_head", 0) == 0 and await d.read("wq_state", 0) & 2
    await d.post(1, dict(opcode=Op.SET, addr_d=0x44, imm=77))
    assert [c["status"] for c in await d.completions(3)] == [Status.SUCCESS] * 3
    assert (await d.host_read(0x1000, 8))[0] == bytes(4) + (77).to_bytes(4, "little")
    b.cover("released")
    await d.write("wait_timeout", 3000)
    await d.post(2, dict(opcode=Op.WAIT, addr_a=0x44, cmp=Compare.NE, imm=77))
    await b.wait_cycles(2800)
    assert await d.read("wq_head", 2) == 0
    await b.wait_cycles(300)
    cqe = (await d.completions(1, 64))[0]
    assert (cqe["status"], cqe["info"]) == (Status.WAIT_TIMEOUT, 0x44)
    b.cover("timeout")


@cocotb.test()
async def test_loop(dut):
    """SEND, RECV and WRITE between two queue pairs of the node, its link looped back: data and completions as in the golden node."""
    b = await Bench.start(dut)
    b.pin("loop").value = 1
    d = Twin(b)
    await d.configure()
    await d.write("node", NODE)
    await d.region()
    for qp, peer in ((1, 2), (2, 1)):
        await d.open(qp, dest_qp=peer, dest_node=NODE, sq_psn=0xFFFFFE, rq_psn=0xFFFFFE)
    assert await d.host_write(0, b.rng.integers(0, 256, 0x12000, dtype=np.uint8)) == OKAY
    for n, at, to in ((0, 0, 0x8000), (1, 3, 0x8005), (4096, 0x77, 0x8100), (9001, 0x1001, 0xA00F)):
        await d.post(1, dict(opcode=Op.RECV, qpn=2, addr_d=to, length=n + 3, wr_id=1))
        await d.post(0, dict(opcode=Op.SEND, qpn=1, addr_a=at, length=n, wr_id=2))
        got = sorted((c["wr_id"], c["status"], c["byte_len"], c["qpn"]) for c in await d.completions(2))
        assert got == [(1, Status.SUCCESS, n, 2), (2, Status.SUCCESS, n, 1)], f"{n} bytes"
        b.cover("SEND")
        await d.post(0, dict(opcode=Op.WRITE, qpn=2, addr_a=at, addr_d=to + 0x5000, length=n))
        assert (await d.completions(1))[0]["status"] == Status.SUCCESS
        b.cover("WRITE")
    tx, rx = await d.read("nic_tx_packets"), await d.read("nic_rx_packets")
    assert tx == rx >= 16 and not await d.read("nic_rx_dropped")
    got = np.frombuffer((await d.host_read(0, 0x12000))[0], np.uint8)
    assert np.array_equal(got, d.golden.mem_read(0, 0, 0x12000))
    for qp in (1, 2):
        for name in ("qp_state", "qp_sq_psn", "qp_rq_psn"):
            assert await d.read(name, qp) == d.golden.read_reg(0, name, qp), name
    # Outside the region: the peer's NAK, both queue pairs in ERR.
    await d.post(0, dict(opcode=Op.WRITE, qpn=1, addr_a=0, addr_d=DATA - 8, length=9, wr_id=5))
    cqe = (await d.completions(1))[0]
    assert (cqe["wr_id"], cqe["status"], cqe["info"]) == (5, Status.REM_ACCESS_ERR, Syndrome.NAK_ACCESS)
    assert [await d.read("qp_state", qp) for qp in (1, 2)] == [QpState.ERR] * 2 and await d.read("nic_naks") == 1
    b.cover("refused by the peer")


@cocotb.test()
async def test_frames(dut):
    """Frames of the golden packet model in, frames out read by it; every counter of the NIC counts its own."""
    d = await NodeDriver.start(dut, loop=0)
    b, qp, peer_qp, psn, mtu = d.b, 7, 0x123456, 0xFFFFFF, d.p.nic.mtu
    await d.configure()
    await d.write("node", NODE)
    await d.region()
    await d.open(qp, dest_qp=peer_qp, dest_node=PEER, sq_psn=psn, rq_psn=psn)
    assert await d.host_write(0x1000, b.rng.integers(0, 256, 0x80, dtype=np.uint8)) == OKAY
    b.source("link_rx").idle = b.sink("link_tx").backpressure = 0.3

    def frame(packet) -> bytes:
        meta, payload = packet
        return model.build({k: v for k, v in meta.items() if k != "src_node"} | {"dest_node": NODE}, payload, PEER)

    async def exchange(frames, n: int, act=None) -> list:
        """`frames` in; the `n` flits out as parsed packets."""
        b.source("link_rx").load([w for f in frames for w in beats(f)])
        b.sink("link_tx").expect(n)
        await b.begin(settle=100)
        if act:
            await act()
        await b.finish(20000)
        return [model.parse(f, node=PEER, mtu=mtu) for f in payloads(b.sink("link_tx").array())]

    def answer(packets) -> tuple:
        m = packets[-1][0]
        assert (m["opcode"], m["src_node"], m["dest_qp"]) == (Opcode.ACK, NODE, peer_qp)
        return m["syndrome"], m["psn"]

    data = b.rng.bytes(100)
    sent = frame(message(data, psn, mtu, qp=qp, src=PEER)[0])
    assert answer(await exchange([sent], 1)) == (Syndrome.RNR_NAK | 1, psn)
    await d.post(1, dict(opcode=Op.RECV, qpn=qp, addr_d=0x1003, length=100, wr_id=9))
    await b.wait_cycles(200)
    assert answer(await exchange([sent], 1)) == (Syndrome.ACK, psn)
    cqe = (await d.completions(1))[0]
    assert (cqe["wr_id"], cqe["status"], cqe["byte_len"], cqe["qpn"]) == (9, Status.SUCCESS, 100, qp)
    assert (await d.host_read(0x1003, 100))[0] == data
    for _ in range(2):
        assert answer(await exchange([sent], 1)) == (Syndrome.ACK, psn)
    bad = [bytearray(sent) for _ in range(4)]
    for k, at in enumerate((5, 40, 60, len(sent) - 1)):  # destination, UDP length, payload, iCRC
        bad[k][at] ^= 1
    unknown = frame(message(data, psn, mtu, qp=d.p.nic.qps + qp, src=PEER)[0])
    await exchange([*map(bytes, bad), unknown], 0)
    b.cover("damaged")

    want = (await d.host_read(0x1010, 70))[0]

    async def post() -> None:
        await d.post(0, dict(opcode=Op.SEND, qpn=qp, addr_a=0x1010, length=70))

    first = await exchange([], 3, post)
    for restart in range(5):
        meta, payload = first[0]
        assert (meta["opcode"], meta["psn"], meta["src_node"], meta["dest_qp"]) == (Opcode.SEND_ONLY, psn, NODE, peer_qp)
        assert payload == want
        if restart < 4:
            first = await exchange([frame(ack(psn, qp=qp, src=PEER, syndrome=Syndrome.NAK_PSN))], 3)
            b.cover("restart")
    await exchange([frame(ack(psn, qp=qp, src=PEER))], 0)
    assert (await d.completions(1))[0]["status"] == Status.SUCCESS
    counters = {n: await d.read(n) for n in d.table if n.startswith("nic_")}
    assert counters == {
        "nic_tx_packets": 9, "nic_rx_packets": 10, "nic_rx_dropped": 5, "nic_retransmits": 4, "nic_duplicates": 2, "nic_naks": 1}
    b.cover("counters")
