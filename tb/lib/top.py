"""The Verilog top of a bench: clock, reset, and for every port of the block what drives it.

Stream ports get HDL sources and sinks, AXI4 manager ports an HDL memory, plain ports become pins; a subordinate AXI port is driven channel by
channel (mode "streams"), or by cocotbext-axi through tb/common/pin_bus.py.
The clock runs in HDL, period 2 time steps of 1 ns; everything the bench touches is a register or wire of `tb_top`.
"""
from __future__ import annotations

from amaranth.hdl import Shape
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from rtl.common.axi4 import AXI4LiteSignature, AXI4Signature
from tb.lib.ports import TopPort

HDL = ("tb_source.v", "tb_sink.v", "tb_axi_memory.v")


def _width(shape) -> int:
    return Shape.cast(shape).width


def walk(signature, prefix: str = "", flipped: bool = False):
    """(name, signature or shape, produced by the block?) of every leaf port or known bus."""
    for name, member in signature.members.items():
        out = (member.flow is not In) != flipped
        indices = [""]
        for d in member.dimensions:
            indices = [f"{i}__{k}" for i in indices for k in range(d)]
        for i in indices:
            path = f"{prefix}{name}{i}"
            if member.is_port:
                yield path, member.shape, out
                continue
            sig, out2 = member.signature, not flipped  # an In member's signature comes flipped
            if isinstance(sig, wiring.FlippedSignature):
                sig, out2 = sig.flip(), flipped
            if isinstance(sig, stream.Signature | AXI4Signature | AXI4LiteSignature):
                yield path, sig, out2
            else:
                yield from walk(sig, f"{path}__", flipped=not out2)


def plan_ports(block, modes: dict[str, str], depth: int, memory_bytes: int) -> list[TopPort]:
    """Decide the driver of every port of `block`.

    Raises:
        ValueError: a mode names a port that the block does not have, or one that does not fit its kind.
    """
    ports: list[TopPort] = []
    unused = dict(modes)
    for path, what, out in walk(block.signature):
        mode = unused.pop(path, "")
        if isinstance(what, stream.Signature):
            ports.append(TopPort(name=path, kind="sink" if out else "source", width=_width(what.members["payload"].shape), depth=depth))
        elif isinstance(what, AXI4Signature):
            dims = dict(addr_width=what.addr_width, id_width=what.id_width, data_bytes=what.data_bytes)
            if mode == "streams":
                ports += _channels(path, what, out, depth)
            elif out:
                if mode not in ("", "memory"):
                    raise ValueError(f"port {path}: mode {mode!r}; expected memory or streams")
                ports.append(TopPort(name=path, kind="memory", size_bytes=memory_bytes, **dims))
            else:
                raise ValueError(f'port {path} is an AXI4 subordinate: expected mode "streams", or pins by tb/common/pin_bus.py')
        elif isinstance(what, AXI4LiteSignature):
            if mode != "streams":
                raise ValueError(f'port {path} is AXI4-Lite: expected mode "streams", or pins by tb/common/pin_bus.py')
            ports += _channels(path, what, out, depth)
        else:
            ports.append(TopPort(name=path, kind="out" if out else "in", width=_width(what)))
    if unused:
        raise ValueError(f"[ports] names {', '.join(unused)}; the block has {', '.join(p.name for p in ports)}")
    return ports


def _channels(path: str, bus, out: bool, depth: int) -> list[TopPort]:
    """A source or sink per channel of an AXI port (`out`: the block is the manager)."""
    return [
        TopPort(
            name=f"{path}__{c}", kind="sink" if out == (c in ("aw", "w", "ar")) else "source",
            width=_width(m.signature.members["payload"].shape), depth=depth,
        )
        for c, m in bus.members.items()
    ]


def _r(w: int) -> str:
    return f"[{max(w, 1) - 1}:0] "


