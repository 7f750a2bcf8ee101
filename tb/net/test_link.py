"""Link: exact departure cycles, line rate in wire bytes, lossless back-pressure."""
from __future__ import annotations

import json
import os

import cocotb
import numpy as np

from golden.net import link as golden
from spec import packet
from spec.params import LinkParams
from tb.lib.bench import Bench
from tb.lib.registry import find
from tb.net.frames import beats, random_frames, unpack


def parameters() -> LinkParams:
    latency, rate, depth = (int(a[1:]) for a in find(json.loads(os.environ["TAWNY_BENCH"])["block"]).args)
    return LinkParams(latency=latency, rate=rate, depth=depth)


async def send(b: Bench, frames: list[bytes], deadline: int = 200_000) -> tuple[np.ndarray, np.ndarray, int]:
    """(cycle each beat was accepted, cycle each left, cycles of the run); the frames must come out as they went in."""
    rows = beats(frames)
    b.source("i").load(rows)
    for name in ("o", "entered", "left"):
        b.sink(name).expect(len(rows))
    cycles = await b.run(deadline)
    assert unpack(b.sink("o").array()) == frames
    assert (b.sink("o").array() == rows).all()
    return np.array(b.sink("entered").words()), np.array(b.sink("left").words()), cycles


@cocotb.test()
async def test_lengths(dut):
    b, p = await Bench.start(dut), parameters()
    lengths = [*range(1, 200), 256, 1024, 4095, 4096, 4097, 4224, *b.rng.permutation(np.repeat([1, 60, 64, 65, 128], 10))]
    frames = random_frames(b.rng, lengths)
    await b.wait_cycles(200)
    entered, left, _ = await send(b, frames)
    cost = golden.costs(lengths)
    assert (entered - entered[0] == golden.accepts(cost, p.rate)).all()
    assert (left - entered[0] == golden.departures(cost, p.rate, p.latency)).all()
    # With idle cycles the offers are the source's; each accepted beat must still obey the line.
    b.source("i").idle = 0.4
    entered, left, _ = await send(b, frames)
    assert (left - entered == p.latency).all()
    assert (golden.accepts(cost, p.rate, entered) == entered).all(), "a beat was accepted before the line was free"


@cocotb.test()
async def test_rate(dut):
    b, p = await Bench.start(dut), parameters()
    for name, payload, count in (("mtu", 4096, 60), ("minimum", 0, 500)):
        lengths = [packet.frame_bytes(packet.Opcode.SEND_MIDDLE, payload)] * count
        if name == "minimum":
            lengths = [packet.frame_bytes(packet.Opcode.ACK, 0)] * count
            wire = packet.wire_bytes(packet.Opcode.ACK, 0) * count
        else:
            wire = packet.wire_bytes(packet.Opcode.SEND_MIDDLE, payload) * count
        await b.wait_cycles(500)
        entered, left, cycles = await send(b, random_frames(b.rng, lengths))
        last = golden.costs(lengths)[-1]
        want = (wire - last) / p.rate  # the last beat is accepted when all before it has gone
        assert abs(entered[-1] - entered[0] - want) <= 1, f"{name}: {entered[-1] - entered[0]} cycles for {want:.2f}"
        assert 0 <= cycles - p.latency - want <= 4
        b.cover(name)


@cocotb.test()
async def test_stalls(dut):
    b, p = await Bench.start(dut), parameters()
    for idle in (0.0, 0.3, 0.8):
        for back in (0.3, 0.9):
            b.source("i").idle, b.sink("o").backpressure = idle, back
            frames = random_frames(b.rng, b.rng.integers(1, 600, 60))
            entered, left, _ = await send(b, frames)
            assert (left - entered >= p.latency).all()
            # Beats under way at any time: accepted and not left.
            most = max(np.searchsorted(entered, left, side="left") - np.arange(len(left)))
            assert most <= p.latency + p.depth, f"{most} beats under way"
            if most == p.latency + p.depth:
                b.cover("credits-exhausted")
