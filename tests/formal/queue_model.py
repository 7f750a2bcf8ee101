"""The naive queue that streams are proved against."""
from __future__ import annotations

from typing import Any

from amaranth.hdl import Mux, Signal, Value

from tests.formal.design import Harness


class QueueModel:
    """Words in order, the oldest in `words[0]`; `push` and `pop` may come together."""

    def __init__(self, h: Harness, name: str, shape: Any, depth: int, *, push: Value, word: Value, pop: Value):
        self.level = Signal(range(depth + 1), name=f"{name}_level")
        self.words = [Signal(shape, name=f"{name}_word{k}") for k in range(depth)]
        self.push, self.pop = push, pop
        left = h.wire(f"{name}_left", (self.level - pop)[: len(self.level)])
        h.m.d.sync += self.level.eq(left + push)
        for k, w in enumerate(self.words):
            moved = Mux(pop, self.words[k + 1], w) if k + 1 < depth else w
            h.m.d.sync += w.eq(Mux(push & (left == k), word, moved))
        self.depth = depth

    def holds(self, entries: list[tuple[Value, Value]]) -> Value:
        """The words are `entries` (valid, word), those that are valid come first."""
        ok: Any = self.level <= self.depth
        for k in range(self.depth):
            valid, word = entries[k] if k < len(entries) else (0, 0)
            ok = ok & ((self.level > k) == valid) & ((self.level <= k) | (self.words[k] == word))
        return ok


def streams_kept(h: Harness, name: str, port: Any) -> None:
    """Assume the stream rules of an input port: valid stays until ready, the payload holds."""
    waited = h.past(port.valid & ~port.ready)
    h.assume(f"{name}.rules", ~waited | (port.valid & (Value.cast(port.payload) == h.past(port.payload))))


def streams_proved(h: Harness, name: str, port: Any) -> None:
    """Prove them of an output port."""
    waited = h.past(port.valid & ~port.ready)
    h.prove(f"{name}.rules", ~waited | (port.valid & (Value.cast(port.payload) == h.past(port.payload))))
