"""Framer into deframer: descriptions and payloads arrive as sent, under stalls and at full rate."""
from __future__ import annotations

import cocotb

from spec import packet
from spec.interfaces import RX_META
from spec.packet import Opcode
from tb.lib.bench import Bench
from tb.nic import framing

MTU = 1024
NODE = 254


async def send(b: Bench, cases: list[tuple[int, int]], deadline: int) -> tuple[int, int]:
    """(cycles, flits on the link) of one run that delivered all of `cases`."""
    b.pin("node").value = NODE
    metas = [framing.random_meta(b.rng, op, n, dest=NODE) for op, n in cases]
    payloads = [b.rng.bytes(n) for _, n in cases]
    b.source("tx_meta").load(framing.meta_words(metas))
    b.source("tx_data").load(framing.join(framing.beats(p, b.rng) for p in payloads))
    b.sink("meta").expect(len(metas))
    b.sink("data").expect(framing.flits(payloads))
    cycles = await b.run(deadline)
    framing.same([RX_META.unpack(w) for w in b.sink("meta").words()], [framing.received(m, NODE) for m in metas], "description")
    framing.same(framing.packets(b.sink("data").array()), [p for p in payloads if p], "payload")
    assert int(b.pin("dropped").value) == 0
    return cycles, sum(-(-packet.frame_bytes(op, n) // 64) for op, n in cases)


@cocotb.test()
async def test_round_trip(dut):
    b = await Bench.start(dut)
    cases = framing.all_cases() + [(int(op), n) for op in Opcode for n in (MTU - 1, MTU)]
    b.rng.shuffle(cases)
    await send(b, cases, 30_000)
    b.cover("mtu")


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for idle in (0.0, 0.3, 0.8):
        for back in (0.0, 0.3, 0.8):
            b.stalls(idle)
            b.sink("meta").backpressure = b.sink("data").backpressure = back
            await send(b, [(int(b.rng.choice(framing.OPCODES)), int(n)) for n in b.rng.integers(0, 400, 150)], 60_000)


@cocotb.test()
async def test_back_to_back(dut):
    b = await Bench.start(dut)
    for op, n in ((Opcode.SEND_MIDDLE, MTU), (Opcode.ACK, 0), (Opcode.WRITE_ONLY_IMM, 1)):
        cycles, flits = await send(b, [(int(op), n)] * 200, 20_000)
        assert cycles <= flits + -(-n // 64) + 12, f"{cycles} cycles for {flits} flits of {op.name}"
    cases = framing.all_cases()
    b.rng.shuffle(cases)
    cycles, flits = await send(b, cases, 20_000)
    assert cycles <= flits + 12, f"{cycles} cycles for {flits} flits"
    dut._log.info("full rate: %d cycles for %d flits", cycles, flits)
