"""Carry out proofs and say what came of them, as a table and as ``build/report/formal.json``: ``python -m tests.formal [NAME ...] [--fast]``.

A counterexample is printed as a table and written as ``build/report/formal/<name>.vcd``. ``--json FILE`` is for the planted faults: outcomes alone.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.formal import trace
from tests.formal.proof import Outcome, carry_out, catalogue, solver_version

ROOT = Path(__file__).resolve().parents[2]
REPORT = Path(os.environ.get("TAWNY_BUILD", ROOT / "build")) / "report"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formal", description=__doc__)
    parser.add_argument("names", nargs="*", help="how the names of the proofs begin (default: all)")
    parser.add_argument("--fast", action="store_true", help="those of the fast tier")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    solver = solver_version()
    if solver is None:
        print("bitwuzla is not installed, nothing was proved: `make formal` installs the extra `formal`", file=sys.stderr)
        return 2
    proofs = [p for p in catalogue() if (not args.names or p.name.startswith(tuple(args.names))) and not (args.fast and p.long)]
    if not proofs:
        print(f"no proof of that name; there are {', '.join(p.name for p in catalogue())}", file=sys.stderr)
        return 2
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 170)
    outcomes: list[Outcome] = []
    columns = Table(title="proofs", title_justify="left")
    for c in ("proof", "block", "property", "method", "solver", "checks", "covers", "seconds", "result"):
        columns.add_column(c, justify="right" if c in ("checks", "covers", "seconds") else "left", overflow="fold")
    for p in proofs:
        o = carry_out(p)
        outcomes.append(o)
        if args.json:
            continue
        print(f"{p.name}: {'proved' if o.ok else 'FAIL ' + o.why()} ({o.seconds:.1f} s)", flush=True)
        columns.add_row(p.name, p.block, p.says, o.method, solver, str(len(o.properties)), str(len(o.covers)), f"{o.seconds:.1f}",
                        "[green]proved[/]" if o.ok else f"[red]FAIL[/] {o.why()}")
        if o.counterexample:
            path = REPORT / "formal" / f"{p.name}.vcd"
            trace.vcd(o.counterexample, path)
            console.print(trace.table(o.counterexample, p.show))
            console.print(f"waves: {path}")
    if args.json:
        args.json.write_text(json.dumps([o.plain() for o in outcomes]))
    else:
        console.print(columns)
        REPORT.mkdir(parents=True, exist_ok=True)
        (REPORT / "formal.json").write_text(json.dumps({"solver": solver, "proofs": [o.plain() for o in outcomes]}, indent=1) + "\n")
        print(f"report: {REPORT / 'formal.json'}")
    return 0 if all(o.ok for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
