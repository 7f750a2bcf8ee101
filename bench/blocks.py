"""Simulation speed of single blocks: cycles per CPU second of bare C++, of the project's bench, and of other ways to simulate, same stimulus.

Blocks: binary32 addition (tiny: what a bench costs beside nothing), near-memory compute (real size, two AXI4 memories), and the engines of the processing
element (bench/engine_cases.py; with `--full` the dot-product engine of 32 rows too). Every way must
give the same output bytes. CPU time of the runs is counted: with the bench it
includes writing stimulus and reading results; `clocked` is the part in which the clock runs.
"""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Value
from amaranth.sim import Simulator
from rich.console import Console
from rich.table import Table

from bench import engine_cases
from bench.case import Case
from rtl.emit import emit, flat_ports
from spec.interfaces import NMC_REQUEST
from spec.params import config
from spec.wqe import DType, ReduceOp
from tb.lib import runner
from tb.lib.simulators import (
    BUILD,
    Options,
    available,
    built,
    compile_unit,
    control_file,
    link,
    runtime,
    translate,
    verilate,
)

SOURCE = Path(__file__).with_name("block.cpp")
OPTIONS = Options(cocotb=False, timing=False, vpi=False)
ROUNDS = 6  # ways take turns; the best of each counts
WAYS = {
    "bare": "bare C++ Verilator", "bench": "cocotb, this project's bench", "usual": "cocotb, defaults (Python clock, --public-flat-rw)",
    "icarus": "Icarus, this project's bench", "amaranth": "Amaranth's simulator",
}


