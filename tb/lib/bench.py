"""What a cocotb test sees: sources, sinks, memories and pins of the block, one `run` per batch of stimulus.

Time: the HDL clock has a period of 2 ns; a reading at a rising edge is the value before the edge. Python wakes once per `run`.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import First, RisingEdge, Timer
from cocotb.utils import get_sim_time

from golden.net import pcap
from spec.params import SystemParams, config
from tb.lib import coverage
from tb.lib.ports import CYCLE, TopPort, memory_image

PROB = 65536


class BenchError(AssertionError):
    """A run that did not end, or broke a stream or bus rule; the message holds the state of every port."""


def _rows(words: Any, width: int) -> np.ndarray:
    """(n, ceil(width/8)) uint8 rows of `words`: ints, or such rows already."""
    nbytes = max(1, -(-width // 8))
    if isinstance(words, np.ndarray) and words.ndim == 2 and words.dtype == np.uint8:
        if words.shape[1] != nbytes:
            raise ValueError(f"rows of {words.shape[1]} bytes for a port of {width} bits; expected {nbytes}")
        return np.ascontiguousarray(words)
    out = bytearray()
    for i, w in enumerate(words):
        w = int(w)
        if not 0 <= w < 1 << max(width, 1):
            raise ValueError(f"word {i} = {w:#x} does not fit in {width} bits")
        out += w.to_bytes(nbytes, "little")
    return np.frombuffer(bytes(out), np.uint8).reshape(-1, nbytes)


def _dumped(path: Path) -> list[str]:
    """Words of a $writememh file (simulators differ in comments and addresses between them)."""
    return [x.strip() for x in path.read_text().splitlines() if x.strip() and not x.startswith(("//", "@"))]


def _prob(p: float) -> int:
    if not 0 <= p < 1:
        raise ValueError(f"probability {p}; expected 0 <= p < 1")
    return int(p * PROB)


class Source:
    """Feeds a stream port of the block. `idle`: probability of an idle cycle before a word."""

    def __init__(self, bench: Bench, port: TopPort):
        self._b, self.port, self.name = bench, port, port.name
        self.idle = 0.0
        self._rows: np.ndarray | None = None

    def load(self, words: Any) -> None:
        """Words for the next run, replacing what was not run yet."""
        rows = _rows(words, self.port.width)
        if len(rows) > self.port.depth:
            raise ValueError(f"source {self.name}: {len(rows)} words, memory holds {self.port.depth}")
        self._rows = rows

    def _arm(self) -> None:
        h = self._b.pin
        rows = self._rows
        self._rows = None
        h(f"{self.name}__load").value = int(rows is not None)
        if rows is not None:
            if len(rows):
                Path(f"{self.name}.bin").write_bytes(memory_image(rows))
            h(f"{self.name}__count").value = len(rows)
        h(f"{self.name}__idle").value = _prob(self.idle)
        h(f"{self.name}__seed").value = self._b.seed32()

    @property
    def sent(self) -> int:
        return int(self._b.pin(f"{self.name}__sent").value)


class Sink:
    """Takes what a stream port gives. `backpressure`: probability of a cycle without ready."""

    def __init__(self, bench: Bench, port: TopPort):
        self._b, self.port, self.name = bench, port, port.name
        self.backpressure = 0.0
        self._expect = 0
        self._exact = True
        self._data = np.zeros((0, max(1, -(-port.width // 8))), np.uint8)

    def expect(self, count: int, *, exact: bool = True) -> None:
        """The next run ends when `count` words came; with `exact`, more of them within the settling time fail it."""
        if count > self.port.depth:
            raise ValueError(f"sink {self.name}: {count} words expected, memory holds {self.port.depth}")
        self._expect, self._exact = count, exact

    def _arm(self) -> None:
        h = self._b.pin
        h(f"{self.name}__expect").value = self._expect
        h(f"{self.name}__stall").value = _prob(self.backpressure)
        h(f"{self.name}__seed").value = self._b.seed32()

    @property
    def got(self) -> int:
        return int(self._b.pin(f"{self.name}__got").value)

    def _collect(self) -> None:
        nbytes = max(1, -(-self.port.width // 8))
        if not self.got:
            self._data = np.zeros((0, nbytes), np.uint8)
            return
        lines = _dumped(Path(f"{self.name}.hex"))
        text = "".join(x.rjust(2 * nbytes, "0") for x in lines)
        self._data = np.frombuffer(bytes.fromhex(text.replace("x", "0")), np.uint8).reshape(-1, nbytes)[:, ::-1].copy()
        if "x" in text:
            raise BenchError(f"sink {self.name}: X in an accepted word")

    def array(self) -> np.ndarray:
        """(n, nbytes) uint8 rows of the last run."""
        return self._data

    def words(self) -> list[int]:
        return [int.from_bytes(r.tobytes(), "little") for r in self._data]


class Memory:
    """HDL memory behind an AXI4 manager port. `latency` in cycles, `stall` a probability per channel and cycle."""

    def __init__(self, bench: Bench, port: TopPort):
        self._b, self.port, self.name = bench, port, port.name
        self.image = np.zeros(port.size_bytes, np.uint8)
        self.latency = 1
        self.stall = 0.0
        self._error = (0, 0, 2)
        self._dirty: tuple[int, int] | None = None
        self.reads = 0  # beats of the last run
        self.writes = 0

    def _check(self, addr: int, n: int) -> None:
        if addr < 0 or addr + n > len(self.image):
            raise ValueError(f"memory {self.name}: {addr:#x}+{n} outside its {len(self.image)} bytes")

    def write(self, addr: int, data: Any) -> None:
        data = np.frombuffer(bytes(data), np.uint8) if not isinstance(data, np.ndarray) else data.view(np.uint8).ravel()
        self._check(addr, len(data))
        if not len(data):
            return
        self.image[addr : addr + len(data)] = data
        lo, hi = addr, addr + len(data)
        self._dirty = (min(lo, self._dirty[0]), max(hi, self._dirty[1])) if self._dirty else (lo, hi)

    def read(self, addr: int, n: int) -> np.ndarray:
        self._check(addr, n)
        return self.image[addr : addr + n].copy()

    def error(self, start: int, end: int, resp: int = 2) -> None:
        """Bytes [start, end) answer `resp`; (0, 0) clears."""
        self._error = (start, end, resp)

    def _arm(self) -> None:
        h = self._b.pin
        n, nb = self.name, self.port.data_bytes
        h(f"{n}__latency").value = self.latency
        h(f"{n}__stall").value = _prob(self.stall)
        h(f"{n}__seed").value = self._b.seed32()
        for k, v in zip(("error_start", "error_end", "error_resp"), self._error, strict=True):
            h(f"{n}__{k}").value = v
        if self._dirty:
            first, last = self._dirty[0] // nb, (self._dirty[1] - 1) // nb
            rows = self.image[first * nb : (last + 1) * nb].reshape(-1, nb)
            Path(f"{n}.bin").write_bytes(memory_image(rows))
            h(f"{n}__load_first").value, h(f"{n}__load_last").value = first, last
            h(f"{n}__load").value = 1 - int(h(f"{n}__load").value)
            self._dirty = None
        self._base = (int(h(f"{n}__reads").value), int(h(f"{n}__writes").value))

    async def _collect(self) -> None:
        h = self._b.pin
        n, nb = self.name, self.port.data_bytes
        self.reads = int(h(f"{n}__reads").value) - self._base[0]
        self.writes = int(h(f"{n}__writes").value) - self._base[1]
        low, high = int(h(f"{n}__low").value), int(h(f"{n}__high").value)
        if low > high:
            return
        h(f"{n}__dump_first").value, h(f"{n}__dump_last").value = low, high
        h(f"{n}__dump").value = 1 - int(h(f"{n}__dump").value)
        await Timer(3 * CYCLE, "ns")
        lines = _dumped(Path(f"{n}.hex"))
        text = "".join(lines)
        if "x" in text:
            raise BenchError(f"memory {n}: X was written")
        data = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, nb)[:, ::-1]
        self.image[low * nb : (high + 1) * nb] = data.ravel()


class Bench:
    """Handle on the running top. Create with :meth:`start`."""

    _captured = False  # an earlier test of this simulation has begun the capture

    def __init__(self, dut: Any):
        self.dut = dut
        info = json.loads(os.environ["TAWNY_BENCH"])
        self.block: str = info["block"]
        self.sim: str = info["sim"]
        self.config: SystemParams = config(info["config"])
        self.ports = {p["name"]: TopPort(**p) for p in info["ports"]}
        test = getattr(cocotb, "RANDOM_SEED", None) or getattr(cocotb, "random_seed", 0)
        self.seed = int(info["seed"])
        self.rng = np.random.default_rng([self.seed & 0xFFFFFFFF, self.seed >> 32, len(str(test))])
        self._handles: dict[str, Any] = {}
        self._sources = {n: Source(self, p) for n, p in self.ports.items() if p.kind == "source"}
        self._sinks = {n: Sink(self, p) for n, p in self.ports.items() if p.kind == "sink"}
        self._memories = {n: Memory(self, p) for n, p in self.ports.items() if p.kind == "memory"}
        self.total_cycles = 0
        self._pcap: str = info.get("pcap", "")
        self._links: tuple[str, ...] = tuple(info.get("links", ()))

    @classmethod
    async def start(cls, dut: Any) -> Bench:
        b = cls(dut)
        if b._pcap:
            cocotb.start_soon(b._capture(Path(b._pcap), b._links))
        await b.reset()
        return b

    async def reset(self, cycles: int = 4) -> None:
        """Hold the block in reset for `cycles`; inputs keep their values; sources and sinks are emptied."""
        self.pin("rst").value = 1
        await Timer(cycles * CYCLE, "ns")
        self.pin("rst").value = 0
        await Timer(CYCLE, "ns")

    async def _capture(self, path: Path, links: tuple[str, ...]) -> None:
        """Frames of the block's links, from now to the end of the test; the file holds those of all tests, one after the other."""
        clk = self.pin("clk")
        pins = [[self.pin(f"{n}__{s}") for s in ("valid", "ready", "payload")] for n in links]
        with pcap.Writer(path, interfaces=links, append=Bench._captured) as w:
            Bench._captured = True
            while True:
                await RisingEdge(clk)
                for i, (valid, ready, payload) in enumerate(pins):
                    if valid.value == 1 and ready.value == 1:
                        w.flit(round(get_sim_time("ns")) // CYCLE, payload.value.to_bytes(byteorder="little"), i)

    def pin(self, name: str) -> Any:
        """cocotb handle of a signal of the top, looked up once."""
        h = self._handles.get(name)
        if h is None:
            h = self._handles[name] = getattr(self.dut, name)
        return h

    def _get(self, table: dict[str, Any], name: str, kind: str) -> Any:
        if name not in table:
            raise KeyError(f"{self.block} has no {kind} {name!r}; it has {', '.join(table) or 'none'}")
        return table[name]

    def source(self, name: str) -> Source:
        return self._get(self._sources, name, "source")

    def sink(self, name: str) -> Sink:
        return self._get(self._sinks, name, "sink")

    def memory(self, name: str) -> Memory:
        return self._get(self._memories, name, "memory")

    def stalls(self, p: float) -> None:
        """The same idle, back-pressure and memory stall probability on every port."""
        for s in self._sources.values():
            s.idle = p
        for k in self._sinks.values():
            k.backpressure = p
        for m in self._memories.values():
            m.stall = p

    def seed32(self) -> int:
        return int(self.rng.integers(1, 1 << 32))

    def cover(self, name: str, count: int = 1) -> None:
        """Count hits of coverage bin `name`."""
        coverage.hit(self.block, name, count)

    async def wait_cycles(self, n: int) -> None:
        await Timer(n * CYCLE, "ns")

    async def begin(self, settle: int = 16) -> None:
        """Arm every port and start; use :meth:`run` unless the test acts in between."""
        for p in (*self._sources.values(), *self._sinks.values(), *self._memories.values()):
            p._arm()
        self.pin("tb_settle").value = settle
        self.pin("tb_start").value = 1 - int(self.pin("tb_start").value)
        await Timer(CYCLE, "ns")
        await Timer(CYCLE, "ns")

    async def finish(self, deadline: int) -> int:
        """Wait for the end of a run begun with :meth:`begin`. Returns cycles until the last word moved.

        Raises:
            BenchError: deadline (cycles) passed, a rule was broken, or a sink got more than expected.
        """
        done = self.pin("tb_done")
        if not int(done.value):
            await First(RisingEdge(done), Timer(deadline * CYCLE, "ns"))
        await Timer(CYCLE, "ns")
        cycles = int(self.pin("tb_cycles").value)
        self.total_cycles += cycles
        if not int(done.value):
            raise BenchError(f"{self.block}: not done after {deadline} cycles\n{self.state()}")
        await self._collect()
        return cycles

    async def _collect(self) -> None:
        self.pin("tb_dump").value = 1 - int(self.pin("tb_dump").value)
        await Timer(3 * CYCLE, "ns")
        for m in self._memories.values():
            await m._collect()
        if int(self.pin("tb_rule").value):
            raise BenchError(f"{self.block}: a stream or bus rule was broken\n{self.state()}")
        for k in self._sinks.values():
            k._collect()
            if k._exact and k.got != k._expect:
                raise BenchError(f"{self.block}: sink {k.name} got {k.got} words, expected {k._expect}\n{self.state()}")
            k._expect, k._exact = 0, True

    async def run(self, deadline: int, *, settle: int = 16) -> int:
        """Run until sources are drained and sinks have what they expect; returns the cycles it took.

        `settle`: cycles to go on after that, in which surplus words would show.
        """
        await self.begin(settle)
        return await self.finish(deadline)

    def state(self) -> str:
        """One line per port: words, rules."""
        lines = []
        for n, s in self._sources.items():
            lines.append(f"  source {n}: sent {s.sent} of {int(self.pin(n + '__count').value)}, valid {self.pin(n + '__valid').value}, ready {self.pin(n + '__ready').value}")
        for n, k in self._sinks.items():
            lines.append(f"  sink {n}: got {k.got}, expected {k._expect}, rules broken {int(self.pin(n + '__rule').value):03b}")
        for n in self._memories:
            lines.append(f"  memory {n}: read beats {int(self.pin(n + '__reads').value)}, write beats {int(self.pin(n + '__writes').value)}, rules broken {int(self.pin(n + '__rule').value):07b}, idle {self.pin(n + '__idle').value}")
        for n, p in self.ports.items():
            if p.kind in ("in", "out"):
                lines.append(f"  {p.kind} {n}: {self.pin(n).value}")
        return "\n".join(lines)
