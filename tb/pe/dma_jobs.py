"""Jobs of the DMA bench: data files, random descriptors, and a runner that compares both memories and every completion with the golden engine."""
from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from golden.pe.dma import DmaEngine, Space
from spec.dma import DMA_COMPLETION, DMA_DESCRIPTOR, DmaOp, DmaStatus
from tb.lib.bench import Bench

JOBS = Path(__file__).parent / "jobs"
KEYS = {"name", "op", "src", "dst", "bytes", "status", "addr", "indices"}
STRIDES = ("row_src", "row_dst", "plane_src", "plane_dst", "repeat_src", "repeat_dst")
COUNTS = ("rows", "planes", "repeats")
OTHERS = ("index", "fill")


@dataclass
class Job:
    """A descriptor. `status`, `addr`: what its file says it ends in; None: the golden engine's word alone."""

    fields: dict[str, int]
    name: str = ""
    status: DmaStatus | None = None
    addr: int = 0
    indices: list[int] | None = None  # put at `index` before the run


@dataclass
class JobFile:
    name: str
    jobs: list[Job]
    memory_error: tuple[int, int] = (0, 0)
    local_error: tuple[int, int] = (0, 0)
    quiet: list[str] = field(default_factory=list)  # jobs that put nothing on a bus


def copy(src: tuple[str, int], dst: tuple[str, int], n: int, **more: int) -> Job:
    """A job; strides may be negative."""
    fields = {"src_local": int(src[0] == "local"), "src": src[1], "dst_local": int(dst[0] == "local"), "dst": dst[1], "row_bytes": n}
    fields |= dict.fromkeys(COUNTS, 1) | {k: v & 0xFFFF_FFFF if k in STRIDES else v for k, v in more.items()}
    return Job(fields)


def load(path: Path, rng: np.random.Generator) -> JobFile:
    """A data file.

    Raises:
        ValueError: unknown keys or names.
    """
    text = tomllib.loads(path.read_text())
    unknown = set(text) - {"job", "quiet", "memory_error", "local_error"}
    jobs = []
    for j in text["job"]:
        unknown |= set(j) - KEYS - {*STRIDES, *COUNTS, *OTHERS}
        job = copy(tuple(j.get("src", ("memory", 0))), tuple(j["dst"]), j["bytes"],
                   **{k: v for k, v in j.items() if k in (*STRIDES, *COUNTS, *OTHERS)}, op=DmaOp[j.get("op", "COPY")])
        job.name = f"{path.stem}: {j['name']}"
        job.status = None if j.get("status") == "any" else DmaStatus[j.get("status", "OK")]
        job.addr = j.get("addr", 0)
        job.indices = j.get("indices")
        if isinstance(j.get("indices"), dict):
            how = j["indices"]
            job.indices = [int(x) for x in rng.integers(0, how["below"], how["count"])]
            for k, v in how.get("put", {}).items():
                job.indices[int(k)] = v
        jobs.append(job)
    if unknown:
        raise ValueError(f"{path}: unknown key(s) {', '.join(sorted(unknown))}")
    rest = {k: tuple(text[k]) for k in ("memory_error", "local_error") if k in text}
    return JobFile(path.stem, jobs, **rest, quiet=text.get("quiet", []))


