"""The main job: every block against its golden model, then a real gradient all-reduced over four simulated chips.

``python -m bench.sim [--block NAME[,NAME…]] [--seed N] [--waves]``. Writes ``build/report/sim.json``; exits non-zero on any failure.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench import report
from hccl import Communicator, open_device
from hccl.buffers import to_bytes
from hccl.errors import HcclError
from hccl.io import read_ranks
from spec.params import SystemParams, config
from tb.lib import registry, runner
from tb.lib.simulators import BUILD, ROOT, BuildError, MissingTool, Options, available, require, runtime

GRADIENTS = ROOT / "examples" / "data" / "gradients.npz"
RANKS = 4
MIB = 1 << 20
ROOMS = ("nic", "chip", "mem", "net", "common", "numeric")  # by the size of their blocks


def run_block(name: str, sim: str, seed: int, waves: bool) -> dict[str, Any]:
    """One block on one simulator, as a row; errors of the build become a failed test of that name."""
    try:
        out = runner.run(registry.find(name), sim, seed=seed, waves=waves)
    except (MissingTool, BuildError, RuntimeError, ValueError) as e:
        return {"name": name, "sim": sim, "tests": 1, "passed": 0, "cycles": 0, "seconds": 0.0, "failed": {"build": str(e)}}
    return {
        "name": name, "sim": sim, "tests": len(out.passed) + len(out.failed), "passed": len(out.passed), "cycles": out.cycles,
        "seconds": round(out.seconds, 2), "build_seconds": round(out.build_seconds, 2), "failed": out.failed,
        "folder": str(out.folder), "waves": str(out.waves) if out.waves else None,
        "again": {t: runner.rerun_command(out, t) for t in out.failed},
    }


def collective(data: list[np.ndarray], dtype: str, name: str, params: SystemParams) -> dict[str, Any]:
    """All-reduce on rtl and on golden; a row with whether the bits are equal."""
    start = time.perf_counter()
    results = {}
    for kind in ("rtl", "golden"):
        with open_device(kind, params) as device, Communicator(device) as comm:
            results[kind] = comm.all_reduce([x.copy() for x in data], dtype=dtype)
    r = results["rtl"]
    equal = all(
        np.array_equal(to_bytes(a), to_bytes(b)) for a, b in zip(r.outputs, results["golden"].outputs, strict=True)
    )
    return {
        "name": name, "collective": "all_reduce", "algorithm": "ring", "ranks": len(data), "bytes": r.nbytes, "dtype": dtype,
        "device": "rtl", "cycles": r.cycles, "bound_cycles": r.bound_cycles, "algbw": r.algbw, "busbw": r.busbw,
        "percent_of_bound": r.percent_of_bound, "bits_equal": equal, "seconds": round(time.perf_counter() - start, 2),
    }


def jobs(names: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(block, simulator) pairs to run, and one line for everything left out."""
    todo, left = [], []
    missing = {s: available(s) for s in ("verilator", "icarus")}
    for name in names:
        for sim in registry.find(name).simulators:
            if sim != "verilator" and missing[sim]:
                left.append(f"{name} on {sim}")
            else:
                todo.append((name, sim))
    lines = [f"left out, not passed: {', '.join(left)} ({missing['icarus']})"] if left else []
    return todo, lines


