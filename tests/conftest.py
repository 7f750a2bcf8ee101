"""Property tests repeat: a fixed seed, no deadline (a busy machine is not a failure), and the failing case printed. The long tier ends in
a table of its own, which is also ``build/report/long.json``."""
from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings

settings.register_profile("tawny", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tawny")


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if config.option.markexpr != "long":
        return
    rows: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            row = rows.setdefault(report.nodeid.split("[")[0].removeprefix("tests/"), Counter())
            row[outcome] += 1
    for reports in terminalreporter.stats.values():
        for report in reports:
            name = getattr(report, "nodeid", "").split("[")[0].removeprefix("tests/")
            if name in rows:
                rows[name]["seconds"] += getattr(report, "duration", 0.0)
    if not rows:
        return
    from rich.console import Console
    from rich.table import Table

    from bench import report as reports_folder

    table = Table(title="long tier", title_justify="left")
    columns = ("passed", "failed", "error", "skipped")
    for c in ("test", *columns, "seconds", "result"):
        table.add_column(c, justify="left" if c in ("test", "result") else "right")
    for name, row in sorted(rows.items()):
        good = row["passed"] and not (row["failed"] or row["error"])
        result = "[green]pass[/]" if good and not row["skipped"] else "[yellow]left out[/]" if not (row["failed"] or row["error"]) else "[red]FAIL[/]"
        table.add_row(name, *(str(row[c]) if row[c] else "" for c in columns), f"{row['seconds']:.1f}", result)
    Console(highlight=False, width=max(130, config.get_terminal_writer().fullwidth)).print(table)
    path = reports_folder.write("long", {"tests": [{"name": n, **{c: r[c] for c in columns}, "seconds": round(r["seconds"], 2)} for n, r in sorted(rows.items())]})
    terminalreporter.write_line(f"report: {path}")
