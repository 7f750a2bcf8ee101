"""Size and depth of every unit of the processing element and of the number blocks, per configuration, beside the committed baseline.

What is counted: bench/synthesis.py. Parts that no configuration changes are measured once, as "any". `python -m bench --only cells` takes `tiny`,
with `--full` also `small` and `mtia300` (depth of what is `WIDE` with two of its equal rows or lanes); `--save-baseline` writes what was measured into bench/baseline/cells.json.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.synthesis import synthesise
from rtl.common.block import Block
from rtl.emit import write_atomic
from rtl.numeric.convert import Convert
from rtl.numeric.convert_any import Converter
from rtl.numeric.fp32_add import Fp32Add
from rtl.numeric.fp32_mul import Fp32Mul
from rtl.numeric.minmax import MinMax
from rtl.numeric.mx_decode import MxDecode
from rtl.numeric.mx_encode import MxEncode
from rtl.numeric.mx_lane import MxDecodeLane, MxEncodeLane
from rtl.pe.command_processor import CommandProcessor
from rtl.pe.dma.dma import Dma
from rtl.pe.dot_decode import DotDecode
from rtl.pe.dot_product import DotProduct
from rtl.pe.dot_row import DotRow
from rtl.pe.layout_unit import LayoutUnit
from rtl.pe.local_bank import LocalBank
from rtl.pe.local_memory import LocalMemory
from rtl.pe.matrix_unit import PORTS
from rtl.pe.reduction import Reduction
from rtl.pe.reduction_lane import ReductionLane
from rtl.pe.sfu import Sfu
from rtl.pe.sfu_lane import SfuLane
from rtl.pe.sfu_rows import SfuRows
from rtl.pe.sfu_tables import SfuTables
from spec.params import NodeParams, config

BASELINE = Path(__file__).with_name("baseline") / "cells.json"
ANY = "any"
LOCAL_PORTS = len(PORTS) + 3  # of the local memory: the matrix unit's, two of the layout unit, one of the DMA engine
WIDE = {("mtia300", "DotProduct"), ("mtia300", "Sfu")}  # 32 rows or lanes flattened for the longest path take hours: two of them instead
FIGURES = ("gates", "flops", "memory_bits", "depth", "luts", "lut_depth")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A block to measure; `sized`: configurations change it."""

    name: str
    make: Callable[[NodeParams], Block]
    sized: bool = True


def _one(kind: Callable[[], Block], name: str) -> Part:
    return Part(name=name, make=lambda _: kind(), sized=False)


PARTS = (
    *(_one(kind, kind.__name__) for kind in (Fp32Add, Fp32Mul, MinMax, Convert, Converter, MxEncodeLane, MxEncode, MxDecodeLane, MxDecode)),
    _one(DotDecode, "DotDecode"), _one(DotRow, "DotRow"),
    Part(name="DotProduct", make=lambda n: DotProduct(n.pe)),
    _one(ReductionLane, "ReductionLane"),
    Part(name="Reduction", make=lambda n: Reduction(n.pe)),
    _one(SfuLane, "SfuLane"),
    Part(name="SfuTables", make=lambda n: SfuTables(n.pe.lanes)),
    Part(name="SfuRows", make=lambda n: SfuRows(n.pe.lanes)),
    Part(name="Sfu", make=lambda n: Sfu(n.pe)),
    Part(name="Dma", make=lambda n: Dma(n.pe, n.mem)),
    Part(name="LayoutUnit", make=lambda n: LayoutUnit(n.pe)),
    Part(name="LocalBank", make=lambda n: LocalBank(n.pe.local_bytes // 64 // n.pe.local_banks, n.pe.ecc)),
    Part(name="LocalMemory", make=lambda n: LocalMemory(n.pe, LOCAL_PORTS)),
    Part(name="CommandProcessor", make=lambda n: CommandProcessor(n.pe)),
)


def measure(full: bool, console: Console) -> list[dict[str, Any]]:
    """A row per part and configuration, with its figures and what they were in the baseline."""
    before = load()
    rows = []
    for name in (ANY, "tiny", *(("small", "mtia300") if full else ())):
        node = config("tiny" if name == ANY else name).node
        for part in PARTS:
            if part.sized == (name == ANY):
                continue
            sizes = synthesise(part.make(node), 2 if (name, part.name) in WIDE else 0)
            rows.append({"name": part.name, "config": name, **sizes, "baseline": before.get(name, {}).get(part.name)})
            console.print(f"  {part.name} ({name}): {sizes['gates']:,} gates, {sizes['flops']:,} flip-flops, {sizes['depth']} deep", highlight=False)
    return rows


def load() -> dict[str, dict[str, dict[str, int]]]:
    """The baseline: figures by configuration and part."""
    return json.loads(BASELINE.read_text()) if BASELINE.exists() else {}


def save(rows: list[dict[str, Any]]) -> Path:
    """Make `rows` the baseline of what they measured; the rest of it stays."""
    known = load()
    for r in rows:
        known.setdefault(r["config"], {})[r["name"]] = {f: r[f] for f in FIGURES}
    order = {p.name: i for i, p in enumerate(PARTS)}
    lines = []
    for name, parts in known.items():
        inner = ",\n".join(f"  {json.dumps(p)}: {json.dumps(parts[p])}" for p in sorted(parts, key=lambda p: order.get(p, len(order))))
        lines.append(f"{json.dumps(name)}: {{\n{inner}\n }}")
    write_atomic(BASELINE, lambda p: p.write_text("{\n " + ",\n ".join(lines) + "\n}\n"))
    return BASELINE


def change(row: dict[str, Any]) -> str:
    """What moved against the baseline."""
    old = row["baseline"]
    if old is None:
        return "new"
    moved = [f"{f.replace('_', ' ')} {row[f] - old[f]:+,}" + (f" ({row[f] / old[f] - 1:+.1%})" if old[f] else "") for f in FIGURES if row[f] != old[f]]
    return ", ".join(moved) or "as before"


def table(rows: list[dict[str, Any]]) -> Table:
    t = Table(title="size and depth after generic synthesis (depth: cells on the longest path)", title_justify="left")
    for c in ("part", "config", "gates", "flip-flops", "memory bits", "depth", "LUT4", "LUT depth", "against the baseline"):
        t.add_column(c, justify="left" if c in ("part", "config", "against the baseline") else "right")
    for r in rows:
        t.add_row(r["name"], r["config"], *(f"{r[f]:,}" for f in FIGURES), change(r))
    return t
