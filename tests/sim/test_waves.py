"""Waves: a trace on every simulator, a save file whose signals are in it, fields by name, and a picture."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from rtl.common.layouts import layout
from spec.dma import DmaOp
from spec.interfaces import DONE, NMC_REQUEST
from spec.isa import Control, Unit
from spec.params import config
from spec.pe import DotFormat, Drain
from spec.sfu import SfuOp
from spec.wqe import DType, ReduceOp, Status
from tb.lib import registry, runner, simulators, top
from tb.lib.simulators import available
from tb.waves import picture, save, signals
from tb.waves.__main__ import main, system
from tb.waves.trace import Trace

pytest.importorskip("pywellen", reason="extra: waves")


def paths(text: str) -> dict[str, Path]:
    return {m[1]: Path(m[2]) for m in re.finditer(r"(?m)^(waves|save|picture): +(\S+)", text)}


@pytest.mark.parametrize("sim", ["verilator", "icarus"])
def test_block(sim: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if available(sim):
        pytest.skip(available(sim) or "")
    image = tmp_path / "picture.png"
    assert main(["--block", "skid", "--sim", sim, "--test", "test_stalls", "--picture", str(image)]) == 0
    out = capsys.readouterr().out
    found = paths(out)
    assert found["waves"].stat().st_size > 1000 and f"gtkwave {found['save']}" in out and found["picture"] == image
    trace = Trace(found["waves"])
    named = save.signals_of(found["save"])
    assert {"tb_top.clk", "tb_top.rst", "tb_top.i__payload", "tb_top.i__valid", "tb_top.o__ready"} <= set(named)
    widths = trace.widths
    assert {n: w for n, w in named.items() if widths.get(n) != w} == {}
    assert f'[dumpfile] "{found["waves"]}"' in found["save"].read_text()
    pixels = pytest.importorskip("matplotlib.image").imread(image)
    assert pixels.shape[0] > 100 and pixels.shape[1] > 1000
    colours = {tuple(round(255 * float(x)) for x in p[:3]) for p in pixels[::4, ::4].reshape(-1, pixels.shape[2])}
    wanted = {tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in (picture.TRANSFER, picture.STALL, picture.BOX)}
    assert wanted <= colours  # words that move, words that wait, fields


def test_words_of_the_trace_are_those_of_the_bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word that the picture's lanes show at the output entered at the input, in order."""
    assert main(["--block", "skid", "--sim", "verilator", "--test", "test_stalls"]) == 0
    trace = Trace(paths(capsys.readouterr().out)["waves"])
    plan = registry.find("skid")
    block = plan.make()
    view = signals.bench_view(block, top.plan_ports(block, plan.ports, plan.depth, plan.memory_bytes), trace.widths)
    w = picture.window(view, trace)
    monkeypatch.setattr(picture, "CUT_OFF", -1)
    assert picture.window(view, trace).times == w.times[: picture.CLOSE] and picture.window(view, trace, w.first, w.last) == w
    moved = {}
    for g in view.groups:
        assert g.valid and g.ready
        up = [t for t in w.times if trace.at(g.valid.signal, t) == 1 == trace.at(g.ready.signal, t)]
        moved[g.title] = [trace.at(g.rows[0].signal, t) for t in up]
    assert len(moved["o"]) > 10 and moved["o"] == moved["i"][: len(moved["o"])]
    first = picture._lanes(view, trace, w)[0]
    assert first.kind == "handshake" and first.marks[0][0] <= picture.LEAD < first.marks[-1][1]


