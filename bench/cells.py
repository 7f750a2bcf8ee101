"""Size of the number blocks after Yosys' generic synthesis (`synth -flatten`): gates, multiplexers, flip-flops; no technology behind them."""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rtl.common.block import Block
from rtl.emit import to_rtlil
from rtl.numeric.convert import Convert
from rtl.numeric.convert_any import Converter
from rtl.numeric.fp32_add import Fp32Add
from rtl.numeric.fp32_mul import Fp32Mul
from rtl.numeric.minmax import MinMax
from rtl.numeric.mx_decode import MxDecode
from rtl.numeric.mx_encode import MxEncode
from rtl.numeric.mx_lane import MxDecodeLane, MxEncodeLane

BLOCKS: tuple[type[Block], ...] = (Fp32Add, Fp32Mul, MinMax, Convert, Converter, MxEncodeLane, MxEncode, MxDecodeLane, MxDecode)


def synthesise(block: Block) -> dict[str, int]:
    """Cells by type, in a process of its own.

    Raises:
        RuntimeError: Yosys refused the design; the end of what it said.
    """
    with tempfile.TemporaryDirectory(prefix="tawny-cells-") as tmp:
        source, stat = Path(tmp) / "design.il", Path(tmp) / "stat.json"
        source.write_text(to_rtlil(block, "top")[0])
        code = "import sys; from pyosys import libyosys as ys; d = ys.Design(); [ys.run_pass(p.strip(), d) for p in sys.argv[1].split(';')]"
        script = f"read_rtlil {source}; synth -flatten -top top; tee -q -o {stat} stat -json"
        run = subprocess.run([sys.executable, "-c", code, script], capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(f"Yosys refused {type(block).__name__}: {(run.stdout + run.stderr)[-500:]}")
        return json.loads(stat.read_text())["design"]["num_cells_by_type"]


def measure(full: bool, console: Console) -> list[dict[str, Any]]:
    rows = []
    for make in BLOCKS:
        cells = synthesise(make())
        flops = sum(n for kind, n in cells.items() if "DFF" in kind)
        rows.append({"name": make.__name__, "gates": sum(cells.values()) - flops, "flops": flops})
        console.print(f"  {make.__name__}: {rows[-1]['gates']:,} gates, {flops:,} flip-flops", highlight=False)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    t = Table(title="size after generic synthesis", title_justify="left")
    for c in ("block", "gates", "flip-flops"):
        t.add_column(c, justify="left" if c == "block" else "right")
    for r in rows:
        t.add_row(r["name"], f"{r['gates']:,}", f"{r['flops']:,}")
    return t
