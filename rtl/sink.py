"""Sinking: combinational logic that only feeds registers of one enable moves into the `if (enable)` of those registers.

Yosys writes one `assign` per cell, and a simulator evaluates every one of them each cycle, whether or not the register behind it loads.
Here the assignments whose readers all load under the same enable become blocking assignments inside that enable's clocked block:
the same meaning, but an idle pipeline costs its enables only. Groups of `TASK` assignments or more become a task in package `sunk`,
which Verilator compiles once, however many instances call it.

Input: Verilog as Yosys writes it after ``proc -noopt; opt_clean; opt_dff -nosdff; opt_clean`` (`opt_dff` turns hold multiplexers into
enables; without it nothing is sunk). For Verilator: Icarus does not take calls of tasks in a package.

Assumptions: one assignment a line, one clock `clk` (what Yosys and this project's blocks give); a module that differs stays as it is.
"""
from __future__ import annotations

import re

_TOKEN = re.compile(r"\d+'s?[bdho][0-9a-fA-FxzXZ_?]+|\$signed|\$unsigned|\\\S+|[A-Za-z_][\w$]*|\S")
_NAME = re.compile(r"\\\S+|[A-Za-z_][\w$]*")
_ALWAYS = re.compile(r"(?m)^  always @\(posedge clk\)\n    if \(([^\n]+?)\) ([^\n]+?) <= ([^\n]+);\n")
_ASSIGN = re.compile(r"(?m)^  assign ([^\n]+?) = ([^\n]+);\n")
_WIRE = re.compile(r"(?m)^  wire ((?:signed )?(?:\[\d+:\d+\] )?)(\\\S+ |[A-Za-z_][\w$]*);\n")
_DECL = re.compile(r"(?m)^  (?:wire|reg) ((?:signed )?(?:\[\d+:\d+\] )?)(\\\S+ |[A-Za-z_][\w$]*)(?: = [^\n]+)?;\n")
TASK = 16  # assignments from which the logic becomes a task: compiled once however often the module occurs
_MODULE = re.compile(r"(?ms)^module .*?^endmodule\n")


def _names(text: str) -> set[str]:
    return {t for t in _TOKEN.findall(text) if _NAME.fullmatch(t)}


def sink(verilog: str) -> str:
    """The Verilog (as Yosys writes it) with every module's enabled logic sunk."""
    tasks: dict[str, str] = {}  # text after the name -> name; equal ones are shared
    body = _MODULE.sub(lambda m: _module(m.group(0), tasks), verilog)
    if not tasks:
        return body
    return "package sunk;\n" + "".join(f"  task automatic {name};\n{text}" for text, name in tasks.items()) + "endpackage\n" + body


