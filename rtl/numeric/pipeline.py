"""Small helpers of the arithmetic pipelines.

A rigid pipeline moves as a whole: every stage advances in a cycle in which the last stage is empty or is being taken.
Each stage's registers are enabled only when a valid operand enters them, so an idle or stalled pipeline does not toggle.
`source.ready` follows `sink.ready` combinationally; `sink.valid` depends on registers only.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value


def wire(m: Module, value: Value, name: str) -> Signal:
    """A named signal of the value's own shape: a value used more than once is built once."""
    s = Signal(Value.cast(value).shape(), name=name)
    m.d.comb += s.eq(value)
    return s


def rigid(m: Module, source, sink, stages: int) -> list[Value]:
    """Valid bits and handshakes of a pipeline of `stages` registers from `source` to `sink`; enables of each stage's registers."""
    valid = Signal(stages)
    move = wire(m, ~valid[-1] | sink.ready, "move")
    m.d.comb += [source.ready.eq(move), sink.valid.eq(valid[-1])]
    with m.If(move):
        m.d.sync += valid.eq(Cat(source.valid, valid[:-1]))
    return [move & source.valid] + [move & valid[k] for k in range(stages - 1)]
