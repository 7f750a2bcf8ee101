"""Measurements: ``python -m bench [--full] [--only emission,blocks,system,build,convert,cells] [--save-baseline]``. Writes ``build/report/bench.json``.

Figures are ratios of CPU time taken in one run on one machine; docs/benchmarks.md says what each means. Nothing here is a test of time.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import blocks, build, cells, convert, emission, measure, report, speed
from hccl.errors import HcclError
from tb.lib.simulators import BuildError, MissingTool

Part = tuple[Callable[[bool, Console], list[dict[str, Any]]], Callable[[list[dict[str, Any]]], Table]]
PARTS: dict[str, Part] = {
    "system": (speed.measure, speed.table),
    "blocks": (blocks.measure, blocks.table),
    "emission": (emission.measure, emission.table),
    "build": (build.measure, build.table),
    "convert": (convert.measure, convert.table),
    "cells": (cells.measure, cells.table),
}


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    p.add_argument("--full", action="store_true", help="larger designs, and one model of the whole system beside the device (tens of minutes)")
    p.add_argument("--only", default=",".join(PARTS), help="parts to measure, comma-separated: " + ", ".join(PARTS))
    p.add_argument("--save-baseline", action="store_true", help="with cells: what is measured becomes bench/baseline/cells.json")
    a = p.parse_args(argv)
    names = a.only.split(",")
    unknown = [n for n in names if n not in PARTS]
    if unknown:
        p.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    start, where = time.perf_counter(), measure.machine()
    console.print(f"{where['cpu']}, {where['cores']} cores, load {where['load'][0]} (other work disturbs: figures are CPU time)")
    out: dict[str, Any] = {}
    try:
        for name in names:
            console.print(f"{name}:")
            out[name] = PARTS[name][0](a.full, console)
    except (MissingTool, BuildError, HcclError, RuntimeError) as e:
        print(f"error: {e.args[0] if e.args else e}", file=sys.stderr)
        return 1
    for name in names:
        console.print(PARTS[name][1](out[name]))
    if a.save_baseline and "cells" in out:
        console.print(f"baseline: {os.path.relpath(cells.save(out['cells']))}")
    where["load_after"] = [round(x, 1) for x in os.getloadavg()]
    path = report.write("bench", {"machine": where, "full": a.full, **out})
    console.print(f"report: {os.path.relpath(path)}   {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
