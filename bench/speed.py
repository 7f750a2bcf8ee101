"""Simulation speed of whole systems: the rtl device beside bare C++ testbenches that do the same work.

The device runs a sweep of all-reduces; its calls into the simulation are recorded (register accesses, memory writes, and what every run and
memory read gave). `bench/replay.cpp` plays the recording with nothing but a clock loop around the compiled models, and refuses any
difference; so both sides simulate the same cycles, and CPU time over CPU time is the ratio.
"""
from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.measure import spent
from hccl import Communicator, open_device
from rtl.chip.system import System
from rtl.emit import emit
from spec.params import SystemParams, config
from tb.chip.executor import bank_modules, models
from tb.lib.simulators import BUILD, ROOT, Options, built, compile_unit, control_file, link, runtime, translate

SOURCE = Path(__file__).with_name("replay.cpp")
OPTIONS = Options(cocotb=False, timing=False, vpi=False)
ROUNDS = 6  # device and bare testbenches take turns; the best of each counts
SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
CALLS = ("write_regs", "read_regs", "mem_write", "mem_read", "run")
_CTL = ("aw__payload", "aw__valid", "aw__ready", "w__payload", "w__valid", "w__ready", "b__payload", "b__valid", "b__ready",
        "ar__payload", "ar__valid", "ar__ready", "r__payload", "r__valid", "r__ready")


class Recorder:
    """Stands where a service's executor stands; writes every call and its result to `file`."""

    def __init__(self, executor: Any, file: Any):
        self._executor, self._file = executor, file
        p = executor.p
        file.write(struct.pack("<II", p.nodes, p.node.mem.banks))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def mem_write(self, node: int, addr: int, data: np.ndarray) -> None:
        self._file.write(struct.pack("<IIQQ", 1, node, addr, len(data)) + data.tobytes())
        self._executor.mem_write(node, addr, data)

    def mem_read(self, node: int, addr: int, n: int) -> np.ndarray:
        data = self._executor.mem_read(node, addr, n)
        self._file.write(struct.pack("<IIQQ", 2, node, addr, n) + data.tobytes())
        return data

    def run(self, commands: list[tuple[int, int, int, int]], events: list[int] | None, deadline: int) -> Any:
        out = self._executor.run(commands, events, deadline)
        self._file.write(struct.pack("<II", 3, len(commands)) + b"".join(struct.pack("<IIII", *c) for c in commands))
        wanted = [e & 0xFFFFFFFF for e in events or ()]
        self._file.write(struct.pack(f"<I{len(wanted)}IQq", len(wanted), *wanted, deadline, out[0]))
        return out


