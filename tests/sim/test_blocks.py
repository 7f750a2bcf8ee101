"""Every block's bench under every simulator of its plan, and every coverage bin of the plan hit."""
from __future__ import annotations

import pytest

from tb.lib import registry, runner
from tb.lib.simulators import available

CASES = [
    pytest.param(n, s, id=f"{n}-{s}", marks=pytest.mark.long if p.long else ()) for n, p in registry.blocks().items() for s in p.simulators]


def check(name: str, sim: str, tests: list[str]) -> runner.Outcome:
    reason = available(sim)
    if reason and sim != "verilator":
        pytest.skip(reason)
    out = runner.run(registry.find(name), sim, tests=tests)
    failures = "\n".join(f"{t}: {why}\n  again: {runner.rerun_command(out, t)}" for t, why in out.failed.items())
    assert out.ok, f"{name} on {sim}, log {out.folder / 'sim.log'}\n{failures}"
    assert set(tests) <= set(out.passed)
    return out


@pytest.mark.parametrize("name,sim", CASES)
def test_block(name: str, sim: str) -> None:
    plan = registry.find(name)
    out = check(name, sim, plan.tests_on(sim))
    if sim == plan.simulators[0] and plan.tests_on(sim) == plan.tests:
        missed = [b for b in plan.bins if not out.bins.get(b)]
        assert not missed, f"coverage bins never hit: {', '.join(missed)}"


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n, p in registry.blocks().items() if p.four_state])
def test_every_test_on_four_states(name: str) -> None:
    plan = registry.find(name)
    out = check(name, "icarus", plan.tests)
    missed = [b for b in plan.bins if not out.bins.get(b)]
    assert not missed, f"coverage bins never hit: {', '.join(missed)}"
