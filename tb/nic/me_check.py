"""What a message engine may do: checks a log of one run against the WQEs that were posted, knowing nothing of the hardware.

A WQE's earliest legal start follows from the times at which the WQEs it must wait for were done. Of a NOOP neither is seen: it counts
as done at its earliest legal start, so what waits for it is held to what the NOOP had to wait for.
"""
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from spec.interfaces import NIC_REQUEST, NMC_REQUEST
from spec.wqe import CQE, Compare, DType, Flag, Op, ReduceOp, Status

NIC_OPS = (Op.SEND, Op.SEND_IMM, Op.RECV, Op.WRITE, Op.WRITE_IMM, Op.READ)
NMC_OPS = (Op.REDUCE, Op.COPY)


class Illegal(AssertionError):
    """The engine did what it must not do."""


def need(holds: bool, text: str) -> None:
    if not holds:
        raise Illegal(text)


@dataclass
class Log:
    """Events of a run, each a dict with the cycle `now`."""

    nic: list[dict] = field(default_factory=list)
    nmc: list[dict] = field(default_factory=list)
    nic_done: list[dict] = field(default_factory=list)
    nmc_done: list[dict] = field(default_factory=list)
    aw: list[dict] = field(default_factory=list)
    w: list[dict] = field(default_factory=list)
    b: list[dict] = field(default_factory=list)
    ar: list[dict] = field(default_factory=list)
    r: list[dict] = field(default_factory=list)


def static_status(w: dict, addr_width: int) -> tuple[int, int]:
    """(status, info) of a WQE that cannot run, (0, 0) of one that can."""
    op, flags = w.get("opcode", 0), w.get("flags", 0)
    if op > max(Op) or flags >> 6 or w.get("_reserved", 0):
        return Status.LOC_QP_OP_ERR, 0
    if op == Op.REDUCE and (w.get("rop", 0) > max(ReduceOp) or w.get("dtype", 0) > max(DType)):
        return Status.LOC_QP_OP_ERR, 0
    if op == Op.WAIT and w.get("cmp", 0) > max(Compare):
        return Status.LOC_QP_OP_ERR, 0
    if op in (Op.WAIT, Op.SET):
        addr = w.get("addr_a" if op == Op.WAIT else "addr_d", 0)
        if addr % 4:
            return Status.ALIGN_ERR, addr
        if addr >> addr_width:
            return Status.MEM_ERR, addr
    return 0, 0


def injected(w: dict) -> tuple[int, int]:
    """(status, info) that the stand-in of a unit answers."""
    op = w["opcode"]
    at = w.get("addr_d", 0) if op in (Op.RECV, Op.READ) else w.get("addr_a", 0)
    status = at >> 48 & 0xFF
    return status, at & (1 << 48) - 1 if status else 0


def expected_request(w: dict, tag: int) -> dict:
    """The request of a NIC or near-memory WQE."""
    g = defaultdict(int, w)
    op = g["opcode"]
    if op in NMC_OPS:
        copy = int(op == Op.COPY)
        scale = int(bool(g["flags"] & Flag.SCALE) and not copy)
        want = NMC_REQUEST.unpack(0) | {k: g[k] for k in ("length", "addr_a", "addr_b", "addr_d", "scale")}
        return want | {"tag": tag, "copy": copy, "scale_en": scale, "rop": g["rop"] & 3, "dtype": g["dtype"] & 3}
    local = {Op.RECV: "addr_d", Op.READ: "addr_d"}.get(op, "addr_a")
    remote = {Op.READ: "addr_a", Op.WRITE: "addr_d", Op.WRITE_IMM: "addr_d"}.get(op, "")
    want = NIC_REQUEST.unpack(0) | {k: g[k] for k in ("opcode", "qpn", "length", "lkey", "rkey", "imm")}
    return want | {"tag": tag, "laddr": g[local], "raddr": g[remote] if remote else 0}