def test_fields_are_those_of_the_record() -> None:
    rows = {r.label: r for r in signals.fields(layout(NMC_REQUEST), "t.request__payload", NMC_REQUEST.bits)}
    values = dict(tag=0x1234, rop=ReduceOp.MAX, dtype=DType.FLOAT16, length=4096, addr_a=0x1000, addr_d=(1 << 64) - 64, scale=0x3F800000)
    word = NMC_REQUEST.pack(values)
    assert {n: r.of(word) for n, r in rows.items()} == NMC_REQUEST.unpack(word)  # reserved fields are left out
    assert picture._text(rows["dtype"], word) == "FLOAT16" and picture._text(rows["rop"], word) == "MAX"
    assert picture._text(rows["length"], word) == "1000" and picture._text(rows["length"], "x" * NMC_REQUEST.bits) == "X"
    done = {r.label: r for r in signals.fields(layout(DONE), "t.done__payload", DONE.bits)}
    assert (Status.ALIGN_ERR, "ALIGN_ERR") in done["status"].names and not done["tag"].names


def test_bit_ranges_count_from_the_most_significant_bit() -> None:
    """GTKWave numbers the bits of a vector from the left."""
    word = NMC_REQUEST.pack(dtype=DType.BFLOAT16, length=0x1234, tag=7)
    digits = f"{word:0{NMC_REQUEST.bits}b}"
    for r in signals.fields(layout(NMC_REQUEST), "t.p", NMC_REQUEST.bits):
        text = save.bits(r.label, "t.p[287:0]", r)
        assert text.startswith(f"#{{{r.label}}} ")
        at = [int(x) for x in re.findall(r"\((\d+)\)t\.p\[287:0\]", text)]
        assert int("".join(digits[i] for i in at), 2) == NMC_REQUEST.unpack(word)[r.label], r.label


def test_save_file_has_groups_fields_and_names(tmp_path: Path) -> None:
    plan = registry.find("nmc")
    block = plan.make()
    groups = signals.port_groups(block, top.plan_ports(block, plan.ports, plan.depth, plan.memory_bytes))
    block._MustUse__silence = True  # only its ports are wanted
    view = signals.View(clock=signals.row("clk", "tb_top.clk", 1), reset=signals.row("rst", "tb_top.rst", 1), groups=tuple(groups))
    text = save.write(view, tmp_path / "waves.fst", tmp_path / "waves.gtkw").read_text()
    for want in ("-request\n", "-axi_a.aw\n", "-axi_b.r\n", "-pins\n", "#{request.dtype} (267)", "#{done.status} (168)", "+{clk} tb_top.clk\n"):
        assert want in text, want
    assert text.index("tb_top.clk") < text.index("tb_top.rst") < text.index("-request")
    assert (tmp_path / "waves.names" / "DType-2.txt").read_text() == "0 FLOAT32\n1 BFLOAT16\n2 FLOAT16\n3 INT32\n"
    assert "21 ALIGN_ERR\n" in (tmp_path / "waves.names" / "Status-8.txt").read_text()
    assert text.count("waves.names/DType-2.txt") == 1 and "data} (" not in text


def test_state_machines_and_buses_on_pins() -> None:
    plan = registry.find("csr")
    block = plan.make()
    groups = signals.port_groups(block, top.plan_ports(block, plan.ports, plan.depth, plan.memory_bytes))
    by_title = {g.title: g for g in groups}
    assert {"bus.aw", "bus.w", "bus.b", "bus.ar", "bus.r", "pins"} == set(by_title)
    assert [r.label for r in by_title["bus.r"].rows] == ["data", "resp"] and by_title["bus.r"].rows[1].enum == "Resp"
    (machine,) = signals.state_machines(block)
    assert machine.signal == "tb_top.dut.bank.fsm_state"
    assert {"IDLE", "READ", "WRITE"} <= {n for _, n in machine.names} and machine.names[0] == (0, "IDLE")


@pytest.mark.parametrize(
    "valid,moved,words",
    [([0, 1, 1, 1, 0], [0, 0, 1, 1, 0], [(1, 3), (3, 4)]), ([1, 1], [0, 0], [(0, 2)]), ([0, 0], [0, 0], []), ([1, 0, 1], [1, 0, 0], [(0, 1), (2, 3)])],
)
def test_words(valid: list[int], moved: list[int], words: list[tuple[int, int]]) -> None:
    assert picture._words([bool(v) for v in valid], [bool(m) for m in moved]) == words


