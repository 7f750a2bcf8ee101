"""Command processor: instructions of two cores, circular buffers in hardware, dispatch to the units when data and space are there.

Rules
    1. Each core's instructions are looked at in order. CONTROL instructions are carried out there; others go to the queue of their unit. Units take
       theirs in order, and start independently of each other: what waits for data holds up its own unit only.
    2. An instruction starts when, for each operand it reads, ``offset + bytes`` bytes are published in its circular buffer beyond what started
       instructions pop, and for what it writes, ``offset + bytes`` are free beyond what started ones push; `pop` and `push` count likewise, and where
       `a` and `b` pop one buffer, both pops together. Its addresses are those of the pointers then; the pointers move on at once. Bytes popped are free,
       bytes pushed are published, when the unit is done.
    3. Two instructions of different units never change one side of a buffer out of the core's order: an instruction goes to its unit's queue only when no
       other unit has one waiting or at work that writes the same buffer; for a buffer it pops, none that reads it; for one it only reads, none that pops it.
    4. What can never start ends in an error at once: no such unit, instruction or buffer (BAD_OP, NO_BUFFER), more than the buffer can hold (TOO_LARGE), over
       the end of the buffer (STRADDLES: an operand is one piece).
    5. After the first error nothing starts any more: what is at work ends, everything that waits ends in FLUSHED, until `clear`. When nothing is at work, nothing can start and
       no instruction comes, for `pe.deadline` cycles, everything that waits ends in STUCK. What is at work in a unit that is `alone` (it waits for another unit's
       instruction) counts as nothing at work; once nothing starts any more and nothing else is at work, `drop` tells such units to end it.
    6. Every instruction ends in one completion. Counter `event` goes up by one with an instruction that ends well and says so. SYNC waits for what its own core
       gave out, WAIT for a counter.

Members
    `core0`, `core1`  In stream INSTRUCTION
    `start_<unit>`    Out stream START; `done_<unit>` In stream UNIT_DONE, one for each, in order
    `completion`      Out stream COMPLETION
    `alone`           In(units): the oldest instruction at work in a unit can only go on with one of another unit that has not been started; `drop` Out(1)
    `clear`           In(1): after an error, once `idle`: go on
    `halt`            In(1): nothing is dispatched or started while 1
    `idle`            Out(1): nothing waits, nothing is at work; `failed` Out(1): an error happened since `clear`
    `debug_addr`      In(5), `debug_data` Out(256): circular buffers (0 to 15), counters (16), queues (17); 2 cycles after `debug_addr`, while halted or idle

Parameters: `pe.queue`, `pe.deadline`. One engine looks at completions, starts and dispatches in this order, one at a time (an instruction that finds its
unit's queue empty is started with its dispatch), and in each of them at the operands that are used; an instruction takes it 6 to 18 cycles; latency of an instruction of one operand
on an idle processor, `core` to `start`: 3 cycles. Instructions are long (hundreds of
cycles of their unit), so this is not what bounds them.

Assumptions
    A1. A unit answers every start once, in order (rtl.pe.*; the bench's units do).
    A2. The two cores do not share one side of a buffer without WAIT (no order between them is defined); programs' duty.
"""
from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.layouts import layout
from rtl.numeric.pipeline import wire
from spec.isa import (
    CBS,
    COMPLETION,
    CONTROL_ARGS,
    EVENT_BITS,
    EVENTS,
    INSTRUCTION,
    OPERANDS,
    START,
    UNIT_DONE,
    UNITS,
    Control,
    CpStatus,
    Unit,
)
from spec.params import PeParams

USE_BITS = 7  # users of a buffer: two operands each of all that a unit has waiting and at work
LOCAL = 24  # bits of a byte address in local memory
BUFFER = data.StructLayout({
    "base": LOCAL, "size": LOCAL, "read": LOCAL, "write": LOCAL, "avail": LOCAL, "space": LOCAL,
    "reads": data.ArrayLayout(USE_BITS, len(UNITS)), "pops": data.ArrayLayout(USE_BITS, len(UNITS)), "writes": data.ArrayLayout(USE_BITS, len(UNITS)),
})
AT_WORK = data.StructLayout({
    "core": 1, "tag": 16, "event_use": 1, "event": 4,
    **{f"{n}_{what}": width for n, amount in OPERANDS.items() for what, width in (("use", 1), ("cb", 4), (amount, 20))},
})


