"""Memory layout unit: transposes, slices and concatenates tiles in local memory, a row read and a row written every cycle.

Rules
    1. Jobs and their ends are `spec.layout_unit`; docs/blocks/layout_unit.md has the sums. Jobs are done in order, one at a time; `done` gives one
       word a job, when its last write was accepted by local memory: every later job, of whatever unit, sees the tile.
    2. No rows or no columns: nothing is read or written, status OK, whatever the addresses and strides (`op` and `size` must exist).
    3. Only bytes of the destination's tile are written. Only rows of memory with bytes of the source's tile are read.
    4. Bits never change.
    5. A byte is read once and written once; accesses are those of the walk (:mod:`rtl.pe.layout_walk`) and no others.

Data path: what is read is rotated so that each byte comes into its *lane*, one of 64 byte-wide memories of 256; a row to be written is one byte of
every lane, rotated into place.

    COPY       the lane of a byte is its place in the destination's row of memory; the lanes are a queue of up to 252 such rows.
    TRANSPOSE  element (r, c) of a block is in lane (r + c) mod n, place r; row c of the result takes place (lane - c) mod n of every lane. The lanes
               hold four blocks: some are read in while another is written out.

Cycles, from `job` taken to `done` valid, with local memory's latency (R, W: accesses of the walk):

| job | cycles |
|---|---|
| refused, or without elements | 3 |
| COPY | max(R, W) + 15 at most |
| TRANSPOSE of B blocks | sum over blocks of max(reads of the block, writes of the one before) + writes of the last + 15 + B at most |

plus the cycles in which an access waits for its bank otherwise. Reads and writes of a job meet in banks: they fall into rotation, and the bounds
hold, when COPY's rows lie one behind the other, or when TRANSPOSE's strides are odd multiples of 64 bytes, equal modulo banks * 64. Aligned tiles of
B blocks then move B / (B + 1) rows a cycle, read and written.

Parameters: `pe` (local_bytes).
Members: `job` In stream LU_JOB, `done` Out stream LU_DONE, `reader`, `writer` Out LocalPort.

Assumptions
    A1. Source and destination share no bytes; else the bytes of the destination are undefined (those of rule 3 still are the only ones). The unit
        does not check it; the bench does, for every job it gives (tb/pe/layout_jobs.py).
    A2. The reader's port answers every read once, in order (checked by the memory's own bench; a surplus answer would break the count of `done`).
"""
from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import rigid, wire
from rtl.pe.layout_walk import LayoutWalk
from rtl.pe.local_port import ROW_BYTES, LocalPort
from spec.layout_unit import LU_DONE, LU_JOB, LayoutOp, LayoutStatus
from spec.params import PeParams

LANES = ROW_BYTES
BLOCKS = 4  # that the lanes hold
PLACES = BLOCKS * LANES  # of a lane
ROOM = PLACES - 4  # rows of a COPY that may be claimed: the row read next may reach into two more
READS = 16  # rows read and not yet in their lanes
LEAD = 4  # rows of a COPY that are complete before the first of them, or the first after the lanes ran empty, is written


def rotated(row: Value, by: Value) -> Value:
    """Byte i of the row at byte (i + by) mod 64; a bit a byte (64 bits) or bytes (512)."""
    step = len(row) // LANES
    back = (-by)[:6]
    amount = back if step == 1 else Cat(Const(0, 3), back)
    return (Cat(row, row) >> amount)[: len(row)]


def between(low: Value, high: Value) -> Value:
    """64 bits, those from `low` to `high` set."""
    ones = (1 << LANES) - 1
    return ((ones << low) & (ones >> (LANES - 1 - high)[:6]))[:LANES]


