"""Emission: the same bytes always, equal modules once, kept results are used only for what they were made from, no half files."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import In, Out

import rtl.emit as emission
from rtl.common.block import Block, shared
from rtl.emit import emit, write_atomic

ROOT = Path(__file__).resolve().parents[2]


class Leaf(Block):
    def __init__(self, add: int):
        self.add = add
        super().__init__({"a": In(8), "q": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.q.eq(self.a + self.add)
        return m


class Chain(Block):
    """`count` shared parts one after the other."""

    def __init__(self, part: type[Block], count: int, *args: int):
        self.part, self.count, self.rest = part, count, args
        super().__init__({"a": In(8), "q": Out(8)})

    def elaborate(self, platform):
        m = Module()
        at = self.a
        for i in range(self.count):
            part = self.part(*self.rest)
            m.submodules[f"part{i}"] = shared(part)
            m.d.comb += part.a.eq(at)
            at = part.q
        m.d.comb += self.q.eq(at)
        return m


class Middle(Block):
    def __init__(self, add: int):
        self.add = add
        super().__init__({"a": In(8), "q": Out(8)})

    def elaborate(self, platform):
        m = Module()
        x, y = Leaf(self.add), Leaf(self.add)
        m.submodules.x, m.submodules.y = shared(x), shared(y)
        m.d.comb += [x.a.eq(self.a), y.a.eq(x.q), self.q.eq(y.q)]
        return m


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Classes elaborated, in order."""
    seen: list[str] = []
    convert = emission._convert

    def counted(name: str, block: Block, platform: object) -> str:
        seen.append(type(block).__name__)
        return convert(name, block, platform)

    monkeypatch.setattr(emission, "_convert", counted)
    return seen


def test_equal_parts_are_elaborated_and_emitted_once(tmp_path: Path, conversions: list[str]) -> None:
    e = emit(Chain(Middle, 5, 3), tmp_path)
    assert conversions == ["Chain", "Middle", "Leaf"] and e.modules == 3
    text = e.verilog.read_text()
    assert text.count("\nmodule ") + text.startswith("module ") == 3
    assert len(e.shared) == 2  # Middle stands 5 times, Leaf twice in it


def test_a_part_of_another_design_is_not_elaborated_again(tmp_path: Path, conversions: list[str]) -> None:
    emit(Middle(3), tmp_path)
    del conversions[:]
    whole = emit(Chain(Middle, 2, 3), tmp_path)
    assert conversions == ["Chain"]
    fresh = emit(Chain(Middle, 2, 3), tmp_path / "fresh")
    assert whole.key == fresh.key and whole.verilog.read_bytes() == fresh.verilog.read_bytes()
    assert whole.shared == fresh.shared and whole.modules == fresh.modules


def test_other_passes_of_the_same_block_elaborate_nothing(tmp_path: Path, conversions: list[str]) -> None:
    plain = emit(Middle(3), tmp_path)
    del conversions[:]
    sunk = emit(Middle(3), tmp_path, sunk=True)
    again = emit(Middle(3), tmp_path)
    assert conversions == [] and plain.key != sunk.key and again == plain


def test_a_kept_part_that_is_gone_is_made_again(tmp_path: Path, conversions: list[str]) -> None:
    first = emit(Middle(3), tmp_path)
    for f in (tmp_path / "rtlil").glob("Leaf_*"):
        f.unlink()
    del conversions[:]
    assert emit(Chain(Middle, 2, 3), tmp_path).modules == first.modules + 1
    assert conversions == ["Chain", "Middle", "Leaf"]


def test_arguments_and_names_make_other_designs(tmp_path: Path) -> None:
    keys = {emit(Middle(3), tmp_path).key, emit(Middle(4), tmp_path).key, emit(Middle(3), tmp_path, top="other").key}
    assert len(keys) == 3


def _mine(tmp_path: Path) -> tuple[Path, str]:
    """A module that the block `mine.top.Top` imports, and the head of a program that has imported both."""
    (tmp_path / "mine").mkdir()
    part, top = tmp_path / "mine" / "part.py", tmp_path / "mine" / "top.py"
    (tmp_path / "mine" / "__init__.py").touch()
    head = "from amaranth.hdl import Module\nfrom amaranth.lib.wiring import In, Out\nfrom rtl.common.block import Block, shared\n"
    top.write_text(head + "from mine.part import ADD\n\nclass Top(Block):\n"
                   "    def __init__(self):\n        super().__init__({'a': In(8), 'q': Out(8)})\n\n"
                   "    def elaborate(self, platform):\n        m = Module()\n        m.d.sync += self.q.eq(self.a + ADD)\n        return m\n")
    return part, f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pathlib import Path; from mine.top import Top; from rtl.emit import emit; "


def _key(tmp_path: Path, code: str) -> str:
    """What `code` and an emission of Top print, in a process of their own: a class keeps its source while a process lives."""
    code += f"print(emit(Top(), Path({str(tmp_path / 'out')!r})).key)"
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_a_changed_source_is_elaborated_again(tmp_path: Path) -> None:
    part, code = _mine(tmp_path)
    keys = []
    for value in ("1", "22", "1"):
        part.write_text(f"ADD = {value}\n")
        keys.append(_key(tmp_path, code))
    assert keys[0] != keys[1] and keys[2] == keys[0]


