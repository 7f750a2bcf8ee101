"""Payload of packets to send: AXI reads from any byte address, turned to byte 0, whole packets in a buffer.

Members
    `command`  In stream {addr, length}: one packet's payload, 1 to `mtu` bytes
    `axi`      Out({ar, r}): INCR bursts of whole beats, never across 4 KiB
    `flit`     Out stream {data, count, last}: payload, byte 0 first; `count` valid bytes (0: all 64) of the last flit
    `result`   Out stream {error, addr}: one per command, when its last flit is in the buffer; `addr` the failing beat
    `spare`    Out(1)  there is room for two commands

Rules
    1. A read starts only when the buffer has room for the whole packet: `r` is never held back.
    2. Every command yields ceil(length / 64) flits, whatever memory answers.

Timing: command to `ar` 3 cycles; one flit a cycle; a packet takes ceil(length / 64) cycles from an address that is a multiple of 64 and one
more from any other. Buffer: four packets of `mtu`, so reads of the next packets run while one leaves.

Assumptions
    A1. Memory answers every burst, in order (all have ID 0): rtl.mem.sram does; the bench's memory model is checked by tb.lib.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block
from rtl.nic.requester import read_command
from spec.params import MemParams, NicParams

BYTES = 64
COMMANDS = 4  # packets whose reads wait
JOBS = 8  # packets whose reads may be in flight


def flit_layout() -> data.StructLayout:
    return data.StructLayout({"data": 8 * BYTES, "count": 6, "last": 1})


def result_layout() -> data.StructLayout:
    return data.StructLayout({"error": 1, "addr": 64})


class ReadPath(Block):
    def __init__(self, nic: NicParams, mem: MemParams):
        self.nic, self.mem = nic, mem
        axi = AXI4Signature.of(mem)
        super().__init__({
            "command": In(stream.Signature(read_command())),
            "axi": Out(wiring.Signature({name: axi.members[name] for name in ("ar", "r")})),
            "flit": Out(stream.Signature(flit_layout())),
            "result": Out(stream.Signature(result_layout())),
            "spare": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        room = 4 * self.nic.mtu // BYTES
        job_layout = data.StructLayout({"addr": 64, "length": 13})
        m.submodules.jobs = jobs = SyncFIFO(width=job_layout.size, depth=JOBS)
        m.submodules.buffer = buffer = SyncFIFOBuffered(width=flit_layout().size, depth=room)
        m.submodules.results = results = SyncFIFO(width=result_layout().size, depth=JOBS)
        ar, r = self.axi.ar, self.axi.r

        # Commands: reserve room, then one or two bursts.
        command = Signal(job_layout)
        m.submodules.commands = commands = SyncFIFO(width=job_layout.size, depth=COMMANDS)
        m.d.comb += [
            commands.w_data.eq(self.command.payload), commands.w_en.eq(self.command.valid), self.command.ready.eq(commands.w_rdy),
            command.eq(commands.r_data), self.spare.eq(commands.w_level <= COMMANDS - 2),
        ]
        flits = Signal(range(self.nic.mtu // BYTES + 1))
        free = Signal(range(room + 1), init=room)
        open_jobs = Signal(range(JOBS + 1))
        addr, beats_left = Signal(self.mem.addr_width), Signal(8)
        beats, page = Signal(8), Signal(8)
        can_start, issue = Signal(), Signal()
        m.d.comb += [
            flits.eq((command.length + (BYTES - 1)) >> 6),
            can_start.eq(commands.r_rdy & (free >= flits) & (open_jobs != JOBS) & (beats_left == 0)),
            commands.r_en.eq(can_start), jobs.w_en.eq(can_start), jobs.w_data.eq(command),
            page.eq(BYTES - addr[6:12]), beats.eq(Mux(beats_left > page, page, beats_left)),
            issue.eq((beats_left != 0) & (~ar.valid | ar.ready)),
        ]
        with m.If(ar.ready):
            m.d.sync += ar.valid.eq(0)
        with m.If(can_start):
            m.d.sync += [
                addr.eq(Cat(Const(0, 6), command.addr[6:self.mem.addr_width])),
                beats_left.eq((command.addr[:6] + command.length + (BYTES - 1)) >> 6),
            ]
        with m.Elif(issue):
            m.d.sync += [
                ar.valid.eq(1), ar.payload.addr.eq(addr), ar.payload.len.eq(beats - 1), ar.payload.size.eq(6),
                ar.payload.burst.eq(Burst.INCR), beats_left.eq(beats_left - beats), addr.eq(addr + (beats << 6)),
            ]
        popped = Signal()
        m.d.comb += popped.eq(self.flit.valid & self.flit.ready)
        m.d.sync += free.eq(free - Mux(can_start, flits, 0) + popped)
        m.d.sync += open_jobs.eq(open_jobs + can_start - (self.result.valid & self.result.ready))

        # Beats: rotate right by the byte offset; a flit is the end of the beat before and the start of this one.
        job = Signal(job_layout)
        off, total_flits, total_beats = Signal(6), Signal(8), Signal(8)
        beat, sent = Signal(8), Signal(8)
        carry, turned, merged = Signal(8 * BYTES), Signal(8 * BYTES), Signal(8 * BYTES)
        flush, take, give, end = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            job.eq(jobs.r_data), off.eq(job.addr[:6]),
            total_flits.eq((job.length + (BYTES - 1)) >> 6), total_beats.eq((off + job.length + (BYTES - 1)) >> 6),
            flush.eq(jobs.r_rdy & (beat == total_beats)),
            r.ready.eq(jobs.r_rdy & ~flush), take.eq(r.valid & r.ready),
            turned.eq(Cat(r.payload.data, r.payload.data) >> (off << 3)),
            give.eq(Mux(off == 0, take, (take & (beat != 0)) | flush)),
            end.eq(give & (sent + 1 == total_flits)),
        ]
        old = Signal(8 * BYTES)  # bytes of the beat before: all below 64 - off
        m.d.comb += [
            old.eq(Mux(off == 0, 0, ((1 << 8 * BYTES) - 1) >> (off << 3))),
            merged.eq((carry & old) | (turned & ~old)),
        ]
        with m.If(take):
            m.d.sync += [carry.eq(turned), beat.eq(beat + 1)]
        with m.If(give):
            m.d.sync += sent.eq(sent + 1)
        with m.If(end):
            m.d.sync += [beat.eq(0), sent.eq(0)]

        entry = Signal(flit_layout())
        m.d.comb += [
            entry.data.eq(merged), entry.count.eq(job.length), entry.last.eq(sent + 1 == total_flits),
            buffer.w_data.eq(entry), buffer.w_en.eq(give), jobs.r_en.eq(end),
            self.flit.payload.eq(buffer.r_data), self.flit.valid.eq(buffer.r_rdy), buffer.r_en.eq(self.flit.ready),
        ]

        bad, bad_addr, worse = Signal(), Signal(64), Signal()
        found = Signal(result_layout())
        m.d.comb += [
            worse.eq(take & r.payload.resp[1]),
            found.error.eq(bad | worse), found.addr.eq(Mux(bad, bad_addr, Cat(Const(0, 6), job.addr[6:] + beat))),
            results.w_data.eq(found), results.w_en.eq(end),
            self.result.payload.eq(results.r_data), self.result.valid.eq(results.r_rdy), results.r_en.eq(self.result.ready),
        ]
        with m.If(worse & ~bad):
            m.d.sync += [bad.eq(1), bad_addr.eq(found.addr)]
        with m.If(end):
            m.d.sync += bad.eq(0)
        return m
