"""Command processor: circular buffers, dependencies, exactly one completion. For one buffer, one byte of it and one tag, whichever they are.

What is proved is stated on the members, on the queues and on the buffer's record; the state machine's own states come in where a step of several
cycles is under way (``under way`` below: what of it is in the record already). When that machine is changed, those lines change with it.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from amaranth.hdl import Mux, Signal, Value
from amaranth.lib import data

from rtl.common.layouts import layout
from rtl.pe.command_processor import AT_WORK, BUFFER, CommandProcessor, What
from spec.isa import CONTROL_ARGS, INSTRUCTION, OPERANDS, START, UNITS
from spec.params import PeParams
from tests.formal.design import Harness
from tests.formal.proof import Proof
from tests.formal.queue_model import streams_kept, streams_proved

NAMES = list(OPERANDS)  # a and b read, d is written
SIZE_BITS = 8  # buffers of up to 192 bytes, at any address
BYTES = ("pointers_small", "holds_the_cores", "step", "what", "published_free_promised", "pointers_inside", "write_follows_read", "enough_to_pop", "room_to_push", "working_", "answered", "nothing_", "has_a_head", "starts_with_enough")
KINDS = ("reads", "pops", "writes")
N = len(UNITS)


def total(values: Any) -> Any:
    return sum(values, Value.cast(0))


class Processor:
    """The block with its environment (A1), its queues, and what of a step under way is in the record of buffer `buffer`."""

    def __init__(self, queue: int = 2):
        self.cp = CommandProcessor(replace(PeParams(), queue=queue, deadline=64))
        self.h = h = Harness(cp=self.cp)
        self.unit, self.step, self.what = h.inside("cp.unit"), h.inside("cp.step"), h.inside("cp.what")
        self.inst = data.View(layout(INSTRUCTION), h.inside("cp.inst"))
        self.did = data.View(AT_WORK, h.inside("cp.did"))
        self.core = h.inside("cp.core")
        self.states: dict[str, Value] = {}
        self.cases: list[str] = []
        self.cores = [self.cp.core0, self.cp.core1]
        self.names = [u.name.lower() for u in UNITS]
        self.dones = [getattr(self.cp, f"done_{n}") for n in self.names]
        self.starts = [getattr(self.cp, f"start_{n}") for n in self.names]
        self.waiting, self.working, self.starting = (
            [h.fifo(f"cp.{kind}_{n}", f"{kind}_{n}_") for n in self.names] for kind in ("waiting", "working", "starting"))
        self.waits = [[(e.valid, data.View(layout(INSTRUCTION), e.word[:-1]), e.word[-1]) for e in f.entries] for f in self.waiting]
        self.works = [[(e.valid, data.View(AT_WORK, e.word)) for e in f.entries] for f in self.working]
        # Steps of one cycle, by unit: given to its queue, started, answered, not started after all.
        entering = [h.inside(f"cp.waiting_{n}.w_en") for n in self.names]
        leaving = [h.inside(f"cp.waiting_{n}.r_en") for n in self.names]
        self.enters = [h.wire(f"enters_{n}", w) for n, w in zip(self.names, entering, strict=True)]
        self.begins = [h.wire(f"begins_{n}", h.inside(f"cp.working_{n}.w_en")) for n in self.names]
        self.ends = [h.wire(f"ends_{n}", h.inside(f"cp.working_{n}.r_en")) for n in self.names]
        self.refuses = [h.wire(f"refuses_{n}", w & ~h.inside(f"cp.working_{n}.w_en")) for n, w in zip(self.names, leaving, strict=True)]
        self.mine = [h.wire(f"mine_{n}", self.unit == i) for i, n in enumerate(self.names)]
        for c, port in enumerate(self.cores):
            streams_kept(h, f"core{c}", port)
        for n, port in zip(self.names, self.dones, strict=True):
            streams_kept(h, f"done_{n}", port)
        self._units()
        self._machine()

    def at(self, state: str) -> Value:
        if state not in self.states:
            self.states[state] = self.h.state("cp.fsm_state", state)
        return self.states[state]

    def any(self, *states: str) -> Value:
        found = self.at(states[0])
        for s in states[1:]:
            found = found | self.at(s)
        return found

    def of_unit(self, values: list[Any]) -> Value:
        """That of the unit that is looked at."""
        return total(Mux(self.mine[i], v, 0) for i, v in enumerate(values))

    def _units(self) -> None:
        """A1: a unit answers what it has taken, once, in order."""
        h = self.h
        for i, n in enumerate(self.names):
            taken = Signal(range(2 * self.working[i].depth + 2), name=f"taken_{n}")
            h.m.d.sync += taken.eq(taken + (self.starts[i].valid & self.starts[i].ready) - (self.dones[i].valid & self.dones[i].ready))
            h.assume(f"A1_{n}", ~self.dones[i].valid | (taken > 0))
            h.prove(f"taken_or_shown_{n}", taken + self.starting[i].level == self.working[i].level)

    def _machine(self) -> None:
        """Where its state machine stands and what it holds."""
        h = self.h
        for kind in ("waiting", "working", "starting"):
            for n, f in zip(self.names, getattr(self, kind), strict=True):
                h.prove(f"{kind}_{n}", f.sound)
        h.prove("step", ~self.any("CONFLICT", "ENQUEUE", "LOOK", "MOVE", "GIVE BACK", "RELEASE") | (self.step <= 2))
        h.prove("what", (~self.any("CONFLICT", "ENQUEUE", "CONTROL", "REFUSE") | (self.what == What.DISPATCH))
                & (~self.any("LOOK", "MOVE", "GIVE BACK", "REPORT") | (self.what == What.START)) & (~self.at("RELEASE") | (self.what == What.COMPLETE)))
        on_port = total(Mux(self.core == c, Mux(p.valid, p.payload.as_value() == self.inst.as_value(), 0), 0) for c, p in enumerate(self.cores))
        h.prove("holds_the_cores", ~self.any("CONFLICT", "ENQUEUE", "CONTROL", "REFUSE") | on_port)
        h.prove("to_its_unit", ~self.any("CONFLICT", "ENQUEUE") | (
            (self.unit + 1 == self.inst.unit) & (self.of_unit([f.level < f.depth for f in self.waiting]))))
        head = self.of_unit([v[0][0] for v in self.waits])
        h.prove("has_a_head", ~self.any("LOOK", "GIVE BACK") | (head & self.of_unit([f.level < f.depth for f in self.working])))
        same = self.of_unit([(v[0][1].as_value() == self.inst.as_value()) & (v[0][2] == self.core) for v in self.waits])
        h.prove("holds_the_head", ~self.any("LOOK", "GIVE BACK") | same, using=("has_a_head", "waiting_", "step", "what"))
        keys = AT_WORK.members
        given = []
        for works, f in zip(self.works, self.working, strict=True):
            last = 0
            for k, (_, e) in enumerate(works):
                equal = total([]) == 0
                for key in keys:
                    equal = equal & (e[key] == (self.core if key == "core" else self.inst[key]))
                last = Mux(f.level == k + 1, equal, last)
            given.append(last)
        h.prove("started_what_it_held", ~self.at("MOVE") | self.of_unit(given))
        h.prove("answered", total(e & ~((f.level > 0) & d.valid & d.ready) for e, f, d in zip(self.ends, self.working, self.dones, strict=True)) == 0)

    def by_case(self, name: str, condition: Value, using: tuple[str, ...]) -> None:
        """Prove it once for each step that the machine may make: many small questions."""
        if not self.cases:
            for state in ("MOVE", "RELEASE"):
                for k in range(3):
                    self.cases.append(self.h.wire(f"case_{state}_{k}", self.at(state) & (self.step == k)).name)
            self.cases += [self.h.wire(f"case_{state}", self.at(state)).name for state in ("CONTROL", "LOOK", "IDLE")]
        self.h.prove(name, condition, using=using, cases=tuple(self.cases))

    # A buffer's record.
    def follow(self) -> None:
        h = self.h
        self.buffer = h.rigid("buffer", 4)
        word = h.row("cp.buffers", self.buffer, "record")
        self.record = data.View(BUFFER, h.wire("known_record", Mux(h.inside("cp.known").bit_select(self.buffer, 1), word, 0)))

    def uses(self, e: Any, name: str) -> Value:
        return e[f"{name}_use"] & (e[f"{name}_cb"] == self.buffer)

    def amount(self, e: Any, name: str) -> Value:
        """Bytes of the buffer that it pops or pushes."""
        return Mux(self.uses(e, name), e[f"{name}_{OPERANDS[name]}"], 0)

    def counted(self, e: Any, name: str, kind: str) -> Value:
        if (kind == "writes") != (name == "d"):
            return Value.cast(0)
        return self.uses(e, name) & (e[f"{name}_{OPERANDS[name]}"] != 0 if kind == "pops" else 1)

    def before(self, value: Callable[[str], Value], names: list[str] = NAMES) -> Value:
        """Sum over the operands that the step under way has passed."""
        return total(Mux(self.step > NAMES.index(x), value(x), 0) for x in names)

    def after(self, value: Callable[[str], Value], names: list[str] = NAMES) -> Value:
        return total(Mux(self.step <= NAMES.index(x), value(x), 0) for x in names)

    def users(self) -> None:
        """The record counts who uses the buffer; of one side only one unit at a time changes anything."""
        h, r = self.h, self.record
        for kind in KINDS:
            for i, n in enumerate(self.names):
                queued = total(Mux(v, self.counted(e, x, kind), 0) for v, e, *_ in [*self.waits[i], *self.works[i]] for x in NAMES)
                joining = Mux(self.at("ENQUEUE") & self.mine[i], self.before(lambda x, kind=kind: self.counted(self.inst, x, kind)), 0)
                leaving = Mux(self.at("GIVE BACK") & self.mine[i], self.before(lambda x, kind=kind: self.counted(self.inst, x, kind)), 0)
                ending = Mux(self.at("RELEASE") & self.mine[i], self.after(lambda x, kind=kind: self.counted(self.did, x, kind)), 0)
                h.prove(f"{kind}_{n}", r[kind][i] + leaving == queued + joining + ending)
        for i in range(N):
            for j in range(N):
                if i < j:
                    h.prove(f"one_writer_{i}{j}", (r.writes[i] == 0) | (r.writes[j] == 0))
                if i != j:
                    h.prove(f"none_reads_what_another_pops_{i}{j}", (r.pops[i] == 0) | (r.reads[j] == 0))
        others = {kind: total(Mux(self.mine[i], 0, r[kind][i] != 0) for i in range(N)) for kind in KINDS}
        for k, x in enumerate(NAMES):
            against = others["writes"] if x == "d" else Mux(self.amount(self.inst, x) != 0, others["reads"], others["pops"])
            h.prove(f"no_clash_{x}", ~((self.at("CONFLICT") & (self.step > k)) | self.at("ENQUEUE")) | ~self.uses(self.inst, x) | (against == 0))

    def accounts(self) -> None:
        """Published + free + promised = size; the pointers say where each part lies."""
        h, r = self.h, self.record
        small = 1 << SIZE_BITS
        for c, port in enumerate(self.cores):
            args = data.View(layout(CONTROL_ARGS), port.payload.args)
            h.assume(f"small_buffers_{c}", args.size < small)
        h.prove("pointers_small", (r.size < small) & (r.avail < small) & (r.space < small) & (r.read < small) & (r.write < small), using=BYTES)
        owed = {}  # bytes that are to be published and to be freed: up with a start, down with an answer
        for what, of in (("push", ["d"]), ("pop", ["a", "b"])):
            started = h.wire(f"started_{what}", Mux(total(self.begins).any(), total(self.amount(self.inst, x) for x in of), 0))
            ended = h.wire(f"ended_{what}", total(Mux(e, total(self.amount(w[0][1], x) for x in of), 0) for e, w in zip(self.ends, self.works, strict=True)))
            parts = []
            for i, n in enumerate(self.names):
                part = Signal(24, name=f"owed_{what}_{n}")
                h.m.d.sync += part.eq(part + Mux(self.begins[i], started, 0) - Mux(self.ends[i], ended, 0))
                h.prove(part.name, part == total(Mux(v, self.amount(e, x), 0) for v, e in self.works[i] for x in of))
                parts.append(part)
            owed[what] = Signal(28, name=f"owed_{what}")
            h.m.d.sync += owed[what].eq(owed[what] + started - ended)
            h.prove(f"owed_{what}", owed[what] == total(parts))
            h.prove(f"nothing_below_zero_{what}", owed[what] >= ended)
        ending = self.at("RELEASE")
        self.pushes = h.wire("pushes", owed["push"] + Mux(ending, self.after(lambda x: self.amount(self.did, x), ["d"]), 0))
        self.popped = h.wire("pops", owed["pop"] + Mux(ending, self.after(lambda x: self.amount(self.did, x), ["a", "b"]), 0))
        unused = (r.reads.as_value() == 0) & (r.writes.as_value() == 0)
        h.prove("nothing_owed_when_unused", ~unused | ~self.at("CONTROL") | ((owed["push"] == 0) & (owed["pop"] == 0)))
        self.not_yet_pushed = h.wire("not_yet_pushed", Mux(self.at("MOVE"), self.after(lambda x: self.amount(self.inst, x), ["d"]), 0))
        self.not_yet_popped = h.wire("not_yet_popped", Mux(self.at("MOVE"), self.after(lambda x: self.amount(self.inst, x), ["a", "b"]), 0))
        h.prove("nothing_moves_that_is_not_owed", (self.pushes >= self.not_yet_pushed) & (self.popped >= self.not_yet_popped))
        promised = h.wire("promised", self.pushes + self.popped)
        self.by_case("published_free_promised", r.avail + r.space + promised == r.size + self.not_yet_pushed + self.not_yet_popped,
                using=BYTES)
        h.prove("pointers_inside", Mux(r.size == 0, (r.read == 0) & (r.write == 0), (r.read < r.size) & (r.write < r.size)), using=BYTES)
        end = h.wire("end_of_promised", r.read + r.avail + self.pushes - self.not_yet_pushed)
        self.by_case("write_follows_read", (r.write == end) | (r.write + r.size == end), using=BYTES)
        looked = self.at("LOOK")
        pops, push = (lambda x: self.amount(self.inst, x)), self.amount(self.inst, "d")
        all_pops = pops("a") + pops("b")
        h.prove("enough_to_pop", r.avail >= Mux(looked, self.before(pops, ["a", "b"]), self.not_yet_popped))
        h.prove("starts_with_enough", ~total(self.begins).any() | ((r.avail >= all_pops) & (r.space >= push)))
        h.prove("room_to_push", r.space >= self.not_yet_pushed)
        given = data.View(layout(START), h.inside("cp.given_out"))
        for k, x in enumerate(NAMES):
            seen = looked & (self.step > k)
            there, pointer = (r.space, r.write) if x == "d" else (r.avail, r.read)
            offset, needed = self.inst[f"{x}_offset"], self.inst[f"{x}_bytes"]
            place = pointer + offset
            at = Mux(place >= r.size, place - r.size, place)
            fits = (offset + needed <= there) & (at + needed <= r.size) & (r.size != 0)
            h.prove(f"starts_with_{x}", ~total(self.begins).any() | ~self.uses(self.inst, x) | (fits & (given[x] == (r.base + at)[:24])))
            address = h.inside(f"cp.address_{x}")
            h.prove(f"{'free' if x == 'd' else 'published'}_{x}", ~seen | ~self.uses(self.inst, x) | (
                fits & (address == (r.base + at)[:24])))


def tally(p: Processor, name: str, of: Callable[[Any, Value], Value]) -> Signal:
    """How many of the instructions in the units' queues are `of` (entry, core) some kind: counted as they come and go, unit by unit, and proved to be
    what the queues hold."""
    h = p.h
    comes = h.wire(f"{name}_comes", total(p.enters).any() & of(p.inst, p.core))
    refused = h.wire(f"{name}_refused", of(p.inst, p.core))
    gone = [h.wire(f"{name}_gone_{n}", (e & of(w[0][1], w[0][1].core)) | (r & refused)) for n, e, w, r in zip(p.names, p.ends, p.works, p.refuses, strict=True)]
    goes = h.wire(f"{name}_goes", total(gone))
    parts = []
    for i, n in enumerate(p.names):
        part = Signal(4, name=f"{name}_{n}")
        h.m.d.sync += part.eq(part + (p.enters[i] & comes) - gone[i])
        h.prove(part.name, part == total(v & of(e, w) for v, e, w in p.waits[i]) + total(v & of(e, e.core) for v, e in p.works[i]))
        parts.append(part)
    count = Signal(7, name=f"{name}_all")
    h.m.d.sync += count.eq(count + comes - goes)
    h.prove(f"{name}_all", count == total(parts))
    h.prove(f"{name}_none_below", count >= goes)
    return count


def accounts() -> Harness:
    p = Processor()
    p.follow()
    p.users()
    p.accounts()
    p.h.cover("starts", total(p.begins).any())
    p.h.cover("set_up", p.record.size != 0)
    p.h.cover("refused", p.at("GIVE BACK") & p.uses(p.inst, "a"))
    return p.h


def once() -> Harness:
    """An instruction is in one place from its acceptance to its completion, its unit's queue has it in the order of acceptance, nothing starts after
    an error. Its tag is one that no other has."""
    p = Processor()
    h, cp = p.h, p.cp
    tag, unit = h.rigid("tag", 16), h.rigid("unit", range(N))
    taken = [h.wire(f"taken_{c}", port.valid & port.ready) for c, port in enumerate(p.cores)]
    accepted, completed = Signal(name="accepted"), Signal(name="completed")
    comes = h.wire("comes", total(t & (port.payload.tag == tag) for t, port in zip(taken, p.cores, strict=True)))
    ends = h.wire("ends", cp.completion.valid & cp.completion.ready & (cp.completion.payload.tag == tag))
    h.m.d.sync += [accepted.eq(accepted | comes.any()), completed.eq(completed | ends)]
    for c, port in enumerate(p.cores):
        other = p.cores[1 - c]
        h.assume(f"tag_is_its_own_{c}", ~port.valid | (port.payload.tag != tag) | ~(accepted | (other.valid & (other.payload.tag == tag))))
    queued = tally(p, "tagged", lambda e, _: e.tag == tag)
    under_way = Mux(p.at("RELEASE"), p.did.tag == tag, Mux(p.at("REPORT"), p.inst.tag == tag, 0))
    h.prove("in_one_place", queued + under_way + completed == accepted)
    h.prove("never_twice", ~ends | ~completed)
    h.prove("only_what_came", ~ends | accepted | comes.any())
    streams_proved(h, "completion", cp.completion)
    for c in range(2):
        busy = tally(p, f"of_core{c}", lambda _, core, c=c: core == c)
        ending = Mux(p.at("RELEASE"), p.did.core == c, Mux(p.at("REPORT"), p.core == c, 0))
        h.prove(f"given_{c}", h.inside(f"cp.given_{c}") == busy + ending, using=("given", "of_core", "core_of", "step", "what", "working_", "waiting_", "answered", "has_a_head", "holds_the_head", "to_its_unit"))
    h.prove("core_of_the_answer", ~p.at("RELEASE") | (p.core == p.did.core))
    failed = h.inside("cp.failure")
    h.prove("nothing_starts_after_an_error", ~total(p.begins).any() | ~failed)

    # Numbers in the order of acceptance, for one unit: its queue holds the last ones in a row, so the head is the oldest.
    number = Signal(16, name="number")
    gives = [h.wire(f"gives_{c}", port.payload.unit == unit + 1) for c, port in enumerate(p.cores)]
    enters = h.wire("enters", total(Mux(unit == i, (p.waiting[i].level < p.waiting[i].depth) & h.inside(f"cp.waiting_{n}.w_en"), 0)
                                    for i, n in enumerate(p.names)))
    h.m.d.sync += number.eq(number + enters)
    for c, port in enumerate(p.cores):
        h.assume(f"numbered_{c}", ~port.valid | ~gives[c] | ~total(p.enters).any() | (p.core != c) | (port.payload.args[-16:] == number))
    for i, n in enumerate(p.names):
        row = total([]) == 0
        for k, (v, e, _) in enumerate(p.waits[i]):
            row = row & (~v | (e.args[-16:] == (number - p.waiting[i].level + k)[:16]))
        h.prove(f"in_order_{n}", (unit != i) | row)
    h.cover("completed", completed)
    h.cover("waits", queued.any())
    return h


PROOFS = [
    Proof(name="cp-accounts", block="rtl.pe.command_processor", build=accounts, induction=1, cover=22,
          says="published + free + promised = size; users counted, one unit on a side; an instruction starts only when its bytes are published, its space free"),
    Proof(name="cp-once", block="rtl.pe.command_processor", build=once, induction=1, cover=22,
          says="each instruction accepted is in one place until its one completion; a unit's queue keeps their order; none starts after an error"),
]
