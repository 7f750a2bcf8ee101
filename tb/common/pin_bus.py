"""AXI4 and AXI4-Lite ports on plain pins, for cocotbext-axi beside a clock that runs in HDL.

A VPI value-change callback on the clock runs after the flip-flops of that edge have changed, so a Python master on the block's
own clock reads values of the wrong side of the edge, and misses pulses of one cycle. Here Python works on the inverted clock `nclk`: it
reads in mid-cycle what the next edge will see, and what it drives reaches the block after that edge (one register), so a
transfer is the same to both sides.
"""
from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockSignal, Module
from amaranth.lib.wiring import In, Member, Out

FROM_MASTER = ("aw", "w", "ar")


def members(prefix: str, signature: Any) -> dict[str, Member]:
    """Pins of a subordinate port with `signature` (the manager's), named as cocotbext-axi expects, and `nclk`."""
    out: dict[str, Member] = {"nclk": Out(1)}
    for c, channel in signature.members.items():
        there, back = (In, Out) if c in FROM_MASTER else (Out, In)
        for name, field in channel.signature.members["payload"].shape:
            out[f"{prefix}_{c}{name}"] = there(field.shape)
        out |= {f"{prefix}_{c}valid": there(1), f"{prefix}_{c}ready": back(1)}
    return out


def manager_members(prefix: str, signature: Any) -> dict[str, Member]:
    """Pins of a manager port with `signature`, for a memory model in Python, and `nclk`."""
    return {n: x if n == "nclk" else x.flip() for n, x in members(prefix, signature).items()}


def connect_pins(m: Module, top: Any, prefix: str, port: Any, *, manager: bool = False) -> None:
    """Connect `top`'s pins to the subordinate port `port`, or to a manager port."""
    m.d.comb += top.nclk.eq(~ClockSignal())
    for c in port.signature.members:
        channel = getattr(port, c)
        valid, ready = getattr(top, f"{prefix}_{c}valid"), getattr(top, f"{prefix}_{c}ready")
        pins = {name: getattr(top, f"{prefix}_{c}{name}") for name, _ in channel.payload.shape()}
        if (c in FROM_MASTER) != manager:  # from the pins to the port
            m.d.sync += [channel.valid.eq(valid), *(channel.payload[n].eq(p) for n, p in pins.items())]
            m.d.comb += ready.eq(channel.ready)
        else:
            m.d.comb += [valid.eq(channel.valid), *(p.eq(channel.payload[n]) for n, p in pins.items())]
            m.d.sync += channel.ready.eq(ready)


def axi_ram(dut: Any, prefix: str, size: int) -> Any:
    """A memory of `size` bytes behind the manager pins `prefix`."""
    from cocotbext.axi import AxiBus, AxiRam

    return _quiet(AxiRam(AxiBus.from_prefix(dut, prefix), dut.nclk, dut.rst, size=size))


def axi_master(dut: Any, prefix: str) -> Any:
    from cocotbext.axi import AxiBus, AxiMaster

    return _quiet(AxiMaster(AxiBus.from_prefix(dut, prefix), dut.nclk, dut.rst))


def axil_master(dut: Any, prefix: str) -> Any:
    from cocotbext.axi import AxiLiteBus, AxiLiteMaster

    return _quiet(AxiLiteMaster(AxiLiteBus.from_prefix(dut, prefix), dut.nclk, dut.rst))


def _quiet(master: Any) -> Any:
    for side in (master.write_if, master.read_if):
        side.log.setLevel("WARNING")
    return master


class Axil:
    """Word accesses to the AXI4-Lite port on pins `prefix` of a bench, with their responses. One not answered within `patience` cycles fails."""

    def __init__(self, bench: Any, prefix: str, patience: int = 1000):
        self.b, self.prefix, self.patience = bench, prefix, patience
        self.master = axil_master(bench.dut, prefix)

    async def _answer(self, what: str, access: Any) -> Any:
        from cocotb.triggers import SimTimeoutError, with_timeout

        from tb.lib.bench import CYCLE, BenchError

        try:
            return await with_timeout(access, self.patience * CYCLE, "ns")
        except SimTimeoutError:
            raise BenchError(f"{self.b.block}: {what} on {self.prefix} not answered within {self.patience} cycles") from None

    async def write(self, addr: int, value: int) -> int:
        """The response."""
        return int((await self._answer(f"write of {addr:#x}", self.master.write(addr, value.to_bytes(4, "little")))).resp)

    async def read(self, addr: int) -> tuple[int, int]:
        """Data and response."""
        got = await self._answer(f"read of {addr:#x}", self.master.read(addr, 4))
        return int.from_bytes(got.data, "little"), int(got.resp)
