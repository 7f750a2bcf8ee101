"""`hccl perf`, and the other commands for every collective."""
from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hccl import cli, cli_perf, perf
from hccl.errors import UsageError

runner = CliRunner()
assert cli_perf


def ok(*args: str) -> str:
    result = runner.invoke(cli.app, list(args))
    assert result.exit_code == 0, result.output + result.stderr
    return result.output


@pytest.mark.parametrize("collective", perf.PERF)
def test_perf_of_every_collective(collective: str) -> None:
    rows = json.loads(ok("perf", collective, "-b", "48", "-e", "4800", "-f", "10", "-n", "3", "--device", "golden", "--json", "-", "-w", "0"))["rows"]
    assert [r["size"] for r in rows] == [48, 480, 4800] and all(r["out_of_place"]["wrong"] == 0 for r in rows)
    assert all((r["in_place"]["wrong"] is None) == (collective == "sendrecv") and r["out_of_place"]["cycles"] is None for r in rows)


def test_perf_table_and_csv(tmp_path: Path) -> None:
    out = ok("perf", "all_reduce", "-b", "8", "-e", "32", "-n", "2", "--device", "golden", "-d", "int8", "-o", "prod", "--csv", str(tmp_path / "x.csv"))
    lines = out.splitlines()
    assert lines[1].split()[1:] == ["size", "count", "type", "redop", "root", *["time", "algbw", "busbw", "#wrong"] * 2]
    assert lines[3].split() == ["8", "8", "int8", "prod", "-1", "N/A", "N/A", "N/A", "0", "N/A", "N/A", "N/A", "0"] and "0 OK" in lines[-2]
    table = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [row["size"] for row in table] == ["8", "16", "32"] and table[0]["oop_wrong"] == "0" and table[0]["algorithm"] == "ring"


def test_figures_are_those_of_nccl_tests() -> None:
    f = perf.Form(cycles=100, algbw=4.0, busbw=6.0, wrong=0)
    row = perf.Row(size=400, count=100, dtype="float32", redop="sum", root=-1, algorithm="ring", out_of_place=f, in_place=f)
    assert perf.footer([row]) == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 6.00"]
    assert perf.bus_factor("all_reduce", 4) == 1.5 and perf.bus_factor("all_gather", 4) == 0.75 and perf.bus_factor("broadcast", 4) == 1
    assert list(perf.sizes(8, 100, 2, 0)) == [8, 16, 32, 64] and list(perf.sizes(8, 30, 2, 10)) == [8, 18, 28]
    assert [perf.parse_size(s) for s in ("8", "4K", "16M", "1GB", "2k")] == [8, 4096, 16 << 20, 1 << 30, 2048]
    for bad in ("", "K", "1.5K", "-1", "8Q"):
        with pytest.raises(UsageError):
            perf.parse_size(bad)


def test_wrong_elements_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    real = perf.expected
    monkeypatch.setattr(perf, "expected", lambda *a: [x ^ (i == 1) for i, x in enumerate(real(*a))])
    result = runner.invoke(cli.app, ["perf", "all_reduce", "-b", "64", "-e", "64", "-n", "2", "--device", "golden", "-w", "0"])
    assert result.exit_code == 1 and "32 FAILED" in result.stdout and "all_reduce: 32 wrong elements" in result.stderr


@pytest.mark.parametrize("args,match", [
    (["barrier"], "collective 'barrier' is not known"), (["all_reduce", "-b", "2K", "-e", "1K"], "no size"), (["all_reduce", "-o", "mean"], "op 'mean'"),
    (["all_reduce", "-d", "bool", "-o", "avg"], "avg of bool"), (["broadcast", "-r", "9"], "--root = 9"), (["all_reduce", "--csv", "/nowhere/x"], "No such file"),
])  # fmt: skip
def test_perf_errors_are_one_line(args: list[str], match: str) -> None:
    result = runner.invoke(cli.app, ["perf", *args, "--device", "golden"])
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 1 and match in line


@pytest.mark.parametrize("collective", cli.NAMED)
@pytest.mark.parametrize("form", [[], ["--in-place"]])
def test_run_and_plan_of_every_collective(collective: str, form: list[str], tmp_path: Path) -> None:
    assert "equal" in ok("run", collective, "--ranks", "3", "--count", "77", "--check", "--dtype", "int16", *form)
    made = tmp_path / "p.json"
    assert "proved" in ok("plan", collective, "--ranks", "5", "--bytes", "1000", "--json", str(made), *form) and "proved" in ok("prove", str(made))


def test_run_of_lists_and_choices() -> None:
    assert "equal" in ok("run", "all_to_all", "--ranks", "2", "--splits", "1,2;3,0", "--check")
    assert "equal" in ok("run", "reduce_scatter", "--ranks", "3", "--splits", "5,0,2", "--check", "--algorithm", "halving_doubling", "--op", "avg")
    assert "equal" in ok("run", "reduce", "--ranks", "5", "--root", "3", "--check", "--op", "premul_sum", "--factor", "3", "--dtype", "int64")
    assert "by the host" in ok("run", "all_reduce", "--ranks", "3", "--dtype", "float64", "--check")
    assert "hierarchical" in ok("run", "all_reduce", "--ranks", "4", "--algorithm", "hierarchical", "--groups", "0,3;1,2", "--check")
    for args, match in ((["all_reduce", "--splits", "1,2"], "--splits with all_reduce"), (["all_to_all", "--splits", "1,2"], "expected 2 rows of 2"),
                        (["all_to_all", "--splits", "a"], "expected numbers"), (["reduce", "--root", "2"], "root = 2"),
                        (["all_reduce", "--fixed-order", "--algorithm", "ring"], "depends on the count")):  # fmt: skip
        result = runner.invoke(cli.app, ["run", *args, "--ranks", "2"])
        assert result.exit_code == 1 and match in result.stderr
