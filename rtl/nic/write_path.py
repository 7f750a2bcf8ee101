"""Payload of packets received: AXI writes to any byte address, and the completions that wait for them.

Members
    `command`  In stream write_command: one per packet with payload, and one per completion without
    `data`     In stream of packet beats: the payloads, in the order of the commands with `length` above 0
    `axi`      Out({aw, w, b}): INCR bursts, byte strobes, never across 4 KiB
    `done`     Out stream DONE
    `error`    Out stream {qp, epoch}: a write of this QP was answered with an error
    `landed`   Out stream {qp, epoch, failed, addr}: payload of a READ (`read`): the last of it is in memory (`notify`), or some could not be written

Rules
    1. Only bytes of the payload are strobed; a payload with `drop` is consumed and not written.
    2. Completions (`emit`) leave in the order of the commands, each after the B responses of every command before it, so the data a DONE
       speaks of is visible in memory.
    3. When a write of a message in a RECV buffer (`send` set) failed, the next completion of its QP is MEM_ERR with the packet's address,
       whatever its own status. When one of a WRITE message failed, the next completion of its QP is, if it would be SUCCESS: it would tell
       that what came before is in memory.

Timing: command to `aw` 2 cycles, to the first `w` 1 cycle. A packet takes ceil((addr % 64 + length) / 64) cycles; no gap between packets.

Assumptions
    A1. Memory answers every burst, in order (all have ID 0).
    A2. `error` is taken at once by the responder when idle; the queue holds as many as there can be outstanding commands, so it never fills.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block
from rtl.common.layouts import layout, packet_layout
from rtl.nic.queue_pair import qp_bits
from spec.interfaces import DONE
from spec.params import MemParams, NicParams
from spec.wqe import Status

BYTES = 64
OUTSTANDING = 32  # commands whose B responses or completions are not done


def write_command(p: NicParams) -> data.StructLayout:
    return data.StructLayout({
        "drop": 1, "addr": 64, "length": 13, "qp": qp_bits(p), "epoch": 2, "send": 1, "read": 1, "notify": 1,
        "emit": 1, "tag": 16, "status": 8, "byte_len": 32, "imm": 32, "info": 64,
    })


def write_error(p: NicParams) -> data.StructLayout:
    return data.StructLayout({"qp": qp_bits(p), "epoch": 2})


def landed_layout(p: NicParams) -> data.StructLayout:
    return data.StructLayout({"qp": qp_bits(p), "epoch": 2, "failed": 1, "addr": 64})


class WritePath(Block):
    def __init__(self, nic: NicParams, mem: MemParams):
        self.nic, self.mem = nic, mem
        axi = AXI4Signature.of(mem)
        super().__init__({
            "command": In(stream.Signature(write_command(nic))),
            "data": In(stream.Signature(packet_layout())),
            "axi": Out(wiring.Signature({name: axi.members[name] for name in ("aw", "w", "b")})),
            "done": Out(stream.Signature(layout(DONE))),
            "error": Out(stream.Signature(write_error(nic))),
            "landed": Out(stream.Signature(landed_layout(nic))),
        })

    def elaborate(self, platform):
        m = Module()
        p = self.nic
        burst_job = data.StructLayout({"addr": self.mem.addr_width, "beats": 8})
        data_job = data.StructLayout({"drop": 1, "to_page": 7, "off": 6, "length": 13})
        wait_job = data.StructLayout({
            "bursts": 2, "addr": 64, "qp": qp_bits(p), "epoch": 2, "send": 1, "read": 1, "notify": 1,
            "emit": 1, "tag": 16, "status": 8, "byte_len": 32, "imm": 32, "info": 64,
        })
        m.submodules.bursts = bursts = SyncFIFO(width=burst_job.size, depth=4)
        m.submodules.datas = datas = SyncFIFO(width=data_job.size, depth=4)
        m.submodules.waits = waits = SyncFIFO(width=wait_job.size, depth=OUTSTANDING)
        m.submodules.landings = landings = SyncFIFO(width=landed_layout(p).size, depth=OUTSTANDING)
        m.submodules.errors = errors = SyncFIFO(width=write_error(p).size, depth=2 * OUTSTANDING)

        # A command goes to all three queues.
        command = self.command.payload
        some, written, accept = Signal(), Signal(), Signal()
        beats, to_page = Signal(8), Signal(7)
        in_burst, in_data, in_wait = Signal(burst_job), Signal(data_job), Signal(wait_job)
        m.d.comb += [
            self.command.ready.eq(bursts.w_rdy & datas.w_rdy & waits.w_rdy), accept.eq(self.command.valid & self.command.ready),
            some.eq(command.length != 0), written.eq(some & ~command.drop),
            beats.eq((command.addr[:6] + command.length + (BYTES - 1)) >> 6), to_page.eq(BYTES - command.addr[6:12]),
            in_burst.addr.eq(Cat(Const(0, 6), command.addr[6:self.mem.addr_width])), in_burst.beats.eq(beats),
            in_data.drop.eq(command.drop), in_data.to_page.eq(to_page), in_data.off.eq(Mux(command.drop, 0, command.addr[:6])),
            in_data.length.eq(command.length),
            in_wait.bursts.eq(Mux(written, Mux(beats > to_page, 2, 1), 0)),
            *(in_wait[name].eq(command[name]) for name in ("addr", "qp", "epoch", "send", "read", "notify", "emit", "tag", "status", "byte_len", "imm", "info")),
            bursts.w_data.eq(in_burst), bursts.w_en.eq(accept & written),
            datas.w_data.eq(in_data), datas.w_en.eq(accept & some),
            waits.w_data.eq(in_wait), waits.w_en.eq(accept & (written | command.emit | command.notify)),
        ]

        # Bursts.
        aw, w, b = self.axi.aw, self.axi.w, self.axi.b
        addr, left = Signal(self.mem.addr_width), Signal(8)
        page, now = Signal(7), Signal(8)
        next_burst = Signal(burst_job)
        m.d.comb += [
            next_burst.eq(bursts.r_data), bursts.r_en.eq(left == 0),
            page.eq(BYTES - addr[6:12]), now.eq(Mux(left > page, page, left)),
        ]
        with m.If(aw.ready):
            m.d.sync += aw.valid.eq(0)
        with m.If(left == 0):
            with m.If(bursts.r_rdy):
                m.d.sync += [addr.eq(next_burst.addr), left.eq(next_burst.beats)]
        with m.Elif(~aw.valid | aw.ready):
            m.d.sync += [
                aw.valid.eq(1), aw.payload.addr.eq(addr), aw.payload.len.eq(now - 1), aw.payload.size.eq(6),
                aw.payload.burst.eq(Burst.INCR), left.eq(left - now), addr.eq(addr + (now << 6)),
            ]

        # Beats: rotate left by the byte offset; a beat is the end of the flit before and the start of this one.
        job = Signal(data_job)
        total_flits, total_beats, beat = Signal(8), Signal(8), Signal(8)
        turned, carry, old = Signal(8 * BYTES), Signal(8 * BYTES), Signal(8 * BYTES)
        end_bytes, back = Signal(6), Signal(7)
        space, step, final, use = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            job.eq(datas.r_data), end_bytes.eq(job.off + job.length),
            total_flits.eq((job.length + (BYTES - 1)) >> 6), total_beats.eq((job.off + job.length + (BYTES - 1)) >> 6),
            final.eq(beat + 1 == total_beats), use.eq(beat < total_flits),
            space.eq(~w.valid | w.ready | job.drop),
            step.eq(datas.r_rdy & space & (self.data.valid | ~use)),
            self.data.ready.eq(datas.r_rdy & space & use), datas.r_en.eq(step & final),
            back.eq(BYTES - job.off), turned.eq(Cat(self.data.payload.data, self.data.payload.data) >> (back << 3)),
            old.eq((1 << (job.off << 3)) - 1),
        ]
        with m.If(w.ready):
            m.d.sync += w.valid.eq(0)
        with m.If(step):
            m.d.sync += [beat.eq(Mux(final, 0, beat + 1)), carry.eq(turned)]
            with m.If(~job.drop):
                strobe = Signal(BYTES)
                m.d.comb += strobe.eq(~0)
                with m.If(final & (end_bytes != 0)):
                    m.d.comb += strobe.eq((1 << end_bytes) - 1)
                m.d.sync += [
                    w.valid.eq(1), w.payload.data.eq((carry & old) | (turned & ~old)),
                    w.payload.strb.eq(strobe & Mux(beat == 0, ((1 << BYTES) - 1) << job.off, (1 << BYTES) - 1)),
                    w.payload.last.eq(final | (beat + 1 == job.to_page)),
                ]

        # Responses and completions, in order of the commands.
        head = Signal(wait_job)
        bursts_left = Signal(2)
        failed_now = Signal()
        sticky = Memory(shape=data.StructLayout({"failed": 1, "write": 1, "epoch": 2, "addr": 64}), depth=p.qps, init=[])
        m.submodules.sticky = sticky
        mark_rd, mark_wr = sticky.read_port(), sticky.write_port()
        bad, fail, marked, mark = Signal(), Signal(), Signal(), mark_rd.data
        entry, landing, land = Signal(write_error(p)), Signal(landed_layout(p)), Signal()
        done = self.done.payload
        m.d.comb += [
            head.eq(waits.r_data), mark_rd.addr.eq(head.qp), mark_wr.addr.eq(head.qp),
            entry.qp.eq(head.qp), entry.epoch.eq(head.epoch), errors.w_data.eq(entry),
            self.error.payload.eq(errors.r_data), self.error.valid.eq(errors.r_rdy), errors.r_en.eq(self.error.ready),
            done.tag.eq(head.tag), done.status.eq(head.status), done.byte_len.eq(head.byte_len), done.qpn.eq(head.qp),
            done.info.eq(head.info), done.imm.eq(head.imm),
            land.eq(head.notify | (head.read & failed_now)), landing.qp.eq(head.qp), landing.epoch.eq(head.epoch), landing.failed.eq(failed_now),
            landing.addr.eq(head.addr), landings.w_data.eq(landing),
            self.landed.payload.eq(landings.r_data), self.landed.valid.eq(landings.r_rdy), landings.r_en.eq(self.landed.ready),
            bad.eq(b.valid & b.ready & b.payload.resp[1]), fail.eq(failed_now & (head.send | head.emit)),
            marked.eq(mark.failed & Mux(mark.write, (mark.epoch == head.epoch) & (~head.emit | (head.status == Status.SUCCESS)), 1)),
        ]
        with m.If(marked | fail):
            m.d.comb += [
                done.status.eq(Status.MEM_ERR), done.byte_len.eq(0), done.imm.eq(0), done.info.eq(Mux(marked, mark.addr, head.addr)),
            ]
        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):  # memories keep their contents over a reset
                clear = Signal(qp_bits(p))
                m.d.comb += [mark_wr.addr.eq(clear), mark_wr.en.eq(1)]
                m.d.sync += clear.eq(clear + 1)
                with m.If(clear == p.qps - 1):
                    m.next = "TAKE"
            with m.State("TAKE"):  # one cycle to read the QP's mark
                m.d.sync += [bursts_left.eq(head.bursts), failed_now.eq(0)]
                with m.If(waits.r_rdy):
                    m.next = "RESPONSES"
                    with m.If(head.bursts == 0):
                        m.next = "END"
            with m.State("RESPONSES"):
                m.d.comb += b.ready.eq(1)
                with m.If(b.valid):
                    m.d.sync += bursts_left.eq(bursts_left - 1)
                    with m.If(bad):
                        m.d.sync += failed_now.eq(1)
                    with m.If(bursts_left == 1):
                        m.next = "END"
            with m.State("END"):
                m.d.comb += [
                    self.done.valid.eq(head.emit), waits.r_en.eq(Mux(land, landings.w_rdy, ~head.emit | self.done.ready)),
                    landings.w_en.eq(waits.r_en & land), errors.w_en.eq(waits.r_en & failed_now & ~head.read),
                ]
                with m.If(waits.r_en & head.read):
                    m.next = "TAKE"
                with m.Elif(waits.r_en):
                    m.d.comb += [
                        mark_wr.en.eq(failed_now | (head.emit & mark.failed)),
                        mark_wr.data.failed.eq(~head.emit), mark_wr.data.write.eq(~head.send & ~(marked & ~mark.write)),
                        mark_wr.data.epoch.eq(head.epoch), mark_wr.data.addr.eq(Mux(marked, mark.addr, head.addr)),
                    ]
                    m.next = "TAKE"
        return m
