"""Control registers through cocotbext-axi's AXI4-Lite master, against the table itself."""
from __future__ import annotations

import cocotb
import numpy as np
from cocotb.triggers import Combine

from rtl.common.csr import is_constant, is_indexed
from tb.common.csr_harness import registers
from tb.common.pin_bus import Axil
from tb.lib.bench import Bench

OKAY, SLVERR, DECERR = 0, 2, 3


@cocotb.test()
async def test_single(dut):
    b = await Bench.start(dut)
    bus = Axil(b, "bus")
    for r in registers(b.config.node):
        if is_indexed(r):
            continue
        b.cover("constant" if is_constant(r) else r.access)
        mask = (1 << r.width) - 1
        if is_constant(r):
            assert await bus.read(r.offset) == (r.reset, OKAY), r.name
        elif r.access == "ro":
            for value in (0, mask, int(b.rng.integers(0, mask, endpoint=True))):
                b.pin(f"reg_{r.name}").value = value
                assert await bus.read(r.offset) == (value, OKAY), r.name
        else:
            assert r.access == "w1" or int(b.pin(f"reg_{r.name}").value) == r.reset, r.name
            for k, value in enumerate((0xFFFF_FFFF, 0, int(b.rng.integers(1 << 32)))):
                assert await bus.write(r.offset, value) == OKAY
                got, resp = await bus.read(r.offset)
                assert (got, resp) == (value & mask if r.access == "rw" else 0, OKAY), r.name
                assert int(b.pin(f"{r.name}_count").value) == k + 1, f"{r.name}: one strobe a write"
                assert int(b.pin(f"{r.name}_at_stb").value) == value & mask, r.name
    await b.reset()
    for r in registers(b.config.node):
        if not is_indexed(r) and r.access == "rw":
            assert await bus.read(r.offset) == (r.reset, OKAY), f"{r.name} after reset"


@cocotb.test()
async def test_indexed(dut):
    b = await Bench.start(dut)
    bus = Axil(b, "bus")
    regs = [r for r in registers(b.config.node) if is_indexed(r)]
    copies = [(r, i) for r in regs for i in range(r.count) if r.access == "rw"]
    values = {}
    writes = dict.fromkeys((r.name for r in regs), 0)
    order = b.rng.permutation(len(copies))
    for k in order:
        r, i = copies[k]
        values[r.name, i] = int(b.rng.integers(1 << 32))
        assert await bus.write(r.offset + i * r.stride, values[r.name, i]) == OKAY
        writes[r.name] += 1
        await b.wait_cycles(2)
        given = int(b.pin(f"{r.name}_wdata").value)
        assert given == values[r.name, i] & (1 << r.width) - 1, f"{r.name} is given {given:#x}, bits above its {r.width} too"
        b.cover("first-copy" if i == 0 else "last-copy" if i == r.count - 1 else "copy")
        r2, i2 = copies[order[int(b.rng.integers(len(order)))]]
        if (r2.name, i2) in values:
            assert await bus.read(r2.offset + i2 * r2.stride) == (values[r2.name, i2] & (1 << r2.width) - 1, OKAY), (r2.name, i2)
    for r, i in copies:
        assert await bus.read(r.offset + i * r.stride) == (values[r.name, i] & (1 << r.width) - 1, OKAY), (r.name, i)
    for r in regs:
        if r.access == "w1":
            assert await bus.write(r.offset + (r.count - 1) * r.stride, 1) == OKAY
            assert await bus.read(r.offset + (r.count - 1) * r.stride) == (0, OKAY)
            writes[r.name] += 1
        assert int(b.pin(f"{r.name}_writes").value) == writes[r.name] & 0xFF, f"{r.name}: one pulse a write"


@cocotb.test()
async def test_errors(dut):
    b = await Bench.start(dut)
    bus = Axil(b, "bus")
    regs = {r.name: r for r in registers(b.config.node)}
    base = regs["cq_base"]
    assert await bus.write(base.offset, 0x1234_5678) == OKAY
    mapped = {r.offset + i * r.stride for r in regs.values() for i in range(r.count)}
    holes = [0x0024, 0x01FC, 0x1018, 0x10000, 0xFFFFC, regs["wq_base"].offset + regs["wq_base"].count * 0x20]
    holes += [int(a) * 4 for a in b.rng.integers(0, 1 << 18, 30)]
    b.cover("copy-beyond")
    for addr in holes:
        if addr not in mapped:
            assert await bus.write(addr, 0xFFFF_FFFF) == DECERR, hex(addr)
            assert await bus.read(addr) == (0, DECERR), hex(addr)
            b.cover("unmapped")
    for name in ("id", "event", "wq_head"):
        assert await bus.write(regs[name].offset, 0xFFFF_FFFF) == SLVERR
        b.cover("read-only")
    assert await bus.read(base.offset) == (0x1234_5678, OKAY)
    assert await bus.read(regs["id"].offset) == (regs["id"].reset, OKAY)
    for r in regs.values():
        if is_indexed(r):
            assert int(b.pin(f"{r.name}_writes").value) == 0
        elif not is_constant(r) and r.access != "ro":
            assert int(b.pin(f"{r.name}_count").value) == (r.name == "cq_base")


