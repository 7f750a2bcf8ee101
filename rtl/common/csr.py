"""Control registers: an AXI4-Lite subordinate generated from a table of `spec.registers.Register`.

The same table makes this hardware, the Python driver and the documentation.

Parameters: `registers` (tuple of `Register`), `addr_width` of the bus (default 20).

Members
    `bus`       AXI4-Lite, seen from the subordinate.
    per register that occurs once (`stride` 0), by its access:
        rw      `<name>` Out(width): its value; `<name>_stb` Out(1): high for one cycle, the first in which `<name>` shows
                a value written from the bus (also when it is equal to the old one).
        wo      as rw, but reads 0.
        w1      `<name>` Out(width), `<name>_stb` Out(1): a command; the data is valid while `_stb` is high (one cycle).
        ro      `<name>` In(width): sampled once per read. A `ro` register with a nonzero `reset` is that constant: no member.
    per indexed register (`stride` not 0, whatever its `count`), any access:
        `<name>` Out(IndexedRegisterSignature()): the block that owns the register keeps the copies in its own memory.

Rules
    1. Writes take effect whole words at a time: all four strobes, or SLVERR and nothing is written. Bits above `width` are ignored.
    2. Addresses: not a multiple of 4: SLVERR; in no register (or a copy that does not exist): DECERR; write to `ro`: SLVERR.
       An access answered with an error has no effect; a failed read returns data 0.
    3. One access at a time, in the order of arrival; a read and a write that wait together are served in turn.
    4. An accepted read after the B of a write sees that write (indexed registers: the owner stores at `write`).

Latency: write, from the later of AW and W accepted to B valid and `_stb` or `write` 4 cycles; read, AR accepted to R valid 6 cycles.
Interval: one access per 4 (write) or 6 (read) cycles.

Assumptions
    A1. `rdata` of the selected port shows copy `index` from 2 cycles after `index` was set until the read ends
        (tb/common/test_csr.py: test_indexed reads through a memory of two cycles).
"""
from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.axi4 import AXI4LiteSignature, Resp
from rtl.common.block import Block
from spec.registers import Register

READ_LATENCY = 2


class IndexedRegisterSignature(wiring.Signature):
    """Port of one indexed register, seen from the CSR bank; the owning block has it flipped (``In``).

    Members
        `index` Out(16)  copy the bus speaks of; always below the register's `count`; shared by reads and writes. Holds its value
                         from the access' decode until the next access.
        `wdata` Out(32)  data of the write; bits above the register's `width` are 0.
        `write` Out(1)   one-cycle pulse: copy `index` takes `wdata` now. Always accepted: there is no back-pressure.
        `rdata` In(32)   value of copy `index`, valid `read_latency` = 2 cycles after `index` changed (index set in cycle t: rdata is
                         used in cycle t + 2: one synchronous memory read and, if wanted, one register). Not looked at for wo and w1.
    """

    read_latency = READ_LATENCY

    def __init__(self) -> None:
        super().__init__({"index": Out(16), "wdata": Out(32), "write": Out(1), "rdata": In(32)})

    def __eq__(self, other):
        return isinstance(other, IndexedRegisterSignature)

    def __repr__(self):
        return "IndexedRegisterSignature()"


def is_indexed(r: Register) -> bool:
    """Whether the register has an indexed port (it may still have one copy only)."""
    return r.stride != 0


def is_constant(r: Register) -> bool:
    return r.access == "ro" and r.stride == 0 and r.reset != 0


def members_of(registers: tuple[Register, ...]) -> dict[str, wiring.Member]:
    """The bank's members beside `bus`, by the table above: an owner can build its own ports from a part of the table."""
    members: dict[str, wiring.Member] = {}
    for r in registers:
        if is_indexed(r):
            members[r.name] = Out(IndexedRegisterSignature())
        elif is_constant(r):
            continue
        elif r.access == "ro":
            members[r.name] = In(r.width)
        else:
            members[r.name] = Out(r.width, init=r.reset)
            members[r.name + "_stb"] = Out(1)
    return members


def _check(registers: tuple[Register, ...], addr_width: int) -> None:
    taken: dict[int, str] = {}
    for r in registers:
        if r.access not in ("rw", "ro", "wo", "w1"):
            raise ValueError(f"register {r.name}: access {r.access!r}, expected rw, ro, wo or w1")
        if r.offset % 4 or r.stride % 4 or (r.stride and r.stride & (r.stride - 1)):
            raise ValueError(f"register {r.name}: offset and stride must be multiples of 4, the stride a power of two")
        if not 1 <= r.width <= 32 or r.reset >> r.width or (r.count > 1 and not r.stride) or not 1 <= r.count <= 1 << 16:
            raise ValueError(f"register {r.name}: width, reset or count out of range")
        for i in range(r.count):
            at = r.offset + i * r.stride
            if at in taken:
                raise ValueError(f"register {r.name}, copy {i}: address {at:#x} is taken by {taken[at]}")
            if at >> addr_width:
                raise ValueError(f"register {r.name}, copy {i}: address {at:#x} does not fit in {addr_width} bits")
            taken[at] = r.name


