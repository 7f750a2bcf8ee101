"""The whole system as one Verilog design, driven through the executor's own interface: what the executor must equal cycle for cycle."""
from __future__ import annotations

from pathlib import Path

from rtl.chip.system import System
from rtl.emit import emit
from spec.params import SystemParams
from tb.chip import executor
from tb.lib.simulators import BUILD, Options, built, compile_unit, control_file, link, translate

SOURCE = Path(__file__).with_name("monolith.cpp")
PORTS = ("aw_valid", "aw_ready", "w_valid", "w_ready", "b_ready", "b_valid", "ar_valid", "ar_ready", "r_ready", "r_valid",
         "b_payload", "aw_payload", "ar_payload", "w_payload", "r_payload")  # as in struct Node, and the event counter behind them


def library(p: SystemParams, *, faults: bool, gates: bool, waves: bool) -> Path:
    """As ``executor.library``; always with fault injection and stall gates, which do nothing while their probabilities are zero."""
    assert not waves
    o = Options(cocotb=False, timing=False, vpi=False)
    e = emit(System(p, True, True), BUILD / "rtl")
    text = e.verilog.read_text()
    vlt = control_file({m: ["mem"] for m in executor.bank_modules(text)}, e.shared) + executor.watched(text)
    rows = (", ".join([*(f"&m.ctl{i}__{q.replace('_', '__')}" for q in PORTS), f"&m.event{i}"]) for i in range(p.nodes))
    header = executor._names_header([q.name for q in e.ports])
    table = "static std::vector<Node> nodes(Vsystem& m) { return {\n" + "".join(f"  {{{r}}},\n" for r in rows) + "}; }\n"

    def make(folder: Path) -> None:
        objects = translate(e.top, [e.verilog], vlt, o, folder, "Vsystem")
        (folder / "nodes.h").write_text(header + table)
        objects.append(compile_unit(SOURCE, o, folder, (folder, folder / "cpp")))
        link(objects, o, folder / "libsystem.so", library=True)

    return built(f"monolith{p.nodes}", make, "libsystem.so", repr(o), vlt, text, table, SOURCE.read_text())
