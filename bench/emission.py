"""What emission costs, stage by stage, and what the project's own way saves.

Each design goes through the same stages: elaboration (Amaranth to RTLIL), Yosys (RTLIL to Verilog), Verilator (Verilog to C++), g++ (with the
flags of tb/lib/simulators.py), and a run of the result with random inputs. Ways:

* ``amaranth``: the passes of amaranth.back.verilog (`proc -nomux -norom; memory_collect`), every part elaborated where it stands;
* ``flat``: `proc; opt_clean`, every part elaborated where it stands;
* ``shared``: rtl.emit: equal parts once, and not inlined by Verilator;
* ``sunk``: the same, with rtl.sink, as simulations of whole systems use it.

All ways of a design must give the same outputs.
"""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amaranth.hdl import Value
from rich.console import Console
from rich.table import Table

from bench.designs import MacArray, Rows
from bench.measure import spent
from rtl.common.block import Block
from rtl.emit import SUNK_PASSES, YOSYS_PASSES, _convert, _yosys, flat_ports, to_rtlil
from rtl.sink import sink
from tb.lib.simulators import Options, compile_cpp, compile_unit, control_file, link, runtime, to_cpp

WAYS = ("amaranth", "flat", "shared", "sunk")
STAGES = ("elaborate", "yosys", "verilator", "cxx")
AMARANTH_PASSES = "proc -nomux -norom; memory_collect"
OPTIONS = Options(cocotb=False, timing=False, vpi=False)


def driver(block: Block) -> str:
    """C++ that runs the model `cycles` cycles on pseudo-random inputs; prints a hash of the outputs and CPU nanoseconds."""
    drive, look = [], []
    for name, value, is_input in flat_ports(block):
        width = len(Value.cast(value))
        member = f"m.{name.replace('__', '___05F')}"
        if width > 64:
            words, last = -(-width // 32), (1 << (width % 32 or 32)) - 1
            drive.append(f"for (int i = 0; i < {words}; i++) {member}[i] = next(); {member}[{words - 1}] &= {last}u;")
            look.append(f"for (int i = 0; i < {words}; i++) see({member}[i]);")
        else:
            drive.append(f"{member} = ((uint64_t(next()) << 32) | next()) & {(1 << width) - 1}ull;")
            look.append(f"see(uint64_t({member}));")
        (look if is_input else drive).pop()
    return f"""#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include "Vtop.h"
#include "verilated.h"
static uint32_t state = 1;
static uint32_t next() {{ state ^= state << 13; state ^= state >> 17; state ^= state << 5; return state; }}
static uint64_t hash = 1469598103934665603ull;
static void see(uint64_t x) {{ hash = (hash ^ x) * 1099511628211ull; }}
int main(int argc, char** argv) {{
  VerilatedContext context;
  Vtop m(&context);
  const long cycles = std::atol(argv[1]);
  m.rst = 1;
  timespec a, b;
  for (long c = -4; c < cycles; c++) {{
    if (c == 0) {{ m.rst = 0; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a); }}
    {" ".join(drive)}
    m.clk = 1; m.eval(); m.clk = 0; m.eval();
    if (c >= 64) {{ {" ".join(look)} }}
  }}
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
  std::printf("%016llx %lld\\n", (unsigned long long)hash, (long long)(b.tv_sec - a.tv_sec) * 1000000000ll + (b.tv_nsec - a.tv_nsec));
}}
"""


def build(make: Callable[[], Block], way: str, folder: Path, cycles: int) -> dict[str, Any]:
    """One design through all stages one way, in `folder`; a row of figures."""
    block = make()
    row: dict[str, Any] = {"way": way}
    keep: tuple[str, ...] = ()
    with spent() as s:
        if way in ("amaranth", "flat"):
            text = _convert("top", block, None, emit_src=way == "amaranth")
            row["modules"] = text.count("\nmodule ") + text.startswith("module ")
        else:
            text, row["modules"], keep = to_rtlil(block, "top")
    row["rtlil_bytes"], row["elaborate"] = len(text), s.cpu
    verilog = folder / "top.v"
    passes = {"amaranth": AMARANTH_PASSES, "sunk": SUNK_PASSES}.get(way, YOSYS_PASSES)
    with spent() as s:
        _yosys(text, verilog, passes, sink if way == "sunk" else None)
    row["verilog_bytes"], row["yosys"] = verilog.stat().st_size, s.cpu
    with spent() as s:
        to_cpp("top", [verilog], control_file({}, keep), OPTIONS, folder)
    row["verilator"] = s.cpu
    row["cpp_bytes"] = sum(p.stat().st_size for p in (folder / "cpp").glob("*.cpp"))
    with spent() as s:
        objects = compile_cpp(OPTIONS, folder)
    row["cxx"] = s.cpu
    main = folder / "main.cpp"
    main.write_text(driver(block))
    link([*objects, compile_unit(main, OPTIONS, folder, (folder / "cpp",))], OPTIONS, folder / "run")
    out = subprocess.run([str(folder / "run"), str(cycles)], capture_output=True, text=True, check=True).stdout.split()
    row["outputs"], row["cycles_per_second"] = out[0], cycles / (int(out[1]) / 1e9)
    row["total"] = sum(row[x] for x in STAGES)
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}


