"""Yosys' generic synthesis of a block: how large it is and how deep its logic, in gates and in 4-input LUTs, without a technology behind them.

* Modules that `shared` gives a block and that stand in it more than once are synthesised once and counted as often as they stand (nothing is
  optimised across their borders); all else is flattened into the module that holds it.
* Memories stay memories: their bits are counted, and a path ends at their ports.
* Depth is the longest path of the whole, through all of its modules, between flip-flops, memories and ports: cells passed. With `sample`, of the whole with
  that many of each module that stands more than once directly in it (rows, lanes, all alike): the others are taken out first.
* A result is kept under ``build/cells`` by the design and the steps it depends on.
"""
from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from rtl.common.block import Block
from rtl.emit import to_rtlil, write_atomic
from tb.lib.simulators import BUILD

GATES = (  # of `synth -flatten`, without `memory_map`
    "synth -flatten -top top -run begin:fine", "opt -fast -full", "opt -full", "techmap", "opt -fast", "abc", "opt -fast", "opt_clean",
)
LUTS = ("abc -lut 4", "opt_clean")
WHOLE = ("setattr -mod -unset keep_hierarchy *", "flatten", "delete t:$mem_v2")  # before a look for the longest path
RUN = "import sys; from pyosys import libyosys as ys; d = ys.Design(); [ys.run_pass(p, d) for p in sys.argv[1].split('; ')]"


def synthesise(block: Block, sample: int = 0) -> dict[str, int]:
    """Gates, flip-flops, bits of memory, gates on the longest path, LUTs, LUTs on the longest path.

    Args:
        sample: equal modules of the block that stand in it while the longest path is looked for; 0: all.

    Raises:
        RuntimeError: Yosys refused the design; the end of what it said.
    """
    text, _, often = to_rtlil(block, "top", BUILD / "rtl" / "rtlil")
    key = hashlib.sha256(repr((text, often, GATES, LUTS, WHOLE, metadata.version("pyosys"), *([sample] if sample else []))).encode()).hexdigest()[:20]
    kept = BUILD / "cells" / f"{type(block).__name__}-{key}.json"
    if not kept.exists():
        sizes = _run(text, often, type(block).__name__, sample)
        write_atomic(kept, lambda p: p.write_text(json.dumps(sizes)))
    return json.loads(kept.read_text())


def _run(text: str, often: tuple[str, ...], name: str, sample: int) -> dict[str, int]:
    whole = (*(f"delete top/t:{m} top/t:{m} %R{sample} %d" for m in often if sample), *WHOLE)
    with tempfile.TemporaryDirectory(prefix="tawny-cells-") as tmp:
        at = {x: str(Path(tmp) / x) for x in ("design", "memories", "gates", "path", "luts", "lut_path")}
        Path(at["design"]).write_text(text)
        steps = [
            f"read_rtlil {at['design']}", "hierarchy -top top", f"tee -q -o {at['memories']} stat -json -top top",
            *(f"setattr -mod -set keep_hierarchy 1 {m}" for m in often), *GATES, f"tee -q -o {at['gates']} stat -json -top top",
            "design -save gates", *whole, f"tee -q -o {at['path']} ltp -noff",
            "design -load gates", *LUTS, f"tee -q -o {at['luts']} stat -json -top top", *whole, f"tee -q -o {at['lut_path']} ltp -noff",
        ]
        run = subprocess.run([sys.executable, "-c", RUN, "; ".join(steps)], capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(f"Yosys refused {name}: {(run.stdout + run.stderr)[-500:]}")
        said = {x: Path(p).read_text() for x, p in at.items()}
    cells, luts = (json.loads(said[x])["design"]["num_cells_by_type"] for x in ("gates", "luts"))
    flops = sum(n for kind, n in cells.items() if "DFF" in kind)
    return {
        "gates": sum(n for kind, n in cells.items() if kind.startswith("$_")) - flops, "flops": flops,
        "memory_bits": json.loads(said["memories"])["design"]["num_memory_bits"], "depth": _longest(said["path"]),
        "luts": luts.get("$lut", 0), "lut_depth": _longest(said["lut_path"]),
    }


def _longest(text: str) -> int:
    """Cells on the longest path, of what `ltp` says; 0 where nothing stands between flip-flops."""
    return max((int(n) for n in re.findall(r"Longest topological path in \S+ \(length=(\d+)\)", text)), default=0)
