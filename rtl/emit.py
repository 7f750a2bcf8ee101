"""Emission: Amaranth -> RTLIL -> Yosys (`proc; opt_clean`) -> Verilog, each distinct block elaborated once.

Contract
    * Blocks wrapped in :func:`rtl.common.block.shared` are converted on their own, once per (class, arguments), and
      instantiated by name; modules that still turn out equal are merged by content. Their RTLIL is kept under ``<dir>/rtlil``, so a
      block that stands in several designs is elaborated for the first only.
    * The Verilog is a function of the sources alone: the same input gives the same bytes (no dates, no paths).
    * Output goes to ``<dir>/<key>/<top>.v`` with ``<top>.json`` (ports, parameters, module count) beside it, where `key`
      hashes the RTLIL; files are written under a temporary name and renamed when whole, so a reader never sees half a file.
    * Yosys runs only when that key is not there yet; and nothing is elaborated when the block's class, arguments and the
      text of every module of this project that its own module imports, directly or not, are those of an earlier emission. A module that was written while
      this process ran has no text that others may go by: what it makes is its own.

Not `amaranth.back.verilog`: its `always @*` blocks read X on Icarus until an input changes, and Verilator takes an
order of magnitude longer on them (`bench/emission.py` measures both).
"""
from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Fragment, Signal, Value
from amaranth.hdl._ir import PortDirection
from amaranth.lib.wiring import In

import rtl.common.uninitialised  # noqa: F401  (initial values of memories as constants: conversion time)
from rtl.common.block import Block
from rtl.sink import sink

_STARTED = Path("/proc/self").stat().st_ctime if Path("/proc/self").exists() else time.time()  # of this process
_SALT = os.urandom(16)
YOSYS_PASSES = "proc; opt_clean"
SUNK_PASSES = "proc -noopt; opt_clean; opt_dff -nosdff; opt_clean"  # masks stay masks; registers with enables, which `sink` needs


@dataclass(frozen=True, kw_only=True)
class Port:
    """A flat port of the emitted top: `name`, `width` in bits, `input` seen from the block."""

    name: str
    width: int
    input: bool


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """What emission made: the Verilog file, the top module's name, its ports, a content key, the number of modules, and the
    names of modules wrapped in `shared` that occur more than once (a simulator does well not to inline those)."""

    verilog: Path
    top: str
    ports: tuple[Port, ...]
    key: str
    modules: int
    shared: tuple[str, ...] = ()


