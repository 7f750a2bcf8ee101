"""Functional message engine: work queues in node memory, their WQEs, the completion ring, and near-memory compute.

Rules (design.md section 6, spec/wqe.py):

1. The WQEs of a queue are read and start in order; one is read after the one before it started. One that may not
   start yet holds those behind it; queues are independent.
2. A WQE may start when: no earlier FENCE or WAIT of its queue is unfinished; with `wqe_sync` k the WQE k places
   back is done (one before the first of the queue counts as done); with RX_SYNC every earlier RECV of the queue is
   done; with SYNC every earlier WQE is done; fewer than `window` WQEs of the queue are between start and
   retirement; its queue pair's send or receive queue has room.
3. WQEs finish in any order; they retire, and write their CQEs, in queue order. A successful WQE writes a CQE when
   SIGNALED, a failed or flushed one always. The data is in memory before the CQE.
4. CQE number t goes to entry t mod size of the ring with phase 1 on even laps, 0 on odd ones; no CQE is written
   while the ring is full; nothing starts while its size is 0.
5. A failed WQE puts its queue in error: a WAIT that runs and every WQE not started end in WR_FLUSH_ERR, until
   `wq_reset`. That forgets WQEs not started, ends a WAIT that runs in WR_FLUSH_ERR, lets what runs finish with its CQE
   (`wq_state` bit 2 until then), and makes the queue new.
6. Near-memory compute runs REDUCE and COPY of all queues one after another, in the order they started. D equal to A
   or B is exact; a partial overlap reads both operands whole before it writes. Up to the first 64 bytes that a
   read or write is refused for, D is written.
7. Codes outside their enumeration (opcode, rop, dtype, cmp), unknown flags, reserved bits, and SCALE with INT32 end
   in LOC_QP_OP_ERR. The queue pair refuses what the NIC cannot do.
8. `byte_len` of a CQE is what a queue pair, REDUCE or COPY moved; 0 for the other ops and on errors.

Near-memory compute and the queue pairs act when `step` of their owner is called, not when the WQE starts: a caller
that varies the order of steps sees every interleaving that the ordering flags allow.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from golden.mem import nmc
from golden.mem.memory import AccessError, Memory, check_operands, check_word
from spec.params import NodeParams
from spec.wqe import CQE, CQE_BYTES, WQE, WQE_BYTES, Compare, DType, Flag, Op, ReduceOp, Status

M32 = 0xFFFFFFFF
QP_OPS = frozenset({Op.SEND, Op.SEND_IMM, Op.RECV, Op.WRITE, Op.WRITE_IMM, Op.READ})
COMPARE: dict[int, Callable[[int, int], bool]] = {
    Compare.EQ: int.__eq__,
    Compare.NE: int.__ne__,
    Compare.GE: int.__ge__,
    Compare.LT: int.__lt__,
}
FENCE, RX_SYNC, SYNC, SIGNALED, EVENT, SCALE = (
    int(f) for f in (Flag.FENCE, Flag.RX_SYNC, Flag.SYNC, Flag.SIGNALED, Flag.EVENT, Flag.SCALE))
_ALL_FLAGS = sum(int(f) for f in Flag)
_RESERVED = WQE.offsets["_reserved"]
_FIELDS = tuple((name, WQE.offsets[name], (1 << WQE.widths[name]) - 1) for name in WQE.unpack(0))


class Work:
    """One WQE from its start to its retirement."""

    __slots__ = ("engine", "queue", "index", "wqe", "op", "done", "status", "byte_len", "imm", "info")

    def __init__(self, engine: MessageEngine, queue: Queue, index: int, wqe: dict[str, int]):
        self.engine, self.queue, self.index, self.wqe = engine, queue, index, wqe
        self.op = wqe["opcode"]
        self.done = False
        self.status = Status.SUCCESS
        self.byte_len = self.imm = self.info = 0

    def finish(self, status: Status = Status.SUCCESS, *, byte_len: int = 0, imm: int = 0, info: int = 0) -> None:
        """Called once, by whoever ran it."""
        assert not self.done, f"{self.describe()} finished twice"
        self.done, self.status, self.byte_len, self.imm, self.info = True, status, byte_len, imm, info
        self.queue.unfinished -= 1
        self.queue.receives -= self.op == Op.RECV
        if status != Status.SUCCESS:
            self.engine.fail(self.queue)

    def describe(self) -> str:
        w = self.wqe
        try:
            name = Op(self.op).name
        except ValueError:
            return f"WQE {self.index} (opcode {self.op})"
        text = f"WQE {self.index} ({name}"
        if self.op in QP_OPS:
            text += f" qp {w['qpn']}, {w['length']} B"
        elif self.op in (Op.REDUCE, Op.COPY):
            text += f" {w['length']} B to {w['addr_d']:#x}"
        elif self.op == Op.WAIT:
            text += f" [{w['addr_a']:#x}] {Compare(w['cmp']).name} {w['imm']}" if w["cmp"] in COMPARE else ""
        elif self.op == Op.SET:
            text += f" [{w['addr_d']:#x}] = {w['imm']}"
        return text + f", wr_id {w['wr_id']})"


class Queue:
    """State of one work queue. Counters run from 0 since the queue was made; registers show them modulo 2^32."""

    def __init__(self, number: int):
        self.number = number
        self.base = self.size = 0
        self.clear()

    def clear(self) -> None:
        self.tail = 0  # register
        self.issued = self.head = 0
        self.error = self.resetting = False
        self.works: deque[Work] = deque()  # started or held by nothing, not retired: indices head .. issued - 1
        self.unfinished = self.receives = 0
        self.barrier: Work | None = None
        self.next: Work | None = None  # read from memory, not started
        self.held = ""  # why it may not start

    @property
    def pending(self) -> int:
        """WQEs posted and not started."""
        return (self.tail - self.issued) & M32


class QueuePairs(Protocol):
    """What the engine needs of the NIC."""

    def room(self, work: Work) -> bool: ...
    def post(self, work: Work) -> None: ...


class MessageEngine:
    """The engine of one node with its near-memory compute."""

    def __init__(self, params: NodeParams, memory: Memory, nic: QueuePairs):
        self.params, self.memory, self.nic = params, memory, nic
        self.queues = [Queue(i) for i in range(params.me.queues)]
        self.cq_base = self.cq_size = self.cq_tail = self.cq_head = 0
        self.events = 0
        self.wait_timeout = 0
        self.nmc_queue: deque[Work] = deque()
        self.nmc_busy = 0

    # -- control ---------------------------------------------------------------------------------------------------

    def doorbell(self, queue: Queue, tail: int) -> None:
        """Raises ValueError during a reset, or when more WQEs are posted than the ring holds: some would be overwritten."""
        if queue.resetting:
            raise ValueError(f"queue {queue.number}: doorbell while {queue.works[0].describe()} is still to end")
        queue.tail = tail & M32
        outstanding = (queue.tail - queue.head) & M32
        if outstanding > queue.size:
            raise ValueError(f"queue {queue.number}: {outstanding} WQEs posted and not done, the ring has {queue.size}")

    def reset_queue(self, queue: Queue) -> None:
        """Forget what has not started; the queue is new when what runs has ended."""
        queue.tail, queue.next, queue.held = queue.issued & M32, None, ""
        self.fail(queue)
        queue.resetting = True
        self._retire(queue)

    def fail(self, queue: Queue) -> None:
        """Put a queue in error; a WAIT in progress is given up."""
        if queue.error:
            return
        queue.error = True
        for work in queue.works:
            if work.op == Op.WAIT and not work.done:
                work.finish(Status.WR_FLUSH_ERR)

    # -- one step of each actor; True when something changed --------------------------------------------------------

    def step_queue(self, queue: Queue) -> bool:
        """Poll the WAIT in progress, retire what is done, start the next WQE if it may start."""
        moved = self._poll(queue) | self._retire(queue)
        if not queue.pending or not self.cq_size:
            queue.held = "cq_size is 0" if queue.pending else ""
            return moved
        if len(queue.works) >= self.params.me.window:
            queue.held = f"window of {self.params.me.window} WQEs full"
            return moved
        if queue.next is None:
            queue.next = self._fetch(queue)
        work = queue.next
        queue.held = "" if queue.error or work.done else self._blocked(queue, work)
        if queue.held:
            return moved
        queue.next = None
        queue.issued += 1
        queue.works.append(work)
        if not work.done:
            queue.unfinished += 1
            queue.receives += work.op == Op.RECV
            if queue.error:
                work.finish(Status.WR_FLUSH_ERR)
            else:
                self._start(queue, work)
        self._retire(queue)
        return True

    def step_nmc(self) -> bool:
        """Run the oldest REDUCE or COPY."""
        if not self.nmc_queue:
            return False
        work = self.nmc_queue.popleft()
        try:
            self._compute(work.wqe, work.op)
        except AccessError as e:
            work.finish(e.status, info=e.address)
        else:
            work.finish(byte_len=work.wqe["length"])
        self._retire(work.queue)
        return True

    def expire_waits(self) -> bool:
        """End every WAIT in progress in WAIT_TIMEOUT, when the timer is on."""
        waits = [w for q in self.queues for w in q.works if w.op == Op.WAIT and not w.done] if self.wait_timeout else []
        for work in waits:
            work.finish(Status.WAIT_TIMEOUT, info=work.wqe["addr_a"])
            self._retire(work.queue)
        return bool(waits)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fetch(self, queue: Queue) -> Work:
        at = queue.base + (queue.issued % queue.size) * WQE_BYTES
        try:
            word = int.from_bytes(self.memory.view(at, WQE_BYTES).tobytes(), "little")
        except AccessError as e:
            work = Work(self, queue, queue.issued, WQE.unpack(0))
            work.done, work.status, work.info = True, e.status, e.address
            self.fail(queue)
            return work
        work = Work(self, queue, queue.issued, {name: word >> at & mask for name, at, mask in _FIELDS})
        if word >> _RESERVED or work.wqe["flags"] & ~_ALL_FLAGS:
            work.done, work.status = True, Status.LOC_QP_OP_ERR
            self.fail(queue)
        return work

    def _blocked(self, queue: Queue, work: Work) -> str:
        flags, k = work.wqe["flags"], work.wqe["wqe_sync"]
        if queue.barrier is not None:
            if not queue.barrier.done:
                return f"{queue.barrier.describe()} before it is a barrier"
            queue.barrier = None
        if k and work.index - k >= queue.head:
            target = queue.works[work.index - k - queue.head]
            if not target.done:
                return f"wqe_sync on {target.describe()}"
        if flags & RX_SYNC and queue.receives:
            return f"rx_sync: {queue.receives} RECV before it not done"
        if flags & SYNC and queue.unfinished:
            return f"sync: {queue.unfinished} WQE before it not done"
        if work.op in QP_OPS and not self.nic.room(work):
            return f"queue of qp {work.wqe['qpn']} full"
        return ""

    def _start(self, queue: Queue, work: Work) -> None:
        w, op = work.wqe, work.op
        if op == Op.WAIT or w["flags"] & FENCE:
            queue.barrier = work
        if op in QP_OPS:
            self.nic.post(work)
        elif op == Op.NOOP:
            work.finish()
        elif op == Op.WAIT and w["cmp"] in COMPARE:
            self._poll(queue)
        elif op == Op.SET:
            try:
                check_word(w["addr_d"])
                self.memory.set_word(w["addr_d"], w["imm"])
            except AccessError as e:
                work.finish(e.status, info=e.address)
            else:
                work.finish()
        elif op == Op.COPY or (op == Op.REDUCE and self._can_reduce(w)):
            self.nmc_queue.append(work)
        else:
            work.finish(Status.LOC_QP_OP_ERR)

    @staticmethod
    def _can_reduce(w: dict[str, int]) -> bool:
        if w["rop"] not in ReduceOp._value2member_map_ or w["dtype"] not in DType._value2member_map_:
            return False
        return not (w["flags"] & SCALE and w["dtype"] == DType.INT32)

    def _poll(self, queue: Queue) -> bool:
        work = queue.barrier
        if work is None or work.done or work.op != Op.WAIT:
            return False
        try:
            check_word(work.wqe["addr_a"])
            if not COMPARE[work.wqe["cmp"]](self.memory.word(work.wqe["addr_a"]), work.wqe["imm"]):
                return False
        except AccessError as e:
            work.finish(e.status, info=e.address)
        else:
            work.finish()
        return True

    def _compute(self, w: dict[str, int], op: int) -> None:
        mem, n, a, b, d = self.memory, w["length"], w["addr_a"], w["addr_b"], w["addr_d"]
        operands = (a, d) if op == Op.COPY else (a, b, d)
        dtype = None if op == Op.COPY else DType(w["dtype"])
        check_operands(*operands, length=n, dtype=dtype, addr_width=self.params.mem.addr_width)
        whole, refusal, given = n, None, n
        for k, addr in enumerate(operands):
            try:
                mem.check(addr, n)
            except AccessError as e:
                if e.address - addr < whole:
                    whole, refusal = e.address - addr, e
                if k < len(operands) - 1:  # read, not only written
                    given = min(given, e.address - addr)
        self.nmc_busy += -(-given // self.params.nmc.width)  # beats of the result that are given to memory, also when it refuses them
        if dtype is None:
            mem.write(d, nmc.copy(mem.view(a, whole)))
        else:
            scale = w["scale"] if w["flags"] & SCALE else None
            mem.write(d, nmc.reduce(mem.view(a, whole), mem.view(b, whole), dtype, ReduceOp(w["rop"]), scale))
        if refusal is not None:
            raise refusal

    def _retire(self, queue: Queue) -> bool:
        moved = False
        while queue.works and queue.works[0].done:
            work = queue.works[0]
            flags = work.wqe["flags"]
            if work.status != Status.SUCCESS or flags & SIGNALED:
                if (self.cq_tail - self.cq_head) & M32 >= self.cq_size:
                    break
                self._write_cqe(work)
                self.events = self.events + bool(flags & EVENT) & M32
            queue.works.popleft()
            queue.head += 1
            moved = True
        if queue.resetting and not queue.works:
            queue.clear()
        return moved

    def _write_cqe(self, work: Work) -> None:
        lap, slot = divmod(self.cq_tail, self.cq_size)
        cqe = CQE.pack(
            wr_id=work.wqe["wr_id"], status=work.status, opcode=work.op, queue=work.queue.number, phase=~lap & 1,
            byte_len=work.byte_len, imm=work.imm, qpn=work.wqe["qpn"] if work.op in QP_OPS else 0,
            wqe_index=work.index & M32, info=work.info,
        )
        at = self.cq_base + slot * CQE_BYTES
        self.memory.view(at, CQE_BYTES)[:] = bytearray(cqe.to_bytes(CQE_BYTES, "little"))
        self.cq_tail = self.cq_tail + 1 & M32

    def report(self) -> list[str]:
        """What each queue with work left waits for, a line each."""
        lines = []
        for q in self.queues:
            full = q.works and q.works[0].done
            for work in q.works:
                if not work.done:
                    what = "a message" if work.op == Op.RECV else "its queue pair"
                    if work.op == Op.WAIT:
                        what = f"memory, which holds {self.memory.word(work.wqe['addr_a'])}"
                    elif work.op in (Op.REDUCE, Op.COPY):
                        what = "near-memory compute"
                    lines.append(f"queue {q.number}: {work.describe()} waits for {what}")
            if full:
                lines.append(
                    f"queue {q.number}: {q.works[0].describe()} is done; the completion ring is full "
                    f"(tail {self.cq_tail}, head {self.cq_head}, size {self.cq_size})"
                )
            if q.pending:
                held = q.next.describe() if q.next is not None else f"WQE {q.issued}"
                why = q.held or "not yet seen"
                lines.append(f"queue {q.number}: {held} and {q.pending - 1} behind it are held: {why}")
        return lines
