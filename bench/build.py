"""What it costs to build a bench from nothing: emission, then Verilator and g++, without ccache and with everything else left out.

The dot-product engine: small, and with `--full` at full size (32 rows of 64 bytes). Each in a process and a build folder of its own; Verilator's runtime,
which every bench shares, is compiled before. Wall time is this machine's with whatever else it did; CPU time, divided by the cores, is what it is without.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from rich.console import Console
from rich.table import Table

from tb.lib.simulators import ROOT

CODE = """
import json, sys
from bench.measure import spent
from rtl.emit import emit
from tb.lib import registry, runner
from tb.lib.simulators import BUILD, Options, runtime
plan = registry.find(sys.argv[1])
runtime(Options())
with spent() as first:
    emit(plan.make(), BUILD / "rtl", sunk=True)
with spent() as second:
    runner.build(plan, "verilator")
print(json.dumps({"emission": vars(first), "compilation": vars(second)}))
"""


def measure(full: bool, console: Console) -> list[dict[str, Any]]:
    rows = []
    for name in ("dot_product", *(("dot_product_full",) if full else ())):
        with tempfile.TemporaryDirectory(prefix="tawny-build-") as tmp:
            env = {**os.environ, "TAWNY_BUILD": tmp, "CCACHE_DISABLE": "1"}
            run = subprocess.run([sys.executable, "-c", CODE, name], capture_output=True, text=True, cwd=ROOT, env=env)
        if run.returncode:
            raise RuntimeError(f"build of {name}: {run.stderr.strip()[-500:]}")
        spent = json.loads(run.stdout.splitlines()[-1])
        total = {k: round(sum(s[k] for s in spent.values()), 1) for k in ("cpu", "wall")}
        rows.append({"name": name, **{stage: round(s["cpu"], 1) for stage, s in spent.items()}, **total, "load": round(os.getloadavg()[0], 1)})
        console.print(f"  {name}: {total['cpu']:.0f} s of CPU, {total['wall']:.0f} s of wall time at load {rows[-1]['load']}", highlight=False)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    t = Table(title="building a bench from nothing, without ccache: seconds", title_justify="left")
    for c in ("block", "emission, CPU", "Verilator and g++, CPU", "all, CPU", "all, wall", "load"):
        t.add_column(c, justify="left" if c == "block" else "right")
    for r in rows:
        t.add_row(r["name"], *(f"{r[k]:.1f}" for k in ("emission", "compilation", "cpu", "wall", "load")))
    return t
