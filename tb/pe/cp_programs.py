"""Programs for the command processor's bench: random ones that can be carried out, and the check of what the units wrote down."""
from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np

from golden.pe.command_processor import CommandProcessor, Completion
from spec.isa import COMPLETION, CONTROL_ARGS, INSTRUCTION, OPERANDS, UNITS, Control, CpStatus, Unit
from spec.params import PeParams, config
from tb.lib.bench import Bench
from tb.pe.cp_harness import TRACE, WHO

Instruction = dict[str, int]
NAMES = [f.name for f in INSTRUCTION.fields if not f.name.startswith("_")]


def control(op: int, *, tag: int = 0, event: int = 0, value: int = 0, cb: int = 0, base: int = 0, size: int = 0) -> Instruction:
    args = CONTROL_ARGS.pack(value=value, cb=cb, base=base, size=size)
    return dict.fromkeys(NAMES, 0) | dict(unit=int(Unit.CONTROL), op=int(op), tag=tag, event=event, args=args)


def work(unit: int, number: int, *, cycles: int = 0, status: int = 0, tag: int | None = None, event: int | None = None, **operands: tuple[int, int, int, int]) -> Instruction:
    """`a`, `b`, `d`: (buffer, offset, bytes, pop or push)."""
    i = dict.fromkeys(NAMES, 0) | dict(unit=int(unit), op=number % 32, tag=number & 0xFFFF if tag is None else tag,
                                       args=WHO.pack(cycles=cycles, status=status, number=number))
    if event is not None:
        i |= dict(event_use=1, event=event)
    for name, (cb, offset, nbytes, amount) in operands.items():
        i |= {f"{name}_use": 1, f"{name}_cb": cb, f"{name}_offset": offset, f"{name}_bytes": nbytes, f"{name}_{OPERANDS[name]}": amount}
    return i


def packed(program: list[Instruction]) -> np.ndarray:
    return np.frombuffer(b"".join(INSTRUCTION.to_bytes(i) for i in program), np.uint8).reshape(len(program), INSTRUCTION.nbytes)


def random_program(rng: np.random.Generator, n: int, *, cbs: range, events: range, start: int = 0) -> list[Instruction]:
    """`n` instructions that a core can carry out in order: buffers in random use by any unit, waits, syncs."""
    model, out = CommandProcessor(), []

    def give(i: Instruction) -> bool:
        """Try it on the model; keep it if it can be carried out now."""
        if i["unit"] == Unit.CONTROL:
            if model.control(i) != CpStatus.OK:
                return False
        else:
            if model.blocked(i) != CpStatus.OK:
                return False
            model.start(i)
            model.done(i)
            if i["event_use"]:
                model.events[i["event"]] += 1
        out.append(i)
        return True

    base = 64 * int(rng.integers(0, 100))
    for cb in cbs:
        size = 64 * int(rng.integers(1, 40))
        give(control(Control.BUFFER, cb=cb, base=base, size=size, tag=len(out)))
        base += size
    while len(out) < n:
        number = start + len(out)
        kind = rng.random()
        if kind < 0.04:
            give(control(Control.SYNC, tag=number & 0xFFFF))
            continue
        if kind < 0.08:
            event = int(rng.choice(list(events)))
            give(control(Control.WAIT, event=event, value=int(rng.integers(0, model.events[event] + 1)), tag=number & 0xFFFF))
            continue
        operands = {}
        for name in OPERANDS:
            if rng.random() < (0.75 if name != "b" else 0.3):
                cb = int(rng.choice(list(cbs)))
                b = model.buffers[cb]
                room = b.space if name == "d" else b.avail
                pointer = b.write if name == "d" else b.read
                offset = int(rng.integers(0, room + 1)) if rng.random() < 0.4 else 0
                at = (pointer + offset) % b.size
                nbytes = int(rng.integers(0, min(room - offset, b.size - at) + 1))
                amount = int(rng.choice([0, offset + nbytes, int(rng.integers(0, room + 1))]))
                operands[name] = (cb, offset, nbytes, amount)
        event = int(rng.choice(list(events))) if rng.random() < 0.3 else None
        give(work(int(rng.choice([int(u) for u in UNITS])), number, cycles=int(rng.choice([0, 1, 3, 10, 60])), event=event, **operands))
    return out


