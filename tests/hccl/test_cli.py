"""The command: tables, JSON, exit codes, and errors in one line without a traceback."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hccl import cli

runner = CliRunner()


def ok(*args: str) -> str:
    result = runner.invoke(cli.app, list(args))
    assert result.exit_code == 0, result.output
    return result.output


def test_run_prints_a_table_and_checks(tmp_path: Path) -> None:
    out = ok("run", "all_reduce", "--ranks", "3", "--dtype", "bfloat16", "--count", "1001", "--op", "avg", "--check",
             "--json", str(tmp_path / "r.json"), "--output", str(tmp_path / "o.npz"))  # fmt: skip
    assert "busbw" in out and "2002" in out and "equal" in out
    row = json.loads((tmp_path / "r.json").read_text())
    assert row["ranks"] == 3 and row["bytes"] == 2002 and row["bits"] == "equal" and row["cycles"] is None
    with np.load(tmp_path / "o.npz") as z:
        assert sorted(z.files) == ["rank0", "rank1", "rank2"] and z["rank0"].size == 1001
        assert (z["rank0"] == z["rank2"]).all()


def test_run_captures(tmp_path: Path) -> None:
    out = ok("run", "all_reduce", "--ranks", "2", "--count", "100", "--pcap", str(tmp_path / "r.pcapng"))
    assert "capture: " in out and (tmp_path / "r.pcapng").stat().st_size > 2 * 200


def test_run_reads_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 10), np.float32))
    ok("run", "all_reduce", "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy"), "--in-place")
    assert (np.load(tmp_path / "y.npy") == 4).all()


def test_json_on_standard_output_is_only_json() -> None:
    result = runner.invoke(cli.app, ["run", "all_reduce", "-n", "2", "--count", "5", "--dtype", "int32", "--json", "-"])
    assert result.exit_code == 0 and json.loads(result.stdout)["count"] == 5


@pytest.mark.parametrize("count", ["0", "1"])
@pytest.mark.parametrize("ranks", ["1", "5"])
def test_small(ranks: str, count: str) -> None:
    assert "equal" in ok("run", "all_reduce", "--ranks", ranks, "--count", count, "--check")


def test_plan_and_prove(tmp_path: Path) -> None:
    out = ok("plan", "all_reduce", "--ranks", "4", "--bytes", "1048576", "--json", str(tmp_path / "p.json"))
    assert "1572864" in out and "proved" in out and "(((x0 op x1) op x2) op x3)" in out
    assert "proved" in ok("prove", str(tmp_path / "p.json"))
    data = json.loads((tmp_path / "p.json").read_text())
    data["programs"][1][0].pop()
    (tmp_path / "p.json").write_text(json.dumps(data))
    result = runner.invoke(cli.app, ["prove", str(tmp_path / "p.json")])
    assert result.exit_code == 1 and "rank 2, channel 0, op 24" in result.stderr


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["run", "all_get"], "collective 'all_get' is not known; expected one of all_reduce"),
        (["run", "all_reduce", "--op", "mean"], "op 'mean' is not known"),
        (["run", "all_reduce", "--dtype", "float8"], "dtype 'float8' is not known"),
        (["run", "all_reduce", "--device", "gpu"], "device 'gpu' is not known; expected one of golden, rtl"),
        (["run", "all_reduce", "--input", "/nowhere/x.npz"], "/nowhere/x.npz: no such file"),
        (["run", "all_reduce", "--drop", "0.1"], "expected --device rtl"),
        (["run", "all_reduce", "--count", "1100000"], "MemParams.size_bytes"),
        (["run", "all_reduce", "--config", "huge"], "unknown configuration 'huge'; known: tiny"),
        (["run", "all_reduce", "--dtype", "bool", "--op", "avg"], "avg of bool"),
        (["run", "all_reduce", "--deadline", "3"], "not done within 3 steps"),
        (["run", "all_reduce", "--json", "/nowhere/x"], "/nowhere/x: No such file"),
        (["plan", "all_reduce", "--bytes", "1023"], "--bytes 1023 is not a multiple of 4"),
        (["prove", "/nowhere/p.json"], "/nowhere/p.json: No such file"),
        (["prove", "/dev/null"], "/dev/null: not JSON"),
        (["run", "all_reduce", "--count", "999999999999"], "--count 999999999999: 3999999999996 bytes of float32 on every rank; expected at most"),
        (["run", "all_reduce", "--output", ""], "--output ''; expected the name of a file"),
        (["run", "all_reduce", "--input", " "], "--input ' '; expected the name of a file"),
        (["run", "all_reduce", "--input", "/tmp/{rank}.npy/x.npy"], "/tmp/0.npy/x.npy: no such file"),
        (["run", "all_reduce", "--pcap", "/tmp"], "pcap: /tmp: Is a directory"),
        (["run", "all_reduce", "--device", "rtl", "--waves", "/tmp"], "waves: /tmp: Is a directory"),
        (["run", "all_reduce", "--device", "rtl", "--stalls", "1"], "probability of stalls = 1.0; expected 0 <= p < 1"),
    ],
)
def test_errors_are_one_line(args: list[str], match: str) -> None:
    result = runner.invoke(cli.app, args)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and match in line


def test_a_missing_simulator_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tb.chip.service", None)
    result = runner.invoke(cli.app, ["run", "all_reduce", "--device", "rtl"])
    assert result.exit_code == 1 and result.stderr.startswith("error: device rtl is not available")


def test_wrong_bits_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = cli.expected

    def wrong(*args):
        out = real(*args)
        out[0][8] ^= 1
        return out

    monkeypatch.setattr(cli, "expected", wrong)
    result = runner.invoke(cli.app, ["run", "all_reduce", "--count", "16", "--check", "--output", str(tmp_path / "x.npz")])
    assert not list(tmp_path.iterdir())  # no file of wrong results
    assert result.exit_code == 1 and "differ" in result.stdout and "rank 0 element 2" in result.stderr


@pytest.mark.parametrize("name", ["no/x.npz", "x.npz/y.npy", "folder.npz", "x.txt", "x"])
@pytest.mark.parametrize("option", ["--output", "--json"])
def test_a_file_that_cannot_be_written_is_found_before_the_run(option: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if option == "--json" and name.startswith("x") and "/" not in name:
        return  # JSON goes to a file of any name
    (tmp_path / "x.npz").write_bytes(b"kept")
    (tmp_path / "folder.npz").mkdir()
    monkeypatch.setattr(cli, "_collective", None)
    result = runner.invoke(cli.app, ["run", "all_reduce", "--count", "4", option, str(tmp_path / name)])
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 1 and not result.stdout and line.startswith(f"error: {tmp_path / name}: ")
    assert (tmp_path / "x.npz").read_bytes() == b"kept" and len(list(tmp_path.iterdir())) == 2


def test_out_of_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "_collective", full)
    result = runner.invoke(cli.app, ["run", "all_reduce"])
    assert result.exit_code == 1 and result.stderr == "error: the data does not fit in the memory of this computer\n"


def test_usage_errors_exit_with_2() -> None:
    for option, value in (("--ranks", "0"), ("--ranks", "-1"), ("--ranks", "300"), ("--count", "-1"), ("--deadline", "0"), ("--seed", "-1")):
        result = runner.invoke(cli.app, ["run", "all_reduce", option, value])
        assert result.exit_code == 2 and option in result.stderr and "Traceback" not in result.stderr
    assert runner.invoke(cli.app, ["run"]).exit_code == 2


def test_verbose_shows_the_state() -> None:
    result = runner.invoke(cli.app, ["run", "all_reduce", "--deadline", "3", "--verbose"])
    assert result.exit_code == 1 and "queue 0" in result.stderr
