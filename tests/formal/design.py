"""From a component and its properties to a BTOR2 model: Amaranth Assert, Assume and Cover → RTLIL → Yosys → BTOR2.

BTOR2 and not SMT-LIB: initial value, next value, assumption and property of a state machine are lines of their own, so the unrolling is a loop over
cycles here (:mod:`tests.formal.model_check`), with the solver in this process; Yosys's own driver would need a solver as a program, which no
package of PyPI but a large one has.
"""
from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Assert, Assume, Cover, Fragment, Module, Mux, Shape, Signal, Value
from amaranth.hdl._mem import MemoryInstance

import rtl.common.uninitialised  # noqa: F401  (initial values of memories as constants)
from rtl.emit import flat_ports
from tests.formal.btor2 import Model, parse
from tests.formal.model_check import RIGID

PASSES = (
    "hierarchy -top top; proc -noopt; flatten; chformal -lower; opt_clean; memory_share; memory_collect; memory_nordff; opt_clean; "
    "opt_expr; opt_clean"
)


class Harness:
    """A block under proof: its input ports are free, its insides can be looked at, properties are added to `m`.

    >>> h = Harness(SkidBuffer(4)); h.prove("held", ...); proved, covered = h.models()
    """

    def __init__(self, **blocks: Any):
        self.m = Module()
        self.inputs: list[Signal] = []
        self.fragments: dict[str, Fragment] = {}
        self.ports: dict[str, Any] = {}
        self.names: set[str] = set()
        self.wires: dict[str, Signal] = {}
        self.using: dict[str, tuple[str, ...]] = {}
        self.cases: dict[str, tuple[str, ...]] = {}
        for name, block in blocks.items():
            self.fragments[name] = self.m.submodules[name] = Fragment.get(block, None)
            for port, value, is_input in flat_ports(block):
                value = Value.cast(value)
                if is_input:
                    self.inputs.append(value)
                self.ports[f"{name}__{port}"] = value

    def free(self, name: str, shape: Any = 1) -> Signal:
        """Any value, another in each cycle."""
        s = Signal(shape, name=name)
        self.inputs.append(Value.cast(s))
        return s

    def rigid(self, name: str, shape: Any = 1) -> Signal:
        """Any value, the same all the time: what is proved of it is proved for each."""
        return self.free(RIGID + name, shape)

    def wire(self, name: str, value: Value) -> Signal:
        value = Value.cast(value)
        s = Signal(value.shape(), name=name)
        self.m.d.comb += s.eq(value)
        self.wires[name] = s
        return s

    def past(self, value: Value, init: int = 0) -> Signal:
        value = Value.cast(value)
        s = Signal(value.shape(), init=init, name=f"past{len(self.names)}_{id(value) % 9973}")
        self.m.d.sync += s.eq(value)
        return s

    def prove(self, name: str, condition: Value, *, using: tuple[str, ...] = (), cases: tuple[str, ...] = ()) -> None:
        """`using`: how the names of the properties begin that its induction rests on, itself included (all, when none is named). `cases`: wires;
        the step is asked for each that is 1 in the cycle before, then for none of them."""
        self._add(Assert, name, condition)
        if cases:
            self.cases[name] = cases
        if using:
            self.using[name] = (name, *using)

    def assume(self, name: str, condition: Value) -> None:
        self._add(Assume, name, condition)

    def cover(self, name: str, condition: Value) -> None:
        self._add(Cover, name, condition)

    def _add(self, kind: Any, name: str, condition: Value) -> None:
        if name in self.names or not re.fullmatch(r"[\w.\-]+", name):
            raise ValueError(f"property {name!r}: expected a name of its own, of letters, digits, '.', '-' and '_'")
        self.names.add(name)
        self.m.d.comb += kind(Value.cast(condition).bool(), name)

    # Insides: by the names that the block gives them.
    def inside(self, path: str) -> Value:
        """A signal of a block: "block.submodule.signal"."""
        *where, name = path.split(".")
        found = {id(s): s for s in _signals(self._fragment(where)) if s.name == name}
        if len(found) != 1:
            raise LookupError(f"{path}: {len(found)} signals of that name, expected one")
        return next(iter(found.values()))

    def state(self, path: str, name: str) -> Value:
        """Whether the state machine whose state is `path` is in the state `name`."""
        s = self.inside(path)
        codes = [k for k in range(1 << len(s)) if _state_name(s, k) == name]
        if len(codes) != 1:
            raise LookupError(f"{path} has no state {name!r}")
        return self.wire(f"{path}.{name}".replace(".", "_").replace(" ", "_"), s == codes[0])

    def row(self, path: str, index: Any, name: str) -> Signal:
        """What stands in row `index` of the memory "block.submodule.memory": a read port that the block does not have."""
        fragment = self._fragment(path.split("."))
        if not isinstance(fragment, MemoryInstance):
            raise LookupError(f"{path} is no memory")
        shape = Shape.cast(fragment._data.shape)
        bits = max(fragment._data.depth - 1, 0).bit_length()
        address, word = Signal(bits, name=f"{name}_row"), Signal(shape, name=name)
        self.m.d.comb += address.eq(index)
        fragment.read_port(domain="comb", addr=address, data=word, en=Value.cast(1), transparent_for=())
        return word

    def fifo(self, path: str, name: str) -> "Fifo":
        """An `amaranth.lib.fifo.SyncFIFO` inside a block."""
        return Fifo(self, path, name)

    def _fragment(self, where: list[str]) -> Fragment:
        fragment = self.fragments[where[0]]
        for part in where[1:]:
            fragment = next((f for f, n, *_ in fragment.subfragments if n == part), None)
            if fragment is None:
                raise LookupError(f"no submodule {part!r} in {'.'.join(where)}")
        return fragment

    def models(self) -> tuple[Model, Model]:
        """The model with what is to be proved, and with what is to be covered, as its bad states."""
        kept = {c: self.wires[c] for cases in self.cases.values() for c in cases}
        text = rtlil.convert(self.m, ports=[*self.inputs, *kept.values()], name="top", emit_src=False)
        asserts, covers = to_btor2(text)
        proved = parse(asserts)
        proved.using, proved.cases = self.using, self.cases
        return proved, parse(covers)