class Check:
    """One run: `program[q]` the WQEs of queue q from position 0, `window` of the engine.

    Args:
        wait_status: status of each SET and WAIT that does not succeed, by (q, i). bad_fetch: position of the WQE that cannot be read, by q.
        first_cqe: CQEs before this log. late_start: cycles after an error was known in which a request may still show.
    """

    def __init__(self, program: dict[int, list[dict]], log: Log, *, window: int, addr_width: int = 32, cq_size: int,
                 cq_base: int, wait_status: dict | None = None, bad_fetch: dict[int, int] | None = None, first_cqe: int = 0,
                 late_start: int | None = None):
        self.late_start = late_start
        self.program, self.log, self.window, self.addr_width = program, log, window, addr_width
        self.cq_size, self.cq_base, self.first_cqe = cq_size, cq_base, first_cqe
        self.wait_status, self.bad_fetch = wait_status or {}, bad_fetch or {}
        self.start: dict[tuple[int, int], int] = {}
        self.done: dict[tuple[int, int], int] = {}
        self.cqes: list[dict] = []

    def run(self) -> None:
        self._cqes()
        self._units("nic", NIC_OPS)
        self._units("nmc", NMC_OPS)
        self._sets()
        self._waits()
        for q in self.program:
            self._order(q)
        self._completions()

    def ran(self, q: int, i: int) -> bool:
        """Whether a unit may have seen WQE i: not flushed, not refused."""
        return i < self.cut[q] and not self._refused(q, i)[0]

    def _refused(self, q: int, i: int) -> tuple[int, int]:
        if self.bad_fetch.get(q) == i:
            return Status.MEM_ERR, -1
        return static_status(self.program[q][i], self.addr_width)

    def _cqes(self) -> None:
        """CQEs in the order written; the ring's places and phases; the first flushed WQE of each queue."""
        need(len(self.log.aw) == len(self.log.w), "an address without data, or data without address")
        self.cut = {q: len(p) for q, p in self.program.items()}
        for aw, w in zip(self.log.aw, self.log.w, strict=True):
            need(aw["addr"] % 64 == 0, f"write address {aw['addr']:#x} is not aligned")
            if aw["id"] != 0:
                continue
            n = self.first_cqe + len(self.cqes)
            at = self.cq_base + n % self.cq_size * 32
            need(aw["addr"] == at - at % 64 and w["strb"] == ((1 << 32) - 1) << at % 64, f"CQE {n} is not at {at:#x}")
            cqe = CQE.unpack(w["data"])
            need(CQE.pack(cqe) == w["data"], f"CQE {n}: reserved bits set")
            need(cqe["phase"] == (n // self.cq_size + 1) % 2, f"CQE {n}: phase {cqe['phase']}")
            self.cqes.append(cqe | {"now": aw["now"]})
            q = cqe["queue"]
            need(q in self.program, f"CQE {n}: queue {q}")
            if cqe["status"] == Status.WR_FLUSH_ERR and self.wait_status.get((q, cqe["wqe_index"])) != cqe["status"]:
                self.cut[q] = min(self.cut[q], cqe["wqe_index"])

    def _units(self, unit: str, ops: tuple) -> None:
        """Requests are those of the program, in order and complete; answers' times."""
        todo = {q: [i for i, w in enumerate(p) if w.get("opcode", 0) in ops and self.ran(q, i)] for q, p in self.program.items()}
        at = dict.fromkeys(todo, 0)
        running: dict[int, tuple[int, int]] = {}
        log, done = getattr(self.log, unit), getattr(self.log, f"{unit}_done")
        events = sorted([(e["now"], 1, e) for e in log] + [(e["now"], 0, e) for e in done], key=lambda e: e[:2])
        for now, request, e in events:
            if not request:
                need(e["tag"] in running, f"{unit}: answer to a tag that is not outstanding (bench)")
                self.done[running.pop(e["tag"])] = now
                continue
            got = e["request"]
            q, slot = divmod(got["tag"], self.window)
            need(q in todo and at[q] < len(todo[q]), f"{unit}: request too many, queue {q}")
            i = todo[q][at[q]]
            at[q] += 1
            need(slot == i % self.window, f"{unit}: queue {q} WQE {i} has slot {slot}")
            want = expected_request(self.program[q][i], got["tag"])
            need(got == want, f"{unit}: queue {q} WQE {i}: request {got}, expected {want}")
            need(got["tag"] not in running, f"{unit}: tag {got['tag']} is used twice")
            running[got["tag"]] = (q, i)
            self.start[q, i] = now
        for q, n in at.items():
            need(n == len(todo[q]), f"{unit}: queue {q}: {n} of {len(todo[q])} requests")
        need(not running, f"{unit}: not answered: {running}")

    def _sets(self) -> None:
        places = {w.get("addr_d", 0): (q, i) for q, p in self.program.items() for i, w in enumerate(p)
                  if w.get("opcode") == Op.SET and self.ran(q, i)}
        answers = [b["now"] for b in self.log.b if b["id"] == 1]
        sets = [(a, w) for a, w in zip(self.log.aw, self.log.w, strict=True) if a["id"] == 1]
        need(len(sets) == len(places) == len(answers), f"{len(sets)} SET writes of {len(places)}, {len(answers)} answers")
        for (aw, w), b in zip(sets, answers, strict=True):
            lane = (w["strb"] & -w["strb"]).bit_length() - 1
            need(w["strb"] == 0xF << lane and lane % 4 == 0, f"SET strobes {w['strb']:#x}")
            key = places.pop(aw["addr"] + lane, None)
            need(key is not None, f"SET at {aw['addr'] + lane:#x} is in no WQE, or twice")
            word = w["data"] >> 8 * (lane % 32) & 0xFFFFFFFF
            need(word == self.program[key[0]][key[1]].get("imm", 0), f"SET {key} wrote {word:#x}")
            self.start[key], self.done[key] = aw["now"], b

    def _waits(self) -> None:
        """Polls: a WAIT starts with its first, and is not done before its last was answered."""
        reads = defaultdict(list)
        answers = defaultdict(list)
        for r in self.log.r:
            if r["last"]:
                answers[r["id"]].append(r["now"])
        for ar in self.log.ar:
            reads[ar["id"]].append(ar)
        polled = defaultdict(list)
        for q, list_ in reads.items():
            need(len(list_) == len(answers[q]), f"queue {q}: {len(list_)} reads, {len(answers[q])} answers")
            for ar, now in zip(list_, answers[q], strict=True):
                polled[q, ar["addr"]].append((ar["now"], now))
        self.polls = {}
        for q, p in self.program.items():
            for i, w in enumerate(p):
                if w.get("opcode") == Op.WAIT:
                    polls = polled[q, w.get("addr_a", 0) & ~63]
                    given_up = polls and i == self.cut[q]
                    need(bool(polls) == self.ran(q, i) or given_up, f"WAIT {q}, {i}: {len(polls)} polls")
                    if polls:
                        self.start[q, i], self.done[q, i] = polls[0][0], polls[-1][1]
                        self.polls[q, i] = polls

    def _order(self, q: int) -> None:
        """No WQE starts before what it must wait for is done."""
        program, earliest = self.program[q], -1
        recv_done, all_done, barrier = -1, -1, -1
        done: list[int] = []
        for i, w in enumerate(program[: self.cut[q]]):
            flags, back = w.get("flags", 0), w.get("wqe_sync", 0)
            if self.bad_fetch.get(q) == i:
                flags = back = 0
            earliest = max(earliest, barrier)
            if flags & Flag.RX_SYNC:
                earliest = max(earliest, recv_done)
            if flags & Flag.SYNC:
                earliest = max(earliest, all_done)
            if back and i - back >= 0:
                earliest = max(earliest, done[i - back])
            if i >= self.window:
                earliest = max(earliest, done[i - self.window])
            start = self.start.get((q, i))
            need(start is None or start > earliest, f"queue {q} WQE {i} ({w}) started at {start}, legal after {earliest}")
            end = self.done.get((q, i), earliest)
            done.append(end)
            all_done = max(all_done, end)
            if w.get("opcode") == Op.RECV:
                recv_done = max(recv_done, end)
            if flags & Flag.FENCE or w.get("opcode") == Op.WAIT:
                barrier = max(barrier, end)
        if self.late_start is not None:
            known = [done[i] for i in range(self.cut[q]) if (q, i) in self.done and (self.expected_cqe(q, i) or {"status": 0})["status"]]
            for i in range(self.cut[q]):
                late = self.start.get((q, i), -1) - min(known, default=1 << 32)
                need(late <= self.late_start, f"queue {q} WQE {i} started {late} cycles after an error was known")
        self.done |= {(q, i): t for i, t in enumerate(done)}

    def expected_cqe(self, q: int, i: int) -> dict | None:
        """Fields of the CQE of WQE i, None when it has none."""
        w = defaultdict(int, self.program[q][i])
        blind = i >= self.bad_fetch.get(q, len(self.program[q]))
        status, info, length, imm = 0, 0, 0, 0
        if i >= self.cut[q]:
            status = int(Status.WR_FLUSH_ERR)
        elif self._refused(q, i)[0]:
            status, info = self._refused(q, i)
        elif w["opcode"] in NIC_OPS + NMC_OPS:
            status, info = injected(w)
            if not status:
                length, imm = w["length"], w["imm"] if w["opcode"] in NIC_OPS else 0
        elif (q, i) in self.wait_status:
            status = self.wait_status[q, i]
            info = 0 if status == Status.WR_FLUSH_ERR else w["addr_a"] or w["addr_d"]
        if not status and not w["flags"] & Flag.SIGNALED:
            return None
        names = dict.fromkeys(("wr_id", "opcode", "qpn"), 0) if blind else {k: w[k] for k in ("wr_id", "opcode", "qpn")}
        return names | {"status": int(status), "queue": q, "byte_len": length, "imm": imm, "wqe_index": i, "info": info}

    def _completions(self) -> None:
        """CQEs: those expected, in each queue's order, none before its WQE and all earlier of the queue are done."""
        for q, p in self.program.items():
            want = [c for c in (self.expected_cqe(q, i) for i in range(len(p))) if c]
            got = [c for c in self.cqes if c["queue"] == q]
            need(len(got) == len(want), f"queue {q}: {len(got)} CQEs, expected {len(want)}")
            for g, x in zip(got, want, strict=True):
                keys = [k for k in x if not (k == "info" and x[k] == -1)]
                need(all(g[k] == x[k] for k in keys), f"queue {q}: CQE {g}, expected {x}")
                last = max((self.done.get((q, j), -1) for j in range(min(g["wqe_index"] + 1, self.cut[q]))), default=-1)
                need(g["now"] > last, f"queue {q}: CQE {g} before its data at {last}")
            if self.cut[q] < len(p):
                failed = [i for i in range(self.cut[q]) if (self.expected_cqe(q, i) or {"status": 0})["status"]]
                need(bool(failed), f"queue {q}: flushed from {self.cut[q]} without an error")