def verilog(dut: str, ports: list[TopPort], dump: str = "") -> str:
    """Text of module `tb_top` around module `dut`."""
    decl: list[str] = []
    body: list[str] = []
    conn = [".clk(clk)", ".rst(rst)"]
    done: list[str] = []
    rules: list[str] = []
    for p in ports:
        n, w = p.name, p.width
        if p.kind in ("source", "sink"):
            conn += [f".{n}__{s}({n}__{s})" for s in (("payload", "valid", "ready") if w else ("valid", "ready"))]
            decl += [f"wire {_r(w)}{n}__payload;", f"wire {n}__valid, {n}__ready, {n}__done;", f"reg [31:0] {n}__seed = 1;"]
            done.append(f"{n}__done")
            common = f".clk(clk), .rst(rst), .start(tb_start), .seed({n}__seed), .valid({n}__valid), .payload({n}__payload), .ready({n}__ready), .done({n}__done)"
            ext = "bin" if p.kind == "source" else "hex"
            par = f"#(.WIDTH({max(w, 1)}), .DEPTH({p.depth}), .FILE(\"{n}.{ext}\"))"
            if p.kind == "source":
                decl += [f"reg [31:0] {n}__count = 0;", f"reg [16:0] {n}__idle = 0;", f"wire [31:0] {n}__sent;", f"reg {n}__load = 0;"]
                body.append(f"tb_source {par} {n}__source ({common}, .count({n}__count), .idle({n}__idle), .load({n}__load), .sent({n}__sent));")
            else:
                decl += [f"reg [31:0] {n}__expect = 0;", f"reg [16:0] {n}__stall = 0;", f"wire [31:0] {n}__got;", f"wire [2:0] {n}__rule;"]
                body.append(f"tb_sink {par} {n}__sink ({common}, .dump(tb_dump), .expect_count({n}__expect), .stall({n}__stall), .got({n}__got), .rule({n}__rule));")
                rules.append(f"|{n}__rule")
        elif p.kind == "memory":
            decl += [f"reg [31:0] {n}__load_first = 0, {n}__load_last = 0, {n}__dump_first = 0, {n}__dump_last = 0;",
                     f"reg [15:0] {n}__latency = 1;", f"reg [16:0] {n}__stall = 0;", f"reg [31:0] {n}__seed = 1;",
                     f"reg {n}__load = 0, {n}__dump = 0;", f"reg [63:0] {n}__error_start = 0, {n}__error_end = 0;",
                     f"reg [1:0] {n}__error_resp = 2;", f"wire [31:0] {n}__low, {n}__high, {n}__reads, {n}__writes;",
                     f"wire [6:0] {n}__rule;", f"wire {n}__idle;"]
            widths = {"aw": p.addr_width + p.id_width + 13, "ar": p.addr_width + p.id_width + 13, "w": p.data_bytes * 9 + 1,
                      "b": 2 + p.id_width, "r": p.data_bytes * 8 + 3 + p.id_width}
            link = []
            for c, cw in widths.items():
                decl += [f"wire {_r(cw)}{n}__{c}__payload;", f"wire {n}__{c}__valid, {n}__{c}__ready;"]
                for s in ("payload", "valid", "ready"):
                    conn.append(f".{n}__{c}__{s}({n}__{c}__{s})")
                    link.append(f".{c}_{s}({n}__{c}__{s})")
            same = ("load", "dump", "load_first", "load_last", "dump_first", "dump_last", "latency", "stall", "seed",
                    "error_start", "error_end", "error_resp", "low", "high", "reads", "writes", "rule", "idle")
            link += [f".{s}({n}__{s})" for s in same]
            body.append(
                f"tb_axi_memory #(.BYTES({p.data_bytes}), .ADDR({p.addr_width}), .ID({p.id_width}), .SIZE({p.size_bytes}), "
                f".LOAD(\"{n}.bin\"), .DUMP(\"{n}.hex\")) {n}__memory (.clk(clk), .rst(rst), {', '.join(link)});")
            rules.append(f"|{n}__rule")
        elif p.kind == "in":
            decl.append(f"reg {_r(w)}{n} = 0;")
            conn.append(f".{n}({n})")
        else:
            decl.append(f"wire {_r(w)}{n};")
            conn.append(f".{n}({n})")
    text = f"""// Generated by tb/lib/top.py.
`timescale 1ns / 1ns
module tb_top;
reg clk = 0;
reg rst = 1;
reg tb_start = 0;
reg tb_dump = 0;
reg [31:0] tb_settle = 4;
reg tb_done = 0;
reg tb_finished = 0;
reg [31:0] tb_cycles = 0;
reg [31:0] tb_quiet = 0;
reg tb_started = 0;
always #1 clk = ~clk;
{chr(10).join(decl)}
wire tb_all = {" & ".join(done) or "1'b1"};
wire tb_rule = {" | ".join(rules) or "1'b0"};
always @(posedge clk) begin
  if (rst | (tb_started != tb_start)) begin
    tb_started <= tb_start; tb_cycles <= 0; tb_finished <= 0; tb_done <= 0; tb_quiet <= 0;
  end else begin
    if (~tb_all & ~tb_finished) tb_cycles <= tb_cycles + 1;
    if (tb_all) tb_finished <= 1;
    if (tb_finished) tb_quiet <= tb_quiet + 1;
    if (tb_finished & tb_quiet >= tb_settle) tb_done <= 1;
  end
end
{dut} dut ({", ".join(conn)});
{chr(10).join(body)}
{dump}
endmodule
"""
    return text
