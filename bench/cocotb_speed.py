"""cocotb side of bench/blocks.py: the same stimulus through the project's bench, and the way a first cocotb test is written."""
from __future__ import annotations

import json
import os
import time
from pathlib import Path

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge

from tb.lib.bench import Bench


def _report(cycles: int, cpu: float, outputs: str, clocked: float | None = None) -> None:
    cpu = time.process_time() - cpu
    Path("speed.json").write_text(json.dumps({"cycles": cycles, "cpu": cpu, "outputs": outputs, "clocked": clocked or cpu}))


@cocotb.test()
async def test_bench(dut):
    """Sources, sinks and memories in HDL; Python wakes once a run."""
    job = json.loads(os.environ["TAWNY_SPEED"])
    words = {name: np.load(path) for name, path in job["sources"].items()}
    b = await Bench.start(dut)
    for name in job["memories"]:
        b.memory(name).write(0, np.load(job["image"]))
    cpu, cycles, clocked = time.process_time(), 0, 0.0
    for _ in range(job["runs"]):
        for name, rows in words.items():
            b.source(name).load(rows)
        for name, n in job["sinks"].items():
            b.sink(name).expect(n)
        await b.begin(settle=0)
        begin = time.process_time()
        if not int(dut.tb_done.value):
            await RisingEdge(dut.tb_done)
        clocked += time.process_time() - begin
        cycles += await b.finish(deadline=job["deadline"])
    _report(cycles, cpu, f"{sum(int(b.sink(name).array().sum(dtype=np.uint64)) for name in job['sinks']):x}", clocked)


@cocotb.test()
async def test_usual(dut):
    """A Python clock, and Python at every edge."""
    job = json.loads(os.environ["TAWNY_SPEED"])
    words = [int.from_bytes(r.tobytes(), "little") for r in np.load(job["sources"]["operands"])]
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value = 1
    dut.operands__valid.value = 0
    dut.result__ready.value = 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    cpu, got, sent, cycles = time.process_time(), [], 0, 0
    while len(got) < len(words):
        dut.operands__valid.value = int(sent < len(words))
        if sent < len(words):
            dut.operands__payload.value = words[sent]
        await ReadOnly()
        took = sent < len(words) and int(dut.operands__ready.value)
        if int(dut.result__valid.value):
            got.append(int(dut.result__payload.value))
        await RisingEdge(dut.clk)
        sent += took
        cycles += 1
    _report(cycles, cpu, f"{sum(sum(g.to_bytes(4, 'little')) for g in got):x}")
