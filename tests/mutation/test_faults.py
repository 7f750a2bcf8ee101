"""Every planted fault is caught: the benches can fail, and fail in the test that claims to show the feature.

`faults/` lists one-line faults. Each is planted in a copy of the sources, the named tests run there, and each must end in an
assertion or a bench error; a build error, an import error or a missing tool is a failure of this test, not a catch.
What caught each fault is written to ``build/report/mutation/<name>.json``.
"""
from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from mutant import BUILD, CHECKS, ROOT, Fault, HarnessError, copy_sources, load, simulate

from tb.lib import registry
from tb.lib.simulators import available

FAULTS = load()


def simulator(fault: Fault) -> str:
    """Icarus where it is installed: no C++ to compile."""
    return fault.sim or ("verilator" if available("icarus") else "icarus")


#: (block, simulator, tier) of unchanged blocks that no other test runs on the simulator used here.
BASELINES = sorted({
    (f.block, simulator(f), f.long) for f in FAULTS if simulator(f) not in registry.find(f.block).simulators})


def tier(long: bool) -> tuple:
    return (pytest.mark.long,) if long else ()


@pytest.mark.parametrize("fault", [pytest.param(f, id=f.name, marks=tier(f.long)) for f in FAULTS])
def test_caught(fault: Fault, tmp_path: Path, record_property) -> None:
    copy_sources(tmp_path, fault)
    sim = simulator(fault)
    failures = simulate(tmp_path, fault.block, sim, fault.tests)
    text = "\n".join(map(str, failures)) or "every test passed"
    caught = {f.test: f for f in failures if f.kind in CHECKS}
    survived = [t for t in fault.tests if t not in caught]
    assert not survived, f"{fault.name} ({fault.file}) was not caught by a check of {', '.join(survived)} on {sim}:\n{text}"
    record_property("caught_by", text)
    report = BUILD.parent / "report" / "mutation" / f"{fault.name}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({**asdict(fault), "sim": sim, "caught_by": [asdict(f) for f in caught.values()]}, indent=1) + "\n")


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c[0]}-{c[1]}{'-long' if c[2] else ''}", marks=tier(c[2])) for c in BASELINES])
def test_unchanged_passes(case: tuple[str, str, bool], tmp_path: Path) -> None:
    block, sim, _ = case
    copy_sources(tmp_path, None)
    tests = sorted({t for f in FAULTS if (f.block, simulator(f), f.long) == case for t in f.tests})
    failures = simulate(tmp_path, block, sim, tuple(tests))
    assert not failures, "\n".join(map(str, failures))


def test_list_is_sound() -> None:
    assert sum(not f.long for f in FAULTS) >= 12
    assert not [n for n, k in Counter(f.name for f in FAULTS).items() if k > 1]
    for f in FAULTS:
        assert f.file.startswith(("rtl/", "spec/")) and f.why and f.tests and f.old != f.new, f.name
        assert "\n" not in f.old + f.new, f"{f.name}: a fault is one line"
        assert f.sim in ("", "icarus", "verilator"), f.name
        assert set(f.tests) <= set(registry.find(f.block).tests), f"{f.name}: the plan of {f.block} has no such test"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_line_is_there(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text()
    compile(fault.plant(text), fault.file, "exec")


def test_lost_line_is_refused() -> None:
    with pytest.raises(HarnessError, match="occurs 2 times"):
        FAULTS[0].plant(2 * FAULTS[0].old)


def test_build_error_is_no_catch(tmp_path: Path) -> None:
    fault = next(f for f in FAULTS if f.block == "fp32_add")
    copy_sources(tmp_path, fault)
    path = tmp_path / fault.file
    path.write_text(path.read_text().replace("import", "imporr", 1))
    with pytest.raises(HarnessError, match="SyntaxError|invalid syntax"):
        simulate(tmp_path, fault.block, simulator(fault), fault.tests)
