"""Mid end of the DMA engine: a descriptor becomes rows, each checked against its memories and held while an earlier row may still write what it reads.

Members
    `job`        In stream DMA_DESCRIPTOR (checked by the front end)
    `row`        Out stream (row_layout): the rows, innermost loop first; a row that may not be moved gives way to one `none` row, the descriptor's last
    `stopped`    Out stream {status, addr}: one per `none` row, at the same time
    `request`, `word_in`     the index list's reads of the local memory (rtl.pe.dma.index_list)
    `done_near`, `done_far`  In: a row is written (rtl.pe.dma.hazard)

Rules
    1. First that applies to a row: INDEX_ERROR (address of the list's word), RANGE_SOURCE, RANGE_DESTINATION (address of the row), OVERLAP (destination of the
       row: it starts inside its own source, behind the first byte). Addresses are computed modulo 2^64; a row must end at 2^addr_width or at local_bytes.
    2. A row waits while its source touches an interval of rows on their way (rtl.pe.dma.hazard). So everything is as if rows were moved one by one.

Latency: `job` to `row` 1 cycle (indexed: 4 and a read). Interval: a row a cycle, over descriptors; one cycle more after an indexed one.

Assumptions
    A1. `stopped` is never held back: one per descriptor in flight (queue of as many).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import wire
from rtl.pe.dma.hazard import DmaHazard
from rtl.pe.dma.index_list import DmaIndexList
from rtl.pe.dma.layouts import outcome_layout, row_layout, word_layout
from spec.dma import DMA_DESCRIPTOR, DmaOp, DmaStatus
from spec.params import MemParams, PeParams


class DmaMidEnd(Block):
    """See the module's contract. Args: sizes; `rows` that may be on their way."""

    def __init__(self, pe: PeParams, mem: MemParams, rows: int):
        self.pe, self.mem, self.rows = pe, mem, rows
        self.local_bits = exact_log2(pe.local_bytes)
        super().__init__({
            "job": In(stream.Signature(layout(DMA_DESCRIPTOR))), "row": Out(stream.Signature(row_layout(mem))),
            "stopped": Out(stream.Signature(outcome_layout())),
            "request": Out(stream.Signature(data.StructLayout({"word": self.local_bits - 6}))), "word_in": In(stream.Signature(word_layout())),
            "done_near": In(1), "done_far": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        width = self.mem.addr_width
        m.submodules.hazard = hazard = DmaHazard(width, self.rows)
        m.submodules.list = index_list = DmaIndexList(self.local_bits - 6)
        job, active, first = Signal(layout(DMA_DESCRIPTOR), name="cur", reset_less=True), Signal(), Signal()
        indexed = wire(m, job.op[1], "indexed")  # GATHER, SCATTER
        gather = wire(m, job.op == DmaOp.GATHER, "gather")
        filling = wire(m, job.op == DmaOp.FILL, "filling")
        item = index_list.item

        # Addresses: of the row, and of the first row of its plane and of its repetition; indices stand in for one of them.
        row_left, plane_left, repeat_left = (Signal(16, name=f"{k}_left") for k in ("row", "plane", "repeat"))
        new_plane, new_repeat = wire(m, row_left == 1, "new_plane"), wire(m, (row_left == 1) & (plane_left == 1), "new_repeat")
        end = wire(m, new_repeat & (repeat_left == 1), "end")
        go, load = Signal(name="go"), Signal(name="load")
        row_at = {}
        for side in ("src", "dst"):
            row, plane, repeat = (Signal(64, name=f"{side}_{k}", reset_less=True) for k in ("row", "plane", "repeat"))
            base = wire(m, Mux(new_repeat, repeat, Mux(new_plane, plane, row)), f"{side}_base")
            stride = wire(m, Mux(new_repeat, job[f"repeat_{side}"], Mux(new_plane, job[f"plane_{side}"], job[f"row_{side}"])), f"{side}_stride")
            following = wire(m, (base + stride.as_signed())[:64], f"{side}_next")
            listed = indexed & (gather if side == "src" else ~gather)
            row_at[side] = wire(m, Mux(listed, (job[side] + item.payload.product)[:64], row), f"{side}_at")
            with m.If(load):
                m.d.sync += [x.eq(self.job.payload[side]) for x in (row, plane, repeat)]
            with m.Elif(go):
                m.d.sync += row.eq(following)
                with m.If(new_plane):
                    m.d.sync += plane.eq(following)
                with m.If(new_repeat):
                    m.d.sync += repeat.eq(following)
        src, dst = row_at["src"], row_at["dst"]

        # Check of the row.
        n = job.row_bytes
        src_end, dst_end = wire(m, src + n, "src_end"), wire(m, dst + n, "dst_end")
        limit = {k: wire(m, Mux(job[f"{k}_local"], Const(self.pe.local_bytes, 65), Const(1 << width, 65)), f"{k}_limit") for k in ("src", "dst")}
        inside = wire(m, ~filling & (job.src_local == job.dst_local) & (src < dst) & (dst < src_end), "inside")
        status, addr = Signal(8), Signal(64)
        m.d.comb += addr.eq(dst)
        with m.If(indexed & item.payload.error):
            m.d.comb += [status.eq(DmaStatus.INDEX_ERROR), addr.eq(Cat(Const(0, 6), item.payload.word))]
        with m.Elif(~filling & (src_end > limit["src"])):
            m.d.comb += [status.eq(DmaStatus.RANGE_SOURCE), addr.eq(src)]
        with m.Elif(dst_end > limit["dst"]):
            m.d.comb += status.eq(DmaStatus.RANGE_DESTINATION)
        with m.Elif(inside):
            m.d.comb += status.eq(DmaStatus.OVERLAP)
        stop = wire(m, status.any(), "stop")
        waits = wire(m, ~filling & hazard.src_waits & ~stop, "waits")
        ends = wire(m, stop | end, "ends")

        q = self.row.payload
        m.d.comb += [
            self.row.valid.eq(active & (~indexed | item.valid) & ~waits), go.eq(self.row.valid & self.row.ready),
            q.none.eq(stop), q.first.eq(first), q.last.eq(ends), q.fill.eq(filling), q.src_local.eq(job.src_local), q.dst_local.eq(job.dst_local),
            q.bytes.eq(n), q.pattern.eq(job.fill), q.src.eq(src), q.dst.eq(dst),
            self.stopped.valid.eq(go & stop), self.stopped.payload.status.eq(status), self.stopped.payload.addr.eq(addr),
            self.job.ready.eq(Mux(active, go & ends & ~indexed, index_list.idle)), load.eq(self.job.ready & self.job.valid),
        ]
        with m.If(self.job.ready | go & ends):
            m.d.sync += active.eq(load)
        with m.If(load):
            new = self.job.payload
            m.d.sync += [job.eq(new), first.eq(1), row_left.eq(new.rows), plane_left.eq(new.planes), repeat_left.eq(new.repeats)]
        with m.Elif(go):
            m.d.sync += [first.eq(0), row_left.eq(Mux(new_plane, job.rows, row_left - 1))]
            with m.If(new_plane):
                m.d.sync += plane_left.eq(Mux(new_repeat, job.planes, plane_left - 1))
            with m.If(new_repeat):
                m.d.sync += repeat_left.eq(repeat_left - 1)

        # Index list.
        new = self.job.payload
        m.d.comb += [
            index_list.start.eq(load & new.op[1]), index_list.at.eq(new.index), index_list.count.eq(new.rows),
            index_list.pitch.eq(Mux(new.op == DmaOp.GATHER, new.row_src, new.row_dst)), index_list.stop.eq(go & stop & indexed),
            item.ready.eq(go & indexed), index_list.waits.eq(hazard.list_waits),
            self.request.valid.eq(index_list.request.valid), self.request.payload.eq(index_list.request.payload),
            index_list.request.ready.eq(self.request.ready),
            index_list.word_in.valid.eq(self.word_in.valid), index_list.word_in.payload.eq(self.word_in.payload),
            self.word_in.ready.eq(index_list.word_in.ready),
        ]

        # Rows on their way.
        m.d.comb += [
            hazard.issue.eq(go & ~stop), hazard.first.eq(first), hazard.row_near.eq(job.dst_local), hazard.row_start.eq(dst), hazard.row_end.eq(dst_end),
            hazard.done_near.eq(self.done_near), hazard.done_far.eq(self.done_far),
            hazard.src_near.eq(job.src_local), hazard.src_start.eq(src), hazard.src_end.eq(src_end),
            hazard.list_start.eq(Cat(Const(0, 6), index_list.request.payload.word)),
        ]
        return m