class World:
    """Both memories of the bench, and the golden engine on copies of them."""

    def __init__(self, b: Bench, near: str = "near", far: str = "axi"):
        self.b, self.near, self.far = b, near, far
        p = b.config.node
        self.local_bytes = p.pe.local_bytes
        size = b.ports[near].size_bytes
        self.local = Space(b.rng.integers(0, 256, self.local_bytes, dtype=np.uint8), silent=True)
        self.memory = Space(b.rng.integers(0, 256, size, dtype=np.uint8), limit=1 << p.mem.addr_width)
        self.golden = DmaEngine(self.memory, self.local)
        self.deadline = 200_000

    def put(self, at: int, values: Any) -> None:
        """Words of 32 bits into local memory."""
        raw = np.asarray(values, np.uint32).view(np.uint8)
        self.local.data[at : at + len(raw)] = raw

    def errors(self, memory: tuple[int, int] = (0, 0), local: tuple[int, int] = (0, 0)) -> None:
        self.memory.bad, self.local.bad = [memory], [local]
        self.b.memory(self.near).error(*local)
        if self.far:
            self.b.memory(self.far).error(*memory)

    def before(self) -> None:
        """The golden memories into the bench's, where they differ."""
        for name, space in ((self.near, self.local), (self.far, self.memory)):
            if name:
                m = self.b.memory(name)
                differ = np.flatnonzero(m.image[: len(space.data)] != space.data)
                if len(differ):
                    low, high = int(differ[0]), int(differ[-1]) + 1
                    m.write(low, space.data[low:high])

    def after(self, jobs: list[Job], outcomes: list[tuple[int, DmaStatus, int]]) -> None:
        """Every completion and every byte of both memories as the golden engine has them."""
        got = [DMA_COMPLETION.unpack(w) for w in self.b.sink("completion").words()]
        for g, (tag, status, addr), job in zip(got, outcomes, jobs, strict=True):
            told = f"{job.name or job.fields}: {DmaStatus(g['status']).name} at {g['addr']:#x}, tag {g['tag']}"
            assert (g["tag"], g["status"], g["addr"]) == (tag, status, addr), f"{told}; golden {status.name} at {addr:#x}, tag {tag}"
            if job.status is not None:
                assert (g["status"], g["addr"]) == (job.status, job.addr), f"{told}; expected {job.status.name} at {job.addr:#x}"
            self.b.cover(DmaStatus(g["status"]).name.lower())
        for name, space in ((self.near, self.local), (self.far, self.memory)):
            if name:
                image = self.b.memory(name).image[: len(space.data)]
                differ = np.flatnonzero(image != space.data)
                assert not len(differ), f"{name}: {len(differ)} bytes differ, first at {int(differ[0]):#x}: " + "; ".join(
                    f"{j.fields}" for j in jobs[:8])

    async def run(self, jobs: list[Job]) -> int:
        """Run `jobs` on the engine and on the golden one; returns cycles."""
        for job in jobs:
            if job.indices is not None:
                self.put(job.fields["index"], job.indices)
        self.before()
        words = [DMA_DESCRIPTOR.pack(job.fields, tag=i & 0xFFFF) for i, job in enumerate(jobs)]
        self.b.source("descriptor").load(words)
        self.b.sink("completion").expect(len(jobs))
        cycles = await self.b.run(self.deadline, settle=24)
        self.after(jobs, self.golden.run(words))
        return cycles


def random_job(rng: np.random.Generator, memory: tuple[int, int], local: tuple[int, int], *, most: int = 400, index_at: int | None = None) -> Job:
    """Any kind of descriptor within the two ranges (start, bytes); a few go beyond or have nothing to move. Nothing keeps them apart from each other."""
    op = DmaOp(int(rng.choice(4, p=[0.6, 0.1, 0.15, 0.15])))
    side, small = {}, int(rng.choice([1, 8, 64, most]))
    n = int(rng.integers(0 if rng.random() < 0.1 else 1, small + 1))
    rows = int(rng.choice([1, 1, int(rng.integers(1, 6)), int(rng.integers(1, 40))]))
    if op in (DmaOp.GATHER, DmaOp.SCATTER):
        counts = {"rows": int(rng.integers(1, 50)), "planes": 1, "repeats": 1}
    else:
        counts = {"rows": rows, "planes": int(rng.choice([1, 1, 3])), "repeats": int(rng.choice([1, 1, 1, 2, 0]))}
    more: dict[str, int] = {"op": op, "fill": int(rng.integers(1 << 32)), **counts}
    for k in ("src", "dst"):
        near = bool(rng.integers(2))
        start, size = local if near else memory
        levels, reach = [], 0
        for name, count in (("row", counts["rows"]), ("plane", counts["planes"]), ("repeat", counts["repeats"])):
            room = max(0, (size - n - reach) // max(1, 6 * count))
            stride = n if rng.random() < 0.4 and n <= room else int(rng.integers(0, min(room, 300) + 1))
            levels.append((f"{name}_{k}", stride))
            reach += stride * max(0, count - 1)
        for name, stride in levels:
            more[name] = stride
        at = start + int(rng.integers(0, max(1, size - n - reach)))
        if rng.random() < 0.3:
            at = at // 64 * 64
        side[k] = ("local" if near else "memory", at)
    job = copy(side["src"], side["dst"], n, **more)
    if op in (DmaOp.GATHER, DmaOp.SCATTER):
        assert index_at is not None
        job.fields["index"] = index_at
        pitch = more["row_src" if op == DmaOp.GATHER else "row_dst"]
        most_index = max(1, (local if side["src" if op == DmaOp.GATHER else "dst"][0] == "local" else memory)[1] // (4 * max(1, pitch)))
        job.indices = [int(x) for x in rng.integers(0, most_index, counts["rows"])]
    return job
