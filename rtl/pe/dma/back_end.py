"""Back end of the DMA engine: read side, realigner and write side, and the one port of the local memory that they share with the index list.

Members
    `read`, `write`, `move`  In streams of the legaliser
    `stopped`       In stream, `finished` Out stream, `done_near`, `done_far` Out (rtl.pe.dma.write_side)
    `index`         In stream {word}, `index_word` Out stream (word_layout): reads of the index list
    `axi`           AXI4 manager
    `local_port`    LocalPort

Rules
    1. A request waiting at the port stays there; among new ones an index read comes first, then a write, then a read.
    2. `error` of a response marks its word; it reaches the status of the descriptor that needed it.

Latency: `read` to the first `ar` 1 cycle. Port of the local memory: no cycle of its own.

Assumptions
    A1. `index_word` is taken at once: the index list has room for what it asks.
    A2. The local memory answers every read, in order; guarded by LocalPort.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block
from rtl.numeric.pipeline import wire
from rtl.pe.dma.layouts import move_layout, outcome_layout, read_layout, word_layout, write_layout
from rtl.pe.dma.read_side import NEAR_WORDS, DmaReadSide
from rtl.pe.dma.realign import DmaRealigner
from rtl.pe.dma.write_side import DmaWriteSide
from rtl.pe.local_port import LocalPort
from spec.params import MemParams, PeParams

INDEX_WORDS = 2  # index reads on their way


class DmaBackEnd(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams, mem: MemParams):
        self.pe, self.mem = pe, mem
        self.port = LocalPort(pe)
        super().__init__({
            "read": In(stream.Signature(read_layout(mem))), "write": In(stream.Signature(write_layout(mem))),
            "move": In(stream.Signature(move_layout(mem))),
            "stopped": In(stream.Signature(outcome_layout())), "finished": Out(stream.Signature(outcome_layout())),
            "done_near": Out(1), "done_far": Out(1),
            "index": In(stream.Signature(data.StructLayout({"word": self.port.addr_bits}))), "index_word": Out(stream.Signature(word_layout())),
            "axi": Out(AXI4Signature.of(mem)), "local_port": Out(self.port),
        })

    def elaborate(self, platform):
        m = Module()
        bits = self.port.addr_bits
        m.submodules.reader = reader = DmaReadSide(self.mem, self.pe.dma_depth, bits)
        m.submodules.realigner = realigner = DmaRealigner(self.mem)
        m.submodules.writer = writer = DmaWriteSide(self.mem, self.pe.dma_depth, bits)
        connect(m, flipped(self.read), reader.burst)
        connect(m, flipped(self.move), realigner.move)
        connect(m, flipped(self.write), writer.burst)
        connect(m, flipped(self.stopped), writer.stopped)
        connect(m, reader.far, realigner.far)
        connect(m, reader.near, realigner.near)
        connect(m, realigner.beat, writer.beat)
        connect(m, writer.finished, flipped(self.finished))
        for inner, name in ((reader, "ar"), (reader, "r"), (writer, "aw"), (writer, "w"), (writer, "b")):
            port, outer = getattr(inner, name), getattr(self.axi, name)
            from_here, to = (port, outer) if name in ("ar", "aw", "w") else (outer, port)
            m.d.comb += [to.valid.eq(from_here.valid), to.payload.eq(from_here.payload), from_here.ready.eq(to.ready)]
        m.d.comb += [self.done_near.eq(writer.done_near), self.done_far.eq(writer.done_far)]

        # The port: who asks now, and who asked for the answers to come.
        request, response = self.local_port.request, self.local_port.response
        m.submodules.askers = askers = SyncFIFO(width=1, depth=NEAR_WORDS + INDEX_WORDS)
        waiting, chosen = Signal(name="waiting"), Signal(3, name="chosen")  # one-hot: index, write, read
        index, write, read = self.index, writer.request, reader.request
        fresh = wire(m, Cat(index.valid, write.valid & ~index.valid, read.valid & ~write.valid & ~index.valid), "fresh")
        who = wire(m, Mux(waiting, chosen, fresh), "who")
        taken = wire(m, request.valid & request.ready, "taken")
        ask = request.payload
        m.d.comb += [
            request.valid.eq(who.any()), ask.write.eq(who[1]), ask.data.eq(write.payload.data), ask.strb.eq(write.payload.strb),
            ask.addr.eq(Mux(who[1], write.payload.word, Mux(who[0], index.payload.word, read.payload.word))),
            index.ready.eq(taken & who[0]), write.ready.eq(taken & who[1]), read.ready.eq(taken & who[2]),
            askers.w_en.eq(taken & ~who[1]), askers.w_data.eq(who[0]),
        ]
        m.d.sync += waiting.eq(request.valid & ~request.ready)
        with m.If(request.valid & ~request.ready):
            m.d.sync += chosen.eq(who)
        for out, mine in ((self.index_word, askers.r_data), (reader.response, ~askers.r_data)):
            m.d.comb += [out.payload.eq(response.payload), out.valid.eq(response.valid & askers.r_rdy & mine)]
        m.d.comb += [response.ready.eq(askers.r_rdy), askers.r_en.eq(response.valid)]
        return m
