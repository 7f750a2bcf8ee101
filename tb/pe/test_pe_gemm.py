"""GEMM on the `small` processing element behind 100 cycles of memory latency: utilisation, every shape published, bits equal golden."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cocotb

from golden.pe.kernels.gemm import Gemm
from spec.params import config
from spec.pe import DotFormat as F
from tb.lib.bench import Bench
from tb.pe.cp_programs import start
from tb.pe.pe_jobs import Image, run

PE = config("small").node.pe
LATENCY = 100
MEMORY = 4 << 20
KINDS = (("bfloat16", F.BFLOAT16, 0), ("float8_e4m3fn", F.FLOAT8_E4M3FN, 0), ("MXFP8", F.FLOAT8_E4M3FN, 32))


async def measure(b: Bench, kind: tuple[str, F, int], m: int, n: int, k: int) -> dict[str, Any]:
    """Cycles from the first instruction to the last completion, beside the engine's bound for these groups and chunks and for no padding at all."""
    name, fmt, mx = kind
    image = Image(b.rng, MEMORY)
    g: Gemm = image.gemm(m, n, k, fmt, mx=mx)
    cycles, _ = await run(b, PE, image.bytes, [g.program(PE)], bound=g.bound(PE))
    slots = m * n * k / (PE.rows * fmt.lanes)
    row = dict(kind=name, m=m, n=n, k=k, cycles=cycles, bound=g.bound(PE), of_bound=round(g.bound(PE) / cycles, 4), slots_used=round(slots / cycles, 4))
    b.dut._log.info("%s", row)
    return row


def publish(rows: list[dict[str, Any]], name: str) -> None:
    """The shapes, worst first, in the run's folder."""
    Path(f"{name}.json").write_text(json.dumps(sorted(rows, key=lambda r: r["of_bound"]), indent=1) + "\n")


@cocotb.test()
async def test_512(dut):
    b = await start(dut)
    b.memory("axi").latency = LATENCY
    rows = []
    for kind in KINDS:
        rows.append(await measure(b, kind, 512, 512, 512))
        b.cover(kind[0])
    publish(rows, "gemm_512")
    worst = min(r["slots_used"] for r in rows)
    assert worst >= 0.95, f"{worst} of the slots"


@cocotb.test()
async def test_ragged(dut):
    b = await start(dut)
    b.memory("axi").latency = LATENCY
    shapes = [(127, 65, 33), *((int(b.rng.integers(1, 257)), int(b.rng.integers(1, 257)), int(b.rng.integers(1, 513))) for _ in range(100))]
    rows = [await measure(b, KINDS[i % 3], *s) for i, s in enumerate(shapes)]
    publish(rows, "gemm_ragged")
