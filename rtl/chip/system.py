"""A system: `nodes` nodes on one output-queued switch, a full-duplex link each.

Contract
    * Node i is port i of the switch and has MAC and IPv4 address i (spec/packet.py) once register `node` holds i.
    * One-way latency between two nodes: two links, the switch and the framing of the blocks named.
    * Faults act on every node's way to the switch, each node with its own sequence from `seed` (rtl/chip/station.py).

Parameters: `p` (SystemParams; the switch has `nodes` ports), `faults`, `gates`.
Members: per node i `ctl<i>`, `event<i>`; for all `stall`, `p_drop`, `p_dup`, `p_reorder`, `p_corrupt` In(16), `seed` In(32).
"""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.chip.station import FAULTS, Station
from rtl.common.axi4 import AXI4LiteSignature
from rtl.common.block import Block, shared
from rtl.net.switch import Switch
from spec.params import SystemParams

SEED_STEP = 0x9E3779B1  # station i draws its faults from seed + i * SEED_STEP


class System(Block):
    def __init__(self, p: SystemParams, faults: bool = False, gates: bool = False):
        self.p, self.faults, self.gates = p, faults, gates
        super().__init__({
            **{f"ctl{i}": In(AXI4LiteSignature()) for i in range(p.nodes)},
            **{f"event{i}": Out(32) for i in range(p.nodes)},
            "stall": In(16), "seed": In(32), **{f: In(16) for f in FAULTS},
        })

    def elaborate(self, platform):
        m = Module()
        n = self.p.nodes
        switch = Switch(self.p.switch.replace(ports=n))
        m.submodules.switch = shared(switch)
        for i in range(n):
            station = Station(self.p.replace(nodes=1), self.faults, self.gates)
            m.submodules[f"station{i}"] = shared(station)
            m.d.comb += [getattr(self, f"event{i}").eq(station.event), station.stall.eq(self.stall)]
            m.d.comb += station.seed.eq(self.seed + i * SEED_STEP)
            m.d.comb += [getattr(station, f).eq(getattr(self, f)) for f in FAULTS]
            connect(m, flipped(getattr(self, f"ctl{i}")), station.ctl)
            connect(m, station.up, getattr(switch, f"i{i}"))
            connect(m, getattr(switch, f"o{i}"), station.down)
        return m
