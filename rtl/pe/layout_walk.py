"""Walk of the memory layout unit over one side of a job: the accesses to rows of local memory, in order.

A COPY is one *segment* a tile row: its bytes from first to last. A TRANSPOSE goes block by block; a block is up to n x n elements, n = 64 / size, and
its segments are the parts of the source's rows (reading) or of the destination's (writing) that lie in it, up to 64 bytes each. The first column of
blocks ends where the source's first row meets a multiple of 64 bytes, the first row of blocks where the destination's does, so that, with strides
that are multiples of 64, every segment lies in one row of memory. Both walks take the blocks in the same order: down the source's rows, then to the
right.

A segment is one access for each row of memory in which it has bytes. Accesses come one a cycle, over segments and blocks too.

Parameters: `writing` (0 or 1), `addr_bits` of a row.
Members: `job` In JOB, `begin` In 1 (takes `job`, which then stays as it is until the last access), `access` Out stream of ACCESS.

Assumptions
    A1. The tile lies in local memory, neither rows nor columns are 0 (rtl/pe/layout_unit.py refuses or ends others first).
    A2. `begin` comes only when no walk is under way (rtl/pe/layout_unit.py begins one when the last write of the one before is accepted).
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.numeric.pipeline import wire


def job_layout(addr_bits: int) -> data.StructLayout:
    """`start`, `stride` are those of the side that is walked; `source_low`, `destination_low` the low six bits of both tiles' addresses."""
    return data.StructLayout({
        "transpose": 1, "size": 2, "rows": 16, "columns": 16, "start": addr_bits + 6, "stride": addr_bits + 6, "source_low": 6, "destination_low": 6,
    })


def access_layout(addr_bits: int) -> data.StructLayout:
    """`low`, `high`: first and last byte in the row; `offset`: low six bits of the segment's address; `index`: segment in its block (low bits);
    `first`, `last`: of the segment; `begin`, `end`: of the block; `final`: of the job."""
    return data.StructLayout({
        "row": addr_bits, "low": 6, "high": 6, "offset": 6, "index": 6, "first": 1, "last": 1, "begin": 1, "end": 1, "final": 1,
    })


class LayoutWalk(Block):
    def __init__(self, writing: int, addr_bits: int):
        self.writing, self.addr_bits = writing, addr_bits
        super().__init__({"job": In(job_layout(addr_bits)), "begin": In(1), "access": Out(stream.Signature(access_layout(addr_bits)))})

    def elaborate(self, platform):
        m = Module()
        job, width, writing = self.job, self.addr_bits + 6, self.writing
        busy = Signal()
        line, base, along = (Signal(width, name=n, reset_less=True) for n in ("line", "base", "along"))
        rows, columns = Signal(16, reset_less=True), Signal(16, reset_less=True)  # left, this block's included
        first_row, first_column = Signal(reset_less=True), Signal(reset_less=True)  # of blocks
        segment, k = Signal(16, reset_less=True), Signal(13, reset_less=True)

        # The block: height and width in elements, then segments of so many bytes.
        side = wire(m, Mux(job.size == 0, 64, Mux(job.size == 1, 32, 16))[:7], "side")
        wide = wire(m, (side - Mux(first_column, job.source_low >> job.size, 0))[:7], "wide")
        high = wire(m, (side - Mux(first_row, job.destination_low >> job.size, 0))[:7], "high")
        w, h = wire(m, Mux(columns < wide, columns, wide)[:7], "w"), wire(m, Mux(rows < high, rows, high)[:7], "h")
        w_bytes, h_bytes = wire(m, (w << job.size)[:7], "w_bytes"), wire(m, (h << job.size)[:7], "h_bytes")
        length = wire(m, Mux(job.transpose, h_bytes if writing else w_bytes, job.columns << job.size)[:18], "length")
        count = wire(m, Mux(job.transpose, w if writing else h, job.rows)[:16], "count")

        # The access.
        at = wire(m, (line + along)[:width], "at")
        stop = wire(m, (at[:6] + length - 1)[:19], "stop")
        ends, segments_end = wire(m, k == stop[6:], "ends"), wire(m, segment == count - 1, "segments_end")
        down_end, right_end = wire(m, ~job.transpose | (rows == h), "down_end"), wire(m, ~job.transpose | (columns == w), "right_end")
        a = self.access.payload
        m.d.comb += [
            self.access.valid.eq(busy),
            a.row.eq(at[6:] + k), a.low.eq(Mux(k == 0, at[:6], 0)), a.high.eq(Mux(ends, stop[:6], 63)), a.offset.eq(at[:6]), a.index.eq(segment),
            a.first.eq(k == 0), a.last.eq(ends), a.begin.eq((k == 0) & (segment == 0)), a.end.eq(ends & segments_end),
            a.final.eq(a.end & down_end & right_end),
        ]

        move = wire(m, busy & self.access.ready, "move")
        next_line = wire(m, (line + job.stride)[:width], "next_line")
        with m.If(self.begin):
            m.d.sync += [
                busy.eq(1), line.eq(job.start), base.eq(job.start), along.eq(0), rows.eq(job.rows), columns.eq(job.columns),
                first_row.eq(1), first_column.eq(1), segment.eq(0), k.eq(0),
            ]
        with m.Elif(move):
            m.d.sync += k.eq(Mux(ends, 0, k + 1))
            with m.If(ends):
                m.d.sync += [segment.eq(Mux(segments_end, 0, segment + 1)), line.eq(next_line)]
            with m.If(a.end):
                m.d.sync += [busy.eq(~a.final), first_row.eq(down_end), rows.eq(Mux(down_end, job.rows, rows - h))]
                if writing:
                    m.d.sync += along.eq(Mux(down_end, 0, along + h_bytes))
                with m.If(down_end):
                    m.d.sync += [first_column.eq(0), columns.eq(columns - w), base.eq(next_line)]
                    if not writing:
                        m.d.sync += [line.eq(job.start), along.eq(along + w_bytes)]
                if writing:
                    with m.Else():
                        m.d.sync += line.eq(base)
        return m