class Clocked:
    """CPU and wall seconds spent in a device's calls."""

    def __init__(self, device: Any):
        self.cpu = self.wall = 0.0
        for name in CALLS:
            setattr(device, name, self._timed(getattr(device, name)))

    def _timed(self, call: Any) -> Any:
        def timed(*a: Any, **k: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return call(*a, **k)
            finally:
                self.cpu += time.process_time() - cpu
                self.wall += time.perf_counter() - wall
        return timed


def sweep(params: SystemParams, file: Path | None) -> list[dict[str, Any]]:
    """Two passes of all-reduces on a fresh device, a row each: in a new process the first also plans and proves, the second finds the plans."""
    rng = np.random.default_rng(1)
    data = {n: [rng.standard_normal(n // 4).astype(np.float32) for _ in range(params.nodes)] for n in SIZES}
    with open_device("rtl", params) as device:
        out = file.open("wb") if file else None
        if out:
            device._service._system = Recorder(device._service._system, out)
        clock = Clocked(device)
        rows = []
        with Communicator(device) as comm:
            for name in ("first pass", "second pass"):
                cpu, wall, cycles = clock.cpu, clock.wall, device.cycles
                with spent() as s:
                    for n in SIZES:
                        comm.all_reduce(data[n], dtype="float32")
                rows.append({"name": name, "cycles": device.cycles - cycles, "device_cpu": clock.cpu - cpu, "device_wall": clock.wall - wall,
                             "cpu": s.cpu, "wall": s.wall})
        if out:
            out.write(struct.pack("<I", 0))
            out.close()
    return rows


def _ctl_table(model: str, prefix: list[str]) -> str:
    """C++ function that gives the control ports of a model."""
    rows = []
    for p in prefix:
        names = [f"ctl{p}__{n}" for n in _CTL] + [f"event{p}"]
        rows.append("{" + ", ".join("&m." + n.replace("__", "___05F") for n in names) + "}")
    if prefix == [""]:
        return f"static Ctl ctl_ports({model}& m) {{ return {rows[0]}; }}\n"
    return f"static std::vector<Ctl> ctl_ports({model}& m) {{ return {{{', '.join(rows)}}}; }}\n"


def bare_parts(params: SystemParams) -> Path:
    """The bare testbench on the device's own compiled station and switch."""
    parts, header = models(params, faults=False, gates=False, waves=False)
    header += _ctl_table("Vstation", [""])

    def make(folder: Path) -> None:
        (folder / "ports.h").write_text(header)
        main = compile_unit(SOURCE, OPTIONS, folder, (folder, *(p / "cpp" for p in parts)))
        link([main, *(x for p in parts for x in sorted(p.glob("*.o")))], OPTIONS, folder / "replay")

    runtime(OPTIONS)
    return built(f"replay{params.nodes}", make, "replay", header, SOURCE.read_text(), *(p.name for p in parts))


def bare_whole(params: SystemParams) -> Path:
    """The bare testbench on one model of the whole system."""
    e = emit(System(params), BUILD / "rtl", sunk=True)
    text = e.verilog.read_text()
    vlt = control_file({m: ["mem"] for m in bank_modules(text)}, e.shared)
    header = _ctl_table("Vsystem", [str(i) for i in range(params.nodes)])

    def make(folder: Path) -> None:
        objects = translate(e.top, [e.verilog], vlt, OPTIONS, folder, "Vsystem")
        (folder / "ports.h").write_text(header)
        main = folder / "whole.cpp"
        main.write_text(f'#define WHOLE\n#include "{SOURCE}"\n')
        objects.append(compile_unit(main, OPTIONS, folder, (folder, folder / "cpp")))
        link(objects, OPTIONS, folder / "replay")
        for o in objects:
            o.unlink()

    runtime(OPTIONS)
    return built(f"whole{params.nodes}", make, "replay", repr(OPTIONS), vlt, text, header, SOURCE.read_text())


def play(program: Path, recording: Path) -> tuple[int, float]:
    """(cycles, CPU seconds) of the recording on a bare testbench."""
    run = subprocess.run([str(program), str(recording)], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{program} refused the recording: {run.stderr.strip()[:300]}")
    cycles, nanoseconds = run.stdout.split()
    return int(cycles), int(nanoseconds) / 1e9


def _best(kept: dict[str, Any], new: dict[str, Any]) -> None:
    """Keep the least of every time."""
    for k, v in new.items():
        kept[k] = min(kept.get(k, v), v) if isinstance(v, float) else v


def measure(full: bool, console: Console) -> list[dict[str, Any]]:
    """Rows: bare testbenches, then the device by pass, each with its ratio to the bare testbench of the same models."""
    params = config("tiny").replace(nodes=4)
    with spent() as s:
        bare = bare_parts(params)
    console.print(f"  models of {params.nodes} chips ready ({s.cpu:.0f} s of CPU in this run)")
    with tempfile.TemporaryDirectory(prefix="tawny-speed-") as tmp:
        recording = Path(tmp) / "recording"
        sweep(params, recording)  # also plans everything that later sweeps of this process use
        programs = {"bare C++, the device's models": bare}
        if full:
            with spent() as s:
                programs["bare C++, one model of the system"] = bare_whole(params)
            console.print(f"  one model of {params.nodes} chips ready ({s.cpu:.0f} s of CPU in this run)")
        warm: dict[str, Any] = {}
        cold: dict[str, Any] = {}
        rows: list[dict[str, Any]] = [{"name": n, "cycles": 0, "cpu": float("inf")} for n in programs]
        for _ in range(ROUNDS):
            _best(warm, sweep(params, None)[1])
            _best(cold, _first_pass(params))
            for row, program in zip(rows, programs.values(), strict=True):
                row["cycles"], cpu = play(program, recording)
                row["cpu"] = min(row["cpu"], cpu)
    for name, r in (("device", warm), ("device, plan and proof included", cold)):
        rows.append({"name": f"{name}: its calls", "cycles": r["cycles"], "cpu": r["device_cpu"], "wall": r["device_wall"]})
        rows.append({"name": f"{name}: everything", "cycles": r["cycles"], "cpu": r["cpu"], "wall": r["wall"]})
    for r in rows:
        r["rate"] = r["cycles"] / r["cpu"]
    for r in rows:
        r["ratio"] = round(r["rate"] / rows[0]["rate"], 3)
        r["rate"] = round(r["rate"])
    return rows


def _first_pass(params: SystemParams) -> dict[str, Any]:
    """The first pass in a process where nothing was planned yet."""
    code = "import json, sys; from bench import speed; print(json.dumps(speed.sweep(speed.config('tiny').replace(nodes=int(sys.argv[1])), None)))"
    run = subprocess.run([sys.executable, "-c", code, str(params.nodes)], capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(run.stdout.splitlines()[-1])[0]


def table(rows: list[dict[str, Any]]) -> Table:
    t = Table(title="all-reduce sweep, 4 chips, 4 KiB to 1 MiB: cycles per CPU second", title_justify="left")
    for c in ("what", "cycles", "CPU s", "cycles/s", "of bare C++"):
        t.add_column(c, justify="left" if c == "what" else "right")
    for r in rows:
        t.add_row(r["name"], f"{r['cycles']:,}", f"{r['cpu']:.2f}", f"{r['rate']:,}", f"{r['ratio']:.0%}")
    return t
