"""A node: on-chip memory, near-memory compute, message engine, NIC, control registers.

    host ──AXI4──┐                 ┌── link_tx
    ctl ─AXI4-Lite─ registers      NIC
                 │     │           │  └── link_rx
      memory ◄─AXI4─ message engine ─┤
                 ├──── near-memory compute (two ports)

Contract
    * One address space: byte address = offset in the memory. Every unit reaches it by its own AXI4 port: `s0` NIC, `s1`/`s2`
      near-memory compute, `s3` message engine, `s4` host.
    * Control by AXI4-Lite, map in `spec/registers.py`.
    * `event` counts CQEs written with Flag.EVENT; `event_pulse` is high for one cycle with each.
    * With `gates`, a random stall (`stall` of 65536 cycles) can be put on every internal stream and AXI channel and on both
      link directions; without it that port has no effect and no hardware exists.

Parameters: `p` (NodeParams), `gates`.
Members: `ctl` AXI4-Lite subordinate, `host` AXI4 subordinate, `link_tx` Out and `link_rx` In packet streams, `event` Out(32),
    `event_pulse` Out(1), `stall` In(16).
Latency: that of the parts; nothing is added.

Assumptions
    A1. Register `node` is set before a queue pair leaves RESET, and does not change after (hccl/verbs.py does so).
"""
from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4LiteSignature, AXI4Signature
from rtl.common.block import Block, shared
from rtl.common.csr import CsrBank
from rtl.common.gate import StallGate
from rtl.common.layouts import packet_layout
from rtl.mem.nmc import NearMemoryCompute
from rtl.mem.sram import Sram
from rtl.nic.message_engine import READ, WRITTEN, MessageEngine
from rtl.nic.nic import Nic
from rtl.nic.transport import COUNTERS, REGISTERS
from spec.params import NodeParams
from spec.registers import node_registers

PORTS = ("nic", "nmc_a", "nmc_b", "me", "host")  # memory ports, in the order s0, s1, …


class Node(Block):
    def __init__(self, p: NodeParams, gates: bool = False):
        self.p, self.gates = p, gates
        super().__init__({
            "ctl": In(AXI4LiteSignature()), "host": In(AXI4Signature.of(p.mem)),
            "link_tx": Out(stream.Signature(packet_layout())), "link_rx": In(stream.Signature(packet_layout())),
            "event": Out(32), "event_pulse": Out(1), "stall": In(16),
        })

    def elaborate(self, platform):
        m = Module()
        p = self.p
        self._gate_count = 0
        m.submodules.registers = csr = CsrBank(node_registers(p))
        sram, nmc = Sram(p.mem, len(PORTS)), NearMemoryCompute(p.nmc, p.mem)
        me, nic = MessageEngine(p.me, p.mem), Nic(p.nic, p.mem)
        m.submodules.sram, m.submodules.nmc, m.submodules.me, m.submodules.nic = shared(sram), shared(nmc), shared(me), shared(nic)

        connect(m, flipped(self.ctl), csr.bus)
        for name in dict.fromkeys(WRITTEN + READ):
            connect(m, getattr(csr, name), getattr(me, name))
        for name in REGISTERS:
            connect(m, getattr(csr, name), getattr(nic, name))
        for name in ("cq_base", "cq_size", "cq_head", "wait_timeout"):
            m.d.comb += getattr(me, name).eq(getattr(csr, name))
        for name in ("cq_tail", "event"):
            m.d.comb += getattr(csr, name).eq(getattr(me, name))
        for name in (*COUNTERS, "nic_rx_dropped"):
            m.d.comb += getattr(csr, name).eq(getattr(nic, name))
        busy = Signal(32)
        m.d.sync += busy.eq(busy + nmc.busy)
        m.d.comb += [
            csr.nmc_busy.eq(busy), nic.node.eq(csr.node),
            self.event.eq(me.event), self.event_pulse.eq(me.event_pulse),
        ]

        self._stream(m, me.nmc_request, nmc.request)
        self._stream(m, nmc.done, me.nmc_done)
        self._stream(m, me.nic_request, nic.request)
        self._stream(m, nic.done, me.nic_done)
        self._stream(m, nic.link_tx, flipped(self.link_tx))
        self._stream(m, flipped(self.link_rx), nic.link_rx)
        managers = (nic.axi, nmc.axi_a, nmc.axi_b, me.axi, flipped(self.host))
        for k, manager in enumerate(managers):
            memory = getattr(sram, f"s{k}")
            for channel in ("aw", "w", "ar"):
                self._stream(m, getattr(manager, channel), getattr(memory, channel))
            for channel in ("b", "r"):
                self._stream(m, getattr(memory, channel), getattr(manager, channel))
        return m

    def _stream(self, m: Module, producer, consumer) -> None:
        """Connect, through a stall gate where the node has them."""
        if not self.gates:
            connect(m, producer, consumer)
            return
        self._gate_count += 1
        gate = StallGate(producer.payload.shape(), self._gate_count)
        m.submodules[f"gate{self._gate_count}"] = shared(gate)
        m.d.comb += gate.p.eq(self.stall)
        connect(m, producer, gate.i)
        connect(m, gate.o, consumer)
