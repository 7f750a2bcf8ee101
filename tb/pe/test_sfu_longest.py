"""Special function unit: rows of the most elements there may be."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.sfu import ROW_ELEMENTS, SfuOp
from tb.lib.bench import Bench
from tb.pe.sfu_beats import check, lanes_of, row
from tb.pe.test_sfu import MAX, MINUS


@cocotb.test()
async def test_longest_row(dut):
    """ROW_ELEMENTS elements: all the largest number; the largest against its negative, and one left; subnormals."""
    b = await Bench.start(dut)
    n = ROW_ELEMENTS
    half = np.full(n // 2, MAX, np.uint32)
    mixed = np.concatenate([half, half ^ np.uint32(MINUS)])
    mixed[-1] = 1
    for x in (np.full(n, MAX | MINUS, np.uint32), mixed, np.full(n, 0x007FFFFF, np.uint32)):
        await check(b, row(lanes_of(b), SfuOp.ROW_SUM, x))
