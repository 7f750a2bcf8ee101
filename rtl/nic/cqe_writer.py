"""Completion queue of the message engine: gathers what a retired WQE left, makes its CQE, keeps the ring.

Every started WQE leaves an INFO (at its start) and, from the unit that ran it, a result; both are kept by (queue, slot) until the
queue retires it here. A CQE is made when the WQE was signaled or its status is not SUCCESS.

Rules
    1. CQE n (counted from 0 since reset) lies at ``cq_base + (n mod cq_size) * 32``; its phase is 1 when n / cq_size is even.
    2. It is written only while ``n - cq_head < cq_size``: a full ring stalls, nothing is overwritten.
    3. `cq_tail` counts the CQEs whose write was answered: at n + 1 or more CQE n is in memory. With Flag.EVENT, `event` is
       incremented and `event_pulse` high for one cycle in the cycle `cq_tail` first counts the CQE.
    4. byte_len and imm come from the unit and are 0 for LOCAL, SET and WAIT and on an error; `info` is 0 unless the status is an
       error. A WAIT that was given up (WR_FLUSH_ERR) has info 0.
    5. A failed write of a CQE counts as written and sets `cq_error` until reset: there is nowhere else to report it.

Parameters: `me`, `mem`. Members: start / end_* what is to be kept; retire (with `retire_ready`: it is taken); cq_*, event*;
`write` stream {addr, data} to memory, `wrote_valid`, `wrote_error` its answers in order.
Latency: retire to write.valid 3 cycles. Interval: one retired WQE a cycle.

Assumptions
    A1. cq_size is a power of two, cq_base a multiple of 32, both constant while anything is posted (software).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.common.uninitialised import UninitialisedMemory
from rtl.nic.wqe_decode import INFO, Unit
from spec.params import MemParams, MeParams
from spec.wqe import CQE, CQE_BYTES, Status

RESULT = data.StructLayout({"status": 8, "byte_len": 32, "imm": 32, "info": 64})
DEPTH = 4  # CQEs made and not yet on their way to memory
IN_FLIGHT = 16  # CQE writes not yet answered


def place_layout(me: MeParams) -> data.StructLayout:
    """(slot, queue) of a started WQE: the tag's low bits."""
    return data.StructLayout({"slot": exact_log2(me.window), "queue": exact_log2(me.queues)})


def kept_layout(me: MeParams, what) -> data.StructLayout:
    return data.StructLayout({"valid": 1, "place": place_layout(me), "what": what})


def kept_signature(me: MeParams, width: int) -> wiring.Signature:
    """As `kept_layout`, each part a port of its own: where one part is chosen by another, one vector would look like a loop to a
    simulator that schedules whole vectors (Verilator's UNOPTFLAT)."""
    parts = {"valid": 1, "slot": exact_log2(me.window), "queue": exact_log2(me.queues), "what": width}
    return wiring.Signature({name: Out(bits) for name, bits in parts.items()})


