"""GEMM on the `small` processing element behind 100 cycles of memory latency: every shape published, worst first, bits equal golden.

`slots`: multiply-accumulate slots that the products need, without padding, of those that there were, from the first instruction to the last completion. `bound`:
:meth:`golden.pe.kernels.gemm.Gemm.bound`, of the cycles that it took.
"""
from __future__ import annotations

import json
from typing import Any

import cocotb

from golden.pe.kernels.gemm import Gemm
from spec.params import config
from spec.pe import DotFormat as F
from tb.lib.bench import Bench
from tb.lib.simulators import BUILD
from tb.pe.cp_programs import start
from tb.pe.pe_jobs import Image, run
from tb.pe.pe_monitor import COUNTS

PE = config("small").node.pe
LATENCY = 100
MEMORY = 4 << 20
KINDS = (("bfloat16", F.BFLOAT16, 0), ("float8_e4m3fn", F.FLOAT8_E4M3FN, 0), ("MXFP8", F.FLOAT8_E4M3FN, 32))
LARGE = 25_000  # cycles of the bound
RAGGED = ((16, 512), (16, 512), (16, 512))  # M, N, K of the random shapes, from two groups of rows on


async def measure(b: Bench, kind: tuple[str, F, int], m: int, n: int, k: int) -> dict[str, Any]:
    name, fmt, mx = kind
    image = Image(b.rng, MEMORY)
    g: Gemm = image.gemm(m, n, k, fmt, mx=mx)
    b.pin("count_clear").value = 1
    await b.wait_cycles(1)
    b.pin("count_clear").value = 0
    cycles, _ = await run(b, PE, image.bytes, [g.program(PE)], bound=g.slots(PE))
    counts = {c: int(b.pin(f"count_{c}").value) for c in COUNTS}
    row = dict(kind=name, m=m, n=n, k=k, chunks=g.chunks, cycles=cycles, slots=round(m * n * k / (PE.rows * fmt.lanes) / cycles, 4), padded_slots=round(g.slots(PE) / cycles, 4),
               bound=round(g.bound(PE, LATENCY) / cycles, 4), bound_cycles=g.bound(PE, LATENCY), **counts)
    b.dut._log.info("%s", row)
    assert counts["used"] == g.slots(PE), f"{counts['used']} rows were streamed, expected {g.slots(PE)}"
    return row


def publish(b: Bench, rows: list[dict[str, Any]], name: str) -> None:
    """The shapes, worst first."""
    where = BUILD / "report" / f"{name}.json"
    where.parent.mkdir(parents=True, exist_ok=True)
    order = sorted(rows, key=lambda r: r["bound"])
    where.write_text(json.dumps(dict(config="small", latency=LATENCY, seed=b.seed, shapes=order), indent=1) + "\n")
    short = sum(r["bound"] < 0.97 for r in rows)
    b.dut._log.info("%s: seed %d, %d shapes, %d below 97 %% of the bound, worst %s; %s", name, b.seed, len(rows), short, order[0], where)


@cocotb.test()
async def test_512(dut):
    """At least 99 % of all multiply-accumulate slots in every kind of operand."""
    b = await start(dut)
    b.memory("axi").latency = LATENCY
    rows = []
    for kind in KINDS:
        rows.append(await measure(b, kind, 512, 512, 512))
        b.cover(kind[0])
    publish(b, rows, "gemm_512")
    for r in rows:
        assert r["slots"] >= 0.99, f"{r['kind']}: {r['slots']} of the slots"


@cocotb.test()
async def test_ragged(dut):
    """127 x 65 x 33 and a hundred random shapes, published; those with more than one chunk and 25,000 cycles of work, in which starting and ending are little, reach 97 % of the bound."""
    b = await start(dut)
    b.memory("axi").latency = LATENCY
    b.dut._log.info("seed %d", b.seed)
    rows = [await measure(b, kind, 127, 65, 33) for kind in KINDS]
    for i in range(100):
        m, n, k = (int(b.rng.integers(low, high + 1)) for low, high in RAGGED)
        rows.append(await measure(b, KINDS[i % 3], m, n, k))
    publish(b, rows, "gemm_ragged")
    for r in rows:
        assert r["chunks"] == 1 or r["bound_cycles"] < LARGE or r["bound"] >= 0.97, f"{r}"
