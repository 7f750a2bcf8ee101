"""Build a block's bench and run its cocotb tests; every outcome that is not a pass of every named test is a failure."""
from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rtl.emit import Emitted, emit, write_atomic
from tb.lib import top
from tb.lib.ports import CYCLE, TopPort, describe
from tb.lib.registry import BlockPlan, blocks
from tb.lib.simulators import BUILD, ROOT, Options, icarus, verilate, wave_format

HDL = Path(__file__).parent / "hdl"
DEFAULT_SEED = 1


@dataclass(kw_only=True)
class Outcome:
    """Result of one simulation: per test passed or the failure's first line; clock cycles simulated; wall seconds."""

    block: str
    sim: str
    seed: int
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    cycles: int = 0
    seconds: float = 0.0
    build_seconds: float = 0.0
    bins: dict[str, int] = field(default_factory=dict)
    folder: Path = Path()
    waves: Path | None = None

    @property
    def ok(self) -> bool:
        return bool(self.passed) and not self.failed


def build(plan: BlockPlan, sim: str, *, waves: bool = False) -> tuple[Path, list[TopPort], Emitted]:
    """(what runs, ports, emission) of the plan's block."""
    block = plan.make()
    emitted = emit(block, BUILD / "rtl", sunk=sim == "verilator")  # Icarus has the plain form
    ports = top.plan_ports(block, plan.ports, plan.depth, plan.memory_bytes)
    dump = 'initial if ($test$plusargs("waves")) begin $dumpfile("waves.fst"); $dumpvars(0, tb_top); end' if sim == "icarus" else ""
    text = top.verilog(emitted.top, ports, dump)
    tb = BUILD / "rtl" / emitted.key / f"tb_{plan.name}_{sim}.v"
    if not tb.exists() or tb.read_text() != text:
        write_atomic(tb, lambda p: p.write_text(text))
    sources = [tb, emitted.verilog, *(HDL / f for f in top.HDL)]
    if sim == "icarus":
        return icarus("tb_top", sources, "", plan.name), ports, emitted
    name = plan.name + ("-waves" if waves else "")
    return verilate("tb_top", sources, {"tb_top": ["*"]}, "", Options(waves=wave_format() if waves else False), name, emitted.shared), ports, emitted


def environment(module: str, seed: int, results: Path, tests: list[str] | None) -> dict[str, str]:
    """Environment for a simulator with cocotb inside (what cocotb_tools' runner sets)."""
    import cocotb_tools.config as cc
    import find_libpython

    env = dict(os.environ)
    libpython = find_libpython.find_libpython()
    if libpython is None:
        raise RuntimeError("libpython was not found: this Python was built without a shared library")
    env.update(
        GPI_USERS=";".join([libpython, cc.pygpi_entry_point()]),
        PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
        PYGPI_PYTHON_BIN=sys.executable,
        COCOTB_TOPLEVEL="tb_top",
        COCOTB_TEST_MODULES=module,
        TOPLEVEL_LANG="verilog",
        COCOTB_TRUST_INERTIAL_WRITES="1",
        COCOTB_RANDOM_SEED=str(seed),
        COCOTB_RESULTS_FILE=str(results),
        # by default pytest's assertion rewriting compiles every imported file anew (NumPy, scapy: a second and more per run), and loads its plugins
        COCOTB_REWRITE_ASSERTION_FILES="test_*.py *_rig.py *_check.py",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PATH=env.get("PATH", "") + os.pathsep + str(cc.libs_dir),
    )
    if tests:
        env["COCOTB_TEST_FILTER"] = "|".join(rf"(^|\.){re.escape(t)}$" for t in tests)
    return env


def command(exe: Path, sim: str, waves: bool) -> list[str]:
    import cocotb_tools.config as cc

    if sim == "icarus":
        return ["vvp", "-m", cc.lib_entry("vpi", "icarus"), str(exe), "-fst", *(["+waves"] if waves else [])]
    return [str(exe), *(["--trace", "--trace-file", wave_file(sim)] if waves else [])]


def wave_file(sim: str) -> str:
    """Name of the trace that `sim` writes in its run's folder."""
    return "waves.vcd" if sim == "verilator" and wave_format() == "vcd" else "waves.fst"


