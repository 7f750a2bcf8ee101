"""Near-memory compute: D = A op B, or D = A, on arrays in memory, 64 bytes of each operand a cycle.

Contract
    * A request (NMC_REQUEST) names A, B and D by byte address, a length in bytes, a type and an operation; each gives exactly one
      DONE, in the order of the requests, after every write response of the job has come.
    * REDUCE: float32, bfloat16, float16, int32; sum, min, max. Narrow types widen exactly to binary32; the sum is rounded to
      binary32; with `scale_en` it is multiplied by `scale` and rounded to binary32; last it is rounded once to the narrow type (all
      to nearest, ties to even). min and max propagate NaN and order -0 below +0. int32 sums wrap. NaN results are canonical.
    * COPY: any length in bytes; bits never change; `rop`, `dtype`, `scale_en`, `addr_b` are ignored and B is not read.
    * D may be A or B exactly, and A may be B. Any other overlap within a job, and any overlap of one job's D with an operand or D
      of a job given before the first one's DONE, is undefined: the requester orders dependent jobs (wqe_sync, fence).
    * Length 0: SUCCESS at once, no bus beat. Else addresses must be multiples of 64 and the length a multiple of the element.
    * Whole beats are read (up to 63 bytes beyond a length; never beyond the last 64-byte word it touches); only the bytes of D that
      the length covers are written.

Refusals (nothing read or written), first that applies; `byte_len` is 0
    LOC_QP_OP_ERR  rop 3, or int32 with scale_en; info 0
    (length 0: SUCCESS)
    ALIGN_ERR      info: first of A, B, D that is not a multiple of 64; 0 when it is the length
    LOC_LEN_ERR    addr + length > 2^addr_width; info: first of A, B, D concerned
MEM_ERR: memory answered SLVERR or DECERR. info: address of the first 64-byte word of A or B that failed (the lower offset; A before
B); if no read failed, the first byte of the first burst of D that failed. D is not written from the first failed read on. The
job's remaining beats still pass (with no byte enabled), and later jobs run.

Parameters: `NmcParams.queue`: up to 2 * queue jobs (at least 4) are held between request and DONE. `MemParams`: port sizes.
Members: `request` In stream NMC_REQUEST; `done` Out stream DONE; `axi_a` AXI4 manager, reads A and writes D; `axi_b` AXI4 manager,
reads B (its write channels are idle); `busy` Out, 1 in every cycle in which a beat of D that writes is handed over.
Latency: 3 cycles from request to first address; 8 from the first beat of both operands to the first beat of D. Interval: one
beat a cycle in every type and operation, with memory latencies up to READ_DEPTH - 64 cycles; no bubble between jobs, whose reads start while
earlier writes drain. Write bursts are opened when their first beat is there.

Assumptions:
1. Memory answers each port's reads and writes in order (one id is used); guarded by AXI4.
2. Dependent jobs are ordered by the requester; guarded by the plan lowering of the library.
3. Streams obey valid/ready; guarded by the stream checkers of every bench.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rtl.common.axi4 import AXI4Signature, Burst
from rtl.common.block import Block, shared
from rtl.common.layouts import layout
from rtl.mem.nmc_lane import LANE_CONFIG, STAGES, NmcLane
from rtl.mem.nmc_read import BEATS_BITS, NmcReader, burst_beats
from rtl.numeric.pipeline import wire
from spec.interfaces import DONE, NMC_REQUEST
from spec.params import MemParams, NmcParams
from spec.wqe import DType, ReduceOp, Status

READ_DEPTH = 256  # beats of buffer per operand
BURSTS = 16  # write bursts whose response has not come


class NearMemoryCompute(Block):
    """See the module's contract."""

    def __init__(self, nmc: NmcParams, mem: MemParams):
        self.nmc, self.mem = nmc, mem
        self.jobs = max(4, 2 * nmc.queue)
        super().__init__({
            "request": In(stream.Signature(layout(NMC_REQUEST))),
            "done": Out(stream.Signature(layout(DONE))),
            "axi_a": Out(AXI4Signature.of(mem)),
            "axi_b": Out(AXI4Signature.of(mem)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        self._queues(m)
        self._front(m)
        self._readers(m)
        self._feed(m)
        self._lanes(m)
        self._responses(m)
        return m

    def _queues(self, m: Module) -> None:
        """Job queues (all of the same depth: the order queue is full first), and the queues of write bursts."""
        addr = self.mem.addr_width

        def queue(name, fields, depth):
            shape = data.StructLayout(fields)
            fifo = SyncFIFOBuffered(width=shape.size, depth=depth)
            m.submodules[name] = fifo
            head = Signal(shape, name=f"{name}_head")
            m.d.comb += head.eq(fifo.r_data)
            return fifo, head, shape

        read = {"addr": addr, "beats": BEATS_BITS}
        self.to_a, self.head_a, self.read_job = queue("to_a", read, self.jobs)
        self.to_b, self.head_b, _ = queue("to_b", read, self.jobs)
        self.to_feed, self.head_feed, self.feed_job = queue("to_feed", {
            "config": LANE_CONFIG, "scale": 32, "a": addr, "b": addr, "d": addr, "beats": BEATS_BITS, "tail": 6,
        }, self.jobs)
        self.order, self.head_order, self.order_job = queue("order", {
            "tag": 16, "status": 8, "length": 32, "info": 64, "runs": 1,
        }, self.jobs)
        self.read_result, self.head_read_result, self.result = queue("read_result", {"error": 1, "addr": addr}, self.jobs)
        self.finished, self.head_finished, _ = queue("finished", {"error": 1, "addr": addr}, self.jobs)
        self.bursts, self.head_burst, self.burst = queue("bursts", {"addr": addr, "last": 1}, BURSTS)
        self.to_aw, self.head_aw, self.aw = queue("to_aw", {"addr": addr, "len": 6}, 4)

    def _front(self, m: Module) -> None:
        """Check a request; queue it to the readers, to the feeder and in order."""
        q = self.request.payload
        width = self.mem.addr_width
        used = {"a": q.addr_a, "b": q.addr_b, "d": q.addr_d}
        skip = {"a": Const(0, 1), "b": q.copy, "d": Const(0, 1)}
        crooked = {k: wire(m, v[:6].any() & ~skip[k], f"crooked_{k}") for k, v in used.items()}
        beyond = {k: wire(m, (v + q.length > 1 << width) & ~skip[k], f"beyond_{k}") for k, v in used.items()}
        two_bytes = wire(m, (q.dtype == DType.BFLOAT16) | (q.dtype == DType.FLOAT16), "two_bytes")
        part = wire(m, ~q.copy & (q.length[0] | (q.length[1] & ~two_bytes)), "part")
        unknown = (q.rop > ReduceOp.MAX) | (q.scale_en & (q.dtype == DType.INT32))
        status = Signal(8)
        info = Signal(64)
        runs = Signal()
        m.d.comb += status.eq(Status.SUCCESS)
        with m.If(~q.copy & unknown):
            m.d.comb += status.eq(Status.LOC_QP_OP_ERR)
        with m.Elif(q.length == 0):
            pass
        with m.Elif(Cat(*crooked.values()).any() | part):
            m.d.comb += status.eq(Status.ALIGN_ERR)
            m.d.comb += info.eq(Mux(crooked["a"], q.addr_a, Mux(crooked["b"], q.addr_b, Mux(crooked["d"], q.addr_d, 0))))
        with m.Elif(Cat(*beyond.values()).any()):
            m.d.comb += status.eq(Status.LOC_LEN_ERR)
            m.d.comb += info.eq(Mux(beyond["a"], q.addr_a, Mux(beyond["b"], q.addr_b, q.addr_d)))
        with m.Else():
            m.d.comb += runs.eq(1)
        beats = wire(m, (q.length + 63)[6:33], "beats")
        accept = wire(m, self.request.valid & self.request.ready, "accept")
        job = Signal(self.feed_job, name="new_job")
        order = Signal(self.order_job, name="new_order")
        m.d.comb += [
            self.request.ready.eq(self.order.w_rdy),
            job.config.copy.eq(q.copy),
            job.config.rop.eq(Mux(q.copy, 0, q.rop)),
            job.config.dtype.eq(Mux(q.copy, DType.INT32, q.dtype)),
            job.config.scale_en.eq(q.scale_en & ~q.copy),
            job.scale.eq(q.scale),
            job.a.eq(q.addr_a), job.b.eq(q.addr_b), job.d.eq(q.addr_d),
            job.beats.eq(beats), job.tail.eq(q.length),
            order.tag.eq(q.tag), order.status.eq(status), order.info.eq(info), order.runs.eq(runs),
            order.length.eq(Mux(status == Status.SUCCESS, q.length, 0)),
            self.to_a.w_data.eq(Cat(q.addr_a[:width], beats)), self.to_a.w_en.eq(accept & runs),
            self.to_b.w_data.eq(Cat(q.addr_b[:width], beats)), self.to_b.w_en.eq(accept & runs & ~q.copy),
            self.to_feed.w_data.eq(job), self.to_feed.w_en.eq(accept & runs),
            self.order.w_data.eq(order), self.order.w_en.eq(accept),
        ]

    def _readers(self, m: Module) -> None:
        self.a, self.b = NmcReader(self.mem, READ_DEPTH), NmcReader(self.mem, READ_DEPTH)
        m.submodules.read_a, m.submodules.read_b = shared(self.a), shared(self.b)
        for reader, jobs, head, axi in (
            (self.a, self.to_a, self.head_a, self.axi_a), (self.b, self.to_b, self.head_b, self.axi_b),
        ):
            m.d.comb += [
                reader.job.payload.addr.eq(head.addr), reader.job.payload.beats.eq(head.beats),
                reader.job.valid.eq(jobs.r_rdy), jobs.r_en.eq(reader.job.ready),
                axi.ar.payload.eq(reader.ar.payload), axi.ar.valid.eq(reader.ar.valid), reader.ar.ready.eq(axi.ar.ready),
                reader.r.payload.eq(axi.r.payload), reader.r.valid.eq(axi.r.valid), axi.r.ready.eq(reader.r.ready),
            ]
        m.d.comb += self.axi_b.b.ready.eq(1)

    def _feed(self, m: Module) -> None:
        """Pair the operands' beats, open write bursts, and send each beat into the lanes with what its write needs."""
        width = self.mem.addr_width
        job = Signal(self.feed_job)
        active = Signal()
        offset = Signal(BEATS_BITS)  # beats done
        in_burst = Signal(6)  # beats left in the open burst
        failed = Signal(name="read_failed")
        failed_addr = Signal(width, name="read_failed_addr")
        move = self.move = Signal(name="move")
        n = burst_beats(m, job.d, job.beats, "write")
        opening = wire(m, in_burst == 0, "opening")
        room = ~opening | (self.bursts.w_rdy & self.to_aw.w_rdy)
        fire = wire(m, active & self.a.data.valid & (job.config.copy | self.b.data.valid) & room & move, "fire")
        last = wire(m, job.beats == 1, "last")
        fail_a = self.a.data.payload.error
        fail_now = wire(m, ~failed & (fail_a | (self.b.data.payload.error & ~job.config.copy)), "fail_now")
        fail_addr = wire(m, (Mux(fail_a, job.a, job.b) + Cat(Const(0, 6), offset))[:width], "fail_addr")
        result = Signal(self.result, name="read_outcome")
        m.d.comb += [
            self.a.data.ready.eq(fire),
            self.b.data.ready.eq(fire & ~job.config.copy),
            self.bursts.w_en.eq(fire & opening),
            self.bursts.w_data.eq(Cat(job.d, job.beats == n)),
            self.to_aw.w_en.eq(fire & opening),
            self.to_aw.w_data.eq(Cat(job.d, (n - 1)[:6])),
            result.error.eq(failed | fail_now),
            result.addr.eq(Mux(failed, failed_addr, fail_addr)),
            self.read_result.w_en.eq(fire & last),
            self.read_result.w_data.eq(result),
            self.to_feed.r_en.eq(~active | (fire & last)),
        ]
        with m.If(self.to_feed.r_en):
            m.d.sync += active.eq(self.to_feed.r_rdy)
            with m.If(self.to_feed.r_rdy):
                m.d.sync += [job.eq(self.head_feed), offset.eq(0), failed.eq(0)]
        with m.Elif(fire):
            m.d.sync += [job.d.eq(job.d + 64), job.beats.eq(job.beats - 1), offset.eq(offset + 1)]
            with m.If(fail_now):
                m.d.sync += [failed.eq(1), failed_addr.eq(fail_addr)]
        with m.If(fire):
            m.d.sync += in_burst.eq(Mux(opening, n - 1, in_burst - 1))

        # what travels beside the data: configuration, scale (until stage 3), and the write beat's strobes and end of burst
        beside = data.StructLayout({"last": 1, "tail": 6, "none": 1})
        valid = self.valid = Signal(STAGES, name="valid")
        enable = self.enable = Signal(STAGES, name="enable")
        config = self.config = Signal(data.ArrayLayout(LANE_CONFIG, STAGES), name="config")
        held_config = Signal(data.ArrayLayout(LANE_CONFIG, STAGES))
        scales = Signal(data.ArrayLayout(32, 3))
        notes = Signal(data.ArrayLayout(beside, STAGES - 1))
        note = Signal(beside)
        m.d.comb += [
            note.last.eq(Mux(opening, n == 1, in_burst == 1)),
            note.tail.eq(Mux(last, job.tail, 0)),
            note.none.eq(failed | fail_now),
            enable.eq(Mux(move, Cat(fire, valid[:-1]), 0)),
            config[0].eq(job.config),
        ]
        m.d.comb += [config[k].eq(held_config[k - 1]) for k in range(1, STAGES)]
        with m.If(move):
            m.d.sync += valid.eq(Cat(fire, valid[:-1]))
        for k in range(STAGES):
            with m.If(enable[k]):
                if k < STAGES - 1:
                    m.d.sync += notes[k].eq(notes[k - 1] if k else note)
                m.d.sync += held_config[k].eq(held_config[k - 1] if k else job.config)
                if k < 3:
                    m.d.sync += scales[k].eq(scales[k - 1] if k else job.scale)
        self.scale, self.note, self.last_config = scales[2], notes[STAGES - 2], held_config[STAGES - 1]

    def _lanes(self, m: Module) -> None:
        """16 full and 16 half lanes, and the register of the write channel."""
        a, b = self.a.data.payload.data, self.b.data.payload.data
        words = []

        def narrow(config):
            return (config.dtype == DType.BFLOAT16) | (config.dtype == DType.FLOAT16)

        half_enable = Signal(STAGES)
        m.d.comb += half_enable.eq(Cat(self.enable[k] & narrow(self.config[k]) for k in range(STAGES)))
        two = wire(m, narrow(self.last_config), "two")
        for i in range(self.nmc.width // 4):
            full, half = NmcLane(1), NmcLane(0)
            m.submodules[f"full{i}"], m.submodules[f"half{i}"] = shared(full), shared(half)
            low, high = 32 * i, 32 * i + 16
            m.d.comb += [
                full.enable.eq(self.enable), half.enable.eq(half_enable),
                full.config.eq(self.config), half.config.eq(self.config),
                full.scale.eq(self.scale), half.scale.eq(self.scale),
                full.a.eq(a[low:low + 32]), full.b.eq(b[low:low + 32]),
                half.a.eq(a[high:low + 32]), half.b.eq(b[high:low + 32]),
            ]
            words.append(Cat(full.d[:16], Mux(two, half.d, full.d[16:])))
        w, aw = self.axi_a.w, self.axi_a.aw
        out_last = Signal()
        out_strb = Signal(64)
        tail = self.note.tail
        strobes = wire(m, Mux(tail == 0, (1 << 64) - 1, (Const(1, 65) << tail)[:64] - 1)[:64], "strobes")
        with m.If(self.enable[-1]):
            m.d.sync += [out_last.eq(self.note.last), out_strb.eq(Mux(self.note.none, 0, strobes))]
        m.d.comb += [
            w.payload.data.eq(Cat(*words)), w.payload.last.eq(out_last), w.payload.strb.eq(out_strb),
            w.valid.eq(self.valid[-1]),
            self.move.eq(~self.valid[-1] | w.ready),
            self.busy.eq(w.valid & w.ready & out_strb[0]),  # every beat that writes writes its first byte
            aw.valid.eq(self.to_aw.r_rdy),
            self.to_aw.r_en.eq(aw.ready),
            aw.payload.addr.eq(self.head_aw.addr),
            aw.payload.len.eq(self.head_aw.len),
            aw.payload.size.eq(6),
            aw.payload.burst.eq(Burst.INCR),
        ]

    def _responses(self, m: Module) -> None:
        """Collect write responses burst by burst; a job is finished with its last; DONE in order."""
        resp = self.axi_a.b
        failed = Signal(name="write_failed")
        failed_addr = Signal(self.mem.addr_width, name="write_failed_addr")
        bad = wire(m, resp.payload.resp[1], "bad")
        end = wire(m, resp.valid & self.head_burst.last, "end")
        result = Signal(self.result, name="outcome")
        with m.If(self.head_read_result.error):
            m.d.comb += result.eq(self.head_read_result)
        with m.Else():
            m.d.comb += [result.error.eq(failed | bad), result.addr.eq(Mux(failed, failed_addr, self.head_burst.addr))]
        m.d.comb += [
            resp.ready.eq(1),
            self.bursts.r_en.eq(resp.valid),
            self.read_result.r_en.eq(end),
            self.finished.w_en.eq(end),
            self.finished.w_data.eq(result),
        ]
        with m.If(end):
            m.d.sync += failed.eq(0)
        with m.Elif(resp.valid & bad & ~failed):
            m.d.sync += [failed.eq(1), failed_addr.eq(self.head_burst.addr)]
        job, end_of = self.head_order, self.head_finished
        broken = wire(m, job.runs & end_of.error, "broken")
        done = self.done.payload
        m.d.comb += [
            self.done.valid.eq(self.order.r_rdy & (~job.runs | self.finished.r_rdy)),
            done.tag.eq(job.tag),
            done.status.eq(Mux(broken, Status.MEM_ERR, job.status)),
            done.byte_len.eq(Mux(broken, 0, job.length)),
            done.info.eq(Mux(broken, end_of.addr, job.info)),
            self.order.r_en.eq(self.done.valid & self.done.ready),
            self.finished.r_en.eq(self.done.valid & self.done.ready & job.runs),
        ]
