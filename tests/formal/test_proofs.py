"""Every proof holds, and finds the faults planted in what it is about.

Without the solver (extra `formal`) these tests are skipped and say so; a proof that was not carried out is never counted as one.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from rtl.pe.command_processor import USE_BITS
from spec.params import PeParams
from tests.formal import trace
from tests.formal.btor2 import parse, run
from tests.formal.model_check import bounded, cover, induction
from tests.formal.proof import carry_out, catalogue, solver_version

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("spec", "rtl")
PROOFS = {p.name: p for p in catalogue()}
FAULTS = tomllib.loads((Path(__file__).parent / "faults.toml").read_text())["fault"]
needs_solver = pytest.mark.skipif(solver_version() is None, reason="bitwuzla is not installed, nothing was proved: make formal installs it")

#: A counter that goes up by `step` input 0 or 1 and must stay below 5; `small` covers.
COUNTER = """
1 sort bitvec 1
2 sort bitvec 3
3 input 1 up
4 zero 2
5 state 2 count
6 init 2 5 4
7 uext 2 3 2
8 add 2 5 7
9 next 2 5 8
10 constd 2 5
11 ugte 1 5 10
12 bad 11 below_five
"""


def tier(long: bool) -> tuple:
    return (pytest.mark.long,) if long else ()


@needs_solver
@pytest.mark.parametrize("name", [pytest.param(p.name, marks=tier(p.long)) for p in PROOFS.values()])
def test_proved(name: str) -> None:
    outcome = carry_out(PROOFS[name])
    assert outcome.ok, outcome.why()
    assert outcome.properties and outcome.covers


def _planted(fault: dict, tree: Path) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    path = tree / fault["file"]
    if not path.exists():  # a wrapper of the proofs' own: what it wraps is no source of the project
        path.parent.mkdir(parents=True)
        shutil.copy(ROOT / fault["file"], path)
    text = path.read_text()
    assert text.count(fault["old"]) == 1, f"{fault['name']}: {fault['old']!r} occurs {text.count(fault['old'])} times in {fault['file']}, expected once"
    path.write_text(text.replace(fault["old"], fault["new"]))


@needs_solver
@pytest.mark.parametrize("fault", [pytest.param(f, id=f["name"], marks=tier(PROOFS[f["proof"]].long)) for f in FAULTS])
def test_fault_is_found(fault: dict, tmp_path: Path) -> None:
    """A property is violated, in a run that was repeated on integers; an error of the elaboration or of a tool is no find."""
    _planted(fault, tmp_path)
    out = tmp_path / "outcome.json"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "tests.formal", fault["proof"], "--json", str(out)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert out.exists(), f"{fault['name']}: the proof was not carried out:\n{(done.stdout + done.stderr)[-2000:]}"
    outcome = next(o for o in json.loads(out.read_text()) if o["proof"] == fault["proof"])
    assert not outcome["ok"] and outcome["violated"], f"{fault['name']} ({fault['why']}) was not found by {fault['proof']}"
    assert any(v.startswith(tuple(fault["violates"])) for v in outcome["violated"]), f"{fault['name']}: found by {outcome['violated']}"


def test_every_proof_has_a_fault() -> None:
    kinds = {f["proof"].split("-")[0] for f in FAULTS}
    assert {n.split("-")[0] for n in PROOFS} == kinds
    assert not [n for n, k in Counter(f["name"] for f in FAULTS).items() if k > 1]
    for f in FAULTS:
        assert f["why"] and f["old"] != f["new"] and "\n" not in f["old"] + f["new"], f["name"]


def test_a_buffers_users_can_be_counted() -> None:
    """The proof of the command processor stands on queues of two; the width of its counts must do for the longest that may be configured."""
    longest = PeParams(queue=16).queue
    with pytest.raises(ValueError):
        PeParams(queue=2 * longest)
    assert 2 * 2 * longest < 1 << USE_BITS


def test_runner_counts() -> None:
    model = parse(COUNTER)
    frames = run(model, {}, [{3: 1}] * 6)
    assert [f[model.names["count"]] for f in frames] == [0, 1, 2, 3, 4, 5]


def test_reader_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="not understood"):
        parse("1 sort bitvec 1\n2 input 1 a\n3 rol 1 2 2")


@needs_solver
def test_checker_finds_the_first_violation(tmp_path: Path) -> None:
    model = parse(COUNTER)
    assert bounded(model, 5).ok
    found = bounded(model, 6)
    assert not found.ok and found.counterexample and len(found.counterexample.frames) == 6
    step = induction(model, 1)
    assert not step.ok and step.counterexample and step.counterexample.kind == "step of the induction"
    assert cover(model, model.bads, 6).reached == {"below_five": 5} and cover(model, model.bads, 5).missed == ["below_five"]
    trace.vcd(found.counterexample, tmp_path / "x.vcd")
    assert "count" in (tmp_path / "x.vcd").read_text() and trace.table(found.counterexample).row_count == 2