def cases() -> list[Case]:
    rng = np.random.default_rng(1)
    floats = rng.standard_normal((16384, 2)).astype(np.float32).view(np.uint8).reshape(-1, 8)
    k = 1 << 15
    image = rng.standard_normal(1 << 18).astype(np.float32).view(np.uint8)
    jobs = [
        NMC_REQUEST.pack(tag=i, copy=0, rop=int(ReduceOp.SUM), dtype=int(DType.FLOAT32), scale_en=0, length=k, addr_a=(i % 8) * k,
                         addr_b=8 * k + (i % 8) * k, addr_d=16 * k + (i % 8) * k, scale=0)
        for i in range(64)
    ]
    nbytes = -(-NMC_REQUEST.bits // 8)
    words = np.frombuffer(b"".join(j.to_bytes(nbytes, "little") for j in jobs), np.uint8).reshape(-1, nbytes)
    return [
        Case(name="fp32_add", sources={"operands": floats}, sinks={"result": len(floats)}, runs=20, deadline=100_000, slow_words=2000),
        Case(name="nmc", sources={"request": words}, sinks={"done": len(words)}, runs=4, deadline=200_000, image=image, memories=("axi_a", "axi_b"), slow_words=4),
    ]


def bare(case: Case) -> Path:
    """The bare C++ testbench of the block."""
    block = case.plan.make()
    widths = {n: len(Value.cast(v)) for n, v, _ in flat_ports(block)}
    e = emit(block, BUILD / "rtl", sunk=True)
    header = f"#define ADDR {config('tiny').node.mem.addr_width}\n#define EACH_MEMORY(X) {' '.join(f'X({n})' for n in case.memories)}\n"
    for what, names in (("source", case.sources), ("sink", case.sinks)):
        rows = []
        for n in names:
            pins = ", ".join(f"&m.{n}___05F{x}" for x in ("payload", "valid", "ready"))
            rows.append(f'{{"{n}", {pins}, {-(-widths[f"{n}__payload"] // 8)}}}')
        header += f"static std::vector<Port> {what}_ports(Vtop& m) {{ return {{{', '.join(rows)}}}; }}\n"
    vlt = control_file({}, e.shared)

    def make(folder: Path) -> None:
        (folder / "ports.h").write_text(header)
        objects = translate(e.top, [e.verilog], vlt, OPTIONS, folder)
        objects.append(compile_unit(SOURCE, OPTIONS, folder, (folder, folder / "cpp")))
        link(objects, OPTIONS, folder / "run")

    runtime(OPTIONS)
    return built(f"bare-{case.label.replace(', ', '-')}", make, "run", repr(OPTIONS), vlt, header, e.verilog.read_text(), SOURCE.read_text())


def usual(case: Case) -> tuple[Path, str]:
    """The block itself as top, everything public, as cocotb's runner builds it by default; (executable, top)."""
    e = emit(case.plan.make(), BUILD / "rtl")
    return verilate(e.top, [e.verilog], {}, "", Options(extra=("--public-flat-rw",)), f"usual-{case.name}"), e.top


def stimulus(case: Case, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    job: dict[str, Any] = {"sources": {}, "sinks": case.sinks, "memories": case.memories, "runs": case.runs, "deadline": case.deadline * 10}
    for name, words in case.sources.items():
        job["sources"][name] = str(folder / f"{name}.npy")
        np.save(folder / f"{name}.npy", words)
        words.tofile(folder / f"{name}.bin")
    if case.image is not None:
        np.save(folder / "image.npy", case.image)
        case.image.tofile(folder / "image.bin")
        job["image"] = str(folder / "image.npy")
    return job


def run_bare(case: Case, folder: Path) -> dict[str, Any]:
    counts = [f"{n}={k}" for n, k in case.sinks.items()]
    run = subprocess.run([str(bare(case)), str(folder), str(case.runs), *counts], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{case.name}, bare C++: ended with code {run.returncode}")
    out = run.stdout.split()
    return {"cycles": int(out[0]), "cpu": int(out[1]) / 1e9, "clocked": int(out[1]) / 1e9, "outputs": out[2]}


def run_bench(case: Case, sim: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    os.environ["TAWNY_SPEED"] = json.dumps(job)
    out = runner.run(case.plan, sim, folder=folder / f"run-{sim}", tests=["test_bench"])
    if not out.ok:
        raise RuntimeError(f"{case.name} on {sim}: {out.failed}")
    return json.loads((out.folder / "speed.json").read_text())


def run_usual(case: Case, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    exe, top = usual(case)
    where = folder / "run-usual"
    where.mkdir(exist_ok=True)
    env = runner.environment("bench.cocotb_speed", 1, where / "results.xml", ["test_usual"])
    env |= {"COCOTB_TOPLEVEL": top, "TAWNY_SPEED": json.dumps(job)}
    run = subprocess.run([str(exe)], cwd=where, env=env, capture_output=True, text=True)
    if not (where / "speed.json").exists():
        raise RuntimeError(f"{case.name}, cocotb with defaults: {(run.stdout + run.stderr)[-500:]}")
    return json.loads((where / "speed.json").read_text())


def run_amaranth(case: Case) -> dict[str, Any]:
    """Amaranth's own simulator on the block as written (fp32_add: one stream in, one out)."""
    dut = case.plan.make()
    [(source, words)], [sink] = case.sources.items(), case.sinks
    values = [int.from_bytes(r.tobytes(), "little") for r in words]
    total = cycles = 0

    async def bench(ctx: Any) -> None:
        nonlocal total, cycles
        i, o = getattr(dut, source), getattr(dut, sink)
        ctx.set(o.ready, 1)
        sent = got = 0
        while got < len(values):
            ctx.set(i.valid, sent < len(values))
            if sent < len(values):
                ctx.set(Value.cast(i.payload), values[sent])
            sent += sent < len(values) and ctx.get(i.ready)
            if ctx.get(o.valid):
                got += 1
                total += sum(ctx.get(Value.cast(o.payload)).to_bytes(4, "little"))
            await ctx.tick()
            cycles += 1

    sim = Simulator(dut)
    sim.add_clock(1e-9)
    sim.add_testbench(bench)
    cpu = time.process_time()
    sim.run()
    cpu = time.process_time() - cpu
    return {"cycles": cycles, "cpu": cpu, "clocked": cpu, "outputs": f"{total:x}"}


def measure(full: bool, console: Console) -> list[dict[str, Any]]:
    """Rows of every block and way with cycles per CPU second and the ratio to bare C++."""
    rows: list[dict[str, Any]] = []
    for case in (*cases(), *engine_cases.cases(full)):
        with tempfile.TemporaryDirectory(prefix="tawny-speed-") as tmp:
            fast, slow, short = Path(tmp) / "fast", Path(tmp) / "slow", case.short()
            job, few = stimulus(case, fast), stimulus(short, slow)
            best: dict[str, dict[str, Any]] = {}
            for _ in range(ROUNDS):
                for way, r in (("bare", run_bare(case, fast)), ("bench", run_bench(case, "verilator", job, fast))):
                    old = best.setdefault(way, r)
                    old |= {k: min(old[k], r[k]) for k in ("cpu", "clocked")}
            if best["bare"]["outputs"] != best["bench"]["outputs"]:
                raise RuntimeError(f"{case.name}: bare C++ and the bench differ in their outputs: {best}")
            others: dict[str, dict[str, Any]] = {}
            if case.name == "fp32_add":
                others["usual"] = run_usual(short, few, slow)
                others["amaranth"] = run_amaranth(short)
            if case.slow_words and available("icarus") is None:
                others["icarus"] = run_bench(short, "icarus", few, slow)
            if len({r["outputs"] for r in others.values()}) > 1:
                raise RuntimeError(f"{case.name}: outputs differ: {others}")
            best |= others
        for way in WAYS:
            if way in best:
                r = best[way]
                rate, clocked = r["cycles"] / r["cpu"], r["cycles"] / r["clocked"]
                bare_rate = best["bare"]["cycles"] / best["bare"]["cpu"]
                rows.append({"name": case.label, "way": way, "cycles": r["cycles"], "cpu": round(r["cpu"], 4), "rate": round(rate),
                             "clocked_rate": round(clocked), "ratio": round(rate / bare_rate, 5),
                             "clocked_ratio": round(clocked / bare_rate, 5)})
                console.print(f"  {case.label}, {WAYS[way]}: {rate:,.0f} cycles/s", highlight=False)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    t = Table(title="one block: cycles per CPU second, same stimulus", title_justify="left")
    for c in ("block", "simulation", "cycles", "CPU s", "cycles/s", "of bare C++", "while clocked"):
        t.add_column(c, justify="left" if c in ("block", "simulation") else "right")
    for r in rows:
        ratios = [f"{x:.2%}" if x < 0.1 else f"{x:.0%}" for x in (r["ratio"], r["clocked_ratio"])]
        t.add_row(r["name"], WAYS[r["way"]], f"{r['cycles']:,}", f"{r['cpu']:.2f}", f"{r['rate']:,}", *ratios)
    return t