def _module(text: str, tasks: dict[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for m in _ALWAYS.finditer(text):
        groups.setdefault(m[1], []).append(m[0])
    assigns = [(m[0], _names(m[1]), _names(m[2]), m[1], m[2]) for m in _ASSIGN.finditer(text)]
    if not groups or not assigns:
        return text
    wires = {m[2].strip(): m[1] or "" for m in _WIRE.finditer(text)}
    widths = {m[2].strip(): m[1] or "" for m in _DECL.finditer(text)}
    rest = _WIRE.sub("", _ALWAYS.sub("", _ASSIGN.sub("", text)))
    held = _names(rest)  # ports, registers, instances, other processes
    for m in _ALWAYS.finditer(text):
        held |= _names(m[1]) | _names(m[2])
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    for i, (_, lhs, rhs, _, _) in enumerate(assigns):
        for n in lhs:
            writers.setdefault(n, []).append(i)
        for n in rhs:
            readers.setdefault(n, []).append(i)
    wanted: dict[str, set[str]] = {}  # name -> enables that read it directly
    for m in _ALWAYS.finditer(text):
        for n in _names(m[3]):
            wanted.setdefault(n, set()).add(m[1])
    TOP = "\0"
    label: list[str | None] = [None] * len(assigns)  # None: nobody reads it
    changed = True
    while changed:
        changed = False
        for i in range(len(assigns) - 1, -1, -1):
            if label[i] == TOP:
                continue
            seen = {label[i]} - {None}
            for n in assigns[i][1]:
                if n in held or n not in wires:
                    seen.add(TOP)
                seen |= wanted.get(n, set())
                seen |= {label[j] for j in readers.get(n, ())} - {None}
                if len(writers[n]) > 1:
                    seen |= {label[j] for j in writers[n]} - {None}
            new = None if not seen else seen.pop() if len(seen) == 1 else TOP
            if new != label[i]:
                label[i] = new
                changed = True
    out: dict[str, str] = {}
    gone: set[str] = set()
    for enable, blocks in groups.items():
        mine = [i for i, g in enumerate(label) if g == enable]
        order = _sorted(mine, assigns, writers)
        loads = [m for b in blocks if (m := _ALWAYS.match(b))]
        if not mine or order is None or any(m[2].strip() not in widths for m in loads):
            continue
        local = sorted(set().union(*(assigns[i][1] for i in mine)))
        gone |= set(local)
        k = len(out)
        steps = [f"{assigns[i][3]} = {assigns[i][4]};" for i in order]
        read = set().union(*(assigns[i][2] for i in mine), *(_names(m[3]) for m in loads)) - set(local) - {"$signed", "$unsigned"}
        if len(mine) < TASK or not read <= set(widths):  # memories cannot be passed
            body = "".join(f"      reg {wires[n]}{n} ;\n" for n in local) + "".join(f"      {x}\n" for x in steps)
            body += "".join(f"      {m[2]} <= {m[3]};\n" for m in loads)
            out[enable] = f"  always @(posedge clk)\n    if ({enable}) begin : sunk{k}\n{body}    end\n"
            continue
        inputs = sorted(read)
        task = "    /*verilator no_inline_task*/\n"
        task += "".join(f"    input {widths[n]}{n} ;\n" for n in inputs)
        task += "".join(f"    output {widths[m[2].strip()]}next{j}_;\n" for j, m in enumerate(loads))
        task += "".join(f"    reg {wires[n]}{n} ;\n" for n in local) + "    begin\n" + "".join(f"      {x}\n" for x in steps)
        task += "".join(f"      next{j}_ = {m[3]};\n" for j, m in enumerate(loads)) + "    end\n  endtask\n"
        name = tasks.setdefault(task, f"t{len(tasks)}")
        call = ", ".join([*(f"{n} " for n in inputs), *(f"next{j}_" for j in range(len(loads)))])
        body = "".join(f"      reg {widths[m[2].strip()]}next{j}_;\n" for j, m in enumerate(loads)) + f"      sunk::{name}({call});\n"
        body += "".join(f"      {m[2]} <= next{j}_;\n" for j, m in enumerate(loads))
        out[enable] = f"  always @(posedge clk)\n    if ({enable}) begin : sunk{k}_load\n{body}    end\n"
    if not out:
        return text
    sunk = {i for i, g in enumerate(label) if g in out} | {i for i, a in enumerate(assigns) if label[i] is None and a[2] & gone}
    it = iter(range(len(assigns)))
    text = _ASSIGN.sub(lambda m: "" if next(it) in sunk else m[0], text)
    emitted: set[str] = set()

    def block(m: re.Match[str]) -> str:
        if m[1] not in out:
            return m[0]
        if m[1] in emitted:
            return ""
        emitted.add(m[1])
        return out[m[1]]

    text = _ALWAYS.sub(block, text)
    return _WIRE.sub(lambda m: "" if m[2].strip() in gone else m[0], text)


def _sorted(mine: list[int], assigns, writers) -> list[int] | None:
    """`mine` with writers before readers; None when names depend on each other in a circle."""
    inside, state, order = set(mine), {}, []
    for root in mine:
        stack = [(root, False)]
        while stack:
            i, leaving = stack.pop()
            if leaving:
                state[i] = 2
                order.append(i)
                continue
            if state.get(i):
                continue
            state[i] = 1
            stack.append((i, True))
            for n in assigns[i][2]:
                for j in writers.get(n, ()):
                    if j in inside:
                        if state.get(j) == 1:
                            return None
                        if not state.get(j):
                            stack.append((j, False))
    return order
