"""The message engine with stand-ins for near-memory compute and NIC, and a log of everything that leaves or enters it.

The stand-ins take requests with random stalls and answer each after a random delay, in scrambled order. The status of an answer
is in bits 55:48 of the request's laddr (addr_a for near-memory compute): how a test asks for an error; info is then the 48 bits
below. byte_len and imm come back from the request.

Each `log_*` stream has one word per event: the cycle (for requests and write addresses: the first in which it was valid), then what
moved. The sinks of the bench must not stall them. `rung` is the cycle of the last doorbell.
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block, shared
from rtl.common.csr import IndexedRegisterSignature
from rtl.common.layouts import layout
from rtl.nic.message_engine import READ, WRITTEN, MessageEngine
from spec.interfaces import DONE, NIC_REQUEST, NMC_REQUEST
from spec.params import MemParams, MeParams
from spec.wqe import CQE

POOL = 32


class Responder(Block):
    """Stand-in for a unit: `pool` answers may be pending. delay: mask of a random delay; stall: of 256; hold: no answers."""

    def __init__(self, kind: str):
        self.kind = kind
        request = NIC_REQUEST if kind == "nic" else NMC_REQUEST
        super().__init__({
            "request": In(stream.Signature(layout(request))), "done": Out(stream.Signature(layout(DONE))),
            "delay": In(12), "stall": In(9), "hold": In(1), "now": In(32), "pending": Out(range(POOL + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        lfsr = Signal(32, init=0x1D872B41 if self.kind == "nic" else 0x5EED1234)
        m.d.sync += lfsr.eq(Mux(lfsr[0], lfsr[1:] ^ 0xA3000000, lfsr[1:]))
        m.submodules.kept = kept = Memory(shape=layout(DONE), depth=POOL, init=[])
        write, read = kept.write_port(), kept.read_port(domain="comb")
        busy, ripe = Signal(POOL), Signal(POOL)
        due = [Signal(32, name=f"due{i}") for i in range(POOL)]
        put, get, open_, done = Signal(range(POOL)), Signal(range(POOL)), Signal(), self.done
        for i in reversed(range(POOL)):
            with m.If(~busy[i]):
                m.d.comb += put.eq(i)
            m.d.comb += ripe[i].eq(busy[i] & ~(self.now - due[i])[31])
        for i in reversed(range(POOL)):
            at = Signal(range(POOL), name=f"at{i}")
            m.d.comb += at.eq(lfsr[7:12] + i)
            with m.If(ripe.bit_select(at, 1)):
                m.d.comb += get.eq(at)
        m.d.sync += open_.eq(lfsr[:8] >= self.stall)
        word, at = self.request.payload, self.request.payload.laddr if self.kind == "nic" else self.request.payload.addr_a
        take = Signal()
        m.d.comb += [
            self.request.ready.eq(open_ & ~busy.all()),
            take.eq(self.request.valid & self.request.ready),
            write.en.eq(take), write.addr.eq(put), read.addr.eq(get),
            write.data.tag.eq(word.tag), write.data.status.eq(at[48:56]), write.data.byte_len.eq(word.length),
            self.pending.eq(sum(busy)),
        ]
        if self.kind == "nic":
            m.d.comb += [write.data.imm.eq(word.imm), write.data.qpn.eq(word.qpn)]
        with m.If(at[48:56] != 0):
            m.d.comb += write.data.info.eq(at[:48])
        with m.If(done.ready):
            m.d.sync += done.valid.eq(0)
        with m.If(ripe.any() & (~done.valid | done.ready) & ~self.hold):
            m.d.sync += [done.valid.eq(1), done.payload.eq(read.data), busy.bit_select(get, 1).eq(0)]
        with m.If(take):
            m.d.sync += busy.bit_select(put, 1).eq(1)
            for i in range(POOL):
                with m.If(put == i):
                    m.d.sync += due[i].eq(self.now + (lfsr[12:24] & self.delay))
        return m


def _log(*fields) -> wiring.Member:
    return Out(stream.Signature(data.StructLayout({"now": 32, **dict(fields)})))


class MeRig(Block):
    def __init__(self, me: MeParams, mem: MemParams):
        self.me, self.mem = me, mem
        width, ids = mem.addr_width, mem.id_width
        register = In(IndexedRegisterSignature())
        super().__init__({
            "axi": Out(AXI4Signature.of(mem)),
            **dict.fromkeys(WRITTEN + READ, register),
            "cq_base": In(32), "cq_size": In(32), "cq_head": In(32), "wait_timeout": In(32),
            "cq_tail": Out(32), "event_count": Out(32), "pulses": Out(32), "now": Out(32), "rung": Out(32),
            "nic_delay": In(12), "nic_stall": In(9), "nic_hold": In(1), "nic_pending": Out(6),
            "nmc_delay": In(12), "nmc_stall": In(9), "nmc_hold": In(1), "nmc_pending": Out(6),
            "log_nic": _log(("request", layout(NIC_REQUEST))), "log_nmc": _log(("request", layout(NMC_REQUEST))),
            "log_nic_done": _log(("tag", 16)), "log_nmc_done": _log(("tag", 16)),
            "log_aw": _log(("addr", width), ("id", ids)), "log_w": _log(("strb", 64), ("data", CQE.bits)),
            "log_b": _log(("id", ids), ("resp", 2)),
            "log_ar": _log(("addr", width), ("len", 8), ("id", ids)), "log_r": _log(("id", ids), ("last", 1)),
        })

    def elaborate(self, platform):
        m = Module()
        me = MessageEngine(self.me, self.mem)
        m.submodules.me = shared(me)
        connect(m, me.axi, flipped(self.axi))
        for name in dict.fromkeys(WRITTEN + READ):
            connect(m, getattr(me, name), flipped(getattr(self, name)))
        for name in ("cq_base", "cq_size", "cq_head", "wait_timeout"):
            m.d.comb += getattr(me, name).eq(getattr(self, name))
        with m.If(self.wq_tail.write):
            m.d.sync += self.rung.eq(self.now)
        m.d.comb += [self.cq_tail.eq(me.cq_tail), self.event_count.eq(me.event)]
        m.d.sync += [self.now.eq(self.now + 1), self.pulses.eq(self.pulses + me.event_pulse)]

        def first_valid(port, name) -> Signal:
            """The cycle in which the word on `port` was valid first."""
            since, waiting, first = Signal(32, name=f"{name}_since"), Signal(name=f"{name}_waiting"), Signal(32)
            m.d.comb += first.eq(Mux(waiting, since, self.now))
            m.d.sync += waiting.eq(port.valid & ~port.ready)
            with m.If(~waiting):
                m.d.sync += since.eq(self.now)
            return first

        def log(name: str, port, now=None, **values) -> None:
            out = getattr(self, f"log_{name}")
            m.d.comb += [out.valid.eq(port.valid & port.ready), out.payload.now.eq(self.now if now is None else now)]
            for key, value in values.items():
                m.d.comb += getattr(out.payload, key).eq(value)

        for kind in ("nic", "nmc"):
            unit = m.submodules[kind] = Responder(kind)
            request, done = getattr(me, f"{kind}_request"), getattr(me, f"{kind}_done")
            connect(m, request, unit.request)
            connect(m, unit.done, done)
            m.d.comb += [unit.now.eq(self.now), getattr(self, f"{kind}_pending").eq(unit.pending)]
            for knob in ("delay", "stall", "hold"):
                m.d.comb += getattr(unit, knob).eq(getattr(self, f"{kind}_{knob}"))
            log(kind, request, first_valid(request, kind), request=request.payload)
            log(f"{kind}_done", done, tag=done.payload.tag)
        axi = me.axi
        log("aw", axi.aw, first_valid(axi.aw, "aw"), addr=axi.aw.payload.addr, id=axi.aw.payload.id)
        strb, word = axi.w.payload.strb, axi.w.payload.data
        log("w", axi.w, strb=strb, data=Mux(strb[32], word[256:], word[:256]))
        log("b", axi.b, id=axi.b.payload.id, resp=axi.b.payload.resp)
        ar = axi.ar.payload
        log("ar", axi.ar, first_valid(axi.ar, "ar"), addr=ar.addr, len=ar.len, id=ar.id)
        log("r", axi.r, id=axi.r.payload.id, last=axi.r.payload.last)
        return m


# The same with the smallest and the largest sizes of what a queue holds (tb/nic/me_min.toml, me_deep.toml).
SIZES = {
    "me_min": MeParams(queues=1, window=2, prefetch=1, poll_interval=4),
    "me_deep": MeParams(queues=2, window=256, prefetch=16, poll_interval=5),
}


def sized(name: str, mem: MemParams) -> MeRig:
    return MeRig(SIZES[name], mem)
