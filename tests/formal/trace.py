"""A counterexample for people: a table of what changes, and a VCD with everything."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from vcd import VCDWriter

from tests.formal.btor2 import Array
from tests.formal.model_check import Counterexample

ROWS = 60


def values(c: Counterexample) -> dict[str, list[int]]:
    """Named signals, cycle by cycle; memories left out."""
    found = {}
    for name, n in sorted(c.model.names.items()):
        row: list[Any] = [f[n] if n > 0 else 1 - f[-n] for f in c.frames]
        if not any(isinstance(v, Array) for v in row) and "$" not in name:
            found[name] = row
    return found


def table(c: Counterexample, show: tuple[str, ...] = ()) -> Table:
    """Signals that `show` names, else those that are not 0 throughout, the block's ports first."""
    t = Table(title=f"{', '.join(c.violated)}: {c.kind}", title_justify="left")
    t.add_column("signal")
    for k in range(len(c.frames)):
        t.add_column(str(k), justify="right")
    rows = {n: v for n, v in values(c).items() if (n.startswith(show) if show else any(v))}
    for name, row in sorted(rows.items(), key=lambda r: ("__" not in r[0], r[0]))[:ROWS]:
        t.add_row(name, *(f"{v:x}" for v in row))
    if len(rows) > ROWS:
        t.caption = f"{len(rows) - ROWS} more signals in the VCD"
    return t


def vcd(c: Counterexample, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file, VCDWriter(file, timescale="1 ns") as writer:
        rows = values(c)
        taken: set[str] = set()
        made = {}
        for name, row in rows.items():
            scope, _, leaf = ("top." + name).rpartition(".")
            leaf = leaf.replace(" ", "_")
            if f"{scope}.{leaf}" in taken:
                continue
            taken.add(f"{scope}.{leaf}")
            n = c.model.names[name]
            made[name] = writer.register_var(scope.replace(" ", "_"), leaf, "wire", size=c.model.nodes[abs(n)].sort, init=row[0])
        for k in range(len(c.frames)):
            for name, var in made.items():
                writer.change(var, k, rows[name][k])
        writer.close(len(c.frames))