async def start(dut: Any) -> Bench:
    """A bench whose command processor is neither cleared nor halted."""
    b = Bench(dut)
    for name in ("clear", "halt", "debug_addr", *(["alone"] if "alone" in b.ports else [])):
        b.pin(name).value = 0
    await b.reset()
    return b


def notes(b: Bench) -> list[dict[str, int]]:
    """What the units wrote down, in time; an end before a start of the same cycle."""
    out = []
    for u in UNITS:
        for w in b.sink(f"trace_{u.name.lower()}").words():
            out.append(TRACE.unpack(w) | {"unit": int(u)})
    return sorted(out, key=lambda t: (t["cycle"], -t["done"]))


def check(programs: list[list[Instruction]], seen: list[dict[str, int]]) -> CommandProcessor:
    """Every start had its data and space by what units had ended before it, got its addresses, and came in the order of its unit and core."""
    model = CommandProcessor()
    known: dict[int, Instruction] = {}
    order: dict[tuple[int, int], deque[int]] = {}
    for core, p in enumerate(programs):
        for i in p:
            if i["unit"] != Unit.CONTROL:
                number = WHO.unpack(i["args"] & (1 << 48) - 1)["number"]
                known[number] = i
                order.setdefault((i["unit"], core), deque()).append(number)
            elif i["op"] == Control.BUFFER and model.buffers[CONTROL_ARGS.unpack(i["args"])["cb"]].size == 0:
                model.control(i)
    for t in seen:
        i = known[t["number"]]
        assert t["unit"] == i["unit"]
        if t["done"]:
            model.done(i)
            continue
        assert any(q and q[0] == t["number"] and (q.popleft() or True) for q in (order.get((t["unit"], c), deque()) for c in (0, 1))), f"order: {t}"
        assert model.blocked(i) == CpStatus.OK, f"cycle {t['cycle']}: {i} started without its data or space: {model.buffers}"
        assert model.start(i) == (t["a"], t["b"], t["d"]), f"addresses of {t}"
        assert t["op"] == i["op"]
    return model


async def run(b: Bench, programs: list[list[Instruction]], *, checked: bool = True, deadline: int = 0) -> list[Completion]:
    """Run a program on each core to its end; completions in the order in which they came."""
    programs = (programs + [[]])[:2]
    golden = CommandProcessor(queue=config("tiny").node.pe.queue)
    want = golden.run(programs, lambda unit, op, args, at: (args >> 16 & 0xFF, args >> 24 & 0xFFFFFF))
    for core, p in enumerate(programs):
        b.source(f"core{core}").load(packed(p) if p else np.zeros((0, INSTRUCTION.nbytes), np.uint8))
    started: Counter[int] = Counter()
    for c in want:
        started[c.unit] += c.unit != Unit.CONTROL and c.status in (CpStatus.OK, CpStatus.UNIT)
    for u in UNITS:
        b.sink(f"trace_{u.name.lower()}").expect(2 * started[int(u)] if checked else 0, exact=checked)
    b.sink("completion").expect(len(want))
    await b.run(deadline or 400 * len(want) + 40 * PeParams().deadline, settle=200)
    got = [COMPLETION.unpack(w) for w in b.sink("completion").words()]
    out = [Completion(c["tag"], c["core"], c["unit"], CpStatus(c["status"]), c["info"]) for c in got]
    if checked:
        key = [sorted((c.core, c.unit, c.tag, c.status, c.info) for c in x) for x in (out, want)]
        assert key[0] == key[1], f"completions: {set(key[0]) ^ set(key[1])}"
        seen = notes(b)
        check(programs, seen)
        for e in range(16):
            assert await counter(b, e) == golden.events[e], f"counter {e}"
        for cb, buffer in enumerate(golden.buffers):
            state = await debug(b, cb)
            fields = [state >> 24 * k & 0xFFFFFF for k in range(6)]
            assert fields == [buffer.base, buffer.size, buffer.read, buffer.write, buffer.avail, buffer.space], f"buffer {cb}: {fields}, expected {buffer}"
    return out


async def debug(b: Bench, at: int) -> int:
    b.pin("debug_addr").value = at
    await b.wait_cycles(3)
    return int(b.pin("debug_data").value)


async def counter(b: Bench, event: int) -> int:
    return await debug(b, 16) >> 16 * event & 0xFFFF
