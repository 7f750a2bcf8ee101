"""Goldens of the network against their definitions, worked by hand or by another route."""
from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from golden.net import faults, link, switch
from spec import packet


@pytest.mark.parametrize("payload", [0, 1, 64, 256, 4096])
@pytest.mark.parametrize("opcode", [packet.Opcode.ACK, packet.Opcode.SEND_MIDDLE, packet.Opcode.WRITE_ONLY_IMM])
def test_costs_add_up_to_wire_bytes(opcode: int, payload: int) -> None:
    assert link.costs([packet.frame_bytes(opcode, payload)]).sum() == packet.wire_bytes(opcode, payload)


def test_costs_of_short_frames() -> None:
    assert list(link.costs([1])) == list(link.costs([60])) == [84]
    assert list(link.costs([61, 65])) == [85, 64, 25]


@pytest.mark.parametrize("rate", [1, 7, 13, 64])
def test_accepts_against_exact_line_time(rate: int) -> None:
    """The same law in fractions of a cycle: a beat is taken in the cycle in which the line becomes free."""
    rng = np.random.default_rng(rate)
    cost = link.costs(rng.integers(1, 400, 60))
    offers = np.cumsum(rng.integers(0, 12, len(cost)))
    free, last = Fraction(0), -1
    for t, c, offer in zip(link.accepts(cost, rate, offers), cost, offers, strict=True):
        assert t == max(last + 1, offer, int(free))
        free, last = max(free, Fraction(int(t))) + Fraction(int(c), rate), int(t)


def test_rate_is_exact_over_long_traffic() -> None:
    frames = [packet.frame_bytes(packet.Opcode.SEND_MIDDLE, 4096)] * 1000
    cost = link.costs(frames)
    assert abs(link.accepts(cost, 64)[-1] - (cost.sum() - cost[-1]) / 64) <= 1
    assert (link.departures(cost, 64, 100) - link.accepts(cost, 64) == 100).all()


def test_generator_never_starts_at_zero() -> None:
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    assert -0xD1B54A32D192ED03 * inverse % (1 << 64) >= 1 << 32, "the one seed that gives state 0 has more than 32 bits"
    x = np.uint64(faults.seeded(1))
    for _ in range(100):
        y = x ^ (x << np.uint64(13))
        y ^= y >> np.uint64(7)
        y ^= y << np.uint64(17)
        assert faults.step(int(x)) == int(y)
        x = y


@pytest.mark.parametrize("p", [100, 6554, 32768, 65535])
def test_fault_rates(p: int) -> None:
    frames = [k.to_bytes(4, "big") for k in range(20_000)]
    n, q = len(frames), p / 65536
    slack = 5 * (n * q * (1 - q)) ** 0.5 + 2
    assert abs(faults.inject(frames, 1, p_drop=p).dropped - n * q) < slack
    assert abs(faults.inject(frames, 2, p_dup=p).duplicated - n * q) < slack
    assert abs(faults.inject(frames, 3, p_corrupt=p).corrupted - n * q) < slack


def test_each_fault_alone() -> None:
    frames = [bytes([k]) * (k % 7 + 1) for k in range(256)]
    drop = faults.inject(frames, 9, p_drop=20000)
    assert drop.frames == [f for f in frames if f in drop.frames] and len(drop.frames) == 256 - drop.dropped
    dup = faults.inject(frames, 9, p_dup=20000)
    assert Counter(Counter(dup.frames).values()) == {1: 256 - dup.duplicated, 2: dup.duplicated}
    late = faults.inject(frames, 9, p_reorder=20000)
    assert sorted(late.frames) == sorted(frames)
    at = [late.frames.index(f) for f in frames]
    assert all(abs(a - k) <= 1 for k, a in enumerate(at))
    assert sum(a == k + 1 for k, a in enumerate(at)) == late.reordered > 10
    bad = faults.inject(frames, 9, p_corrupt=20000)
    flips = [bin(int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).count("1") for a, b in zip(frames, bad.frames, strict=True)]
    assert set(flips) == {0, 1} and sum(flips) == bad.corrupted


def test_switch_routes() -> None:
    def frame(mac: int, tag: int) -> bytes:
        return mac.to_bytes(6, "big") + bytes([tag])

    inputs = [[frame(packet.MAC_BASE + 1, 0), frame(packet.MAC_BASE + 2, 1), frame(packet.MAC_BASE - 1, 2)],
              [frame(packet.MAC_BASE + 1, 3), frame(packet.MAC_BASE + 0x10000, 4)]]
    flows, dropped = switch.route(inputs)
    assert dropped == 3  # node 2 of a two-port switch too
    assert flows == [[[], []], [[inputs[0][0]], [inputs[1][0]]]]