class LayoutUnit(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams):
        self.pe = pe
        port = LocalPort(pe)
        self.addr_bits = port.addr_bits
        super().__init__({
            "job": In(stream.Signature(layout(LU_JOB))), "done": Out(stream.Signature(layout(LU_DONE))),
            "reader": Out(port), "writer": Out(port),
        })

    def elaborate(self, platform):
        m = Module()
        job = Signal(layout(LU_JOB), reset_less=True)
        transpose = wire(m, job.op == LayoutOp.TRANSPOSE, "transpose")
        begin, ended, damaged = Signal(), Signal(), Signal()
        self._control(m, job, transpose, begin, ended, damaged)

        walks = []
        for writing, (start, stride) in enumerate(((job.source, job.source_stride), (job.destination, job.destination_stride))):
            walk = LayoutWalk(writing, self.addr_bits)
            m.submodules[("reads", "writes")[writing]] = walk
            m.d.comb += [
                walk.begin.eq(begin), walk.job.transpose.eq(transpose), walk.job.size.eq(job.size), walk.job.rows.eq(job.rows),
                walk.job.columns.eq(job.columns), walk.job.start.eq(start), walk.job.stride.eq(stride),
                walk.job.source_low.eq(job.source), walk.job.destination_low.eq(job.destination),
            ]
            walks.append(walk)

        # Rows (COPY) or blocks (TRANSPOSE): claimed by the reading side until the writing side has taken them from the lanes; complete in the lanes.
        claimed, complete = Signal(8), Signal(8)
        claims, landed, takes, frees, all_in = Signal(2), Signal(2), Signal(), Signal(), Signal()
        m.d.sync += [claimed.eq(claimed + claims - frees), complete.eq(complete + landed - takes)]

        lanes_in, lanes_out = [], []
        for k in range(LANES):
            m.submodules[f"lane{k}"] = lane = memory.Memory(shape=unsigned(8), depth=PLACES, init=())
            lanes_in.append(lane.write_port())
            lanes_out.append(lane.read_port())
        self._read_side(m, job, transpose, begin, walks[0].access, claimed, claims, landed, all_in, damaged, lanes_in)
        self._write_side(m, job, transpose, begin, walks[1].access, complete, all_in, takes, frees, ended, lanes_out)
        return m

    def _control(self, m, job, transpose, begin, ended, damaged) -> None:
        """Takes a job, judges it, begins the walks, and says how it ended."""
        check, judge, run, say = Signal(), Signal(), Signal(), Signal()
        status = Signal(4, reset_less=True)
        source_last, destination_last = Signal(48, reset_less=True), Signal(48, reset_less=True)  # offset of the last row
        out_rows = wire(m, Mux(transpose, job.columns, job.rows), "out_rows")
        out_columns = wire(m, Mux(transpose, job.rows, job.columns), "out_columns")
        in_bytes, out_bytes = wire(m, (job.columns << job.size)[:18], "in_bytes"), wire(m, (out_columns << job.size)[:18], "out_bytes")
        empty = wire(m, (job.rows == 0) | (job.columns == 0), "empty")
        low = wire(m, Mux(job.size == 2, 3, Mux(job.size == 1, 1, 0))[:2], "low_bits")
        unaligned = wire(m, transpose & (low & (job.source | job.source_stride | job.destination | job.destination_stride)[:2]).any(), "unaligned")
        overlaps = wire(m, (out_rows > 1) & (job.destination_stride < out_bytes), "overlaps")
        beyond = wire(m, (job.source + source_last + in_bytes > self.pe.local_bytes)
                      | (job.destination + destination_last + out_bytes > self.pe.local_bytes), "beyond")
        verdict = wire(m, Mux((job.op > max(LayoutOp)) | (job.size == 3), LayoutStatus.OP, Mux(empty, LayoutStatus.OK, Mux(
            unaligned, LayoutStatus.ALIGN, Mux(overlaps, LayoutStatus.STRIDE, Mux(beyond, LayoutStatus.RANGE, LayoutStatus.OK)))))[:4], "verdict")
        m.d.comb += [
            self.job.ready.eq(~(check | judge | run | say)), begin.eq(judge & (verdict == LayoutStatus.OK) & ~empty),
            self.done.valid.eq(say), self.done.payload.tag.eq(job.tag), self.done.payload.status.eq(status),
        ]
        m.d.sync += [check.eq(self.job.valid & self.job.ready), judge.eq(check)]
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += job.eq(self.job.payload)
        with m.If(check):
            m.d.sync += [
                source_last.eq((job.rows - 1)[:16] * job.source_stride), destination_last.eq((out_rows - 1)[:16] * job.destination_stride),
            ]
        with m.If(judge):
            m.d.sync += [status.eq(verdict), run.eq(begin), say.eq(~begin)]
        with m.Elif(run & ended):
            m.d.sync += [run.eq(0), say.eq(1)]
            with m.If(damaged):
                m.d.sync += status.eq(LayoutStatus.DAMAGED)
        with m.Elif(say & self.done.ready):
            m.d.sync += say.eq(0)

    def _read_side(self, m, job, transpose, begin, access, claimed, claims, landed, all_in, damaged, lanes) -> None:
        """Requests of rows; answers rotated into the lanes."""
        port, a = self.reader, access.payload
        goal, place = Signal(6, reset_less=True), Signal(8, reset_less=True)  # of COPY: offset of the destination's row; row of the lanes
        block = Signal(2, reset_less=True)  # of TRANSPOSE: quarter of the lanes
        shift = wire(m, (goal - a.offset)[:6], "shift")
        over_low, over_high = wire(m, (a.low + shift)[6], "over_low"), wire(m, (a.high + shift)[6], "over_high")  # beyond the row of the lanes
        back, more = wire(m, a.first & over_low, "back"), wire(m, a.last & over_high, "more")
        here = wire(m, (place - back)[:8], "here")
        rows = wire(m, (~back + more)[:2], "rows")

        note = data.StructLayout({"low": 6, "high": 6, "by": 6, "place": 8, "split": 1, "landed": 2, "final": 1})
        m.submodules.notes = notes = SyncFIFO(width=note.size, depth=READS)
        put, got = data.View(note, notes.w_data), data.View(note, notes.r_data)
        room = wire(m, Mux(transpose, ~a.begin | (claimed < BLOCKS), claimed <= ROOM), "room")
        ask = wire(m, access.valid & room & notes.w_rdy, "ask")
        asked = wire(m, ask & port.request.ready, "asked")
        request = port.request.payload
        m.d.comb += [
            port.request.valid.eq(ask), request.write.eq(0), request.addr.eq(a.row), request.data.eq(0), request.strb.eq(0), access.ready.eq(asked),
            claims.eq(Mux(asked, Mux(transpose, a.begin, rows), 0)),
            notes.w_en.eq(asked), put.low.eq(a.low), put.high.eq(a.high), put.split.eq(~transpose),
            put.by.eq(Mux(transpose, (a.index << job.size) - a.offset, shift)), put.place.eq(Mux(transpose, Cat(a.index, block), here)),
            put.landed.eq(Mux(transpose, a.end, rows)), put.final.eq(a.final),
        ]
        with m.If(begin):
            m.d.sync += [goal.eq(job.destination), place.eq(0), block.eq(0)]
        with m.Elif(asked):
            m.d.sync += [block.eq(block + a.end), place.eq(here + Mux(a.last, 1 + over_high, 1))]
            with m.If(a.last):
                m.d.sync += goal.eq(goal + job.destination_stride)

        answer = wire(m, port.response.valid, "answer")
        row, bytes_in, above = (Signal(w, name=n, reset_less=True) for n, w in (("row", 8 * LANES), ("bytes_in", LANES), ("above", LANES)))
        to, to_next, count, final = (Signal(w, name=n, reset_less=True) for n, w in (("to", 8), ("to_next", 8), ("count", 2), ("final", 1)))
        arrives = Signal()
        m.d.comb += [port.response.ready.eq(1), notes.r_en.eq(answer), landed.eq(Mux(arrives, count, 0))]
        m.d.sync += [arrives.eq(answer), all_in.eq(~begin & (all_in | arrives & final))]
        with m.If(answer):
            m.d.sync += [
                row.eq(rotated(port.response.payload.data, got.by)), bytes_in.eq(rotated(between(got.low, got.high), got.by)),
                above.eq(Mux(got.split, ~(((1 << LANES) - 1) << got.by)[:LANES], 0)), to.eq(got.place), to_next.eq(got.place + 1),
                count.eq(got.landed), final.eq(got.final),
            ]
        m.d.sync += damaged.eq(~begin & (damaged | answer & port.response.payload.error))
        for k, lane in enumerate(lanes):
            m.d.comb += [lane.en.eq(arrives & bytes_in[k]), lane.addr.eq(Mux(above[k], to_next, to)), lane.data.eq(row.word_select(k, 8))]

    def _write_side(self, m, job, transpose, begin, access, complete, all_in, takes, frees, ended, lanes) -> None:
        """Rows out of the lanes, rotated into place and written."""
        port, a = self.writer, access.payload
        place, block = Signal(8, reset_less=True), Signal(2, reset_less=True)
        source = SimpleNamespace(valid=Signal(name="take_valid"), ready=Signal(name="take_ready"))
        # A COPY keeps a lead, so that a read that waits for its bank does not make the write wait, and that write the next read, and so on.
        leads, some, lead = wire(m, complete >= LEAD, "leads"), wire(m, complete != 0, "some"), Signal()
        m.d.sync += lead.eq(some & (lead | leads))
        can = wire(m, some & (transpose | lead | leads | all_in), "can")
        m.d.comb += [source.valid.eq(access.valid & can), access.ready.eq(source.ready & can)]
        taken = wire(m, access.valid & access.ready, "taken")
        enable = rigid(m, source, port.request, 3)
        gone = wire(m, ~transpose | a.end, "gone")  # a row of a COPY, or a block, leaves
        m.d.comb += takes.eq(taken & gone)
        with m.If(begin):
            m.d.sync += [place.eq(0), block.eq(0)]
        with m.Elif(taken):
            m.d.sync += [place.eq(place + 1), block.eq(block + a.end)]

        side = data.StructLayout({"row": self.addr_bits, "low": 6, "high": 6, "by": 6, "gone": 1, "final": 1})
        first, second = Signal(side, reset_less=True), Signal(side, reset_less=True)
        mask = wire(m, Mux(job.size == 2, 15, Mux(job.size == 1, 31, 63))[:6], "mask")
        with m.If(enable[0]):
            m.d.sync += [
                first.row.eq(a.row), first.low.eq(a.low), first.high.eq(a.high), first.gone.eq(gone), first.final.eq(a.final),
                first.by.eq(Mux(transpose, a.offset - (a.index << job.size), 0)),
            ]
        for k, lane in enumerate(lanes):
            at = Signal(8, name=f"at{k}", reset_less=True)
            element = Mux(job.size == 2, k >> 2, Mux(job.size == 1, k >> 1, k))
            with m.If(enable[0]):
                m.d.sync += at.eq(Mux(transpose, Cat(((element - a.index)[:6] & mask)[:6], block), place))
            m.d.comb += [lane.addr.eq(at), lane.en.eq(enable[1])]
        m.d.comb += frees.eq(enable[1] & first.gone)
        with m.If(enable[1]):
            m.d.sync += second.eq(first)
        request, final = Signal(port.request.payload.shape(), name="request", reset_less=True), Signal(reset_less=True)
        strobes = wire(m, between(second.low, second.high), "strobes")
        keep = wire(m, Cat(strobes[k].replicate(8) for k in range(LANES)), "keep")
        with m.If(enable[2]):
            m.d.sync += [
                request.write.eq(1), request.addr.eq(second.row), request.strb.eq(strobes), final.eq(second.final),
                request.data.eq(rotated(Cat(lane.data for lane in lanes), second.by) & keep),
            ]
        m.d.comb += [port.request.payload.eq(request), port.response.ready.eq(1), ended.eq(port.request.valid & port.request.ready & final)]
