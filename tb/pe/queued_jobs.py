"""Jobs of a queued element: posted through its registers, memory and records beside the golden element's."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from golden.pe.queued_element import QueuedElement
from spec.params import config
from spec.work_queue import JOB, REGISTERS
from tb.common.pin_bus import Axil
from tb.lib.bench import Bench
from tb.pe.pe_jobs import Image
from tb.pe.work_queue_jobs import RING, Jobs, check_ends, records_of

OFFSETS = {r.name: r.offset for r in REGISTERS}
DATA = 1 << 18  # operands and results from here on, descriptors, records and programs below


class Queue:
    """An element's control port."""

    def __init__(self, bench: Bench):
        self.bench, self.node, self.bus = bench, bench.config.node, Axil(bench, "ctl")

    @classmethod
    async def start(cls, dut: Any) -> Queue:
        bench = Bench(dut)
        queue = cls(bench)
        await bench.reset()
        return queue

    async def write(self, name: str, value: int) -> None:
        assert await self.bus.write(OFFSETS[name], value) == 0, name

    async def read(self, name: str) -> int:
        value, response = await self.bus.read(OFFSETS[name])
        assert response == 0, name
        return value

    def image(self, size: int = 8) -> tuple[Image, Jobs]:
        """Memory full of noise, and jobs in it."""
        image = Image(self.bench.rng, 1 << 21)
        image.at = DATA
        return image, Jobs(image.bytes, size)

    async def run(self, jobs: Jobs, *, deadline: int = 400_000, refused: tuple[int, int] = (0, 0), but: Iterable[tuple[int, int]] = ()) -> list[dict[str, int]]:
        """All jobs, on an element just reset; records, ring jobs first. Memory, but for the ranges in `but`, ends, heads and errors
        equal the golden element's."""
        b = self.bench
        await b.reset()
        memory = b.memory("axi")
        memory.write(0, jobs.memory)
        memory.error(*refused)
        golden = QueuedElement(self.node.pe, self.node.mem, jobs.memory.copy(), [refused] if refused[1] else [])
        golden.ring(RING, jobs.size, 0, len(jobs.ring))
        ring = len(golden.ends)
        for job in jobs.express:
            golden.job(job)
        b.source("express").load(np.frombuffer(b"".join(map(JOB.to_bytes, jobs.express)), np.uint8).reshape(-1, JOB.nbytes))
        b.sink("ended").expect(len(golden.ends))
        for name, value in (("jq_base", RING), ("jq_base_high", 0), ("jq_size", jobs.size)):
            await self.write(name, value)
        await b.begin(settle=64)
        if jobs.ring:
            await self.write("jq_tail", len(jobs.ring))
        jobs.cycles = await b.finish(deadline)
        check_ends(b.sink("ended").words(), golden.ends, ring)
        assert await self.read("jq_head") == len(jobs.ring)
        assert await self.read("jq_errors") == golden.errors
        assert await self.read("jq_state") == 0
        image = memory.image.copy()
        for first, end in but:  # of jobs that fail: what they had written by then depends on times
            image[first:end] = golden.memory[first:end]
        return records_of(image, jobs, golden)


PE = config("tiny").node.pe
