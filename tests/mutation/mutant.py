"""Plant one fault in a copy of the sources and run a block's tests there.

The copy holds spec, rtl, golden and tb alone; builds go to ``build/mutation``, keyed by content like all builds, so a second
run with the same sources only simulates. As a program this file is the part that runs inside the copy:
``python mutant.py BLOCK SIM FOLDER TEST ...`` writes FOLDER/outcome.json when, and only when, the simulation was built and ran.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TAWNY_BUILD", ROOT / "build")) / "mutation"
ROOMS = ("spec", "rtl", "golden", "tb")
#: What a check of a bench raises. Anything else (KeyError, a lost simulator, ...) is the harness's own failure, not a catch.
CHECKS = ("AssertionError", "BenchError", "Illegal")
TIMEOUT = 300  # seconds of one simulation; a bench's own deadlines end it long before


class HarnessError(RuntimeError):
    """The run says nothing about the fault: it was not planted, not built, or not simulated."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One of `faults/*.toml`: `old` becomes `new` in `file`, and then each of `tests` of `block` must fail."""

    name: str
    file: str
    old: str
    new: str
    block: str
    tests: tuple[str, ...]
    why: str
    sim: str = ""
    long: bool = False

    def plant(self, text: str) -> str:
        """`text` with the fault in it.

        Raises:
            HarnessError: `old` does not occur exactly once.
        """
        if text.count(self.old) != 1:
            raise HarnessError(f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {self.file}, expected once")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, kw_only=True)
class Failure:
    test: str
    kind: str  # exception class
    text: str  # its first line

    def __str__(self) -> str:
        return f"{self.test}: {self.kind}: {self.text}"


def load() -> list[Fault]:
    """All planted faults, by file. Keys of a fault: `old` (once in `file`) becomes `new`, and each of `tests` of `block` must then fail;
    `sim`: the simulator, where the quickest at hand will not do; `long = true`: long tier only."""
    files = sorted((Path(__file__).parent / "faults").glob("*.toml"))
    return [Fault(**{**f, "tests": tuple(f["tests"])}) for path in files for f in tomllib.loads(path.read_text())["fault"]]


def copy_sources(tree: Path, fault: Fault | None) -> None:
    """The rooms that a bench needs, with `fault` planted."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    if fault:
        path = tree / fault.file
        path.write_text(fault.plant(path.read_text()))


def simulate(tree: Path, block: str, sim: str, tests: tuple[str, ...]) -> list[Failure]:
    """Run `tests` of `block` on the sources in `tree`; what failed.

    Raises:
        HarnessError: the design was refused, a module cannot be imported, a tool is missing, or a test did not run.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    runtime = BUILD.parent / "verilator"  # Verilator's runtime is compiled once for all builds
    runtime.mkdir(exist_ok=True)
    try:
        (BUILD / "verilator").symlink_to(runtime)
    except FileExistsError:
        pass
    folder = tree / "run"
    env = {**os.environ, "PYTHONPATH": str(tree), "TAWNY_BUILD": str(BUILD), "TAWNY_OPT": "-O0"}
    run = subprocess.run(
        [sys.executable, __file__, block, sim, str(folder), *tests], cwd=tree, env=env, capture_output=True, text=True)
    if run.returncode or not (folder / "outcome.json").exists():
        raise HarnessError(f"{block} on {sim} was not built or not run:\n{(run.stdout + run.stderr)[-3000:]}")
    outcome = json.loads((folder / "outcome.json").read_text())
    failures = []
    results = folder / "results.xml"
    for case in ET.parse(results).iter("testcase") if results.exists() else ():
        for e in case:
            if e.tag in ("failure", "error"):
                lines = (e.get("message") or e.text or "").strip().splitlines()
                failures.append(Failure(test=case.get("name", ""), kind=e.get("type", "?"), text=lines[0][:300] if lines else ""))
    lost = {t: why for t, why in outcome["failed"].items() if t not in {f.test for f in failures}}
    if lost:
        raise HarnessError(f"{block} on {sim} did not come to an end: {lost}\n{(folder / 'sim.log').read_text()[-3000:]}")
    return failures


def main(block: str, sim: str, folder: str, *tests: str) -> None:
    from tb.lib import registry, runner

    if not Path(runner.__file__).is_relative_to(Path.cwd()):
        raise SystemExit(f"the sources in use are {runner.__file__}, not those in {Path.cwd()}")
    out = runner.run(registry.find(block), sim, tests=list(tests), folder=Path(folder), timeout=TIMEOUT)
    (Path(folder) / "outcome.json").write_text(json.dumps({"passed": out.passed, "failed": out.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