def run(
    plan: BlockPlan, sim: str, *, tests: list[str] | None = None, seed: int = DEFAULT_SEED, waves: bool = False,
    timeout: float = 1800, folder: Path | None = None, pcap: Path | None = None,
) -> Outcome:
    """Build and run `tests` (default: the fast tier's on `sim`). One of them that did not run counts as failed.

    Raises:
        MissingTool, BuildError: the simulator is missing, or refused the design. ValueError: a capture of a block without links.
    """
    if pcap is not None and not plan.links:
        raise ValueError(f"{plan.name} has no links to capture; these have: {', '.join(n for n, b in blocks().items() if b.links)}")
    t0 = time.perf_counter()
    tests = tests or plan.tests_on(sim)
    exe, ports, _ = build(plan, sim, waves=waves)
    out = Outcome(block=plan.name, sim=sim, seed=seed, build_seconds=time.perf_counter() - t0)
    with _own_folder(folder or BUILD / "runs" / f"{plan.name}-{sim}{'-waves' if waves else ''}") as out.folder:
        _simulate(plan, sim, exe, ports, tests, seed, waves, pcap, timeout, out)
    return out


@contextmanager
def _own_folder(wanted: Path) -> Iterator[Path]:
    """An empty folder that no other run uses meanwhile: `wanted`, or one beside it while another run holds that."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with wanted.with_name(wanted.name + ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wanted = wanted.with_name(f"{wanted.name}.{os.getpid()}")
        shutil.rmtree(wanted, ignore_errors=True)
        wanted.mkdir()
        yield wanted


def _simulate(
    plan: BlockPlan, sim: str, exe: Path, ports: list[TopPort], tests: list[str], seed: int, waves: bool, pcap: Path | None,
    timeout: float, out: Outcome,
) -> None:
    results = out.folder / "results.xml"
    env = environment(",".join(plan.bench), seed, results, tests)
    env["TAWNY_BENCH"] = json.dumps(
        {"block": plan.name, "sim": sim, "config": plan.config, "seed": seed, "ports": json.loads(describe(ports)),
         "pcap": str(pcap.resolve()) if pcap else "", "links": plan.links}
    )
    t1 = time.perf_counter()
    log = out.folder / "sim.log"
    why = ""
    with log.open("w") as f:
        try:
            code = subprocess.run(
                command(exe, sim, waves), cwd=out.folder, env=env, stdout=f, stderr=subprocess.STDOUT, timeout=timeout
            ).returncode
            if code:
                why = f"simulator ended with code {code}"
        except subprocess.TimeoutExpired:
            why = f"simulation still running after {timeout:.0f} s"
    out.seconds = time.perf_counter() - t1
    _read_results(results, out)
    for name in tests:
        if name not in out.passed and name not in out.failed:
            out.failed[name] = why or "did not run"
    if why and not out.failed:
        out.failed["(simulation)"] = f"{why}; see {log}"
    cover = out.folder / "coverage.json"
    if cover.exists():
        out.bins = json.loads(cover.read_text())["bins"]
    if waves and (out.folder / wave_file(sim)).exists():
        out.waves = out.folder / wave_file(sim)


def _read_results(path: Path, out: Outcome) -> None:
    if not path.exists():
        return
    for case in ET.parse(path).iter("testcase"):
        name = case.get("name", "?")
        bad = [e for e in case if e.tag in ("failure", "error")]
        if any(e.tag == "skipped" for e in case):
            continue
        out.cycles += round(sum(float(p.get("value", 0)) for p in case.iter("property") if p.get("name") == "sim_time_duration") / CYCLE)
        if bad:
            text = (bad[0].get("error_msg") or bad[0].get("message") or bad[0].text or "failed").strip()
            out.failed[name] = text.splitlines()[0][:300] if text else "failed"
        else:
            out.passed.append(name)


def rerun_command(out: Outcome, test: str) -> str:
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(ROOT) else sys.executable
    return f"{python} -m tb.run --block {out.block} --sim {out.sim} --test {test} --seed {out.seed}"
