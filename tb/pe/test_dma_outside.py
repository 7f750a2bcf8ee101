"""DMA engine with its AXI port on the memory model of cocotbext-axi, and the bench's own monitor of bursts."""
from __future__ import annotations

import itertools

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge

from tb.common.pin_bus import axi_ram
from tb.lib.bench import Bench
from tb.pe.axi_monitor import Address, Beat, Illegal, Monitor, check_address, check_write
from tb.pe.dma_jobs import JOBS, World, load, random_job

FILES = ("zero", "pages", "strided", "indexed", "overlap", "fill")
SIZE = 1 << 20


@cocotb.test()
async def test_outside(dut):
    b = await Bench.start(dut)
    w = World(b, far="")
    w.memory.data = b.rng.integers(0, 256, SIZE, dtype=np.uint8)
    ram, monitor = axi_ram(dut, "pin", SIZE), Monitor(dut)
    ram.write(0, w.memory.data.tobytes())

    async def watch() -> None:
        while True:
            await FallingEdge(b.pin("nclk"))
            await RisingEdge(b.pin("nclk"))
            monitor.sample()

    task = cocotb.start_soon(watch())
    channels = (ram.write_if.aw_channel, ram.write_if.w_channel, ram.write_if.b_channel, ram.read_if.ar_channel, ram.read_if.r_channel)
    for paused in (False, True):
        for k, channel in enumerate(channels):
            channel.set_pause_generator(itertools.cycle([bool(x) for x in b.rng.integers(0, 2, 50 + k)]) if paused else itertools.repeat(False))
        for name in FILES:
            await w.run(load(JOBS / f"{name}.toml", b.rng).jobs)
        await w.run([random_job(b.rng, (0x1000, 0x3000), (0x400, 0x3000), index_at=0x8000 + 256 * i) for i in range(30)])
        got = np.frombuffer(ram.read(0, SIZE), np.uint8)
        assert (got == w.memory.data).all(), f"{int((got != w.memory.data).sum())} bytes differ"
        monitor.done()
        b.cover("paused" if paused else "free")
    task.cancel()
    assert len(monitor.reads) > 500 and len(monitor.writes) > 500
    b.cover("unaligned-burst", sum(x[0].strb & 1 == 0 for _, x in monitor.writes))
    b.cover("page-end", sum((a.addr + 64 * (a.len + 1)) % 4096 == 0 for a in monitor.reads))


@cocotb.test()
async def test_monitor(dut):
    """Each rule refuses its own violation and passes the legal case beside it."""
    await Bench.start(dut)
    full = (1 << 64) - 1
    check_address(Address(3841 // 64 * 64, 3, 6, 1, 0))  # 3841 and 255 bytes: ends at 4095
    check_address(Address(3841, 3, 6, 1, 0))
    check_address(Address(0, 63, 6, 1, 0))
    check_write(Address(0, 1, 6, 1, 0), [Beat(1 << 63, 0), Beat(1, 1)])
    check_write(Address(0, 0, 6, 1, 0), [Beat(0xF0, 1)])
    for wrong in (
        lambda: check_address(Address(4032, 1, 6, 1, 0)), lambda: check_address(Address(64, 63, 6, 1, 0)), lambda: check_address(Address(0, 0, 5, 1, 0)),
        lambda: check_address(Address(0, 0, 6, 0, 0)), lambda: check_address(Address(0, 0, 6, 1, 3)),
        lambda: check_write(Address(0, 1, 6, 1, 0), [Beat(full, 1), Beat(full, 1)]), lambda: check_write(Address(0, 1, 6, 1, 0), [Beat(full, 0), Beat(full, 0)]),
        lambda: check_write(Address(0, 0, 6, 1, 0), [Beat(0, 1)]), lambda: check_write(Address(0, 0, 6, 1, 0), [Beat(0b101, 1)]),
        lambda: check_write(Address(0, 1, 6, 1, 0), [Beat(1, 0), Beat(1, 1)]), lambda: check_write(Address(0, 1, 6, 1, 0), [Beat(full, 0), Beat(2, 1)]),
    ):
        try:
            wrong()
        except Illegal:
            continue
        raise AssertionError("the monitor let an illegal burst pass")
