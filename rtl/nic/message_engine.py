"""Message engine: fetches WQEs of `queues` work rings, starts each when its flags allow, writes CQEs.

Contract of a queue (ordering, window, errors, WAIT, reset): `rtl/nic/work_queue.py`. Of the completion ring: `rtl/nic/cqe_writer.py`.
Which WQEs are refused: `rtl/nic/wqe_decode.py`. What the engine adds:

Rules
    1. Queues run independently and share one start a cycle, one retirement a cycle, one read and one write a cycle, each taken in
       turn (round robin). A unit that does not take requests holds only the WQEs that need it.
    2. A SET writes 4 bytes with strobes and is done when the write was answered. NOOP is done as it starts. REDUCE and COPY go to
       near-memory compute, SEND, SEND_IMM, RECV, WRITE, WRITE_IMM, READ to the NIC; they are done when the unit says so.
    3. A CQE is written after its WQE and every earlier one of its queue is done; between queues in any order.
    4. While `cq_size` is 0 nothing is fetched.
    5. Every wait ends or shows: a WAIT by its deadline, a full completion ring in cq_tail - cq_head = cq_size, a held WQE in
       `wq_state` bit 1. The units and memory answer everything they were asked.

Parameters: `me` (MeParams), `mem` (MemParams); queues must fit in 2^id_width read ids.
Members
    `axi`                        AXI4 manager: WQE reads, WAIT polls, CQE and SET writes (ids: rtl/nic/me_memory.py)
    `nic_request`, `nmc_request` streams of NIC_REQUEST, NMC_REQUEST; `nic_done`, `nmc_done` streams of DONE, always ready
    `wq_base`, `wq_size`, `wq_tail`, `wq_head`, `wq_state`, `wq_reset`   indexed registers (rtl/common/csr.py)
    `cq_base`, `cq_size`, `cq_head`, `wait_timeout` In(32), `cq_tail`, `event` Out(32), `event_pulse` Out(1)
    wq_state: bit 0 error (flushing), 1 held by a dependency or a WAIT, 2 reset pending, 3 a CQE could not be written (all queues).
Latency (memory answers a read L cycles after taking it): doorbell write to request valid 5 + L cycles; done to the request it
    unlocks 3; done to the CQE's aw.valid 5. All without contention.
Interval: one WQE a cycle, also from one queue.

Assumptions
    A1. DONE carries the tag of an outstanding request, once (tb/nic/test_me.py: the responder; the trace check counts).
    A2. Software: see work_queue A1, cqe_writer A1.
"""
from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from rtl.common.axi4 import AXI4Signature
from rtl.common.block import Block, shared
from rtl.common.csr import IndexedRegisterSignature
from rtl.common.layouts import layout
from rtl.common.uninitialised import UninitialisedMemory
from rtl.nic.cqe_writer import CqeWriter
from rtl.nic.me_memory import MeMemory
from rtl.nic.work_queue import WorkQueue
from rtl.nic.wqe_decode import WQE_LAYOUT, decode, turn
from rtl.nic.wqe_dispatch import WqeDispatch
from spec.interfaces import DONE, NIC_REQUEST, NMC_REQUEST
from spec.params import MemParams, MeParams
from spec.wqe import Status

WRITTEN = ("wq_base", "wq_size", "wq_tail", "wq_reset")
READ = ("wq_base", "wq_size", "wq_tail", "wq_head", "wq_state")


