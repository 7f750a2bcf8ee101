"""A register bank with what its owners would have: a two-cycle memory behind each indexed register, counters of strobes."""
from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.axi4 import AXI4LiteSignature
from rtl.common.block import Block
from rtl.common.csr import CsrBank, is_constant, is_indexed
from spec.params import NodeParams
from spec.registers import Register, node_registers
from tb.common.pin_bus import connect_pins, members

EXTRA = (
    Register(name="secret", offset=0x200, access="wo", doc="", width=12),
    Register(name="go", offset=0x204, access="w1", doc="", width=8),
)


def registers(p: NodeParams) -> tuple[Register, ...]:
    """The node's map and one register of each access it lacks."""
    return node_registers(p) + EXTRA


class CsrHarness(Block):
    """Pins `bus_aw…`; `reg_<name>` of every register that occurs once; `<name>_count`: strobes seen; of indexed ones `<name>_writes`
    and `<name>_wdata`, all bits of the last write. What their memories give has all bits above `width` set: the bank must not show them."""

    def __init__(self, node: NodeParams):
        self.registers = registers(node)
        pins = members("bus", AXI4LiteSignature())
        for r in self.registers:
            if is_indexed(r):
                pins |= {f"{r.name}_writes": Out(8), f"{r.name}_wdata": Out(32)}
            elif is_constant(r):
                continue
            elif r.access == "ro":
                pins[f"reg_{r.name}"] = In(r.width)
            else:
                pins |= {f"reg_{r.name}": Out(r.width), f"{r.name}_count": Out(8), f"{r.name}_at_stb": Out(r.width)}
        super().__init__(pins)

    def elaborate(self, platform):
        m = Module()
        m.submodules.bank = bank = CsrBank(self.registers)
        connect_pins(m, self, "bus", bank.bus)
        for r in self.registers:
            if is_constant(r):
                continue
            inner = getattr(bank, r.name)
            if is_indexed(r):
                m.submodules[f"{r.name}_copies"] = copies = memory.Memory(shape=32, depth=r.count, init=())
                w, x = copies.write_port(), copies.read_port()
                bits, late = ceil_log2(r.count), Signal(32)
                writes, wdata = getattr(self, f"{r.name}_writes"), getattr(self, f"{r.name}_wdata")
                m.d.comb += [
                    w.addr.eq(inner.index[:bits]), w.data.eq(inner.wdata), w.en.eq(inner.write),
                    x.addr.eq(inner.index[:bits]), inner.rdata.eq(late | ((1 << 32) - (1 << r.width))),
                ]
                m.d.sync += [late.eq(x.data), writes.eq(writes + inner.write)]
                with m.If(inner.write):
                    m.d.sync += wdata.eq(inner.wdata)
            elif r.access == "ro":
                m.d.comb += inner.eq(getattr(self, f"reg_{r.name}"))
            else:
                count, at, stb = getattr(self, f"{r.name}_count"), getattr(self, f"{r.name}_at_stb"), getattr(bank, f"{r.name}_stb")
                m.d.comb += getattr(self, f"reg_{r.name}").eq(inner)
                m.d.sync += count.eq(count + stb)
                with m.If(stb):
                    m.d.sync += at.eq(inner)
        return m
