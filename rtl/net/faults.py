"""Fault injection on a packet stream: seeded loss, duplication, reordering and corruption of frames.

Members
    `i` In, `o` Out   streams of packet beats (`packet_layout()`)
    `p_drop`, `p_dup`, `p_reorder`, `p_corrupt` In(16)   probabilities per frame, out of 65536
    `seed` In(32)     taken while all probabilities are zero
    `dropped`, `duplicated`, `reordered`, `corrupted` Out(32)   frames so treated since reset

Rules
    1. All probabilities zero: `o` is `i`, in the same cycle. Otherwise store and forward: a frame leaves after it is whole. The
       change between the two waits for a frame's end and, back to passing, until what is stored has left.
    2. Generator: 64-bit state. step(x): x ^= x << 13; x ^= x >> 7; x ^= x << 17 (modulo 2^64). While passing the state is
       (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) mod 2^64. Each frame: a = step(state), b = step(a), state = b. So faults are
       a function of the seed and the order of frames, never of time.
    3. Fates of a frame: drop if a[15:0] < p_drop; duplicate if a[31:16] < p_dup; reorder if a[47:32] < p_reorder; corrupt if
       a[63:48] < p_corrupt. A dropped frame has no other fate. A frame longer than 128 beats is dropped.
    4. Corrupt: of a frame of n valid bytes, bit b[18:16] of byte (b[15:0] * n) >> 16 is flipped (in both copies of a duplicate).
    5. Duplicate: the frame is sent twice, one copy right after the other.
    6. Reorder: the frame is held; the next frame that is not dropped overtakes it (and is not held itself), and it follows at once. When no
       frame has been offered for 256 cycles, or the probabilities have become zero, it goes out by itself and `reordered` does not count it.

Latency: 0 when passing; otherwise 1 cycle from the last beat accepted to the first offered, when nothing is queued.
Interval: 1 beat a cycle (a duplicate takes its own time at the output).

Assumptions
    A1. Frames start with `first` and end with `last`; only last beats have invalid bytes (checked by the bench's frame monitor).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import packet_layout
from rtl.net.keep import keep_count

FRAMES, BEATS, HOLD = 4, 128, 256
SEED_FACTOR, SEED_OFFSET = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


def _step(m: Module, x, name: str) -> Signal:
    a, b, c = (Signal(64, name=f"{name}_{k}") for k in range(3))
    m.d.comb += [a.eq(x ^ (x << 13)), b.eq(a ^ (a >> 7)), c.eq(b ^ (b << 17))]
    return c


class Faults(Block):
    def __init__(self):
        beats = stream.Signature(packet_layout())
        super().__init__({
            "i": In(beats), "o": Out(beats),
            "p_drop": In(16), "p_dup": In(16), "p_reorder": In(16), "p_corrupt": In(16), "seed": In(32),
            "dropped": Out(32), "duplicated": Out(32), "reordered": Out(32), "corrupted": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        i, o = self.i, self.o
        m.submodules.frames = frames = memory.Memory(shape=packet_layout(), depth=FRAMES * BEATS, init=())
        enter, leave = frames.write_port(), frames.read_port(domain="comb")
        job = data.StructLayout({"slot": 2, "dup": 1, "corrupt": 1, "byte": 13, "bit": 3})
        m.submodules.jobs = jobs = SyncFIFO(width=job.size, depth=FRAMES)

        enabled, storing, inside = Signal(), Signal(), Signal()  # inside: part of a frame has been accepted
        accepted, ended = Signal(), Signal()
        busy, slot, slot_free = Signal(FRAMES), Signal(2), Signal()
        m.d.comb += [
            enabled.eq((self.p_drop | self.p_dup | self.p_reorder | self.p_corrupt) != 0),
            accepted.eq(i.valid & i.ready), ended.eq(accepted & i.payload.last),
        ]
        with m.If(accepted):
            m.d.sync += inside.eq(~i.payload.last)

        # Fates.
        state = Signal(64)
        a = _step(m, state, "draw")
        b = _step(m, a, "place")
        with m.If(~storing):
            m.d.sync += state.eq(self.seed * Const(SEED_FACTOR, 64) + SEED_OFFSET)
        with m.Elif(ended):
            m.d.sync += state.eq(b)

        # Writer: frames into free slots.
        place, oversize = Signal(range(BEATS)), Signal()
        tail = keep_count(m, i.payload.keep)
        drop, survives = Signal(), Signal()
        made = Signal(job)
        m.d.comb += [
            drop.eq((a[:16] < self.p_drop) | oversize), survives.eq(storing & ended & ~drop),
            made.slot.eq(slot), made.dup.eq(a[16:32] < self.p_dup),
            made.corrupt.eq(a[48:64] < self.p_corrupt), made.bit.eq(b[16:19]),
            made.byte.eq((b[:16] * ((place << 6) + tail)) >> 16),
            enter.addr.eq(Cat(place, slot)), enter.data.eq(i.payload), enter.en.eq(storing & accepted & ~oversize),
        ]
        with m.If(storing & accepted):
            m.d.sync += place.eq(place + 1)
            with m.If(i.payload.last):
                m.d.sync += [place.eq(0), oversize.eq(0)]
            with m.Elif(place == BEATS - 1):
                m.d.sync += oversize.eq(1)

        # A slot for the next frame: the lowest free one, chosen between frames.
        choose, chosen = Signal(), Signal(2)
        for k in reversed(range(FRAMES)):
            with m.If(~busy[k] & ~((slot == k) & slot_free & survives)):
                m.d.comb += [choose.eq(1), chosen.eq(k)]
        with m.If(survives | ~slot_free):
            m.d.sync += [slot.eq(chosen), slot_free.eq(choose)]

        # Order: straight on, or held until another overtakes.
        holding, held, age, push = Signal(), Signal(job), Signal(range(HOLD + 1)), Signal()
        waiting, follow = Signal(), Signal()  # waiting: an overtaken frame still has to be queued
        into = data.View(job, jobs.w_data)
        m.d.comb += [jobs.w_en.eq(push), into.eq(made)]
        with m.If(survives):
            with m.If(~holding & (a[32:48] < self.p_reorder)):
                m.d.sync += [holding.eq(1), held.eq(made), age.eq(0)]
            with m.Else():
                m.d.comb += push.eq(1)
                m.d.sync += [waiting.eq(holding)]
        with m.Elif(waiting | (holding & ~inside & ((age == HOLD) | ~enabled))):
            m.d.comb += [into.eq(held), push.eq(1), follow.eq(waiting)]
            m.d.sync += [holding.eq(0), waiting.eq(0)]
        with m.Elif(holding & (age != HOLD)):
            m.d.sync += age.eq(Mux(i.valid | inside, 0, age + 1))

        # Reader.
        now = data.View(job, jobs.r_data)
        at, again, sent, finished = Signal(range(BEATS)), Signal(), Signal(), Signal()
        flip = Signal(512)
        m.d.comb += [
            leave.addr.eq(Cat(at, now.slot)), sent.eq(storing & o.valid & o.ready),
            finished.eq(sent & leave.data.last & (again | ~now.dup)), jobs.r_en.eq(finished),
        ]
        with m.If(jobs.r_rdy & now.corrupt & (now.byte[6:] == at)):
            m.d.comb += flip.eq(Const(1, 512) << Cat(now.bit, now.byte[:6]))
        with m.If(sent):
            m.d.sync += at.eq(at + 1)
            with m.If(leave.data.last):
                m.d.sync += [at.eq(0), again.eq(now.dup & ~again)]
        for k in range(FRAMES):
            with m.If(survives & (slot == k)):
                m.d.sync += busy[k].eq(1)
            with m.Elif(finished & (now.slot == k)):
                m.d.sync += busy[k].eq(0)

        # Passing, storing, and between the two.
        with m.If(storing):
            m.d.comb += [
                # No new frame while an overtaken one waits for its place in the order, nor on the way back to passing.
                i.ready.eq(slot_free & ~waiting & (inside | enabled)),
                o.valid.eq(jobs.r_rdy), o.payload.eq(leave.data), o.payload.data.eq(leave.data.data ^ flip),
            ]
            with m.If(~enabled & ~inside & ~accepted & ~busy.any()):
                m.d.sync += [storing.eq(0), slot_free.eq(0)]
        with m.Else():
            m.d.comb += [i.ready.eq(o.ready), o.valid.eq(i.valid), o.payload.eq(i.payload)]
            with m.If(enabled & Mux(i.valid, ended, ~inside)):
                m.d.sync += storing.eq(1)

        for count, event in (
            (self.dropped, storing & ended & drop), (self.duplicated, survives & made.dup),
            (self.corrupted, survives & made.corrupt), (self.reordered, follow),
        ):
            with m.If(event):
                m.d.sync += count.eq(count + 1)
        return m
