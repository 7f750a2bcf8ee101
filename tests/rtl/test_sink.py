"""Sinking: what only feeds registers of one enable moves behind it; everything else stays."""
from __future__ import annotations

from rtl.sink import TASK, sink

HEAD = """module M(clk, en, a, b, q, r, y);
  input clk;
  wire clk;
  input en;
  wire en;
  input [7:0] a;
  wire [7:0] a;
  input [7:0] b;
  wire [7:0] b;
  output [7:0] q;
  reg [7:0] q = 8'h00;
  output [7:0] r;
  reg [7:0] r = 8'h00;
  output [7:0] y;
  wire [7:0] y;
"""


def module(wires: list[str], body: list[str]) -> str:
    return HEAD + "".join(f"  wire [7:0] {w};\n" for w in wires) + "".join(f"  {x}\n" for x in body) + "endmodule\n"


def load(enable: str, register: str, value: str) -> str:
    return f"always @(posedge clk)\n    if ({enable}) {register} <= {value};"


def test_exclusive_logic_moves():
    out = sink(module(["p", "s"], ["assign s = p + b;", "assign p = a ^ b;", load("en", "q", "s"), "assign y = a;"]))
    block = out[out.index("if (en) begin"):]
    assert block.index("p = a ^ b;") < block.index("s = p + b;") < block.index("q <= s;")
    assert "assign p" not in out and "assign s" not in out and "wire [7:0] p" not in out
    assert "assign y = a;" in out


def test_shared_logic_stays():
    source = module(["p"], ["assign p = a ^ b;", load("en", "q", "p"), load("b[0]", "r", "p")])
    assert sink(source) == source
    source = module(["p"], ["assign p = a ^ b;", load("en", "q", "p"), "assign y = p;"])
    assert sink(source) == source
    source = module(["p"], ["assign p = a ^ b;", load("p[0]", "q", "p")])  # the enable itself
    assert sink(source) == source


def test_circles_and_modules_without_enables_stay():
    source = module(["p", "s"], ["assign p = s ^ b;", "assign s = p + a;", load("en", "q", "s")])
    assert sink(source) == source
    source = module(["p"], ["assign p = a ^ b;", "always @(posedge clk)\n    q <= p;"])
    assert sink(source) == source


def test_long_logic_becomes_one_task_of_all_instances():
    names = [f"w{i}" for i in range(TASK)]
    chain = [f"assign {n} = {names[i - 1] if i else 'a'} + b;" for i, n in enumerate(names)]
    text = module(names, [*chain, load("en", "q", names[-1])])
    out = sink(text + text.replace("module M(", "module N("))
    assert out.count("task automatic") == 1 and out.count("sunk::t0(a , b , next0_);") == 2
    assert out.count("assign") == 0