class What(enum.Enum, shape=2):
    DISPATCH = 0
    START = 1
    COMPLETE = 2


class CommandProcessor(Block):
    def __init__(self, pe: PeParams):
        self.pe = pe
        instruction = In(stream.Signature(layout(INSTRUCTION)))
        super().__init__({
            "core0": instruction, "core1": instruction,
            **{f"start_{u.name.lower()}": Out(stream.Signature(layout(START))) for u in UNITS},
            **{f"done_{u.name.lower()}": In(stream.Signature(layout(UNIT_DONE))) for u in UNITS},
            "completion": Out(stream.Signature(layout(COMPLETION))),
            "alone": In(len(UNITS)), "drop": Out(1), "clear": In(1), "halt": In(1), "idle": Out(1), "failed": Out(1), "debug_addr": In(5), "debug_data": Out(256),
        })

    def elaborate(self, platform):
        m = Module()
        p, n = self.pe, len(UNITS)
        cores = [self.core0, self.core1]
        starts = [getattr(self, f"start_{u.name.lower()}") for u in UNITS]
        dones = [getattr(self, f"done_{u.name.lower()}") for u in UNITS]
        waiting, working, starting = [], [], []  # `starting` has room for all that is at work: nothing here waits for a unit
        for u in UNITS:
            m.submodules[f"waiting_{u.name.lower()}"] = w = SyncFIFO(width=INSTRUCTION.bits + 1, depth=p.queue)
            m.submodules[f"working_{u.name.lower()}"] = k = SyncFIFO(width=AT_WORK.size, depth=p.queue)
            m.submodules[f"starting_{u.name.lower()}"] = g = SyncFIFO(width=START.bits, depth=p.queue)
            waiting.append(w)
            working.append(k)
            starting.append(g)
        for port, fifo in zip(starts, starting, strict=True):
            m.d.comb += [port.payload.eq(fifo.r_data), port.valid.eq(fifo.r_rdy), fifo.r_en.eq(port.ready)]

        # Circular buffers: one looked at a cycle. Before its first use since reset a buffer is all zero: it has no size.
        m.submodules.buffers = buffers = Memory(shape=BUFFER, depth=CBS, init=[])
        look, store = buffers.read_port(domain="comb"), buffers.write_port()
        known = Signal(CBS)
        cb, now, new = Signal(4, name="cb"), Signal(BUFFER, name="now"), Signal(BUFFER)
        m.d.comb += [
            look.addr.eq(cb), now.eq(Mux(known.bit_select(cb, 1), look.data.as_value(), 0)), new.eq(now), store.addr.eq(cb), store.data.eq(new),
        ]

        what, core, unit = Signal(What, name="what"), Signal(name="core"), Signal(range(n), name="unit")
        inst, did = Signal(layout(INSTRUCTION), name="inst", reset_less=True), Signal(AT_WORK, name="did", reset_less=True)
        answer = Signal(layout(UNIT_DONE), reset_less=True)
        status, failed, give_up = Signal(CpStatus, name="status"), Signal(name="failure"), Signal(name="give_up")
        events = Array(Signal(EVENT_BITS, name=f"event_{i}") for i in range(EVENTS))
        given = [Signal(range(4 * n * p.queue), name=f"given_{i}") for i in range(2)]
        quiet = Signal(range(p.deadline + 1))
        out = self.completion.payload
        args = data.View(layout(CONTROL_ARGS), inst.args)

        # What comes next: a completion, a start, a dispatch; units and cores in turn.
        turn, core_turn = Signal(range(n)), Signal()
        blocked_units, blocked_cores = Signal(n), Signal(2)  # looked at, could not go on; forgotten when anything changes
        at_work = wire(m, Cat(k.r_rdy for k in working), "at_work")
        waits = wire(m, Cat(w.r_rdy for w in waiting), "waits")
        done_units = wire(m, Cat(d.valid for d in dones), "done_units")
        flush = wire(m, failed | give_up, "flush")
        go = wire(m, ~self.halt | flush, "go")
        start_units = wire(m, Cat(w.r_rdy & k.w_rdy & ~blocked_units[i] & go for i, (w, k) in enumerate(zip(waiting, working, strict=True))), "start_units")
        core_ready = wire(m, Cat(c.valid & ~blocked_cores[i] & go for i, c in enumerate(cores)), "core_ready")
        m.d.comb += [self.failed.eq(failed), self.idle.eq(~(at_work | waits).any() & ~self.core0.valid & ~self.core1.valid)]

        def first(units, name):
            """Lowest set one at or after `turn`, else the lowest."""
            pick = Signal(range(n), name=name)
            for i in reversed(range(n)):
                with m.If(units[i]):
                    m.d.comb += pick.eq(i)
            for i in reversed(range(n)):
                with m.If(units[i] & (turn <= i)):
                    m.d.comb += pick.eq(i)
            return pick

        next_done, next_start = first(done_units & at_work, "next_done"), first(start_units, "next_start")
        next_core = wire(m, Mux(core_ready[0] & core_ready[1], core_turn, core_ready[1]), "next_core")

        def complete(code, *, info=0, tag=None, who=None, of=None):
            return [
                out.tag.eq(inst.tag if tag is None else tag), out.core.eq(core if who is None else who),
                out.unit.eq(Unit.CONTROL.value if of is None else of + 1), out.status.eq(code), out.info.eq(info), self.completion.valid.eq(1),
            ]

        changed = Signal()
        busy = wire(m, (at_work & ~self.alone).any(), "busy")
        hopeless = wire(m, ~busy & (at_work.any() | waits.any() | self.core0.valid | self.core1.valid) & ~flush & ~self.halt, "hopeless")
        m.d.comb += self.drop.eq(flush & ~busy & at_work.any())
        with m.If(changed):
            m.d.sync += [blocked_units.eq(0), blocked_cores.eq(0), quiet.eq(0)]
        with m.Elif(hopeless):
            m.d.sync += quiet.eq(quiet + 1)
            with m.If(quiet == p.deadline - 1):
                m.d.sync += [give_up.eq(1), blocked_units.eq(0), blocked_cores.eq(0)]
        with m.Else():
            m.d.sync += quiet.eq(0)
        with m.If(self.clear):
            m.d.sync += [failed.eq(0), give_up.eq(0), blocked_units.eq(0), blocked_cores.eq(0)]

        # Operands in turn: `step` counts them; those not used are passed over.
        names = list(OPERANDS)
        step = Signal(range(4))
        used = wire(m, Mux(what == What.COMPLETE, Cat(did[f"{name}_use"] for name in names), Cat(inst[f"{name}_use"] for name in names)), "used")

        def lowest(uses):
            """First operand that is used; 0 if none is."""
            return Mux(uses[0] | ~uses.any(), 0, Mux(uses[1], 1, 2))

        first_step = wire(m, lowest(used), "first_step")
        use, offset, needed, amount, fetched = (Signal(w, name=s) for s, w in (("use", 1), ("offset", 20), ("needed", 20), ("amount", 20), ("fetched", 4)))
        for i, name in enumerate(names):
            with m.If(step == i):
                m.d.comb += [
                    use.eq(inst[f"{name}_use"]), fetched.eq(inst[f"{name}_cb"]), offset.eq(inst[f"{name}_offset"]),
                    needed.eq(inst[f"{name}_bytes"]), amount.eq(inst[f"{name}_{OPERANDS[name]}"]),
                ]
                with m.If(what == What.COMPLETE):
                    m.d.comb += [use.eq(did[f"{name}_use"]), fetched.eq(did[f"{name}_cb"]), amount.eq(did[f"{name}_{OPERANDS[name]}"])]
        writes = wire(m, step == 2, "writes")
        last_step = wire(m, ~Mux(step == 0, used[1:].any(), (step == 1) & used[2]), "last_step")
        next_step = wire(m, Mux((step == 0) & used[1], 1, 2), "next_step")
        m.d.comb += cb.eq(fetched)

        def wrapped(x, name):
            """x modulo the buffer's size; x below twice that."""
            return wire(m, Mux(x >= now.size, x - now.size, x)[:LOCAL], name)

        end = wire(m, offset + needed, "end")
        at = wrapped(Mux(writes, now.write, now.read) + offset, "at")
        address = wire(m, (now.base + at)[:LOCAL], "address")
        same = wire(m, (step == 1) & inst.a_use & (inst.a_cb == inst.b_cb), "same")  # `a` pops the buffer too
        taken = wire(m, amount + Mux(same, inst.a_pop, 0), "taken")
        most = wire(m, Mux(end > taken, end, taken), "most")
        there = wire(m, Mux(writes, now.space, now.avail), "there")
        addresses = [Signal(LOCAL, name=f"address_{name}", reset_less=True) for name in names]
        clean = [a.eq(0) for a in addresses]

        def take():
            """The instruction that is looked at is taken from its core."""
            return [port.ready.eq(core == i) for i, port in enumerate(cores)]

        # The buffer that an operand uses, one more or one less.
        def users(kind, delta):
            for i in range(n):
                with m.If(unit == i):
                    m.d.comb += new[kind][i].eq(now[kind][i] + delta)

        def others(kind):
            return reduce(or_, ((now[kind][i] != 0) & (unit != i) for i in range(n)))

        # What a unit is given, and what is kept of it meanwhile.
        given_out, entry = Signal(layout(START), name="given_out"), Signal(AT_WORK)
        m.d.comb += [
            given_out.op.eq(inst.op), given_out.args.eq(inst.args),
            *(given_out[name].eq(Mux(use & (step == k), address, addresses[k])) for k, name in enumerate(names)),
            entry.core.eq(core), entry.tag.eq(inst.tag), entry.event_use.eq(inst.event_use), entry.event.eq(inst.event),
            *(entry[key].eq(inst[key]) for name, a in OPERANDS.items() for key in (f"{name}_use", f"{name}_cb", f"{name}_{a}")),
        ]
        for i in range(n):
            m.d.comb += [working[i].w_data.eq(entry), starting[i].w_data.eq(given_out)]

        def report(code, tag, finished):
            """The completion of a unit's instruction."""
            m.d.comb += complete(code, tag=tag, of=unit, info=Mux(code == CpStatus.UNIT, Cat(answer.status, answer.info), 0))
            with m.If(self.completion.ready):
                with m.If(code != CpStatus.OK):
                    m.d.sync += failed.eq(1)
                with m.Elif(finished & did.event_use):
                    m.d.sync += events[did.event].eq(events[did.event] + 1)
                for i in range(2):
                    with m.If(core == i):
                        m.d.sync += given[i].eq(given[i] - 1)
                m.d.comb += changed.eq(1)
                m.next = "IDLE"

        def enqueue():
            """The operand's buffer has a user more; with the last operand, the instruction goes to its unit's queue, and is looked at there if it is the first."""
            m.d.comb += store.en.eq(use)
            with m.If(use):
                m.d.sync += known.bit_select(cb, 1).eq(1)
            with m.If(writes):
                users("writes", 1)
            with m.Else():
                users("reads", 1)
                with m.If(amount != 0):
                    users("pops", 1)
            with m.If(last_step):
                m.d.comb += [changed.eq(1), *take()]
                m.next = "IDLE"
                for i, (w, k) in enumerate(zip(waiting, working, strict=True)):
                    m.d.comb += [w.w_data.eq(Cat(inst, core)), w.w_en.eq(unit == i)]
                    with m.If((unit == i) & ~w.r_rdy & k.w_rdy & go):
                        m.d.sync += [what.eq(What.START), step.eq(first_step), turn.eq((i + 1) % n), *clean]
                        m.next = "LOOK"
                for i in range(2):
                    with m.If(core == i):
                        m.d.sync += given[i].eq(given[i] + 1)

        with m.FSM(init="IDLE"):
            with m.State("IDLE"):
                m.d.sync += status.eq(CpStatus.OK)
                with m.If((done_units & at_work).any()):
                    m.d.sync += [what.eq(What.COMPLETE), unit.eq(next_done), turn.eq(Mux(next_done == n - 1, 0, next_done + 1))]
                    for i in range(n):
                        with m.If(next_done == i):
                            entry_done = data.View(AT_WORK, working[i].r_data)
                            m.d.sync += [did.eq(entry_done), core.eq(entry_done.core), answer.eq(dones[i].payload), step.eq(lowest(Cat(entry_done[f"{name}_use"] for name in names)))]
                            m.d.comb += [dones[i].ready.eq(1), working[i].r_en.eq(1)]
                    m.next = "RELEASE"
                with m.Elif(start_units.any()):
                    m.d.sync += [what.eq(What.START), unit.eq(next_start), turn.eq(Mux(next_start == n - 1, 0, next_start + 1)), *clean]
                    for i, w in enumerate(waiting):
                        with m.If(next_start == i):
                            head = data.View(layout(INSTRUCTION), w.r_data[:-1])
                            m.d.sync += [inst.eq(head), core.eq(w.r_data[-1]), step.eq(lowest(Cat(head[f"{name}_use"] for name in names)))]
                    m.next = "LOOK"
                with m.Elif(core_ready.any()):  # a core's next instruction
                    coming = data.View(layout(INSTRUCTION), wire(m, Mux(next_core, cores[1].payload.as_value(), cores[0].payload.as_value()), "coming"))
                    m.d.sync += [
                        what.eq(What.DISPATCH), core.eq(next_core), core_turn.eq(~next_core), inst.eq(coming), unit.eq(coming.unit - 1),
                        step.eq(lowest(Cat(coming[f"{name}_use"] for name in names))),
                    ]
                    bad = wire(m, coming.unit > n, "bad_unit")
                    room = Cat(w.w_rdy for w in waiting)
                    with m.If(flush):
                        m.d.sync += status.eq(Mux(give_up, CpStatus.STUCK, CpStatus.FLUSHED))
                        m.next = "REFUSE"
                    with m.Elif(bad):
                        m.d.sync += status.eq(CpStatus.BAD_OP)
                        m.next = "REFUSE"
                    with m.Elif(coming.unit == Unit.CONTROL):
                        m.next = "CONTROL"
                    with m.Elif(room.bit_select((coming.unit - 1)[:3], 1)):
                        m.next = "CONFLICT"
                    with m.Else():
                        m.d.sync += blocked_cores.bit_select(next_core, 1).eq(1)

            # A core's instruction for a unit: first all its operands are looked at, then their buffers have one more user; with one operand both at once.
            with m.State("CONFLICT"):
                clash = wire(m, use & Mux(writes, others("writes"), Mux(amount != 0, others("reads"), others("pops"))), "clash")
                m.d.sync += step.eq(next_step)
                with m.If(clash):
                    m.d.sync += blocked_cores.bit_select(core, 1).eq(1)
                    m.next = "IDLE"
                with m.Elif(last_step):
                    m.d.sync += step.eq(first_step)
                    m.next = "ENQUEUE"
                    with m.If(step == first_step):
                        enqueue()

            with m.State("ENQUEUE"):
                m.d.sync += step.eq(next_step)
                enqueue()

            with m.State("CONTROL"):
                finished, error = Signal(), Signal()
                m.d.comb += [cb.eq(args.cb), finished.eq(1)]
                with m.Switch(inst.op):
                    with m.Case(Control.NOP):
                        pass
                    with m.Case(Control.SET):
                        with m.If(self.completion.ready):
                            m.d.sync += events[inst.event].eq(args.value)
                    with m.Case(Control.WAIT):
                        m.d.comb += finished.eq(events[inst.event] >= args.value)
                    with m.Case(Control.SYNC):
                        m.d.comb += finished.eq(Array(given)[core] == 0)
                    with m.Case(Control.BUFFER):
                        busy = reduce(or_, (now[kind][i] != 0 for kind in ("reads", "writes") for i in range(n)))
                        crooked = args.base[:6].any() | args.size[:6].any()
                        m.d.comb += [
                            error.eq(busy | crooked), new.eq(0), new.base.eq(args.base), new.size.eq(args.size), new.space.eq(args.size),
                        ]
                        with m.If(self.completion.ready & ~error):
                            m.d.comb += store.en.eq(1)
                            m.d.sync += known.bit_select(cb, 1).eq(1)
                    with m.Default():
                        m.d.comb += error.eq(1)
                with m.If(~finished):
                    m.d.sync += blocked_cores.bit_select(core, 1).eq(1)
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += complete(Mux(error, Mux(inst.op == Control.BUFFER, CpStatus.BUSY, CpStatus.BAD_OP), CpStatus.OK))
                    with m.If(self.completion.ready):
                        with m.If(error):
                            m.d.sync += failed.eq(1)
                        m.d.comb += [*take(), changed.eq(1)]
                        m.next = "IDLE"

            with m.State("REFUSE"):
                m.d.comb += complete(status)
                m.d.comb += out.unit.eq(inst.unit)
                with m.If(self.completion.ready):
                    m.d.sync += failed.eq(1)
                    m.d.comb += [*take(), changed.eq(1)]
                    m.next = "IDLE"

            # A unit's next instruction.
            with m.State("LOOK"):
                m.d.sync += step.eq(next_step)
                for i in range(3):
                    with m.If(use & (step == i)):
                        m.d.sync += addresses[i].eq(address)
                with m.If(flush):
                    m.d.sync += [status.eq(Mux(give_up, CpStatus.STUCK, CpStatus.FLUSHED)), step.eq(first_step)]
                    m.next = "GIVE BACK"
                with m.Elif(use & (now.size == 0)):
                    m.d.sync += [status.eq(CpStatus.NO_BUFFER), step.eq(first_step)]
                    m.next = "GIVE BACK"
                with m.Elif(use & (most > now.size)):
                    m.d.sync += [status.eq(CpStatus.TOO_LARGE), step.eq(first_step)]
                    m.next = "GIVE BACK"
                with m.Elif(use & (there < most)):
                    m.d.sync += blocked_units.bit_select(unit, 1).eq(1)
                    m.next = "IDLE"
                with m.Elif(use & (at + needed > now.size)):
                    m.d.sync += [status.eq(CpStatus.STRADDLES), step.eq(first_step)]
                    m.next = "GIVE BACK"
                with m.Elif(last_step):
                    m.d.sync += step.eq(first_step)
                    for i in range(n):
                        m.d.comb += [working[i].w_en.eq(unit == i), waiting[i].r_en.eq(unit == i), starting[i].w_en.eq(unit == i)]
                    m.next = "MOVE"

            with m.State("MOVE"):
                m.d.sync += step.eq(next_step)
                m.d.comb += store.en.eq(use)
                with m.If(writes):
                    m.d.comb += [new.write.eq(wrapped(now.write + amount, "next_write")), new.space.eq(now.space - amount)]
                with m.Else():
                    m.d.comb += [new.read.eq(wrapped(now.read + amount, "next_read")), new.avail.eq(now.avail - amount)]
                with m.If(last_step):
                    m.d.comb += changed.eq(1)
                    m.next = "IDLE"

            # An instruction that will not start: its buffers lose a user.
            with m.State("GIVE BACK"):
                m.d.sync += step.eq(next_step)
                m.d.comb += store.en.eq(use)
                with m.If(writes):
                    users("writes", -1)
                with m.Else():
                    users("reads", -1)
                    with m.If(amount != 0):
                        users("pops", -1)
                with m.If(last_step):
                    for i in range(n):
                        m.d.comb += waiting[i].r_en.eq(unit == i)
                    m.next = "REPORT"

            # A unit is done.
            with m.State("RELEASE"):
                go_on = wire(m, ~last_step | self.completion.ready, "go_on")
                m.d.comb += store.en.eq(use & go_on)
                with m.If(go_on):
                    m.d.sync += step.eq(next_step)
                with m.If(writes):
                    users("writes", -1)
                    m.d.comb += new.avail.eq(now.avail + amount)
                with m.Else():
                    users("reads", -1)
                    m.d.comb += new.space.eq(now.space + amount)
                    with m.If(amount != 0):
                        users("pops", -1)
                with m.If(last_step):
                    report(Mux(answer.status == 0, CpStatus.OK, CpStatus.UNIT), did.tag, 1)

            with m.State("REPORT"):
                report(status, inst.tag, 0)

        # Debug: what the state machine does not use while nothing goes on.
        dump = buffers.read_port()
        m.d.comb += dump.addr.eq(self.debug_addr)
        levels = Cat(*(Cat(w.r_level, k.r_level) for w, k in zip(waiting, working, strict=True)))
        where = Signal(5)
        m.d.sync += where.eq(self.debug_addr)
        with m.If(~where[4]):
            m.d.comb += self.debug_data.eq(Mux(known.bit_select(where[:4], 1), dump.data.as_value()[: 6 * LOCAL], 0))
        with m.Elif(where == 16):
            m.d.comb += self.debug_data.eq(Cat(*events))
        with m.Else():
            m.d.comb += self.debug_data.eq(Cat(levels, given[0], given[1]))
        return m
