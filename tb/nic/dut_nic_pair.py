"""Two NICs joined by a full-duplex link, each direction with random faults and one frame that can be named to be lost; or, for tests of
whole frames, NIC `a` on a wire of the bench."""
from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.block import Block, shared
from rtl.common.layouts import packet_layout
from rtl.net.faults import Faults
from rtl.net.link import Link
from rtl.nic.nic import Nic
from spec.params import LinkParams, MemParams, NicParams

FAULTS = ("p_drop", "p_dup", "p_reorder", "p_corrupt")


class Loser(Block):
    """Takes frame number `at` (from 1) off the stream; counting starts anew while `at` is 0."""

    def __init__(self) -> None:
        beats = stream.Signature(packet_layout())
        super().__init__({"i": In(beats), "o": Out(beats), "at": In(16)})

    def elaborate(self, platform):
        m = Module()
        count, lose = Signal(16, init=1), Signal()
        m.d.comb += [
            lose.eq(count == self.at), self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & ~lose), self.i.ready.eq(self.o.ready | lose),
        ]
        with m.If(self.at == 0):
            m.d.sync += count.eq(1)
        with m.Elif(self.i.valid & self.i.ready & self.i.payload.last):
            m.d.sync += count.eq(count + 1)
        return m


class NicPair(Block):
    """Ports of the NICs with prefix `a_` and `b_`; of the directions with `ab_` and `ba_`: fault probabilities, `seed`, `lose`. While `on_wire`
    is 1, frames of `a` go to `wire_tx` and come from `wire_rx`."""

    def __init__(self, nic: NicParams, mem: MemParams, link: LinkParams):
        self.nic, self.mem, self.link = nic, mem, link
        one = Nic(nic, mem)
        self.names = [n for n in one.signature.members if not n.startswith("link_")]
        members = {f"{side}_{n}": one.signature.members[n] for side in "ab" for n in self.names}
        for way in ("ab", "ba"):
            members |= {f"{way}_{p}": In(16) for p in FAULTS} | {f"{way}_seed": In(32), f"{way}_lose": In(16), f"{way}_lost": Out(32)}
            members |= {f"{way}_link__payload": Out(packet_layout()), f"{way}_link__valid": Out(1), f"{way}_link__ready": Out(1)}
        beats = stream.Signature(packet_layout())
        super().__init__(members | {"on_wire": In(1), "wire_tx": Out(beats), "wire_rx": In(beats)})

    def elaborate(self, platform):
        m = Module()
        nics = {}
        for side in "ab":
            nics[side] = nic = Nic(self.nic, self.mem)
            m.submodules[f"nic_{side}"] = shared(nic)
            for n in self.names:
                outer, inner, member = getattr(self, f"{side}_{n}"), getattr(nic, n), nic.signature.members[n]
                if member.is_port:
                    m.d.comb += inner.eq(outer) if member.flow is In else outer.eq(inner)
                else:
                    connect(m, flipped(outer), inner)
        ends = {}
        for way in ("ab", "ba"):
            link, faults, loser = Link(self.link), Faults(), Loser()
            m.submodules += [shared(link), shared(faults), shared(loser)]
            ends[way] = loser.i, faults.o
            m.d.comb += [getattr(self, f"{way}_link__{s}").eq(getattr(faults.o, s)) for s in ("payload", "valid", "ready")]
            connect(m, loser.o, link.i)
            connect(m, link.o, faults.i)
            for p in FAULTS:
                m.d.comb += getattr(faults, p).eq(getattr(self, f"{way}_{p}"))
            m.d.comb += [
                faults.seed.eq(getattr(self, f"{way}_seed")), loser.at.eq(getattr(self, f"{way}_lose")),
                getattr(self, f"{way}_lost").eq(faults.dropped),
            ]
        (to_b, from_a), (to_a, from_b) = ends["ab"], ends["ba"]
        connect(m, nics["b"].link_tx, to_a)
        connect(m, from_a, nics["b"].link_rx)
        with m.If(self.on_wire):
            connect(m, nics["a"].link_tx, flipped(self.wire_tx))
            connect(m, flipped(self.wire_rx), nics["a"].link_rx)
        with m.Else():
            connect(m, nics["a"].link_tx, to_b)
            connect(m, from_b, nics["a"].link_rx)
        return m
