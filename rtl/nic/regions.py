"""Memory regions: the table, and the check that every access to memory passes.

Members
    `mr_base`, `mr_size`, `mr_key`, `mr_access`  In(IndexedRegisterSignature): the table, written by software at any time
    `local`, `remote`  In(CheckSignature): two independent checks

A key names region `key & (mrs - 1)`. No region is valid after a reset until its size is written; until then `mr_size` reads 0. The other
fields keep their contents over a reset. An access of `length` bytes at
`addr` is right when the region's size is not 0, its key equals `key`, all of ``[addr, addr + length)`` lies in ``[base, base + size)`` and below ``2^addr_width``, and the region grants every right
in `need`. An access of 0 bytes is always right: it touches nothing (as the InfiniBand specification has it for RDMA of length 0).

Latency: `ok` is valid 2 cycles after `key`, `addr`, `length`, `need` are set, and as long as they stay. Interval 1.

Assumptions
    A1. Software changes a region only when no message under it is in flight: a message is checked once, at its request or its first
        packet (tb/nic/test_transport.py: test_protection).
"""
from __future__ import annotations

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.csr import IndexedRegisterSignature
from spec.params import MemParams, NicParams

FIELDS = (("base", 32), ("size", 32), ("key", 32), ("access", 3))


class CheckSignature(wiring.Signature):
    """Seen from the one who asks: `key`, `addr`, `length`, `need` (Access bits) go out, `ok` comes back 2 cycles later."""

    def __init__(self) -> None:
        super().__init__({"key": Out(32), "addr": Out(64), "length": Out(32), "need": Out(3), "ok": In(1)})

    def __eq__(self, other):
        return isinstance(other, CheckSignature)

    def __repr__(self):
        return "CheckSignature()"


class Regions(Block):
    def __init__(self, nic: NicParams, mem: MemParams):
        self.nic, self.mem = nic, mem
        super().__init__({
            **{f"mr_{name}": In(IndexedRegisterSignature()) for name, _ in FIELDS},
            "local": In(CheckSignature()), "remote": In(CheckSignature()),
        })

    def elaborate(self, platform):
        m = Module()
        index_bits = exact_log2(self.nic.mrs)
        written = Signal(self.nic.mrs)  # memories keep their contents over a reset: no region is valid before its size is written
        with m.If(self.mr_size.write):
            m.d.sync += written.bit_select(self.mr_size.index[:index_bits], 1).eq(1)
        found = {"local": {}, "remote": {}}
        for name, width in FIELDS:
            port = getattr(self, f"mr_{name}")
            table = Memory(shape=unsigned(width), depth=self.nic.mrs, init=[])
            m.submodules[name] = table
            write = table.write_port()
            m.d.comb += [write.addr.eq(port.index), write.data.eq(port.wdata), write.en.eq(port.write)]
            read = table.read_port(transparent_for=(write,))
            m.d.comb += [read.addr.eq(port.index), port.rdata.eq(read.data)]
            if name == "size":
                known = Signal()  # what is not valid reads 0
                m.d.sync += known.eq(written.bit_select(port.index[:index_bits], 1) | port.write)
                with m.If(~known):
                    m.d.comb += port.rdata.eq(0)
            for who, fields in found.items():
                read = table.read_port(transparent_for=(write,))
                m.d.comb += read.addr.eq(getattr(self, who).key[:index_bits])
                fields[name] = read.data

        for who, region in found.items():
            check = getattr(self, who)
            valid = Signal(name=f"{who}_valid")
            m.d.sync += valid.eq(written.bit_select(check.key[:index_bits], 1))
            offset, end, below = Signal(65, name=f"{who}_offset"), Signal(66, name=f"{who}_end"), Signal(name=f"{who}_below")
            m.d.comb += [
                offset.eq(check.addr - region["base"]),  # bit 64: addr below base
                end.eq(offset[:64] + check.length),
                below.eq(check.addr + check.length <= 1 << self.mem.addr_width),
            ]
            m.d.sync += check.ok.eq(
                (check.length == 0)
                | (valid & (region["size"] != 0) & (region["key"] == check.key) & ~offset[64] & (end <= region["size"]) & below
                   & ((region["access"] & check.need) == check.need))
            )
        return m