class _Platform:
    """Passed to `elaborate`: collects shared blocks, each to be converted on its own."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # by block key
        self.pending: list[tuple[str, Block]] = []

    def shared_module(self, block: Block) -> str:
        key = repr(block.block_key)
        if key not in self.names:
            short = re.sub(r"\W", "_", type(block).__name__)
            self.names[key] = f"{short}_{hashlib.sha256(key.encode()).hexdigest()[:10]}"
            self.pending.append((self.names[key], block))
        return self.names[key]


def flat_ports(block: Any) -> list[tuple[str, Any, bool]]:
    """(flat name, value, is input) of every port, paths joined by ``__``."""
    return [
        ("__".join(str(p) for p in path), value, member.flow is In)
        for path, member, value in block.signature.flatten(block)
    ]


def _convert(name: str, block: Block, platform: _Platform | None, emit_src: bool = False) -> str:
    """RTLIL of `block` as module `name`; without a platform, with every shared part elaborated where it stands."""
    # said, not inferred: an output that nothing drives holds its initial value, and is not taken for an input
    ports = {n: (Value.cast(v), PortDirection.Input if i else PortDirection.Output) for n, v, i in flat_ports(block)}
    fragment = Fragment.get(block, platform)
    text, _ = rtlil.convert_fragment(fragment, ports=ports, name=name, emit_src=emit_src)
    for unused in ("clk", "rst"):  # every instance connects both, a block of pure logic has neither
        if not re.search(rf"(?m)^\s+wire [^\n]*\\{unused}$", text):
            ports[unused] = (Signal(name=unused), PortDirection.Input)
            text, _ = rtlil.convert_fragment(fragment, ports=ports, name=name, emit_src=emit_src)
    return text


def _closure(name: str, block: Block, cache: Path | None, done: dict[str, str]) -> None:
    """Fill `done` with the RTLIL of `block`, as module `name`, and of every shared block below it."""
    if _take(name, _kept(name, block), cache, done):
        block._MustUse__silence = True  # not elaborated: the kept text stands
        return
    platform = _Platform()
    done[name] = text = _convert(name, block, platform)
    for child, instance in platform.pending:
        _closure(child, instance, cache, done)
    if cache:
        children = [(child, _kept(child, instance)) for child, instance in platform.pending]
        write_atomic(cache / _kept(name, block), lambda p: p.write_text(json.dumps({"text": text, "children": children})))


def _kept(name: str, block: Block) -> str:
    """Name of the file of a kept conversion."""
    return f"{name}-{_source_key(block, name, '')}.json"


def _take(name: str, file: str, cache: Path | None, done: dict[str, str]) -> bool:
    """Fill `done`, where `name` is missing, from a kept conversion and those it needs; False if one is not there."""
    if name in done:
        return True
    path = cache / file if cache else None
    if path is None or not path.exists():
        return False
    known = json.loads(path.read_text())
    if not all(_take(child, f, cache, done) for child, f in known["children"]):
        return False
    done[name] = known["text"]
    return True


def to_rtlil(block: Block, top: str, cache: Path | None = None) -> tuple[str, int, tuple[str, ...]]:
    """RTLIL text of `block` and all shared blocks below it, equal modules merged; the number of modules; names of the shared ones that
    occur more than once."""
    own = _Platform().shared_module(block)
    texts: dict[str, str] = {}
    _closure(own, block, cache, texts)
    modules: dict[str, str] = {}
    for name in sorted(texts, key=lambda n: (n != own, n)):
        for match in re.finditer(r"(?ms)^(?:attribute [^\n]*\n)*module (\S+)\n.*?^end\n", texts[name].replace(f"\\{own}", f"\\{top}")):
            modules[match.group(1)] = match.group(0)
    text, count = _merge_equal(modules, "\\" + top)
    return text, count, tuple(n for n in sorted(texts) if text.count(f"  cell \\{n} ") > 1)


_CELL = re.compile(r"(?m)^(\s+cell )(\\\S+)( )")


def _merge_equal(modules: dict[str, str], top: str) -> tuple[str, int]:
    """Merge modules with equal bodies, bottom up, until nothing changes; keeps the first name of each class."""
    while True:
        seen: dict[str, str] = {}
        alias: dict[str, str] = {}
        for name, text in modules.items():
            body = text.replace(f"module {name}\n", "module ?\n", 1)
            body = re.sub(r'(?m)^attribute \\(?:src|amaranth\.hierarchy|top)[^\n]*\n|^\s+attribute \\src[^\n]*\n', "", body)
            if name != top and body in seen:
                alias[name] = seen[body]
            else:
                seen[body] = name
        if not alias:
            return "".join(modules.values()), len(modules)
        modules = {
            name: _CELL.sub(lambda m, alias=alias: m[1] + alias.get(m[2], m[2]) + m[3], text)
            for name, text in modules.items()
            if name not in alias
        }


def write_atomic(path: Path, write: Callable[[Path], Any]) -> None:
    """Call ``write(temporary path)`` beside `path`, then rename: `path` is never seen half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, tmp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(fd)
    try:
        write(Path(tmp))
        os.chmod(tmp, 0o644)
        os.replace(tmp, path)
    finally:
        if os.path.exists(tmp):
            os.unlink(tmp)