class MessageEngine(Block):
    def __init__(self, me: MeParams, mem: MemParams):
        self.me, self.mem = me, mem
        register, done = In(IndexedRegisterSignature()), In(stream.Signature(layout(DONE)))
        super().__init__({
            "axi": Out(AXI4Signature.of(mem)),
            "nic_request": Out(stream.Signature(layout(NIC_REQUEST))), "nic_done": done,
            "nmc_request": Out(stream.Signature(layout(NMC_REQUEST))), "nmc_done": done,
            **dict.fromkeys(WRITTEN + READ, register),
            "cq_base": In(32), "cq_size": In(32), "cq_head": In(32), "wait_timeout": In(32),
            "cq_tail": Out(32), "event": Out(32), "event_pulse": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        me, mem, n = self.me, self.mem, self.me.queues
        m.submodules.memory = memory = MeMemory(me, mem)
        m.submodules.dispatch = dispatch = WqeDispatch(me, mem)
        m.submodules.cqes = cqes = CqeWriter(me, mem)
        queues = [WorkQueue(me, mem) for _ in range(n)]
        for i, queue in enumerate(queues):
            m.submodules[f"queue{i}"] = shared(queue)
        connect(m, memory.axi, flipped(self.axi))
        connect(m, dispatch.nic_request, flipped(self.nic_request))
        connect(m, dispatch.nmc_request, flipped(self.nmc_request))
        connect(m, dispatch.set, memory.set)
        connect(m, cqes.write, memory.cqe)

        self._registers(m, queues, cqes)
        body = self._fetched(m, queues, memory)
        self._start(m, queues, dispatch, body)
        self._end(m, queues, dispatch, memory, cqes)
        self._retire(m, queues, cqes)
        return m

    def _registers(self, m: Module, queues: list[WorkQueue], cqes: CqeWriter) -> None:
        wdata = Signal(32)  # at most one register is written a cycle
        for name in WRITTEN:
            port = getattr(self, name)
            with m.If(port.write):
                m.d.comb += wdata.eq(port.wdata)
            for i, q in enumerate(queues):
                m.d.comb += getattr(q, name.replace("wq", "write")).eq(port.write & (port.index == i))
        for q in queues:
            m.d.comb += [q.wdata.eq(wdata), q.enable.eq(self.cq_size != 0), q.wait_timeout.eq(self.wait_timeout)]
        for name in READ:
            port = getattr(self, name)
            value = Array(getattr(q, name[3:]) for q in queues)[port.index[: exact_log2(len(queues))]]
            m.d.sync += port.rdata.eq(Cat(value, cqes.cq_error) if name == "wq_state" else value)
        for name in ("cq_base", "cq_size", "cq_head"):
            m.d.comb += getattr(cqes, name).eq(getattr(self, name))
        for name in ("cq_tail", "event", "event_pulse"):
            m.d.comb += getattr(self, name).eq(getattr(cqes, name))

    def _fetched(self, m: Module, queues: list[WorkQueue], memory: MeMemory):
        """Answers of memory: WQEs into the store, words of polls to their WAIT. Returns the store's read port and addresses."""
        me = self.me
        place = data.StructLayout({"entry": exact_log2(me.prefetch), "queue": exact_log2(me.queues)})
        m.submodules.store = store = UninitialisedMemory(shape=WQE_LAYOUT, depth=me.queues * me.prefetch)
        write, read = store.write_port(), store.read_port()
        ctrl = decode(m, data.View(WQE_LAYOUT, memory.beat_data), memory.beat_error, self.mem.addr_width)
        of, put, get = memory.beat_queue, Signal(place), Signal(place)
        m.d.comb += [
            put.entry.eq(Array(q.beat_entry for q in queues)[of]), put.queue.eq(of),
            write.addr.eq(put), write.data.eq(memory.beat_data),
            write.en.eq(memory.beat_valid & Array(q.beat_wqe for q in queues)[of]),
            read.addr.eq(get),
        ]
        word = Signal(32)
        m.d.comb += word.eq(memory.beat_data.word_select(Array(q.lane for q in queues)[of], 32))
        for i, q in enumerate(queues):
            m.d.comb += [
                memory.read_want[i].eq(q.read_want), memory.read_addr[i].eq(q.read_addr),
                memory.read_len[i].eq(q.read_len), q.read_take.eq(memory.read_take[i]),
                q.beat_valid.eq(memory.beat_valid & (of == i)), q.beat_last.eq(memory.beat_last),
                q.beat_error.eq(memory.beat_error), q.beat_ctrl.eq(ctrl), q.beat_word.eq(word),
            ]
        return read, get

    def _start(self, m: Module, queues: list[WorkQueue], dispatch: WqeDispatch, body) -> None:
        read, get = body
        wants, take = Signal(len(queues)), Signal()
        m.d.comb += [wants.eq(Cat(q.start_want for q in queues)), take.eq(wants.any())]
        index = turn(m, "start", wants, advance=take)
        m.d.comb += [
            dispatch.take.eq(take), dispatch.queue.eq(index),
            dispatch.start.eq(Array(q.start.as_value() for q in queues)[index]),
            get.entry.eq(dispatch.start.entry), get.queue.eq(index),
            read.en.eq(take), dispatch.body.eq(read.data),
        ]
        for i, q in enumerate(queues):
            mine = Signal(name=f"started{i}")
            m.d.comb += [
                q.start_take.eq(take & (index == i)),
                mine.eq(dispatch.place.queue == i),
                q.wait_load.eq(dispatch.wait_load), q.wait_load.valid.eq(dispatch.wait_load.valid & mine),
                q.end_local.valid.eq(dispatch.local.valid & mine), q.end_local.slot.eq(dispatch.place.slot),
                q.room_nic.eq(dispatch.room_nic), q.room_nmc.eq(dispatch.room_nmc), q.room_set.eq(dispatch.room_set),
            ]

    def _end(self, m: Module, queues: list[WorkQueue], dispatch: WqeDispatch, memory: MeMemory, cqes: CqeWriter) -> None:
        """What ends a WQE: to its queue (it is done) and to the CQE writer (with what result)."""
        m.d.comb += cqes.start.eq(dispatch.info)
        for name in ("nic", "nmc"):
            done, kept = getattr(self, f"{name}_done"), getattr(cqes, f"end_{name}")
            word = done.payload
            m.d.comb += [
                done.ready.eq(1),
                kept.valid.eq(done.valid), kept.place.eq(word.tag),
                kept.what.status.eq(word.status), kept.what.byte_len.eq(word.byte_len), kept.what.imm.eq(word.imm),
                kept.what.info.eq(word.info),
            ]
            for i, q in enumerate(queues):
                end = getattr(q, f"end_{name}")
                m.d.comb += [
                    end.valid.eq(done.valid & (kept.place.queue == i)), end.slot.eq(kept.place.slot),
                    end.error.eq(word.status != Status.SUCCESS),
                ]
        kept = cqes.end_set
        m.d.comb += [kept.valid.eq(memory.set_valid), kept.place.eq(memory.set_place)]
        with m.If(memory.set_error):
            m.d.comb += kept.what.eq(Status.MEM_ERR)
        kept, waits = cqes.end_wait, Signal(len(queues))
        m.d.comb += waits.eq(Cat(q.wait_end for q in queues))
        index = turn(m, "wait", waits, advance=waits.any())
        m.d.comb += [
            kept.valid.eq(waits.any()), kept.queue.eq(index),
            kept.slot.eq(Array(q.wait_slot for q in queues)[index]),
            kept.what.eq(Array(q.wait_status for q in queues)[index]),
        ]
        for i, q in enumerate(queues):
            m.d.comb += [
                q.end_set.valid.eq(memory.set_valid & (memory.set_place.queue == i)),
                q.end_set.slot.eq(memory.set_place.slot), q.end_set.error.eq(memory.set_error),
                q.wait_take.eq(waits.any() & (index == i)),
            ]
        m.d.comb += [cqes.wrote_valid.eq(memory.cqe_valid), cqes.wrote_error.eq(memory.cqe_error)]

    def _retire(self, m: Module, queues: list[WorkQueue], cqes: CqeWriter) -> None:
        wants, take = Signal(len(queues)), Signal()
        m.d.comb += [wants.eq(Cat(q.retire_want for q in queues)), take.eq(wants.any() & cqes.retire_ready)]
        index = turn(m, "retire", wants, advance=take)
        retire = cqes.retire
        m.d.comb += [
            retire.valid.eq(take), retire.queue.eq(index),
            retire.slot.eq(Array(q.retire_slot for q in queues)[index]),
            retire.what.eq(Array(q.head for q in queues)[index]),
        ]
        for i, q in enumerate(queues):
            m.d.comb += q.retire_take.eq(take & (index == i))
