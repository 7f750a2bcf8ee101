"""Word-level transition systems in BTOR2, as Yosys writes them: read, and run on plain integers.

A model is a list of nodes in order, each from earlier ones; states have an initial value and a next one. `bads` must never be 1 in a cycle in
which all `constraints` are. The runner is independent of any solver: it repeats a counterexample and says whether it is one.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNARY = ("not", "neg", "redand", "redor", "redxor", "inc", "dec")
BINARY = (
    "and", "or", "xor", "nand", "nor", "xnor", "implies", "iff", "eq", "neq", "ult", "ulte", "ugt", "ugte", "slt", "slte", "sgt", "sgte",
    "add", "sub", "mul", "udiv", "urem", "sdiv", "srem", "sll", "srl", "sra", "concat", "read",
)
TERNARY = ("ite", "write")


@dataclass(frozen=True)
class Node:
    op: str
    sort: Any  # width in bits; (index width, element width) of an array
    args: tuple[int, ...] = ()  # nodes; a negative one is inverted
    numbers: tuple[int, ...] = ()  # of slice, uext, sext; the value of a constant


@dataclass
class Model:
    nodes: dict[int, Node] = field(default_factory=dict)
    init: dict[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    bads: dict[str, int] = field(default_factory=dict)
    constraints: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    using: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a property: what its induction rests on, when not on all
    cases: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a property: names whose cases its induction takes one by one

    def cone(self, roots: Mapping[str, int], *, once: bool = False) -> list[int]:
        """Nodes that `roots` depend on, in order; with `once` in one cycle only, not through the states."""
        seen: set[int] = set()
        todo = [abs(r) for r in roots.values()]
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            seen.add(n)
            todo += [abs(a) for a in self.nodes[n].args]
            if not once:
                todo += [abs(t[n]) for t in (self.next, self.init) if n in t]
        return sorted(seen)


def parse(text: str) -> Model:
    """Raises ValueError with the line for what BTOR2 has and this reader has not."""
    m, sorts, unnamed = Model(), {}, 0
    for line in text.splitlines():
        words = line.split(";")[0].split()
        if not words:
            continue
        n, op, rest = int(words[0]), words[1], words[2:]
        if op == "sort":
            sorts[n] = int(rest[1]) if rest[0] == "bitvec" else (sorts[int(rest[1])], sorts[int(rest[2])])
        elif op in ("bad", "constraint"):
            unnamed += len(rest) < 2
            (m.bads if op == "bad" else m.constraints)[rest[1].removeprefix("=") if len(rest) > 1 else f"{op}{unnamed}"] = int(rest[0])
        elif op in ("init", "next"):
            (m.init if op == "init" else m.next)[int(rest[1])] = int(rest[2])
        elif op == "output":
            m.names.setdefault(rest[1], int(rest[0])) if len(rest) > 1 else None
        else:
            sort, rest = sorts[int(rest[0])], rest[1:]
            if op in ("input", "state"):
                node = Node(op, sort)
            elif op in ("const", "constd", "consth", "zero", "one", "ones"):
                base = {"const": 2, "constd": 10, "consth": 16}.get(op)
                value = int(rest.pop(0), base) if base else {"zero": 0, "one": 1, "ones": -1}[op]
                node = Node("const", sort, (), (value & (1 << sort) - 1,))
            else:
                args, numbers = {"slice": (1, 2), "uext": (1, 1), "sext": (1, 1)}.get(
                    op, (1 if op in UNARY else 2 if op in BINARY else 3 if op in TERNARY else 0, 0))
                if not args:
                    raise ValueError(f"BTOR2 line not understood: {line!r}")
                node = Node(op, sort, tuple(int(x) for x in rest[:args]), tuple(int(x) for x in rest[args : args + numbers]))
                if op == "uext" and node.args == (-1,):  # how Yosys writes a constant of no bits
                    node = Node("const", sort, (), (0,))
                rest = rest[args + numbers :]
            m.nodes[n] = node
            if rest and not rest[0].startswith("$"):
                m.names.setdefault(rest[0], n)
    return m


class Array(dict):
    """A memory's words that are known, and what stands in the others."""

    default = 0

    def write(self, index: int, value: int) -> "Array":
        new = Array(self)
        new.default = self.default
        new[index] = value
        return new

    def read(self, index: int) -> int:
        return self.get(index, self.default)