def test_a_source_that_changes_under_a_running_process_is_not_taken_for_what_it_imported(tmp_path: Path) -> None:
    part, code = _mine(tmp_path)
    part.write_text("ADD = 1\n")
    before = _key(tmp_path, code)
    late = _key(tmp_path, code + f"import time; time.sleep(0.05); Path({str(part)!r}).write_text('ADD = 22\\n'); ")
    after = _key(tmp_path, code)  # a new process, the new source
    assert late == before != after


def test_same_bytes_in_every_process(tmp_path: Path) -> None:
    code = ("import sys; from pathlib import Path; from rtl.emit import emit; from rtl.mem.nmc import NearMemoryCompute; from spec.params import config; "
            "n = config('tiny').node; [print(e.verilog) for e in (emit(NearMemoryCompute(n.nmc, n.mem), Path(sys.argv[1]), sunk=s) for s in (False, True))]")
    texts = []
    for seed in ("1", "2"):
        out = subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed},
                             capture_output=True, text=True, check=True).stdout.split()
        assert [Path(p).relative_to(tmp_path / seed) for p in out]
        texts.append([Path(p).read_bytes() for p in out] + [str(Path(p).relative_to(tmp_path / seed)) for p in out])
    assert texts[0] == texts[1]
    assert b"/work" not in texts[0][0] and str(ROOT).encode() not in texts[0][0]


class Half(Block):
    """One output of the two is driven."""

    def __init__(self) -> None:
        super().__init__({"a": In(8), "b": In(8), "q": Out(8), "idle": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.q.eq(self.a)
        return m


class Around(Block):
    def __init__(self) -> None:
        super().__init__({"a": In(8), "q": Out(8), "idle": Out(1)})

    def elaborate(self, platform):
        m = Module()
        half = Half()
        m.submodules.half = shared(half)
        m.d.comb += [half.a.eq(self.a), self.q.eq(half.q), self.idle.eq(half.idle)]
        return m


def test_ports_keep_their_direction_whatever_uses_them(tmp_path: Path) -> None:
    """An output that nothing drives is an output with its initial value, an input that nothing reads an input; in a shared part too."""
    for block in (Half(), Around()):
        text = emit(block, tmp_path / type(block).__name__).verilog.read_text()
        for module in re.findall(r"(?s)module Half.*?endmodule", text):
            assert re.search(r"output idle\s*;", module) and re.search(r"assign idle = 1'h1;", module), module
            assert re.search(r"input \[7:0\] b\s*;", module), module
        assert "Half" in text


def test_sidecar_describes_the_module(tmp_path: Path) -> None:
    e = emit(Middle(3), tmp_path)
    meta = json.loads(e.verilog.with_suffix(".json").read_text())
    assert meta["top"] == "Middle" and meta["modules"] == 2 and "Middle" in meta["parameters"]
    assert meta["ports"] == [{"name": "a", "width": 8, "direction": "input"}, {"name": "q", "width": 8, "direction": "output"}]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.v"
    path.write_text("old")

    def fail(p: Path) -> None:
        p.write_text("half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_atomic(path, fail)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_what_yosys_refuses_is_an_error_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emission, "YOSYS_PASSES", "proc; no_such_pass")
    with pytest.raises(RuntimeError, match="no_such_pass"):
        emit(Middle(3), tmp_path)
    assert not list(tmp_path.glob("*/Middle.v"))


def test_masks_stay_masks(tmp_path: Path) -> None:
    """A constant mask must reach Verilator as one operation, not as single bits put together."""
    class Masked(Block):
        def __init__(self) -> None:
            super().__init__({"a": In(64), "q": Out(1)})

        def elaborate(self, platform):
            m = Module()
            m.d.comb += self.q.eq((self.a & 0x123456789ABCDEF1).xor())
            return m

    text = emit(Masked(), tmp_path, sunk=True).verilog.read_text()
    assert "64'h123456789abcdef1" in text.lower()


class Logic(Block):
    """Nothing but logic: neither clock nor reset is used inside."""

    def __init__(self) -> None:
        super().__init__({"a": In(8), "b": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.b.eq(~self.a)
        return m


class TwoOfLogic(Block):
    def __init__(self) -> None:
        super().__init__({"a": In(8), "b": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        one, two = Logic(), Logic()
        m.submodules.one, m.submodules.two = shared(one), shared(two)
        m.d.comb += [one.a.eq(self.a), two.a.eq(one.b), self.b.eq(two.b)]
        return m


def test_a_shared_block_without_registers_has_the_clock_that_its_instances_connect(tmp_path: Path) -> None:
    text = emit(TwoOfLogic(), tmp_path).verilog.read_text()
    module = next(x for x in text.split("endmodule") if re.search(r"(?m)^module Logic", x))
    assert re.search(r"input clk;", module) and re.search(r"input rst;", module)
