"""Second half of a WQE's start in the message engine: its 64 bytes become a request to the unit that runs it.

A WQE is taken from a queue in one cycle (`take`, `start`, `queue`); its bytes are on `body` in the next. Then an INFO is kept for
its completion, and a request goes into the fifo of its unit, or the WAIT's operands go back to its queue, or, LOCAL, it is done.
A queue asks to start only when the `room_*` of the unit is high, so a unit that stalls holds nobody else.

Tag of a request: slot in the window, the queue's number above it. SEND and RECV have raddr 0.

Parameters: `me`, `mem`. Members: as above; `nic_request`, `nmc_request`, `set` streams; `info`; `local` (done now: valid, place);
`wait_load`.
Latency: take to request valid 2 cycles. Interval: one WQE a cycle, whatever its unit.
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.nic.cqe_writer import kept_layout, place_layout
from rtl.nic.me_memory import set_layout
from rtl.nic.work_queue import start_layout, wait_layout
from rtl.nic.wqe_decode import FLAGS, INFO, WQE_LAYOUT, Unit
from spec.interfaces import NIC_REQUEST, NMC_REQUEST
from spec.params import MemParams, MeParams
from spec.wqe import Op, Status

DEPTH = 4  # requests waiting for each unit


class WqeDispatch(Block):
    def __init__(self, me: MeParams, mem: MemParams):
        self.me, self.mem = me, mem
        super().__init__({
            "take": In(1), "start": In(start_layout(me, mem)), "queue": In(range(me.queues)), "body": In(WQE_LAYOUT),
            "room_nic": Out(1), "room_nmc": Out(1), "room_set": Out(1),
            "nic_request": Out(stream.Signature(layout(NIC_REQUEST))),
            "nmc_request": Out(stream.Signature(layout(NMC_REQUEST))),
            "set": Out(stream.Signature(set_layout(me, mem))),
            "info": Out(kept_layout(me, INFO)),
            "local": Out(data.StructLayout({"valid": 1, "place": place_layout(me)})),
            "wait_load": Out(wait_layout(mem)), "place": Out(place_layout(me)),
        })

    def elaborate(self, platform):
        m = Module()
        valid, start, queue = Signal(), Signal.like(self.start), Signal.like(self.queue)
        m.d.sync += valid.eq(self.take)
        with m.If(self.take):
            m.d.sync += [start.eq(self.start), queue.eq(self.queue)]
        wqe, place, tag = self.body, self.place, Signal(16)
        m.d.comb += [place.slot.eq(start.slot), place.queue.eq(queue), tag.eq(place)]

        info, flags = self.info.what, data.View(FLAGS, wqe.flags)
        m.d.comb += [
            self.info.valid.eq(valid), self.info.place.eq(place),
            info.unit.eq(start.unit), info.status.eq(start.status),
            self.local.valid.eq(valid & (start.unit == Unit.LOCAL)), self.local.place.eq(place),
        ]
        with m.If(~start.blind):
            m.d.comb += [
                info.wr_id.eq(wqe.wr_id), info.opcode.eq(wqe.opcode), info.qpn.eq(wqe.qpn),
                info.signaled.eq(flags.signaled), info.event.eq(flags.event),
            ]
        addressed = (start.status == Status.ALIGN_ERR) | (start.status == Status.MEM_ERR)
        with m.If((start.status == Status.MEM_ERR) & start.blind):
            m.d.comb += info.info.eq(start.addr)
        with m.Elif(addressed | (start.unit == Unit.SET) | (start.unit == Unit.WAIT)):
            m.d.comb += info.info.eq(Mux(wqe.opcode == Op.SET, wqe.addr_d, wqe.addr_a))

        def requests(name: str, unit: Unit, out, room) -> data.View:
            """Fifo of a unit's requests; returns the payload to fill in."""
            shape = out.payload.shape()
            m.submodules[name] = fifo = SyncFIFO(width=shape.size, depth=DEPTH)
            entry = Signal(shape, name=f"{name}_entry")
            m.d.comb += [
                fifo.w_data.eq(entry), fifo.w_en.eq(valid & (start.unit == unit)),
                out.payload.eq(fifo.r_data), out.valid.eq(fifo.r_rdy), fifo.r_en.eq(out.ready),
                room.eq(fifo.w_level + fifo.w_en < DEPTH),
            ]
            return entry

        nic = requests("nic", Unit.NIC, self.nic_request, self.room_nic)
        m.d.comb += [
            nic.tag.eq(tag), nic.opcode.eq(wqe.opcode), nic.qpn.eq(wqe.qpn), nic.length.eq(wqe.length),
            nic.lkey.eq(wqe.lkey), nic.rkey.eq(wqe.rkey), nic.imm.eq(wqe.imm),
        ]
        with m.Switch(wqe.opcode):
            with m.Case(Op.SEND, Op.SEND_IMM):
                m.d.comb += nic.laddr.eq(wqe.addr_a)
            with m.Case(Op.RECV):
                m.d.comb += nic.laddr.eq(wqe.addr_d)
            with m.Case(Op.READ):
                m.d.comb += [nic.laddr.eq(wqe.addr_d), nic.raddr.eq(wqe.addr_a)]
            with m.Default():
                m.d.comb += [nic.laddr.eq(wqe.addr_a), nic.raddr.eq(wqe.addr_d)]
        nmc = requests("nmc", Unit.NMC, self.nmc_request, self.room_nmc)
        copy = wqe.opcode == Op.COPY
        m.d.comb += [
            nmc.tag.eq(tag), nmc.copy.eq(copy), nmc.rop.eq(wqe.rop), nmc.dtype.eq(wqe.dtype),
            nmc.scale_en.eq(flags.scale & ~copy), nmc.length.eq(wqe.length), nmc.scale.eq(wqe.scale),
            nmc.addr_a.eq(wqe.addr_a), nmc.addr_b.eq(wqe.addr_b), nmc.addr_d.eq(wqe.addr_d),
        ]
        set_ = requests("set", Unit.SET, self.set, self.room_set)
        m.d.comb += [set_.addr.eq(wqe.addr_d), set_.word.eq(wqe.imm), set_.place.eq(place)]
        load = self.wait_load
        m.d.comb += [
            load.valid.eq(valid & (start.unit == Unit.WAIT)),
            load.addr.eq(wqe.addr_a), load.imm.eq(wqe.imm), load.cmp.eq(wqe.cmp),
        ]
        return m
