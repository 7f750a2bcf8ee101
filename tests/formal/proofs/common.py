"""Streams and arbiters that everything stands on."""
from __future__ import annotations

from functools import partial

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.arbiter import round_robin
from rtl.common.block import Block
from rtl.common.gate import StallGate
from rtl.common.skid import SkidBuffer
from tests.formal.design import Harness
from tests.formal.proof import Proof
from tests.formal.queue_model import QueueModel, streams_kept, streams_proved

WIDTH = 4


class StreamFifo(Block):
    """`amaranth.lib.fifo.SyncFIFO`, which the blocks use, between streams."""

    def __init__(self, depth: int):
        self.depth = depth
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = f = SyncFIFO(width=WIDTH, depth=self.depth)
        m.d.comb += [
            f.w_data.eq(self.i.payload), f.w_en.eq(self.i.valid), self.i.ready.eq(f.w_rdy),
            self.o.payload.eq(f.r_data), self.o.valid.eq(f.r_rdy), f.r_en.eq(self.o.ready),
        ]
        return m


class Arbiter(Block):
    """`round_robin` with its turn moved by `advance`, or by every grant."""

    def __init__(self, n: int, held: bool):
        self.n, self.held = n, held
        super().__init__({"request": In(n), "advance": In(1), "grant": Out(n)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.grant.eq(round_robin(m, self.request, self.n, advance=self.advance if self.held else None))
        return m


def _passes(h: Harness, block, depth: int) -> QueueModel:
    """Words leave in the order in which they came, none lost, none twice."""
    i, o = block.i, block.o
    q = QueueModel(h, "model", WIDTH, depth, push=i.valid & i.ready, word=i.payload, pop=o.valid & o.ready)
    h.prove("only_what_came", ~o.valid | ((q.level > 0) & (q.words[0] == o.payload)))
    h.prove("no_more_than_fits", ~q.push | q.pop | (q.level < depth))
    streams_proved(h, "o", o)
    h.cover("full", q.level == depth)
    h.cover("empty_again", (q.level == 0) & h.past(q.pop))
    h.cover("both_at_once", q.push & q.pop)
    return q


def skid() -> Harness:
    block = SkidBuffer(WIDTH)
    h = Harness(skid=block)
    streams_kept(h, "i", block.i)
    q = _passes(h, block, 2)
    full, held = h.inside("skid.full"), h.inside("skid.held")
    h.prove("nothing_is_kept_back", block.o.valid == (q.level > 0))
    h.prove("state", (block.o.valid | ~full) & (full == (q.level == 2)) & (~full | (q.words[1] == held)))
    h.prove("takes_while_it_has_room", block.i.ready == (q.level < 2))
    h.prove("full_rate", ~h.past(block.i.valid & block.o.ready) | block.i.ready)
    return h


def fifo(depth: int) -> Harness:
    block = StreamFifo(depth)
    h = Harness(fifo=block)
    q = _passes(h, block, depth)
    f = h.fifo("fifo.fifo", "entry")
    h.prove("state", f.sound & q.holds([(e.valid, e.word) for e in f.entries]))
    h.prove("nothing_is_kept_back", block.o.valid == (q.level > 0))
    h.prove("takes_while_it_has_room", block.i.ready == (q.level < depth))
    h.cover("wrapped", (f.consume != 0) & (f.produce == 0) & (q.level == 1))
    return h


def gate() -> Harness:
    block = StallGate(WIDTH, 1)
    h = Harness(gate=block)
    streams_kept(h, "i", block.i)
    i, o = block.i, block.o
    h.assume("A1", (block.p == h.past(block.p)) | ~h.past(o.valid & ~o.ready))
    h.prove("both_or_none", (i.valid & i.ready) == (o.valid & o.ready))
    h.prove("unchanged", i.payload == o.payload)
    streams_proved(h, "o", o)
    h.cover("held_back", i.valid & ~o.valid & (block.p != 0))
    h.cover("passes", o.valid & o.ready & (block.p != 0))
    return h


def turns(h: Harness, name: str, request: Value, grant: Value, moves: Value, above: Value) -> None:
    """One grant, to one that asks; one that goes on asking is passed over at most n - 1 times. `above`: who comes before the wrap."""
    n = len(request)
    h.prove(f"{name}at_most_one", (grant & (grant - 1)) == 0)
    h.prove(f"{name}asked", (grant & ~request) == 0)
    h.prove(f"{name}never_idle", grant.any() == request.any())
    below = h.wire(f"{name}below", ~above)
    h.prove(f"{name}turn_state", (below & (below + 1)) == 0)
    count = sum(above[k] for k in range(n))
    for p in range(n):
        passed = Signal(range(n + 1), name=f"{name}passed_{p}")
        with h.m.If(moves):
            h.m.d.sync += passed.eq(Mux(request[p] & ~grant[p], passed + 1, 0))
        with h.m.Elif(~request[p]):
            h.m.d.sync += passed.eq(0)
        ahead = h.wire(f"{name}ahead_{p}", Mux(above[p], p + count - n, p + count)[: n.bit_length() + 1])
        h.prove(f"{name}passed_over_{p}", passed + ahead <= n - 1)
        h.cover(f"{name}waits_longest_{p}", (passed == n - 1) & grant[p])


def arbiter(n: int, held: bool) -> Harness:
    block = Arbiter(n, held)
    h = Harness(arbiter=block)
    if held:
        h.assume("advance_with_a_grant", ~block.advance | block.grant.any())
    turns(h, "", block.request, block.grant, block.advance if held else block.grant.any(), h.inside("arbiter.rr_above"))
    return h


STREAM = "never loses, repeats, reorders or changes a word; valid stays until ready and the payload holds"
PROOFS = [
    Proof(name="skid", block="rtl.common.skid", says=f"{STREAM}; full rate", build=skid, induction=1, cover=12, long=False),
    *(Proof(name=f"fifo-{d}", block="SyncFIFO", says=STREAM, build=partial(fifo, d), induction=1, cover=3 * d + 4, long=d not in (3, 4))
      for d in (2, 3, 4, 5, 8)),
    Proof(name="gate", block="rtl.common.gate", says="passes each word unchanged, once; valid stays until ready", build=gate, induction=2, cover=12,
          long=False),
    *(Proof(name=f"arbiter-{n}{'-held' if held else ''}", block="rtl.common.arbiter", long=n != 4, induction=1, cover=n + 2, build=partial(arbiter, n, held),
            says=f"one grant, to one that asks, whenever one asks; passed over at most {n - 1} times")
      for n, held in ((2, False), (3, False), (4, False), (4, True), (7, False), (16, True))),
]
