"""A proof: a block, what is proved of it and how; carrying it out; what came of it."""
from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tests.formal.design import Harness
from tests.formal.model_check import Counterexample, bounded, cover, induction

SOLVER = "bitwuzla"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """`induction` k (for all time) or `bounded` cycles after reset; every cover is reached within `cover` cycles."""

    name: str
    block: str
    says: str
    build: Callable[[], Harness]
    cover: int
    induction: int = 0
    bounded: int = 0
    long: bool = True
    show: tuple[str, ...] = ()  # signals of the table of a counterexample, beside the ports


@dataclass(kw_only=True)
class Outcome:
    proof: str
    method: str
    ok: bool
    seconds: float
    properties: list[str]
    covers: dict[str, int]
    violated: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    counterexample: Counterexample | None = None
    show: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in ("counterexample", "show")}

    def why(self) -> str:
        if self.violated:
            kind = self.counterexample.kind if self.counterexample else ""
            return f"{', '.join(self.violated)} violated in cycle {len(self.counterexample.frames) - 1 if self.counterexample else '?'} ({kind})"
        return f"never reached: {', '.join(self.missed)}" if self.missed else ""


def solver_version() -> str | None:
    """None: not installed (the extra `formal`)."""
    try:
        return f"{SOLVER} {version(SOLVER)}"
    except PackageNotFoundError:
        return None


def carry_out(proof: Proof) -> Outcome:
    """Raises ValueError for a proof without property, assertion that is constant, or cover: it would show nothing."""
    start = time.perf_counter()
    proved, covered = proof.build().models()
    if not proved.bads or not covered.bads:
        raise ValueError(f"{proof.name}: {len(proved.bads)} properties and {len(covered.bads)} covers; expected one of each or more")
    result = induction(proved, proof.induction) if proof.induction else bounded(proved, proof.bounded)
    outcome = Outcome(
        proof=proof.name, method=result.method, ok=result.ok, seconds=0, properties=sorted(proved.bads), covers={}, counterexample=result.counterexample,
        violated=result.counterexample.violated if result.counterexample else [], show=proof.show)
    if result.ok:
        reach = cover(covered, covered.bads, proof.cover)
        outcome.ok, outcome.covers, outcome.missed = reach.ok, reach.reached, reach.missed
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def catalogue() -> list[Proof]:
    """All proofs, as `tests/formal/proofs` has them."""
    import tests.formal.proofs as folder

    found: list[Proof] = []
    for module in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        found += getattr(importlib.import_module(f"{folder.__name__}.{module.name}"), "PROOFS", [])
    return found