def signed(value: int, width: int) -> int:
    return value - (value >> width - 1 << width)


def evaluate(node: Node, a: list[Any], width: list[int]) -> Any:
    """Value of a node from those of its arguments, whose widths are `width`."""
    op, mask = node.op, (1 << node.sort) - 1 if isinstance(node.sort, int) else 0
    match op:
        case "slice":
            return a[0] >> node.numbers[1] & mask
        case "uext":
            return a[0]
        case "sext":
            return signed(a[0], width[0]) & mask
        case "ite":
            return a[1] if a[0] else a[2]
        case "read":
            return a[0].read(a[1])
        case "write":
            return a[0].write(a[1], a[2])
        case "concat":
            return a[0] << width[1] | a[1]
        case "not" | "neg" | "inc" | "dec":
            return {"not": ~a[0], "neg": -a[0], "inc": a[0] + 1, "dec": a[0] - 1}[op] & mask
        case "redand" | "redor" | "redxor":
            return int({"redand": a[0] == (1 << width[0]) - 1, "redor": a[0] != 0, "redxor": a[0].bit_count() & 1}[op])
        case "and" | "or" | "xor" | "nand" | "nor" | "xnor":
            value = {"and": a[0] & a[1], "or": a[0] | a[1], "xor": a[0] ^ a[1]}[op.replace("n", "", 1) if op[0] == "n" else "xor" if op == "xnor" else op]
            return (~value if op in ("nand", "nor", "xnor") else value) & mask
        case "implies":
            return int(not a[0] or bool(a[1]))
        case "add" | "sub" | "mul":
            return {"add": a[0] + a[1], "sub": a[0] - a[1], "mul": a[0] * a[1]}[op] & mask
        case "udiv":
            return a[0] // a[1] if a[1] else mask
        case "urem":
            return a[0] % a[1] if a[1] else a[0]
        case "sll" | "srl":
            return (0 if a[1] >= width[0] else a[0] << a[1] if op == "sll" else a[0] >> a[1]) & mask
        case "sra":
            return signed(a[0], width[0]) >> min(a[1], width[0]) & mask
        case "eq" | "iff" | "neq":
            return int((a[0] == a[1]) != (op == "neq"))
    x, y = (signed(v, width[0]) for v in a) if op[0] == "s" else a
    compared = {"lt": x < y, "lte": x <= y, "gt": x > y, "gte": x >= y}.get(op[1:])
    if compared is None:
        raise ValueError(f"BTOR2 operation {op!r} is not evaluated here")
    return int(compared)


def run(model: Model, start: Mapping[int, Any], inputs: list[Mapping[int, int]]) -> list[dict[int, Any]]:
    """Values of all nodes in each cycle; `start` has the states that have no initial value (or those that a step of an induction begins with)."""
    frames: list[dict[int, Any]] = []
    state: dict[int, Any] = dict(start)
    for k, given in enumerate(inputs):
        v: dict[int, Any] = {}
        for n, node in model.nodes.items():
            if node.op == "input":
                v[n] = given.get(n, 0)
            elif node.op == "state":
                if n not in state:
                    known = model.init.get(n) if k == 0 else None
                    state[n] = _known(model, v, known) if known is not None else Array() if isinstance(node.sort, tuple) else 0
                    if isinstance(node.sort, tuple) and not isinstance(state[n], Array):
                        filled = Array()
                        filled.default = state[n]
                        state[n] = filled
                v[n] = state[n]
            elif node.op == "const":
                v[n] = node.numbers[0]
            else:
                v[n] = evaluate(node, [_known(model, v, a) for a in node.args], [model.nodes[abs(a)].sort for a in node.args])
        frames.append(v)
        state = {n: _known(model, v, x) for n, x in model.next.items()}
    return frames


def _known(model: Model, values: Mapping[int, Any], n: int) -> Any:
    return values[n] if n > 0 else ~values[-n] & (1 << model.nodes[-n].sort) - 1