def emit(block: Block, directory: Path, *, top: str | None = None, sunk: bool = False) -> Emitted:
    """Emit `block` as Verilog under `directory`.

    Args:
        block: the component; its flat ports plus `clk` and `rst` become the module's ports.
        directory: cache root; the result is in a folder named by content.
        top: module name (default: the class name).
        sunk: for Verilator only: logic of registers with an enable moves into it (rtl/sink.py), so that what is idle costs little.

    Raises:
        RuntimeError: Yosys refused the RTLIL (its message is included).
    """
    top = top or type(block).__name__
    passes = SUNK_PASSES if sunk else YOSYS_PASSES
    index = directory / "index" / f"{_source_key(block, top, passes)}.json"
    if index.exists():
        known = json.loads(index.read_text())
        verilog = directory / known["key"] / f"{top}.v"
        if verilog.exists() and verilog.with_suffix(".json").exists():
            block._MustUse__silence = True  # not elaborated: the earlier emission stands
            ports = tuple(Port(**p) for p in known["ports"])
            return Emitted(verilog=verilog, top=top, ports=ports, key=known["key"], modules=known["modules"],
                           shared=tuple(known["shared"]))
    text, count, names = to_rtlil(block, top, directory / "rtlil")
    key = hashlib.sha256((text + passes + (Path(sink.__code__.co_filename).read_text() if sunk else "")).encode()).hexdigest()[:20]
    ports = tuple(Port(name=n, width=_width(v), input=i) for n, v, i in flat_ports(block))
    out = directory / key / f"{top}.v"
    sidecar = out.with_suffix(".json")
    if not (out.exists() and sidecar.exists()):
        write_atomic(out, lambda p: _yosys(text, p, passes, sink if sunk else None))
        meta = {
            "top": top,
            "modules": count,
            "parameters": repr(block.block_key),
            "ports": [{"name": p.name, "width": p.width, "direction": "input" if p.input else "output"} for p in ports],
            "layouts": {n: repr(v.shape()) for n, v, _ in flat_ports(block) if hasattr(v, "shape") and callable(v.shape)},
            "passes": passes,
        }
        write_atomic(sidecar, lambda p: p.write_text(json.dumps(meta, indent=1) + "\n"))
    known = {"key": key, "modules": count, "shared": names, "ports": [asdict(p) for p in ports]}
    write_atomic(index, lambda p: p.write_text(json.dumps(known)))
    return Emitted(verilog=out, top=top, ports=ports, key=key, modules=count, shared=names)


def _source_key(block: Block, top: str, passes: str) -> str:
    """Hash of everything an emission depends on: sources, arguments, the versions of the tools."""
    h = hashlib.sha256(repr((block.block_key, top, passes, sys.version_info[:2])).encode())
    for package in ("amaranth", "pyosys"):
        h.update(metadata.version(package).encode())
    sources = import_closure(type(block).__module__)
    if not sources:
        h.update(os.urandom(16))  # defined in an interactive session: nothing says whether it changed
    for path in sorted(sources | import_closure(__name__)):
        h.update(path.read_bytes())
        if path.stat().st_mtime >= _STARTED:
            h.update(_SALT)  # written since this process began: what it imported may be another text
    return h.hexdigest()[:20]


@lru_cache
def import_closure(module: str) -> frozenset[Path]:
    """Files of this project and of the module's own package that `module` imports, directly or not, itself included.

    A module without a file (an interactive session) has none: see :func:`_source_key`.
    """
    found: dict[str, Path] = {}
    packages = {"rtl", "spec", "tb", module.partition(".")[0]}
    todo = [module]
    while todo:
        name = todo.pop()
        if name in found or name.partition(".")[0] not in packages:
            continue
        loaded = sys.modules.get(name)  # a script's __main__ has no spec
        spec = getattr(loaded, "__spec__", None) or (None if loaded else importlib.util.find_spec(name))
        origin = getattr(loaded, "__file__", None) or (spec and spec.origin)
        if origin:
            found[name] = Path(origin)
            todo += _imports(found[name])
    return frozenset(found.values())


@lru_cache
def _imports(file: Path) -> tuple[str, ...]:
    """Modules that a file imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{a.name}" for a in node.names if _is_module(f"{node.module}.{a.name}")]
    return tuple(names)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _width(value: Any) -> int:
    return len(Value.cast(value))


def _yosys(text: str, out: Path, passes: str, after: Callable[[str], str] | None) -> None:
    """Run Yosys in a process of its own (an error inside it ends the process, not this program)."""
    with tempfile.TemporaryDirectory() as tmp:
        source = Path(tmp) / "design.il"
        source.write_text(text)
        script = f"read_rtlil {source}; {passes}; write_verilog -noattr {out}"
        code = (
            "import sys; from pyosys import libyosys as ys; d = ys.Design(); "
            "[ys.run_pass(p.strip(), d) for p in sys.argv[1].split(';')]"
        )
        run = subprocess.run([sys.executable, "-c", code, script], capture_output=True, text=True)
        if run.returncode != 0:
            kept = out.with_suffix(".failed.il")
            kept.write_text(text)
            tail = "\n".join((run.stdout + run.stderr).strip().splitlines()[-5:])
            raise RuntimeError(f"Yosys refused the RTLIL (kept as {kept}):\n{tail}")
    lines = out.read_text().split("\n")
    if lines and lines[0].startswith("/*"):  # Yosys' banner names its version
        lines = lines[1:]
    verilog = "\n".join(lines)
    out.write_text(after(verilog) if after else verilog)
