"""Framer: frames byte for byte against scapy and the golden model, stalls, full rate, latency."""
from __future__ import annotations

import cocotb
import numpy as np
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP
from scapy.utils import rdpcap

from golden.net import pcap
from golden.nic import packet as golden
from spec import packet
from spec.packet import HAS_AETH, HAS_IMM, HAS_RETH, Opcode
from tb.lib.bench import Bench
from tb.nic import framing


def load(b: Bench, metas: list[dict], payloads: list[bytes], node: int) -> list[bytes]:
    """Arm the streams; returns the frames by the golden model."""
    b.pin("node").value = node
    frames = [golden.build(m, p, node) for m, p in zip(metas, payloads, strict=True)]
    b.source("meta").load(framing.meta_words(metas))
    b.source("data").load(framing.join(framing.beats(p, b.rng) for p in payloads))
    b.sink("link").expect(framing.flits(frames))
    return frames


def draw(b: Bench, cases: list[tuple[int, int]]) -> tuple[list[dict], list[bytes]]:
    metas = [framing.random_meta(b.rng, op, n) for op, n in cases]
    return metas, [b.rng.bytes(n) for _, n in cases]


async def check(b: Bench, cases: list[tuple[int, int]], node: int, deadline: int, *, scapy: bool = False) -> tuple[int, int]:
    """(cycles, flits) of one run whose frames are all right."""
    metas, payloads = draw(b, cases)
    frames = load(b, metas, payloads, node)
    cycles = await b.run(deadline)
    got = framing.packets(b.sink("link").array())
    framing.same(got, frames, "frame")
    if scapy:
        framing.same(got, [framing.scapy_frame(m, p, node) for m, p in zip(metas, payloads, strict=True)], "frame against scapy")
    for op, n in cases:
        size = packet.frame_bytes(op, n)
        for name, hit in (
            ("reth", op in HAS_RETH), ("aeth", op in HAS_AETH), ("imm", op in HAS_IMM), ("reth-imm", op == Opcode.WRITE_ONLY_IMM),
            ("unknown-opcode", op not in iter(Opcode)), (f"pad-{-n % 4}", n % 4), ("icrc-split", size % 64 == 2), ("empty", n == 0),
            ("short-frame", size < 60),
        ):
            if hit:
                b.cover(name)
    return cycles, framing.flits(frames)


@cocotb.test()
async def test_opcodes(dut):
    b = await Bench.start(dut)
    cases = framing.all_cases()
    b.rng.shuffle(cases)
    third = -(-len(cases) // 3)
    for i, node in enumerate((0, 254, 0xFFFF)):
        await check(b, cases[i * third:(i + 1) * third], node, 20_000, scapy=True)


@cocotb.test()
async def test_mtu(dut):
    b = await Bench.start(dut)
    ops = (Opcode.SEND_MIDDLE, Opcode.SEND_LAST_IMM, Opcode.WRITE_FIRST, Opcode.WRITE_ONLY_IMM)
    for mtu in (1024, 4096):
        cases = [(int(op), n) for op in ops for n in (mtu - 1, mtu, mtu + 1) if n <= 4096]
        await check(b, cases, 9, 20_000, scapy=True)


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for idle in (0.0, 0.3, 0.8):
        for back in (0.0, 0.3, 0.8):
            b.stalls(idle)
            b.sink("link").backpressure = back
            cases = [(int(b.rng.choice(framing.OPCODES)), int(n)) for n in b.rng.integers(0, 200, 150)]
            await check(b, cases, 3, 60_000)
            if idle and back:
                b.cover("both-stalled")


@cocotb.test()
async def test_back_to_back(dut):
    b = await Bench.start(dut)
    acks = [(int(Opcode.ACK), 0)] * 500
    cycles, flits = await check(b, acks, 1, 5000)
    b.cover("one-flit-frames")
    assert flits == 500 and cycles <= flits + 7, f"{cycles} cycles for {flits} flits"
    for mtu in (256, 4096):
        cases = [(int(Opcode.SEND_MIDDLE), mtu)] * (40 * 256 // mtu * 4)
        cycles, flits = await check(b, cases, 1, 20_000)
        assert cycles <= flits + 7, f"{cycles} cycles for {flits} flits of {mtu}-byte packets"
    cases = framing.all_cases()
    b.rng.shuffle(cases)
    cycles, flits = await check(b, cases, 1, 20_000)
    b.cover("mixed-frames")
    assert cycles <= flits + 7, f"{cycles} cycles for {flits} flits"
    dut._log.info("full rate: %d cycles for %d flits", cycles, flits)


@cocotb.test()
async def test_latency(dut):
    b = await Bench.start(dut)
    empty = (await check(b, [(int(Opcode.ACK), 0)], 1, 100))[0]
    for n in (1, 64, 256):
        cycles, flits = await check(b, [(int(Opcode.SEND_ONLY), n)], 1, 100)
        assert cycles == empty + flits - 1, f"{cycles} cycles for {flits} flits; an empty packet takes {empty}"
    assert empty <= 7, f"{empty} cycles: the framer's 4, source and sink"


@cocotb.test()
async def test_capture(dut):
    b = await Bench.start(dut)
    metas, payloads = draw(b, [(int(op), 100) for op in Opcode])
    frames = load(b, metas, payloads, 0)
    await b.run(1000)
    with pcap.Writer("framer.pcapng") as w:
        for i, row in enumerate(b.sink("link").array()):
            w.flit(3 * i, row)
    read = rdpcap("framer.pcapng")
    framing.same([bytes(p) for p in read], frames, "captured frame")
    for p, m in zip(read, metas, strict=True):
        assert (p[BTH].opcode, p[BTH].dqpn, p[BTH].psn, p[IP].ttl) == (m["opcode"], m["dest_qp"], m["psn"], 64)
    assert float(read[1].time) > float(read[0].time) and np.isclose(float(read[0].time), 0)
