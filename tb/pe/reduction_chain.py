"""Three reduction engines in a chain, for the bench: each hands its sums to the next one's `partial`."""
from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import Out, connect, flipped

from rtl.common.block import Block, shared
from rtl.pe.reduction import Reduction
from spec.params import PeParams

ENGINES = 3
OWN = ("fill", "drain", "sums", "bias")


class ReductionChain(Block):
    """`fill0`, `drain0`, `sums0`, `bias0`, … and `neighbour` of the last engine."""

    def __init__(self, pe: PeParams) -> None:
        self.pe = pe
        one = Reduction(pe).signature.members
        super().__init__({**{f"{name}{k}": one[name] for k in range(ENGINES) for name in OWN}, "neighbour": Out(one["neighbour"].signature)})

    def elaborate(self, platform):
        m = Module()
        before = None
        for k in range(ENGINES):
            engine = Reduction(self.pe)
            m.submodules[f"engine{k}"] = shared(engine)
            for name in OWN:
                connect(m, getattr(engine, name), flipped(getattr(self, f"{name}{k}")))
            m.d.comb += [engine.memory.ready.eq(1), engine.sfu.ready.eq(1)]
            if before is not None:
                m.d.comb += [
                    engine.partial.valid.eq(before.neighbour.valid), engine.partial.payload.values.eq(before.neighbour.payload.values),
                    before.neighbour.ready.eq(engine.partial.ready),
                ]
            before = engine
        connect(m, before.neighbour, flipped(self.neighbour))
        return m
