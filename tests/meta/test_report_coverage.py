"""Coverage merged over simulators: what passed anywhere counts, what failed or was not hit is named, what did not run is never covered."""
from __future__ import annotations

import json
from pathlib import Path

from tb.lib import registry
from tb.report_coverage import rows, xml

PASS, FAIL = '<testcase name="{}"/>', '<testcase name="{}"><failure/></testcase>'


def left(runs: Path, sim: str, cases: str, bins: dict[str, int]) -> None:
    folder = runs / f"skid-{sim}"
    folder.mkdir()
    (folder / "results.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    (folder / "coverage.json").write_text(json.dumps({"bins": bins}))


def test_merged(tmp_path: Path) -> None:
    plan = registry.find("skid")
    first, *others = plan.tests
    left(tmp_path, "verilator", FAIL.format(first) + "".join(map(PASS.format, others)), dict.fromkeys(plan.bins, 2))
    skid = next(b for b in rows(tmp_path) if b["name"] == "skid")
    assert [f["missing"] for f in skid["features"] if not f["covered"]] == [[first]]
    left(tmp_path, "icarus", PASS.format(first), dict.fromkeys(plan.bins, 1))
    skid = next(b for b in rows(tmp_path) if b["name"] == "skid")
    assert all(f["covered"] for f in skid["features"]) and set(skid["bins"].values()) == {3} and skid["sims"] == ["verilator", "icarus"]


def test_a_bin_that_was_not_hit_is_missing(tmp_path: Path) -> None:
    plan = registry.find("skid")
    left(tmp_path, "verilator", "".join(map(PASS.format, plan.tests)), {})
    skid = next(b for b in rows(tmp_path) if b["name"] == "skid")
    assert {m for f in skid["features"] for m in f["missing"]} == set(plan.bins) != set()
    other = next(b for b in rows(tmp_path) if b["name"] == "nmc")
    assert not other["sims"] and not any(f["covered"] for f in other["features"])
    assert xml(rows(tmp_path)).find("block[@name='skid']/bin").get("hits") == "0"