def _state_name(s: Signal, code: int) -> str:
    try:
        return str(s._decoder(code)).rpartition("/")[0]
    except KeyError:
        return ""


def _signals(fragment: Fragment) -> Iterator[Signal]:
    for statements in fragment.statements.values():
        for s in statements:
            yield from s._lhs_signals()
            yield from s._rhs_signals()


@dataclass
class Entry:
    valid: Value
    word: Value


class Fifo:
    """Contents of a SyncFIFO, the oldest first."""

    def __init__(self, h: Harness, path: str, name: str):
        self.level = h.inside(f"{path}.level")
        self.produce, self.consume = h.inside(f"{path}.produce"), h.inside(f"{path}.consume")
        self.depth = h._fragment([*path.split("."), "storage"])._data.depth
        self.entries = []
        for k in range(self.depth):
            index = Signal(range(2 * self.depth), name=f"{name}{k}_index")
            place = self.consume + k
            h.m.d.comb += index.eq(Mux(place >= self.depth, place - self.depth, place))
            self.entries.append(Entry(h.wire(f"{name}{k}_valid", self.level > k), h.row(f"{path}.storage", index, f"{name}{k}")))
        place = self.consume + self.level
        self.sound = (self.level <= self.depth) & (self.consume < self.depth) & (
            self.produce == Mux(place >= self.depth, place - self.depth, place))


def to_btor2(text: str) -> tuple[str, str]:
    """BTOR2 of a design with its asserts, and the same with its covers in their place. Properties keep their names (the message)."""
    def named(match: re.Match[str]) -> str:
        return match[0].replace(match[1], f"\\={match[2]}", 1)

    text = re.sub(r'cell \$check (\S+)\n(?:    parameter [^\n]*\n)*?    parameter \\FORMAT "([^"]*)"', named, text)
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "top.il").write_text(text)
        script = f"read_rtlil {folder}/top.il; {PASSES}; write_btor {folder}/asserts.btor; write_btor -c {folder}/covers.btor"
        code = "import sys; from pyosys import libyosys as ys; d = ys.Design(); [ys.run_pass(p.strip(), d) for p in sys.argv[1].split(';')]"
        done = subprocess.run([sys.executable, "-c", code, script], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("Yosys: " + "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:]))
        return (folder / "asserts.btor").read_text(), (folder / "covers.btor").read_text()
