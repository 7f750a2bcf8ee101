"""Unit of the special function unit on a memory with ECC: damaged rows of each operand end in LOCAL."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.convert import ConvertFormat as F
from spec.isa import START, UNIT_DONE, UnitStatus
from spec.pe import Mx
from spec.sfu import SfuB, SfuOp
from tb.lib.bench import Bench
from tb.pe.matrix_jobs import host, host_words
from tb.pe.sfu_unit_jobs import LINE, Work


@cocotb.test()
async def test_damaged(dut):
    """Two wrong bits in a row of a, of b, of a's scales, of b that the operation does not read, and in none; two instructions each: the mark does not stay."""
    b = await Bench.start(dut)
    pe = b.config.node.pe
    w = Work(pe, b.rng)
    bad, want = [], []

    def give(which: str | None, op: SfuOp, **kw) -> None:
        at = w.at
        w.add(op, F.FLOAT8_E4M3FN, F.FLOAT32, fb=F.BFLOAT16, rows=3, columns=100, **kw)
        job = w.jobs[-1]
        if which is not None:
            bad.append({"a": job["a"] + 3 * LINE, "b": job["b"], "scales": -(-(at + 3 * 128) // LINE) * LINE}[which] // LINE)
        want.append(UnitStatus.OK if which is None else UnitStatus.LOCAL)
        w.add(SfuOp.COPY, F.BFLOAT16, F.FLOAT32, rows=2, columns=40)
        want.append(UnitStatus.OK)

    for source_b in (SfuB.ELEMENTS, SfuB.ROW, SfuB.COLUMN):
        give("b", SfuOp.MUL, source_b=source_b)
    give("a", SfuOp.EXP)
    give("a", SfuOp.ROW_SUM, mx_a=Mx.BLOCK_16)
    give("scales", SfuOp.COPY, mx_a=Mx.BLOCK_32)
    give(None, SfuOp.ADD)
    await host(b, pe, w.before, ("start",))
    b.pin("flip").value = 0b11
    b.source("host__request").load(host_words(pe, w.before)[bad])
    b.sink("host__response").expect(0)
    await b.run(2000)
    b.pin("flip").value = 0
    b.source("host__request").load([])
    b.source("start").load(np.frombuffer(b"".join(START.pack(j).to_bytes(-(-START.bits // 8), "little") for j in w.jobs), np.uint8).reshape(len(w.jobs), -1))
    b.sink("done").expect(len(w.jobs))
    await b.run(20_000)
    got = [UNIT_DONE.unpack(x)["status"] for x in b.sink("done").words()]
    assert got == want, f"status {got}, expected {want}"