def measure(full: bool, console: Console) -> list[dict[str, Any]]:
    """Rows of every design and way, each with its factors over the ``sunk`` way."""
    macs, rows = (32, 32) if full else (16, 16), 32 if full else 2
    designs: list[tuple[str, Callable[[], Block], int, tuple[str, ...]]] = [
        (f"{rows} rows of 32 bfloat16 lanes", lambda: Rows(rows), 1000, WAYS[1:]),  # the first way takes an hour on 32 rows
        (f"{macs[0] * macs[1]} MAC, 8 x 8 + 32 bits", lambda: MacArray(*macs), 4000, WAYS),
    ]
    os.environ["CCACHE_DISABLE"] = "1"
    runtime(OPTIONS)
    out: list[dict[str, Any]] = []
    for name, make, cycles, ways in designs:
        mine = []
        for way in ways:
            with tempfile.TemporaryDirectory(prefix="tawny-emission-") as tmp:
                mine.append({"name": name, **build(make, way, Path(tmp), cycles)})
            r = mine[-1]
            console.print(f"  {name}, {way}: " + ", ".join(f"{x} {r[x]:.1f} s" for x in STAGES), highlight=False)
        if len({r["outputs"] for r in mine}) != 1:
            raise RuntimeError(f"{name}: the ways differ in their outputs: {json.dumps({r['way']: r['outputs'] for r in mine})}")
        ours = next(r for r in mine if r["way"] == "sunk")
        for r in mine:
            r["factor"] = {x: round(r[x] / ours[x], 2) for x in ("rtlil_bytes", *STAGES, "total") if ours[x]}
        out += mine
    return out


def table(rows: list[dict[str, Any]]) -> Table:
    t = Table(title="emission: CPU seconds per stage (in brackets: times the sunk way)", title_justify="left")
    for c in ("design", "way", "RTLIL kB", "elaborate", "Yosys", "Verilator", "g++", "total", "cycles/s"):
        t.add_column(c, justify="left" if c in ("design", "way") else "right")
    last = ""
    for r in rows:
        if last and r["name"] != last:
            t.add_section()
        cells = [f"{r[x]:.1f} ({r['factor'][x]:.1f}x)" for x in (*STAGES, "total")]
        t.add_row(
            r["name"] if r["name"] != last else "", r["way"], f"{r['rtlil_bytes'] / 1e3:.0f} ({r['factor']['rtlil_bytes']:.1f}x)", *cells,
            f"{r['cycles_per_second']:,.0f}",
        )
        last = r["name"]
    return t
