"""Sizes of bench/cells.py: shared modules counted as often as they stand, depth through all of them, memories as bits; the baseline beside them."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import memory
from amaranth.lib.wiring import In, Out

from bench import cells, synthesis
from rtl.common.block import Block, shared


class Part(Block):
    """One inverting exclusive-or bit through, and 4 flip-flops."""

    def __init__(self):
        super().__init__({"a": In(4), "q": Out(4), "i": In(1), "o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(self.i ^ self.a[0])
        m.d.sync += self.q.eq(self.a)
        return m


class Whole(Block):
    """`n` parts in series, beside a memory of 16 words of 8 bits."""

    def __init__(self, n: int):
        self.n = n
        super().__init__({"a": In(4), "q": Out(4), "i": In(1), "o": Out(1), "addr": In(4), "data": Out(8), "write": In(8), "en": In(1)})

    def elaborate(self, platform):
        m = Module()
        a, i = self.a, self.i
        for k in range(self.n):
            part = Part()
            m.submodules[f"part{k}"] = shared(part)
            m.d.comb += [part.a.eq(a), part.i.eq(i)]
            a, i = part.q, part.o
        m.submodules.words = words = memory.Memory(shape=8, depth=16, init=[])
        read, write = words.read_port(), words.write_port()
        m.d.comb += [
            self.q.eq(a), self.o.eq(i), read.addr.eq(self.addr), read.en.eq(1), self.data.eq(read.data),
            write.addr.eq(self.addr), write.data.eq(self.write), write.en.eq(self.en),
        ]
        return m


def test_parts_count_as_often_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "BUILD", tmp_path)
    sizes = synthesis.synthesise(Whole(3))
    assert sizes["memory_bits"] == 128
    assert (sizes["gates"], sizes["flops"], sizes["luts"]) == (3, 12, 3)
    assert (sizes["depth"], sizes["lut_depth"]) == (3, 3)  # across the borders of the parts
    [kept] = (tmp_path / "cells").glob("Whole-*.json")
    kept.write_text(json.dumps(sizes | {"gates": 99}))
    assert synthesis.synthesise(Whole(3))["gates"] == 99  # nothing is synthesised twice


def test_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = cells.load()
    names = {p.name: p.sized for p in cells.PARTS}
    assert all(set(parts) == {n for n, sized in names.items() if sized == (config != cells.ANY)} for config, parts in known.items() if config in (cells.ANY, "tiny"))
    assert all(set(f) == set(cells.FIGURES) for parts in known.values() for f in parts.values())
    monkeypatch.setattr(cells, "BASELINE", tmp_path / "cells.json")
    row = {"name": "Fp32Add", "config": "any", **dict.fromkeys(cells.FIGURES, 100), "baseline": None}
    assert cells.change(row) == "new"
    cells.save([row])
    again = row | {"gates": 110, "depth": 99, "baseline": cells.load()["any"]["Fp32Add"]}
    assert cells.change(again) == "gates +10 (+10.0%), depth -1 (-1.0%)" and cells.change(again | {"gates": 100, "depth": 100}) == "as before"
    cells.save([row | {"name": "MinMax"}])
    assert list(cells.load()["any"]) == ["Fp32Add", "MinMax"]
