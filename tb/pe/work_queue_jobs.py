"""Jobs for benches of the work-queue engine: descriptors and programs in memory, golden records beside those of the hardware."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from golden.pe.command_processor import CommandProcessor, Completion
from golden.pe.work_queue import TIMES, WorkQueue
from spec.assembly import encode
from spec.isa import COMPLETION, CpStatus
from spec.work_queue import JOB, JOB_END, JOB_RECORD, JobStatus
from tb.lib.bench import Bench

Program = list[dict[str, int]]
RING = 0x1000
HEAP = 0x4000
JOB_FIELDS = [f.name for f in JOB.fields if not f.name.startswith("_")]


class Cores:
    """The golden command processor with stand-in units, kept from job to job."""

    def __init__(self) -> None:
        self.cp = CommandProcessor()

    def run(self, programs: Any) -> list[Completion]:
        self.cp.failed = False
        return self.cp.run(programs, lambda unit, op, args, at: (args >> 16 & 0xFF, args >> 24 & 0xFFFFFF))


@dataclass
class Jobs:
    """Descriptors, put into `memory` as they are made; `size` entries of the ring at RING."""

    memory: np.ndarray
    size: int = 8
    at: int = HEAP
    ring: list[dict[str, int]] = field(default_factory=list)
    express: list[dict[str, int]] = field(default_factory=list)
    cycles: int = 0  # of the run

    def put(self, data: bytes) -> int:
        at, self.at = self.at, self.at + -(-len(data) // 64) * 64
        self.memory[at : at + len(data)] = np.frombuffer(data, np.uint8)
        return at

    def add(self, tag: int, *programs: Program, record: bool | int = True, express: bool = False, **fields: int) -> dict[str, int]:
        """One job, its record in a place of its own, at address `record`, or nowhere (False); `fields` replace those of its descriptor."""
        job = dict.fromkeys(JOB_FIELDS, 0) | dict(tag=tag, record=self.put(bytes(64)) if record is True else int(record))
        for k, p in enumerate(programs):
            job |= {f"count{k}": len(p), f"program{k}": self.put(encode(p)) if p else 0}
        job |= fields
        (self.express if express else self.ring).append(job)
        if not express:
            number = len(self.ring) - 1
            at = RING + 64 * (number % self.size)
            self.memory[at : at + 64] = np.frombuffer(JOB.to_bytes(job), np.uint8)
        return job


def record_of(memory: np.ndarray, job: dict[str, int]) -> dict[str, int]:
    return JOB_RECORD.from_bytes(memory[job["record"] : job["record"] + 64].tobytes())


def check_ends(words: Iterable[int], golden: list[tuple[int, JobStatus]], ring: int) -> None:
    """Ends equal the golden engine's, of which the first `ring` are the ring's, in order of each kind; the tags of the two kinds differ."""
    ends = [(e["tag"], JobStatus(e["status"])) for e in map(JOB_END.unpack, words)]
    tags = {t for t, _ in golden[:ring]}
    assert [e for e in ends if e[0] in tags] == golden[:ring] and [e for e in ends if e[0] not in tags] == golden[ring:], ends


def different(jobs: Jobs, golden: WorkQueue, records: list[dict[str, int]]) -> list[dict[str, tuple[int, int]]]:
    """Fields of the records that are not the golden engine's: (value, expected)."""
    have = [j for j in [*jobs.ring, *jobs.express] if j["record"] and not j["record"] % 64 and golden.readable(j["record"])]
    want = [record_of(golden.memory, j) for j in have]
    return [{"tag": r["tag"]} | {k: (v, w[k]) for k, v in r.items() if v != w[k] and k not in TIMES} for r, w in zip(records, want, strict=True)]


def records_of(memory: np.ndarray, jobs: Jobs, golden: WorkQueue) -> list[dict[str, int]]:
    """Records of the jobs that have one, ring jobs first; `memory` but their times equals the golden engine's."""
    records = []
    image = memory.copy()
    for job in [*jobs.ring, *jobs.express]:
        at = job["record"]
        if not at or at % 64 or not golden.readable(at):
            continue
        record = record_of(image, job)
        assert all(record[k] >= record["doorbell"] for k in TIMES), record
        records.append(record)
        image[at : at + 64] = np.frombuffer(JOB_RECORD.to_bytes(record | dict.fromkeys(TIMES, 0)), np.uint8)
    wrong = np.flatnonzero(image != golden.memory)
    assert not len(wrong), f"{len(wrong)} bytes of memory differ, the first at {int(wrong[0]):#x}; {different(jobs, golden, records)}"
    return records


async def start(dut: Any) -> Bench:
    b = Bench(dut)
    for name in ("base", "size", "tail"):
        b.pin(name).value = 0
    await b.reset()
    return b


async def run(b: Bench, jobs: Jobs, *, refused: tuple[int, int] = (0, 0), deadline: int = 400_000, exact: bool = True) -> list[dict[str, int]]:
    """All jobs, on a machine just reset; records of those that have one, ring jobs first. Memory, ends, `head` and `errors` equal the golden engine's;
    with `exact` also what every instruction ended in."""
    if len(jobs.ring) > jobs.size:
        raise ValueError(f"{len(jobs.ring)} jobs in a ring of {jobs.size}")
    b.pin("tail").value = 0
    b.pin("base").value, b.pin("size").value = RING, jobs.size
    await b.reset()
    memory = b.memory("axi")
    memory.write(0, jobs.memory)
    memory.error(*refused)
    golden = WorkQueue(jobs.memory.copy(), Cores().run, refused=[refused] if refused[1] else [])
    golden.ring(RING, jobs.size, 0, len(jobs.ring))
    ring_ends = list(golden.ends)
    for job in jobs.express:
        golden.job(job)
    b.source("express").load(np.frombuffer(b"".join(JOB.to_bytes(j) for j in jobs.express), np.uint8).reshape(-1, JOB.nbytes))
    b.sink("ended").expect(len(golden.ends))
    b.sink("seen").expect(len(golden.completions))
    await b.begin(settle=64)
    b.pin("tail").value = len(jobs.ring)
    jobs.cycles = await b.finish(deadline)
    check_ends(b.sink("ended").words(), golden.ends, len(ring_ends))
    if exact:
        got = Counter((c["core"], c["unit"], c["tag"], c["status"], c["info"]) for c in map(COMPLETION.unpack, b.sink("seen").words()))
        want = Counter((c.core, c.unit, c.tag, int(c.status), c.info) for c in golden.completions)
        assert got == want, f"completions: {got - want}, expected {want - got}"
    assert int(b.pin("head").value) == len(jobs.ring) and int(b.pin("errors").value) == golden.errors and not int(b.pin("busy").value)
    return records_of(memory.image, jobs, golden)


def failing(records: list[dict[str, int]]) -> list[CpStatus]:
    return [CpStatus(r["fail_status"]) for r in records]
