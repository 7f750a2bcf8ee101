"""Bench of the message engine with its smallest and largest queues (the rules are in test_me.py)."""
from __future__ import annotations

import cocotb

from spec.wqe import Op
from tb.nic.me_driver import MeDriver
from tb.nic.me_programs import TIMINGS, S, random_program


@cocotb.test()
async def test_sizes_random(dut):
    """Random lists, longer than the window, under each timing."""
    d = await MeDriver.start(dut)
    for t in TIMINGS:
        await d.again()
        d.timing(**t)
        d.configure(size=512)
        words: dict[int, int] = {}
        for q in range(d.me.queues):
            d.post(q, random_program(d, q, 300, words))
        await d.run(60_000)
        d.check()


@cocotb.test()
async def test_sizes_errors(dut):
    """Random lists with WQEs that fail."""
    d = await MeDriver.start(dut)
    for t in TIMINGS[:3]:
        await d.again()
        d.timing(**t)
        d.configure(size=512)
        for q in range(d.me.queues):
            d.post(q, random_program(d, q, 60, {}, errors=0.02))
        await d.run(60_000)
        d.check()


@cocotb.test()
async def test_sizes_window(dut):
    """With no answers as many WQEs start as the window and the stand-in (32 answers, 4 in the request queue) hold."""
    d = await MeDriver.start(dut)
    d.configure(size=512)
    d.pin("nic_hold", 1)
    n = d.me.window
    d.post(0, [{"opcode": Op.SEND, "flags": S}] * (n + 50))
    await d.begin()
    await d.doorbell(0)
    await d.b.wait_cycles(600)
    assert d.pin("nic_pending") == min(n, 32)
    d.pin("nic_hold", 0)
    await d.retired()
    await d.end()
    d.check()
