"""Command processor: circular buffers, what an instruction waits for, and programs carried out one instruction at a time.

Rules (spec/isa.py, docs/blocks/command_processor.md)
    * An instruction starts when every operand it reads has ``max(offset + bytes, pop)`` bytes published, and what it writes as many free
      (with `push`). Its addresses are those of the pointers then, which move on at once; bytes are freed and published when it is done.
    * What can never start is an error: NO_BUFFER, TOO_LARGE, STRADDLES (an operand is one piece of its buffer), BAD_OP.
    * After an error nothing starts any more (FLUSHED). When nothing can start and nothing is at work, what is left ends in STUCK.

A program's result does not depend on when units are done, as long as the cores share a side of a buffer only behind WAIT: this model carries
instructions out in the order in which they can start, the first core first.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spec.isa import CBS, CONTROL_ARGS, EVENT_BITS, EVENTS, OPERANDS, UNITS, Control, CpStatus, Unit

Instruction = Mapping[str, int]
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
    """State of the processor; `run` carries out programs."""

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
            most = max(offset + nbytes, i[f"{name}_{amount}"])
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

    def control(self, i: Instruction) -> CpStatus | None:
        """Carry out a CONTROL instruction; None: it waits. (SYNC never does here: nothing is at work between two instructions.)"""
        args = CONTROL_ARGS.unpack(i["args"])
        if i["op"] in (Control.NOP, Control.SYNC):
            return CpStatus.OK
        if i["op"] == Control.SET:
            self.events[i["event"]] = args["value"]
        elif i["op"] == Control.WAIT:
            return CpStatus.OK if self.events[i["event"]] >= args["value"] else None
        elif i["op"] == Control.BUFFER:
            if args["base"] % 64 or args["size"] % 64:
                return CpStatus.BUSY
            self.buffers[args["cb"]] = Buffer(base=args["base"], size=args["size"], space=args["size"])
        else:
            return CpStatus.BAD_OP
        return CpStatus.OK

    def run(self, programs: Sequence[Sequence[Instruction]], carry: Carry) -> list[Completion]:
        """Carry out a program for each core, to the end: a completion for every instruction."""
        cores = [deque(p) for p in programs]
        out: list[Completion] = []
        moved = True
        while any(cores) and moved:
            moved = False
            for core, queue in enumerate(cores):
                while queue and not self.failed:
                    i = queue[0]
                    info = 0
                    if i["unit"] == Unit.CONTROL:
                        status = self.control(i)
                    elif i["unit"] not in list(UNITS):
                        status = CpStatus.BAD_OP
                    else:
                        status = self.blocked(i)
                        if status == CpStatus.OK:
                            code, extra = carry(Unit(i["unit"]), i["op"], i["args"], self.start(i))
                            self.done(i)
                            if code:
                                status, info = CpStatus.UNIT, code | extra << 8
                    if status is None:
                        break
                    queue.popleft()
                    moved = True
                    out.append(Completion(i["tag"], core, i["unit"], status, info))
                    if status != CpStatus.OK:
                        self.failed = True
                    elif i["unit"] != Unit.CONTROL and i["event_use"]:
                        self.events[i["event"]] = (self.events[i["event"]] + 1) % (1 << EVENT_BITS)
        rest = CpStatus.FLUSHED if self.failed else CpStatus.STUCK
        for core, queue in enumerate(cores):
            out += [Completion(i["tag"], core, i["unit"], rest) for i in queue]
            self.failed |= bool(queue)
        return out