def run_all(
    todo: list[tuple[str, str]], seed: int, waves: bool, params: SystemParams | None, console: Console
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run the pairs and, on `params`, the collectives, on all cores; prints a line as each ends. Rows of blocks and of collectives."""
    rows: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    if any(s == "verilator" for _, s in todo) or params:
        require("verilator")
        runtime(Options(waves=waves))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        system = pool.submit(collectives, params) if params else None
        blocks = [pool.submit(run_block, name, sim, seed, waves) for name, sim in sorted(todo, key=_weight)]
        for f in as_completed([*([system] if system else []), *blocks]):
            if f is system:
                seconds, done = f.result()
                console.print(f"  [green]done[/] all-reduce on {params.nodes if params else 0} chips, system built in {seconds:.1f} s")
                continue
            row = f.result()
            rows.append(row)
            mark = "[green]pass[/]" if row["passed"] == row["tests"] else "[red]FAIL[/]"
            console.print(f"  {mark} {row['name']} ({row['sim']}) {row['passed']}/{row['tests']}, {row['seconds']:.1f} s")
    order = {pair: i for i, pair in enumerate(todo)}
    return sorted(rows, key=lambda r: order[r["name"], r["sim"]]), done


def _weight(pair: tuple[str, str]) -> int:
    """Order of work: the rooms with the large blocks first, so that no core waits for one of them at the end."""
    room = registry.find(pair[0]).path.parent.name
    return ROOMS.index(room) if room in ROOMS else 0


def block_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="blocks against golden", title_justify="left")
    for c in ("block", "simulator", "tests", "passed", "cycles", "build s", "run s", "result"):
        table.add_column(c, justify="left" if c in ("block", "simulator", "result") else "right")
    for r in rows:
        ok = r["passed"] == r["tests"] and r["tests"]
        table.add_row(
            r["name"], r["sim"], str(r["tests"]), str(r["passed"]), f"{r['cycles']:,}", f"{r.get('build_seconds', 0):.1f}",
            f"{r['seconds']:.1f}", "[green]pass[/]" if ok else "[red]FAIL[/]",
        )
    return table


def collective_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="all-reduce over simulated chips (bandwidth in bytes per cycle)", title_justify="left")
    columns = ("input", "ranks", "bytes", "dtype", "cycles", "bound", "algbw", "busbw", "% of bound", "bits = golden")
    for c in columns:
        table.add_column(c, justify="left" if c in ("input", "dtype", "bits = golden") else "right")
    for r in rows:
        table.add_row(
            r["name"], str(r["ranks"]), f"{r['bytes']:,}", r["dtype"], f"{r['cycles']:,}", f"{r['bound_cycles']:,}", f"{r['algbw']:.2f}",
            f"{r['busbw']:.2f}", f"{r['percent_of_bound']:.1f}", "[green]yes[/]" if r["bits_equal"] else "[red]NO[/]",
        )
    return table


def collectives(params: SystemParams) -> tuple[float, list[dict[str, Any]]]:
    """Seconds to build the system of `params`, and a row per all-reduce on it."""
    from tb.chip.executor import library

    start = time.perf_counter()
    library(params, faults=False, gates=False, waves=False)
    built = time.perf_counter() - start
    rows = []
    for dtype in ("float32", "bfloat16"):
        data, _ = read_ranks(GRADIENTS, RANKS, dtype)
        rows.append(collective(data, dtype, "gradient", params))
        rows.append(collective([np.resize(x, MIB // x.itemsize) for x in data], dtype, "gradient, repeated to 1 MiB", params))
    return built, rows


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m bench.sim", description=__doc__)
    p.add_argument("--block", default="", help="only these, comma-separated: blocks, groups (dpe, re, sfu, …), engines for the processing element; without the all-reduce")
    p.add_argument("--seed", type=int, default=runner.DEFAULT_SEED)
    p.add_argument("--waves", action="store_true", help="write a wave file per block")
    a = p.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)
    start = time.perf_counter()
    try:
        names, by_name = registry.expand(a.block or "system")
        todo, left = jobs(names)
        if not a.block:
            others, more = registry.expand("engines")
            left.append(f"not of this job: {', '.join(others)} (make sim BLOCK=engines, a group or one of them)")
            by_name += more
        left += [f"left out, by name or in the long tier: {', '.join(by_name)} (make sim BLOCK={by_name[0]})"] if by_name else []
        params = None if a.block else config("tiny").replace(nodes=RANKS)
        console.print(f"{len(todo)} block simulations, {os.cpu_count()} at a time")
        rows, done = run_all(todo, a.seed, a.waves, params, console)
    except (MissingTool, BuildError, HcclError, KeyError) as e:
        print(f"error: {e.args[0] if e.args else e}", file=sys.stderr)
        return 1
    console.print(block_table(rows))
    for r in rows:
        for test, why in r["failed"].items():
            first = str(why).splitlines()[0] if why else "failed"
            console.print(f"[red]FAIL[/] {r['name']} {r['sim']} {test}: {first}", markup=True)
            if test in r.get("again", {}):
                console.print(f"     again: {r['again'][test]}; log: {Path(r['folder']) / 'sim.log'}")
    if done:
        console.print(collective_table(done))
    for line in left:
        console.print(line)
    path = report.write("sim" if params else "sim-" + a.block.replace(",", "-"), {"blocks": [{k: v for k, v in r.items() if k != "folder"} for r in rows], "collectives": done})
    waves = [r["waves"] for r in rows if r.get("waves")]
    console.print(f"logs: {_short(BUILD / 'runs')}/<block>-<simulator>/sim.log   report: {_short(path)}   {time.perf_counter() - start:.0f} s")
    console.print("waves: " + (", ".join(_short(Path(w)) for w in waves) if waves else "make waves BLOCK=<block>, or WAVES=1 make sim BLOCK=<block>"))
    passed = sum(r["passed"] == r["tests"] and r["tests"] > 0 for r in rows)
    console.print(f"{passed} of {len(rows)} block simulations passed" + (f"; {sum(r['bits_equal'] for r in done)} of {len(done)} collectives equal golden bit for bit" if done else ""))
    ok = rows and all(r["passed"] == r["tests"] and r["tests"] for r in rows) and all(r["bits_equal"] for r in done)
    return 0 if ok else 1


def _short(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
