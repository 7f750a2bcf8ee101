"""Bounded model checking, k-induction and cover of a BTOR2 model with Bitwuzla, in this process.

* `bounded`: no property is violated in the first `depth` cycles after reset.
* `induction`: `bounded` to `k` cycles, and no `k` good cycles in a row, from whatever state, are followed by a bad one. Together: never violated.
* `cover`: each cover is reached within `depth` cycles under the assumptions; what cannot be reached says that they exclude too much.

What a solver says of a counterexample is not believed: its inputs are run again on integers (:func:`tests.formal.btor2.run`), and the property that
is violated there, with every assumption met, is what is reported.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.formal.btor2 import Array, Model, run

RIGID = "rigid_"  # an input of which the name begins so has one value for the whole run


@dataclass
class Counterexample:
    violated: list[str]
    frames: list[dict[int, Any]]  # values of all nodes, a cycle each
    model: Model
    kind: str  # "from reset", or "step of the induction": then the first cycle need not be reachable


@dataclass
class Result:
    ok: bool
    method: str
    counterexample: Counterexample | None = None
    reached: dict[str, int] = field(default_factory=dict)  # cover: the cycle in which it holds
    missed: list[str] = field(default_factory=list)


class Unrolled:
    """Terms of a model's nodes, cycle by cycle."""

    def __init__(self, model: Model, roots: dict[str, int], *, free: bool = False):
        import bitwuzla as bz

        self.bz, self.model, self.free = bz, model, free
        self.tm = bz.TermManager()
        options = bz.Options()
        options.set(bz.Option.PRODUCE_MODELS, True)
        if limit := int(os.environ.get("FORMAL_LIMIT", 0)):
            options.set(bz.Option.TIME_LIMIT_PER, limit)
        self.solver = bz.Bitwuzla(self.tm, options)
        self.kinds = {
            **{op: getattr(bz.Kind, "BV_" + name) for op, name in {
                "not": "NOT", "neg": "NEG", "redand": "REDAND", "redor": "REDOR", "redxor": "REDXOR", "inc": "INC", "dec": "DEC", "and": "AND",
                "or": "OR", "xor": "XOR", "nand": "NAND", "nor": "NOR", "xnor": "XNOR", "ult": "ULT", "ulte": "ULE", "ugt": "UGT", "ugte": "UGE",
                "slt": "SLT", "slte": "SLE", "sgt": "SGT", "sgte": "SGE", "add": "ADD", "sub": "SUB", "mul": "MUL", "udiv": "UDIV", "urem": "UREM",
                "sll": "SHL", "srl": "SHR", "sra": "ASHR", "concat": "CONCAT"}.items()},
            "read": bz.Kind.ARRAY_SELECT, "write": bz.Kind.ARRAY_STORE,
        }
        self.cone = model.cone({**roots, **{f"constraint {k}": v for k, v in model.constraints.items()}})
        self.frames: list[dict[int, Any]] = []
        self.sorts: dict[Any, Any] = {}
        self.one, self.zero = (self.tm.mk_bv_value(self.sort(1), v) for v in (1, 0))

    def sort(self, s: Any) -> Any:
        if s not in self.sorts:
            self.sorts[s] = self.tm.mk_array_sort(self.sort(s[0]), self.sort(s[1])) if isinstance(s, tuple) else self.tm.mk_bv_sort(s)
        return self.sorts[s]

    def at(self, k: int, n: int) -> Any:
        while len(self.frames) <= k:
            self._frame()
        return self._arg(self.frames[k], n)

    def holds(self, k: int, n: int) -> Any:
        return self.tm.mk_term(self.bz.Kind.EQUAL, [self.at(k, n), self.one])

    def _arg(self, v: dict[int, Any], n: int) -> Any:
        return v[n] if n > 0 else self.tm.mk_term(self.bz.Kind.BV_NOT, [v[-n]])

    def _frame(self) -> None:
        k, tm, kind = len(self.frames), self.tm, self.bz.Kind
        v: dict[int, Any] = {}
        rigid = {n for name, n in self.model.names.items() if name.startswith(RIGID)}
        for n in self.cone:
            node = self.model.nodes[n]
            args = [self._arg(v, a) for a in node.args]
            match node.op:
                case "input":
                    v[n] = self.frames[0][n] if k and n in rigid else tm.mk_const(self.sort(node.sort), f"i{n}@{k}")
                case "state" if k and n in self.model.next:
                    v[n] = self._arg(self.frames[-1], self.model.next[n])
                case "state":
                    known = self.model.init.get(n) if k == 0 and not self.free else None
                    if known is None:
                        v[n] = tm.mk_const(self.sort(node.sort), f"s{n}@{k}")
                    else:
                        v[n] = self._arg(v, known)
                        if isinstance(node.sort, tuple) and not isinstance(self.model.nodes[abs(known)].sort, tuple):
                            v[n] = tm.mk_const_array(self.sort(node.sort), v[n])
                case "const":
                    v[n] = tm.mk_bv_value(self.sort(node.sort), node.numbers[0])
                case "slice":
                    v[n] = tm.mk_term(kind.BV_EXTRACT, args, list(node.numbers))
                case "uext" | "sext":
                    by = node.numbers[0]
                    v[n] = tm.mk_term(kind.BV_ZERO_EXTEND if node.op == "uext" else kind.BV_SIGN_EXTEND, args, [by]) if by else args[0]
                case "ite":
                    v[n] = tm.mk_term(kind.ITE, [tm.mk_term(kind.EQUAL, [args[0], self.one]), *args[1:]])
                case "eq" | "neq" | "iff" | "implies" | "ult" | "ulte" | "ugt" | "ugte" | "slt" | "slte" | "sgt" | "sgte":
                    if node.op == "implies":
                        args = [tm.mk_term(kind.EQUAL, [a, self.one]) for a in args]
                    how = {"eq": kind.EQUAL, "iff": kind.EQUAL, "neq": kind.DISTINCT, "implies": kind.IMPLIES}.get(node.op) or self.kinds[node.op]
                    v[n] = tm.mk_term(kind.ITE, [tm.mk_term(how, args), self.one, self.zero])
                case _:
                    v[n] = tm.mk_term(self.kinds[node.op], args)
        self.frames.append(v)

    def assume(self, k: int) -> None:
        for n in self.model.constraints.values():
            self.solver.assert_formula(self.holds(k, n))

    def any(self, k: int, roots: dict[str, int]) -> Any:
        terms = [self.holds(k, n) for n in roots.values()]
        return terms[0] if len(terms) == 1 else self.tm.mk_term(self.bz.Kind.OR, terms)

    def check(self, *terms: Any) -> bool:
        result = self.solver.check_sat(*terms)
        if result not in (self.bz.Result.SAT, self.bz.Result.UNSAT):
            raise RuntimeError(f"Bitwuzla gave no answer: {result}")
        return result == self.bz.Result.SAT

    def _value(self, term: Any) -> Any:
        value = self.solver.get_value(term)
        if not term.sort().is_array():
            return int(value.value(2), 2)
        stores = []
        while value.kind() == self.bz.Kind.ARRAY_STORE:
            value, index, element = value.children()
            stores.append((int(index.value(2), 2), int(element.value(2), 2)))
        array = Array(reversed(stores))
        if value.kind() == self.bz.Kind.CONST_ARRAY:
            array.default = int(value.children()[0].value(2), 2)
        return array

    def witness(self, last: int, roots: dict[str, int]) -> Counterexample:
        """The solver's model as a run on integers, which must violate one of `roots` (or reach it, for covers) in cycle `last`."""
        nodes = self.model.nodes
        start = {n: self._value(self.frames[0][n]) for n in self.cone
                 if nodes[n].op == "state" and (self.free or n not in self.model.init)}
        if self.free:
            start |= {n: 0 for n, node in nodes.items() if node.op == "state" and n not in start and not isinstance(node.sort, tuple)}
        inputs = [{n: self._value(f[n]) for n in self.cone if nodes[n].op == "input"} for f in self.frames[: last + 1]]
        frames = run(self.model, start, inputs)
        value = lambda k, n: frames[k][n] if n > 0 else 1 - frames[k][-n]  # noqa: E731
        broken = [c for k in range(last + 1) for c, n in self.model.constraints.items() if not value(k, n)]
        violated = [name for name, n in roots.items() if value(last, n)]
        if broken or not violated:
            raise RuntimeError(f"the solver's counterexample does not repeat on integers: assumptions broken {broken}, violated {violated}")
        return Counterexample(violated, frames, self.model, "step of the induction" if self.free else "from reset")