def test_no_wave_file_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    silent = runner.Outcome(block="skid", sim="verilator", seed=1, passed=["test_rate"], folder=tmp_path)
    monkeypatch.setattr(runner, "run", lambda *a, **k: silent)
    assert main(["--block", "skid"]) == 1
    err = capsys.readouterr().err
    assert "no wave file" in err and err.count("\n") == 1


@pytest.mark.parametrize("argv,said", [(["--block", "nothing"], "no block 'nothing'"), (["--trace", "/nonexistent.fst"], "no such file")])
def test_one_line_refusals(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.long
def test_vcd_without_the_headers_of_fst(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulators, "have_fst", lambda: False)
    simulators.wave_format.cache_clear()
    try:
        assert main(["--block", "skid", "--sim", "verilator", "--test", "test_stalls"]) == 0
    finally:
        simulators.wave_format.cache_clear()
    said = capsys.readouterr()
    found = paths(said.out)
    assert found["waves"].name == "waves.vcd" and "VCD" in said.err
    widths = Trace(found["waves"]).widths
    assert {n for n, w in save.signals_of(found["save"]).items() if widths.get(n) != w} == set()


@pytest.mark.long
def test_whole_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A system's trace holds every node and the switch; its save file names only what is there, in fields."""
    from tb.chip.service import SimService

    p = config("tiny")
    with SimService(p, waves=str(tmp_path / "system.fst")) as s:
        s.write_regs([(i, "node", 0, i + 5) for i in range(p.nodes)])
        s.read_regs([(0, "node", 0)])
    assert system(tmp_path / "system.fst", "tiny") == 0
    trace = Trace(tmp_path / "system.fst")
    widths = trace.widths
    assert {n.partition(".")[0] for n in widths} == {*(f"node{i}" for i in range(p.nodes)), "switch"}
    named = save.signals_of(tmp_path / "system.gtkw")
    assert {n for n, w in named.items() if widths.get(n) != w} == set()
    text = (tmp_path / "system.gtkw").read_text()
    assert all(f"-node{i}.me.nmc_request\n" in text and f"-node{i} state machines\n" in text for i in range(p.nodes))
    assert trace.changes("node2.Station.node.nic.node")[1][-1] == 7
    assert "4 nodes" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "stream", "field", "code", "text"), [
    ("dot_product", "held", "format", DotFormat.FLOAT8_E5M2, "FLOAT8_E5M2"), ("dot_product", "row", "mx", 2, "BLOCK_32"),
    ("reduction", "drain", "to", Drain.NEIGHBOUR, "NEIGHBOUR"), ("sfu", "beats", "op", SfuOp.GELU, "GELU"), ("sfu", "beats", "format_out", 2, "BFLOAT16"),
    ("dma", "descriptor", "op", DmaOp.GATHER, "GATHER"), ("dma", "completion", "status", 6, "RANGE_SOURCE"),
    ("cp", "core0", "unit", Unit.DOT, "DOT"), ("cp", "core0", "op", Unit.CONTROL | Control.BUFFER << 3, "BUFFER"), ("cp", "core0", "op", Unit.DOT, "DOT"),
])
def test_codes_of_the_engines_show_by_name(name: str, stream: str, field: str, code: int, text: str) -> None:
    plan = registry.find(name)
    block = plan.make()
    groups = {g.title: g for g in signals.port_groups(block, top.plan_ports(block, plan.ports, plan.depth, plan.memory_bytes))}
    rows = {r.label: r for r in groups[stream].rows}
    assert dict(rows[field].names)[int(code)] == text
    if name in ("dot_product", "reduction"):  # result rows value by value
        values = [r for g in groups.values() for r in g.rows if r.label == "values[3]"]
        assert values and all(r.bits == 32 and r.lsb == 96 for r in values)
