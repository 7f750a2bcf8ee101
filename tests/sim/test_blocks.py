"""Every block's bench under every simulator of its plan, and every coverage bin of the plan hit."""
from __future__ import annotations

import pytest

from tb.lib import registry, runner
from tb.lib.simulators import available

CASES = [(n, s) for n, p in registry.blocks().items() for s in p.simulators]


@pytest.mark.parametrize("name,sim", CASES, ids=[f"{n}-{s}" for n, s in CASES])
def test_block(name: str, sim: str) -> None:
    reason = available(sim)
    if reason and sim != "verilator":
        pytest.skip(reason)
    plan = registry.find(name)
    out = runner.run(plan, sim)
    failures = "\n".join(f"{t}: {why}\n  again: {runner.rerun_command(out, t)}" for t, why in out.failed.items())
    assert out.ok, f"{name} on {sim}, log {out.folder / 'sim.log'}\n{failures}"
    assert set(plan.tests) <= set(out.passed)
    if sim == plan.simulators[0]:
        missed = [b for b in plan.bins if not out.bins.get(b)]
        assert not missed, f"coverage bins never hit: {', '.join(missed)}"
