"""Coverage of the testplans, merged over simulators: ``python -m tb.report_coverage``. Table, ``build/report/coverage.json`` and ``coverage.xml``.

Read from what the last run of each block left under ``build/runs``; a feature is covered when all its tests passed on some simulator and all its
bins were hit. Exit code 1 when a block that was run misses something; blocks that were not run are listed, and never counted as covered.
"""
from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rtl.emit import write_atomic
from tb.lib import registry
from tb.lib.simulators import BUILD


@dataclass
class Merged:
    """What the runs of one block showed."""

    sims: list[str] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)
    bins: Counter[str] = field(default_factory=Counter)


def merge(block: str, runs: Path) -> Merged:
    out = Merged()
    for sim in ("verilator", "icarus"):
        folder = runs / f"{block}-{sim}"
        if not (folder / "results.xml").exists():
            continue
        out.sims.append(sim)
        for case in ET.parse(folder / "results.xml").iter("testcase"):
            if not any(e.tag in ("failure", "error", "skipped") for e in case):
                out.passed.add(case.get("name", ""))
        hits = folder / "coverage.json"
        if hits.exists():
            out.bins.update(json.loads(hits.read_text())["bins"])
    return out


def rows(runs: Path) -> list[dict[str, Any]]:
    """One object a block: name, sims, features (name, covered, missing), bins."""
    out = []
    for plan in registry.blocks().values():
        got = merge(plan.name, runs)
        features = []
        for f in plan.features:
            missing = [t for t in f["tests"] if t not in got.passed] + [b for b in f.get("bins", []) if not got.bins[b]]
            features.append({"name": f["name"], "covered": not missing, "missing": missing})
        out.append({"name": plan.name, "sims": got.sims, "features": features, "bins": {b: got.bins[b] for b in plan.bins}})
    return out


def xml(data: list[dict[str, Any]]) -> ET.ElementTree:
    root = ET.Element("coverage")
    for block in data:
        e = ET.SubElement(root, "block", name=block["name"], simulators=" ".join(block["sims"]))
        for f in block["features"]:
            ET.SubElement(e, "feature", name=f["name"], covered=str(f["covered"]).lower(), missing=", ".join(f["missing"]))
        for name, hits in block["bins"].items():
            ET.SubElement(e, "bin", name=name, hits=str(hits))
    ET.indent(root)
    return ET.ElementTree(root)


def main() -> int:
    data = rows(BUILD / "runs")
    ran = [b for b in data if b["sims"]]
    table = Table(title="coverage of the testplans", title_justify="left")
    for c in ("block", "simulators", "features", "bins", "hits", "missing"):
        table.add_column(c, justify="right" if c in ("features", "bins", "hits") else "left")
    for b in ran:
        covered, hit = sum(f["covered"] for f in b["features"]), sum(h > 0 for h in b["bins"].values())
        missing = [m for f in b["features"] for m in f["missing"]]
        table.add_row(b["name"], ", ".join(b["sims"]), f"{covered}/{len(b['features'])}", f"{hit}/{len(b['bins'])}", f"{sum(b['bins'].values()):,}",
                      ", ".join(missing[:4]) + (" …" if len(missing) > 4 else ""))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    console.print(table)
    silent = [b["name"] for b in data if not b["sims"]]
    if silent:
        console.print(f"not run, not covered: {', '.join(silent)}")
    folder = BUILD / "report"
    write_atomic(folder / "coverage.json", lambda p: p.write_text(json.dumps({"blocks": data}, indent=1) + "\n"))
    write_atomic(folder / "coverage.xml", lambda p: xml(data).write(p, encoding="utf-8", xml_declaration=True))
    console.print("report: build/report/coverage.json, coverage.xml")
    return 0 if ran and all(f["covered"] for b in ran for f in b["features"]) else 1


if __name__ == "__main__":
    sys.exit(main())
