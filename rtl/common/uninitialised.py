"""Large memories without initial contents.

Amaranth makes a net of every bit of every memory's initial value, zeros too: minutes of conversion and megabytes of Verilog for a
node's memory. Importing this module makes it write initial values as constants (rtl/emit.py does so). `UninitialisedMemory` is `amaranth.lib.memory.Memory` whose contents are unknown until written (zero in Amaranth's
own simulator and on two-state simulators); the emitted Verilog declares the array and no more. A test compares the Verilog of both
(tests/rtl/test_uninitialised.py).
"""
from __future__ import annotations

from amaranth.back import rtlil
from amaranth.lib import memory

_MARK = "uninitialised"


def _emit_memory(self, cell_idx, cell):
    """Stands in for Amaranth's: the same cell, its contents written as one constant instead of a net per bit."""
    if _MARK in cell.attributes:
        return
    bits = cell.width * cell.depth
    value = "".join(format(row, f"0{cell.width}b") for row in reversed(cell.init)) if any(cell.init) else "0"
    self.builder.cell(
        "$meminit_v2",
        ports={"ADDR": "{ }", "DATA": f"{bits}'{value}", "EN": f"{cell.width}'{'1' * cell.width}"},
        parameters={
            "MEMID": self.memories[cell_idx].memid, "ABITS": 0, "WIDTH": cell.width, "WORDS": cell.depth, "PRIORITY": 0,
        },
        src_loc=cell.src_loc,
    )


rtlil.ModuleEmitter.emit_memory = _emit_memory


class UninitialisedMemory(memory.Memory):
    """Memory of `depth` rows of `shape`, contents unknown until written."""

    def __init__(self, *, shape, depth: int):
        super().__init__(shape=shape, depth=depth, init=(), attrs={_MARK: 1})