def bounded(model: Model, depth: int) -> Result:
    u = Unrolled(model, model.bads)
    for k in range(depth):
        u.assume(k)
        bad = u.any(k, model.bads)
        if u.check(bad):
            return Result(False, f"bounded {depth}", u.witness(k, model.bads))
        u.solver.assert_formula(u.tm.mk_term(u.bz.Kind.NOT, [bad]))
    return Result(True, f"bounded {depth}")


def induction(model: Model, k: int) -> Result:
    method = f"induction {k}"
    base = bounded(model, k)
    if not base.ok:
        return Result(False, method, base.counterexample)
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    for name, n in model.bads.items():
        groups.setdefault(model.using.get(name, ("",)), {})[name] = n
    for prefixes, asked in groups.items():
        for name, case, u, terms in step_questions(model, k, prefixes, asked):
            if u.check(*terms):
                return Result(False, f"{method} {case}".strip(), u.witness(k, {name: asked[name]}))
    return Result(True, method)


def step_questions(model: Model, k: int, prefixes: tuple[str, ...], asked: dict[str, int]) -> Iterator[tuple[str, str, Unrolled, list[Any]]]:
    """The questions of an induction's step, one at a time: small ones are quicker than their disjunction, and say more."""
    given = {name: n for name, n in model.bads.items() if name.startswith(prefixes)}
    cases = {c: model.names[c] for name in asked for c in model.cases.get(name, ())}
    u = Unrolled(model, {**given, **asked, **{f"case {c}": n for c, n in cases.items()}}, free=True)
    for t in range(k):
        u.assume(t)
        u.solver.assert_formula(u.tm.mk_term(u.bz.Kind.NOT, [u.any(t, given)]))
    u.assume(k)
    for name, n in asked.items():
        bad, mine = u.holds(k, n), model.cases.get(name, ())
        for c in mine:
            yield name, c, u, [bad, u.holds(k - 1, cases[c])]
        yield name, "", u, [bad, *(u.tm.mk_term(u.bz.Kind.NOT, [u.holds(k - 1, cases[c])]) for c in mine)]


def cover(model: Model, covers: dict[str, int], depth: int) -> Result:
    u, left, reached = Unrolled(model, covers), dict(covers), {}
    for k in range(depth):
        u.assume(k)
        while left and u.check(u.any(k, left)):
            for name in u.witness(k, left).violated:
                reached[name] = k
                del left[name]
        if not left:
            break
    return Result(not left, f"cover {depth}", None, reached, list(left))
