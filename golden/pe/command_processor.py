"""Command processor: circular buffers, queues of the units, what an instruction waits for, and programs carried out one instruction at a time.

Rules (spec/isa.py, docs/blocks/command_processor.md)
    * An instruction starts when every operand it reads has ``max(offset + bytes, pop)`` bytes published, and what it writes as many free
      (with `push`). Its addresses are those of the pointers then, which move on at once; bytes are freed and published when it is done.
    * A core's instructions go to the queues of their units in order; a unit starts its own in order. Out of the core's queue comes only what has room
      there, and what changes no side of a buffer before another unit's that waits for it (CONTROL: when its turn is).
    * What can never start is an error: NO_BUFFER, TOO_LARGE, STRADDLES (an operand is one piece of its buffer), BAD_OP.
    * After an error nothing starts any more (FLUSHED). When nothing can start and nothing is at work, what is left ends in STUCK.

A program's result does not depend on when units are done, as long as the cores share a side of a buffer only behind WAIT: this model carries
instructions out in an order in which they can start, the first core first, each to its end.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spec.isa import CBS, CONTROL_ARGS, EVENT_BITS, EVENTS, OPERANDS, UNITS, Control, CpStatus, Unit

Instruction = Mapping[str, int]
End = Callable[..., None]  # core, instruction, status, info
Carry = Callable[[Unit, int, int, tuple[int, int, int]], tuple[int, int]]  # unit, op, args, addresses -> status, info


@dataclass
class Buffer:
    """A circular buffer: pointers in bytes from its base; `avail` published and not yet popped by a started instruction; `space` free and not
    yet promised to one."""

    base: int = 0
    size: int = 0
    read: int = 0
    write: int = 0
    avail: int = 0
    space: int = 0


@dataclass
class Completion:
    tag: int
    core: int
    unit: int
    status: CpStatus
    info: int = 0


@dataclass
class CommandProcessor:
    """State of the processor; `run` carries out programs.

    Attributes:
        queue: instructions that wait for a unit, at most.
        waiting: by unit, (core, instruction).
    """

    queue: int = 4
    waiting: dict[int, deque[tuple[int, Instruction]]] = field(default_factory=lambda: {int(u): deque() for u in UNITS})
    buffers: list[Buffer] = field(default_factory=lambda: [Buffer() for _ in range(CBS)])
    events: list[int] = field(default_factory=lambda: [0] * EVENTS)
    failed: bool = False

    def blocked(self, i: Instruction) -> CpStatus | None:
        """OK: it can start now. None: it waits. Otherwise the error it ends in."""
        for name, amount in OPERANDS.items():
            if not i[f"{name}_use"]:
                continue
            b = self.buffers[i[f"{name}_cb"]]
            offset, nbytes = i[f"{name}_offset"], i[f"{name}_bytes"]
            popped = i["a_pop"] if name == "b" and i["a_use"] and i["a_cb"] == i["b_cb"] else 0
            most = max(offset + nbytes, i[f"{name}_{amount}"] + popped)
            if b.size == 0:
                return CpStatus.NO_BUFFER
            if most > b.size:
                return CpStatus.TOO_LARGE
            if most > (b.space if name == "d" else b.avail):
                return None
            if ((b.write if name == "d" else b.read) + offset) % b.size + nbytes > b.size:
                return CpStatus.STRADDLES
        return CpStatus.OK

    def start(self, i: Instruction) -> tuple[int, int, int]:
        """Addresses of the operands (0 without); the pointers move on."""
        out = []
        for name in OPERANDS:
            b = self.buffers[i[f"{name}_cb"]]
            used = i[f"{name}_use"]
            out.append(b.base + ((b.write if name == "d" else b.read) + i[f"{name}_offset"]) % b.size if used else 0)
        for name, amount in OPERANDS.items():
            if i[f"{name}_use"]:
                b, n = self.buffers[i[f"{name}_cb"]], i[f"{name}_{amount}"]
                if name == "d":
                    b.write, b.space = (b.write + n) % b.size, b.space - n
                else:
                    b.read, b.avail = (b.read + n) % b.size, b.avail - n
        return out[0], out[1], out[2]

    def done(self, i: Instruction) -> None:
        """What was popped is free, what was pushed is published."""
        for name, amount in OPERANDS.items():
            if i[f"{name}_use"]:
                b, n = self.buffers[i[f"{name}_cb"]], i[f"{name}_{amount}"]
                if name == "d":
                    b.avail += n
                else:
                    b.space += n

    def clashes(self, i: Instruction) -> bool:
        """Whether another unit's instruction that waits must come first."""
        others = [j for unit, queue in self.waiting.items() if unit != i["unit"] for _, j in queue]

        def uses(j: Instruction, name: str, cb: int, what: str) -> bool:
            return bool(j[f"{name}_use"]) and j[f"{name}_cb"] == cb and bool(what == "any" or j[f"{name}_{what}"])

        for name, amount in OPERANDS.items():
            if not i[f"{name}_use"]:
                continue
            cb = i[f"{name}_cb"]
            sides, what = (("d",), "any") if name == "d" else (("a", "b"), "any" if i[f"{name}_{amount}"] else "pop")
            if any(uses(j, side, cb, what) for j in others for side in sides):
                return True
        return False

    def control(self, i: Instruction, core: int = 0) -> CpStatus | None:
        """Carry out a CONTROL instruction; None: it waits. (Nothing is at work between two instructions: SYNC waits for what waits.)"""
        args = CONTROL_ARGS.unpack(i["args"])
        waiting = [x for queue in self.waiting.values() for x in queue]
        if i["op"] == Control.NOP:
            return CpStatus.OK
        if i["op"] == Control.SYNC:
            return None if any(c == core for c, _ in waiting) else CpStatus.OK
        if i["op"] == Control.SET:
            self.events[i["event"]] = args["value"]
        elif i["op"] == Control.WAIT:
            return CpStatus.OK if self.events[i["event"]] >= args["value"] else None
        elif i["op"] == Control.BUFFER:
            used = any(j[f"{name}_use"] and j[f"{name}_cb"] == args["cb"] for _, j in waiting for name in OPERANDS)
            if used or args["base"] % 64 or args["size"] % 64:
                return CpStatus.BUSY
            self.buffers[args["cb"]] = Buffer(base=args["base"], size=args["size"], space=args["size"])
        else:
            return CpStatus.BAD_OP
        return CpStatus.OK

    def run(self, programs: Sequence[Sequence[Instruction]], carry: Carry) -> list[Completion]:
        """Carry out a program for each core, to the end: a completion for every instruction."""
        cores = [deque(p) for p in programs]
        out: list[Completion] = []

        def end(core: int, i: Instruction, status: CpStatus, info: int = 0) -> None:
            out.append(Completion(i["tag"], core, i["unit"], status, info))
            self.failed |= status != CpStatus.OK

        moved = True
        while moved and not self.failed:
            moved = False
            for core, queue in enumerate(cores):
                while queue and not self.failed and self._dispatch(core, queue[0], end):
                    queue.popleft()
                    moved = True
                    self._start_all(carry, end)
            moved |= self._start_all(carry, end)
        rest = CpStatus.FLUSHED if self.failed else CpStatus.STUCK
        for core, i in [x for w in self.waiting.values() for x in w] + [(core, i) for core, queue in enumerate(cores) for i in queue]:
            end(core, i, rest)
        for w in self.waiting.values():
            w.clear()
        return out

    def _dispatch(self, core: int, i: Instruction, end: End) -> bool:
        """A core's next instruction: carried out (CONTROL), refused, or given to its unit's queue; False: it waits."""
        if i["unit"] == Unit.CONTROL:
            status = self.control(i, core)
            if status is not None:
                end(core, i, status)
            return status is not None
        if i["unit"] not in self.waiting:
            end(core, i, CpStatus.BAD_OP)
            return True
        w = self.waiting[i["unit"]]
        if len(w) >= self.queue or self.clashes(i):
            return False
        w.append((core, i))
        return True

    def _start_all(self, carry: Carry, end: End) -> bool:
        """Carry out whatever can start now, to its end; whether there was something."""
        some = moved = False
        while not self.failed:
            moved = False
            for unit, w in self.waiting.items():
                status = self.blocked(w[0][1]) if w and not self.failed else None
                if status is None:
                    continue
                core, i = w.popleft()
                some = moved = True
                if status != CpStatus.OK:
                    end(core, i, status)
                    continue
                code, info = carry(Unit(unit), i["op"], i["args"], self.start(i))
                self.done(i)
                if code:
                    end(core, i, CpStatus.UNIT, code | info << 8)
                    continue
                end(core, i, CpStatus.OK)
                if i["event_use"]:
                    self.events[i["event"]] = (self.events[i["event"]] + 1) % (1 << EVENT_BITS)
            if not moved:
                break
        return some
