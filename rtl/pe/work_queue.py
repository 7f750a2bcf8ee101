"""Work-queue engine: takes job descriptors from a ring in memory, or by the express port, and feeds their programs to the command processor.

Rules
    1. While `tail` is not the number of descriptors asked for so far and `size` is not 0, the next one (spec.work_queue: JOB) is read at
       ``base + 64 * (number mod size)``. A job at `express` is taken as it is. Ring jobs run in order, express jobs in order; one job at a time.
       Ring and express jobs take turns where both wait.
    2. The programs of up to JOBS jobs behind the one that runs are read ahead, as far as FETCH instructions of each core go; those of a job with FENCE not
       before all earlier jobs have ended. Reads are INCR bursts of up to BURST beats, never across 4 KiB.
    3. A job's instructions go to `core0` and `core1` in order. It ends when each of them has had its completion. Where memory refuses an instruction,
       that one and those behind it in its core are left out (READ); the other core's are not. A program at an address that is no multiple of 64 (ALIGN), or
       beyond the address width (RANGE), is not read, nor is the other core's.
    4. Then its record (JOB_RECORD) is written, in one beat, unless its address is 0; when memory has answered, `ended` says so, and `head` goes up for a
       job of the ring. The next job starts before that. A record that is not written (bad address, refused, no descriptor) adds to `errors`.
    5. After a job with a completion in error the command processor is cleared; the next job finds its buffers and counters as they are.

Members
    `base` In(addr), `size` In(32), `tail` In(32), `head` Out(32), `errors` Out(32), `busy` Out(1)
    `express`  In stream JOB; `ended` Out stream JOB_END
    `core0`, `core1` Out stream INSTRUCTION; `completion` In stream COMPLETION, always ready; `failed`, `cp_idle` In(1), `clear` Out(1): the command processor's
    `mac`      In(1): a streamed row meets a held one
    `axi`      AXI4 manager: reads by id (DESCRIPTOR_ID, then one for each core), writes with id 0

Parameters: `mem`. Latency: `tail` to `ar` of the descriptor 1 cycle, the descriptor's beat (or `express`) to `ar` of the program 3, an instruction's beat to
`core` 1; last completion to the next job's first instruction 3, to `aw` of the record 2. Interval: an instruction a cycle and core; a descriptor for each
latency of memory.

Assumptions
    A1. Every instruction has one completion (rtl.pe.command_processor; tb.pe.work_queue_jobs counts them).
    A2. Memory answers every read, those of one id in order (AXI4; the bench's memory).
    A3. `base`, `size` do not change while jobs wait; `tail` is at most `size` ahead of `head`; the user's duty.
    A4. What a descriptor or program without FENCE holds is in memory before its doorbell; the user's duty.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.arbiter import round_robin
from rtl.common.axi4 import BOUNDARY, AXI4Signature, Burst
from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import wire
from spec.isa import COMPLETION, INSTRUCTION, CpStatus
from spec.params import MemParams
from spec.work_queue import JOB, JOB_END, JOB_RECORD, JobFlag, JobStatus

FETCH = 32  # instructions of each core that are read ahead
BURST = 8
JOBS = 2
DESCRIPTOR_ID, CORE_ID = 0, 1
LINE = exact_log2(INSTRUCTION.nbytes)


def ahead_layout() -> data.StructLayout:
    """A descriptor as it waits: with its origin, and when its doorbell rang."""
    return data.StructLayout({"job": layout(JOB), "refused": 1, "ring": 1, "doorbell": 32})


def checked_layout() -> data.StructLayout:
    """A descriptor whose programs are read: what is wrong with their addresses."""
    return data.StructLayout({"ahead": ahead_layout(), "align": 1, "range": 1})


class WorkQueue(Block):
    def __init__(self, mem: MemParams):
        self.mem = mem
        super().__init__({
            "base": In(mem.addr_width), "size": In(32), "tail": In(32), "head": Out(32), "errors": Out(32), "busy": Out(1),
            "express": In(stream.Signature(layout(JOB))), "ended": Out(stream.Signature(layout(JOB_END))),
            "core0": Out(stream.Signature(layout(INSTRUCTION))), "core1": Out(stream.Signature(layout(INSTRUCTION))),
            "completion": In(stream.Signature(layout(COMPLETION))), "failed": In(1), "cp_idle": In(1), "clear": Out(1),
            "mac": In(1),
            "axi": Out(AXI4Signature.of(mem)),
        })

    def elaborate(self, platform):
        m = Module()
        width, axi = self.mem.addr_width, self.axi
        now = Signal(32)
        m.d.sync += now.eq(now + 1)
        m.submodules.descriptors = descriptors = SyncFIFO(width=ahead_layout().size, depth=JOBS)
        m.submodules.jobs = jobs = SyncFIFO(width=checked_layout().size, depth=JOBS)
        queues = []
        for k in range(2):
            m.submodules[f"queue{k}"] = q = SyncFIFO(width=INSTRUCTION.bits + 1, depth=FETCH)
            queues.append(q)

        # Descriptors: at most one read on its way.
        fetched, reading, rung = Signal(32), Signal(), Signal(32)
        known_tail, bell, offered = Signal(32), Signal(32), Signal(32)
        m.d.sync += known_tail.eq(self.tail)
        rings = wire(m, Mux(self.tail != known_tail, now, bell), "rings")
        m.d.sync += bell.eq(rings)
        with m.If(~self.express.valid | self.express.ready):
            m.d.sync += offered.eq(now + 1)
        express_turn = Signal()  # ring and express jobs take turns where both wait
        wants = wire(m, (self.tail != fetched) & (self.size != 0) & ~reading & descriptors.w_rdy & ~(self.express.valid & express_turn), "wants")
        place = wire(m, (self.base + (Cat(Const(0, LINE), fetched & (self.size - 1))))[:width], "place")

        # Programs: what is left to ask for, and room for the answers.
        load, left, room, at = Signal(), [], [], []
        for k in range(2):
            left.append(Signal(24, name=f"left{k}"))
            room.append(Signal(range(FETCH + 1), init=FETCH, name=f"room{k}"))
            at.append(Signal(width, name=f"at{k}", reset_less=True))
        beats = []
        for k in range(2):
            to_line = wire(m, BOUNDARY // INSTRUCTION.nbytes - at[k][LINE : exact_log2(BOUNDARY)], f"to_line{k}")
            n = wire(m, Mux(left[k] < BURST, left[k], BURST)[:4], f"most{k}")
            n = wire(m, Mux(room[k] < n, room[k], n)[:4], f"fits{k}")
            beats.append(wire(m, Mux(to_line < n, to_line, n)[:4], f"beats{k}"))

        ar = axi.ar
        free = wire(m, ~ar.valid | ar.ready, "free")
        wanted = wire(m, Cat(wants, beats[0] != 0, beats[1] != 0), "wanted")
        grant = round_robin(m, wanted, 3, advance=free & wanted.any(), name="reads")
        with m.If(free):
            m.d.sync += ar.valid.eq(wanted.any())
        m.d.sync += [ar.payload.size.eq(LINE), ar.payload.burst.eq(Burst.INCR)]
        with m.If(free & grant[0]):
            m.d.sync += [ar.payload.addr.eq(place), ar.payload.len.eq(0), ar.payload.id.eq(DESCRIPTOR_ID), reading.eq(1), fetched.eq(fetched + 1), rung.eq(rings),
                         express_turn.eq(1)]
        for k in range(2):
            with m.If(free & grant[k + 1]):
                m.d.sync += [
                    ar.payload.addr.eq(at[k]), ar.payload.len.eq(beats[k] - 1), ar.payload.id.eq(CORE_ID + k),
                    left[k].eq(left[k] - beats[k]), at[k].eq(at[k] + Cat(Const(0, LINE), beats[k])),
                ]

        # Answers.
        r = axi.r
        m.d.comb += r.ready.eq(1)
        mine = [wire(m, r.valid & (r.payload.id == i), f"answer{i}") for i in range(3)]
        new = data.View(ahead_layout(), descriptors.w_data)
        with m.If(mine[DESCRIPTOR_ID]):
            m.d.sync += reading.eq(0)
            with m.If(~r.payload.resp[1]):
                m.d.comb += new.job.eq(r.payload.data)
            m.d.comb += [new.refused.eq(r.payload.resp[1]), new.ring.eq(1), new.doorbell.eq(rung), descriptors.w_en.eq(1)]
        with m.Elif(~reading & ~wants):
            m.d.comb += [new.job.eq(self.express.payload), new.doorbell.eq(offered), self.express.ready.eq(descriptors.w_rdy), descriptors.w_en.eq(self.express.valid)]
            with m.If(self.express.valid & self.express.ready):
                m.d.sync += express_turn.eq(0)
        for k, q in enumerate(queues):
            m.d.comb += [q.w_data.eq(Cat(r.payload.data, r.payload.resp[1])), q.w_en.eq(mine[CORE_ID + k])]

        # A descriptor to be loaded: when all of the one before has been asked for; with FENCE, when all before it have ended.
        ahead, checked = data.View(ahead_layout(), descriptors.r_data), data.View(checked_layout(), jobs.w_data)
        wanted_programs = [(ahead.job[f"program{k}"], ahead.job[f"count{k}"]) for k in range(2)]
        far = []
        for k, (program, count) in enumerate(wanted_programs):
            last = wire(m, program[:width] + Cat(Const(0, LINE), (count - 1)[:24]), f"last{k}")
            far.append((count != 0) & (program[width:].any() | last[width:].any()))
        m.d.comb += [
            checked.ahead.eq(ahead), checked.align.eq(Cat(p[:LINE].any() & (c != 0) for p, c in wanted_programs).any()), checked.range.eq(Cat(far).any()),
        ]
        running, all_ended = Signal(), Signal()
        fenced = wire(m, (ahead.job.flags & JobFlag.FENCE).any() & ~all_ended, "fenced")
        m.d.comb += [
            load.eq(descriptors.r_rdy & jobs.w_rdy & (left[0] == 0) & (left[1] == 0) & ~fenced), descriptors.r_en.eq(load), jobs.w_en.eq(load),
        ]
        with m.If(load & ~checked.align & ~checked.range & ~ahead.refused):
            for k, (program, count) in enumerate(wanted_programs):
                m.d.sync += [left[k].eq(count), at[k].eq(program)]

        # The job that runs.
        job, rest, stop, given = Signal(ahead_layout(), reset_less=True), [], [], []
        record = Signal(layout(JOB_RECORD))
        outstanding = Signal(25)
        fresh_checked = data.View(checked_layout(), jobs.r_data)
        fresh = fresh_checked.ahead
        for k, (q, core) in enumerate(zip(queues, (self.core0, self.core1), strict=True)):
            rest.append(Signal(24, name=f"rest{k}"))
            stop.append(Signal(name=f"stop{k}"))
            mine_now = wire(m, running & (rest[k] != 0) & q.r_rdy, f"mine{k}")
            bad = wire(m, stop[k] | q.r_data[-1], f"bad{k}")
            m.d.comb += [core.payload.eq(q.r_data[:-1]), core.valid.eq(mine_now & ~bad)]
            given.append(wire(m, core.valid & core.ready, f"given{k}"))
            m.d.comb += q.r_en.eq(given[k] | (mine_now & bad))
            with m.If(q.r_en):
                m.d.sync += rest[k].eq(rest[k] - 1)
            with m.If(mine_now & bad & ~stop[k]):
                m.d.sync += stop[k].eq(1)
            taken = Mux(free & grant[k + 1], beats[k], 0)
            m.d.sync += room[k].eq(room[k] + q.r_en - taken)
        lost = [Signal(width, name=f"lost{k}", reset_less=True) for k in range(2)]
        for k, program in enumerate((job.job.program0, job.job.program1)):
            count = (job.job.count0, job.job.count1)[k]
            with m.If(~stop[k]):
                m.d.sync += lost[k].eq(program + Cat(Const(0, LINE), (count - rest[k])[:24]))
        m.d.sync += outstanding.eq(outstanding + given[0] + given[1] - self.completion.valid)
        end = self.completion.payload
        m.d.comb += self.completion.ready.eq(1)
        with m.If(self.completion.valid):
            m.d.sync += [record.completions.eq(record.completions + 1), record.ended.eq(now)]
            with m.If((end.status != CpStatus.OK) & (record.fail_status == 0)):
                m.d.sync += [
                    record.fail_tag.eq(end.tag), record.fail_core.eq(end.core), record.fail_unit.eq(end.unit), record.fail_status.eq(end.status),
                    record.fail_info.eq(end.info),
                ]
        begun, met = Signal(), Signal()
        with m.If((self.core0.valid | self.core1.valid) & ~begun):
            m.d.sync += [begun.eq(1), record.first.eq(now)]
        with m.If(self.mac & running & ~met):
            m.d.sync += [met.eq(1), record.mac.eq(now)]

        # Records: one on its way, one waiting.
        written = data.StructLayout({"record": layout(JOB_RECORD), "place": width, "use": 1, "bad": 1, "ring": 1})
        m.submodules.records = records = SyncFIFO(width=written.size, depth=2)
        out = data.View(written, records.w_data)
        refused, align, beyond, astray = Signal(), Signal(), Signal(), Signal()
        status = Mux(align, JobStatus.ALIGN, Mux(beyond, JobStatus.RANGE, Mux(record.fail_status != 0, JobStatus.FAILED, JobStatus.OK)))
        m.d.comb += [
            out.record.eq(record), out.record.tag.eq(job.job.tag), out.place.eq(job.job.record), out.ring.eq(job.ring),
            astray.eq(job.job.record[:LINE].any() | job.job.record[width:].any()),
            out.use.eq(~job.refused & (job.job.record != 0) & ~astray), out.bad.eq(job.refused | astray),
            refused.eq(job.refused | stop[0] | stop[1]),
            out.record.address.eq(Mux(stop[0], lost[0], Mux(stop[1], lost[1], 0))),
            out.record.status.eq(Mux(refused, JobStatus.READ, status)),
        ]
        with m.FSM(init="IDLE"):
            with m.State("IDLE"):
                m.d.comb += jobs.r_en.eq(1)
                m.d.sync += [
                    job.eq(fresh), record.eq(0), begun.eq(0), met.eq(0), stop[0].eq(0), stop[1].eq(0), align.eq(fresh_checked.align),
                    beyond.eq(fresh_checked.range),
                ]
                with m.If(jobs.r_rdy):
                    m.d.sync += [record.doorbell.eq(fresh.doorbell), record.mac.eq(fresh.doorbell), record.first.eq(now), record.ended.eq(now), running.eq(1)]
                    for k in range(2):
                        m.d.sync += rest[k].eq(Mux(fresh_checked.align | fresh_checked.range | fresh.refused, 0, fresh.job[f"count{k}"]))
                    m.next = "RUN"
            with m.State("RUN"):
                with m.If((rest[0] == 0) & (rest[1] == 0) & (outstanding == 0) & records.w_rdy):
                    m.d.comb += records.w_en.eq(1)
                    m.d.sync += running.eq(0)
                    m.next = "IDLE"
                    with m.If(self.failed):
                        m.next = "CLEAR"
            with m.State("CLEAR"):
                m.d.comb += self.clear.eq(self.cp_idle)
                with m.If(self.cp_idle):
                    m.next = "CLEARED"
            with m.State("CLEARED"):
                m.next = "IDLE"

        going = data.View(written, records.r_data)
        aw_done, w_done, ends = Signal(), Signal(), self.ended.payload
        m.d.comb += [
            axi.aw.valid.eq(records.r_rdy & going.use & ~aw_done), axi.aw.payload.addr.eq(going.place), axi.aw.payload.len.eq(0),
            axi.aw.payload.size.eq(LINE), axi.aw.payload.burst.eq(Burst.INCR),
            axi.w.valid.eq(records.r_rdy & going.use & ~w_done), axi.w.payload.data.eq(going.record), axi.w.payload.strb.eq(~Const(0, INSTRUCTION.nbytes)),
            axi.w.payload.last.eq(1), axi.b.ready.eq(1), ends.tag.eq(going.record.tag), ends.status.eq(going.record.status),
        ]
        with m.If(axi.aw.valid & axi.aw.ready):
            m.d.sync += aw_done.eq(1)
        with m.If(axi.w.valid & axi.w.ready):
            m.d.sync += w_done.eq(1)
        visible = Signal()
        m.d.comb += self.ended.valid.eq(records.r_rdy & (visible | ~going.use))
        with m.If(axi.b.valid):
            m.d.sync += [visible.eq(1), self.errors.eq(self.errors + axi.b.payload.resp[1])]
        with m.If(self.ended.valid & self.ended.ready):
            m.d.comb += records.r_en.eq(1)
            m.d.sync += [visible.eq(0), aw_done.eq(0), w_done.eq(0), self.head.eq(self.head + going.ring)]
            with m.If(going.bad):
                m.d.sync += self.errors.eq(self.errors + 1)
        m.d.comb += all_ended.eq(~jobs.r_rdy & ~running & ~records.r_rdy)
        m.d.comb += self.busy.eq(
            reading | wants | descriptors.r_rdy | jobs.r_rdy | running | records.r_rdy | self.express.valid | ar.valid)
        return m