class CsrBank(Block):
    """Register bank of the table `registers`.

    Raises:
        ValueError: two registers share an address, or an offset, stride, width, reset or access is out of range.
    """

    def __init__(self, registers: tuple[Register, ...], addr_width: int = 20):
        _check(registers, addr_width)
        self.registers = registers
        self.addr_width = addr_width
        super().__init__({"bus": In(AXI4LiteSignature(addr_width=addr_width)), **members_of(registers)})

    def elaborate(self, platform):
        m = Module()
        bus, regs = self.bus, self.registers
        n = len(regs)

        aw_full, w_full, ar_full = Signal(), Signal(), Signal()
        aw_addr, ar_addr = Signal(self.addr_width), Signal(self.addr_width)
        w_data, w_strb = Signal(32), Signal(4)
        for channel, full in ((bus.aw, aw_full), (bus.w, w_full), (bus.ar, ar_full)):
            m.d.comb += channel.ready.eq(~full)
            with m.If(channel.valid & channel.ready):
                m.d.sync += full.eq(1)
        with m.If(bus.aw.valid & bus.aw.ready):
            m.d.sync += aw_addr.eq(bus.aw.payload.addr)
        with m.If(bus.w.valid & bus.w.ready):
            m.d.sync += [w_data.eq(bus.w.payload.data), w_strb.eq(bus.w.payload.strb)]
        with m.If(bus.ar.valid & bus.ar.ready):
            m.d.sync += ar_addr.eq(bus.ar.payload.addr)

        # Decode of the address being served: one hot register and the copy's number.
        writing, was_write = Signal(), Signal()
        addr = Signal(self.addr_width)
        hit, index = Signal(n), Signal(16)
        sel, sel_index = Signal(n), Signal(16)
        m.d.comb += addr.eq(ar_addr)
        with m.If(writing):
            m.d.comb += addr.eq(aw_addr)
        for k, r in enumerate(regs):
            if not is_indexed(r):
                m.d.comb += hit[k].eq(addr[2:] == r.offset >> 2)
                continue
            shift = exact_log2(r.stride)
            place = Signal(self.addr_width, name=f"place_{r.name}")
            m.d.comb += place.eq(addr - r.offset)
            with m.If((addr >= r.offset) & (place[2:shift] == 0) & (place[shift:] < r.count)):
                m.d.comb += [hit[k].eq(1), index.eq(place[shift:])]

        ro_mask = sum(1 << k for k, r in enumerate(regs) if r.access == "ro")
        read_data, wait = Signal(32), Signal(range(READ_LATENCY + 1))
        for k, r in enumerate(regs):
            port = getattr(self, r.name, None)
            if is_indexed(r):
                m.d.comb += [port.index.eq(sel_index), port.wdata.eq(w_data[: r.width])]
                m.d.sync += port.write.eq(0)
                value = port.rdata[: r.width]
            elif is_constant(r):
                value = r.reset
            elif r.access == "ro":
                value = port
            else:
                m.d.sync += getattr(self, r.name + "_stb").eq(0)
                value = port
            if r.access in ("rw", "ro"):
                with m.If(sel[k]):
                    m.d.comb += read_data.eq(value)

        with m.FSM():
            with m.State("IDLE"):
                can_write = Signal()
                m.d.comb += can_write.eq(aw_full & w_full)
                with m.If(can_write & ~(ar_full & was_write)):
                    m.d.sync += [writing.eq(1), was_write.eq(1)]
                    m.next = "DECODE"
                with m.Elif(ar_full):
                    m.d.sync += [writing.eq(0), was_write.eq(0)]
                    m.next = "DECODE"
            with m.State("DECODE"):
                m.d.sync += [sel.eq(hit), wait.eq(READ_LATENCY)]
                with m.If(hit.any()):
                    m.d.sync += sel_index.eq(index)
                bad = Signal(2)
                with m.If(addr[:2].any() | (writing & ~w_strb.all())):
                    m.d.comb += bad.eq(Resp.SLVERR)
                with m.Elif(~hit.any()):
                    m.d.comb += bad.eq(Resp.DECERR)
                with m.Elif(writing & (hit & ro_mask).any()):
                    m.d.comb += bad.eq(Resp.SLVERR)
                m.d.sync += [bus.b.payload.resp.eq(bad), bus.r.payload.resp.eq(bad)]
                with m.If(bad != 0):
                    m.d.sync += sel.eq(0)
                m.next = "READ"
                with m.If(writing):
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.sync += [bus.b.valid.eq(1), aw_full.eq(0), w_full.eq(0)]
                for k, r in enumerate(regs):
                    if r.access == "ro":
                        continue
                    with m.If(sel[k]):
                        if is_indexed(r):
                            m.d.sync += getattr(self, r.name).write.eq(1)
                        else:
                            m.d.sync += [getattr(self, r.name).eq(w_data), getattr(self, r.name + "_stb").eq(1)]
                m.next = "WRITE_END"
            with m.State("WRITE_END"):
                with m.If(bus.b.ready & bus.b.valid):
                    m.d.sync += bus.b.valid.eq(0)
                    m.next = "IDLE"
            with m.State("READ"):
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.d.sync += [bus.r.payload.data.eq(read_data), bus.r.valid.eq(1), ar_full.eq(0)]
                    m.next = "READ_END"
            with m.State("READ_END"):
                with m.If(bus.r.ready & bus.r.valid):
                    m.d.sync += bus.r.valid.eq(0)
                    m.next = "IDLE"
        return m
