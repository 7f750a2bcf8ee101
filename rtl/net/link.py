"""One direction of a link: constant latency, exact line rate, lossless back-pressure.

Parameters: `link` (LinkParams: latency, rate, depth).
Members: `i` In, `o` Out: streams of packet beats (`packet_layout()`).

Rules
    1. Nothing is lost, changed or reordered.
    2. Line time: a beat takes its valid bytes; a last beat also WIRE_OVERHEAD bytes; a frame of one beat counts at least 60 bytes before
       that. So a frame of f bytes takes max(f, 60) + WIRE_OVERHEAD bytes, as `spec.packet.wire_bytes` has it. The line moves `rate`
       bytes a cycle, without rounding: `owed` holds the bytes that accepted beats still have to go; a beat is accepted in a cycle that
       starts with owed < rate (its own transmission then starts in that cycle), and at the end of each cycle
       owed' = max(0, owed + cost of the accepted beat - rate). The line cannot save up idle time, and takes at most a beat a cycle.
    3. A beat accepted in cycle t is offered at `o` in cycle t + latency, or as soon as the beats before it are gone.
    4. Credits: at most latency + depth beats are under way or waiting at `o`; a credit comes back in the cycle a beat leaves `o`
       [idealised: the credits' own way back takes no time, so latency never costs throughput].

Latency: `latency` cycles. Interval: one beat per max(1, cost / rate) cycles.
The delay line is a ring in memory with time stamps: its cost in simulation does not grow with the latency.

Assumptions
    A1. Only last beats have invalid bytes, and valid bytes are contiguous (tb/net/test_link.py: test_lengths covers every count).
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.block import Block
from rtl.common.layouts import packet_layout
from rtl.net.keep import keep_count
from spec.packet import FLIT_BYTES, MIN_FRAME, WIRE_OVERHEAD
from spec.params import LinkParams


class Link(Block):
    def __init__(self, link: LinkParams):
        self.link = link
        super().__init__({"i": In(stream.Signature(packet_layout())), "o": Out(stream.Signature(packet_layout()))})

    def elaborate(self, platform):
        m = Module()
        latency, rate = self.link.latency, self.link.rate
        capacity = latency + self.link.depth
        bits = ceil_log2(capacity)

        m.submodules.ring = ring = memory.Memory(shape=packet_layout(), depth=1 << bits, init=())
        enter, leave = ring.write_port(), ring.read_port(domain="comb")
        put, take = Signal(bits), Signal(bits)
        used, arrived = Signal(range(capacity + 1)), Signal(range(capacity + 1))
        accepted, arriving, popped = Signal(), Signal(), Signal()

        # Line time.
        most = FLIT_BYTES + WIRE_OVERHEAD
        owed, cost = Signal(range(rate + most)), Signal(range(most + 1))
        total = Signal(range(2 * rate + most))
        i, o = self.i.payload, self.o.payload
        valid_bytes = keep_count(m, i.keep)
        m.d.comb += cost.eq(FLIT_BYTES)
        with m.If(i.last):
            m.d.comb += cost.eq(valid_bytes + WIRE_OVERHEAD)
            with m.If(i.first & (valid_bytes < MIN_FRAME)):
                m.d.comb += cost.eq(MIN_FRAME + WIRE_OVERHEAD)
        m.d.comb += [
            self.i.ready.eq((owed < rate) & (used != capacity)),
            accepted.eq(self.i.valid & self.i.ready),
            total.eq(owed + Mux(accepted, cost, 0)),
        ]
        m.d.sync += owed.eq(Mux(total > rate, total - rate, 0))

        # Ring: put (accepted) -> arrival (latency over) -> take (popped).
        m.d.comb += [
            enter.addr.eq(put), enter.data.eq(i), enter.en.eq(accepted),
            leave.addr.eq(take), o.eq(leave.data),
            self.o.valid.eq(arrived != 0), popped.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += [used.eq(used + accepted - popped), arrived.eq(arrived + arriving - popped)]
        with m.If(accepted):
            m.d.sync += put.eq(put + 1)
        with m.If(popped):
            m.d.sync += take.eq(take + 1)

        if latency == 1:
            m.d.comb += arriving.eq(accepted)
            return m
        # One beat enters a cycle at most, so its stamp meets the clock exactly once, while it is the next to arrive.
        clock = Signal(ceil_log2(latency) + 1)
        m.submodules.stamps = stamps = memory.Memory(shape=clock.shape(), depth=1 << bits, init=())
        stamp, due = stamps.write_port(), stamps.read_port(domain="comb")
        arrival, pending = Signal(bits), Signal(range(capacity + 1))
        deadline = Signal.like(clock)
        m.d.comb += [
            deadline.eq(clock + latency - 1), stamp.addr.eq(put), stamp.data.eq(deadline), stamp.en.eq(accepted),
            due.addr.eq(arrival), arriving.eq((pending != 0) & (due.data == clock)),
        ]
        m.d.sync += [clock.eq(clock + 1), pending.eq(pending + accepted - arriving)]
        with m.If(arriving):
            m.d.sync += arrival.eq(arrival + 1)
        return m