@cocotb.test()
async def test_pins(dut):
    b = await Bench.start(dut)
    base = 0x0010
    assert await _raw_write(b, base, 0x1234_5678, 15) == OKAY
    for strb in range(15):
        ok = await _raw_write(b, base, 0xFFFF_FFFF, strb)
        assert ok == SLVERR, f"strobes {strb:#x}"
        b.cover("strobes")
    for low in (1, 2, 3):
        assert await _raw_write(b, base + low, 0xFFFF_FFFF, 15) == SLVERR
        assert await _raw_read(b, base + low) == (0, SLVERR)
        b.cover("unaligned")
    assert await _raw_read(b, base) == (0x1234_5678, OKAY)
    assert int(b.pin("cq_base_count").value) == 1


async def _cycles_until(b: Bench, name: str) -> int:
    for n in range(100):
        if int(b.pin(name).value):
            return n
        await b.wait_cycles(1)
    raise AssertionError(f"{name} stays low")


async def _raw_write(b: Bench, addr: int, data: int, strb: int) -> int:
    """One write straight on the pins: W three cycles after AW."""
    b.pin("bus_awaddr").value, b.pin("bus_wdata").value, b.pin("bus_wstrb").value = addr, data, strb
    await _cycles_until(b, "bus_awready")
    b.pin("bus_awvalid").value = 1
    await b.wait_cycles(1)
    b.pin("bus_awvalid").value = 0
    await b.wait_cycles(2)
    await _cycles_until(b, "bus_wready")
    b.pin("bus_wvalid").value = 1
    await b.wait_cycles(1)
    b.pin("bus_wvalid").value = 0
    b.pin("bus_bready").value = 0
    await _cycles_until(b, "bus_bvalid")
    await b.wait_cycles(3)
    assert int(b.pin("bus_bvalid").value), "B waits"
    resp = int(b.pin("bus_bresp").value)
    b.pin("bus_bready").value = 1
    await b.wait_cycles(3)
    b.pin("bus_bready").value = 0
    return resp


async def _raw_read(b: Bench, addr: int) -> tuple[int, int]:
    b.pin("bus_araddr").value = addr
    await _cycles_until(b, "bus_arready")
    b.pin("bus_arvalid").value = 1
    b.pin("bus_rready").value = 0
    await b.wait_cycles(1)
    b.pin("bus_arvalid").value = 0
    seen = await _cycles_until(b, "bus_rvalid")
    assert seen == 7, f"AR on the pins to R valid: {seen} cycles; the block takes 6, the pins' register 1"
    got = int(b.pin("bus_rdata").value), int(b.pin("bus_rresp").value)
    b.pin("bus_rready").value = 1
    await b.wait_cycles(3)
    b.pin("bus_rready").value = 0
    return got


@cocotb.test()
async def test_concurrent(dut):
    b = await Bench.start(dut)
    bus = Axil(b, "bus")
    base, tail = 0x0010, 0x0018
    b.pin("reg_cq_tail").value = 77
    done: list[str] = []

    async def writer() -> None:
        for k in range(30):
            assert await bus.write(base, k) == OKAY
            done.append("w")

    async def reader() -> None:
        for _ in range(30):
            assert await bus.read(tail) == (77, OKAY)
            done.append("r")

    await Combine(cocotb.start_soon(writer()), cocotb.start_soon(reader()))
    text = "".join(done)
    assert "wwww" not in text[:40] and "rrrr" not in text[:40], text
    assert int(b.pin("reg_cq_base").value) == 29
    assert np.count_nonzero([c == "w" for c in text]) == 30


@cocotb.test()
async def test_in_turn(dut):
    """Both channels always with an access: reads and writes alternate, at the intervals of one after the other."""
    b = await Bench.start(dut)
    b.pin("bus_awaddr").value = b.pin("bus_araddr").value = 0x0010
    b.pin("bus_wdata").value, b.pin("bus_wstrb").value = 7, 15
    await b.wait_cycles(1)
    for name in ("awvalid", "wvalid", "arvalid", "bready", "rready"):
        b.pin(f"bus_{name}").value = 1
    served = ""
    for _ in range(400):
        await b.wait_cycles(1)
        served += "w" * int(b.pin("bus_bvalid").value) + "r" * int(b.pin("bus_rvalid").value)
    assert "ww" not in served and "rr" not in served, served
    assert len(served) >= 400 // 6, f"{len(served)} accesses in 400 cycles"
    b.cover("both-wait")
