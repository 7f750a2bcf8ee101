"""Memories without initial contents: the same Verilog as with, but for the initial block; banks stay small to emit."""
from __future__ import annotations

import re
from pathlib import Path

from amaranth.hdl import Module, unsigned
from amaranth.lib import memory
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.uninitialised import UninitialisedMemory
from rtl.emit import emit
from rtl.mem.sram import Sram
from spec.params import config


class Small(Block):
    def __init__(self, kind: str):
        self.kind = kind
        super().__init__({"we": In(2), "wa": In(3), "wd": In(16), "ra": In(3), "rd": Out(16)})

    def elaborate(self, platform):
        m = Module()
        made = UninitialisedMemory(shape=unsigned(16), depth=8) if self.kind == "none" else memory.Memory(
            shape=unsigned(16), depth=8, init=())
        m.submodules.mem = made
        w, r = made.write_port(granularity=8), made.read_port()
        m.d.comb += [w.en.eq(self.we), w.addr.eq(self.wa), w.data.eq(self.wd), r.addr.eq(self.ra), self.rd.eq(r.data)]
        return m


def test_same_but_for_the_initial_block(tmp_path: Path) -> None:
    without = emit(Small("none"), tmp_path, top="small").verilog.read_text()
    zeros = emit(Small("zero"), tmp_path, top="small").verilog.read_text()
    assert "initial" in zeros and "initial" not in without

    def text(verilog: str) -> str:  # Yosys numbers its own names on
        return re.sub(r"\b_\d+_\b", "_n_", re.sub(r"(?s)  initial begin.*?  end\n", "", verilog))

    assert text(zeros) == text(without)


def test_node_memory_is_small_and_its_banks_have_their_names(tmp_path: Path) -> None:
    text = emit(Sram(config("tiny").node.mem, 2), tmp_path).verilog.read_text()
    assert len(text) < 200_000
    rows = config("tiny").node.mem.size_bytes // 64 // config("tiny").node.mem.banks
    assert f"reg [511:0] mem [{rows - 1}:0];" in text
    for b in range(config("tiny").node.mem.banks):
        assert re.search(rf"\\?\S*bank0\s+bank{b} \(", text), f"instance bank{b}"