class CqeWriter(Block):
    def __init__(self, me: MeParams, mem: MemParams):
        self.me, self.mem = me, mem
        super().__init__({
            "start": In(kept_layout(me, INFO)),
            "end_nic": In(kept_layout(me, RESULT)), "end_nmc": In(kept_layout(me, RESULT)),
            "end_set": In(kept_layout(me, 8)), "end_wait": In(kept_signature(me, 8)),
            "retire": In(kept_signature(me, 32)), "retire_ready": Out(1),
            "cq_base": In(32), "cq_size": In(32), "cq_head": In(32), "cq_tail": Out(32), "cq_error": Out(1),
            "event": Out(32), "event_pulse": Out(1),
            "write": Out(stream.Signature(data.StructLayout({"addr": mem.addr_width, "data": CQE.bits}))),
            "wrote_valid": In(1), "wrote_error": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        depth = self.me.queues * self.me.window

        def kept(name, port, place):
            m.submodules[name] = memory = UninitialisedMemory(shape=port.what.shape(), depth=depth)
            write, read = memory.write_port(), memory.read_port()
            m.d.comb += [
                write.addr.eq(place), write.data.eq(port.what), write.en.eq(port.valid),
                read.addr.eq(Cat(self.retire.slot, self.retire.queue)), read.en.eq(self.retire.valid),
            ]
            return read.data

        info, nic, nmc, set_ = (
            kept(name, port, port.place)
            for name, port in (("info", self.start), ("nic", self.end_nic), ("nmc", self.end_nmc), ("set", self.end_set))
        )
        wait = kept("wait", self.end_wait, Cat(self.end_wait.slot, self.end_wait.queue))

        # One cycle after `retire`: what was kept is on the read ports.
        valid, queue, index = Signal(), Signal(8), Signal(32)
        m.d.sync += valid.eq(self.retire.valid)
        with m.If(self.retire.valid):
            m.d.sync += [queue.eq(self.retire.queue), index.eq(self.retire.what)]
        cqe, result = Signal(layout(CQE)), Signal(RESULT)
        m.d.comb += [result.status.eq(info.status), result.info.eq(info.info)]
        for unit, value in ((Unit.SET, set_), (Unit.WAIT, wait)):
            with m.If(info.unit == unit):
                m.d.comb += result.status.eq(value)
        for unit, value in ((Unit.NIC, nic), (Unit.NMC, nmc)):
            with m.If(info.unit == unit):
                m.d.comb += result.eq(value)
        failed = Signal()
        m.d.comb += [
            failed.eq(result.status != Status.SUCCESS),
            cqe.wr_id.eq(info.wr_id), cqe.status.eq(result.status), cqe.opcode.eq(info.opcode), cqe.queue.eq(queue),
            cqe.qpn.eq(info.qpn), cqe.wqe_index.eq(index),
        ]
        with m.If(~failed):
            m.d.comb += [cqe.byte_len.eq(result.byte_len), cqe.imm.eq(result.imm)]
        with m.Elif((info.unit != Unit.WAIT) | (wait != Status.WR_FLUSH_ERR)):
            m.d.comb += cqe.info.eq(result.info)

        m.submodules.made = made = SyncFIFO(width=CQE.bits + 1, depth=DEPTH)
        m.submodules.events = events = SyncFIFO(width=1, depth=IN_FLIGHT)
        m.d.comb += [
            made.w_data.eq(Cat(cqe, info.event)),
            made.w_en.eq(valid & (info.signaled | failed)),
            self.retire_ready.eq(made.w_level + valid < DEPTH),
        ]

        # The ring. The write register holds one CQE until memory takes it.
        next_, put = Signal(32), Signal()
        ready, event_bit = Signal(layout(CQE)), Signal()
        m.d.comb += [
            Cat(ready, event_bit).eq(made.r_data),
            ready.phase.eq((next_ & self.cq_size) == 0),
            put.eq(
                made.r_rdy & events.w_rdy & (~self.write.valid | self.write.ready)
                & ((next_ - self.cq_head) < self.cq_size)
            ),
            made.r_en.eq(put), events.w_en.eq(put), events.w_data.eq(event_bit),
        ]
        with m.If(self.write.ready):
            m.d.sync += self.write.valid.eq(0)
        with m.If(put):
            offset = Cat(Const(0, exact_log2(CQE_BYTES)), next_ & (self.cq_size - 1))
            m.d.sync += [
                self.write.valid.eq(1),
                self.write.payload.data.eq(ready),
                self.write.payload.addr.eq(self.cq_base + offset),
                next_.eq(next_ + 1),
            ]
        m.d.comb += events.r_en.eq(self.wrote_valid)
        m.d.sync += self.event_pulse.eq(self.wrote_valid & events.r_data)
        with m.If(self.wrote_valid):
            m.d.sync += [self.cq_tail.eq(self.cq_tail + 1), self.event.eq(self.event + events.r_data)]
            with m.If(self.wrote_error):
                m.d.sync += self.cq_error.eq(1)
        return m
